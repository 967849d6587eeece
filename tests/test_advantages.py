import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import reference
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lib import difficulty_weight, gae, group_advantages, silent_group_probability

F64 = torch.float64
GARBAGE = [math.nan, math.inf, -math.inf, 1e30, -1e30, 1.0]
BASELINES = ["mean", "leave-one-out", "batch", "none"]
SCALES = ["group", "batch", "batch-residual", "none"]

eighths = st.integers(-80, 80).map(
    lambda n: n / 8
)  # sums, products and means over K = 2^n of these are exact
tenths = st.integers(-100, 100).map(lambda n: n / 10)  # these are not
near_ties = st.integers(0, 3).map(lambda n: 0.7 + n * math.ulp(0.7))
scores = st.one_of(st.lists(values, min_size=2, max_size=9) for values in (eighths, tenths, near_ties))
table = st.tuples(st.integers(1, 4), st.integers(2, 6), st.integers(0, 2**32 - 1))


def rewards64(*rows):
    return torch.tensor(rows, dtype=F64)


def random_table(shape):
    rows, k, seed = shape
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-5, 6, (rows, k), generator=generator).double() / 4


def close(a, b, tol=1e-12):
    return torch.allclose(a, torch.as_tensor(b, dtype=a.dtype), rtol=tol, atol=tol)


# Exact values


def test_two_right_of_four_weigh_plus_and_minus_one():
    for std, size in (("population", 1.0), ("sample", math.sqrt(3) / 2)):
        a = group_advantages(rewards64(reference.SCORES), eps=0, std=std)
        assert close(a, [[size, size, -size, -size]], 1e-15)


@pytest.mark.parametrize("pattern", list(product([0, 1], repeat=4)))
@pytest.mark.parametrize("std, ddof", [("population", 0), ("sample", 1)])
def test_all_sixteen_patterns_agree_with_sympy(pattern, std, ddof):
    right = sum(pattern)
    if right in (0, 4):
        expected = [sympy.Integer(0)] * 4
    else:
        mean = sympy.Rational(right, 4)
        sd = sympy.sqrt(sum((s - mean) ** 2 for s in pattern) / (4 - ddof))
        expected = [(s - mean) / sd for s in pattern]
    a = group_advantages(rewards64(pattern), eps=0, std=std)
    assert close(a, [[float(e) for e in expected]], 1e-15)


@pytest.mark.parametrize(
    "right, population, sample, centred, leave_one_out, total",
    [
        (1, (1.7320508, -0.5773503), (1.5, -0.5), (0.75, -0.25), (1.0, -1 / 3), 3.4641016),
        (2, (1.0, -1.0), (0.8660254, -0.8660254), (0.5, -0.5), (2 / 3, -2 / 3), 4.0),
        (3, (0.5773503, -1.7320508), (0.5, -1.5), (0.25, -0.75), (1 / 3, -1.0), 3.4641016),
    ],
)
def test_table_of_right_answers_out_of_four(right, population, sample, centred, leave_one_out, total):
    r = rewards64([1] * right + [0] * (4 - right))
    for expected, settings in (
        (population, {}),
        (sample, {"std": "sample"}),
        (centred, {"scale": "none"}),
        (leave_one_out, {"baseline": "leave-one-out", "scale": "none"}),
    ):
        a = group_advantages(r, eps=0, **settings)[0]
        assert close(a[[0, -1]], expected, 1e-7)
    assert group_advantages(r, eps=0).abs().sum().item() == pytest.approx(total, abs=1e-7)


@pytest.mark.parametrize("eps, size", [(1e-8, 0.99999998), (1e-4, 0.9998000400), (1e-2, 0.9803921569)])
def test_eps_is_added_to_the_standard_deviation(eps, size):
    a = group_advantages(rewards64([1, 1, 0, 0]), eps=eps)
    assert close(a, [[size, size, -size, -size]], 1e-9)


def test_default_eps_is_1e_4_and_default_std_is_the_population_one():
    r = rewards64([1, 0, 0, 0])
    assert torch.equal(group_advantages(r), group_advantages(r, eps=1e-4, std="population"))
    assert group_advantages(r)[0, 0].item() == pytest.approx(0.75 / (math.sqrt(3) / 4 + 1e-4), rel=1e-14)


def test_a_high_score_below_the_group_mean_weighs_negative():
    a = group_advantages(rewards64([0.9, 0.95, 1, 1]), eps=0)
    assert close(a, [[-1.508, -0.302, 0.905, 0.905]], 1e-3)


