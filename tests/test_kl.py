import math

import jaxtyping
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lib import LOG_RATIO_CAP, gae, k1, k2, k3, kl_divergence, kl_in_reward

F64 = torch.float64
GARBAGE = [math.nan, math.inf, -math.inf, 1e30, -1e30, 1.0]
ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}

probabilities = st.floats(1e-6, 1)


def tensor(*xs):
    return torch.tensor(xs, dtype=F64)


# A vocabulary of three with the token of the running example, and the policy that sampled.
POLICY, REF, SAMPLER = tensor(0.22, 0.48, 0.30), tensor(0.11, 0.59, 0.30), tensor(0.20, 0.50, 0.30)


def logit_gradient(expression, policy=POLICY):
    """Gradient of expression(log-probabilities) with respect to logits that give the policy."""
    logits = policy.log().requires_grad_()
    expression(logits.log_softmax(-1)).backward()
    return logits.grad


# Estimates at a token


def test_estimates_at_the_token_of_the_running_example():
    logp, ref = tensor(math.log(reference.CURRENT)), tensor(math.log(reference.REFERENCE))
    assert k1(logp, ref).item() == pytest.approx(0.693147, abs=5e-7)
    assert k2(logp, ref).item() == pytest.approx(0.240227, abs=5e-7)
    assert k3(logp, ref).item() == pytest.approx(math.log(2) - 0.5, rel=1e-14)
    assert (0.1 * k3(logp, ref)).item() == pytest.approx(0.0193147181, abs=5e-11)


def test_k1_may_be_negative_and_k3_is_not():
    new, ref = tensor(-1.0), tensor(-0.5)
    assert k1(new, ref).item() == -0.5
    assert k2(new, ref).item() == 0.125
    assert k3(new, ref).item() == pytest.approx(0.14872, abs=5e-6)


def test_k3_pulls_a_token_that_is_too_likely_down():
    new = tensor(-1.0).requires_grad_()
    penalty = k3(new, tensor(-2.0))
    penalty.sum().backward()
    assert penalty.item() == pytest.approx(0.36788, abs=5e-6)  # the reversed ratio would give 0.71828
    assert new.grad.item() == pytest.approx(0.63212, abs=5e-6)


@given(probabilities, probabilities)
def test_estimates_agree_with_the_equations(p, q):
    logp, ref = tensor(math.log(p)).requires_grad_(), tensor(math.log(q))
    for name, estimate in ESTIMATORS.items():
        value = estimate(logp, ref)
        (gradient,) = torch.autograd.grad(value.sum(), logp)
        tol = 1e-15 * max(1, q / p)  # of the naive form, which cancels
        assert value.item() == pytest.approx(reference.KL[name](p, q), rel=1e-12, abs=4 * tol)
        assert gradient.item() == pytest.approx(reference.KL_SLOPE[name](p, q), rel=1e-12, abs=4 * tol)


@pytest.mark.parametrize(
    "log_ratio, k3_slope",
    [
        (-3, -19.09),
        (-2, -6.39),
        (-1, -1.72),
        (-0.1, -0.105),
        (0.1, 0.095),
        (1, 0.632),
        (2, 0.865),
        (3, 0.950),
    ],
)
def test_multipliers_of_the_token_gradient(log_ratio, k3_slope):
    logp = tensor(-4.0 + log_ratio).requires_grad_()
    for estimate, slope, tol in ((k1, 1, 0), (k2, log_ratio, 1e-14), (k3, k3_slope, 6e-3)):
        (gradient,) = torch.autograd.grad(estimate(logp, tensor(-4.0)).sum(), logp)
        assert gradient.item() == pytest.approx(slope, abs=tol)


@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-8, 1e-6, 1e-4, 1e-2, 1.0, 10.0, 100.0]))
def test_k3_is_never_negative_in_float32_and_zero_for_equal_probabilities(seed, size):
    generator = torch.Generator().manual_seed(seed)
    ref = -10 * torch.rand(1000, generator=generator)
    new = ref + size * torch.randn(1000, generator=generator)
    assert (k3(new, ref) >= 0).all() and torch.isfinite(k3(new, ref)).all()
    for estimate in ESTIMATORS.values():
        assert torch.equal(estimate(ref, ref), torch.zeros(1000))


