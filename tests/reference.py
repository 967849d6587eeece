"""The book's equations, written naively in plain Python, under the equations' names.

The tests compare ``grpo_lib`` with them. Nothing here uses torch or ``grpo_lib``. Numbers are ints, Fractions or
floats; functions of rationals stay exact when they are given Fractions.
"""

from fractions import Fraction
from math import comb, exp, log, prod, sqrt

# The running example: four answers, two tokens each, the first two right.
SCORES = (1, 1, 0, 0)
RATIOS = ((1.1, 1.3), (0.9, 1.0), (0.9, 0.7), (1.1, 1.3))
EPSILON = 0.2
BETA = 0.1
OLD, CURRENT, REFERENCE = 0.20, 0.22, 0.11  # probabilities of the first token of the first answer


def mean(xs):
    return sum(xs) / Fraction(len(xs))


def variance(xs, ddof=0):
    centre = mean(xs)
    return sum((x - centre) ** 2 for x in xs) / Fraction(len(xs) - ddof)


def adv_standardised(scores, delta=0.0, ddof=0):
    """Score minus the group mean, over the group's standard deviation plus delta; 0 where all scores are equal."""
    if len(set(scores)) == 1:
        return [0.0] * len(scores)
    scores = [Fraction(s) for s in scores]
    sd = sqrt(variance(scores, ddof))
    return [float(s - mean(scores)) / (sd + delta) for s in scores]


def adv_leave_one_out(scores):
    """Score minus the mean of the other scores of the group."""
    return [s - mean(scores[:i] + scores[i + 1 :]) for i, s in enumerate(scores)]


def adv_silent(p, k):
    """Probability that k answers are all right or all wrong."""
    return p**k + (1 - p) ** k


def std_weight(p, k):
    """Mean standard deviation of k independent 0/1 scores, over p(1 − p)."""
    chance = [comb(k, s) * p**s * (1 - p) ** (k - s) for s in range(k + 1)]
    return sum(c * sqrt(s * (k - s)) for s, c in enumerate(chance)) / (k * p * (1 - p))


def gae_sum(rewards, values, gamma, lam):
    """Generalised advantage estimation of one answer, as the sum of discounted residuals."""
    values = [*values, 0]
    residuals = [r + gamma * values[t + 1] - values[t] for t, r in enumerate(rewards)]
    return [
        sum((gamma * lam) ** (s - t) * residuals[s] for s in range(t, len(residuals)))
        for t in range(len(residuals))
    ]


def ratio_token(new, old):
    """Ratios of one answer, from the log-probabilities of its tokens."""
    return [exp(n) / exp(o) for n, o in zip(new, old, strict=True)]


def ratio_sequence(new, old):
    """The geometric mean of the answer's token ratios, at each of its tokens."""
    ratios = ratio_token(new, old)
    return [prod(ratios) ** (1 / len(ratios))] * len(ratios)


def ratio_clip(r, advantage, epsilon, epsilon_high=None, delta=None):
    """PPO's pessimistic minimum; delta caps the unclipped ratio."""
    high = epsilon if epsilon_high is None else epsilon_high
    clipped = min(max(r, 1 - epsilon), 1 + high)
    free = r if delta is None else min(r, delta)
    return min(free * advantage, clipped * advantage)


def ratio_clip_slope(r, advantage, epsilon, epsilon_high=None, delta=None):
    """Derivative of ratio_clip with respect to r; at an edge the inner one."""
    high = epsilon if epsilon_high is None else epsilon_high
    if advantage > 0:
        return advantage if r <= 1 + high else 0.0
    if advantage < 0:
        return advantage if r >= 1 - epsilon and (delta is None or r <= delta) else 0.0
    return 0.0


def kl_k1(p, ref):
    return log(p / ref)


def kl_k2(p, ref):
    return log(p / ref) ** 2 / 2


def kl_k3(p, ref):
    return ref / p - 1 - log(ref / p)


KL = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}
"""Estimates of the KL at a token from its two probabilities."""

KL_SLOPE = {
    "k1": lambda p, ref: 1.0,
    "k2": lambda p, ref: log(p / ref),
    "k3": lambda p, ref: 1 - ref / p,
}
"""Their derivatives with respect to log p."""


def kl_exact(p, q):
    return sum(a * log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def aggregation_weight(mode, lengths, i, length_constant=None):
    """c_i: the weight of each token of answer i in J; lengths are those of all answers."""
    answers = sum(1 for n in lengths if n > 0)
    return {
        "seq-mean-token-mean": lambda: Fraction(1, answers * lengths[i]),
        "token-mean": lambda: Fraction(1, sum(lengths)),
        "seq-mean-token-sum-norm": lambda: Fraction(1, answers * length_constant),
        "seq-mean-token-sum": lambda: Fraction(1, answers),
    }[mode]()


def full_objective(
    new,
    old,
    ref,
    advantages,
    valid,
    *,
    epsilon=0.2,
    epsilon_high=None,
    delta=None,
    beta=0.0,
    kl_estimator="k3",
    importance_sampling_level="token",
    aggregation="seq-mean-token-mean",
    max_completion_length=None,
    surrogate="clip",
):
    """J, and its derivative with respect to each entry of new. All tables are rows of floats, one row an answer."""
    value, slopes = 0.0, [[0.0] * len(row) for row in new]
    lengths = [sum(row) for row in valid]
    level = {"token": ratio_token, "sequence": ratio_sequence}[importance_sampling_level]
    for i, row in enumerate(valid):
        tokens = [t for t, v in enumerate(row) if v]
        if not tokens:
            continue
        c = float(aggregation_weight(aggregation, lengths, i, max_completion_length))
        ratios = level([new[i][t] for t in tokens], [old[i][t] for t in tokens])
        for r, t in zip(ratios, tokens, strict=True):
            a = advantages[i][t]
            if surrogate == "clip":
                value += c * ratio_clip(r, a, epsilon, epsilon_high, delta)
                slope = c * r * ratio_clip_slope(r, a, epsilon, epsilon_high, delta)
                moved = [t] if importance_sampling_level == "token" else tokens
                for s in moved:
                    slopes[i][s] += slope / len(moved)
            else:
                weight = min(r, 1 + (epsilon if epsilon_high is None else epsilon_high)) * a
                value += c * weight * new[i][t]
                slopes[i][t] += c * weight
            if beta > 0:
                p, q = exp(new[i][t]), exp(ref[i][t])
                value -= c * beta * KL[kl_estimator](p, q)
                slopes[i][t] -= c * beta * KL_SLOPE[kl_estimator](p, q)
    return value, slopes