def test_sample_and_population_std_differ_by_the_known_factor():
    r = rewards64([1, 0, 0, 0])
    assert close(group_advantages(r, eps=0, std="sample"), [[1.5, -0.5, -0.5, -0.5]], 1e-14)
    assert close(group_advantages(r, eps=0), [[1.73205] + [-0.57735] * 3], 1e-5)
    for k, factor in ((2, 0.7071), (4, 0.8660), (8, 0.9354), (64, 0.9922)):
        r = rewards64([1] + [0] * (k - 1))
        ratio = group_advantages(r, eps=0, std="sample") / group_advantages(r, eps=0)
        assert close(ratio, torch.full((1, k), factor), 1e-4)


def test_groups_are_normalised_apart_from_each_other():
    r = rewards64([1, 1, 1, 0], [0, 0, 0, 1])
    a = group_advantages(r, eps=0, std="sample")
    assert close(a, [[0.5, 0.5, 0.5, -1.5], [-0.5, -0.5, -0.5, 1.5]], 1e-14)
    mixed = group_advantages(r, eps=0, std="sample", scale="batch")
    assert close(mixed, [[0.46771] * 3 + [-1.40312], [-0.46771] * 3 + [1.40312]], 1e-5)
    whole = group_advantages(r, eps=0, std="sample", baseline="batch", scale="batch")
    assert close(whole.abs(), torch.full((2, 4), 0.93541), 1e-5)


def test_silent_groups_give_zero_though_the_batch_varies():
    r = rewards64([0, 0], [10, 10])
    for scale in SCALES:
        assert torch.equal(group_advantages(r, eps=0, scale=scale), torch.zeros(2, 2, dtype=F64))
    batch = group_advantages(r, eps=0, baseline="none", scale="batch", std="sample")
    assert close(batch, [[0, 0], [10 / 5.7735027] * 2], 1e-7)


def test_tiny_gaps_count_as_much_as_large_ones_unless_eps_damps_them():
    large, small = rewards64([1, 0, 0, 0]), rewards64([0.501, 0.5, 0.5, 0.5])
    assert close(group_advantages(small, eps=0), group_advantages(large, eps=0), 1e-9)
    assert close(group_advantages(small)[0, :2], [1.407, -0.469], 1e-3)
    assert close(group_advantages(rewards64([0.50001, 0.5, 0.5, 0.5]))[0, :2], [0.072, -0.024], 1e-3)


def test_batch_residual_scale_is_the_root_mean_within_group_variance():
    r = rewards64([1, 1, 0, 0], [1, 0, 0, 0])
    a = group_advantages(r, eps=0, scale="batch-residual")
    assert close(a[0, :1], [1.069], 1e-3) and close(a[1, :2], [1.604, -0.535], 1e-3)
    sd = math.sqrt(0.21875)  # the mean of p(1 − p) over the two questions
    assert close(a, [[0.5 / sd] * 2 + [-0.5 / sd] * 2, [0.75 / sd] + [-0.25 / sd] * 3])
    base = group_advantages(r, eps=0, baseline="batch", scale="batch")
    assert close(base[1, :2], [1.291, -0.775], 1e-3)
    assert close(base[1, :2], [0.625 / math.sqrt(0.234375), -0.375 / math.sqrt(0.234375)])


@given(scores, st.sampled_from([0.0, 1e-8, 1e-4]), st.sampled_from([("population", 0), ("sample", 1)]))
def test_advantages_agree_with_the_equation_in_fractions(row, eps, std):
    name, ddof = std
    a = group_advantages(rewards64(row), eps=eps, std=name)
    assert close(a, [reference.adv_standardised(row, eps, ddof)])


@given(scores)
def test_leave_one_out_agrees_with_the_equation_in_fractions(row):
    a = group_advantages(rewards64(row), baseline="leave-one-out", scale="none")
    expected = reference.adv_leave_one_out([Fraction(s) for s in row])
    assert close(a, [[float(e) for e in expected]])


# Equal scores


@given(
    value=st.floats(-1e37, 1e37),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, F64, torch.int64, torch.bool]),
    k=st.integers(2, 33),
    eps=st.sampled_from([0.0, 1e-12, 1e-8, 1e-4]),
    baseline=st.sampled_from(["mean", "leave-one-out", "batch"]),
    scale=st.sampled_from(SCALES),
    std=st.sampled_from(["population", "sample"]),
)
def test_equal_scores_give_exactly_zero(value, dtype, k, eps, baseline, scale, std):
    if not dtype.is_floating_point:
        value = int(max(-(2.0**62), min(2.0**62, value)))
    elif dtype == torch.float16:
        value = max(-6e4, min(6e4, value))
    r = torch.tensor([value] * k).to(dtype).reshape(1, k)
    a = group_advantages(r, baseline=baseline, scale=scale, std=std, eps=eps)
    assert torch.equal(a, torch.zeros_like(a))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("eps", [0, 1e-8])