@pytest.mark.parametrize("log_ratio", [1e-4, -1e-4, 1e-3, -1e-3, 0.01, -0.01, 0.1, -0.1, 1.0, -1.0])
def test_k3_keeps_its_digits_near_zero_in_float32(log_ratio):
    x = torch.tensor([-log_ratio])
    exact = math.expm1(x.item()) - x.item()
    assert k3(torch.zeros(1), x).item() == pytest.approx(exact, abs=2e-7 * abs(log_ratio))


def test_the_cap_keeps_k3_finite_and_changes_nothing_below_it():
    new = torch.tensor([-19.0, -20.0, -20.1, -3e38], requires_grad=True)
    penalty = k3(new, torch.zeros(4))
    penalty.sum().backward()
    assert LOG_RATIO_CAP == 20
    assert penalty[0].item() == pytest.approx(math.exp(19) - 20, rel=1e-6)
    assert penalty[1:].tolist() == pytest.approx([math.exp(20) - 21] * 3, rel=1e-6)
    assert new.grad[0].item() == pytest.approx(1 - math.exp(19), rel=1e-6)
    assert torch.equal(new.grad[2:], torch.zeros(2))


def test_k3_of_a_token_that_the_reference_hardly_gives_is_linear():
    new = torch.tensor([0.0, 0.0], requires_grad=True)
    penalty = k3(new, torch.tensor([-1000.0, -3e38]))
    penalty.sum().backward()
    assert penalty.tolist() == pytest.approx([999, 3e38])
    assert torch.equal(new.grad, torch.ones(2))


@pytest.mark.parametrize("estimate", ESTIMATORS.values(), ids=ESTIMATORS)
def test_gradients_of_the_estimates(estimate):
    generator = torch.Generator().manual_seed(0)
    new, ref = torch.randn(2, 3, 4, generator=generator, dtype=F64)
    new, ref = new.requires_grad_(), ref.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: estimate(x, ref.detach()), new)
    estimate(new, ref).sum().backward()
    assert ref.grad is None  # the reference is a constant


@pytest.mark.parametrize("estimate", ESTIMATORS.values(), ids=ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_estimates_of_half_precision_are_computed_in_float32(estimate, dtype):
    generator = torch.Generator().manual_seed(0)
    new, ref = torch.randn(2, 3, 4, generator=generator).to(dtype)
    assert estimate(new, ref).dtype == torch.float32
    assert torch.equal(estimate(new, ref), estimate(new.float(), ref.float()))
    assert estimate(new.double(), ref.double()).dtype == F64


@pytest.mark.parametrize("estimate", ESTIMATORS.values(), ids=ESTIMATORS)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3, 4)])
def test_estimates_take_any_shape(estimate, shape):
    assert estimate(torch.zeros(shape), torch.ones(shape)).shape == shape


@pytest.mark.bad_input
@pytest.mark.parametrize("estimate", ESTIMATORS.values(), ids=ESTIMATORS)
def test_estimates_refuse_bad_input(estimate):
    x = torch.zeros(2, 3)
    with pytest.raises(
        ValueError, match=r"ref_logps has shape \(2, 1\) but logps has \(2, 3\).*nothing is broadcast"
    ):
        estimate(x, torch.zeros(2, 1))
    with pytest.raises(
        ValueError, match=r"logps must be a floating-point tensor, got torch.int64.*\.float\(\)"
    ):
        estimate(x.long(), x)
    with pytest.raises(ValueError, match=r"ref_logps must be a floating-point tensor"):
        estimate(x, x.bool())
    with pytest.raises(ValueError, match=r"ref_logps must be a torch.Tensor, got float"):
        estimate(x, -1.0)


# Values and gradients in expectation


