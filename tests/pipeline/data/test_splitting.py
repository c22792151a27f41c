import warnings

import numpy as np
import pytest

from pipeline.data import splitting
from pipeline.data.config import CleaningConfig, CorporaConfig
from pipeline.data.near import fold
from pipeline.data.splitting import VERDICTS, Keys, compute_keys, decide, hash_texts, hold_out, later_copies

NONE = {"valid": np.zeros(0, np.uint64), "test": np.zeros(0, np.uint64)}


def keys_of(pairs, groups=None):
    sources, targets = map(list, zip(*pairs, strict=True))
    folded = list(map(fold, sources)), list(map(fold, targets))
    return Keys(*compute_keys((sources, targets), folded, groups or [""] * len(pairs)))


def verdicts(folder, pairs, corpora=None, named=None, groups=None, **cleaning):
    """What becomes of each pair, by name."""
    named = {name: hash_texts(map(fold, texts)) for name, texts in (named or {}).items()}
    decision = decide(keys_of(pairs, groups), named, corpora or CorporaConfig(), CleaningConfig(**cleaning), folder)
    return [VERDICTS[place] for place in decision.verdicts]


def chosen(pairs, names, name):
    return [pair for pair, verdict in zip(pairs, names, strict=True) if verdict == name]


SPELLINGS = (
    "A dog number {} ran.",
    "a dog number {} ran.",
    "A dog, number {}, ran",
    "A DOG number {} ran!",
    "A dog number {}  ran",
)
REPEATED = [(spelling.format(i), f"Hund {i} {j}") for i in range(40) for j, spelling in enumerate(SPELLINGS)] * 3


@pytest.mark.parametrize("cleaning", [{}, {"drop_duplicates": False}, {"drop_overlap": False}])
def test_no_sentence_is_in_two_splits_in_any_spelling(tmp_path, cleaning):
    pairs = REPEATED + [(f"another animal {i}", f"Hund {i} 0") for i in range(40)]
    names = verdicts(tmp_path, pairs, CorporaConfig(valid_size=30, test_size=30), **cleaning)
    sides = [
        {fold(text) for pair in chosen(pairs, names, name) for text in pair} for name in ("train", "valid", "test")
    ]
    assert all(sides)
    assert not sides[0] & sides[1] and not sides[0] & sides[2] and not sides[1] & sides[2]


def test_copies_of_a_source_are_held_out_together(tmp_path):
    names = verdicts(tmp_path, REPEATED, CorporaConfig(valid_size=30, test_size=30))
    assert names.count("valid") == names.count("test") == 30
    assert len({fold(source) for source, _ in chosen(REPEATED, names, "test")}) == 6  # five spellings each
    assert names.count("duplicate") == 400


def test_the_same_text_is_split_the_same_way_in_any_order_and_another_seed_splits_otherwise(tmp_path):
    pairs = [(f"source {i}", f"target {i}") for i in range(500)]

    def held_out(pairs, seed=0):
        corpora = CorporaConfig(valid_size=30, test_size=30, split_seed=seed)
        return set(chosen(pairs, verdicts(tmp_path, pairs, corpora), "test"))

    assert held_out(pairs) == held_out(pairs[::-1])
    assert len(held_out(pairs) & held_out(pairs, seed=1)) < 10


def test_whole_groups_are_held_out_as_many_as_come_nearest(tmp_path):
    pairs = [(f"source {i}", f"target {i}") for i in range(600)]
    groups = [f"chapter {i // 20}" for i in range(600)]
    names = verdicts(tmp_path, pairs, CorporaConfig(valid_size=49, test_size=71), groups=groups)
    assert [names.count(name) for name in ("train", "valid", "test")] == [600 - 40 - 80, 40, 80]
    assert len(set(zip(groups, names, strict=True))) == 30


def test_a_split_that_is_not_as_large_as_asked_is_told(tmp_path):
    pairs = [(f"source {i}", f"target {i}") for i in range(600)]
    groups = [f"chapter {i // 20}" for i in range(600)]
    with pytest.warns(UserWarning, match="^40 pairs are held out for valid instead of 49: .*split_seed"):
        verdicts(tmp_path, pairs, CorporaConfig(valid_size=49, test_size=0), groups=groups)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verdicts(tmp_path, pairs, CorporaConfig(valid_size=42, test_size=0), groups=groups)


def test_training_pairs_with_a_side_on_either_side_of_valid_or_test_are_dropped(tmp_path):
    pairs = [("The  CAT!", "x"), ("y", "Die Katze"), ("die Katze", "z"), ("a dog", "ein Hund"), ("dog", "Hund")]
    named = {"valid": ["the cat", "?"], "test": ["!", "die katze."]}
    assert verdicts(tmp_path, pairs, named=named) == ["overlap"] * 3 + ["train"] * 2
    assert verdicts(tmp_path, pairs, named=named, drop_overlap=False) == ["train"] * 5


