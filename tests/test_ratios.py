import math

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lib import LOG_RATIO_CAP, clip_fractions, clipped_surrogate, importance_ratio

F64 = torch.float64
GARBAGE = [math.nan, math.inf, -math.inf, 1e30, -1e30, 1.0]
LEVELS = ["token", "sequence"]

seeds = st.integers(0, 2**32 - 1)
ratios = st.floats(0.01, 100)
advantages_ = st.floats(-10, 10)
widths = st.floats(0.01, 3)


def tensor(*rows):
    return torch.tensor(rows, dtype=F64)


RATIOS = tensor(*reference.RATIOS)
ADVANTAGES = torch.tensor([1.0, 1, -1, -1], dtype=F64)


def random_logps(seed, n=3, t=4, dtype=F64):
    generator = torch.Generator().manual_seed(seed)
    old = -3 * torch.rand(n, t, generator=generator, dtype=F64)
    new = old + torch.randn(n, t, generator=generator, dtype=F64)
    mask = torch.rand(n, t, generator=generator) < 0.7
    return new.to(dtype), old.to(dtype), mask


# Ratio


def test_ratio_of_the_running_example():
    r = importance_ratio(tensor([math.log(0.22)]), tensor([math.log(0.20)]))
    assert r.item() == pytest.approx(1.1, rel=1e-14)
    assert torch.allclose(importance_ratio(RATIOS.log(), torch.zeros(4, 2, dtype=F64)), RATIOS, rtol=1e-14)


def test_sequence_ratio_of_the_running_example_is_the_geometric_mean():
    s = importance_ratio(RATIOS.log(), torch.zeros(4, 2, dtype=F64), level="sequence")
    assert torch.equal(s[:, 0], s[:, 1])
    assert s[:, 0].tolist() == pytest.approx([1.1958, 0.9487, 0.7937, 1.1958], abs=5e-5)


@given(seeds)
def test_ratios_agree_with_the_equations(seed):
    new, old, mask = random_logps(seed)
    for level, equation in (("token", reference.ratio_token), ("sequence", reference.ratio_sequence)):
        r = importance_ratio(new, old, mask, level=level)
        for i in range(3):
            expected = equation(new[i][mask[i]].tolist(), old[i][mask[i]].tolist()) if mask[i].any() else []
            assert r[i][mask[i]].tolist() == pytest.approx(expected, rel=1e-12)
        assert torch.equal(r[~mask], torch.ones_like(r[~mask]))


def test_without_a_mask_all_tokens_are_valid():
    new, old, _ = random_logps(0)
    for level in LEVELS:
        expected = importance_ratio(new, old, torch.ones(3, 4), level=level)
        assert torch.equal(importance_ratio(new, old, level=level), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F64])
@pytest.mark.parametrize("level", LEVELS)
def test_the_same_log_probabilities_give_a_ratio_of_exactly_one(dtype, level):
    new, _, mask = random_logps(1, dtype=dtype)
    assert torch.equal(importance_ratio(new, new, mask, level=level), torch.ones(3, 4, dtype=r_dtype(dtype)))


def r_dtype(dtype):
    return F64 if dtype == F64 else torch.float32


def test_a_log_probability_stored_in_bfloat16_moves_the_ratio_by_six_per_cent():
    true = torch.tensor([[-20.06]])
    stored = true.bfloat16()
    assert stored.item() == -20.0
    assert importance_ratio(stored, true).item() == pytest.approx(1.0618, abs=1e-4)
    assert importance_ratio(stored, true).dtype == torch.float32


def test_a_truncated_sampler_shows_in_the_ratio():
    trainer, sampler = 0.5, 0.5 / 0.8  # top-2 of (0.5, 0.3, 0.2)
    r = importance_ratio(tensor([math.log(trainer)]), tensor([math.log(sampler)]))
    assert r.item() == pytest.approx(0.8, rel=1e-14)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("garbage", GARBAGE)
@given(seed=seeds)
def test_masked_positions_reach_neither_ratio_nor_gradient(level, garbage, seed):
    new, old, mask = random_logps(seed)
    results = []
    for fill in (0.0, garbage):
        filled = torch.where(mask, new, fill).requires_grad_()
        r = importance_ratio(filled, torch.where(mask, old, fill), mask, level=level)
        (r**2).sum().backward()
        assert torch.equal(filled.grad[~mask], torch.zeros_like(filled.grad[~mask]))
        results += [(r.detach(), filled.grad)]
    (r, gradient), (poisoned, poisoned_gradient) = results
    assert torch.equal(r, poisoned) and torch.equal(gradient, poisoned_gradient)


