"""Statements of the book in SymPy, for those that more than one chapter uses."""

from collections.abc import Sequence

import sympy
from sympy import Expr, Max, Min, Piecewise, Rational, Symbol, exp, log

b = Symbol("b", real=True)
"""A constant that predicts every score of a group."""

K = Symbol("K", integer=True, positive=True)
S = Symbol("S", real=True)
Q = Symbol("Q", real=True)
"""A group of any size: K scores, their sum S, the sum of their squares Q."""

r = Symbol("r", positive=True)
A = Symbol("A", real=True)
epsilon = Symbol("epsilon", positive=True)
"""A token's ratio, its advantage, the clip width."""

log_pi = Symbol("log_pi", real=True)
log_ref = Symbol("log_ref", real=True)
"""A token's log-probability under the current policy and under the reference."""


def scores(size: int) -> tuple[Symbol, ...]:
    """Symbols R_1, …, R_size for the scores of one group.

    Raises:
        ValueError: size below 1.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}: a group has at least one answer.")
    return sympy.symbols(f"R_1:{size + 1}", real=True)


def mean(values: Sequence[Expr]) -> Expr:
    """The exact mean of some expressions."""
    return sum(values, sympy.Integer(0)) * Rational(1, len(values))


def group_mse(size: int | None = None) -> Expr:
    r"""Mean squared error of the constant b on one group.

    .. math:: \tfrac1K \sum_i (R_i - b)^2 = \frac{Q - 2 b S + K b^2}{K}

    Args:
        size: number of answers, for the left side in the symbols of ``scores(size)``; None for the right side, which
            holds for any size, in K, S and Q.

    Chapter: objective/group-advantage.
    """
    if size is None:
        return (Q - 2 * b * S + K * b**2) / K
    return mean([(R - b) ** 2 for R in scores(size)])


def leave_one_out(values: Sequence[Expr]) -> tuple[Expr, ...]:
    r"""Each value minus the mean of the others, by this definition and not by way of the mean of all.

    .. math:: R_i - \tfrac1{K-1} \sum_{j \ne i} R_j

    Raises:
        ValueError: fewer than two values.

    Source: Kool et al. (2019).

    Chapter: objective/group-advantage.
    """
    if len(values) < 2:
        raise ValueError(f"values must be at least 2, got {len(values)}: a single answer has no others.")
    values = tuple(values)
    return tuple(value - mean(values[:i] + values[i + 1 :]) for i, value in enumerate(values))


def clipped_term() -> Expr:
    r"""PPO's clipped term as the paper writes it, in r, A and epsilon.

    .. math:: \min\bigl(r \hat A,\; \operatorname{clip}(r, 1 - \epsilon, 1 + \epsilon)\, \hat A\bigr)

    Source: Schulman et al. (2017), Proximal Policy Optimization, equation 7.

    Chapter: objective/ratio-and-clipping, equation ratio-clip.
    """
    clip = Piecewise((1 - epsilon, r < 1 - epsilon), (1 + epsilon, r > 1 + epsilon), (r, True))
    return Min(r * A, clip * A)


def clipped_branches() -> Expr:
    r"""The clipped term sorted by the sign of the advantage: one bound each, in r, A and epsilon.

    .. math:: \hat A \min(r, 1 + \epsilon) \text{ if } \hat A \ge 0, \qquad \hat A \max(r, 1 - \epsilon) \text{ else}

    Chapter: objective/ratio-and-clipping.
    """
    return Piecewise((A * Min(r, 1 + epsilon), A >= 0), (A * Max(r, 1 - epsilon), True))


def clip_cases() -> dict[str, dict[Symbol, Expr]]:
    """The six cases of the clipped term: ratio below, inside or above the interval, advantage positive or negative.

    Returns:
        Substitutions for r, A and epsilon, under which SymPy decides every condition of :func:`clipped_term` and
        :func:`clipped_branches`: u > 0 is the distance to the bound that was passed, or to the lower bound inside, where
        v > 0 is the distance to the upper one; a > 0 is the size of the advantage.

    Chapter: objective/ratio-and-clipping.
    """
    u, v, a = sympy.symbols("u v a", positive=True)
    places: dict[str, dict[Symbol, Expr]] = {
        "below": {r: 1 - epsilon - u},
        "inside": {epsilon: (u + v) / 2, r: 1 + (u - v) / 2},
        "above": {r: 1 + epsilon + u},
    }
    signs = {"A > 0": a, "A < 0": -a}
    return {
        f"{place}, {sign}": {**at, A: size} for place, at in places.items() for sign, size in signs.items()
    }


def k1() -> Expr:
    r"""The log-ratio of current and reference, in log_pi and log_ref.

    .. math:: k_1 = \log\frac{\pi_\theta}{\pi_{ref}}

    Source: Schulman (2020), Approximating KL Divergence.  Chapter: objective/reference-kl, equation kl-k1.
    """
    return log_pi - log_ref


def k2() -> Expr:
    r"""Half the squared log-ratio, in log_pi and log_ref.

    .. math:: k_2 = \tfrac12 \Bigl(\log\frac{\pi_\theta}{\pi_{ref}}\Bigr)^2

    Source: Schulman (2020), Approximating KL Divergence.  Chapter: objective/reference-kl, equation kl-k2.
    """
    return k1() ** 2 / 2


def k3() -> Expr:
    r"""GRPO's penalty, in log_pi and log_ref.

    .. math:: k_3 = \log\frac{\pi_\theta}{\pi_{ref}} + \frac{\pi_{ref}}{\pi_\theta} - 1

    Source: DeepSeekMath (2024), equation 4; Schulman (2020).  Chapter: objective/reference-kl, equation kl-k3.
    """
    return k1() + exp(log_ref - log_pi) - 1


def at_probabilities(expression: Expr, current: Expr, reference: Expr) -> Expr:
    """An expression in log_pi and log_ref at two probabilities, which may be symbols or exact numbers."""
    return expression.subs({log_pi: log(current), log_ref: log(reference)})
