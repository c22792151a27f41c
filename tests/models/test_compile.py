"""One graph for the whole forward pass, and for batches of every shape."""

import subprocess
import sys
from pathlib import Path

# In a process of its own: torch cannot compile through the checks that the tests put around every signature.
SCRIPT = """
import torch
from torch._dynamo.testing import CompileCounter
from models.config import ModelConfig
from models.transformer import Transformer

for kernel in "plain", "fused":
    torch._dynamo.reset()
    torch.manual_seed(0)
    config = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=8, d_ff=16, num_heads=2, attention_kernel=kernel)
    model = Transformer(config, 13, 13, 0).double().eval()
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    for batch, source_length, target_length in (3, 5, 4), (2, 7, 9), (5, 4, 6):
        source = torch.randint(0, 13, (batch, source_length))
        target_in = torch.randint(0, 13, (batch, target_length))
        torch.testing.assert_close(compiled(source, target_in), model(source, target_in), atol=1e-12, rtol=1e-12)
    assert counter.frame_count == 1, f"{kernel}: compiled {counter.frame_count} times"
"""


def test_compiles_once_without_graph_breaks():
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
