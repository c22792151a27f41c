"""Why the scores are divided by √d_k: without it the softmax saturates, and no gradient passes."""

import csv

import pytest
import torch

from pipeline.benchmarks import commands, saturation
from pipeline.benchmarks.saturation import jacobian_norm


@pytest.fixture(scope="module")
def rows():
    torch.manual_seed(0)
    return {d_k: saturation.saturation(d_k) for d_k in (4, 16, 64, 256)}


def test_the_norm_of_the_jacobian_is_that_of_the_jacobian_that_autograd_finds():
    torch.manual_seed(0)
    scores = 3 * torch.randn(7, dtype=torch.double)
    jacobian = torch.func.jacrev(lambda s: s.softmax(-1))(scores)
    torch.testing.assert_close(jacobian_norm(scores.softmax(-1)), jacobian.norm(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("p", [[1.0, 0.0, 0.0], [1 - 1e-9, 1e-9, 0.0]])
def test_where_all_weight_is_on_one_key_no_gradient_passes(p):
    assert 0 <= jacobian_norm(torch.tensor(p, dtype=torch.double)) < 2e-8


def test_the_variance_of_a_score_is_the_width_and_one_where_it_is_scaled(rows):
    for d_k, row in rows.items():
        assert row["variance"] == pytest.approx(d_k, rel=0.05)
        assert row["variance_scaled"] == pytest.approx(1, rel=0.05)


def test_without_the_scale_one_key_takes_all_weight_and_the_gradient_vanishes_as_the_width_grows(rows):
    largest = [row["largest_weight"] for row in rows.values()]
    assert largest == sorted(largest) and largest[-1] > 0.85
    assert rows[256]["jacobian_norm"] < 0.65 * rows[64]["jacobian_norm"]


def test_with_the_scale_the_softmax_does_not_know_the_width(rows):
    for column in ("largest_weight_scaled", "jacobian_norm_scaled"):
        assert rows[4][column] == pytest.approx(rows[256][column], rel=0.05)


def test_the_command_writes_table_and_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(saturation, "NUM_QUERIES", 256)
    monkeypatch.setattr(saturation, "WIDTHS", [1, 4, 16])
    commands.saturation(report=str(tmp_path / "new/s.csv"), plot=str(tmp_path / "new/s.svg"))
    said = capsys.readouterr()
    assert "over 64 keys" in said.out
    assert said.err == "sampling 256 queries with 64 keys each, at head widths 1, 4, 16\n"
    with open(tmp_path / "new/s.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["d_k"] for row in rows] == ["1", "4", "16"]
    assert {"variance", "largest_weight", "jacobian_norm", "jacobian_norm_scaled"} <= set(rows[0])
    assert (tmp_path / "new/s.svg").read_text("utf-8").count("<svg") == 1
