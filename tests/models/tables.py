"""Models for a search to try: small written-out probability tables, and a random one that reads the whole prefix."""

import math
from typing import NamedTuple

import torch

from models.length import LENGTH_NORMALISATIONS

PAD, BOS, EOS = 0, 1, 2
WORDS = ["<pad>", "<bos>", "<eos>", *"abcdefghijklmnopqrstuvwxyz"]
FORBIDDEN = {"forbidden_ids": (PAD, BOS)}
SPECIAL = {"bos_id": BOS, "eos_id": EOS, **FORBIDDEN}
average = LENGTH_NORMALISATIONS["average"]
LETTERS = {letter: WORDS.index(letter) for letter in "abcdefghijklmnopqrstuvwxyz"} | {".": EOS}


class Tables:
    """A step function for a batch of tables {prefix: {letter: probability}}, "." ends, "*" is any other prefix.

    The state is the prefix of every row, so a wrongly selected row changes what follows.
    """

    def __init__(self, *tables):
        self.tables, self.prefixes = tables, None
        self.owners = list(range(len(tables)))
        self.steps = []

    def step(self, ids, state):
        assert ids.shape == (len(state.owners), 1)
        previous = state.prefixes or [""] * len(state.owners)
        state.prefixes = [p + (WORDS[i] if i != BOS else "") for p, i in zip(previous, ids[:, 0].tolist(), strict=True)]
        state.steps.append(len(state.owners))
        return torch.stack([self.row(o, p) for o, p in zip(state.owners, state.prefixes, strict=True)]), state

    def row(self, owner, prefix):
        table = self.tables[owner]
        logits = torch.full((len(WORDS),), -math.inf)
        for letter, probability in table.get(prefix, table["*"]).items():
            logits[LETTERS[letter]] = math.log(probability)
        return logits

    def select(self, rows):
        chosen = Tables(*self.tables)
        chosen.steps = self.steps
        chosen.owners = [self.owners[i] for i in rows.flatten().tolist()]
        chosen.prefixes = [self.prefixes[i] for i in rows.flatten().tolist()]
        assert all(len({self.owners[i] for i in sentence}) == 1 for sentence in rows.tolist())
        return chosen


def random_step(vocabulary, seed):
    """A model whose next-token logits are a random function of the whole prefix; the state is the prefixes."""
    table = torch.randn(7919, vocabulary, generator=torch.Generator().manual_seed(seed), dtype=torch.double)

    class Prefixes:
        def __init__(self, ids):
            self.ids = ids

        def select(self, rows):
            return Prefixes(self.ids[rows.flatten()])

    def logits(ids):
        code = torch.zeros(len(ids), dtype=torch.long)
        for column in ids.T:
            code = (code * 31 + column + 1) % len(table)
        return 1.5 * table[code]

    def step(ids, state):
        state = Prefixes(torch.cat([state.ids, ids], 1))
        return logits(state.ids), state

    # Sentences differ by an invisible first token.
    return step, lambda sentences: Prefixes(torch.arange(sentences)[:, None] + 100), logits


class Rereading(NamedTuple):
    """The state of a search that remembers nothing: the source and the target so far of every row."""

    source: torch.Tensor
    target: torch.Tensor

    def select(self, rows):
        return Rereading(self.source[rows.flatten()], self.target[rows.flatten()])


def rereading(model, source):
    """A step that reads the whole prefix with ``model`` each time, and where it begins."""

    def step(ids, state):
        state = state._replace(target=torch.cat([state.target, ids], 1))
        return model(state.source, state.target)[:, -1], state

    return step, Rereading(source, source[:, :0])
