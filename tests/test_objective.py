import copy
import itertools
import math
import pickle
from dataclasses import FrozenInstanceError, asdict, replace

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lib import AGGREGATIONS, LossOutput, Objective, group_advantages, grpo_loss

F64 = torch.float64
GARBAGE = [math.nan, math.inf, -math.inf, 1e30, -1e30, 1.0]
L = 8  # the longest answer allowed

seeds = st.integers(0, 2**32 - 1)
objectives = st.builds(
    Objective,
    epsilon=st.sampled_from([0.1, 0.2, 0.5, 1.0, math.inf]),
    epsilon_high=st.sampled_from([None, 0.05, 0.28]),
    beta=st.sampled_from([0.0, 0.1, 2.0]),
    kl_estimator=st.sampled_from(["k1", "k2", "k3"]),
    importance_sampling_level=st.sampled_from(["token", "sequence"]),
    aggregation=st.sampled_from(AGGREGATIONS),
    max_completion_length=st.just(L),
    surrogate=st.sampled_from(["clip", "cispo"]),
)


def tensor(*rows):
    return torch.tensor(rows, dtype=F64)


def random_batch(seed, n=4, t=4, dtype=F64):
    """new, old, ref (N, T), advantages (N,), mask (N, T): about a third of the tokens masked, anywhere."""
    generator = torch.Generator().manual_seed(seed)
    old = -3 * torch.rand(n, t, generator=generator, dtype=F64)
    new, ref = old + 0.5 * torch.randn(2, n, t, generator=generator, dtype=F64)
    advantages = torch.randn(n, generator=generator, dtype=F64)
    mask = torch.rand(n, t, generator=generator) < 0.7
    return new.to(dtype), old.to(dtype), ref.to(dtype), advantages.to(dtype), mask


def loss_and_gradient(new, advantages, mask, old, ref=None, **arguments):
    new = new.clone().requires_grad_()
    out = grpo_loss(new, advantages, mask, old_per_token_logps=old, ref_per_token_logps=ref, **arguments)
    out.loss.backward()
    return out.loss.detach(), new.grad, out.metrics


def normalizer_of(mask, aggregation):
    return int(mask.sum()) if aggregation == "token-mean" else int(mask.any(1).sum())


# The running example

ADVANTAGES = torch.tensor([1.0, 1, -1, -1], dtype=F64)
OLD = torch.full((4, 2), reference.OLD, dtype=F64).log()
NEW = OLD + tensor(*reference.RATIOS).log()
REF = NEW.clone()
REF[0, 0] = math.log(reference.REFERENCE)
MASK = torch.ones(4, 2)


def test_task_objective_and_token_gradients_of_the_running_example():
    loss, gradient, _ = loss_and_gradient(NEW, ADVANTAGES, MASK, OLD)
    assert -loss.item() == pytest.approx(1 / 80, rel=1e-12)
    expected = tensor([0.1375, 0], [0.1125, 0.125], [-0.1125, 0], [-0.1375, -0.1625])
    assert torch.allclose(-gradient, expected, rtol=1e-13, atol=0)
    assert -gradient.sum().item() == pytest.approx(-0.0375, rel=1e-12)


def test_task_objective_of_the_running_example_without_clipping():
    loss, _, _ = loss_and_gradient(NEW, ADVANTAGES, MASK, OLD, objective=Objective(epsilon=math.inf))
    assert -loss.item() == pytest.approx(0.0375, rel=1e-12)


def test_full_objective_of_the_running_example():
    loss, gradient, metrics = loss_and_gradient(
        NEW, ADVANTAGES, MASK, OLD, REF, objective=Objective(beta=reference.BETA)
    )
    assert loss.item() == pytest.approx(-0.010085660, abs=5e-10)
    assert loss.item() == pytest.approx(-(1 / 80 - 0.1 * (math.log(2) - 0.5) / 8), rel=1e-12)
    assert -gradient[0, 0].item() == pytest.approx(0.13125, rel=1e-12)
    assert torch.allclose(
        -gradient[1:], tensor([0.1125, 0.125], [-0.1125, 0], [-0.1375, -0.1625]), rtol=1e-13
    )
    assert metrics["kl"].item() == pytest.approx((math.log(2) - 0.5) / 8, rel=1e-12)
    k2 = Objective(beta=reference.BETA, kl_estimator="k2")
    _, gradient, _ = loss_and_gradient(NEW, ADVANTAGES, MASK, OLD, REF, objective=k2)
    assert -gradient[0, 0].item() == pytest.approx(0.1375 - 0.008664, abs=5e-7)


def test_one_token_with_its_kl_term():
    new = tensor([math.log(0.22)])
    loss, gradient, _ = loss_and_gradient(
        new, tensor(1.0), torch.ones(1, 1), tensor([math.log(0.20)]), tensor([math.log(0.11)]),
        objective=Objective(beta=0.1),
    )  # fmt: skip
    assert -loss.item() == pytest.approx(1.0806852819, abs=5e-11)
    assert -gradient.item() == pytest.approx(1.05, rel=1e-12)


