import copy
import math
import pickle
from dataclasses import FrozenInstanceError

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lib import ALGORITHMS, Objective, algorithm, grpo_loss

F64 = torch.float64
IN_REWARD = ["reinforce_plus_plus", "ppo"]  # rows that keep the KL in the reward
IN_LOSS = [name for name in ALGORITHMS if name not in IN_REWARD]

seeds = st.integers(0, 2**32 - 1)


def tensor(*rows):
    return torch.tensor(rows, dtype=F64)


SCORES = tensor(*reference.SCORES)
NEW = tensor(*reference.RATIOS).log()
VALUES = tensor([0.5, 0.7], [0.5, 0.6], [0.5, 0.4], [0.5, 0.3])
MASK = torch.ones(4, 2)


def run(row, scores=SCORES, new=NEW, old=None, mask=MASK, ref=None, num_generations=4, **arguments):
    """J and its gradient coefficients (what multiplies ∇ log π) by a row of the table."""
    new = new.clone().requires_grad_()
    advantages = row.advantages(scores, num_generations, eps=0, **arguments)
    loss = grpo_loss(
        new, advantages, mask, old_per_token_logps=torch.zeros_like(new) if old is None else old,
        ref_per_token_logps=ref, objective=row.objective,
    ).loss  # fmt: skip
    loss.backward()
    return -loss.item(), -new.grad


# The variants on the running example

GRPO = tensor([0.1375, 0], [0.1125, 0.125], [-0.1125, 0], [-0.1375, -0.1625])


@pytest.mark.parametrize(
    "name, overrides, value, coefficients",
    [
        ("grpo", {}, 0.0125, GRPO),
        ("grpo", {"std": "sample"}, 0.0108253, GRPO * math.sqrt(3) / 2),
        ("dapo", {}, 0.0225, GRPO),
        ("dr_grpo", {"max_completion_length": 2}, 0.00625, GRPO / 2),
        ("dr_grpo", {"max_completion_length": 4}, 0.003125, GRPO / 4),
        ("rloo", {}, 0.0083333, GRPO * 2 / 3),
        (
            "gspo",
            {"epsilon": 0.2, "epsilon_high": 0.2},
            0.0371708,
            tensor([0.14948] * 2, [0.11859] * 2, [0, 0], [-0.14948] * 2),
        ),
        (
            "cispo",
            {},
            None,
            tensor([0.1375, 0.15], [0.1125, 0.125], [-0.1125, -0.0875], [-0.1375, -0.15]),
        ),
    ],
)
def test_variants_on_the_running_example(name, overrides, value, coefficients):
    j, gradient = run(algorithm(name, **overrides))
    if value is not None:
        assert j == pytest.approx(value, abs=5e-8)
    assert torch.allclose(gradient, coefficients, atol=5e-6)


def test_coefficients_of_dr_grpo():
    _, gradient = run(algorithm("dr_grpo", max_completion_length=2))
    expected = tensor([0.06875, 0], [0.05625, 0.0625], [-0.05625, 0], [-0.06875, -0.08125])
    assert torch.allclose(gradient, expected, rtol=1e-13, atol=0)


def test_gspo_with_its_published_range_clips_all_but_two_answers():
    row = ALGORITHMS["gspo"]
    assert (row.objective.epsilon, row.objective.epsilon_high) == (3e-4, 4e-4)
    _, gradient = run(row)
    assert [bool(answer.any()) for answer in gradient] == [False, True, False, True]


def test_ppo_with_the_critics_values():
    row = ALGORITHMS["ppo"]
    advantages = row.advantages(SCORES, values=VALUES, completion_mask=MASK)
    expected = tensor([0.5, 0.3], [0.5, 0.4], [-0.5, -0.4], [-0.5, -0.3])
    assert torch.allclose(advantages, expected, rtol=1e-14)
    assert (advantages**2).mean().item() == pytest.approx(0.1875, rel=1e-13)  # the critic's squared error
    j, _ = run(row, values=VALUES, completion_mask=MASK)
    assert j == pytest.approx(0.00625, rel=1e-12)