@pytest.mark.parametrize("level", LEVELS)
def test_the_old_policy_is_a_constant(level):
    new, old, mask = random_logps(2)
    new, old = new.requires_grad_(), old.requires_grad_()
    importance_ratio(new, old, mask, level=level).sum().backward()
    assert old.grad is None and new.grad.any()


@pytest.mark.parametrize("level", LEVELS)
def test_gradient_of_the_ratio(level):
    new, old, mask = random_logps(3)
    assert mask.any(1).all()
    new = new.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: importance_ratio(x, old, mask, level=level), new)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_ratios_of_half_precision_are_computed_in_float32(level, dtype):
    new, old, mask = random_logps(4, dtype=dtype)
    r = importance_ratio(new, old, mask, level=level)
    assert r.dtype == torch.float32
    assert torch.equal(r, importance_ratio(new.float(), old.float(), mask, level=level))


def test_the_cap_changes_nothing_below_it_and_stops_overflow_above_it():
    new = torch.tensor([[-1.0, -1.0, -1.0, -1.0, -1.0]], requires_grad=True)
    old = torch.tensor([[-1.0, -20.9, -21.0, -21.1, -3e38]])
    r = importance_ratio(new, old)
    r.sum().backward()
    assert LOG_RATIO_CAP == 20
    assert torch.equal(r[0, :3], (new - old).exp()[0, :3])
    assert torch.equal(r[0, 2:], torch.full((1, 5), 20.0).exp()[0, 2:])
    assert torch.equal(new.grad[0, :3], r.detach()[0, :3])
    assert torch.equal(new.grad[0, 3:], torch.zeros(2))


def test_no_floor_holds_a_vanishing_ratio_up():
    new = torch.tensor([[-30.0, -3e38]], requires_grad=True)
    r = importance_ratio(new, torch.tensor([[0.0, 0.0]]))
    r.sum().backward()
    assert r[0, 0].item() == pytest.approx(math.exp(-30), rel=1e-6) and r[0, 1].item() == 0
    assert torch.equal(new.grad, r.detach())


def test_the_cap_on_a_sequence_is_on_its_mean_log_ratio():
    new, old = torch.tensor([[0.0, 0.0]]), torch.tensor([[-30.0, -4.0]])
    assert importance_ratio(new, old, level="sequence")[0, 0].item() == pytest.approx(math.exp(17), rel=1e-6)
    assert importance_ratio(new, 2 * old, level="sequence")[0, 0].item() == pytest.approx(
        math.exp(20), rel=1e-6
    )


def test_ratios_of_nothing():
    for shape in ((0, 3), (2, 0)):
        for level in LEVELS:
            assert importance_ratio(torch.zeros(shape), torch.zeros(shape), level=level).shape == shape


@pytest.mark.bad_input
@pytest.mark.parametrize("arguments, words", [
    ({"per_token_logps": torch.zeros(3)}, r"per_token_logps must have shape \(N, T\), got \(3,\)"),
    ({"per_token_logps": torch.zeros(2, 3, dtype=torch.int64)}, r"per_token_logps must be a floating-point"),
    ({"per_token_logps": None}, r"per_token_logps must be a torch.Tensor, got NoneType"),
    ({"old_per_token_logps": torch.zeros(2, 1)}, r"old_per_token_logps has shape \(2, 1\).*\(2, 3\).*broadcast"),
    ({"old_per_token_logps": torch.zeros(2, 3, dtype=torch.int64)}, "old_per_token_logps must be a floating"),
    ({"completion_mask": torch.ones(3)}, r"completion_mask has shape \(3,\) but per_token_logps has \(2, 3\)"),
    ({"completion_mask": torch.full((2, 3), 0.5)}, r"completion_mask .*0\.5.* only 0 and 1"),
    ({"completion_mask": torch.full((2, 3), math.nan)}, r"completion_mask .*nan.* only 0 and 1"),
    ({"completion_mask": torch.full((2, 3), 2)}, r"completion_mask .*2.* only 0 and 1.*selects tokens"),
    ({"level": "seq"}, r"level='seq' is unknown: choose one of 'token', 'sequence'"),
])  # fmt: skip
def test_ratio_refuses_bad_input(arguments, words):
    given = {"per_token_logps": torch.zeros(2, 3), "old_per_token_logps": torch.zeros(2, 3), **arguments}
    with pytest.raises(ValueError, match=words):
        importance_ratio(**given)