def test_equal_scores_of_two_decimals_give_exactly_zero_for_every_group_size(dtype, eps):
    cents = torch.arange(101, dtype=dtype) / 100
    for k in range(2, 65):
        a = group_advantages(cents.unsqueeze(1).expand(-1, k), eps=eps)
        assert torch.equal(a, torch.zeros_like(a)), k


@pytest.mark.parametrize("baseline", ["mean", "leave-one-out", "batch"])
@pytest.mark.parametrize("scale", SCALES)
def test_equal_scores_of_a_whole_batch_give_exactly_zero(baseline, scale):
    for value, k in product([0.1, 0.3, 0.7, 0.98], [2, 3, 5, 6, 7, 10, 11, 13, 15, 33]):
        a = group_advantages(rewards64([value] * k), baseline=baseline, scale=scale, eps=0)
        assert torch.equal(a, torch.zeros_like(a)), (value, k)


def test_equal_scores_next_to_a_live_group_give_exactly_zero():
    for scale in SCALES:
        a = group_advantages(rewards64([0.3] * 7, [0.1] * 6 + [0.2]), eps=0, scale=scale)
        assert torch.equal(a[0], torch.zeros(7, dtype=F64))
        assert a[1, -1] > 0


@pytest.mark.parametrize("baseline", ["batch", "none"])
def test_a_standard_deviation_of_zero_gives_zero_whatever_the_baseline(baseline):
    a = group_advantages(rewards64([1, 1], [5, 5], [1, 2]), baseline=baseline, scale="group", eps=0)
    assert torch.equal(a[:2], torch.zeros(2, 2, dtype=F64)) and a[2].all()
    equal = rewards64([3, 3], [3, 3])
    for scale in ("batch", "batch-residual"):
        assert not group_advantages(equal, baseline=baseline, scale=scale, eps=0).any()


def test_equal_scores_near_the_largest_number_give_exactly_zero():
    assert torch.equal(group_advantages(torch.full((2, 5), 1.7e308, dtype=F64)), torch.zeros(2, 5, dtype=F64))


# Properties


@given(scores, st.sampled_from([0.0, 1e-8, 1e-4]), st.sampled_from(["mean", "leave-one-out"]))
def test_advantages_of_a_group_sum_to_zero_and_their_squares_to_k(row, eps, baseline):
    a = group_advantages(rewards64(row), eps=eps)[0]
    sd = math.sqrt(reference.variance([Fraction(s) for s in row]))
    assert a.sum().item() == pytest.approx(0, abs=1e-12)
    if sd > 0:
        assert (a**2).sum().item() == pytest.approx(len(row) * (sd / (sd + eps)) ** 2, rel=1e-12)


@given(scores)
def test_advantages_stay_within_samuelsons_bounds(row):
    k = len(row)
    population = group_advantages(rewards64(row), eps=0)
    sample = group_advantages(rewards64(row), eps=0, std="sample")
    assert population.abs().max() <= math.sqrt(k - 1) * (1 + 1e-12)
    assert population.abs().mean() <= 1 + 1e-12
    assert sample.abs().max() <= (k - 1) / math.sqrt(k) * (1 + 1e-12)


@given(scores)
def test_an_advantage_is_a_function_of_the_distance_to_the_others(row):
    """T5: sqrt(K − 1) d / sqrt(d² + K s²), d the distance to the mean of the others, s² their variance."""
    k, exact = len(row), [Fraction(s) for s in row]
    expected = []
    for i, score in enumerate(exact):
        others = exact[:i] + exact[i + 1 :]
        d, s2 = score - reference.mean(others), reference.variance(others)
        expected.append(math.copysign(math.sqrt((k - 1) * d**2 / (d**2 + k * s2)), d) if d else 0.0)
    if len(set(row)) > 1:
        assert close(group_advantages(rewards64(row), eps=0), [expected])


@given(
    table, st.integers(1, 8), st.integers(-100, 100), st.sampled_from(["group", "batch", "batch-residual"])
)
def test_scaled_advantages_do_not_change_under_positive_affine_maps(shape, a, b, scale):
    r = random_table(shape)
    before = group_advantages(r, eps=0, scale=scale)
    assert close(group_advantages(a * r + b, eps=0, scale=scale), before)
    assert close(group_advantages(-r, eps=0, scale=scale), -before)


def test_ten_r_minus_three_leaves_the_advantages_unchanged():
    r = rewards64([1, 0, 0, 0])
    assert close(group_advantages(10 * r - 3, eps=0), group_advantages(r, eps=0), 1e-14)


