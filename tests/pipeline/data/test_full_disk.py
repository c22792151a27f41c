"""A full disk is told in one line, by whoever finds it full, and the work goes on when there is room."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pipeline.data.clean_pairs import CleanPairs, CleanShard
from pipeline.data.corpora import Shard
from pipeline.data.full_disk import full_disk_told
from pipeline.data.preparation import prepare
from pipeline.data.shards import write_array, write_json

FULL = Path("/dev/full")
on_a_full_disk = pytest.mark.skipif(not FULL.exists(), reason="this system has no file that is always full")


@pytest.fixture
def pairs(tmp_path) -> CleanPairs:
    """Four pairs in two shards, with two kinds of keys."""
    shards = [CleanShard(0, Shard(tmp_path, 2), tmp_path / f"{number}.json") for number in range(2)]
    for number, shard in enumerate(shards):
        write_json({"pairs": 2}, shard.report)
        write_array(np.array([[1, 2], [3, 4]], np.uint64) + np.uint64(10 * number), shard.keys)
    return CleanPairs(shards)


def test_keys_of_all_shards_lie_side_by_side_in_a_file(pairs, tmp_path):
    assert pairs.keys(tmp_path / "keys.npy").tolist() == [[1, 2, 11, 12], [3, 4, 13, 14]]


@on_a_full_disk
def test_keys_on_a_full_disk_are_an_error_and_no_crash(pairs):
    with pytest.raises(OSError, match="No space left on device"):
        pairs.keys(FULL)


@on_a_full_disk
def test_an_array_on_a_full_disk_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.data.shards.uuid4", lambda: SimpleNamespace(hex="new"))
    (tmp_path / "a.npy.new.tmp").symlink_to(FULL)
    with pytest.raises(OSError, match="No space left on device"):
        write_array(np.arange(5), tmp_path / "a.npy")
    assert not (tmp_path / "a.npy").exists()


def test_a_preparation_that_finds_the_disk_full_says_what_helps_and_goes_on(configuration, tmp_path, monkeypatch):
    def fails(*_):  # as Arrow does
        raise OSError(28, "Error writing bytes to file. Detail: [errno 28] No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pipeline.data.stages.write_array", fails)
        told = f"^No space left on device: make room on the disk of {tmp_path}, and the same command goes on$"
        with pytest.raises(OSError, match=told):
            prepare(configuration)
    monkeypatch.setattr("pipeline.data.stages.clean_shard", None)  # that was done before
    assert len(prepare(configuration).train) == 60


def test_other_errors_stay_what_they_are(tmp_path):
    with pytest.raises(PermissionError, match="^mine$"), full_disk_told(tmp_path):
        raise PermissionError("mine")
