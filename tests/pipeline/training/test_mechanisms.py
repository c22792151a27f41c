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

CONFIGS = Path(__file__).parents[3] / "configs"
TOGETHER = [
    "performer rotary gelu post_norm deep_encoder",
    "elu learned swiglu rms_norm grouped_queries",
    "additive alibi plain_kernel",
    "flex no_positions global",
    "shaw window",
    "recurrent",
    "recurrent_no_attention",
]
"""Every overlay once, with others that it goes with: a model that has several has each."""

SENTENCES = [source for source, _ in PAIRS[:3]]


def test_every_overlay_is_tried():
    assert sorted(" ".join(TOGETHER).split()) == sorted(p.stem.removeprefix("with_") for p in CONFIGS.glob("with_*"))


@pytest.mark.parametrize("overlays", TOGETHER)
def test_it_goes_through_all_that_a_model_goes_through(tiny, overlays):
    choices = {}
    for overlay in overlays.split():
        choices |= yaml.safe_load((CONFIGS / f"with_{overlay}.yaml").read_text("utf-8"))["model"]
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


def test_a_validation_sentence_longer_than_positions_are_learned_is_known_before_training(tiny, tmp_path):
    valid = [tmp_path / "valid.src", tmp_path / "valid.tgt"]
    for path in valid:
        path.write_text(" ".join(["red cat runs"] * 20) + "\n", encoding="utf-8")
    files = tiny().corpora
    corpora = dict(train=files.train, valid=list(map(str, valid)), test=files.test)
    limits = dict(batching=dict(max_source_tokens=20, max_target_tokens=20), search=dict(max_source_tokens=10))
    configuration = tiny(
        corpora=corpora,
        model=dict(positions="learned", max_positions=32),
        output=dict(data=str(tmp_path / "data"), run=str(tmp_path / "run")),
        **limits,
    )
    with pytest.raises(ValueError, match=r"longest sentence of corpora\.valid may take \d+ positions, more than .*=32"):
        fit(configuration)
    assert not checkpoints(configuration.output.run)