@given(table, st.sampled_from(BASELINES), st.sampled_from(SCALES), st.sampled_from(["population", "sample"]))
def test_order_of_answers_and_of_groups_does_not_matter(shape, baseline, scale, std):
    r = random_table(shape)
    settings = {"baseline": baseline, "scale": scale, "std": std, "eps": 1e-6}
    a = group_advantages(r, **settings)
    generator = torch.Generator().manual_seed(shape[2])
    rows, columns = (torch.randperm(n, generator=generator) for n in r.shape)
    assert close(group_advantages(r[rows][:, columns], **settings), a[rows][:, columns])
    # one flat batch in which the answers of all groups are shuffled together
    flat = torch.randperm(r.numel(), generator=generator)
    ids = torch.arange(r.shape[0]).repeat_interleave(r.shape[1])[flat]
    expected = a.reshape(-1)[flat]
    assert close(group_advantages(r.reshape(-1)[flat], group_ids=ids, **settings), expected)
    names = [f"question {int(i) * 7 % 5} {int(i)}" for i in ids]
    assert close(group_advantages(r.reshape(-1)[flat], group_ids=names, **settings), expected)


@given(table, st.sampled_from(BASELINES), st.sampled_from(SCALES))
def test_rows_and_num_generations_say_the_same(shape, baseline, scale):
    r = random_table(shape)
    a = group_advantages(r, baseline=baseline, scale=scale)
    flat = group_advantages(r.reshape(-1), r.shape[1], baseline=baseline, scale=scale)
    assert torch.equal(flat, a.reshape(-1))
    assert torch.equal(group_advantages(r, r.shape[1], baseline=baseline, scale=scale), a)


@given(table, st.sampled_from(["group", "none"]))
def test_other_groups_do_not_matter(shape, scale):
    r = random_table(shape)
    for i in range(r.shape[0]):
        assert torch.equal(
            group_advantages(r[i : i + 1], scale=scale), group_advantages(r, scale=scale)[i : i + 1]
        )


def test_groups_of_different_sizes():
    r = torch.tensor([1.0, 3, 0, 0, 0, 5], dtype=F64)
    a = group_advantages(r, group_ids=["x", "y", "x", "x", "x", "y"], eps=0)
    assert close(a[[0, 2, 3, 4]], reference.adv_standardised([1, 0, 0, 0]))
    assert close(a[[1, 5]], [-1, 1])


@pytest.mark.parametrize(
    "ids",
    [
        [9, -4, 9, -4],
        ("a", None, "a", None),
        torch.tensor([2**40, 0, 2**40, 0]),
        torch.tensor([True, False, True, False]),
        torch.tensor([0.5, 0.25, 0.5, 0.25]),
    ],
    ids=repr,
)
def test_group_ids_of_any_kind(ids):
    a = group_advantages(torch.tensor([1.0, 10, 0, 10], dtype=F64), group_ids=ids, eps=0)
    assert close(a, [1, 0, -1, 0])


@given(table, st.sampled_from(BASELINES), st.sampled_from(SCALES), st.sampled_from(["population", "sample"]))
def test_invalid_rows_count_as_if_they_had_not_been_drawn(shape, baseline, scale, std):
    r = random_table(shape)
    generator = torch.Generator().manual_seed(shape[2] + 1)
    valid = torch.rand(r.shape, generator=generator) < 0.6
    settings = {"baseline": baseline, "scale": scale, "std": std}
    a = group_advantages(r, valid=valid, **settings)
    assert torch.equal(a[~valid], torch.zeros_like(a[~valid]))
    # whatever they hold
    for garbage in GARBAGE:
        poisoned = torch.where(valid, r, garbage)
        assert torch.equal(group_advantages(poisoned, valid=valid, **settings), a)
    # the same as a batch without them; groups that kept fewer than two answers are 0 where answers are compared
    ids = torch.arange(r.shape[0]).unsqueeze(1).expand_as(r)
    enough = valid & (valid.sum(1, keepdim=True) >= 2)
    if baseline in ("mean", "leave-one-out"):
        assert torch.equal(a[valid & ~enough], torch.zeros_like(a[valid & ~enough]))
    if torch.equal(enough, valid):
        assert close(group_advantages(r[valid], group_ids=ids[valid], **settings), a[valid])


def test_an_invalid_row_leaves_mean_and_standard_deviation():
    r = rewards64([1, 0, 0, math.nan, 1], [3, math.nan, math.nan, math.inf, 3])
    valid = torch.tensor([[1, 1, 1, 0, 1], [1, 0, 0, 0, 0]])
    a = group_advantages(r, valid=valid, eps=0)
    assert close(a, [[1, -1, -1, 0, 1], [0, 0, 0, 0, 0]], 1e-15)