def test_expected_values_over_three_tokens():
    logp, ref = POLICY.log(), REF.log()
    expected = {name: (POLICY * f(logp, ref)).sum().item() for name, f in ESTIMATORS.items()}
    assert expected["k1"] == pytest.approx(0.0534509, abs=5e-8)
    assert expected["k2"] == pytest.approx(0.0630678, abs=5e-8)
    assert expected["k3"] == pytest.approx(expected["k1"], rel=1e-13)
    assert (SAMPLER * k3(logp, ref)).sum().item() == pytest.approx(0.0500446, abs=5e-8)
    rho = POLICY / SAMPLER
    assert (SAMPLER * rho * k3(logp, ref)).sum().item() == pytest.approx(0.0534509, abs=5e-8)


def test_noise_of_the_estimates_over_three_tokens():
    logp, ref, kl = POLICY.log(), REF.log(), 0.0534509
    for f, relative in ((k1, 6.569), (k2, 1.769), (k3, 1.400)):
        x = f(logp, ref)
        sd = ((POLICY * x**2).sum() - (POLICY * x).sum() ** 2).sqrt().item()
        assert sd / kl == pytest.approx(relative, abs=5e-4)


@pytest.mark.parametrize(
    "policy, ref, var_k1, var_k3",
    [((0.99, 0.01), (0.5, 0.5), 0.209, 19.96), ((0.999, 0.001), (0.9, 0.1), 0.022, 8.90)],
)
def test_k3_can_be_noisier_than_k1(policy, ref, var_k1, var_k3):
    policy, ref = tensor(*policy), tensor(*ref)
    for f, expected in ((k1, var_k1), (k3, var_k3)):
        x = f(policy.log(), ref.log())
        variance = ((policy * x**2).sum() - (policy * x).sum() ** 2).item()
        assert variance == pytest.approx(expected, abs=6e-3)


def test_second_moments_of_the_multipliers():
    policy, ref = tensor(0.99, 0.01), tensor(0.5, 0.5)
    slopes = {}
    for name, f in ESTIMATORS.items():
        logp = policy.log().requires_grad_()
        (slopes[name],) = torch.autograd.grad(f(logp, ref.log()).sum(), logp)
    assert (policy * slopes["k3"] ** 2).sum().item() == pytest.approx(24.25, abs=5e-3)
    assert (policy * slopes["k2"] ** 2).sum().item() == pytest.approx(0.615, abs=5e-4)
    assert slopes["k3"].min().item() == pytest.approx(-49, rel=1e-12)


def test_expected_gradients_over_three_tokens():
    reverse, forward = tensor(0.140733, -0.124698, -0.016035), tensor(0.11, -0.11, 0.0)
    ref = REF.log()

    def expected(f):
        return logit_gradient(lambda logp: (POLICY * f(logp, ref)).sum())

    assert torch.allclose(expected(k1), torch.zeros(3, dtype=F64), atol=1e-15)
    assert torch.allclose(expected(k2), reverse, atol=5e-7)
    assert torch.allclose(expected(k3), forward, atol=1e-15)
    assert torch.allclose(logit_gradient(lambda logp: kl_divergence(logp, ref)), reverse, atol=5e-7)
    assert torch.allclose(logit_gradient(lambda logp: kl_divergence(ref, logp)), forward, atol=1e-15)


def test_expected_gradients_on_old_data():
    ref = REF.log()
    plain = logit_gradient(lambda logp: (SAMPLER * k3(logp, ref)).sum())
    fixed = logit_gradient(lambda logp: (SAMPLER * (POLICY / SAMPLER) * k3(logp, ref)).sum())
    moving = logit_gradient(lambda logp: (SAMPLER * (logp.exp() / SAMPLER) * k3(logp, ref)).sum())
    assert torch.allclose(plain, tensor(0.103208, -0.107583, 0.004375), atol=5e-7)
    assert torch.allclose(fixed, tensor(0.11, -0.11, 0), atol=1e-15)
    assert torch.allclose(moving, tensor(0.140733, -0.124698, -0.016035), atol=5e-7)


