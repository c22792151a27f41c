import pickle
import random
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.near import NearOverlap, fold, near_keys, similarities, similarity

WORDS = [
    "".join(word)
    for draw in [random.Random(0)]
    for word in (draw.choices("etaoinshrdlucmfwypvbgk", k=draw.randint(2, 9)) for _ in range(3000))
]


def sentence(draw, length):
    """Words that are rarer the later they stand in the list."""
    return [WORDS[int(len(WORDS) * draw.random() ** 3)] for _ in range(length)]


def changed(words, draw):
    """The same with one word changed, dropped, or added."""
    place = draw.randrange(len(words))
    new = [[draw.choice(WORDS)], [], [words[place], draw.choice(WORDS)]][draw.randrange(3)]
    return words[:place] + new + words[place + 1 :]


@pytest.mark.parametrize(
    "disguised",
    [
        "der große hund läuft über die straße",
        "DER GROSSE HUND LÄUFT ÜBER DIE STRASSE",
        "  Der große  Hund\u00a0läuft\u2009über die\tStraße ",
        "»Der große Hund läuft« – über die Straße!",
        "Der große Hund, läuft (über) die Stra\u00adße…",
        unicodedata.normalize("NFD", "Der große Hund läuft über die Straße."),
        "Ｄｅｒ　ｇｒｏßｅ　Ｈｕｎｄ　ｌäｕｆｔ　über　ｄｉｅ　Ｓｔｒａßｅ．",
        "Dergroße Hund läuft überdie Straße\u200b",
    ],
)
def test_folding_sees_through_a_disguise(disguised):
    assert fold(disguised) == fold("Der große Hund läuft über die Straße.")


@pytest.mark.parametrize(
    ("one", "other"),
    [("C", "C++"), ("1 + 1", "1 - 1 = 0"), ("सेब", "सब"), ("Bär", "Bar"), ("?!", "..."), ("2 €", "2 $")],
)
def test_folding_keeps_apart_what_says_something_else(one, other):
    assert fold(one) != fold(other)


def test_punctuation_is_kept_where_there_is_nothing_else():
    assert (fold(" ... "), fold("«»"), fold("")) == ("...", "«»", "")


def test_similarity_is_the_share_of_4_grams_that_both_have():
    assert similarity("abcd", "abcd") == 1
    assert similarity("abcd", "abcde") == 1 / 2
    assert similarity("abcdef", "bcdefg") == 2 / 4
    assert similarity("abcd", "dcba") == 0
    assert similarity("ab", "abc") == 0
    assert similarity("你好吗朋友", "你好吧朋友") == similarity("aabbccddee", "aabbxxddee")


TEXTS = st.text(st.sampled_from("abc 你好\u3042\U0001f600\ud83d"), max_size=12)


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=4))
def test_similarities_are_those_of_each_couple(couples):
    expected = [similarity(*couple) for couple in couples]
    assert similarities([one for one, _ in couples], [other for _, other in couples]).tolist() == expected


@pytest.mark.parametrize("least", [0.6, 0.8])
def test_texts_that_alike_share_a_key_and_others_do_not(least):
    draw = random.Random(1)
    texts = [sentence(draw, 30) for _ in range(400)]
    others = [changed(text, draw) for text in texts]
    texts, others = ([fold(" ".join(words)) for words in side] for side in (texts, others))
    keys, others_keys = near_keys(texts, least), near_keys(others, least)
    alike = np.array([similarity(*couple) >= least for couple in zip(texts, others, strict=True)])
    assert alike.sum() > 350
    assert (keys == others_keys).any(axis=1)[alike].mean() > 0.95
    assert (keys == np.roll(others_keys, 1, axis=0)).any(axis=1).mean() < 0.05


def test_the_share_of_equal_keys_is_the_similarity():
    """Bands of one row, as for a low threshold, are MinHash itself."""
    draw = random.Random(2)
    texts = [sentence(draw, 12) for _ in range(300)]
    couples = [(fold(" ".join(words)), fold(" ".join(words[6:] + sentence(draw, 6)))) for words in texts]
    equal = near_keys([one for one, _ in couples], 0.2) == near_keys([other for _, other in couples], 0.2)
    assert equal.mean() == pytest.approx(np.mean([similarity(*couple) for couple in couples]), abs=0.02)


def test_a_text_s_keys_do_not_depend_on_its_neighbours():
    texts = ["", "a", "abcd", "你好", "the quick brown fox", *(f"text{i}" for i in range(2000))]
    together = near_keys(texts, 0.8)
    for row in (0, 1, 2, 3, 4, 999, 1000, 2004):
        assert (near_keys([texts[row]], 0.8) == together[row]).all()
    assert near_keys([], 0.8).shape == (0, 12)


@pytest.fixture(scope="module")
def compared():
    """Held-out texts, texts to be found near them or not, and of each the similarity to the nearest."""
    draw = random.Random(3)
    held_out = [sentence(draw, draw.randint(8, 20)) for _ in range(70)]
    near = [changed(words, draw) for words in held_out] + [changed(changed(words, draw), draw) for words in held_out]
    texts = [fold(" ".join(words)) for words in near + [sentence(draw, draw.randint(1, 30)) for _ in range(70)]]
    held_out = [fold(" ".join(words)) for words in held_out]
    return held_out, texts, [max(similarity(text, other) for other in held_out) for text in texts]


@pytest.mark.parametrize("least", [0.5, 0.6, 0.8])
def test_near_overlap_finds_what_comparing_all_with_all_finds(compared, least):
    held_out, texts, nearest = compared
    slow = [similarity >= least for similarity in nearest]
    assert 30 < sum(slow) < len(texts) - 30
    assert NearOverlap(held_out, least).find(texts).tolist() == slow


def test_one_word_of_ten_makes_no_difference_at_six_tenths():
    draw = random.Random(4)
    held_out = [sentence(draw, 10) for _ in range(300)]
    near = [fold(" ".join(changed(words, draw))) for words in held_out]
    found = NearOverlap([fold(" ".join(words)) for words in held_out], 0.6).find(near)
    assert found.mean() > 0.98


def test_chinese_with_one_word_changed_is_found():
    held_out = fold("昨天下午我们在图书馆里一起学习了三个小时。")
    texts = ["昨天晚上我们在图书馆里一起学习了三个小时。", "明天我不去学校，因为天气不好。"]
    assert NearOverlap([held_out], 0.6).find([fold(text) for text in texts]).tolist() == [True, False]


def test_near_overlap_travels_and_takes_texts_in_any_portions():
    draw = random.Random(5)
    texts = [fold(" ".join(sentence(draw, 9))) for _ in range(2500)]
    overlap = pickle.loads(pickle.dumps(NearOverlap(texts[::100] * 2, 0.6)))
    whole = overlap.find(texts)
    assert whole[::100].all()
    assert whole.tolist() == [bool(overlap.find([text])[0]) for text in texts]


def test_nothing_is_near_to_nothing():
    assert NearOverlap([], 0.6).find(["some text of any kind"]).tolist() == [False]
    assert NearOverlap(["some text of any kind"], 0.6).find([]).tolist() == []


def test_a_text_of_one_gram_repeated_takes_no_more_memory_than_its_length():
    held_out = [f"{'ab' * 20}{i}" for i in range(2000)]
    assert not NearOverlap(held_out, 0.6).find(["ab" * 1_000_000]).any()
