"""Evaluations are kept beside their model, and none in the place of another set's."""

import pytest

from pipeline.inference.evaluation import EvaluationSet, evaluate
from pipeline.inference.held_out import Task, evaluation_folder, keep, require_comparable

TEXTS = ["one two three four"]


def set_of(name, source):
    return EvaluationSet(name, [source], TEXTS, "en")


def test_no_set_is_kept_in_the_place_of_another(tmp_path):
    def keep_set(name, source, its_own=False):
        on = set_of(name, source)
        keep(str(tmp_path), evaluate("system", TEXTS, on), on, its_own)

    keep_set("test", "own", its_own=True)
    for name, source in (("test", "a"), ("news.en", "b"), ("news.en", "c"), ("test", "d"), ("test.en-de", "e")):
        keep_set(name, source)
    expected = {
        **{"test": "own", "test.2": "a", "test.3": "d", "test.en-de.2": "e"},
        **{"news.en": "b", "news.en.2": "c"},
    }
    for again in ([], [("news.en", "c"), ("test", "a")]):
        for name, source in again:
            keep_set(name, source)
        folders = (tmp_path / "evaluations").iterdir()
        assert {folder.name: (folder / "source.txt").read_text().strip() for folder in folders} == expected


def test_a_checkpoint_s_evaluation_is_kept_in_its_run_or_where_it_was_moved(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for folder in (tmp_path / "checkpoints", tmp_path):
        checkpoint = folder / "step-0000100.ckpt"
        checkpoint.write_bytes(b"")
        found = evaluation_folder(checkpoint, set_of("test", "a"), its_own=True)
        assert found == tmp_path / "evaluations/test.step-0000100"


def test_where_nothing_can_be_kept_there_is_a_warning(tmp_path):
    (tmp_path / "evaluations").write_text("in the way")
    on = set_of("test", "a")
    with pytest.warns(UserWarning, match="the evaluation on test is shown, and not kept: .*evaluations"):
        keep(str(tmp_path), evaluate("system", TEXTS, on), on, its_own=True)


def test_models_are_compared_on_the_same_sentences_or_told_how_to_be():
    one, two = [Task("", set_of("test", "a"))], [Task(each, set_of(f"test.{each}", each)) for each in ("a", "b")]
    require_comparable("A", one, "B", two[:1])
    remedy = "A and B have different test sets: name one for both with --source and --reference"
    for other, ending in ((two[1:], ""), (two, ", or one language for both with --to")):
        with pytest.raises(ValueError, match=f"^{remedy}{ending}$"):
            require_comparable("A", one, "B", other)