# Clipping


def test_clipped_terms_of_the_running_example():
    terms = clipped_surrogate(RATIOS, ADVANTAGES)
    assert torch.equal(terms, tensor([1.1, 1.2], [0.9, 1.0], [-0.9, -0.8], [-1.1, -1.3]))
    assert terms.mean(1).tolist() == pytest.approx([1.15, 0.95, -0.85, -1.20], rel=1e-14)
    assert terms.mean().item() == pytest.approx(0.0125, rel=1e-12)
    unclipped = clipped_surrogate(RATIOS, ADVANTAGES, epsilon=math.inf)
    assert unclipped.mean().item() == pytest.approx(0.0375, rel=1e-12)


@given(ratios, advantages_, widths, st.none() | widths, st.none() | st.floats(0.01, 5))
def test_clipped_term_and_slope_agree_with_the_equations(r, a, low, high, gap):
    delta = None if gap is None else 1 + (low if high is None else high) + gap
    ratio = torch.tensor([[r]], dtype=F64, requires_grad=True)
    term = clipped_surrogate(ratio, tensor([a]), epsilon=low, epsilon_high=high, delta=delta)
    term.sum().backward()
    assert term.item() == pytest.approx(reference.ratio_clip(r, a, low, high, delta), rel=1e-14)
    slope = reference.ratio_clip_slope(r, a, low, high, delta)
    assert ratio.grad.item() == pytest.approx(slope, rel=1e-14)


@given(ratios, advantages_, widths, st.none() | widths)
def test_the_minimum_is_a_bound_on_the_ratio_from_one_side(r, a, low, high):
    """C3.2-2: A min(r, 1 + ε_high) for A >= 0, A max(r, 1 − ε) for A < 0, and never above r A."""
    term = clipped_surrogate(tensor([r]), tensor([a]), epsilon=low, epsilon_high=high).item()
    upper = 1 + (low if high is None else high)
    assert term == (a * min(r, upper) if a >= 0 else a * max(r, 1 - low))
    assert term <= r * a


@pytest.mark.parametrize(
    "ratio, advantage, slope",
    [
        (1.2, 1.0, 1.0),
        (0.8, -1.0, -1.0),
        (1.2, -1.0, -1.0),
        (0.8, 1.0, 1.0),
        (1.2 + 1e-12, 1.0, 0.0),
        (0.8 - 1e-12, -1.0, 0.0),
        (1.3, 1.0, 0.0),
        (0.7, -1.0, 0.0),
        (0.7, 1.0, 1.0),
        (1.3, -1.0, -1.0),
        (1.3, 0.0, 0.0),
    ],
)
def test_slope_at_an_edge_is_the_inner_one_and_each_sign_is_clipped_on_one_side(ratio, advantage, slope):
    r = tensor([ratio]).requires_grad_()
    clipped_surrogate(r, tensor([advantage])).sum().backward()
    assert r.grad.item() == slope


def test_slope_at_an_edge_in_float32():
    r = torch.tensor([[1.2, 0.8]], requires_grad=True)
    clipped_surrogate(r, torch.tensor([[1.0, -1.0]])).sum().backward()
    assert torch.equal(r.grad, torch.tensor([[1.0, -1.0]]))


def test_a_negative_advantage_is_unbounded_unless_delta_caps_it():
    r, a = tensor([5.0, 10.0]).requires_grad_(), tensor([-1.0, -1.0])
    assert torch.equal(clipped_surrogate(r, a), tensor([-5.0, -10.0]))
    capped = clipped_surrogate(r, a, delta=3.0)
    capped.sum().backward()
    assert torch.equal(capped, tensor([-3.0, -3.0]))
    assert torch.equal(r.grad, tensor([0.0, 0.0]))


