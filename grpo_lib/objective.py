"""The whole of GRPO's objective: its settings, and the loss."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from grpo_lib._validate import (
    at_least_float32,
    require_choice,
    require_clip_range,
    require_finite,
    require_floating,
    require_mask,
    require_ndim,
    require_same_shape,
)
from grpo_lib.aggregation import AGGREGATIONS, Aggregation, aggregate
from grpo_lib.kl import KL_ESTIMATORS
from grpo_lib.ratios import (
    LEVELS,
    LOG_RATIO_CAP,
    Level,
    clip_fractions,
    clipped_surrogate,
    importance_ratio,
    masked_log_ratio,
    per_token_advantages,
)

SURROGATES = ("clip", "cispo")


@dataclass(frozen=True)
class Objective:
    """Settings of the objective J that :func:`grpo_loss` computes. The defaults are the paper's GRPO without the KL term.

    Attributes:
        epsilon: lower clip width ε, > 0; at 1 or above there is no lower bound.
        epsilon_high: upper clip width; epsilon if None.
        delta: cap on the ratio before the minimum (two-sided clip), > 1 + epsilon_high; None for no cap.
        beta: KL strength β, >= 0; 0 leaves the KL term out and needs no reference.
        kl_estimator: ``"k1"``, ``"k2"`` or ``"k3"`` (GRPO).
        importance_sampling_level: ``"token"`` (GRPO) or ``"sequence"`` (GSPO).
        aggregation: see :func:`grpo_lib.aggregate`.
        max_completion_length: L in tokens, for the aggregation ``seq-mean-token-sum-norm``.
        surrogate: ``"clip"``, PPO's minimum; or ``"cispo"``, the constant weight min(r, 1 + epsilon_high) times Â log π. TRL's
            CISPO takes the bound itself where ours takes 1 + epsilon_high: its 5.0 is our 4.0.

    Raises:
        ValueError: a setting outside its range, or an unknown mode.

    Chapter: objective/full-objective, equation full-objective.
    """

    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    beta: float = 0.0
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    importance_sampling_level: Level = "token"
    aggregation: Aggregation = "seq-mean-token-mean"
    max_completion_length: int | None = None
    surrogate: Literal["clip", "cispo"] = "clip"

    def __post_init__(self) -> None:
        require_clip_range(self.epsilon, self.epsilon_high, self.delta)
        if not 0 <= self.beta < float("inf"):
            raise ValueError(
                f"beta must be >= 0 and finite, got {self.beta}: it is the strength of the KL penalty."
            )
        require_choice("kl_estimator", self.kl_estimator, KL_ESTIMATORS)
        require_choice("importance_sampling_level", self.importance_sampling_level, LEVELS)
        require_choice("aggregation", self.aggregation, AGGREGATIONS)
        require_choice("surrogate", self.surrogate, SURROGATES)
        if self.max_completion_length is not None and not self.max_completion_length > 0:
            raise ValueError(f"max_completion_length must be > 0 tokens, got {self.max_completion_length}.")
        if self.surrogate == "cispo" and self.delta is not None:
            raise ValueError(
                f"delta={self.delta} has no meaning with surrogate='cispo', which has its own cap: drop it."
            )


class LossOutput(NamedTuple):
    """What :func:`grpo_loss` returns."""

    loss: Float[Tensor, ""]
    """−J, a scalar to minimise, with its graph"""
    metrics: dict[str, Tensor]
    """detached scalars by TRL's names"""