def test_ppo_with_the_kl_in_the_reward():
    row = algorithm("ppo", beta_in_reward=0.1)
    kl = torch.zeros(4, 2, dtype=F64)
    kl[0, 0] = math.log(2)
    arguments = {"per_token_kl": kl, "values": VALUES, "completion_mask": MASK}
    assert row.advantages(SCORES, **arguments)[0].tolist() == pytest.approx([0.430685, 0.3], abs=5e-7)
    row = algorithm("ppo", beta_in_reward=0.1, lam=0.95)
    assert row.advantages(SCORES, **arguments)[0].tolist() == pytest.approx([0.415685, 0.3], abs=5e-7)
    half = algorithm("ppo", gamma=0.5, lam=0.0).advantages(SCORES, values=VALUES, completion_mask=MASK)
    assert half[0].tolist() == pytest.approx([0.5 * 0.7 - 0.5, 0.3], rel=1e-13)


def test_reinforce_plus_plus_with_and_without_the_group_baseline():
    scores = tensor([1, 1, 0, 0], [1, 0, 0, 0])
    grouped = ALGORITHMS["reinforce_plus_plus_baseline"].advantages(scores, eps=0)
    assert grouped[0, 0].item() == pytest.approx(1.069, abs=5e-4)
    assert grouped[1, :2].tolist() == pytest.approx([1.604, -0.535], abs=5e-4)
    grpo = ALGORITHMS["grpo"].advantages(scores, eps=0)
    quotient = grpo / grouped  # the two do not differ by one factor
    assert quotient[0].tolist() == pytest.approx([0.935] * 4, abs=5e-4)
    assert quotient[1].tolist() == pytest.approx([1.080] * 4, abs=5e-4)
    base = ALGORITHMS["reinforce_plus_plus"].advantages(scores, eps=0)
    assert base[1, :2].tolist() == pytest.approx([1.291, -0.775], abs=5e-4)
    # one answer a question is enough for the base version
    assert torch.equal(ALGORITHMS["reinforce_plus_plus"].advantages(SCORES, 1, eps=0), tensor(1, 1, -1, -1))


