import pytest

from pipeline.data.progress import progress


@pytest.fixture
def clock(monkeypatch):
    """Seconds, moved by hand."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("rich.console.monotonic", lambda: now[0])
    return now


def test_without_a_terminal_a_line_tells_at_times_how_far_it_is(clock, capsys):
    with progress("translating", total=5000, done=1000) as advance:
        for _ in range(4):
            clock[0] += 20
            advance(500)
    told = ["translating: 2,000 of 5,000, 25.0/s, 0:02:00 left", "translating: 3,000 of 5,000, 25.0/s, 0:01:20 left"]
    assert capsys.readouterr().err.splitlines() == told


def test_what_has_no_known_end_has_no_time_left(clock, capsys):
    with progress("translating") as advance:
        advance(1)
        clock[0] += 40
        advance(1)
    assert capsys.readouterr().err == "translating: 2, 0.1/s\n"
