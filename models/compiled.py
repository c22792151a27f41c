"""Functions over arrays that numba compiles: the loops of decoding on a CPU that torch has no fast operation for.

``attend`` reads what each hypothesis sees (``models.compiled_attention``). ``summarise`` and ``best`` find the best
continuations in two looks at the logits (``models.ranking``); to normalise and sort them takes twice as long. All are
in this file, since what numba keeps for the next process is made anew when its own file changes, and no other.
"""

from collections.abc import Callable
from functools import partial
from typing import no_type_check

import numba
import numpy as np
import torch
from torch import Tensor

LOG2E = np.float32(np.log2(np.e))
SMALLEST = np.float32(-126)
"""Of exponents of 2 that float32 has."""

# 2 ** x between -½ and ½, to float32's last digit but one (Taylor's polynomial, its last terms fitted).
C6, C5, C4 = np.float32(1.5353362e-4), np.float32(1.3398874e-3), np.float32(9.6184374e-3)
C3, C2, C1 = np.float32(5.5503325e-2), np.float32(2.4022648e-1), np.float32(6.9314720e-1)

BLOCK = 64
"""Tokens of a block. The n best numbers lie in the n blocks of greatest maximum; what is left over is in none."""


def compiled(function: Callable) -> Callable:
    """Compiled when it is first called, and kept for processes to come, where there is a folder for that.

    Sums may be taken in another order than written; NaN and infinity are what they are elsewhere.
    """
    compile = partial(numba.njit, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "arcp", "nsz"})
    try:
        return compile(cache=True)(function)
    except RuntimeError:  # neither this folder nor a home can be written to
        return compile()(function)


def compiles(x: Tensor) -> bool:
    """Whether a compiled function can take this: what decoding on a CPU computes in 32 bits."""
    return x.is_cpu and x.dtype == torch.float32 and not torch.is_grad_enabled()


@no_type_check
@compiled
def exponential(x):
    """exp x, for x of 0 or less, as the product of two: a power of 2, by its bits, and a number between √½ and √2. So
    written, many at a time are computed at once."""
    exponent = x * LOG2E
    exponent = SMALLEST if exponent < SMALLEST else exponent
    whole = np.floor(exponent + np.float32(0.5))
    rest = exponent - whole
    bits = (np.int32(whole) + np.int32(127)) << np.int32(23)
    return bits, ((((((C6 * rest + C5) * rest + C4) * rest + C3) * rest + C2) * rest + C1) * rest) + np.float32(1)


@no_type_check
@compiled
def attend(queries, keys, values, seen, counts, asked, beams, bias, dim, read):
    """Scaled dot-product attention of each query to ``seen[i, :counts[i]]``, where i is the query's number divided by
    ``beams``; zeros where that is nothing. Written to ``read``.

    Args:
        queries, read: [N, H K].
        keys, values: [table, H' K]; each of their heads is shared by H / H' of the queries'.
        seen, counts: rows of the table, [M, L], and how many of them, [M or 0]; 0: all.
        asked: the queries' numbers, [N or 0]; 0: from 0 on.
        beams: successive queries that see the same.
        bias: added to scores, [N or 1 or 0, H, L].
        dim: K.
    """
    heads = queries.shape[1] // dim
    sharing = queries.shape[1] // keys.shape[1]
    scale = np.float32(1 / np.sqrt(dim))
    scores, bits = np.empty(heads * seen.shape[1], np.float32), np.empty(heads * seen.shape[1], np.int32)
    powers = bits.view(np.float32)
    for row in range(len(queries)):
        list_ = (asked[row] if len(asked) else row) // beams
        count = counts[list_] if len(counts) else seen.shape[1]
        query, mean = queries[row], read[row]
        weights = scores[: heads * count].reshape(heads, count)
        fours = count - count % 4
        for place in range(0, fours, 4):  # four at a time share what is loaded of the query
            key0, key1 = keys[seen[list_, place]], keys[seen[list_, place + 1]]
            key2, key3 = keys[seen[list_, place + 2]], keys[seen[list_, place + 3]]
            for head in range(heads):
                ours = query[head * dim : (head + 1) * dim]
                start, end = head // sharing * dim, (head // sharing + 1) * dim
                a, b, c, d = key0[start:end], key1[start:end], key2[start:end], key3[start:end]
                score0 = score1 = score2 = score3 = np.float32(0)
                for i in range(dim):
                    score0 += ours[i] * a[i]
                    score1 += ours[i] * b[i]
                    score2 += ours[i] * c[i]
                    score3 += ours[i] * d[i]
                four = weights[head, place : place + 4]
                four[0], four[1], four[2], four[3] = score0 * scale, score1 * scale, score2 * scale, score3 * scale
        for place in range(fours, count):
            key = keys[seen[list_, place]]
            for head in range(heads):
                ours = query[head * dim : (head + 1) * dim]
                theirs = key[head // sharing * dim : (head // sharing + 1) * dim]
                score = np.float32(0)
                for i in range(dim):
                    score += ours[i] * theirs[i]
                weights[head, place] = score * scale
        if len(bias):
            weights += bias[row % len(bias), :, :count]
        for head in range(heads):
            of_head = weights[head]
            greatest = np.float32(-np.inf)
            for score in of_head:
                greatest = max(greatest, score)
            for place in range(count):
                of_head[place] -= greatest
        for i in range(heads * count):
            bits[i], scores[i] = exponential(scores[i])
        for i in range(heads * count):
            scores[i] *= powers[i]
        for head in range(heads):
            of_head = weights[head]
            total = np.float32(0)
            for weight in of_head:
                total += weight
            for place in range(count):
                of_head[place] /= total
        mean[:] = 0
        for place in range(0, fours, 4):
            value0, value1 = values[seen[list_, place]], values[seen[list_, place + 1]]
            value2, value3 = values[seen[list_, place + 2]], values[seen[list_, place + 3]]
            for head in range(heads):
                ours = mean[head * dim : (head + 1) * dim]
                start, end = head // sharing * dim, (head // sharing + 1) * dim
                a, b, c, d = value0[start:end], value1[start:end], value2[start:end], value3[start:end]
                four = weights[head, place : place + 4]
                weight0, weight1, weight2, weight3 = four[0], four[1], four[2], four[3]
                for i in range(dim):
                    ours[i] += weight0 * a[i] + weight1 * b[i] + weight2 * c[i] + weight3 * d[i]
        for place in range(fours, count):
            value = values[seen[list_, place]]
            for head in range(heads):
                ours = mean[head * dim : (head + 1) * dim]
                theirs = value[head // sharing * dim : (head // sharing + 1) * dim]
                weight = weights[head, place]
                for i in range(dim):
                    ours[i] += weight * theirs[i]


@no_type_check
@compiled
def summarise(logits, maxima, log_sums):
    """Writes the maximum of each block of each row, [N, M], and the log Σ exp of each row, [N]."""
    bits, mantissas = np.empty(BLOCK, np.int32), np.empty(BLOCK, np.float32)
    powers, halves = bits.view(np.float32), np.empty(BLOCK // 2, np.float32)
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
            for i in range(BLOCK):
                bits[i], mantissas[i] = exponential(numbers[i] - greatest)
            for i in range(BLOCK):
                total += powers[i] * mantissas[i]
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
