"""Those who do the work may be processes or the machines of a cluster, and may be lost: one line says so."""

from functools import partial
from pathlib import Path
from threading import Timer

import pytest

from pipeline.data.config import PreparationConfig
from pipeline.data.execution import Piece, Workers
from pipeline.data.preparation import prepare
from tests.pipeline.data.conftest import changed, content
from tests.pipeline.data.losses import Unknown, die, fail, sleep


def small_cluster(workers: int):
    """One in this process, which sends what it is asked for over a socket as others do."""
    distributed = pytest.importorskip("distributed")
    return distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=":0"
    )


@pytest.fixture(scope="module")
def cluster():
    with small_cluster(2) as cluster:
        yield cluster


def ask(config: PreparationConfig, function, *arguments) -> None:
    pieces = [Piece(function, arguments, Path(f"/nowhere/{number}"), 1) for number in range(4)]
    with Workers(config) as workers:
        workers.do(pieces)


def test_the_machines_of_a_cluster_do_the_same(two_corpora, cluster):
    expected = content(prepare(two_corpora))
    divided = changed(
        two_corpora,
        preparation={"scheduler": cluster.scheduler_address, "shard_pairs": 20},
        output={"data": f"{two_corpora.output.data}.divided"},
    )
    assert content(prepare(divided)) == expected
    assert sum(worker.state.executed_count for worker in cluster.workers.values()) == 12 + 12 + 12 + 4


def test_a_complaint_of_a_piece_comes_through_as_it_is(cluster):
    for config in (PreparationConfig(scheduler=cluster.scheduler_address), PreparationConfig(workers=1)):
        with pytest.raises(ValueError, match="^/nowhere/[0-3] cannot be written: name another$"):
            ask(config, fail)


def test_machines_with_another_version_are_one_line(cluster):
    with pytest.raises(ValueError, match="^preparation.scheduler=tcp.*different environments.*this version"):
        ask(PreparationConfig(scheduler=cluster.scheduler_address), fail, Unknown())


def test_machines_that_die_are_one_line(monkeypatch):
    with small_cluster(1) as cluster:
        cluster.scheduler.allowed_failures = 0
        (worker,) = cluster.scheduler.workers
        die = partial(cluster.sync, cluster.scheduler.remove_worker, worker, stimulus_id="died")
        Timer(0.1, die).start()
        with pytest.raises(ValueError, match="^preparation.scheduler=tcp.*died while running it.* need memory[^\n]*$"):
            ask(PreparationConfig(scheduler=cluster.scheduler_address), sleep)


def test_a_scheduler_that_is_not_there_is_one_line(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("pipeline.data.execution.PATIENCE", 0.3)
    with pytest.raises(ValueError, match="^preparation.scheduler=tcp://127.0.0.1:9 cannot be reached: [^\n]*$"):
        ask(PreparationConfig(scheduler="tcp://127.0.0.1:9"), fail)


def test_a_scheduler_without_workers_is_one_line():
    with (
        small_cluster(0) as cluster,
        pytest.raises(ValueError, match="has no workers: start some with dask worker tcp://"),
    ):
        ask(PreparationConfig(scheduler=cluster.scheduler_address), fail)


@pytest.mark.parametrize("loss", ["scheduler", "workers"])
def test_a_cluster_that_goes_away_is_one_line(monkeypatch, loss):
    monkeypatch.setattr("pipeline.data.execution.PATIENCE", 0.3)
    with small_cluster(1) as cluster:
        Timer(0.1, cluster.close if loss == "scheduler" else lambda: cluster.scale(0)).start()
        with pytest.raises(ValueError, match="^preparation.scheduler=tcp://[^\n]*$"):
            ask(PreparationConfig(scheduler=cluster.scheduler_address), sleep)


def test_a_process_that_is_killed_is_one_line():
    with pytest.raises(ValueError, match="one of preparation.workers=2 processes was killed .*: lower it"):
        ask(PreparationConfig(workers=2), die)
