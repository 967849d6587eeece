"""Distance to the reference policy: Schulman's k1, k2, k3 on sampled tokens, the exact KL, and the KL inside the reward."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from grpo_lib._validate import (
    at_least_float32,
    require_finite,
    require_floating,
    require_mask,
    require_ndim,
    require_real,
    require_same_shape,
)
from grpo_lib.ratios import LOG_RATIO_CAP


def k1(logps: Float[Tensor, "*shape"], ref_logps: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    r"""The plain log-ratio, an unbiased estimate of KL(π_θ ‖ π_ref) that may be negative at a token.

    .. math:: k_1 = \log\frac{\pi_\theta}{\pi_{ref}}

    As a loss term it is useless: its expected gradient is 0 whatever the reference. It belongs in the reward.

    Args:
        logps: log-probabilities of the sampled tokens under the current policy, in nats, any shape.
        ref_logps: the same under the reference, same shape; a constant, no gradient flows into it.

    Returns:
        The estimate at each token, same shape, float32 or wider.

    Raises:
        ValueError: shapes that differ, or tensors that are not floating point.

    Source: Schulman (2020), Approximating KL Divergence.

    Chapter: objective/reference-kl, equation kl-k1.
    """
    return 0 - _ref_log_ratio(logps, ref_logps)


def k2(logps: Float[Tensor, "*shape"], ref_logps: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    r"""Half the squared log-ratio: never negative, biased in value, with the reverse KL's gradient.

    .. math:: k_2 = \tfrac12 \Bigl(\log\frac{\pi_\theta}{\pi_{ref}}\Bigr)^2

    Args:
        logps: log-probabilities of the sampled tokens under the current policy, in nats, any shape.
        ref_logps: the same under the reference, same shape; a constant, no gradient flows into it.

    Returns:
        The estimate at each token, same shape, float32 or wider.

    Raises:
        ValueError: shapes that differ, or tensors that are not floating point.

    Source: Schulman (2020), Approximating KL Divergence.

    Chapter: objective/reference-kl, equation kl-k2.
    """
    return _ref_log_ratio(logps, ref_logps) ** 2 / 2


def k3(logps: Float[Tensor, "*shape"], ref_logps: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    r"""GRPO's penalty: Schulman's k3 estimate of KL(π_θ ‖ π_ref) at each sampled token, never negative.

    .. math:: k_3 = \frac{\pi_{ref}}{\pi_\theta} - 1 - \log\frac{\pi_{ref}}{\pi_\theta} \ge 0

    For answers sampled from π_θ its expected value is the reverse KL(π_θ ‖ π_ref), while the expected gradient of the
    sampled expression is that of the forward KL(π_ref ‖ π_θ). A log-ratio log(π_ref/π_θ) above
    ``grpo_lib.ratios.LOG_RATIO_CAP`` counts as the cap.

    Args:
        logps: log-probabilities of the sampled tokens under the current policy, in nats, any shape.
        ref_logps: the same under the reference, same shape; a constant, no gradient flows into it.

    Returns:
        The estimate at each token, same shape, float32 or wider.

    Raises:
        ValueError: shapes that differ, or tensors that are not floating point.

    Source: Schulman (2020), Approximating KL Divergence; DeepSeekMath (2024), equation 4.

    Chapter: objective/reference-kl, equation kl-k3.
    """
    log_x = _ref_log_ratio(logps, ref_logps).clamp(max=LOG_RATIO_CAP)
    # expm1 keeps the digits that exp(x) − 1 would cancel near 0; what rounding is left is cut at 0.
    return (torch.expm1(log_x) - log_x).clamp(min=0)


KL_ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def kl_divergence(
    logits: Float[Tensor, "*batch V"], ref_logits: Float[Tensor, "*batch V"]
) -> Float[Tensor, "*batch"]:
    r"""The exact KL(π_θ ‖ π_ref) between two next-token distributions, summed over the whole vocabulary.

    .. math:: \mathrm{KL}(\pi_\theta \Vert \pi_{ref}) = \sum_a \pi_\theta(a) \log\frac{\pi_\theta(a)}{\pi_{ref}(a)}

    Args:
        logits: of the current policy, any leading shape, vocabulary last; need not be normalised. −inf is a token of
            probability 0.
        ref_logits: of the reference, same shape. Swap the two arguments for the forward KL.

    Returns:
        KL in nats, shape without the last axis, float32 or wider; +inf where the reference rules out a token that the
        policy can sample.

    Raises:
        ValueError: shapes that differ, no vocabulary axis, or tensors that are not floating point.

    Chapter: objective/reference-kl, equation kl-exact.
    """
    require_floating("logits", logits)
    require_floating("ref_logits", ref_logits)
    require_same_shape("ref_logits", ref_logits, "logits", logits)
    if logits.ndim == 0:
        raise ValueError("logits must have a vocabulary axis, got a scalar.")
    logp = at_least_float32(logits).log_softmax(-1)
    logq = at_least_float32(ref_logits).log_softmax(-1)
    p = logp.exp()
    return (p * torch.where(p > 0, logp - logq, 0)).sum(-1)


def kl_in_reward(
    rewards: Shaped[Tensor, " N"],
    per_token_kl: Float[Tensor, "N T"],
    completion_mask: Shaped[Tensor, "N T"],
    *,
    beta: float,
) -> Float[Tensor, "N T"]:
    r"""Per-token rewards with the KL penalty inside, as PPO and REINFORCE++ use it: the task score comes at the last token.

    .. math:: R_{i,t} = -\beta\, \widehat{D}_{i,t} + \mathbb{1}[t = |y_i|]\, R_i

    GRPO does not do this: its penalty stays outside the score and the advantage.

    Args:
        rewards: task score of each answer, shape (N,); integers and booleans count as float32.
        per_token_kl: KL estimate at each token (usually k1), shape (N, T); a constant here.
        completion_mask: shape (N, T), True (or 1) at valid tokens.
        beta: KL strength, >= 0.

    Returns:
        Rewards, shape (N, T), 0 at masked positions. ``gae`` turns them into advantages, and with values 0 and
        lam = 1 into the return from each token on.

    Raises:
        ValueError: wrong shapes, NaN or infinite input at valid positions, negative beta, a scored answer without a valid token.

    Source: DeepSeekMath (2024), equation 2; REINFORCE++ (2025, v9), equation 4.

    Chapter: relatives/ppo.
    """
    require_real("rewards", rewards)
    require_floating("per_token_kl", per_token_kl)
    require_ndim("per_token_kl", per_token_kl, 2, "(N, T)")
    mask = require_mask("completion_mask", completion_mask, "per_token_kl", per_token_kl)
    if rewards.shape != per_token_kl.shape[:1]:
        raise ValueError(
            f"rewards must hold one score an answer, shape {tuple(per_token_kl.shape[:1])}, got {tuple(rewards.shape)}."
        )
    if not 0 <= beta < float("inf"):
        raise ValueError(f"beta must be >= 0 and finite, got {beta}.")
    lengths = mask.sum(dim=1)
    if ((lengths == 0) & (rewards != 0)).any():
        raise ValueError(
            "an answer without a valid token has a score: it has no token that could receive it."
        )
    require_finite(
        "rewards", rewards, torch.ones_like(rewards, dtype=torch.bool), "Check the reward function."
    )
    require_finite("per_token_kl", per_token_kl, mask, "Check the log-probabilities.")
    token_rewards = -beta * torch.where(mask, at_least_float32(per_token_kl.detach()), 0)
    is_last = mask & (mask.cumsum(dim=1) == lengths.unsqueeze(1))
    return token_rewards + torch.where(is_last, at_least_float32(rewards.detach()).unsqueeze(1), 0)


def _ref_log_ratio(logps: Tensor, ref_logps: Tensor) -> Tensor:
    """log(π_ref / π_θ), in float32 or wider, the reference a constant."""
    require_floating("logps", logps)
    require_floating("ref_logps", ref_logps)
    require_same_shape("ref_logps", ref_logps, "logps", logps)
    return at_least_float32(ref_logps.detach()) - at_least_float32(logps)
