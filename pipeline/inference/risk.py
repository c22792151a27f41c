"""Minimum Bayes risk: of several translations of one sentence, the one most like all others (Eikema and Aziz, 2022).

Each of the others in turn is the reference of a sacreBLEU score. The scores of all pairs come of the number of n-grams
that every two texts share, which are counted together for all of them.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.bleu import MAX_NGRAM_ORDER
from sacrebleu.metrics.helpers import extract_all_char_ngrams, extract_all_word_ngrams

from pipeline.inference.evaluation import bleu_tokenizer


def choose(texts: Sequence[str], metric: str, target_language: str = "") -> int:
    """The number of the text whose mean score against all others is the highest; of several, of the first.

    A text that was drawn several times counts as often, also for itself.

    Args:
        metric: ``chrf`` or ``bleu``, of sentences.
        target_language: tells BLEU's words, as in ``evaluation.score``.
    """
    counts = Counter(texts)
    scores = SCORES[metric](list(counts), target_language)
    means = scores @ list(counts.values()) - scores.diagonal()  # all but the common divisor
    best = means.round(9).argmax()  # equal but for the order of summation is equal
    return texts.index(list(counts)[best])


def chrf(texts: Sequence[str], target_language: str = "") -> np.ndarray:
    """chrF (Popović, 2015) of every text as translation [row] against every one as reference [column]."""
    precision = recall = orders = np.zeros((len(texts), len(texts)))
    for ngrams in zip(*(extract_all_char_ngrams(text, CHRF.CHAR_ORDER) for text in texts), strict=True):
        shared = _shared(ngrams)
        sizes = shared.diagonal().clip(min=1)
        precision = precision + shared / sizes[:, None]
        recall = recall + shared / sizes
        has_any = shared.diagonal() > 0
        orders = orders + np.outer(has_any, has_any)
    precision, recall = precision / orders.clip(min=1), recall / orders.clip(min=1)
    weighted = CHRF.BETA**2 * precision + recall
    return 100 * (1 + CHRF.BETA**2) * precision * recall / np.where(weighted > 0, weighted, 1)


def bleu(texts: Sequence[str], target_language: str = "") -> np.ndarray:
    """BLEU of effective order of every text as translation [row] against every one as reference [column]."""
    tokenize = BLEU(tokenize=bleu_tokenizer(target_language)).tokenizer
    ngrams = [extract_all_word_ngrams(tokenize(text.rstrip()), 1, MAX_NGRAM_ORDER)[0] for text in texts]
    shared = [
        _shared([Counter({gram: n for gram, n in counts.items() if len(gram) == order}) for counts in ngrams])
        for order in range(1, MAX_NGRAM_ORDER + 1)
    ]
    correct = np.stack(shared, -1).astype(int).tolist()  # [K, K, order]
    return np.array([[_bleu(row[j], row[i], correct[j][j]) for j in range(len(row))] for i, row in enumerate(correct)])


def _bleu(correct: list[int], of_translation: list[int], of_reference: list[int]) -> float:
    """From the numbers of n-grams shared and in all, by order."""
    return BLEU.compute_bleu(
        correct, of_translation, of_translation[0], of_reference[0], smooth_method="exp", effective_order=True
    ).score


def _shared(ngrams: Sequence[Counter]) -> np.ndarray:
    """How many n-grams every two texts share, [K, K], each as often as in the one that has fewer of it."""
    column = {gram: i for i, gram in enumerate(dict.fromkeys(itertools.chain.from_iterable(ngrams)))}
    counts = np.zeros((len(ngrams), len(column)), np.int32)
    for row, grams in zip(counts, ngrams, strict=True):
        row[[column[gram] for gram in grams]] = list(grams.values())
    # The lesser of two counts is the number of counts, from 1, that both reach.
    shared = np.zeros((len(ngrams), len(ngrams)))
    for count in range(1, counts.max(initial=0) + 1):
        reached = (counts[:, counts.max(0) >= count] >= count).astype(np.float32)
        shared += reached @ reached.T
    return shared


SCORES: dict[str, Callable[[Sequence[str], str], np.ndarray]] = {"chrf": chrf, "bleu": bleu}
