"""The comparison of mechanisms: what it fits, what it weighs, and that every layer is what its name says."""

import csv
import dataclasses
import itertools
import sys

import pytest
import torch

from models.config import ModelConfig
from pipeline.benchmarks import commands, growth, plots
from pipeline.benchmarks.growth import MECHANISMS, Cell, GatedConvolution, exponent, exponents, measure, peak_memory

CPU = torch.device("cpu")
CONFIG = ModelConfig(d_model=8, num_heads=2, random_features=16)


def read(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("p", [0, 1, 1.5, 2])
def test_the_exponent_of_a_power_is_found_whatever_its_factor(p):
    lengths = [64, 128, 512, 4096]
    assert exponent(lengths, [0.3 * n**p for n in lengths]) == pytest.approx(p, abs=1e-12)


def test_through_two_points_goes_any_line_so_there_is_no_exponent():
    rows = [{"mechanism": "plain", "length": n, "milliseconds": 1.0, "peak_megabytes": 1.0} for n in (64, 128, 256)]
    assert exponents("plain", rows)["time_exponent"] == 0
    found = exponents("plain", rows[:2])
    assert {found[name] for name in ("time_exponent", "memory_exponent", "fitted_from", "fitted_to")} == {""}
    assert found["time_in_theory"] == 2


def test_the_lower_half_of_the_lengths_and_what_ran_out_of_memory_are_left_out_of_the_fit():
    measured = [(64, 9.0), (128, 9.0), (256, 9.0), (512, 512.0**2), (1024, 1024.0**2), (2048, 2048.0**2)]
    rows = [{"mechanism": "plain", "length": n, "milliseconds": y, "peak_megabytes": y**0.5} for n, y in measured]
    rows += [{"mechanism": "plain", "length": 4096, "note": "out of memory"}]
    rows += [{"mechanism": "fused", "length": 2048, "milliseconds": 1.0, "peak_megabytes": 1.0}]
    found = exponents("plain", rows)
    assert found["time_exponent"] == pytest.approx(2, abs=1e-12)
    assert found["memory_exponent"] == pytest.approx(1, abs=1e-12)
    assert (found["fitted_from"], found["fitted_to"]) == (512, 2048)
    assert (found["time_in_theory"], found["memory_in_theory"], found["sequential_steps"]) == (2, 2, "1")


def test_a_gated_convolution_is_its_formula():
    torch.manual_seed(0)
    layer, x = GatedConvolution(CONFIG).double(), torch.randn(2, 5, 8, dtype=torch.double)
    weight, bias = layer.convolution.weight, layer.convolution.bias  # [2 D, D, k]
    width = weight.size(-1)
    expected = torch.empty_like(x)
    for t in range(5):
        both = bias.expand(2, -1)
        for back in range(min(width, t + 1)):
            both = both + x[:, t - back] @ weight[:, :, width - 1 - back].T
        expected[:, t] = (x[:, t] + both[:, :8] * both[:, 8:].sigmoid()) / 2**0.5
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_keeps_the_shape_and_sees_the_past_and_not_the_future(name):
    torch.manual_seed(0)
    layer = MECHANISMS[name].layer(CONFIG).double().eval()
    x = torch.randn(2, 9, 8, dtype=torch.double, requires_grad=True)
    y = layer(x)
    assert y.shape == x.shape
    (seen,) = torch.autograd.grad(y[:, 4].square().sum(), x)
    moved = seen.abs().sum(dim=(0, 2)) > 0
    assert moved[3:].tolist() == [True, True, False, False, False, False]


def test_the_peak_is_what_is_held_at_a_time_and_not_what_is_allocated_in_all():
    before = torch.ones(1000)

    def one_after_the_other():
        kept = torch.empty(1024, dtype=torch.float32)
        for size in (2048, 4096, 512):
            torch.empty(size, dtype=torch.float32)
        del kept
        before.add_(1)

    assert peak_memory(one_after_the_other, CPU) == 4 * (1024 + 4096)


def test_the_peak_counts_what_a_kernel_takes_for_its_own_work():
    layer, x = torch.nn.LSTM(8, 8, batch_first=True), torch.randn(1, 64, 8)
    output = 4 * 64 * 8
    assert peak_memory(lambda: layer(x), CPU) > 4 * output  # the gates of every step are kept for the gradient


def peaks(name, lengths):
    config = dataclasses.replace(CONFIG, d_model=64)  # wide enough for a constant workspace not to be seen
    cells = [Cell(name, config, 1, length, CPU) for length in lengths]
    for cell in cells:
        cell.warm_up()
        cell.weigh()
    return [cell.peak_bytes for cell in cells]


@pytest.mark.parametrize("name", MECHANISMS)
def test_memory_grows_as_in_theory(name):
    """Twice the length: what is linear takes twice the memory, what is quadratic four times."""
    power = MECHANISMS[name].memory_exponent
    short, long = peaks(name, [512, 1024] if power == 2 else [2048, 4096])
    assert long / short == pytest.approx(2**power, rel=0.12)


def test_running_out_of_memory_is_a_row_and_stops_no_other_mechanism(monkeypatch):
    monkeypatch.setattr(growth, "SECONDS_A_TURN", 0)

    def refuse(cell):
        torch.empty(2**60)

    cells = [Cell("plain", CONFIG, 1, 16, CPU), Cell("fused", CONFIG, 1, 16, CPU)]
    monkeypatch.setattr(cells[0], "run", lambda: refuse(cells[0]))
    measure(cells)
    assert cells[0].row() == {"mechanism": "plain", "length": 16, "note": "out of memory"}
    assert len(cells[1].seconds) == growth.TURNS and cells[1].row()["peak_megabytes"] > 0


def test_any_other_failure_is_not_taken_for_it(monkeypatch):
    cell = Cell("plain", CONFIG, 1, 16, CPU)

    def fail():
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(cell, "run", fail)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        measure([cell])


def test_names_beside_lines_do_not_overlap_and_stay_within_the_panel():
    placed = plots.spread([0.1, 0.5, 0.51, 0.52, 0.98, 0.99], 0.05)
    assert all(b - a >= 0.05 - 1e-12 for a, b in itertools.pairwise(placed))
    assert placed[:2] == [0.1, 0.5] and placed[-1] == 1


def test_the_command_measures_every_mechanism_and_writes_tables_and_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(growth, "SECONDS_A_TURN", 0)
    monkeypatch.setattr(growth, "refuse_what_is_not_there", lambda: None)  # it would bind all tests after this one
    report, plot = tmp_path / "new/g.csv", tmp_path / "new/g.png"
    commands.attention(lengths=[32, 16, 64], d_model=8, num_heads=2, report=str(report), plot=str(plot))
    said = capsys.readouterr()
    assert said.err == f"measuring {', '.join(MECHANISMS)} at lengths 16, 32, 64\n"
    assert "torch" in said.out and "width 8, 2 heads, batch 1" in said.out
    rows = read(tmp_path / "new/g.csv")
    assert [(row["mechanism"], row["length"]) for row in rows] == [
        (m, n) for n in ("16", "32", "64") for m in MECHANISMS
    ]
    assert all(float(row["milliseconds"]) > 0 and float(row["peak_megabytes"]) > 0 for row in rows)
    found = read(tmp_path / "new/g.growth.csv")
    assert list(found[0]) == [
        "mechanism", "time_exponent", "time_in_theory", "memory_exponent", "memory_in_theory", "fitted_from",
        "fitted_to", "operations", "sequential_steps", "longest_path",
    ]  # fmt: skip
    assert [row["mechanism"] for row in found] == list(MECHANISMS)
    assert (tmp_path / "new/g.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system refuses by itself, or not at all")
def test_more_memory_than_there_is_is_refused_rather_than_the_process_killed():
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        growth.refuse_what_is_not_there()
        available, _ = resource.getrlimit(resource.RLIMIT_DATA)
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            torch.empty(available, dtype=torch.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def test_a_figure_shows_what_was_measured_where_memory_ran_out_on_the_way():
    figure = plots.blank_figure("g.png", 12, 6)
    rows = [
        {"mechanism": "fused", "length": 8, "milliseconds": 0.25, "peak_megabytes": 0.5},
        {"mechanism": "plain", "length": 16, "milliseconds": 1.0, "peak_megabytes": 2.0},
        {"mechanism": "fused", "length": 16, "milliseconds": 1.0, "peak_megabytes": 1.0},
        {"mechanism": "plain", "length": 32, "note": "out of memory"},
        {"mechanism": "fused", "length": 32, "milliseconds": 4.0, "peak_megabytes": 2.0},
    ]
    growth.draw(figure, rows, [exponents(name, rows) for name in ("plain", "fused")], "conditions")
    names = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert names == [["$n$", "$n^2$", "plain", "fused $n^{2.00}$"], ["$n$", "$n^2$", "plain", "fused $n^{1.00}$"]]


def test_without_matplotlib_it_is_said_before_anything_is_measured(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(growth, "measure", lambda cells: pytest.fail("measured"))
    monkeypatch.setattr(growth, "refuse_what_is_not_there", lambda: None)
    with pytest.raises(ValueError, match=r"--plot g\.png needs matplotlib: pip install 'dragoman\[plots\]'"):
        growth.compare([], CONFIG, 1, ["plain"], "", "g.png")


def test_the_command_offers_the_mechanisms_that_there_are():
    assert list(MECHANISMS) == commands.MECHANISMS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mechanisms": ["linear"]}, "--mechanisms linear: choose among recurrent, convolutional"),
        ({"mechanisms": []}, "--mechanisms: name at least one of recurrent, convolutional"),
        ({"num_heads": 3}, "num_heads=3 must divide model.d_model=128"),
        ({"plot": "g.bmp"}, r"--plot g\.bmp: choose a name that ends in one of \.png, \.svg, \.pdf"),
        ({"report": "g.txt"}, r"--report g\.txt: choose a name that ends in one of \.csv, \.json"),
    ],
)
def test_a_mistake_is_one_clear_line_before_torch_is_imported(options, message, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "pipeline.benchmarks.growth")
    monkeypatch.delattr("pipeline.benchmarks.growth")
    with pytest.raises(ValueError, match=message):
        commands.attention(**options)
