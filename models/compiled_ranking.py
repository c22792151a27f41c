"""What a beam search looks for among logits on a CPU, compiled by numba: each row's log Σ exp, and the best of a
sentence's rows, in two looks at them. To normalise all of them and to sort them takes twice as long."""

from typing import no_type_check

import numpy as np

from models.compiled import compiled

LOG2E = np.float32(np.log2(np.e))
SMALLEST = np.float32(-126)
"""Of exponents of 2 that float32 has."""

# 2 ** x between -½ and ½, to float32's last digit but one (Taylor's polynomial, its last terms fitted).
C6, C5, C4 = np.float32(1.5353362e-4), np.float32(1.3398874e-3), np.float32(9.6184374e-3)
C3, C2, C1 = np.float32(5.5503325e-2), np.float32(2.4022648e-1), np.float32(6.9314720e-1)

BLOCK = 64
"""Tokens of a block. The n best numbers lie in the n blocks of greatest maximum; what is left over is in none."""


@no_type_check
@compiled
def summarise(logits, maxima, log_sums):
    """Writes the maximum of each block of each row, [N, M], and the log Σ exp of each row, [N]."""
    powers, mantissas = np.empty(BLOCK, np.int32), np.empty(BLOCK, np.float32)
    scales, halves = powers.view(np.float32), np.empty(BLOCK // 2, np.float32)
    blocks = maxima.shape[1]
    tail = blocks * BLOCK
    for row in range(len(logits)):
        greatest = np.float32(-np.inf)
        for block in range(blocks):
            numbers = logits[row, block * BLOCK : (block + 1) * BLOCK]
            for i in range(32):  # numbers side by side are compared at once
                halves[i] = numbers[i] if numbers[i] > numbers[i + 32] else numbers[i + 32]
            for i in range(16):
                halves[i] = halves[i] if halves[i] > halves[i + 16] else halves[i + 16]
            for i in range(8):
                halves[i] = halves[i] if halves[i] > halves[i + 8] else halves[i + 8]
            most = halves[0]
            for i in range(1, 8):
                most = halves[i] if halves[i] > most else most
            maxima[row, block] = most
            greatest = max(greatest, most)
        for number in logits[row, tail:]:
            greatest = max(greatest, number)
        total = np.float32(0)
        for first in range(0, tail, BLOCK):
            numbers = logits[row, first : first + BLOCK]
            for i in range(BLOCK):  # exp as a power of 2 that is written into the bits, and one between √½ and √2
                exponent = (numbers[i] - greatest) * LOG2E
                exponent = SMALLEST if exponent < SMALLEST else exponent
                whole = np.floor(exponent + np.float32(0.5))
                x = exponent - whole
                powers[i] = (np.int32(whole) + np.int32(127)) << np.int32(23)
                mantissas[i] = ((((((C6 * x + C5) * x + C4) * x + C3) * x + C2) * x + C1) * x) + np.float32(1)
            for i in range(BLOCK):
                total += mantissas[i] * scales[i]
        for number in logits[row, tail:]:
            total += np.exp(number - greatest)
        log_sums[row] = greatest + np.log(total)


@no_type_check
@compiled
def insert(scores, parents, tokens, score, parent, token):
    """Into lists that are sorted by score, where it is better than the last."""
    place = len(scores) - 1
    if score <= scores[place]:
        return
    while place and not scores[place - 1] >= score:
        scores[place], parents[place], tokens[place] = scores[place - 1], parents[place - 1], tokens[place - 1]
        place -= 1
    scores[place], parents[place], tokens[place] = score, parent, token


@no_type_check
@compiled
def best(logits, maxima, totals, rows, early, scores, parents, tokens):
    """Writes the best sums of ``totals`` [B, W] and numbers of their ``rows`` [B, W], best first, and where they come
    from: [B, n] all three, which come filled with -inf and 0. Of equals, token ``early`` is the first, and
    those of a parent come before those of later ones. NaN is the best of all."""
    width, blocks, last = logits.shape[1], maxima.shape[1], scores.shape[1] - 1
    for sentence in range(len(totals)):
        for parent in range(totals.shape[1]):
            score = totals[sentence, parent] + logits[rows[sentence, parent], early]
            insert(scores[sentence], parents[sentence], tokens[sentence], score, parent, early)
        for parent in range(totals.shape[1]):
            row, total = rows[sentence, parent], totals[sentence, parent]
            for block in range(blocks + 1):
                if block < blocks and total + maxima[row, block] <= scores[sentence, last]:
                    continue
                for token in range(block * BLOCK, min((block + 1) * BLOCK, width)):
                    score = total + logits[row, token]
                    if token != early and not score <= scores[sentence, last]:
                        insert(scores[sentence], parents[sentence], tokens[sentence], score, parent, token)