def test_expected_gradients_of_two_actions():
    theta = tensor(0.3).requires_grad_()
    ref = tensor(0.7, 0.3).log()
    logits = torch.cat([theta, tensor(0.0)])
    logp = logits.log_softmax(-1)
    p = logp.detach().exp()
    for f, expected in ((k1, 0.0), (k2, -0.13379), (k3, -0.12556)):
        (gradient,) = torch.autograd.grad((p * f(logp, ref)).sum(), theta, retain_graph=True)
        assert gradient.item() == pytest.approx(expected, abs=5e-6)
    (exact,) = torch.autograd.grad(kl_divergence(logits, ref), theta)
    assert exact.item() == pytest.approx(-0.13379, abs=5e-6)


# The exact KL


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=6), st.floats(-50, 50))
def test_exact_kl_agrees_with_the_sum_and_ignores_a_shift_of_the_logits(pairs, shift):
    a, b = tensor(*pairs).T
    kl = kl_divergence(a, b)
    expected = reference.kl_exact(a.softmax(-1).tolist(), b.softmax(-1).tolist())
    assert kl.item() == pytest.approx(expected, abs=1e-13)
    assert kl_divergence(a + shift, b).item() == pytest.approx(expected, abs=1e-13)


def test_exact_kl_of_three_tokens_in_both_directions():
    assert kl_divergence(POLICY.log(), REF.log()).item() == pytest.approx(0.0534509, abs=5e-8)
    assert kl_divergence(REF.log(), POLICY.log()).item() == pytest.approx(0.0454923, abs=5e-8)


def test_exact_kl_where_a_token_has_probability_zero():
    half, all_three = tensor(0.0, 0.0, -math.inf), tensor(0.0, 0.0, 0.0)
    assert kl_divergence(half, all_three).item() == pytest.approx(math.log(1.5), rel=1e-14)
    assert kl_divergence(half, half).item() == 0
    assert kl_divergence(all_three, half).item() == math.inf
    logits = half.clone().requires_grad_()
    kl_divergence(logits, tensor(0.5, 0.0, 0.0)).backward()
    assert torch.isfinite(logits.grad).all() and logits.grad[2] == 0
    logits = half.clone().requires_grad_()
    kl_divergence(logits, tensor(0.5, 0.0, -math.inf)).backward()
    assert torch.isfinite(logits.grad).all()


def test_exact_kl_keeps_leading_axes_and_both_gradients():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 3, 4, 5, generator=generator, dtype=F64)
    kl = kl_divergence(a, b)
    assert kl.shape == (3, 4)
    assert torch.allclose(kl[1, 2], kl_divergence(a[1, 2], b[1, 2]))
    assert torch.autograd.gradcheck(kl_divergence, (a[0, :2].requires_grad_(), b[0, :2].requires_grad_()))
    assert torch.equal(kl_divergence(a.half(), b.half()), kl_divergence(a.half().float(), b.half().float()))


@pytest.mark.bad_input
def test_exact_kl_refuses_bad_input():
    with pytest.raises(ValueError, match=r"ref_logits has shape \(3,\) but logits has \(2, 3\)"):
        kl_divergence(torch.zeros(2, 3), torch.zeros(3))
    with pytest.raises(ValueError, match="vocabulary axis, got a scalar"):
        kl_divergence(torch.tensor(0.0), torch.tensor(0.0))
    with pytest.raises(ValueError, match="logits must be a floating-point tensor"):
        kl_divergence(torch.zeros(3, dtype=torch.int64), torch.zeros(3))
    with pytest.raises(ValueError, match="ref_logits must be a floating-point tensor"):
        kl_divergence(torch.zeros(3), torch.zeros(3, dtype=torch.int64))


# The KL inside the reward


@pytest.mark.parametrize("lam, first", [(1.0, 0.430685), (0.95, 0.415685), (0.0, 0.130685)])
def test_kl_in_the_reward_of_the_first_answer(lam, first):
    logp, ref = tensor(math.log(0.22), -1.0), tensor(math.log(0.11), -1.0)
    r = kl_in_reward(tensor(1.0), k1(logp, ref).unsqueeze(0), torch.ones(1, 2), beta=0.1)
    assert r[0].tolist() == pytest.approx([-0.069315, 1.0], abs=5e-7)
    values = torch.tensor([[0.5, 0.7]], dtype=F64)
    a = gae(r, values, lam=lam)
    assert a[0].tolist() == pytest.approx([first, 0.3], abs=5e-7)
    assert (gae(r, values, lam=1.0) + values)[0].tolist() == pytest.approx([0.930685, 1.0], abs=5e-7)