def grpo_loss(
    per_token_logps: Float[Tensor, "N T"],
    advantages: Shaped[Tensor, "..."],
    completion_mask: Shaped[Tensor, "N T"],
    *,
    old_per_token_logps: Float[Tensor, "N T"] | None = None,
    ref_per_token_logps: Float[Tensor, "N T"] | None = None,
    objective: Objective = Objective(),
    normalizer: float | Tensor | None = None,
) -> LossOutput:
    r"""GRPO's loss, −J, of a batch of sampled answers.

    .. math:: J(\theta) = \frac1N \sum_{i=1}^{N} \frac{1}{|y_i|} \sum_{t=1}^{|y_i|} \Bigl[
              \min\bigl(r_{i,t}\hat A_i,\ \operatorname{clip}(r_{i,t}, 1-\epsilon, 1+\epsilon)\hat A_i\bigr)
              - \beta\, \widehat{D}_{i,t} \Bigr]

    Gradients flow through ``per_token_logps`` alone. Masked positions reach neither value nor gradient, whatever they hold.
    Everything is computed in float32 or wider.

    Args:
        per_token_logps: log-probabilities of the sampled tokens under the current policy, in nats, shape (N, T).
        advantages: shape (N,), one an answer, or (N, T), one a token; see :func:`grpo_lib.group_advantages`.
        completion_mask: shape (N, T), True (or 1) at the tokens of the answer, its end token included.
        old_per_token_logps: the same log-probabilities under the policy that sampled. None means on-policy: the ratio is
            1 in value, with the current policy's gradient.
        ref_per_token_logps: the same under the reference; may be None only when beta is 0.
        objective: the settings.
        normalizer: the global count for micro-batches and processes; see :func:`grpo_lib.aggregate`.

    Returns:
        ``LossOutput(loss, metrics)``. The metrics are ``clip_ratio/low_mean``, ``clip_ratio/high_mean``, ``clip_ratio/region_mean``
        (for CISPO ``cispo_clip_ratio``), ``kl`` if a reference is given, ``log_ratio_capped`` (share of tokens
        whose ratio, or k3, is held at ``LOG_RATIO_CAP``), each a mean over valid tokens; ``num_tokens`` and ``num_completions`` (with a valid token) to
        combine them over micro-batches.

    Raises:
        ValueError: wrong shapes, beta > 0 without a reference, NaN or infinite input at valid positions, a missing
            max_completion_length.

    Source: DeepSeekMath (2024), equation 3; CISPO: MiniMax-M1 (2025).

    Chapter: objective/full-objective, equation full-objective.
    """
    require_floating("per_token_logps", per_token_logps)
    require_ndim("per_token_logps", per_token_logps, 2, "(N, T)")
    mask = require_mask("completion_mask", completion_mask, "per_token_logps", per_token_logps)
    if objective.beta > 0 and ref_per_token_logps is None:
        raise ValueError(
            f"beta={objective.beta} > 0 needs ref_per_token_logps: pass the reference's log-probabilities, or set beta=0."
        )
    new = _valid_logps("per_token_logps", per_token_logps, mask)
    if old_per_token_logps is None:
        old = new.detach()
    else:
        require_floating("old_per_token_logps", old_per_token_logps)
        require_same_shape("old_per_token_logps", old_per_token_logps, "per_token_logps", per_token_logps)
        old = _valid_logps("old_per_token_logps", old_per_token_logps.detach(), mask)
    weight = per_token_advantages(advantages, new).expand_as(new)
    require_finite(
        "advantages", weight, mask, "Check the rewards, and mark answers without a score by valid=...."
    )
    weight = torch.where(mask, weight, 0)

    level = objective.importance_sampling_level
    ratio = importance_ratio(new, old, mask, level=level)
    epsilon, epsilon_high = objective.epsilon, objective.epsilon_high
    if objective.surrogate == "clip":
        terms = clipped_surrogate(
            ratio, weight, epsilon=epsilon, epsilon_high=epsilon_high, delta=objective.delta
        )
    else:
        cap = 1 + (epsilon if epsilon_high is None else epsilon_high)
        terms = ratio.detach().clamp(max=cap) * weight * new

    num_tokens = mask.sum()
    capped = masked_log_ratio(new.detach(), old, mask, level) > LOG_RATIO_CAP
    metrics = {"num_tokens": num_tokens, "num_completions": mask.any(dim=1).sum()}
    if objective.surrogate == "clip":
        fractions = clip_fractions(ratio, weight, mask, epsilon=epsilon, epsilon_high=epsilon_high)
        metrics |= {f"clip_ratio/{name}_mean": fraction for name, fraction in fractions._asdict().items()}
    else:
        metrics["cispo_clip_ratio"] = _token_mean((ratio.detach() > cap) & (weight > 0), mask)

    if ref_per_token_logps is not None:
        require_floating("ref_per_token_logps", ref_per_token_logps)
        require_same_shape("ref_per_token_logps", ref_per_token_logps, "per_token_logps", per_token_logps)
        ref = _valid_logps("ref_per_token_logps", ref_per_token_logps.detach(), mask)
        penalty = KL_ESTIMATORS[objective.kl_estimator](new, ref)
        if objective.kl_estimator == "k3":  # the only one that exponentiates
            capped = capped | (masked_log_ratio(ref, new.detach(), mask) > LOG_RATIO_CAP)
        metrics["kl"] = _token_mean(penalty.detach(), mask)
        if objective.beta > 0:
            terms = terms - objective.beta * penalty
    metrics["log_ratio_capped"] = _token_mean(capped, mask)

    value = aggregate(
        terms,
        mask,
        objective.aggregation,
        normalizer=normalizer,
        max_completion_length=objective.max_completion_length,
    )
    return LossOutput(0 - value, metrics)  # 0 − J: an objective of 0 gives the loss 0, not −0


def _valid_logps(name: str, logps: Tensor, mask: Tensor) -> Tensor:
    """Log-probabilities in float32 or wider, checked at valid positions and 0 at the others."""
    require_finite(
        name,
        logps,
        mask,
        "A sampled token must have a probability above 0: check the forward pass and the mask.",
    )
    return torch.where(mask, at_least_float32(logps), 0)


def _token_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over the valid tokens of x, which is 0 at the others."""
    return at_least_float32(x).sum() / mask.sum().clamp(min=1)
