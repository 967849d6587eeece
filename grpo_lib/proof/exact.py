"""Small worlds in which every answer, and every group of answers, is enumerated: expectations exact to rounding.

A world is a language with few tokens, the last of which ends an answer, and short answers. A policy gives logits for the next token
after every prefix. The sums below run over all answers or all groups, so nothing is sampled, and autograd differentiates the sums
themselves.

    world = World(max_length=2)                         # 7 answers
    policy = tabular(world)
    theta = random_parameters(policy)
    p = probabilities(world, policy, theta)             # (7,)
    index, weight = groups(p, 3)                        # all 343 groups of three, and their probabilities
    advantages = group_advantages(rewards[index], baseline="leave-one-out", scale="none")
    estimates = group_gradients(advantages, score_vectors(world, policy, theta)[index])
    mean(estimates, weight)                             # the exact expected gradient
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from grpo_lib._validate import require_count


@dataclass(frozen=True)
class World:
    """All answers of a small language.

    Attributes:
        max_length: T, the longest answer in tokens; an answer that has not ended by then is cut off.
        vocab_size: V, tokens, of which the last, V − 1, ends an answer.
        answers: every answer, as tuples of tokens, in order of length and tokens; N of them. With V = 3 there are 3, 7 and 15 for
            T = 1, 2 and 3.
        prefixes: every prefix after which a token is drawn, the empty one first; P of them.
        token_ids: the answers, shape (N, T), the end token as padding.
        mask: True at an answer's tokens, its end token included, shape (N, T).
        prefix_ids: which prefix each token follows, shape (N, T); 0 where masked.
    """

    max_length: int = 2
    vocab_size: int = 3
    answers: tuple[tuple[int, ...], ...] = field(init=False)
    prefixes: tuple[tuple[int, ...], ...] = field(init=False)
    token_ids: Integer[Tensor, "N T"] = field(init=False, repr=False, compare=False)
    mask: Bool[Tensor, "N T"] = field(init=False, repr=False, compare=False)
    prefix_ids: Integer[Tensor, "N T"] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_count("max_length", self.max_length)
        require_count("vocab_size", self.vocab_size)
        if self.vocab_size < 2:
            raise ValueError(
                f"vocab_size must be at least 2, got {self.vocab_size}: a token and the end token."
            )
        length, end = self.max_length, self.vocab_size - 1
        prefixes = [p for n in range(length) for p in product(range(end), repeat=n)]
        ended = [(*p, end) for p in prefixes]
        answers = sorted([*ended, *product(range(end), repeat=length)], key=lambda a: (len(a), a))
        place = {p: i for i, p in enumerate(prefixes)}
        rows = [(*a, *[end] * (length - len(a))) for a in answers]
        before = [[place[a[:t]] if t < len(a) else 0 for t in range(length)] for a in answers]
        mask = [[t < len(a) for t in range(length)] for a in answers]
        for name, value in (
            ("answers", tuple(answers)),
            ("prefixes", tuple(prefixes)),
            ("token_ids", torch.tensor(rows)),
            ("mask", torch.tensor(mask)),
            ("prefix_ids", torch.tensor(before)),
        ):
            object.__setattr__(self, name, value)

    @property
    def lengths(self) -> Tensor:
        """Tokens of each answer, its end token included, shape (N,)."""
        return self.mask.sum(dim=1)


@dataclass(frozen=True)
class Policy:
    """Logits for the next token after every prefix, as a function of d parameters.

    Attributes:
        logits: takes parameters of shape (d,), returns shape (P, V).
        num_parameters: d.
    """

    logits: Callable[[Float[Tensor, " d"]], Float[Tensor, "P V"]]
    num_parameters: int


def tabular(world: World) -> Policy:
    """A policy with a parameter of its own for every logit: d = P·V."""
    shape = (len(world.prefixes), world.vocab_size)
    return Policy(lambda theta: theta.reshape(shape), shape[0] * shape[1])


def shared(world: World, num_parameters: int = 4, seed: int = 0) -> Policy:
    """A policy whose logits share few parameters: fixed random features times the parameters.

    Args:
        world: what it speaks.
        num_parameters: d.
        seed: of the features, which are standard normal.
    """
    require_count("num_parameters", num_parameters)
    shape = (len(world.prefixes), world.vocab_size, num_parameters)
    features = _normal(shape, seed)
    return Policy(lambda theta: features @ theta, num_parameters)


def random_parameters(policy: Policy, seed: int = 0, scale: float = 1.0) -> Float[Tensor, " d"]:
    """Normal parameters of the given standard deviation, float64."""
    return scale * _normal((policy.num_parameters,), seed)


def per_token_logps(world: World, policy: Policy, theta: Float[Tensor, " d"]) -> Float[Tensor, "N T"]:
    """Log-probability of each token of every answer, in nats; 0 where masked. Differentiable in theta."""
    table = policy.logits(theta).log_softmax(dim=-1)
    return table[world.prefix_ids, world.token_ids].where(world.mask, 0.0)


def answer_logps(world: World, policy: Policy, theta: Float[Tensor, " d"]) -> Float[Tensor, " N"]:
    """Log-probability of every answer: the sum over its tokens. Differentiable in theta."""
    return per_token_logps(world, policy, theta).sum(dim=1)


def probabilities(world: World, policy: Policy, theta: Float[Tensor, " d"]) -> Float[Tensor, " N"]:
    """Probability of every answer; they add up to 1. Differentiable in theta."""
    return answer_logps(world, policy, theta).exp()


def score_vectors(world: World, policy: Policy, theta: Float[Tensor, " d"]) -> Float[Tensor, "N d"]:
    r"""The score vector of every answer, :math:`s = \nabla_\theta \log\pi_\theta(y)`."""
    return torch.func.jacrev(lambda t: answer_logps(world, policy, t))(theta.detach())


def token_score_vectors(world: World, policy: Policy, theta: Float[Tensor, " d"]) -> Float[Tensor, "N T d"]:
    r"""The score vector of every token, :math:`s_t = \nabla_\theta \log\pi_\theta(y_t \mid y_{<t})`; 0 where masked."""
    return torch.func.jacrev(lambda t: per_token_logps(world, policy, t))(theta.detach())


def groups(
    probabilities: Float[Tensor, " N"], num_generations: int
) -> tuple[Integer[Tensor, "G K"], Float[Tensor, " G"]]:
    """Every group of K answers drawn independently.

    Args:
        probabilities: of the N answers.
        num_generations: K. There are G = N^K groups: 7 answers and K = 4 make 2401.

    Returns:
        ``(index, weight)``: which answers each group holds, shape (G, K), and its probability, shape (G,), a constant.

    Raises:
        ValueError: more than ten million groups.
    """
    require_count("num_generations", num_generations)
    n = len(probabilities)
    if n**num_generations > 10**7:
        raise ValueError(
            f"{n} answers and num_generations={num_generations} make {n**num_generations} groups: take a smaller world or K."
        )
    index = torch.cartesian_prod(*[torch.arange(n)] * num_generations).reshape(-1, num_generations)
    return index, probabilities.detach()[index].prod(dim=1)


def group_gradients(weights: Float[Tensor, "G K"], vectors: Float[Tensor, "G K d"]) -> Float[Tensor, "G d"]:
    r"""The estimate of each group, :math:`\tfrac1K \sum_i \hat A_i s_i`.

    Args:
        weights: the advantage of each answer.
        vectors: its score vector, or any other vector that it moves.
    """
    return torch.einsum("gk,gkd->gd", weights, vectors.to(weights.dtype)) / weights.shape[1]


def mean(values: Float[Tensor, "G *shape"], weight: Float[Tensor, " G"]) -> Float[Tensor, "*shape"]:
    """Expectation over answers or groups: the sum of the values times their probabilities."""
    return torch.tensordot(weight, values.to(weight.dtype), dims=1)


def total_variance(vectors: Float[Tensor, "G d"], weight: Float[Tensor, " G"]) -> Float[Tensor, ""]:
    r"""Total variance of an estimate, :math:`E\lVert g\rVert^2 - \lVert E g\rVert^2`."""
    return mean((vectors - mean(vectors, weight)).square().sum(dim=1), weight)


def prefix_values(
    world: World, probabilities: Float[Tensor, " N"], rewards: Float[Tensor, " N"]
) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
    r"""Exact values along every answer.

    Args:
        world: the answers.
        probabilities, rewards: of each answer, shape (N,).

    Returns:
        ``(Q, V)``, both of shape (N, T): :math:`V_t`, the expected reward of an answer that starts with :math:`y_{<t}`, and
        :math:`Q_t`, the same once :math:`y_t` is drawn too; 0 where masked.
    """
    value = torch.zeros(world.mask.shape, dtype=rewards.dtype)
    after = torch.zeros_like(value)
    for i, answer in enumerate(world.answers):
        for t in range(len(answer)):
            for table, prefix in ((value, answer[:t]), (after, answer[: t + 1])):
                same = torch.tensor([other[: len(prefix)] == prefix for other in world.answers])
                p = probabilities.detach()[same]
                table[i, t] = (p * rewards[same]).sum() / p.sum()
    return after, value


def _normal(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