def test_the_score_comes_at_the_last_valid_token():
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 0]])
    kl = torch.full((4, 3), 2.0, dtype=F64)
    r = kl_in_reward(tensor(5.0, 6.0, 7.0, 0.0), kl, mask, beta=0.25)
    expected = [[-0.5, -0.5, 4.5], [5.5, 0, 0], [0, 6.5, 0], [0, 0, 0]]
    assert torch.equal(r, torch.tensor(expected, dtype=F64))


@pytest.mark.parametrize("garbage", GARBAGE)
def test_masked_tokens_cannot_enter_the_reward(garbage):
    mask = torch.tensor([[1, 1, 0]])
    kl = torch.tensor([[0.5, -0.25, garbage]], requires_grad=True)
    r = kl_in_reward(torch.tensor([1.0], requires_grad=True), kl, mask, beta=2.0)
    assert torch.equal(r, torch.tensor([[-1.0, 1.5, 0]])) and not r.requires_grad


def test_types_of_the_reward_with_kl():
    kl, mask = torch.tensor([[0.1, 0.3]]), torch.ones(1, 2)
    for rewards in (torch.tensor([1]), torch.tensor([True]), torch.tensor([1.0]).bfloat16()):
        assert torch.equal(
            kl_in_reward(rewards, kl, mask, beta=0.1), kl_in_reward(rewards.float(), kl, mask, beta=0.1)
        )
    assert torch.equal(
        kl_in_reward(torch.ones(1), kl.half(), mask, beta=0.1),
        kl_in_reward(torch.ones(1), kl.half().float(), mask, beta=0.1),
    )
    third = torch.tensor([1 / 3], dtype=F64)
    assert kl_in_reward(third, kl, mask, beta=0.0)[0, 1].item() == 1 / 3


@pytest.mark.bad_input
@pytest.mark.parametrize("arguments, words", [
    ({"rewards": torch.zeros(3)}, r"rewards must hold one score an answer, shape \(2,\), got \(3,\)"),
    ({"rewards": torch.zeros(2, 3)}, r"shape \(2,\), got \(2, 3\)"),
    ({"rewards": torch.tensor([1.0, math.nan])}, "rewards holds nan.*reward function"),
    ({"rewards": [1.0, 0.0]}, "rewards must be a torch.Tensor, got list"),
    ({"rewards": torch.tensor([1j, 0])}, "rewards must be real numbers"),
    ({"per_token_kl": torch.zeros(2)}, r"per_token_kl must have shape \(N, T\), got \(2,\)"),
    ({"per_token_kl": torch.full((2, 3), math.inf)}, "per_token_kl holds inf.*log-probabilities"),
    ({"per_token_kl": torch.zeros(2, 3, dtype=torch.int64)}, "per_token_kl must be a floating-point"),
    ({"completion_mask": torch.ones(2)}, r"completion_mask has shape \(2,\)"),
    ({"completion_mask": torch.tensor([[1, 1, 1], [0, 0, 0]])}, "without a valid token has a score"),
    ({"beta": -0.1}, "beta must be >= 0 and finite, got -0.1"),
    ({"beta": math.nan}, "beta must be >= 0 and finite, got nan"),
    ({"beta": math.inf}, "beta must be >= 0 and finite, got inf"),
])  # fmt: skip
def test_kl_in_reward_refuses_bad_input(arguments, words):
    given = {"rewards": torch.ones(2), "per_token_kl": torch.zeros(2, 3), "completion_mask": torch.ones(2, 3)}
    with pytest.raises(ValueError, match=words):
        kl_in_reward(**{**given, "beta": 0.1, **arguments})


def test_annotations_are_checked_when_asked_for(request):
    """Python's own run: the library's ValueError. With --typecheck: jaxtyping's error, before it."""
    error = jaxtyping.TypeCheckError if request.config.getoption("typecheck") else ValueError
    with pytest.raises(error):
        k3(torch.zeros(2), torch.zeros(3))