def test_delta_leaves_positive_advantages_and_ratios_below_it_alone():
    r, a = tensor([0.5, 1.0, 2.9, 3.0, 9.0], [0.5, 1.0, 2.9, 3.0, 9.0]), torch.tensor([1.0, -1.0], dtype=F64)
    with_delta = clipped_surrogate(r, a, delta=3.0)
    assert torch.equal(with_delta[0], clipped_surrogate(r, a)[0])
    assert torch.equal(with_delta[1, :4], clipped_surrogate(r, a)[1, :4])


def test_epsilon_of_one_or_more_leaves_no_lower_bound():
    r = tensor([1e-6, 0.5, 12.0])
    for epsilon in (1.0, 10.0):
        assert torch.equal(clipped_surrogate(r, -torch.ones_like(r), epsilon=epsilon), -r)
    assert torch.equal(clipped_surrogate(r, torch.ones_like(r), epsilon=10.0), tensor([1e-6, 0.5, 11.0]))


def test_widths_may_differ():
    r, a = tensor([1.3, 0.5]), tensor([1.0, -1.0])
    term = clipped_surrogate(r, a, epsilon=0.4, epsilon_high=0.28)
    assert term.tolist()[0] == pytest.approx([1.28, -0.6], rel=1e-14)


def test_one_advantage_an_answer_or_one_a_token():
    r = tensor([0.5, 1.5, 2.0], [0.5, 1.5, 2.0])
    a = torch.tensor([1.0, -1.0], dtype=F64)
    per_answer = clipped_surrogate(r, a)
    assert torch.equal(clipped_surrogate(r, a.unsqueeze(1).expand(2, 3)), per_answer)
    assert torch.equal(clipped_surrogate(r[0], r[1]), clipped_surrogate(r[:1], r[1:])[0])
    assert torch.equal(clipped_surrogate(r[0, 0], a[0]), per_answer[0, 0])
    # as many answers as tokens: (N,) stays one an answer
    square = clipped_surrogate(r[:, :2], a)
    assert torch.equal(square, per_answer[:, :2])


def test_advantages_are_constants_in_the_surrogate():
    r, a = torch.rand(2, 3, requires_grad=True), torch.rand(2, requires_grad=True)
    clipped_surrogate(r, a).sum().backward()
    assert a.grad is None and r.grad is not None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_surrogate_and_fractions_of_half_precision_are_computed_in_float32(dtype):
    generator = torch.Generator().manual_seed(0)
    r = (0.75 + 0.5 * torch.rand(50, 40, generator=generator)).to(dtype)
    a = torch.randn(50, generator=generator).to(dtype)
    term = clipped_surrogate(r, a)
    assert term.dtype == torch.float32
    assert torch.equal(term, clipped_surrogate(r.float(), a.float()))
    edge = float(r[0, 0]) - 1 + 1e-5  # a width that half precision rounds to the other side of a ratio
    for epsilon in (0.2, 0.1, abs(edge)):
        ours = clip_fractions(r, a, torch.ones(50, 40), epsilon=epsilon)
        assert ours == clip_fractions(r.float(), a.float(), torch.ones(50, 40), epsilon=epsilon)


@pytest.mark.bad_input
@pytest.mark.parametrize("arguments, words", [
    ({"epsilon": 0.0}, r"epsilon must be > 0, got 0.0.*width"),
    ({"epsilon": -0.2}, r"epsilon must be > 0, got -0.2"),
    ({"epsilon": math.nan}, r"epsilon must be > 0, got nan"),
    ({"epsilon_high": 0.0}, r"epsilon_high must be > 0, got 0.0"),
    ({"delta": 1.2}, r"delta must be > 1 \+ epsilon_high = 1.2, got 1.2"),
    ({"delta": 1.25, "epsilon_high": 0.28}, r"delta must be > 1 \+ epsilon_high = 1.28, got 1.25"),
    ({"delta": math.nan}, r"delta must be > .*got nan"),
    ({"advantages": torch.zeros(3)}, r"advantages have shape \(3,\) for tokens of shape \(4, 3\)"),
    ({"advantages": torch.zeros(2, 2)}, r"shape \(2, 2\).*\(B, K\) are flattened with .reshape\(-1\)"),
    ({"advantages": torch.zeros(4, 1)}, r"advantages have shape \(4, 1\)"),
    ({"advantages": torch.tensor(1.0)}, r"advantages have shape \(\)"),
    ({"advantages": [1.0, 1.0, 1.0, 1.0]}, r"advantages must be a torch.Tensor, got list"),
    ({"advantages": torch.tensor([1j, 1, 1, 1])}, "advantages must be real numbers"),
    ({"ratio": torch.ones(4, 3, dtype=torch.int64)}, "ratio must be a floating-point"),
])  # fmt: skip
def test_surrogate_refuses_bad_input(arguments, words):
    with pytest.raises(ValueError, match=words):
        clipped_surrogate(**{"ratio": torch.ones(4, 3), "advantages": torch.ones(4), **arguments})