def test_a_clipped_token_still_feels_the_kl():
    ref = NEW.clone()
    ref[0, 1] -= math.log(2)  # current 0.26, reference 0.13
    _, gradient, _ = loss_and_gradient(NEW, ADVANTAGES, MASK, OLD, ref, objective=Objective(beta=0.1))
    assert -gradient[0, 1].item() == pytest.approx(-0.00625, rel=1e-12)


def test_metrics_of_the_running_example():
    metrics = loss_and_gradient(NEW, ADVANTAGES, MASK, OLD, REF)[2]
    assert {name: round(x.item(), 6) for name, x in metrics.items()} == {
        "num_tokens": 8,
        "num_completions": 4,
        "clip_ratio/low_mean": 0.125,
        "clip_ratio/high_mean": 0.125,
        "clip_ratio/region_mean": 0.25,
        "kl": 0.024143,
        "log_ratio_capped": 0,
    }


# Against the equation, written naively


@given(seeds, objectives)
def test_value_and_gradient_agree_with_the_equation(seed, objective):
    new, old, ref, advantages, mask = random_batch(seed)
    loss, gradient, _ = loss_and_gradient(new, advantages, mask, old, ref, objective=objective)
    tables = [x.tolist() for x in (new, old, ref, advantages.unsqueeze(1).expand(4, 4), mask)]
    value, slopes = reference.full_objective(*tables, **asdict(objective))
    assert -loss.item() == pytest.approx(value, rel=1e-11, abs=1e-13)
    assert torch.allclose(-gradient, tensor(*slopes), rtol=1e-10, atol=1e-13)


@given(seeds, st.sampled_from(["token", "sequence"]), st.sampled_from(AGGREGATIONS))
def test_a_two_sided_clip_agrees_with_the_equation(seed, level, aggregation):
    new, old, ref, advantages, mask = random_batch(seed)
    settings = {"delta": 1.5, "importance_sampling_level": level, "aggregation": aggregation,
                "max_completion_length": L}  # fmt: skip
    loss, gradient, _ = loss_and_gradient(new, advantages, mask, old, objective=Objective(**settings))
    tables = [x.tolist() for x in (new, old, ref, advantages.unsqueeze(1).expand(4, 4), mask)]
    value, slopes = reference.full_objective(*tables, **settings)
    assert -loss.item() == pytest.approx(value, rel=1e-11, abs=1e-13)
    assert torch.allclose(-gradient, tensor(*slopes), rtol=1e-10, atol=1e-13)


@given(seeds, objectives)
def test_one_advantage_a_token_agrees_with_the_equation(seed, objective):
    new, old, ref, _, mask = random_batch(seed)
    advantages = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed + 1), dtype=F64)
    loss, gradient, _ = loss_and_gradient(new, advantages, mask, old, ref, objective=objective)
    tables = [x.tolist() for x in (new, old, ref, advantages, mask)]
    settings = asdict(objective)
    value, slopes = reference.full_objective(*tables, **settings)
    assert -loss.item() == pytest.approx(value, rel=1e-11, abs=1e-13)
    assert torch.allclose(-gradient, tensor(*slopes), rtol=1e-10, atol=1e-13)


# log-ratios far enough from the edges 0.8 and 1.2, for tokens and for their mean, that a small step crosses none
STEPS = tensor([0.5, 0.4, -0.9], [-0.1, 0.05, 0.1], [-0.6, -0.5, 0.3], [0.05, 0.4, 0.6])


@pytest.mark.parametrize("kl_estimator", [None, "k1", "k2", "k3"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("delta", [None, 1.4])
def test_gradient_of_the_loss_by_finite_differences(kl_estimator, aggregation, level, delta):
    _, old, ref, _, _ = random_batch(0, 4, 3)
    mask = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 1]])
    objective = Objective(
        delta=delta, beta=0.0 if kl_estimator is None else 0.3, kl_estimator=kl_estimator or "k3",
        importance_sampling_level=level, aggregation=aggregation, max_completion_length=L,
    )  # fmt: skip
    for sign in (1, -1):
        advantages = sign * torch.tensor([1.0, -0.5, -2.0, 0.7], dtype=F64)
        assert torch.autograd.gradcheck(
            lambda x, a=advantages: (
                grpo_loss(
                    x, a, mask, old_per_token_logps=old, ref_per_token_logps=ref, objective=objective
                ).loss
            ),
            (old + STEPS).requires_grad_(),
        )


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_cispo_is_a_constant_weight_times_the_log_probability(level):
    new, old, _, _, mask = random_batch(5)
    advantages = torch.tensor([1.0, -1, 2, 0.5], dtype=F64)
    objective = Objective(surrogate="cispo", importance_sampling_level=level, epsilon_high=0.05)
    _, gradient, metrics = loss_and_gradient(new, advantages, mask, old, objective=objective)
    step = torch.where(mask, new - old, 0)
    if level == "sequence":
        step = (step.sum(1) / mask.sum(1)).unsqueeze(1).expand(4, 4)
    weight = step.exp().clamp(max=1.05) * advantages.unsqueeze(1)
    share = mask / mask.sum(1, keepdim=True) / 4
    assert torch.allclose(-gradient, weight * share, rtol=1e-12)
    above = (mask & (step.exp() > 1.05) & (advantages.unsqueeze(1) > 0)).sum() / mask.sum()
    assert above > 0 and metrics["cispo_clip_ratio"].item() == pytest.approx(above.item(), rel=1e-6)
    assert not any(name.startswith("clip_ratio") for name in metrics)


