"""Whatever the mechanism, a model trains, goes on where it stopped, is averaged, loaded and used like any other."""

from pathlib import Path

import pytest
import torch
import yaml

from pipeline.checkpoint import average_checkpoints, checkpoints, load_model, model_state, read_checkpoint
from pipeline.inference.held_out import evaluate_models
from pipeline.inference.translator import Translator
from pipeline.training.fit import fit
from tests.pipeline.training.conftest import PAIRS

OVERLAYS = sorted((Path(__file__).parents[3] / "configs").glob("with_*.yaml"))
SENTENCES = [source for source, _ in PAIRS[:3]]


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.stem)
def test_it_goes_through_all_that_a_model_goes_through(tiny, overlay):
    choices = yaml.safe_load(overlay.read_text("utf-8"))["model"]
    model = dict(d_model=16, d_ff=32, num_heads=2, encoder_layers=2, decoder_layers=2) | choices
    steps = dict(validate_every=6, checkpoint_every=3, validation_sentences=2, model=model)
    whole, broken = tiny("whole", max_steps=6, **steps), tiny("broken", max_steps=4, **steps)
    for configuration in (whole, broken, broken := tiny("broken", max_steps=6, **steps)):
        fit(configuration)

    run = Path(broken.output.run)
    found, expected = (read_checkpoint(checkpoints(c.output.run)[-1]) for c in (broken, whole))
    for part in ("global_step", "state_dict", "optimizer_states"):
        torch.testing.assert_close(found[part], expected[part], rtol=0, atol=0)

    last_two = checkpoints(run)[-2:]
    average = average_checkpoints(last_two).model.state_dict()
    first, second = (model_state(read_checkpoint(path)) for path in last_two)
    torch.testing.assert_close(average, {name: (first[name] + second[name]) / 2 for name in average})

    assert {name: getattr(load_model(run).model.config, name) for name in choices} == choices
    translator = Translator.load(run)
    assert translator.translate(SENTENCES) == [translator.translate([sentence])[0] for sentence in SENTENCES]
    evaluate_models([str(run)])
