"""Models that nobody has trained, and the few words that they can spell."""

import torch

from models.encoder_decoder import EncoderDecoder
from pipeline.checkpoint import build_model
from pipeline.config import Configuration, TokenizerConfig
from pipeline.data.tokenizer import Tokenizers

WORDS = "the cat sat on a mat while two old trees of that garden seen in café".split()
TEXT = [" ".join(WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))]
SENTENCES = [
    "the cat sat",
    "a mat",
    "two old trees of that garden seen in café while the cat sat on a mat",
    "seen",
    "the old garden on the mat",
    "trees in garden of a café",
]
TOKENIZER = TokenizerConfig(vocab_size=60)
SIZES = dict(encoder_layers=1, d_model=16, d_ff=32, num_heads=2)


def untrained(configuration: Configuration, tokenizers: Tokenizers, seed: int) -> EncoderDecoder:
    """A model with random weights large enough for it to have opinions."""
    torch.manual_seed(seed)
    model = build_model(configuration, tokenizers).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return model
