import sys

import pytest

from pipeline.training.run_log import RunLog, draw_curves, read_rows


def test_a_record_that_goes_on_repeats_nothing(tmp_path):
    record = RunLog(tmp_path, step=0)
    for step in (2, 4, 6):
        record.add({"step": step, "loss": 1 / step})
    with open(record.path, "a") as file:
        file.write("8,0.")  # cut off by a kill
    record = RunLog(tmp_path, step=4)
    record.add({"step": 6, "loss": 0.5, "bleu": 7.0})
    assert read_rows(record.path) == [
        {"step": 2, "loss": 0.5},
        {"step": 4, "loss": 0.25},
        {"step": 6, "loss": 0.5, "bleu": 7.0},
    ]


def test_curves_are_drawn_from_any_rows(tmp_path, curves):
    draw_curves([], tmp_path / "none.png")
    draw_curves([{"step": 2, "loss": 1.0}, {"step": 3, "valid_loss": 2.0, "bleu": 0.0}], tmp_path / "some.png")
    for name in ("none.png", "some.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_are_no_curves_and_a_warning(tmp_path, curves, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.warns(UserWarning, match=r"no curves\.png: matplotlib is not installed"):
        draw_curves([], tmp_path / "curves.png")
    assert not list(tmp_path.iterdir())
