"""The enumerated worlds: they hold every answer, and their sums are the known expectations."""

import pytest
import torch

from grpo_lib import group_advantages
from grpo_lib.proof import exact
from grpo_lib.proof.exact import World

WORLDS = [World(1), World(2), World(3), World(2, vocab_size=4), World(1, vocab_size=2)]
CLOSE = {"rtol": 0, "atol": 1e-12}


def policies(world):
    return [exact.tabular(world), exact.shared(world)]


CASES = [(world, policy) for world in WORLDS for policy in policies(world)]


def some_rewards(world, seed=3):
    return torch.rand(len(world.answers), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("length", "size", "count"), [(1, 3, 3), (2, 3, 7), (3, 3, 15), (1, 2, 2), (2, 4, 13), (4, 2, 5)]
)
def test_it_holds_every_answer_once(length, size, count):
    world = World(length, vocab_size=size)
    assert len(world.answers) == len(set(world.answers)) == count
    for answer in world.answers:
        assert size - 1 not in answer[:-1]  # nothing follows the end token
        assert answer[-1] == size - 1 or len(answer) == length


def test_tensors_spell_the_answers():
    world = World(2)
    assert world.answers == ((2,), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2))
    assert world.prefixes == ((), (0,), (1,))
    assert world.lengths.tolist() == [1, 2, 2, 2, 2, 2, 2]
    assert [tuple(row[keep].tolist()) for row, keep in zip(world.token_ids, world.mask, strict=True)] == list(
        world.answers
    )
    assert world.prefix_ids.tolist() == [[0, 0], [0, 1], [0, 1], [0, 1], [0, 2], [0, 2], [0, 2]]


@pytest.mark.parametrize(("world", "policy"), CASES)
def test_probabilities_add_up_to_one_and_score_vectors_average_to_zero(world, policy):
    theta = exact.random_parameters(policy)
    p = exact.probabilities(world, policy, theta)
    assert p.sum().item() == pytest.approx(1, abs=1e-12)
    assert (p > 0).all()
    scores = exact.score_vectors(world, policy, theta)
    torch.testing.assert_close(exact.mean(scores, p), torch.zeros_like(theta), **CLOSE)
    torch.testing.assert_close(exact.token_score_vectors(world, policy, theta).sum(dim=1), scores, **CLOSE)


def test_a_probability_is_the_product_along_its_answer():
    world = World(2)
    policy = exact.tabular(world)
    theta = exact.random_parameters(policy)
    first, after_zero, after_one = theta.reshape(3, 3).softmax(dim=1)
    expected = [first[2], *(first[0] * after_zero), *(first[1] * after_one)]
    torch.testing.assert_close(exact.probabilities(world, policy, theta), torch.stack(expected), **CLOSE)


@pytest.mark.parametrize(("world", "policy"), CASES)
def test_the_gradient_of_the_expected_score_is_the_mean_of_score_times_score_vector(world, policy):
    theta = exact.random_parameters(policy).requires_grad_()
    rewards = some_rewards(world)
    (gradient,) = torch.autograd.grad((exact.probabilities(world, policy, theta) * rewards).sum(), theta)
    p, s = exact.probabilities(world, policy, theta), exact.score_vectors(world, policy, theta)
    torch.testing.assert_close(exact.mean(rewards[:, None] * s, p.detach()), gradient, **CLOSE)


def test_groups_are_all_ordered_draws_with_the_product_of_their_probabilities():
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    index, weight = exact.groups(p, 2)
    assert index.tolist() == [[i, j] for i in range(3) for j in range(3)]
    torch.testing.assert_close(weight, torch.stack([a * b for a in p for b in p]), **CLOSE)
    assert exact.groups(p, 1)[0].tolist() == [[0], [1], [2]]
    assert exact.groups(p, 4)[1].sum().item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("num_generations", [2, 3, 4])
def test_leave_one_out_is_unbiased_and_the_group_mean_is_scaled(num_generations):
    world = World(2)
    policy = exact.tabular(world)
    theta = exact.random_parameters(policy)
    p, s, rewards = exact.probabilities(world, policy, theta), None, some_rewards(world)
    s = exact.score_vectors(world, policy, theta)
    gradient = exact.mean(rewards[:, None] * s, p)
    index, weight = exact.groups(p, num_generations)
    for baseline, factor in (("leave-one-out", 1.0), ("mean", 1 - 1 / num_generations)):
        advantages = group_advantages(rewards[index], baseline=baseline, scale="none")
        found = exact.mean(exact.group_gradients(advantages, s[index]), weight)
        torch.testing.assert_close(found, factor * gradient, **CLOSE)


def test_total_variance_is_the_sum_over_the_coordinates():
    weight = torch.tensor([0.25, 0.75], dtype=torch.float64)
    vectors = torch.tensor([[1.0, 2.0], [5.0, 2.0]], dtype=torch.float64)
    assert exact.total_variance(vectors, weight).item() == pytest.approx(0.25 * 0.75 * 16)


@pytest.mark.parametrize(("world", "policy"), CASES)
def test_values_along_an_answer_start_at_the_mean_and_end_at_the_score(world, policy):
    theta = exact.random_parameters(policy)
    p, rewards = exact.probabilities(world, policy, theta), some_rewards(world)
    q, v = exact.prefix_values(world, p, rewards)
    torch.testing.assert_close(v[:, 0], torch.full_like(rewards, (p * rewards).sum()), **CLOSE)
    last = world.lengths - 1
    torch.testing.assert_close(q.gather(1, last[:, None])[:, 0], rewards, **CLOSE)
    inner = world.mask[:, 1:]
    torch.testing.assert_close(q[:, :-1][inner], v[:, 1:][inner], **CLOSE)
    assert (q[~world.mask] == 0).all()
    assert (v[~world.mask] == 0).all()
    token_p = exact.per_token_logps(world, policy, theta).exp()
    for i, answer in enumerate(world.answers):  # the value of a prefix is the mean over its next token
        for t in range(len(answer)):
            heirs = {other[: t + 1]: j for j, other in enumerate(world.answers) if other[:t] == answer[:t]}
            assert sum(token_p[j, t] * q[j, t] for j in heirs.values()).item() == pytest.approx(
                v[i, t].item(), abs=1e-12
            )


def test_random_numbers_are_seeded():
    policy = exact.shared(World(2), num_parameters=3, seed=1)
    theta = exact.random_parameters(policy, seed=2)
    assert torch.equal(theta, exact.random_parameters(policy, seed=2))
    assert not torch.equal(theta, exact.random_parameters(policy, seed=3))
    again = exact.shared(World(2), num_parameters=3, seed=1)
    assert torch.equal(policy.logits(theta), again.logits(theta))
    assert theta.dtype == torch.float64


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: World(0), "max_length"),
        (lambda: World(2, vocab_size=1), "vocab_size must be at least 2"),
        (lambda: exact.groups(torch.full((15,), 1 / 15), 7), "make 170859375 groups"),
        (lambda: exact.groups(torch.ones(1), 0), "num_generations"),
        (lambda: exact.shared(World(1), num_parameters=0), "num_parameters"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