# On-policy


@given(seeds, objectives)
def test_no_old_policy_means_a_ratio_of_one_with_the_current_policys_gradient(seed, objective):
    new, _, ref, advantages, mask = random_batch(seed)
    on_policy = loss_and_gradient(new, advantages, mask, None, ref, objective=objective)
    given_old = loss_and_gradient(new, advantages, mask, new, ref, objective=objective)
    assert torch.equal(on_policy[0], given_old[0]) and torch.equal(on_policy[1], given_old[1])


def test_first_step_weighs_each_token_by_advantage_over_k_times_length():
    new, _, _, advantages, mask = random_batch(1)
    _, gradient, _ = loss_and_gradient(new, advantages, mask, None)
    expected = advantages.unsqueeze(1) * mask / mask.sum(1, keepdim=True) / 4
    assert torch.allclose(-gradient, expected, rtol=1e-14)


def test_loss_zero_with_a_gradient_and_token_mean_not_zero():
    new, a = torch.zeros(2, 4, dtype=F64), torch.tensor([1.0, -1.0], dtype=F64)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    loss, gradient, _ = loss_and_gradient(new, a, mask, None)
    assert loss.item() == 0 and not math.copysign(1, loss.item()) < 0
    assert torch.equal(gradient, tensor([-0.25, -0.25, 0, 0], [0.125] * 4))
    loss, gradient, _ = loss_and_gradient(new, a, mask, None, objective=Objective(aggregation="token-mean"))
    assert loss.item() == pytest.approx(1 / 3, rel=1e-14)
    assert torch.allclose(gradient, tensor([-1 / 6, -1 / 6, 0, 0], [1 / 6] * 4))
    ref = new - 1
    beta = Objective(beta=0.5)
    loss, _, metrics = loss_and_gradient(new, a, mask, None, ref, objective=beta)
    assert loss.item() == pytest.approx(0.5 * math.exp(-1), rel=1e-14)
    assert metrics["kl"].item() == pytest.approx(math.exp(-1), rel=1e-14)


def test_length_bias_of_each_aggregation():
    new, a = torch.zeros(2, 4, dtype=F64), torch.tensor([-1.0, -1.0], dtype=F64)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    for aggregation, short, long in (
        ("seq-mean-token-mean", 0.25, 0.125),
        ("token-mean", 1 / 6, 1 / 6),
        ("seq-mean-token-sum-norm", 1 / 16, 1 / 16),
    ):
        objective = Objective(aggregation=aggregation, max_completion_length=8)
        _, gradient, _ = loss_and_gradient(new, a, mask, None, objective=objective)
        assert torch.allclose(gradient[:, 0], tensor(short, long)), aggregation
        loss, gradient, _ = loss_and_gradient(
            new, torch.tensor([1.0, -1.0], dtype=F64), mask, None, objective=objective
        )
        if aggregation == "seq-mean-token-sum-norm":
            assert loss.item() == 0.125
            assert torch.equal(gradient, tensor([-1 / 16, -1 / 16, 0, 0], [1 / 16] * 4))


def test_two_updates_on_one_batch_with_frozen_old_log_probabilities():
    theta = torch.tensor(0.0, dtype=F64, requires_grad=True)
    advantages, mask, old = torch.ones(1, dtype=F64), torch.ones(1, 1), None
    seen = []
    for _ in range(2):
        new = torch.stack([theta, torch.zeros_like(theta)]).log_softmax(0)[:1].reshape(1, 1)
        old = new.detach() if old is None else old
        loss, metrics = grpo_loss(new, advantages, mask, old_per_token_logps=old)
        (gradient,) = torch.autograd.grad(loss, theta)
        seen += [(loss.item(), gradient.item(), metrics["clip_ratio/high_mean"].item())]
        theta = (theta - gradient).detach().requires_grad_()
    assert seen[0] == pytest.approx((-1, -0.5, 0), abs=1e-15)
    assert seen[1] == pytest.approx((-1.2, 0, 1), abs=1e-15)
    assert (new.exp() / old.exp()).item() == pytest.approx(1.244919, abs=5e-7)


# Negative advantages, silent groups


def test_a_negative_advantage_is_bounded_by_delta_only():
    new, old = tensor([math.log(0.5)]), tensor([math.log(0.1)])
    for delta, loss, slope in ((None, 5, 5), (3.0, 3, 0)):
        found, gradient, _metrics = loss_and_gradient(
            new, tensor(-1.0), torch.ones(1, 1), old, objective=Objective(delta=delta)
        )
        assert found.item() == pytest.approx(loss, rel=1e-14)
        assert gradient.item() == pytest.approx(slope, rel=1e-14)


