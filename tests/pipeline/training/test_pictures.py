"""Pictures of attention while training: one at each validation, and not a bit of the training changed."""

import pytest
import torch
from matplotlib.image import imread
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipeline.checkpoint import checkpoints, read_checkpoint
from pipeline.training import validation
from pipeline.training.fit import fit


def test_each_validation_leaves_a_picture_and_training_goes_on_as_without(tiny, rows):
    plain = tiny(run="plain", max_steps=6, validate_every=3, model={"dropout": 0.3})
    drawn = tiny(run="drawn", max_steps=6, validate_every=3, model={"dropout": 0.3}, attention_pictures=True)
    run = fit(drawn)
    pictures = sorted((run / "samples").glob("*.png"))
    assert [path.name for path in pictures] == [f"attention-step-{step:07d}.png" for step in (3, 6)]
    events = EventAccumulator(str(run / "logs")).Reload()
    assert [image.step for image in events.Images("cross-attention")] == [3, 6]
    height, width, _ = imread(pictures[-1]).shape
    assert (events.Images("cross-attention")[-1].height, events.Images("cross-attention")[-1].width) == (height, width)

    fit(plain)
    assert rows(drawn) == rows(plain)
    with_pictures, without = (read_checkpoint(checkpoints(c.output.run)[-1]) for c in (drawn, plain))
    for part in ("state_dict", "optimizer_states"):
        torch.testing.assert_close(with_pictures[part], without[part], rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:sentence .* is translated in .* parts")
def test_a_run_may_go_on_with_pictures_of_what_can_be_looked_at(tiny, capsys):
    fit(tiny(max_steps=5, validation_sentences=1))
    run = fit(tiny(max_steps=10, validation_sentences=1, attention_pictures=True, search={"max_source_tokens": 1}))
    assert "no picture of attention: the sentence has" in capsys.readouterr().err
    assert not list((run / "samples").glob("*.png"))


def test_missing_matplotlib_is_known_before_training(tiny, monkeypatch):
    monkeypatch.setattr(validation, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"attention_pictures=true needs matplotlib: pip install 'dragoman\[plots\]'"):
        fit(tiny(attention_pictures=True))