@given(seeds)
def test_reinforce_plus_plus_normalises_returns_over_the_valid_tokens_of_the_batch(seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(3, generator=generator, dtype=F64)
    kl = torch.randn(3, 4, generator=generator, dtype=F64)
    lengths = [4, 1, 2]
    mask = torch.arange(4) < torch.tensor(lengths).unsqueeze(1)
    row = algorithm("reinforce_plus_plus", beta_in_reward=0.3)
    advantages = row.advantages(scores, per_token_kl=kl, completion_mask=mask, eps=1e-3)
    returns = [
        [scores[i].item() - 0.3 * kl[i, t:n].sum().item() for t in range(n)] for i, n in enumerate(lengths)
    ]
    flat = [x for answer in returns for x in answer]
    sd = math.sqrt(reference.variance(flat))
    for i, n in enumerate(lengths):
        expected = [(x - sum(flat) / len(flat)) / (sd + 1e-3) for x in returns[i]] + [0.0] * (4 - n)
        assert advantages[i].tolist() == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_returns_are_discounted_when_asked_to_be():
    row = algorithm("reinforce_plus_plus", gamma=0.5, baseline="none", scale="none")
    returns = row.advantages(tensor(8, 4), per_token_kl=torch.zeros(2, 3), completion_mask=torch.ones(2, 3))
    assert torch.equal(returns, tensor([2, 4, 8], [1, 2, 4]))


# Relations between rows


@given(seeds, st.integers(2, 5))
def test_mean_centring_is_leave_one_out_times_k_minus_one_over_k(seed, k):
    """T2(b): sample by sample, with clipping and lengths included."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-3, 4, (k,), generator=generator).double()
    new = torch.randn(k, 3, generator=generator, dtype=F64)
    mask = torch.arange(3) < torch.randint(1, 4, (k, 1), generator=generator)
    centred = run(algorithm("grpo", scale="none"), scores, new, mask=mask, num_generations=k)
    rloo = run(ALGORITHMS["rloo"], scores, new, mask=mask, num_generations=k)
    assert centred[0] == pytest.approx((k - 1) / k * rloo[0], rel=1e-11, abs=1e-13)
    assert torch.allclose(centred[1], (k - 1) / k * rloo[1], rtol=1e-11, atol=1e-14)


@given(seeds)
def test_dividing_by_sigma_is_a_weight_on_the_question_and_a_weaker_kl(seed):
    """T29: GRPO(β) is 1/σ times the centred objective with β σ, question by question."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.cat([tensor(1, 0), torch.randint(0, 2, (2,), generator=generator).double()])
    sigma = math.sqrt(reference.variance([int(s) for s in scores]))
    new, ref = torch.randn(2, 4, 3, generator=generator, dtype=F64)
    mask = torch.ones(4, 3)
    grpo = run(algorithm("grpo", beta=0.2), scores, new, mask=mask, ref=ref)
    centred = run(algorithm("grpo", scale="none", beta=0.2 * sigma), scores, new, mask=mask, ref=ref)
    assert grpo[0] == pytest.approx(centred[0] / sigma, rel=1e-11, abs=1e-13)
    assert torch.allclose(grpo[1], centred[1] / sigma, rtol=1e-11, atol=1e-14)


# The table


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_row_gives_a_finite_loss_with_a_gradient(name):
    row = algorithm(name, max_completion_length=4)
    arguments = {"values": VALUES, "completion_mask": MASK} if name == "ppo" else {}
    j, gradient = run(row, new=NEW.clamp(-1e-4, 1e-4), **arguments)
    assert math.isfinite(j) and torch.isfinite(gradient).all() and gradient.any()
    assert "(20" in row.source  # paper and year
    assert row.objective.beta == 0 and row.beta_in_reward == 0
    assert pickle.loads(pickle.dumps(row)) == row == copy.deepcopy(row)
    with pytest.raises(FrozenInstanceError):
        row.std = "sample"


@pytest.mark.parametrize("name", IN_LOSS)
def test_kl_in_the_loss_never_enters_the_advantage(name):
    r = tensor([1, 1, 0, 0], [1, 0, 0, 0])
    without, with_kl = algorithm(name), algorithm(name, beta=0.5)
    assert with_kl.objective.beta == 0.5
    assert torch.equal(without.advantages(r), with_kl.advantages(r))


def test_settings_of_the_rows():
    assert ALGORITHMS["grpo"].objective == Objective()
    assert ALGORITHMS["dapo"].objective == Objective(epsilon_high=0.28, aggregation="token-mean")
    assert ALGORITHMS["dr_grpo"].objective == Objective(aggregation="seq-mean-token-sum-norm")
    assert ALGORITHMS["cispo"].objective.surrogate == "cispo"
    assert ALGORITHMS["reinforce_plus_plus_baseline"].objective.kl_estimator == "k2"
    for name in ("cispo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo"):
        assert ALGORITHMS[name].objective.aggregation == "token-mean"
    for name in ("grpo", "rloo", "gspo"):
        assert ALGORITHMS[name].objective.aggregation == "seq-mean-token-mean"


def test_overrides_reach_the_row_or_its_objective_and_leave_the_table_alone():
    before = copy.deepcopy(ALGORITHMS)
    row = algorithm("grpo", std="sample", epsilon=0.1, beta=0.04, max_completion_length=512)
    assert row.std == "sample" and row.scale == "group"
    assert row.objective == Objective(epsilon=0.1, beta=0.04, max_completion_length=512)
    assert before == ALGORITHMS and algorithm("grpo") == before["grpo"]


def test_advantages_pass_all_their_arguments_on():
    row = algorithm("grpo", baseline="leave-one-out", scale="batch", std="sample")
    r, ids = tensor(1, 0, 0, 2, 5), ["a", "b", "a", "b", "a"]
    valid = torch.tensor([1, 1, 1, 1, 0])
    a = row.advantages(r, group_ids=ids, valid=valid, eps=0.5)
    sd = math.sqrt(reference.variance([1.0, 0.0, 0.0, 2.0], ddof=1))
    assert a.tolist() == pytest.approx([x / (sd + 0.5) for x in (1, -2, -1, 2, 0)], rel=1e-13)
    assert torch.equal(
        algorithm("grpo").advantages(SCORES, 4), algorithm("grpo").advantages(SCORES, 4, eps=1e-4)
    )


# Errors


def test_an_unknown_name_is_refused_with_the_list():
    with pytest.raises(ValueError, match=r"'gpro' is unknown: choose one of grpo, dr_grpo, rloo"):
        algorithm("gpro")


@pytest.mark.bad_input
@pytest.mark.parametrize("name, overrides, words", [
    ("grpo", {"clip": 0.2}, r"unknown settings \['clip'\]: choose from .*'epsilon'"),
    ("grpo", {"objective": Objective()}, r"unknown settings \['objective'\]"),
    ("grpo", {"epsilon": -1.0}, "epsilon must be > 0, got -1.0"),
    ("grpo", {"baseline": "median"}, "baseline='median' is unknown.*'leave-one-out'"),
    ("grpo", {"scale": "std"}, "scale='std' is unknown.*'batch-residual'"),
    ("grpo", {"std": "unbiased"}, "std='unbiased' is unknown.*'sample'"),
    ("grpo", {"credit": "token"}, "credit='token' is unknown.*'answer', 'return', 'gae'"),
    ("grpo", {"beta_in_reward": 0.1}, "keeps the KL penalty in the loss: pass beta=0.1 instead"),
    ("reinforce_plus_plus", {"beta": 0.1}, "keeps the KL penalty in the reward: pass beta_in_reward=0.1 instead"),
    ("ppo", {"beta": 0.1}, "pass beta_in_reward=0.1 instead of beta"),
    ("ppo", {"beta_in_reward": -0.1}, "beta_in_reward must be >= 0 and finite, got -0.1"),
    ("ppo", {"beta_in_reward": math.nan}, "beta_in_reward must be >= 0 and finite, got nan"),
    # the tokens of one answer are not a group of answers
    ("reinforce_plus_plus", {"baseline": "mean"}, "baseline='mean'.*'batch' or 'none'"),
    ("reinforce_plus_plus", {"baseline": "leave-one-out"}, "baseline='leave-one-out'.*'batch' or 'none'"),
    ("reinforce_plus_plus", {"scale": "group"}, "scale='group'.*'batch'"),
])  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(name, overrides, words):
    with pytest.raises(ValueError, match=words):
        algorithm(name, **overrides)


KL = torch.zeros(4, 2, dtype=F64)


@pytest.mark.bad_input
@pytest.mark.parametrize("name, overrides, arguments, words", [
    ("grpo", {}, {"per_token_kl": KL}, "per_token_kl was given.*'answer'.*drop it"),
    ("grpo", {}, {"completion_mask": MASK}, "completion_mask was given"),
    ("grpo", {}, {"values": VALUES}, "values was given"),
    ("ppo", {}, {"completion_mask": MASK}, "'gae' need values"),
    ("ppo", {}, {"values": VALUES}, "'gae' need completion_mask"),
    ("ppo", {}, {"values": VALUES, "completion_mask": MASK, "valid": torch.ones(4)}, "valid was given"),
    ("ppo", {"beta_in_reward": 0.1}, {"values": VALUES, "completion_mask": MASK}, "needs per_token_kl"),
    ("reinforce_plus_plus", {}, {"per_token_kl": KL}, "'return' need completion_mask"),
    ("reinforce_plus_plus", {}, {"per_token_kl": KL, "completion_mask": MASK, "values": VALUES}, "values was"),
    ("reinforce_plus_plus", {"beta_in_reward": 0.1}, {}, "needs per_token_kl and completion_mask"),
])  # fmt: skip
def test_missing_and_unused_arguments_are_named(name, overrides, arguments, words):
    with pytest.raises(ValueError, match=words):
        algorithm(name, **overrides).advantages(SCORES, 4, **arguments)


def test_what_the_critic_says_of_padding_does_not_matter():
    mask = torch.tensor([[True, True, False], [True, True, True]])
    values = torch.tensor([[0.5, 0.7, math.nan], [0.5, 0.6, 0.4]])
    row = algorithm("ppo", lam=0.9)
    advantages = row.advantages(torch.tensor([1.0, 0.0]), completion_mask=mask, values=values)
    alone = row.advantages(torch.tensor([1.0]), completion_mask=mask[:1, :2], values=values[:1, :2])
    torch.testing.assert_close(advantages[:1, :2], alone)
    assert advantages[0, 2] == 0


def test_a_returns_row_takes_the_sample_std_when_asked():
    kl, mask = torch.zeros(2, 1), torch.ones(2, 1)
    rewards = torch.tensor([1.0, 0.0])
    population, sample = (
        algorithm("reinforce_plus_plus", std=std).advantages(
            rewards, per_token_kl=kl, completion_mask=mask, eps=0
        )
        for std in ("population", "sample")
    )
    torch.testing.assert_close(sample, population * 0.5**0.5)


@pytest.mark.bad_input
def test_an_infinite_kl_strength_is_refused():
    with pytest.raises(ValueError, match="beta_in_reward must be >= 0 and finite"):
        algorithm("ppo", beta_in_reward=math.inf)