def test_a_batch_without_a_valid_row_gives_zeros():
    r, valid = torch.full((2, 3), math.nan), torch.zeros(2, 3, dtype=torch.bool)
    for baseline, scale in product(BASELINES, SCALES):
        assert torch.equal(
            group_advantages(r, valid=valid, baseline=baseline, scale=scale), torch.zeros(2, 3)
        )


def test_one_answer_a_question_is_enough_where_answers_are_not_compared_within_it():
    r = torch.tensor([1.0, 2, 3], dtype=F64)
    centred = group_advantages(r, 1, baseline="batch", scale="none")
    assert close(centred, [-1, 0, 1])
    assert close(group_advantages(r, baseline="batch", scale="batch", eps=0), centred / math.sqrt(2 / 3))
    assert torch.equal(group_advantages(r, baseline="none", scale="none"), r)


def test_a_very_large_group():
    r = (torch.arange(200_000) < 50_000).reshape(1, -1)
    a = group_advantages(r, eps=0)
    assert a[0, 0].item() == pytest.approx(math.sqrt(3), rel=1e-6)
    assert a[0, -1].item() == pytest.approx(-1 / math.sqrt(3), rel=1e-6)


# Types


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32, torch.uint8])
@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("scale", SCALES)
def test_half_precision_and_integer_rewards_count_as_float32(dtype, baseline, scale):
    r = torch.tensor([[1, 3, 0, 7], [2, 2, 5, 100]]).to(dtype)
    a = group_advantages(r, baseline=baseline, scale=scale)
    assert a.dtype == torch.float32
    assert torch.equal(a, group_advantages(r.float(), baseline=baseline, scale=scale))


def test_boolean_rewards_count_as_float32():
    r = torch.tensor([[True, True, False, False]])
    assert torch.equal(group_advantages(r, eps=0), torch.tensor([[1.0, 1, -1, -1]]))


def test_float64_rewards_stay_float64():
    assert group_advantages(rewards64([1, 0])).dtype == F64


def test_statistics_are_computed_in_float64():
    r = torch.tensor([[16777216.0, 16777216, 16777218, 16777218]])  # 2^24: float32 cannot add 1 here
    assert torch.equal(group_advantages(r, eps=0), torch.tensor([[-1.0, -1, 1, 1]]))


def test_large_and_small_scores_neither_overflow_nor_vanish():
    for size in (1e-300, 1e-200, 1e200, 1e300):
        a = group_advantages(rewards64([size, 0, 0, 0]), eps=0)
        assert close(a, [reference.adv_standardised([1, 0, 0, 0])])


def test_advantages_are_constants():
    r = torch.tensor([[1.0, 0, 1]], requires_grad=True)
    for baseline, scale in product(BASELINES, SCALES):
        assert not group_advantages(r, baseline=baseline, scale=scale).requires_grad


def test_rewards_are_left_as_they_were():
    r = torch.tensor([[1.0, 0.5, 0]])
    before = r.clone()
    for baseline, scale in product(BASELINES, SCALES):
        group_advantages(r, baseline=baseline, scale=scale)
    assert torch.equal(r, before)


def test_rewards_need_not_be_contiguous():
    r = torch.tensor([[1.0, 5], [0, 5], [1, 5], [0, 6]]).T
    assert torch.equal(group_advantages(r), group_advantages(r.contiguous()))


@pytest.mark.parametrize("shape, k", [((0, 4), None), ((4, 0), None), ((0,), 4)])
def test_empty_rewards_give_empty_advantages(shape, k):
    for baseline, scale in product(BASELINES, SCALES):
        a = group_advantages(torch.zeros(shape), k, baseline=baseline, scale=scale)
        assert a.shape == shape and a.dtype == torch.float32


# Errors