def test_overlap_is_told_by_split_whether_dropped_or_not(tmp_path):
    keys = keys_of([("a", "b"), ("c", "d"), ("e", "f")])
    named = {"valid": hash_texts(["a", "d"]), "test": hash_texts(["a"])}
    for dropped in (True, False):
        decision = decide(keys, named, CorporaConfig(), CleaningConfig(drop_overlap=dropped), tmp_path)
        assert decision.overlap == {"valid": 2, "test": 1}


def test_one_of_each_equal_pair_stays_the_first(tmp_path):
    pairs = [("a", "b"), ("a", "c"), ("a", "b"), ("A", "b"), ("a", "c")]
    expected = ["train", "train", "duplicate", "train", "duplicate"]
    assert verdicts(tmp_path, pairs, named={"valid": [], "test": []}) == expected


def test_one_of_each_source_or_target_may_stay(tmp_path):
    pairs = [("a", "b"), ("A!", "c"), ("d", "B"), ("e", "f")]
    named = {"valid": [], "test": []}
    by_source = verdicts(tmp_path, pairs, named=named, drop_duplicate_sources=True)
    assert by_source == ["train", "duplicate_source", "train", "train"]
    by_both = verdicts(tmp_path, pairs, named=named, drop_duplicate_sources=True, drop_duplicate_targets=True)
    assert by_both == ["train", "duplicate_source", "duplicate_target", "train"]


def test_a_small_corpus_gives_a_tenth_and_says_so(tmp_path):
    pairs = [(f"source {i}", f"target {i}") for i in range(50)]
    with pytest.warns(
        UserWarning, match="corpora.valid_size=1000 and corpora.test_size=1000 would leave too little of 50"
    ):
        names = verdicts(tmp_path, pairs)
    assert [names.count(name) for name in ("train", "valid", "test")] == [40, 5, 5]


def test_nothing_is_held_out_where_nothing_is_asked(tmp_path):
    names = verdicts(tmp_path, REPEATED, CorporaConfig(valid_size=0, test_size=0))
    assert set(names) == {"train", "duplicate"}


def test_one_large_group_is_better_than_none():
    groups = np.array([1] * 9 + [2] * 9, dtype=np.uint64)
    assert [len(rows) for rows in hold_out(groups, np.zeros(18, np.uint8), [2, 2], 0)] == [9, 9]


def test_groups_that_fit_are_taken_where_the_next_are_far_too_large():
    groups = np.repeat(np.arange(34, dtype=np.uint64), [600] * 4 + [7] * 30)
    for seed in range(5):
        valid, test = (groups[rows] for rows in hold_out(groups, np.zeros(len(groups), np.uint8), [50, 70], seed))
        assert len(valid) in (49, 50) and len(test) in (70, 63) and not set(valid) & set(test)
        assert all(np.count_nonzero(groups == group) == 7 for group in {*valid, *test})


def test_of_no_pair_none_is_held_out():
    assert [len(rows) for rows in hold_out(np.zeros(3, np.uint64), np.ones(3, np.uint8), [2, 2], 0)] == [0, 0]


def test_how_many_rows_are_looked_at_together_changes_nothing(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    keys = random.integers(0, 2**63, 300, dtype=np.uint64)[random.integers(0, 300, 1000)]
    verdict = random.integers(0, 2, 1000).astype(np.uint8)

    def found():
        copies = sorted(couple for some in later_copies(keys, verdict, tmp_path) for couple in zip(*some, strict=True))
        return copies, [rows.tolist() for rows in hold_out(keys, verdict, [30, 40], 0)]

    at_once = found()
    expected = {}
    by_hand = [
        (row, expected[key]) for row, key in enumerate(keys) if not verdict[row] and expected.setdefault(key, row) < row
    ]
    assert at_once[0] == by_hand
    monkeypatch.setattr(splitting, "CHUNK", 37)
    monkeypatch.setattr(splitting, "BUCKET", 64)
    assert found() == at_once


@pytest.mark.parametrize("groups", [["all"], ["one"] * 3 + ["two"]])
def test_of_groups_that_are_far_too_large_single_sources_are_held_out_and_none_leaks(tmp_path, groups):
    pairs = [(f"source {i // 2}", f"target {i}") for i in range(600)]
    with pytest.warns(
        UserWarning, match="whole groups .* instead of 30.*: single pairs .* corpora.valid and corpora.test$"
    ):
        names = verdicts(
            tmp_path, pairs, CorporaConfig(valid_size=30, test_size=30), groups=groups * (600 // len(groups))
        )
    assert [names.count(name) for name in ("train", "valid", "test")] == [540, 30, 30]
    assert all(first == second for first, second in zip(names[::2], names[1::2], strict=True))


def test_groups_that_are_just_all_there_is_are_not_held_out(tmp_path):
    pairs = [(f"source {i}", f"target {i}") for i in range(40)]
    with pytest.warns(UserWarning, match="20 pairs for valid instead of 10 and 20 pairs for test instead of 10"):
        names = verdicts(
            tmp_path, pairs, CorporaConfig(valid_size=10, test_size=10), groups=["one"] * 20 + ["two"] * 20
        )
    assert names.count("train") == 20