def test_a_silent_group_still_feels_the_kl():
    new, ref = torch.full((2, 1), -1.0, dtype=F64), torch.full((2, 1), -2.0, dtype=F64)
    loss, gradient, _ = loss_and_gradient(
        new, torch.zeros(2), torch.ones(2, 1), None, ref, objective=Objective(beta=0.1)
    )
    assert loss.item() == pytest.approx(0.036788, abs=5e-7)
    assert gradient[:, 0].tolist() == pytest.approx([0.031606, 0.031606], abs=5e-8)


def test_without_kl_a_silent_group_gives_no_loss_and_no_gradient():
    r = torch.tensor([[0.0, 0.0], [10.0, 10.0]])
    new, old, _, _, mask = random_batch(0)
    loss, gradient, _ = loss_and_gradient(new, group_advantages(r).reshape(-1), mask, old)
    assert loss.item() == 0 and not gradient.any()


def test_tokens_of_silent_groups_count_in_the_token_mean():
    new, a = torch.zeros(4, 4, dtype=F64), torch.tensor([1.0, -1.0, 0, 0], dtype=F64)
    mask = torch.tensor([[1, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]])
    _, gradient, _ = loss_and_gradient(new, a, mask, None, objective=Objective(aggregation="token-mean"))
    assert gradient[0, 0].item() == pytest.approx(-0.1, rel=1e-14)


def test_kl_gradient_of_one_token():
    new, ref = tensor([-1.0]), tensor([-2.0])
    loss, gradient, _ = loss_and_gradient(
        new, tensor(0.0), torch.ones(1, 1), new, ref, objective=Objective(beta=1.0)
    )
    assert loss.item() == pytest.approx(0.36788, abs=5e-6)
    assert gradient.item() == pytest.approx(0.63212, abs=5e-6)


# Properties


