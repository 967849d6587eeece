import itertools
import math

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lib import AGGREGATIONS, aggregate

F64 = torch.float64
GARBAGE = [math.nan, math.inf, -math.inf, 1e30, -1e30, 1.0]
L = 8  # the longest answer allowed, for the mode that divides by it

seeds = st.integers(0, 2**32 - 1)


def mask_of(lengths, width=None):
    return torch.arange(width or max(lengths)) < torch.tensor(lengths).unsqueeze(1)


def token_weights(lengths, mode, length_constant=L):
    """c_i as autograd sees it: the gradient of the aggregate at each valid token of answer i."""
    values = torch.zeros(len(lengths), max(lengths), dtype=F64, requires_grad=True)
    aggregate(values, mask_of(lengths), mode, max_completion_length=length_constant).backward()
    assert torch.equal(values.grad[~mask_of(lengths)], torch.zeros_like(values.grad[~mask_of(lengths)]))
    rows = [row[row != 0].unique().tolist() for row in values.grad]
    assert all(len(row) == 1 for row in rows)
    return [row[0] for row in rows]


def random_terms(seed, n=5, t=4):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(n, t, generator=generator, dtype=F64),
        torch.rand(n, t, generator=generator) < 0.6,
    )


def normalizer_of(mask, mode):
    return int(mask.sum()) if mode == "token-mean" else int(mask.any(1).sum())


# Values


def test_answers_of_two_tokens_weigh_the_same_in_all_means():
    terms = torch.tensor([[1.1, 1.2], [0.9, 1.0], [-0.9, -0.8], [-1.1, -1.3]], dtype=F64)
    for mode in AGGREGATIONS[:3]:
        j = aggregate(terms, torch.ones(4, 2), mode, max_completion_length=2)
        assert j.item() == pytest.approx(0.0125, rel=1e-12)
        assert token_weights([2, 2, 2, 2], mode, 2) == [1 / 8] * 4
    assert aggregate(terms, torch.ones(4, 2), "seq-mean-token-sum").item() == pytest.approx(0.025, rel=1e-12)


@pytest.mark.parametrize(
    "lengths, length_constant, mode, weights, value",
    [
        ((2, 4, 2, 8), 8, "seq-mean-token-mean", (0.125, 0.0625, 0.125, 0.03125), 0),
        ((2, 4, 2, 8), 8, "token-mean", (0.0625,) * 4, -0.25),
        ((2, 4, 2, 8), 8, "seq-mean-token-sum-norm", (0.03125,) * 4, -0.125),
        ((2, 4, 2, 8), 8, "seq-mean-token-sum", (0.25,) * 4, -1.0),
        ((100, 1000, 100, 1000), 1000, "seq-mean-token-mean", (0.0025, 0.00025) * 2, 0),
        ((100, 1000, 100, 1000), 1000, "token-mean", (1 / 2200,) * 4, 0),
        ((100, 1000, 100, 1000), 1000, "seq-mean-token-sum-norm", (0.00025,) * 4, 0),
        ((100, 100, 1000, 1000), 1000, "seq-mean-token-mean", (0.0025, 0.0025, 0.00025, 0.00025), 0),
        ((100, 100, 1000, 1000), 1000, "token-mean", (1 / 2200,) * 4, -0.818),
        ((100, 100, 1000, 1000), 1000, "seq-mean-token-sum-norm", (0.00025,) * 4, -0.45),
        ((1, 2, 3, 4), 6, "seq-mean-token-mean", (1 / 4, 1 / 8, 1 / 12, 1 / 16), 0),
        ((1, 2, 3, 4), 6, "token-mean", (1 / 10,) * 4, -0.4),
        ((1, 2, 3, 4), 6, "seq-mean-token-sum-norm", (1 / 24,) * 4, -0.1667),
    ],
)
def test_table_of_token_weights_and_of_j_at_ratio_one(lengths, length_constant, mode, weights, value):
    assert token_weights(lengths, mode, length_constant) == pytest.approx(weights, rel=1e-14)
    advantages = torch.tensor([1.0, 1, -1, -1], dtype=F64).unsqueeze(1).expand(4, max(lengths))
    j = aggregate(advantages, mask_of(lengths), mode, max_completion_length=length_constant)
    assert j.item() == pytest.approx(value, abs=5e-4)


def test_lengths_two_and_four_show_the_length_bias():
    weights = {mode: token_weights([2, 4], mode) for mode in AGGREGATIONS}
    assert weights["seq-mean-token-mean"] == [0.25, 0.125]
    assert weights["token-mean"] == [1 / 6, 1 / 6]
    assert weights["seq-mean-token-sum-norm"] == [1 / 16, 1 / 16]