ROW = [[1.0, 0.0, 1.0, 0.0]]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "rewards, arguments, words",
    [
        (ROW, {"baseline": "median"}, r"baseline='median' is unknown.*'leave-one-out'"),
        (ROW, {"scale": "std"}, r"scale='std' is unknown.*'batch-residual'"),
        (ROW, {"std": "unbiased"}, r"std='unbiased' is unknown.*'population', 'sample'"),
        (ROW, {"eps": -1e-4}, r"eps must be >= 0 and finite, got -0.0001"),
        (ROW, {"eps": math.nan}, r"eps must be >= 0 and finite, got nan"),
        (ROW, {"eps": math.inf}, r"eps must be >= 0 and finite, got inf"),
        (ROW, {"num_generations": 2}, r"num_generations=2.*\(1, 4\).*drop the argument or reshape"),
        (ROW, {"group_ids": [0, 0, 1, 1]}, r"group_ids go with rewards of shape \(N,\).*flatten"),
        (ROW, {"valid": torch.ones(4)}, r"valid has shape \(4,\) but rewards has \(1, 4\)"),
        (ROW, {"valid": torch.full((1, 4), 0.5)}, r"valid holds 0.5 but must hold only 0 and 1"),
        (ROW, {"valid": [[1, 1, 1, 0]]}, r"valid must be a torch.Tensor, got list"),
        (ROW[0], {}, r"rewards of shape \(4,\) need num_generations or group_ids"),
        (ROW[0], {"baseline": "none"}, r"need num_generations or group_ids"),
        (ROW[0], {"baseline": "batch"}, r"need num_generations or group_ids"),
        (ROW[0], {"num_generations": 3}, r"4 rewards.*groups of num_generations=3.*one of \[2, 4\]"),
        (ROW[0], {"num_generations": 0}, r"num_generations must be .*at least 1, got 0"),
        (ROW[0], {"num_generations": 2.0}, r"num_generations must be .*integer.*got 2\.0"),
        (ROW[0], {"num_generations": 2, "group_ids": [0, 0, 1, 1]}, r"both given.*one of them"),
        (ROW[0], {"group_ids": [0, 0, 1]}, r"one id a reward: got 3 for 4 rewards"),
        (ROW[0], {"group_ids": torch.zeros(4, 1)}, r"one id a reward: got \(4, 1\) for 4 rewards"),
        (ROW[0], {"group_ids": torch.tensor(3)}, r"one id a reward: got \(\) for 4 rewards"),
        (1.0, {}, r"shape \(B, K\) or \(N,\), got \(\)"),
        ([ROW], {}, r"shape \(B, K\) or \(N,\), got \(1, 1, 4\)"),
        ([[1j, 0j]], {}, r"rewards must be real numbers, got torch.complex64"),
    ],
)
def test_bad_arguments_are_named_with_the_remedy(rewards, arguments, words):
    with pytest.raises(ValueError, match=words):
        group_advantages(torch.tensor(rewards), **arguments)


@pytest.mark.bad_input
@pytest.mark.parametrize("rewards", [[[1, 0]], np.array([[1.0, 0.0]]), None])
def test_rewards_that_are_no_tensor_are_refused(rewards):
    with pytest.raises(ValueError, match=r"rewards must be a torch.Tensor, got .*torch.tensor\(...\)"):
        group_advantages(rewards)


