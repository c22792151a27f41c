import pytest

from pipeline.config import TrainerConfig
from pipeline.training.ending import Standing, better


def limits(**options):
    return TrainerConfig(**({"max_steps": 0} | options))


def test_training_ends_at_the_nearest_limit():
    assert Standing(step=9).ending(limits(max_steps=10)) == ""
    assert "max_steps=10" in Standing(step=10).ending(limits(max_steps=10, max_epochs=99))
    assert "max_epochs=2" in Standing(step=5, epochs=2).ending(limits(max_steps=10, max_epochs=2))
    assert "max_minutes=1.5" in Standing(seconds=90).ending(limits(max_minutes=1.5))


@pytest.mark.parametrize(
    "metric, column, values, best",
    [("bleu", "bleu", [1.0, 7.0, 5.0, 6.0], 2), ("loss", "valid_loss", [4.0, 2.0, 3.0, 2.5], 2)],
)
def test_the_best_validation_has_the_highest_bleu_or_the_lowest_loss(metric, column, values, best):
    standing = Standing()
    taken = [
        standing.take(step, {"valid_loss": 1.0, column: value}, column) for step, value in enumerate(values, start=1)
    ]
    assert taken == [True, True, False, False]
    assert standing.best_step == best
    assert standing.ending(limits(max_steps=100, patience=3, metric=metric)) == ""
    assert f"better {metric}" in standing.ending(limits(max_steps=100, patience=2, metric=metric))


def test_equal_scores_are_told_apart_by_the_loss():
    assert better({"bleu": 0.0, "valid_loss": 1.0}, {"bleu": 0.0, "valid_loss": 2.0}, "bleu")
    assert not better({"bleu": 0.0, "valid_loss": 2.0}, {"bleu": 0.0, "valid_loss": 2.0}, "bleu")


def test_a_standing_survives_its_file(tmp_path):
    standing = Standing(step=7, seconds=1.5, best_step=5, best_scores={"bleu": 3.0})
    standing.write(tmp_path / "standing.json")
    assert Standing.read(tmp_path / "standing.json") == standing
