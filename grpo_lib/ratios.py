"""Importance ratios, clipping, clip fractions."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from grpo_lib._validate import (
    at_least_float32,
    require_choice,
    require_clip_range,
    require_floating,
    require_mask,
    require_ndim,
    require_real,
    require_same_shape,
)

LOG_RATIO_CAP = 20.0
"""Largest log-ratio that is exponentiated; e^20 is about 4.9e8. Above it the ratio is constant, so that no valid token
overflows into infinity and then NaN; below it nothing changes. ``grpo_loss`` reports the share of tokens above it."""

Level = Literal["token", "sequence"]
LEVELS = ("token", "sequence")


class ClipFractions(NamedTuple):
    """Shares of the valid tokens whose clip is active, each a scalar tensor between 0 and 1."""

    low: Float[Tensor, ""]
    """ratio < 1 − epsilon with a negative advantage"""
    high: Float[Tensor, ""]
    """ratio > 1 + epsilon_high with a positive advantage"""
    region: Float[Tensor, ""]
    """either of the two"""


def importance_ratio(
    per_token_logps: Float[Tensor, "N T"],
    old_per_token_logps: Float[Tensor, "N T"],
    completion_mask: Shaped[Tensor, "N T"] | None = None,
    *,
    level: Level = "token",
) -> Float[Tensor, "N T"]:
    r"""How much more likely a sampled token is under the current policy than under the one that sampled it.

    .. math:: r_{i,t} = \frac{\pi_\theta(y_{i,t} \mid q, y_{i,<t})}{\pi_{old}(y_{i,t} \mid q, y_{i,<t})}

    Args:
        per_token_logps: log-probabilities of the sampled tokens under the current policy, in nats, shape (N, T).
        old_per_token_logps: the same under the policy that sampled, same shape; a constant, no gradient flows into it.
        completion_mask: shape (N, T), True (or 1) at valid tokens; all valid if None.
        level: ``"token"``, or ``"sequence"``: the geometric mean of the answer's token ratios, the same at each of its
            positions (GSPO).

    Returns:
        Ratios, shape (N, T), float32 or wider; 1 at masked positions, whatever these hold. A log-ratio above
        ``LOG_RATIO_CAP`` counts as the cap.

    Raises:
        ValueError: shapes that differ, an unknown level.

    Source: DeepSeekMath (2024), equation 3; sequence level: GSPO (2025), equation 7.

    Chapter: objective/ratio-and-clipping, equation ratio-token.
    """
    require_choice("level", level, LEVELS)
    require_floating("per_token_logps", per_token_logps)
    require_floating("old_per_token_logps", old_per_token_logps)
    require_ndim("per_token_logps", per_token_logps, 2, "(N, T)")
    require_same_shape("old_per_token_logps", old_per_token_logps, "per_token_logps", per_token_logps)
    if completion_mask is None:
        mask = torch.ones_like(per_token_logps, dtype=torch.bool)
    else:
        mask = require_mask("completion_mask", completion_mask, "per_token_logps", per_token_logps)
    log_ratio = masked_log_ratio(per_token_logps, old_per_token_logps.detach(), mask, level)
    return log_ratio.clamp(max=LOG_RATIO_CAP).exp()


def masked_log_ratio(logps: Tensor, other_logps: Tensor, mask: Tensor, level: Level = "token") -> Tensor:
    """logps − other_logps at valid positions and 0 elsewhere, in float32 or wider; at level "sequence" the answer's mean.

    The mask selects before anything is exponentiated, so that NaN or ±inf at a masked position reaches neither the value nor
    the gradient.
    """
    log_ratio = torch.where(mask, at_least_float32(logps) - at_least_float32(other_logps), 0)
    if level == "token":
        return log_ratio
    length = mask.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.where(mask, log_ratio.sum(dim=1, keepdim=True) / length, 0)


def clipped_surrogate(
    ratio: Float[Tensor, "..."],
    advantages: Shaped[Tensor, "..."],
    *,
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    delta: float | None = None,
) -> Float[Tensor, "..."]:
    r"""The task term of each token, to be maximised: PPO's pessimistic minimum.

    .. math:: \min\bigl(r \hat A,\ \operatorname{clip}(r,\, 1-\epsilon,\, 1+\epsilon_{high})\, \hat A\bigr)

    For a positive advantage it is constant above 1 + ε_high, for a negative one below 1 − ε. A negative advantage with a
    large ratio stays unbounded unless ``delta`` caps it.

    Args:
        ratio: importance ratios, shape (N, T), or any shape that advantages share.
        advantages: shape (N,), one an answer; (N, T), one a token; or ratio's own shape. Constants: no gradient.
        epsilon: lower clip width, > 0; at 1 or above there is no lower bound, infinity switches clipping off.
        epsilon_high: upper clip width; epsilon if None (DAPO: 0.28).
        delta: cap on the ratio before the minimum, > 1 + epsilon_high (two-sided clip); None for no cap.

    Returns:
        Task terms, shape of ratio, float32 or wider. At the clip's edge itself the gradient is the inner one.

    Raises:
        ValueError: advantages of another shape, epsilon not positive, delta not above 1 + epsilon_high.

    Source: Schulman et al. (2017), Proximal Policy Optimization, equation 7; DAPO (2025), equation 10.

    Chapter: objective/ratio-and-clipping, equation ratio-clip.
    """
    require_floating("ratio", ratio)
    high = require_clip_range(epsilon, epsilon_high, delta)
    advantages = per_token_advantages(advantages, ratio)
    ratio = at_least_float32(ratio)
    clipped = ratio.clamp(1 - epsilon, 1 + high)
    free = ratio if delta is None else ratio.clamp(max=delta)
    return torch.minimum(free * advantages, clipped * advantages)


def clip_fractions(
    ratio: Float[Tensor, "N T"],
    advantages: Shaped[Tensor, "..."],
    completion_mask: Shaped[Tensor, "N T"],
    *,
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
) -> ClipFractions:
    r"""Shares of the valid tokens at which clipping stops the gradient.

    A ratio outside the interval alone does not count: the sign of the advantage decides which side is active. A zero
    advantage counts on neither side.

    Args:
        ratio: importance ratios, shape (N, T).
        advantages: shape (N,) or (N, T).
        completion_mask: shape (N, T), True (or 1) at valid tokens.
        epsilon: lower clip width, > 0.
        epsilon_high: upper clip width; epsilon if None.

    Returns:
        ``ClipFractions(low, high, region)``, scalar tensors without gradient; 0 if no token is valid.

    Raises:
        ValueError: wrong shapes, epsilon not positive.

    Chapter: objective/ratio-and-clipping.
    """
    require_floating("ratio", ratio)
    require_ndim("ratio", ratio, 2, "(N, T)")
    high = require_clip_range(epsilon, epsilon_high, None)
    mask = require_mask("completion_mask", completion_mask, "ratio", ratio)
    ratio, advantages = at_least_float32(ratio.detach()), per_token_advantages(advantages, ratio)
    low_clipped = mask & (ratio < 1 - epsilon) & (advantages < 0)
    high_clipped = mask & (ratio > 1 + high) & (advantages > 0)
    count = mask.sum().clamp(min=1)
    return ClipFractions(*(x.sum() / count for x in (low_clipped, high_clipped, low_clipped | high_clipped)))


def per_token_advantages(advantages: Tensor, tokens: Tensor) -> Tensor:
    """Advantages as constants that multiply a tensor of tokens: (N,) becomes (N, 1), the tokens' own shape stays."""
    require_real("advantages", advantages)
    advantages = at_least_float32(advantages.detach())
    if advantages.shape == tokens.shape:
        return advantages
    if tokens.ndim == 2 and advantages.shape == tokens.shape[:1]:
        return advantages.unsqueeze(1)
    raise ValueError(
        f"advantages have shape {tuple(advantages.shape)} for tokens of shape {tuple(tokens.shape)}: give (N,), one an "
        f"answer, or (N, T), one a token; advantages of shape (B, K) are flattened with .reshape(-1)."
    )