def test_seven_completions_do_not_make_groups_of_eight():
    with pytest.raises(ValueError, match=r"7 rewards.*num_generations=8.*\[7\]"):
        group_advantages(torch.zeros(7), 8)
    with pytest.raises(ValueError, match=r"12 rewards.*num_generations=5.*\[2, 3, 4, 6, 12\]"):
        group_advantages(torch.zeros(12), 5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_rewards_that_are_not_finite_are_refused_with_their_place(value):
    r = torch.zeros(2, 3)
    r[1, 2] = value
    with pytest.raises(ValueError, match=rf"rewards holds {value} at position \(1, 2\) \(1 such.*valid="):
        group_advantages(r)
    valid = torch.ones(2, 3, dtype=torch.bool)
    valid[0, 0] = False
    with pytest.raises(ValueError, match=r"position \(1, 2\)"):
        group_advantages(r, valid=valid)


@pytest.mark.parametrize("baseline", ["mean", "leave-one-out"])
def test_a_group_of_one_is_refused_where_answers_are_compared(baseline):
    words = rf"has one answer, but baseline='{baseline}'.*at least 2"
    with pytest.raises(ValueError, match=words):
        group_advantages(torch.zeros(3, 1), baseline=baseline)
    with pytest.raises(ValueError, match=words):
        group_advantages(torch.zeros(3), 1, baseline=baseline)
    with pytest.raises(ValueError, match=rf"reward 1 \(group id 'b'\) {words}"):
        group_advantages(torch.zeros(3), group_ids=["a", "b", "a"], baseline=baseline)


def test_rewards_too_large_to_average_are_refused():
    words = "overflow.*divide"
    with pytest.raises(ValueError, match=words):
        group_advantages(rewards64([1.5e308, 1.5e308, 0, 0]))
    with pytest.raises(ValueError, match=words):
        group_advantages(rewards64([1.5e308, 1.5e308, 0, 0]), baseline="none", scale="batch")
    with pytest.raises(ValueError, match=words):
        group_advantages(torch.tensor([[3e38, -3e38]]), baseline="leave-one-out", scale="none")


# Silent groups


@pytest.mark.parametrize("p, k, expected", [
    (0.5, 4, 0.125), (0.5, 8, 0.0078125), (0.1, 4, 0.6562), (0.1, 8, 0.43046722), (0.1, 64, 0.0012),
    (0.01, 4, 0.961), (0.01, 64, 0.526), (0.1819, 2, 0.7024), (0.1819, 4, 0.4490), (0.1819, 8, 0.2007),
    (0.1819, 16, 0.0403),
])  # fmt: skip
def test_probability_of_a_silent_group(p, k, expected):
    assert silent_group_probability(p, k) == pytest.approx(expected, abs=5e-4)
    assert silent_group_probability(p, k) == reference.adv_silent(p, k)


def test_probability_of_a_silent_group_counts_the_patterns():
    for k in range(1, 7):
        p = 0.3
        silent = sum(
            p ** sum(pattern) * (1 - p) ** (k - sum(pattern))
            for pattern in product([0, 1], repeat=k)
            if not group_advantages(rewards64([*pattern, pattern[0]])).any()
        )
        assert silent_group_probability(p, k) == pytest.approx(silent, rel=1e-12)


def test_probability_of_a_silent_group_takes_tensors():
    p = torch.tensor([[0.0, 0.5, 1.0]])
    assert torch.equal(silent_group_probability(p, 3), torch.tensor([[1.0, 0.25, 1.0]]))


@pytest.mark.bad_input
@pytest.mark.parametrize("p, k, words", [
    (-0.1, 4, "p must lie between 0 and 1, got -0.1"), (1.1, 4, "between 0 and 1, got 1.1"),
    (math.nan, 4, "between 0 and 1, got nan"), (torch.tensor([0.5, 2.0]), 4, "between 0 and 1"),
    (0.5, 0, "num_generations must be .*at least 1, got 0"), (0.5, 2.5, "integer.*got 2.5"),
])  # fmt: skip
def test_probability_of_a_silent_group_refuses_bad_input(p, k, words):
    with pytest.raises(ValueError, match=words):
        silent_group_probability(p, k)


# Difficulty weight


@pytest.mark.parametrize("k, expected", [
    (2, 1.0), (3, 1.4142), (4, 1.7100), (8, 2.4731), (16, 3.2671), (64, 4.3364),
])  # fmt: skip
def test_difficulty_weight_of_a_hard_question(k, expected):
    assert difficulty_weight(0.05, k) == pytest.approx(expected, abs=5e-5)
    for p in (0.05, 0.3, 0.5, 0.99):
        assert difficulty_weight(p, k) == pytest.approx(reference.std_weight(p, k), rel=1e-12)
        assert difficulty_weight(p, k) == pytest.approx(difficulty_weight(1 - p, k), rel=1e-12)
        assert difficulty_weight(p, k) <= min(math.sqrt(k - 1), 1 / math.sqrt(p * (1 - p))) + 1e-12


def test_difficulty_weight_is_the_mean_spread_of_the_groups():
    p, k = 0.3, 5
    patterns = torch.tensor(list(product([1.0, 0.0], repeat=k)), dtype=F64)
    chance = (patterns * p + (1 - patterns) * (1 - p)).prod(dim=1)
    right = (group_advantages(patterns, eps=0) * patterns).sum(dim=1)  # K times the spread of a 0/1 group
    assert difficulty_weight(p, k) == pytest.approx(float(chance @ right) / (k * p * (1 - p)), rel=1e-12)


def test_difficulty_weight_at_the_ends_and_in_large_groups():
    for k in (2, 3, 4, 64, 5000):
        assert difficulty_weight(0.0, k) == pytest.approx(math.sqrt(k - 1), rel=1e-9)
        assert difficulty_weight(1.0, k) == pytest.approx(math.sqrt(k - 1), rel=1e-9)
    assert difficulty_weight(0.5, 5000) == pytest.approx(2, abs=1e-3)


def test_difficulty_weight_takes_fractions_and_tensors():
    assert difficulty_weight(Fraction(1, 2), 3) == pytest.approx(math.sqrt(2), rel=1e-12)
    p = torch.tensor([[0.0, 0.5, 1.0]])
    w = difficulty_weight(p, 3)
    assert w.dtype == torch.float32 and close(w, [[math.sqrt(2)] * 3], 1e-6)
    assert difficulty_weight(torch.tensor(0.5, dtype=F64), 4).dtype == F64


@pytest.mark.bad_input
@pytest.mark.parametrize("p, k, words", [
    (-0.1, 4, "p must lie between 0 and 1, got -0.1"), (torch.tensor([0.5, 2.0]), 4, "between 0 and 1"),
    (0.5, 1, "num_generations must be at least 2, got 1"), (0.5, 2.5, "integer.*got 2.5"),
])  # fmt: skip
def test_difficulty_weight_refuses_bad_input(p, k, words):
    with pytest.raises(ValueError, match=words):
        difficulty_weight(p, k)


# Generalised advantage estimation


@pytest.mark.parametrize("lam, expected", [(1.0, (0.5, 0.3)), (0.95, (0.485, 0.3)), (0.0, (0.2, 0.3))])
def test_gae_of_the_first_answer(lam, expected):
    a = gae(rewards64([0, 1]), rewards64([0.5, 0.7]), lam=lam)
    assert close(a, [expected], 1e-14)


@given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.floats(0, 1))
def test_gae_agrees_with_the_sum_of_discounted_residuals(seed, gamma, lam):
    generator = torch.Generator().manual_seed(seed)
    r, v = torch.randn(2, 3, 5, generator=generator, dtype=F64)
    lengths = [5, 3, 0]
    mask = torch.arange(5) < torch.tensor(lengths).unsqueeze(1)
    a = gae(r, v, mask, gamma=gamma, lam=lam)
    for i, n in enumerate(lengths):
        expected = reference.gae_sum(r[i, :n].tolist(), v[i, :n].tolist(), gamma, lam)
        assert close(a[i], expected + [0.0] * (5 - n))
    for garbage in GARBAGE:
        poisoned = (torch.where(mask, x, garbage) for x in (r, v))
        assert torch.equal(gae(*poisoned, mask, gamma=gamma, lam=lam), a)


