import threading
import time

import pytest

from pipeline.data.arrivals import as_they_arrive, read_ahead


def trickle(released: threading.Semaphore, items):
    for item in items:
        released.acquire()
        yield item


def test_an_item_is_handed_on_though_the_next_has_not_come():
    released = threading.Semaphore(1)
    lists = as_they_arrive(trickle(released, "abc"), 10)
    assert next(lists) == ["a"]
    released.release(2)
    assert [*lists] == [["b", "c"]]


def test_what_comes_fast_comes_in_full_lists():
    assert [*as_they_arrive(range(7), 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [*as_they_arrive([], 3)] == []


def test_no_more_is_fetched_than_is_asked_for():
    fetched = []
    items = read_ahead((fetched.append(i) or i for i in range(100)), 3)
    assert next(items) == 0
    time.sleep(0.05)
    assert len(fetched) <= 1 + 3 + 1  # one is used, three wait, and one waits to wait
    assert [*items] == [*range(1, 100)]


@pytest.mark.parametrize("read", [read_ahead, as_they_arrive])
def test_what_was_there_before_a_failure_comes_before_it(read):
    def broken():
        yield from "ab"
        raise ValueError("line 3")

    found = []
    with pytest.raises(ValueError, match="line 3"):
        found.extend(each for some in read(broken(), 5) for each in some)
    assert found == [*"ab"]