def test_the_constant_does_not_depend_on_padding():
    for width in (4, 7, 20):
        terms = torch.tensor([1.0, -1.0], dtype=F64).unsqueeze(1).expand(2, width)
        j = aggregate(terms, mask_of([2, 4], width), "seq-mean-token-sum-norm", max_completion_length=8)
        assert j.item() == -0.125


@given(seeds, st.sampled_from(AGGREGATIONS))
def test_aggregates_agree_with_the_weights_of_the_equation(seed, mode):
    values, mask = random_terms(seed)
    lengths = mask.sum(1).tolist()
    expected = sum(
        float(reference.aggregation_weight(mode, lengths, i, L)) * values[i][mask[i]].sum().item()
        for i in range(len(lengths))
        if lengths[i]
    )
    j = aggregate(values, mask, mode, max_completion_length=L)
    assert j.item() == pytest.approx(expected, rel=1e-12, abs=1e-13)


def test_the_default_is_the_mean_of_the_answers_own_means():
    values, mask = random_terms(0)
    assert torch.equal(aggregate(values, mask), aggregate(values, mask, "seq-mean-token-mean"))


# Truncated and masked answers


def test_truncated_answers_leave_the_denominator_too():
    terms, mask = torch.ones(3, 6, dtype=F64, requires_grad=True), mask_of([4, 6, 5])
    mask[2] = False
    assert aggregate(terms, mask, "token-mean").item() == 1
    assert aggregate(terms, mask, "seq-mean-token-mean").item() == 1
    assert aggregate(terms, mask, "seq-mean-token-sum").item() == 5
    for mode in AGGREGATIONS:
        nothing = aggregate(terms, torch.zeros(3, 6), mode, max_completion_length=L)
        assert nothing.item() == 0


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("garbage", GARBAGE)
@given(seed=seeds)
def test_masked_values_reach_neither_result_nor_gradient(mode, garbage, seed):
    values, mask = random_terms(seed)
    results = []
    for fill in (0.0, garbage):
        x = torch.where(mask, values, fill).requires_grad_()
        j = aggregate(x, mask, mode, max_completion_length=L)
        j.backward()
        assert torch.equal(x.grad[~mask], torch.zeros_like(x.grad[~mask]))
        results += [(j.detach(), x.grad)]
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (2, 0), (0, 0)])
def test_nothing_valid_gives_zero_with_a_graph(mode, shape):
    for normalizer in (None, 0, 7):
        x = torch.full(shape, math.nan, requires_grad=True)
        j = aggregate(x, torch.zeros(shape), mode, normalizer=normalizer, max_completion_length=L)
        j.backward()
        assert j.item() == 0 and torch.equal(x.grad, torch.zeros(shape))


# Micro-batches and processes


@pytest.mark.parametrize("mode", AGGREGATIONS)
@given(seed=seeds, cuts=st.sets(st.integers(1, 4)))
def test_every_split_into_micro_batches_gives_the_same_value_and_gradient(mode, seed, cuts):
    values, mask = random_terms(seed)
    normalizer = normalizer_of(mask, mode)
    whole, parts = values.clone().requires_grad_(), values.clone().requires_grad_()
    aggregate(whole, mask, mode, max_completion_length=L).backward()
    total = 0.0
    edges = [0, *sorted(cuts), 5]
    for a, b in itertools.pairwise(edges):
        j = aggregate(parts[a:b], mask[a:b], mode, normalizer=normalizer, max_completion_length=L)
        j.backward()
        total += j.item()
    expected = aggregate(values, mask, mode, max_completion_length=L).item()
    assert total == pytest.approx(expected, rel=1e-12, abs=1e-14)
    assert torch.allclose(parts.grad, whole.grad, rtol=1e-14, atol=0)


def test_the_mean_of_micro_batch_means_is_not_the_mean():
    terms = torch.tensor([[4.0, 0, 0], [1, 1, 1], [2, 2, 0]], dtype=F64)
    mask = mask_of([1, 3, 2])
    for split in ([1, 2], [2, 1], [1, 1, 1], [3]):
        for mode, count, expected in (("token-mean", 6, 11 / 6), ("seq-mean-token-mean", 3, 7 / 3)):
            parts = zip(terms.split(split), mask.split(split), strict=True)
            total = sum(aggregate(t, m, mode, normalizer=count) for t, m in parts)
            assert total.item() == pytest.approx(expected, rel=1e-14)
    naive = {mode: (aggregate(terms[:1], mask[:1], mode) + aggregate(terms[1:], mask[1:], mode)) / 2
             for mode in ("token-mean", "seq-mean-token-mean")}  # fmt: skip
    assert naive["token-mean"].item() == pytest.approx(2.7)
    assert naive["seq-mean-token-mean"].item() == pytest.approx(2.75)


def test_token_mean_over_two_processes():
    ranks = [torch.tensor([[1.5, 1.5]]), torch.full((1, 6), 0.5)]
    parts = [aggregate(x, torch.ones_like(x), "token-mean", normalizer=8) for x in ranks]
    assert sum(parts).item() == 0.75
    mean_over_ranks = sum(part * 2 for part in parts) / 2  # the trainer undoes DDP's mean
    assert mean_over_ranks.item() == 0.75