def test_gae_defaults_and_constants():
    r, v = torch.rand(2, 3, requires_grad=True), torch.rand(2, 3, requires_grad=True)
    assert torch.equal(gae(r, v), gae(r, v, torch.ones(2, 3), gamma=1.0, lam=0.95))
    assert not gae(r, v).requires_grad


def test_gae_with_lambda_one_is_return_minus_value():
    r, v = rewards64([1, 2, 3]), rewards64([0.5, 0.25, 0.125])
    assert close(gae(r, v, lam=1), [[5.5, 4.75, 2.875]], 1e-15)
    assert close(gae(r, v, gamma=0.5, lam=1), [[2.25, 3.25, 2.875]], 1e-15)


def test_gae_is_computed_in_float32_or_wider():
    r, v = torch.rand(2, 2, 40, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(gae(r, v), gae(r.float(), v.float())) and gae(r, v).dtype == torch.float32
    assert gae(r.double(), v.double()).dtype == F64


def test_gae_of_empty_answers():
    assert gae(torch.zeros(2, 0), torch.zeros(2, 0)).shape == (2, 0)
    assert gae(torch.zeros(0, 3), torch.zeros(0, 3)).shape == (0, 3)


@pytest.mark.bad_input
@pytest.mark.parametrize("arguments, words", [
    ({"rewards": torch.zeros(3)}, r"rewards must have shape \(N, T\), got \(3,\)"),
    ({"rewards": torch.zeros(2, 3, dtype=torch.int64)}, r"rewards must be a floating-point.*int64.*\.float\(\)"),
    ({"values": torch.zeros(2)}, r"values has shape \(2,\) but rewards has \(2, 3\)"),
    ({"completion_mask": torch.ones(2)}, r"completion_mask has shape \(2,\)"),
    ({"completion_mask": torch.tensor([[1, 0, 1], [1, 1, 1]])}, "prefix"),
    ({"gamma": 1.1}, "gamma must lie between 0 and 1, got 1.1"),
    ({"lam": -0.1}, "lam must lie between 0 and 1, got -0.1"),
    ({"lam": math.nan}, "lam must lie between 0 and 1, got nan"),
    ({"rewards": torch.full((2, 3), math.nan)}, "rewards holds nan.*reward function"),
    ({"values": torch.full((2, 3), math.inf)}, "values holds inf.*critic"),
])  # fmt: skip
def test_gae_refuses_bad_input(arguments, words):
    with pytest.raises(ValueError, match=words):
        gae(**{"rewards": torch.zeros(2, 3), "values": torch.zeros(2, 3), **arguments})


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_where_all_answers_are_alike_every_group_is_silent(p):
    assert silent_group_probability(p, 4) == 1
    assert silent_group_probability(torch.tensor(p), 4) == 1


@pytest.mark.bad_input
@pytest.mark.parametrize("baseline", ["mean", "leave-one-out"])
def test_a_group_baseline_needs_groups_even_without_a_scale(baseline):
    with pytest.raises(ValueError, match="num_generations"):
        group_advantages(torch.tensor([1.0, 0.0]), baseline=baseline, scale="none")


def test_gae_of_a_single_token():
    found = gae(torch.tensor([[1.0]]), torch.tensor([[0.25]]), torch.ones(1, 1), gamma=0.5, lam=0.5)
    assert found.tolist() == [[0.75]]


def test_difficulty_weight_of_a_float32_number_is_computed_in_float64():
    for p in torch.tensor([0.1, 0.017, 0.001], dtype=torch.float32):
        assert difficulty_weight(p, 5000).item() == pytest.approx(difficulty_weight(p.item(), 5000), rel=1e-6)