@pytest.mark.parametrize("garbage", GARBAGE)
@given(seed=seeds, objective=objectives)
def test_masked_positions_reach_neither_loss_nor_gradient_nor_metrics(garbage, seed, objective):
    new, old, ref, advantages, mask = random_batch(seed)
    mask[0] = False
    results = []
    for fill in (0.0, garbage):
        n, o, r = (torch.where(mask, x, fill) for x in (new, old, ref))
        a = torch.where(mask.any(1), advantages, fill)
        results += [loss_and_gradient(n, a, mask, o, r, objective=objective)]
        per_token = torch.where(mask, a.unsqueeze(1), fill)
        results += [loss_and_gradient(n, per_token, mask, o, r, objective=objective)]
        results += [loss_and_gradient(n, a, mask, None, r, objective=objective)]
        assert not results[-1][1][~mask].any()
    for clean, poisoned in zip(results[:3], results[3:], strict=True):
        assert torch.equal(clean[0], poisoned[0]) and torch.equal(clean[1], poisoned[1])
        assert clean[2] == poisoned[2]


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("surrogate", ["clip", "cispo"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_masked_positions_make_no_nan_inside_the_backward_pass(surrogate, level, garbage):
    new, old, ref, advantages, mask = random_batch(0)
    new, old, ref, advantages = (
        torch.where(mask, x, garbage) for x in (new, old, ref, advantages.unsqueeze(1).expand(4, 4))
    )
    objective = Objective(beta=0.1, surrogate=surrogate, importance_sampling_level=level)
    with torch.autograd.detect_anomaly():
        _, gradient, _ = loss_and_gradient(new, advantages, mask, old, ref, objective=objective)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("advantage, loss, gradient", [(1.0, -1, [-1.0, 0]), (-1.0, 1, [1.0, 0])])
def test_a_huge_ratio_behind_the_mask_does_not_poison_the_gradient(advantage, loss, gradient):
    found, slopes, _ = loss_and_gradient(
        torch.tensor([[-1.0, 0.0]]), torch.tensor([advantage]), torch.tensor([[1, 0]]),
        torch.tensor([[-1.0, -200.0]]),
    )  # fmt: skip
    assert found.item() == loss and torch.equal(slopes, torch.tensor([gradient]))


@given(seeds, objectives, st.sets(st.integers(1, 3)))
def test_every_split_into_micro_batches_gives_the_same_loss_gradient_and_metrics(seed, objective, cuts):
    new, old, ref, advantages, mask = random_batch(seed)
    whole, gradient, metrics = loss_and_gradient(new, advantages, mask, old, ref, objective=objective)
    normalizer = normalizer_of(mask, objective.aggregation)
    edges = [0, *sorted(cuts), 4]
    parts = [
        loss_and_gradient(
            *(x[a:b] for x in (new, advantages, mask, old, ref)), objective=objective, normalizer=normalizer
        )
        for a, b in itertools.pairwise(edges)
    ]
    assert sum(part[0] for part in parts).item() == pytest.approx(whole.item(), rel=1e-11, abs=1e-13)
    assert torch.allclose(torch.cat([part[1] for part in parts]), gradient, rtol=1e-13, atol=0)
    tokens = sum(part[2]["num_tokens"] for part in parts)
    assert tokens == metrics["num_tokens"]
    assert sum(part[2]["num_completions"] for part in parts) == metrics["num_completions"]
    for name in metrics.keys() - {"num_tokens", "num_completions"}:
        mean = sum(part[2][name] * part[2]["num_tokens"] for part in parts) / max(1, tokens)
        assert mean.item() == pytest.approx(metrics[name].item(), rel=1e-6, abs=1e-12), name


@given(seeds, objectives)
def test_order_of_the_answers_does_not_matter(seed, objective):
    new, old, ref, advantages, mask = random_batch(seed)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    loss, gradient, _ = loss_and_gradient(new, advantages, mask, old, ref, objective=objective)
    shuffled = loss_and_gradient(*(x[order] for x in (new, advantages, mask, old, ref)), objective=objective)
    assert shuffled[0].item() == pytest.approx(loss.item(), rel=1e-11, abs=1e-13)
    assert torch.allclose(shuffled[1], gradient[order], rtol=1e-13, atol=0)


@given(seeds, objectives)
def test_padding_more_changes_nothing(seed, objective):
    new, old, ref, advantages, mask = random_batch(seed)
    loss, gradient, _ = loss_and_gradient(new, advantages, mask, old, ref, objective=objective)
    wide = [torch.nn.functional.pad(x, (0, 3)) for x in (new, old, ref)]
    padded = loss_and_gradient(
        wide[0], advantages, torch.nn.functional.pad(mask, (0, 3)), wide[1], wide[2], objective=objective
    )
    assert padded[0].item() == pytest.approx(loss.item(), rel=1e-11, abs=1e-13)
    assert torch.allclose(padded[1][:, :4], gradient, rtol=1e-13, atol=0)


@given(seeds, st.sampled_from([0.1, 0.2, 0.5]))
def test_the_task_objective_of_a_group_is_at_most_epsilon(seed, epsilon):
    """T6: J_task <= ε · mean |A| <= ε, because the advantages of a group sum to 0."""
    new, old, _, _, _ = random_batch(seed)
    rewards = torch.randn(1, 4, generator=torch.Generator().manual_seed(seed), dtype=F64)
    advantages = group_advantages(rewards, eps=0).reshape(-1)
    loss, _, _ = loss_and_gradient(
        new, advantages, torch.ones(4, 4), old, objective=Objective(epsilon=epsilon)
    )
    assert -loss.item() <= epsilon * advantages.abs().mean().item() + 1e-12 <= epsilon + 2e-12


@given(seeds, objectives)
def test_the_clipped_objective_is_positively_homogeneous_in_the_advantages(seed, objective):
    new, old, _, advantages, mask = random_batch(seed)
    objective = replace(objective, beta=0.0)
    loss, gradient, _ = loss_and_gradient(new, advantages, mask, old, objective=objective)
    scaled = loss_and_gradient(new, 0.75 * advantages, mask, old, objective=objective)
    assert scaled[0].item() == pytest.approx(0.75 * loss.item(), rel=1e-12, abs=1e-14)
    assert torch.allclose(scaled[1], 0.75 * gradient, rtol=1e-12, atol=0)


# Constants, types, extremes


@pytest.mark.parametrize("surrogate", ["clip", "cispo"])
@pytest.mark.parametrize("kl_estimator", ["k1", "k2", "k3"])
def test_gradients_flow_through_the_current_policy_alone(surrogate, kl_estimator):
    new, old, ref, advantages, mask = random_batch(0)
    leaves = [x.requires_grad_() for x in (new, old, ref, advantages)]
    objective = Objective(beta=0.1, surrogate=surrogate, kl_estimator=kl_estimator)
    loss, metrics = grpo_loss(
        new, advantages, mask, old_per_token_logps=old, ref_per_token_logps=ref, objective=objective
    )
    loss.backward()
    assert [x.grad is None for x in leaves] == [False, True, True, True]
    assert not any(x.requires_grad for x in metrics.values())
    assert all(x.ndim == 0 for x in metrics.values())


def test_the_reference_is_measured_but_does_not_act_when_beta_is_zero():
    new, old, ref, advantages, mask = random_batch(0)
    plain = loss_and_gradient(new, advantages, mask, old)
    measured = loss_and_gradient(new, advantages, mask, old, ref)
    assert torch.equal(plain[0], measured[0]) and torch.equal(plain[1], measured[1])
    assert "kl" not in plain[2] and measured[2]["kl"] > 0
    k1 = loss_and_gradient(new, advantages, mask, old, ref, objective=Objective(kl_estimator="k1"))[2]["kl"]
    assert k1.item() == pytest.approx((new - ref)[mask].mean().item(), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@given(seed=seeds, objective=objectives)
def test_half_precision_is_computed_in_float32(dtype, seed, objective):
    *floats, mask = random_batch(seed, dtype=dtype)
    new, old, ref, advantages = floats
    half = loss_and_gradient(new, advantages, mask, old, ref, objective=objective)
    new, old, ref, advantages = (x.float() for x in floats)
    full = loss_and_gradient(new, advantages, mask, old, ref, objective=objective)
    assert half[0].dtype == torch.float32 and torch.equal(half[0], full[0])
    assert half[1].dtype == dtype and torch.equal(half[1], full[1].to(dtype))
    assert half[2] == full[2]


def test_float64_stays_float64():
    new, old, ref, advantages, mask = random_batch(0)
    loss, _, metrics = loss_and_gradient(new, advantages, mask, old, ref)
    assert loss.dtype == F64 and metrics["kl"].dtype == F64


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32, torch.bfloat16])
def test_masks_and_advantages_of_other_types(dtype):
    new, old, ref, _, mask = random_batch(0)
    advantages = torch.tensor([1, 0, 2, 1])
    loss = loss_and_gradient(new, advantages.double(), mask, old, ref)[0]
    assert torch.equal(loss_and_gradient(new, advantages, mask.to(dtype), old, ref)[0], loss)


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (2, 0)])
@pytest.mark.parametrize("surrogate", ["clip", "cispo"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_nothing_valid_gives_loss_zero_with_a_graph(shape, surrogate, level, aggregation):
    objective = Objective(
        beta=0.1, surrogate=surrogate, importance_sampling_level=level, aggregation=aggregation,
        max_completion_length=L,
    )  # fmt: skip
    garbage = torch.full(shape, math.nan)
    for old in (None, garbage):
        loss, gradient, metrics = loss_and_gradient(
            garbage, torch.full(shape[:1], math.nan), torch.zeros(shape), old, garbage, objective=objective
        )
        assert loss.item() == 0 and math.copysign(1, loss.item()) == 1
        assert torch.equal(gradient, torch.zeros(shape))
        assert all(x.item() == 0 for x in metrics.values())


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_an_extreme_ratio_on_a_valid_token_stays_finite_and_is_reported(level, advantage):
    new = torch.tensor([[-1.0, -1.0], [-1.0, -1.0]])
    old = torch.tensor([[-500.0, -900.0], [-1.0, -1.0]])
    loss, gradient, metrics = loss_and_gradient(
        new, torch.tensor([advantage, 1.0]), torch.ones(2, 2), old, new - 800,
        objective=Objective(importance_sampling_level=level, beta=0.1),
    )  # fmt: skip
    assert torch.isfinite(loss) and torch.isfinite(gradient).all()
    assert metrics["log_ratio_capped"].item() == 0.5
    assert not gradient[0, 0] < 0


def test_the_share_of_capped_tokens_counts_what_is_really_capped():
    new, old = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-26.0, -1.0]])
    arguments = {"advantages": torch.ones(1), "mask": torch.ones(1, 2)}

    def capped(old, ref, **settings):
        return loss_and_gradient(new, old=old, ref=ref, objective=Objective(**settings), **arguments)[2][
            "log_ratio_capped"
        ].item()

    assert capped(old, None) == 0.5
    assert capped(old, None, importance_sampling_level="sequence") == 0  # the mean log-ratio is 12.5
    far = torch.tensor([[-1.0, 25.0]])
    assert capped(new, far, beta=0.1) == 0.5
    assert capped(old, far, beta=0.1) == 1
    assert capped(new, far, beta=0.1, kl_estimator="k2") == 0
    assert capped(new, torch.tensor([[-30.0, -30.0]]), beta=0.1) == 0