# Clip fractions


def test_clip_fractions_of_the_running_example():
    low, high, region = clip_fractions(RATIOS, ADVANTAGES, torch.ones(4, 2))
    assert (low.item(), high.item(), region.item()) == (1 / 8, 1 / 8, 2 / 8)


@given(seeds, widths, st.none() | widths)
def test_clip_fractions_count_the_valid_tokens_without_slope(seed, epsilon, epsilon_high):
    generator = torch.Generator().manual_seed(seed)
    r = 2 * torch.rand(3, 5, generator=generator)
    a = torch.randn(3, 5, generator=generator).round()
    mask = torch.rand(3, 5, generator=generator) < 0.7
    fractions = clip_fractions(r, a, mask, epsilon=epsilon, epsilon_high=epsilon_high)
    r = r.requires_grad_()
    clipped_surrogate(r, a, epsilon=epsilon, epsilon_high=epsilon_high).sum().backward()
    stopped = mask & (r.grad == 0) & (a != 0)
    for ours, where in zip(fractions, (stopped & (a < 0), stopped & (a > 0), stopped), strict=True):
        assert ours.item() == pytest.approx(where.sum().item() / max(1, mask.sum().item()), rel=1e-6)


def test_the_edge_itself_is_not_clipped():
    r, a = torch.tensor([[1.2, 0.8]]), torch.tensor([[1.0, -1.0]])
    assert clip_fractions(r, a, torch.ones(1, 2)).region.item() == 0


def test_the_sign_of_the_advantage_decides_which_side_clips():
    r, mask = torch.tensor([[0.5, 1.5]]), torch.ones(1, 2)
    for advantage, expected in ((1.0, (0, 0.5, 0.5)), (-1.0, (0.5, 0, 0.5)), (0.0, (0, 0, 0))):
        fractions = clip_fractions(r, torch.tensor([advantage]), mask)
        assert tuple(x.item() for x in fractions) == expected


@pytest.mark.parametrize("garbage", GARBAGE)
def test_masked_ratios_do_not_count_as_clipped(garbage):
    r = torch.tensor([[1.5, garbage]], requires_grad=True)
    fractions = clip_fractions(r, torch.tensor([1.0]), torch.tensor([[1, 0]]))
    assert tuple(x.item() for x in fractions) == (0, 1, 1)
    assert not any(x.requires_grad for x in fractions)


def test_clip_fractions_of_nothing_are_zero():
    for shape in ((2, 3), (0, 3), (2, 0)):
        fractions = clip_fractions(torch.full(shape, 9.0), torch.ones(shape[0]), torch.zeros(shape))
        assert tuple(x.item() for x in fractions) == (0, 0, 0)


@pytest.mark.bad_input
@pytest.mark.parametrize("arguments, words", [
    ({"ratio": torch.ones(4)}, r"ratio must have shape \(N, T\), got \(4,\)"),
    ({"epsilon": 0.0}, "epsilon must be > 0"),
    ({"advantages": torch.ones(2, 2)}, r"advantages have shape \(2, 2\)"),
    ({"completion_mask": torch.ones(4)}, r"completion_mask has shape \(4,\)"),
    ({"completion_mask": -torch.ones(4, 3)}, "completion_mask .*only 0 and 1"),
])  # fmt: skip
def test_clip_fractions_refuse_bad_input(arguments, words):
    given = {
        "ratio": torch.ones(4, 3),
        "advantages": torch.ones(4),
        "completion_mask": torch.ones(4, 3),
        **arguments,
    }
    with pytest.raises(ValueError, match=words):
        clip_fractions(**given)
