"""The compiled kernel is the plain formula; a model that decodes by it is the model with a plain cache."""

import numba
import pytest
import torch
from torch.testing import assert_close

from models.attention import attention_weights
from models.cache import ALL_ROWS, Rows, share_heads
from models.compiled import compiled
from models.compiled_attention import GROWTH, Paths, Source, Table, Target, as_rows
from models.masks import Mask

CLOSE = {"atol": 1e-6, "rtol": 1e-5}


@pytest.mark.parametrize("shared", [4, 2, 1])
@pytest.mark.parametrize("of_bias", [None, 1, 7])
def test_a_query_reads_the_rows_of_its_list_by_the_plain_formula(shared, of_bias):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(7, 4, 1, 6, generator=generator)
    keys, values = torch.randn(2, 20, shared * 6, generator=generator)
    seen = torch.randint(20, (3, 5), generator=generator)
    counts, asked = torch.tensor([5, 1, 3]), torch.tensor([5, 1, 0, 3, 4, 2, 0])
    bias = None if of_bias is None else torch.randn(of_bias, 4, 1, 5, generator=generator)
    read = Table(keys, values, 20).read(q, seen, counts, Rows(asked), beams=2, bias=bias)
    for row, i in enumerate((asked // 2).tolist()):
        rows = seen[i, : counts[i]]
        k, v = (share_heads(x[rows].view(1, -1, shared, 6).transpose(1, 2), 4) for x in (keys, values))
        ours = None if bias is None else bias[row % of_bias : row % of_bias + 1, :, :, : counts[i]]
        assert_close(read[row : row + 1], attention_weights(q[row : row + 1], k, Mask(), ours) @ v, **CLOSE)


def test_who_sees_nothing_reads_zeros_and_nan_is_not_hidden():
    keys = values = torch.ones(2, 4)
    q = torch.ones(3, 2, 1, 2)
    q[2] = torch.nan
    seen, counts = torch.tensor([[0, 1]]), torch.tensor([0, 2, 2])
    read = Table(keys, values, 2).read(q, seen.expand(3, -1).contiguous(), counts)
    assert read[0].eq(0).all() and read[1].eq(1).all() and read[2].isnan().all()


@torch.no_grad()
def test_a_source_is_its_real_tokens_wherever_they_are_and_sentences_may_leave():
    torch.manual_seed(1)
    k, v = torch.randn(2, 3, 2, 4, 5)
    real = torch.tensor([[1, 1, 1, 1], [0, 1, 0, 1], [1, 0, 0, 0]]).bool()
    source, q = Source.of(k, v, real).select(torch.tensor([1, 2])), torch.randn(4, 2, 1, 5)
    expected = attention_weights(q, k[[1, 1, 2, 2]], Mask(real[[1, 1, 2, 2]])) @ v[[1, 1, 2, 2]]
    assert_close(source.read(q, ALL_ROWS), expected, **CLOSE)
    assert_close(source.read(q[[0, 3]], Rows.only(torch.tensor([0, 3]), 4)), expected[[0, 3]], **CLOSE)
    cache = source.cache(5)
    assert cache.keys.equal(k[1:]) and cache.values.equal(v[1:])


def target(num_sentences: int) -> Target:
    nothing = torch.zeros(num_sentences, 1, 0, 2)
    return Target(Table(as_rows(nothing), as_rows(nothing), 0), Paths.nothing(num_sentences))


def said(*values: float) -> torch.Tensor:
    return torch.tensor(values).float()[:, None, None, None].expand(-1, 1, 1, 2)


def path(target: Target, row: int) -> list[float]:
    return target.table.keys[target.paths.rows[row], 0].tolist()


def test_paths_are_what_each_hypothesis_has_said_and_a_full_table_keeps_nothing_else():
    grown = target(2).extend(said(1, 2), said(1, 2), ALL_ROWS).select(torch.tensor([[0, 0], [1, 1]]))
    histories = [[1.0], [1.0], [2.0], [2.0]]
    for step in range(6 * GROWTH):
        tokens = [10.0 * step + row for row in range(4)]
        grown = grown.extend(said(*tokens), said(*tokens), ALL_ROWS)
        histories = [[*history, token] for history, token in zip(histories, tokens, strict=True)]
        assert [path(grown, row) for row in range(4)] == histories
        parents = [0, 0, 2, 2] if step % 2 else [1, 1, 3, 3]
        grown, histories = grown.select(torch.tensor(parents).view(2, 2)), [histories[row] for row in parents]
        needed = 2 * (step + 2)
        assert len(grown.table.keys) <= 2 * needed + 4 * GROWTH


def test_only_those_asked_about_take_room():
    grown = target(2).extend(said(1, 2), said(1, 2), ALL_ROWS).select(torch.tensor([[0, 0], [1, 1]]))
    grown = grown.extend(said(7, 9), said(7, 9), Rows.only(torch.tensor([1, 2]), 4))
    assert grown.table.used == 4
    assert [path(grown, row) for row in (1, 2)] == [[1, 7], [2, 9]]


def test_a_state_may_be_asked_about_some_rows_and_then_about_others():
    start = target(2).extend(said(1, 2), said(1, 2), ALL_ROWS).select(torch.tensor([[0, 0], [1, 1]]))
    some, others = (
        start.extend(said(*tokens), said(*tokens), Rows.only(torch.tensor(rows), 4))
        for rows, tokens in [([0, 1], [5, 6]), ([1, 2, 3], [7, 8, 9])]
    )
    assert [path(some, row) for row in (0, 1)] == [[1, 5], [1, 6]]
    assert [path(others, row) for row in (1, 2, 3)] == [[1, 7], [2, 8], [2, 9]]


def test_the_first_to_append_has_the_place_and_any_other_a_copy():
    start = target(1).extend(said(0), said(0), ALL_ROWS)
    first, second = (start.extend(said(x), said(x), ALL_ROWS) for x in (1, 2))
    assert path(first, 0) == [0, 1] and path(second, 0) == [0, 2]
    assert first.table is start.table and second.table is not start.table


def test_where_nothing_can_be_kept_it_is_compiled_anyway(monkeypatch):
    plain = numba.njit

    def without_a_folder(*functions, **options):  # numba, too, may compile some of its own only now
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return plain(*functions, **options)

    monkeypatch.setattr(numba, "njit", without_a_folder)
    assert compiled(lambda x: x + 1)(1) == 2