def test_a_normalizer_below_one_divides_too():
    """A share of the global count, as where the mean over processes is undone beforehand."""
    for mode in AGGREGATIONS:
        values = torch.zeros(2, 2, requires_grad=True)
        parts = [
            aggregate(values, torch.tensor([[1, 0], [0, 0]]), mode, normalizer=n, max_completion_length=2)
            for n in (1, 0.25)
        ]
        one, quarter = (torch.autograd.grad(part, values)[0] for part in parts)
        assert one.any() and torch.equal(quarter, 4 * one)


@pytest.mark.parametrize("normalizer", [4, 4.0, torch.tensor(4), torch.tensor([4.0])])
def test_a_normalizer_may_be_a_number_or_a_tensor_of_one(normalizer):
    for mode in AGGREGATIONS:
        j = aggregate(
            torch.ones(2, 2), torch.ones(2, 2), mode, normalizer=normalizer, max_completion_length=2
        )
        expected = {"token-mean": 1, "seq-mean-token-sum": 1}.get(mode, 0.5)
        assert j.item() == expected


# Types


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_terms_are_added_in_float32(mode, dtype):
    values = torch.randn(3, 300, generator=torch.Generator().manual_seed(0)).to(dtype)
    mask = torch.ones(3, 300, dtype=torch.bool)
    j = aggregate(values, mask, mode, max_completion_length=L)
    assert j.dtype == torch.float32
    assert torch.equal(j, aggregate(values.float(), mask, mode, max_completion_length=L))
    assert aggregate(values.double(), mask, mode, max_completion_length=L).dtype == F64


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.float32, torch.bfloat16])
def test_masks_of_any_type(dtype):
    values, mask = random_terms(0)
    for mode in AGGREGATIONS:
        j = aggregate(values, mask.to(dtype), mode, max_completion_length=L)
        assert torch.equal(j, aggregate(values, mask, mode, max_completion_length=L))


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_gradient_of_the_aggregate(mode):
    values, mask = random_terms(0)
    assert torch.autograd.gradcheck(
        lambda x: aggregate(x, mask, mode, max_completion_length=L), values.requires_grad_()
    )


# Errors


@pytest.mark.bad_input
@pytest.mark.parametrize("arguments, words", [
    ({"values": torch.ones(3)}, r"values must have shape \(N, T\), got \(3,\)"),
    ({"values": torch.ones(2, 3, dtype=torch.int64)}, r"values must be a floating-point tensor.*\.float\(\)"),
    ({"mask": torch.ones(2, 1)}, r"mask has shape \(2, 1\) but values has \(2, 3\).*nothing is broadcast"),
    ({"mask": torch.full((2, 3), 0.5)}, r"mask holds 0.5 but must hold only 0 and 1"),
    ({"mask": None}, r"mask must be a torch.Tensor, got NoneType"),
    ({"mode": "mean"}, r"mode='mean' is unknown: choose one of 'seq-mean-token-mean', 'token-mean'"),
    ({"mode": "seq-mean-token-sum-norm"}, r"divides by max_completion_length, got None.*longest answer"),
    ({"mode": "seq-mean-token-sum-norm", "max_completion_length": 0}, r"max_completion_length, got 0"),
    ({"mode": "seq-mean-token-sum-norm", "max_completion_length": -4}, r"max_completion_length, got -4"),
    ({"mode": "seq-mean-token-sum-norm", "max_completion_length": math.nan}, r"max_completion_length, got nan"),
    ({"normalizer": -1}, r"normalizer=-1 for a batch with 2 to count.*global number"),
    ({"normalizer": 0}, r"normalizer=0 for a batch with 2 to count"),
    ({"normalizer": 0, "mode": "token-mean"}, r"normalizer=0 for a batch with 6 to count.*tokens.*token-mean"),
    ({"normalizer": math.nan}, r"normalizer=nan"),
    ({"normalizer": math.inf}, r"normalizer=inf"),
])  # fmt: skip
def test_aggregate_refuses_bad_input(arguments, words):
    with pytest.raises(ValueError, match=words):
        aggregate(**{"values": torch.ones(2, 3), "mask": torch.ones(2, 3), **arguments})


def test_a_length_of_one_divides_by_one():
    assert (
        aggregate(torch.tensor([[3.0]]), torch.ones(1, 1), "seq-mean-token-sum-norm", max_completion_length=1)
        == 3
    )


@pytest.mark.bad_input
def test_a_normalizer_of_zero_is_refused_even_for_a_single_answer():
    with pytest.raises(ValueError, match="normalizer"):
        aggregate(torch.ones(1, 1), torch.ones(1, 1), normalizer=0)
