from pathlib import Path

from pipeline.benchmarks.preparation import preparation, write_corpus
from pipeline.config import CleaningConfig, Configuration, PreparationConfig, TokenizerConfig


def test_every_stage_is_timed_and_together_they_are_all():
    configuration = Configuration(
        tokenizer=TokenizerConfig(vocab_size=100),
        preparation=PreparationConfig(workers=1),
        cleaning=CleaningConfig(drop_overlap=False),
    )
    *stages, together = preparation(configuration, 300)
    assert len(stages) == 5
    assert all(row["pairs_per_second"] * row["seconds"] - 300 < 1e-6 for row in stages)
    assert sum(row["seconds"] for row in stages) <= together["seconds"]
    assert together["process_peak_MiB"] > 1


def test_the_made_up_corpus_is_the_same_every_time(tmp_path):
    first, again = ([Path(file).read_bytes() for file in write_corpus(tmp_path, 200)] for _ in range(2))
    assert first == again
    assert [side.count(b"\n") for side in first] == [200, 200]