def test_log_probabilities_made_in_inference_mode_can_be_used():
    new = random_batch(0)[0].requires_grad_()
    with torch.inference_mode():
        _, old, ref, advantages, mask = random_batch(0)
    loss, _ = grpo_loss(
        new, advantages, mask, old_per_token_logps=old, ref_per_token_logps=ref, objective=Objective(beta=0.1)
    )
    loss.backward()
    _, old, ref, advantages, mask = random_batch(0)
    expected = loss_and_gradient(new.detach(), advantages, mask, old, ref, objective=Objective(beta=0.1))
    assert torch.equal(loss, expected[0]) and torch.equal(new.grad, expected[1])


def test_inputs_need_not_be_contiguous_and_are_left_as_they_were():
    new, old, ref, advantages, mask = random_batch(0)
    expected = loss_and_gradient(new, advantages, mask, old, ref, objective=Objective(beta=0.1))
    strided = [x.T.contiguous().T for x in (new, old, ref, mask)]
    before = [x.clone() for x in strided]
    n, o, r, m = strided
    found = loss_and_gradient(n, advantages, m, o, r, objective=Objective(beta=0.1))
    assert found[0].item() == pytest.approx(expected[0].item(), rel=1e-14)
    assert torch.allclose(found[1], expected[1], rtol=1e-14, atol=0)
    assert all(torch.equal(a, b) for a, b in zip(strided, before, strict=True))


def test_per_sample_gradients_by_double_backward_exist():
    new, old, ref, advantages, mask = random_batch(0)
    new = new.requires_grad_()
    loss = grpo_loss(
        new, advantages, mask, old_per_token_logps=old, ref_per_token_logps=ref, objective=Objective(beta=0.1)
    ).loss
    (gradient,) = torch.autograd.grad(loss, new, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), new)
    assert torch.isfinite(second).all() and second.any()


