import numpy as np
import pytest
from datasets import Dataset

from pipeline.data.cleaning import normalise
from pipeline.data.config import CleaningConfig, CorporaConfig
from pipeline.data.splitting import fold, hold_out, split


def rows(pairs, groups=None, faults=None):
    sources, targets = zip(*pairs, strict=True)
    blank = [""] * len(pairs)
    return Dataset.from_dict({"source": sources, "target": targets, "group": groups or blank, "fault": faults or blank})


def texts(dataset):
    return list(zip(dataset["source"], dataset["target"], strict=True))


def key(text):
    return fold(normalise(text))


SPELLINGS = (
    "A dog number {} ran.",
    "a dog number {} ran.",
    "A  dog\u00a0number {} ran.",
    "A dog number {} ran",
    "A dog number {} ran!",
)
REPEATED = [(spelling.format(i), f"Hund {i}") for i in range(40) for spelling in SPELLINGS for _ in range(3)]


@pytest.mark.parametrize("drop_duplicates", [True, False])
def test_copies_in_any_spelling_lie_in_one_split(drop_duplicates):
    cleaning = CleaningConfig(drop_duplicates=drop_duplicates, drop_overlap=False)
    splits, report = split({"train": rows(REPEATED)}, CorporaConfig(valid_size=30, test_size=30), cleaning)
    keys = [{key(source) for source in part["source"]} for part in splits]
    assert all(keys)
    assert not keys[0] & keys[1] and not keys[0] & keys[2] and not keys[1] & keys[2]
    assert sum(map(len, splits)) + report.dropped.total() == len(REPEATED)
    assert report.dropped.total() == (440 if drop_duplicates else 0)  # spellings that normalising makes equal


def test_the_same_text_is_split_the_same_way_in_any_order():
    config = CorporaConfig(valid_size=30, test_size=30)
    forth, _ = split({"train": rows(REPEATED)}, config, CleaningConfig())
    back, _ = split({"train": rows(REPEATED[::-1])}, config, CleaningConfig())
    assert {key(text) for text in forth.test["source"]} == {key(text) for text in back.test["source"]}


def test_whole_groups_are_held_out_as_many_as_come_nearest():
    pairs = [(f"source {i}", f"target {i}") for i in range(600)]
    groups = [f"chapter {i // 20}" for i in range(600)]
    splits, _ = split({"train": rows(pairs, groups)}, CorporaConfig(valid_size=49, test_size=71), CleaningConfig())
    assert [len(part) for part in splits] == [600 - 40 - 80, 40, 80]
    chapters = [set(part["group"]) for part in splits]
    assert [len(chapter) for chapter in chapters] == [24, 2, 4]
    assert len(set.union(*chapters)) == 30


def test_held_out_text_stays_raw_and_lacks_empty_and_faulty_pairs():
    pairs = [(f" source\u00a0{i} ", f"target  {i}") for i in range(100)] + [("\u200b", "empty")] * 50
    faults = ["torn" if i % 2 else "" for i in range(150)]
    splits, _ = split(
        {"train": rows(pairs, faults=faults)}, CorporaConfig(valid_size=10, test_size=10), CleaningConfig()
    )
    held_out = texts(splits.valid) + texts(splits.test)
    assert len(held_out) == 20
    assert all(pair in pairs[0:100:2] for pair in held_out)
    assert len(splits.train) == 130


def test_named_splits_keep_every_row_in_order():
    named = [("b", ""), ("a", "x"), ("a", "x"), (" ", "\t")]
    splits, _ = split(
        {"train": rows([("c", "d")]), "valid": rows(named), "test": rows(named)}, CorporaConfig(), CleaningConfig()
    )
    assert texts(splits.valid) == texts(splits.test) == named


def test_training_pairs_with_a_side_in_valid_or_test_are_dropped():
    train = [("The  CAT!", "x"), ("y", "Die Katze"), ("a dog", "ein Hund"), ("dog", "Hund"), ("", "")]
    pairs = {"train": rows(train), "valid": rows([("the cat", "?")]), "test": rows([("!", "die katze."), ("", "")])}
    splits, report = split(pairs, CorporaConfig(), CleaningConfig())
    assert texts(splits.train) == train[2:]
    assert report.dropped == {"duplicate": 0, "overlap": 2}
    splits, report = split(pairs, CorporaConfig(), CleaningConfig(drop_overlap=False))
    assert texts(splits.train) == train


def test_one_of_each_equal_pair_stays_the_first():
    train = [("a", "b"), ("a", "c"), ("a ", "b"), ("", "b"), ("", "b"), ("A", "b")]
    splits, report = split(
        {"train": rows(train), "valid": rows([("v", "v")]), "test": rows([("v", "v")])},
        CorporaConfig(),
        CleaningConfig(),
    )
    assert texts(splits.train) == [("a", "b"), ("a", "c"), ("", "b"), ("", "b"), ("A", "b")]
    assert report.examples["duplicate"] == [("a ", "b")]


def test_a_small_corpus_gives_a_tenth_and_says_so():
    pairs = [(f"source {i}", f"target {i}") for i in range(50)]
    with pytest.warns(
        UserWarning, match="corpora.valid_size=1000 and corpora.test_size=1000 would leave too little of 50"
    ):
        splits, _ = split({"train": rows(pairs)}, CorporaConfig(), CleaningConfig())
    assert [len(part) for part in splits] == [40, 5, 5]


def test_nothing_is_held_out_where_nothing_is_asked():
    splits, _ = split({"train": rows(REPEATED)}, CorporaConfig(valid_size=0, test_size=0), CleaningConfig())
    assert (len(splits.valid), len(splits.test)) == (0, 0)


def test_one_large_group_is_better_than_none():
    groups = np.array([1] * 9 + [2] * 9, dtype=np.uint64)
    masks = hold_out(groups, np.ones(18, dtype=bool), [2, 2])
    assert [mask.sum() for mask in masks] == [9, 9]