# Settings


def test_defaults_are_grpo_without_kl():
    assert asdict(Objective()) == {
        "epsilon": 0.2,
        "epsilon_high": None,
        "delta": None,
        "beta": 0.0,
        "kl_estimator": "k3",
        "importance_sampling_level": "token",
        "aggregation": "seq-mean-token-mean",
        "max_completion_length": None,
        "surrogate": "clip",
    }


def test_settings_are_values():
    objective = Objective(beta=0.1)
    assert objective == Objective(beta=0.1) and hash(objective) == hash(Objective(beta=0.1))
    assert objective != Objective(beta=0.2)
    for twin in (copy.deepcopy(objective), pickle.loads(pickle.dumps(objective)), replace(objective)):
        assert twin == objective
    with pytest.raises(FrozenInstanceError):
        objective.beta = 0.2


def test_the_result_has_two_named_parts():
    new, old, _, advantages, mask = random_batch(0)
    out = grpo_loss(new, advantages, mask, old_per_token_logps=old)
    loss, metrics = out
    assert isinstance(out, LossOutput) and out.loss is loss and out.metrics is metrics


@pytest.mark.bad_input
@pytest.mark.parametrize("settings, words", [
    ({"epsilon": 0.0}, "epsilon must be > 0, got 0.0"),
    ({"epsilon": -0.2}, "epsilon must be > 0, got -0.2"),
    ({"epsilon": math.nan}, "epsilon must be > 0, got nan"),
    ({"epsilon_high": -0.28}, "epsilon_high must be > 0, got -0.28"),
    ({"delta": 1.2}, r"delta must be > 1 \+ epsilon_high = 1.2, got 1.2"),
    ({"delta": 1.25, "epsilon_high": 0.28}, r"delta must be > 1 \+ epsilon_high = 1.28"),
    ({"beta": -0.1}, "beta must be >= 0 and finite, got -0.1"),
    ({"beta": math.nan}, "beta must be >= 0 and finite, got nan"),
    ({"beta": math.inf}, "beta must be >= 0 and finite, got inf"),
    ({"kl_estimator": "k4"}, "kl_estimator='k4' is unknown: choose one of 'k1', 'k2', 'k3'"),
    ({"importance_sampling_level": "word"}, "importance_sampling_level='word' is unknown.*'sequence'"),
    ({"aggregation": "mean"}, "aggregation='mean' is unknown.*'token-mean'"),
    ({"surrogate": "ppo"}, "surrogate='ppo' is unknown.*'clip', 'cispo'"),
    ({"max_completion_length": 0}, "max_completion_length must be > 0 tokens, got 0"),
    ({"max_completion_length": math.nan}, "max_completion_length must be > 0 tokens, got nan"),
    ({"surrogate": "cispo", "delta": 3.0}, "delta=3.0 has no meaning with surrogate='cispo'.*drop it"),
])  # fmt: skip
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Objective(**settings)


def test_kl_needs_a_reference():
    new, old, _, advantages, mask = random_batch(0)
    with pytest.raises(ValueError, match=r"beta=0.1 > 0 needs ref_per_token_logps: pass .* or set beta=0"):
        grpo_loss(new, advantages, mask, old_per_token_logps=old, objective=Objective(beta=0.1))


def test_a_constant_length_must_be_given():
    new, old, _, advantages, mask = random_batch(0)
    objective = Objective(aggregation="seq-mean-token-sum-norm")
    with pytest.raises(ValueError, match="divides by max_completion_length, got None: pass the longest"):
        grpo_loss(new, advantages, mask, old_per_token_logps=old, objective=objective)


@pytest.mark.parametrize(
    "name", ["per_token_logps", "old_per_token_logps", "ref_per_token_logps", "advantages"]
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_valid_positions_must_be_finite(name, value, beta):
    new, old, ref, advantages, mask = random_batch(0)
    given = {
        "per_token_logps": new,
        "old_per_token_logps": old,
        "ref_per_token_logps": ref,
        "advantages": advantages.unsqueeze(1).repeat(1, 4),
    }
    mask[1, 2] = True
    given[name] = given[name].clone()
    given[name][1, 2] = value
    with pytest.raises(
        ValueError, match=rf"^{name} holds {value} at position \(1, 2\) \(1 such.*[Cc]heck the"
    ):
        grpo_loss(**given, completion_mask=mask, objective=Objective(beta=beta))


@pytest.mark.bad_input
@pytest.mark.parametrize("arguments, words", [
    ({"per_token_logps": torch.zeros(4)}, r"per_token_logps must have shape \(N, T\), got \(4,\)"),
    ({"per_token_logps": torch.zeros(4, 3, dtype=torch.int64)}, "per_token_logps must be a floating-point"),
    ({"per_token_logps": [[0.0]]}, "per_token_logps must be a torch.Tensor, got list"),
    ({"old_per_token_logps": torch.zeros(4, 1)}, r"old_per_token_logps has shape \(4, 1\).*nothing is broadcast"),
    ({"old_per_token_logps": torch.zeros(4, 3, dtype=torch.int64)}, "old_per_token_logps must be a floating"),
    ({"ref_per_token_logps": torch.zeros(1, 3)}, r"ref_per_token_logps has shape \(1, 3\).*nothing is broadcast"),
    ({"ref_per_token_logps": torch.zeros(4, 3, dtype=torch.int64)}, "ref_per_token_logps must be a floating"),
    ({"completion_mask": torch.ones(4)}, r"completion_mask has shape \(4,\)"),
    ({"completion_mask": torch.full((4, 3), 0.3)}, "completion_mask holds 0.3.* only 0 and 1"),
    ({"completion_mask": None}, "completion_mask must be a torch.Tensor"),
    ({"advantages": torch.ones(2, 2)}, r"advantages have shape \(2, 2\).*\(B, K\) are flattened with"),
    ({"advantages": torch.ones(3)}, r"advantages have shape \(3,\) for tokens of shape \(4, 3\)"),
    ({"advantages": torch.tensor(1.0)}, r"advantages have shape \(\)"),
    ({"advantages": None}, "advantages must be a torch.Tensor, got NoneType"),
    ({"advantages": torch.tensor([1j, 0, 0, 0])}, "advantages must be real numbers"),
    ({"normalizer": -4}, "normalizer=-4.*global number"),
    ({"normalizer": 0}, "normalizer=0.*global number"),
])  # fmt: skip
def test_loss_refuses_bad_input(arguments, words):
    given = {
        "per_token_logps": torch.zeros(4, 3),
        "advantages": torch.ones(4),
        "completion_mask": torch.ones(4, 3),
    }
    with pytest.raises(ValueError, match=words):
        grpo_loss(**{**given, **arguments})


# ------------------------------------------------------------------------------------------ borders, exactly on the line

ONE = torch.ones(1, 1)


def token(ratio: float, advantage: float, **settings) -> dict[str, float]:
    """Metrics of one token with this ratio, whose logarithm is exact where the ratio is a power of e."""
    new = torch.tensor([[ratio]], dtype=torch.float64).log()
    metrics = grpo_loss(
        new,
        torch.tensor([advantage]),
        ONE,
        old_per_token_logps=torch.zeros(1, 1),
        objective=Objective(**settings),
    ).metrics
    return {name: value.item() for name, value in metrics.items()}


def test_clip_fractions_use_the_objectives_own_widths():
    assert token(1.25, 1.0)["clip_ratio/high_mean"] == 1
    assert token(1.25, 1.0, epsilon=0.3)["clip_ratio/high_mean"] == 0
    assert token(1.25, 1.0, epsilon_high=0.3)["clip_ratio/high_mean"] == 0
    assert token(1.25, 1.0, epsilon=0.3, epsilon_high=0.1)["clip_ratio/high_mean"] == 1
    assert token(0.75, -1.0, epsilon=0.3)["clip_ratio/low_mean"] == 0


def test_cispo_counts_what_lies_above_its_cap_and_pushes_up():
    settings = {"surrogate": "cispo", "epsilon": 0.5, "epsilon_high": 0.0}
    with pytest.raises(ValueError, match="epsilon_high"):
        Objective(**settings)
    settings["epsilon_high"] = 1.0  # cap 2
    assert token(2.5, 1.0, **settings)["cispo_clip_ratio"] == 1
    assert token(1.5, 1.0, **settings)["cispo_clip_ratio"] == 0
    assert token(2.5, 0.0, **settings)["cispo_clip_ratio"] == 0
    assert token(2.5, -1.0, **settings)["cispo_clip_ratio"] == 0
    on_the_cap = grpo_loss(
        torch.zeros(1, 1),
        torch.ones(1),
        ONE,
        old_per_token_logps=torch.zeros(1, 1),
        objective=Objective(surrogate="cispo", epsilon=1e-30, epsilon_high=1e-30),  # 1 + 1e-30 is 1
    )
    assert on_the_cap.metrics["cispo_clip_ratio"] == 0


def test_a_log_ratio_that_reaches_the_cap_exactly_is_not_held():
    from grpo_lib.ratios import LOG_RATIO_CAP

    for sign in (1, -1):  # the ratio, then k3
        new = torch.tensor([[sign * LOG_RATIO_CAP]], dtype=torch.float64)
        zeros = torch.zeros(1, 1, dtype=torch.float64)
        old, ref = (zeros, new) if sign > 0 else (new, zeros)
        for more, held in ((0.0, 0), (sign * 1e-9, 1)):
            out = grpo_loss(new + more, torch.ones(1), ONE, old_per_token_logps=old, ref_per_token_logps=ref)
            assert out.metrics["log_ratio_capped"] == held


def test_a_length_of_one_is_a_length():
    objective = Objective(aggregation="seq-mean-token-sum-norm", max_completion_length=1)
    assert grpo_loss(torch.zeros(1, 1), torch.ones(1), ONE, objective=objective).loss == -1
