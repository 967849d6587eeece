"""Scores of a group → relative weights (advantages)."""

from collections.abc import Hashable, Sequence
from numbers import Real
from typing import Literal, get_args

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from grpo_lib._validate import (
    at_least_float32,
    require_choice,
    require_count,
    require_finite,
    require_floating,
    require_mask,
    require_ndim,
    require_real,
    require_same_shape,
)

Baseline = Literal["mean", "leave-one-out", "batch", "none"]
Scale = Literal["group", "batch", "batch-residual", "none"]
Std = Literal["population", "sample"]


def group_advantages(
    rewards: Shaped[Tensor, "..."],
    num_generations: int | None = None,
    *,
    group_ids: Tensor | Sequence[Hashable] | None = None,
    baseline: Baseline = "mean",
    scale: Scale = "group",
    std: Std = "population",
    eps: float = 1e-4,
    valid: Shaped[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    r"""Relative weight of each answer: its score minus a baseline, over a standard deviation.

    .. math:: \hat A_i = \frac{R_i - \bar R}{\sigma_R + \delta}, \qquad
              \sigma_R = \sqrt{\tfrac1K \sum_j (R_j - \bar R)^2}

    The baseline decides the sign, the scale only the size. A group whose answers all score the same gets exactly 0 from the
    baselines ``"mean"`` and ``"leave-one-out"``, in every dtype and for every ``eps``. The result is a constant: no
    gradient flows through it.

    Args:
        rewards: scores, shape (B, K) with one row a question, or (N,) with ``num_generations`` or ``group_ids``.
            Any floating dtype; integers and booleans count as float32.
        num_generations: K, answers a question, for rewards of shape (N,) whose groups are contiguous.
        group_ids: shape (N,), the question of each answer, in any order and with any group sizes; a tensor of
            integers or a sequence of hashable ids.
        baseline: what is subtracted. ``"mean"`` of the group (GRPO); ``"leave-one-out"``, the mean of the other
            answers of the group (RLOO); ``"batch"``, the mean of all scores; ``"none"``.
        scale: what divides. ``"group"``, the group's standard deviation (GRPO); ``"batch"``, that of all raw
            scores; ``"batch-residual"``, that of all scores after the baseline (REINFORCE++); ``"none"`` (Dr. GRPO).
        std: ``"population"`` divides by K, ``"sample"`` by K − 1 (what TRL and verl do).
        eps: δ, added to the standard deviation, in units of the scores. Hand computations pass 0.
        valid: same shape as rewards. Rows marked False get 0 and move neither mean nor standard deviation,
            whatever they hold (NaN included).

    Returns:
        Advantages, same shape as rewards; float32, or float64 for float64 rewards. Where the standard deviation is
        exactly 0 a scaled advantage is 0. With baselines ``"mean"`` and ``"leave-one-out"`` a group with fewer than
        two valid rows gets 0.

    Raises:
        ValueError: wrong shape, a size that K does not divide, a group of one where the baseline needs two, NaN or
            infinite rewards in valid rows, rewards so large that they overflow, an unknown mode, a negative eps.

    Source: DeepSeekMath (2024), section 4.1.2, which writes only "std"; the population form is this book's choice.
    Leave-one-out: Kool et al. (2019). Statistics are computed in float64.

    Chapter: objective/group-advantage, equation adv-standardised.
    """
    require_real("rewards", rewards)
    require_choice("baseline", baseline, get_args(Baseline))
    require_choice("scale", scale, get_args(Scale))
    require_choice("std", std, get_args(Std))
    if not 0 <= eps < float("inf"):
        raise ValueError(f"eps must be >= 0 and finite, got {eps}: it is added to the standard deviation.")

    needs_groups = baseline in ("mean", "leave-one-out") or scale == "group"
    groups = _group_index(rewards, num_generations, group_ids, needs_groups).to(rewards.device)
    keep = (
        torch.ones_like(rewards, dtype=torch.bool)
        if valid is None
        else require_mask("valid", valid, "rewards", rewards)
    )
    require_finite(
        "rewards", rewards, keep, "Mark answers without a score by valid=..., or give them a number."
    )

    # float64 on the CPU where the device has none
    device = torch.device("cpu") if rewards.device.type == "mps" else rewards.device
    g, m = groups.to(device), keep.detach().to(device).reshape(-1)
    r = torch.where(m, rewards.detach().to(device).reshape(-1).to(torch.float64), 0)
    batch = torch.zeros_like(g)
    _require_pairs(baseline, g, group_ids)

    if baseline == "none":
        residual = r
    else:
        residual = _centred(r, m, batch if baseline == "batch" else g)
        if baseline == "leave-one-out":  # R_i − mean of the others = K/(K − 1) · (R_i − mean)
            count = _group_sum(m.to(r.dtype), g)
            residual = residual * count / (count - 1).clamp(min=1)

    if scale == "none":
        spread, advantages = torch.ones_like(residual), residual
    else:
        spread = {
            "group": lambda: _group_std(r, m, g, std),
            "batch": lambda: _group_std(r, m, batch, std),
            "batch-residual": lambda: _group_std(residual, m, batch, std),
        }[scale]()
        advantages = torch.where(spread > 0, residual / torch.where(spread > 0, spread + eps, 1), 0)
    advantages = advantages.to(at_least_float32(rewards[:0]).dtype)
    if not torch.isfinite(torch.stack([residual, spread, advantages])).all():
        raise ValueError(
            f"rewards as large as {r.abs().max():g} overflow {advantages.dtype} or the sums behind the "
            f"statistics: divide all of them by the same constant first."
        )
    return advantages.reshape(rewards.shape).to(rewards.device)


def silent_group_probability(p: Real | Tensor, num_generations: int) -> float | Tensor:
    r"""Probability that all K answers to a question get the same 0/1 score, so that its group sends no task signal.

    .. math:: P(\text{silent}) = p^K + (1 - p)^K

    Args:
        p: probability that one answer is right, between 0 and 1; a number or a tensor of any shape.
        num_generations: K, at least 1; the answers are independent.

    Returns:
        The probability, same type and shape as p.

    Raises:
        ValueError: p outside [0, 1], or K below 1.

    Chapter: objective/group-advantage, equation adv-silent.
    """
    _require_probability(p)
    require_count("num_generations", num_generations)
    return p**num_generations + (1 - p) ** num_generations


def difficulty_weight(p: Real | Tensor, num_generations: int) -> float | Tensor:
    r"""Size of GRPO's expected gradient on one question, in units of the gradient of its success probability p.

    .. math:: E[g] = w_K(p)\, \nabla p, \qquad w_K(p) = \frac{E[\sigma_R]}{p (1 - p)}
              = \frac{E \sqrt{S (K - S)}}{K p (1 - p)}, \qquad S \sim \mathrm{Bin}(K, p)

    For 0/1 scores, the population standard deviation, δ = 0, and whole answers drawn from the current policy. Without the
    division by the standard deviation the factor is (K − 1)/K, and for leave-one-out it is 1, whatever p is.

    Args:
        p: probability that one answer is right, between 0 and 1; a number or a tensor of any shape.
        num_generations: K, at least 2; the answers are independent.

    Returns:
        The factor, of the same type and shape as p. It is 1 for K = 2, √2 for K = 3, and √(K − 1) in the limits p = 0 and p = 1.

    Raises:
        ValueError: p outside [0, 1], or K below 2.

    Chapter: estimator/std-weights, equation std-weight.
    """
    _require_probability(p)
    require_count("num_generations", num_generations)
    if num_generations < 2:
        raise ValueError(
            f"num_generations must be at least 2, got {num_generations}: one answer has nothing to compare with."
        )
    K = torch.tensor(num_generations, dtype=torch.float64)
    s = torch.arange(1, num_generations, dtype=torch.float64)  # right answers of a group that is not silent
    q = p.detach().to("cpu") if isinstance(p, Tensor) else torch.tensor(float(p), dtype=torch.float64)
    q = q.to(torch.float64)[..., None]
    log_choices = torch.lgamma(K + 1) - torch.lgamma(s + 1) - torch.lgamma(K - s + 1)
    # P(S = s) with one factor p and one factor 1 − p divided out, so that p = 0 and p = 1 need no limit
    chance = torch.exp(log_choices + torch.xlogy(s - 1, q) + torch.xlogy(K - s - 1, 1 - q))
    weight = (chance * (s * (K - s)).sqrt()).sum(dim=-1) / K
    return weight.to(p.device, at_least_float32(p).dtype) if isinstance(p, Tensor) else weight.item()


def gae(
    rewards: Float[Tensor, "N T"],
    values: Float[Tensor, "N T"],
    completion_mask: Shaped[Tensor, "N T"] | None = None,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
) -> Float[Tensor, "N T"]:
    r"""Generalised advantage estimation, what PPO uses where GRPO uses the group.

    .. math:: \hat A_t = \delta_t + \gamma\lambda \hat A_{t+1}, \qquad \delta_t = R_t + \gamma V(s_{t+1}) - V(s_t)

    Args:
        rewards: per-token rewards, shape (N, T); see :func:`grpo_lib.kl_in_reward`.
        values: V(s_t), the value of the prefix before token t, shape (N, T). After the last valid token it is 0.
        completion_mask: shape (N, T), True at valid tokens; all valid if None. Valid tokens are a prefix of the row.
        gamma: discount, between 0 and 1.
        lam: λ, between 0 (one-step residuals) and 1 (return minus value).

    Returns:
        Advantages, shape (N, T), 0 at masked positions. The returns (the critic's targets) are advantages + values.

    Raises:
        ValueError: wrong shapes, gamma or lam outside [0, 1], NaN or infinite values at valid positions, a mask that is
            not a prefix of each row.

    Source: Schulman et al. (2017), Proximal Policy Optimization, equations 11 and 12.

    Chapter: relatives/ppo.
    """
    require_floating("rewards", rewards)
    require_floating("values", values)
    require_ndim("rewards", rewards, 2, "(N, T)")
    require_same_shape("values", values, "rewards", rewards)
    for name, x in (("gamma", gamma), ("lam", lam)):
        if not 0 <= x <= 1:
            raise ValueError(f"{name} must lie between 0 and 1, got {x}.")
    mask = torch.ones_like(rewards, dtype=torch.bool)
    if completion_mask is not None:
        mask = require_mask("completion_mask", completion_mask, "rewards", rewards)
        if (mask[:, 1:] & ~mask[:, :-1]).any():
            raise ValueError(
                "completion_mask must mark a prefix of each row: a valid token follows a masked one."
            )
    require_finite("rewards", rewards, mask, "Check the reward function.")
    require_finite("values", values, mask, "Check the critic.")
    r = at_least_float32(torch.where(mask, rewards.detach(), 0))
    v = at_least_float32(torch.where(mask, values.detach(), 0))
    next_v = torch.cat([v[:, 1:], torch.zeros_like(v[:, :1])], dim=1)
    residual = r + gamma * next_v - v
    advantages, running = torch.zeros_like(residual), torch.zeros_like(residual[:, 0]) if r.shape[1] else None
    for t in reversed(range(r.shape[1])):
        advantages[:, t] = running = residual[:, t] + gamma * lam * running
    return advantages


def _require_probability(p: Real | Tensor) -> None:
    inside = bool(((p >= 0) & (p <= 1)).all()) if isinstance(p, Tensor) else 0 <= p <= 1
    if not inside:
        raise ValueError(f"p must lie between 0 and 1, got {p}: it is the probability of a right answer.")


def _group_index(
    rewards: Tensor,
    num_generations: int | None,
    group_ids: Tensor | Sequence[Hashable] | None,
    needs_groups: bool,
) -> Tensor:
    """Number of the group of each reward, in the order of rewards.reshape(-1)."""
    if num_generations is not None and group_ids is not None:
        raise ValueError("num_generations and group_ids were both given: groups are defined by one of them.")
    if num_generations is not None:
        require_count("num_generations", num_generations)
    if rewards.ndim not in (1, 2):
        raise ValueError(f"rewards must have shape (B, K) or (N,), got {tuple(rewards.shape)}.")
    n = rewards.numel()
    if rewards.ndim == 2:
        if group_ids is not None:
            raise ValueError(
                f"group_ids go with rewards of shape (N,), got {tuple(rewards.shape)}: flatten the rewards."
            )
        if num_generations not in (None, rewards.shape[1]):
            raise ValueError(
                f"num_generations={num_generations} but rewards of shape {tuple(rewards.shape)} hold "
                f"{rewards.shape[1]} answers a question: drop the argument or reshape the rewards."
            )
        return torch.arange(rewards.shape[0]).repeat_interleave(rewards.shape[1])
    if group_ids is not None:
        if (isinstance(group_ids, Tensor) and group_ids.ndim != 1) or len(group_ids) != n:
            given = tuple(group_ids.shape) if isinstance(group_ids, Tensor) else len(group_ids)
            raise ValueError(f"group_ids must hold one id a reward: got {given} for {n} rewards.")
        if isinstance(group_ids, Tensor):
            return torch.unique(group_ids, return_inverse=True)[1]
        number = {group: i for i, group in enumerate(dict.fromkeys(group_ids))}
        return torch.tensor([number[group] for group in group_ids], dtype=torch.long)
    if num_generations is not None:
        if n % num_generations:
            divisors = [k for k in range(2, n + 1) if n % k == 0]
            raise ValueError(
                f"{n} rewards cannot be split into groups of num_generations={num_generations}: "
                f"the group size must divide {n} (one of {divisors}), or pass group_ids."
            )
        return torch.arange(n) // num_generations
    if needs_groups:
        raise ValueError(
            f"rewards of shape ({n},) need num_generations or group_ids to say which answers belong together."
        )
    return torch.zeros(n, dtype=torch.long)


def _require_pairs(baseline: str, groups: Tensor, group_ids: Tensor | Sequence[Hashable] | None) -> None:
    if baseline not in ("mean", "leave-one-out") or groups.numel() == 0:
        return
    sizes = torch.bincount(groups)
    if int(sizes.min()) < 2:
        row = int((sizes[groups] < 2).nonzero()[0])
        which = "" if group_ids is None else f" (group id {group_ids[row]!r})"
        raise ValueError(
            f"the group of reward {row}{which} has one answer, but baseline={baseline!r} compares answers of the same "
            f"question: sample at least 2 a question, or use baseline='batch' or 'none'."
        )


def _group_sum(x: Tensor, groups: Tensor) -> Tensor:
    """Sum over each group, given back to each of its rows."""
    size = int(groups.max()) + 1 if groups.numel() else 0
    return x.new_zeros(size).index_add(0, groups, x)[groups]


def _group_max(x: Tensor, mask: Tensor, groups: Tensor) -> Tensor:
    """Largest valid x of each group, given back to each of its rows; −inf where none is valid."""
    size = int(groups.max()) + 1 if groups.numel() else 0
    floor = x.new_full((size,), -torch.inf)
    return floor.scatter_reduce(0, groups, torch.where(mask, x, -torch.inf), "amax")[groups]


def _group_mean(x: Tensor, mask: Tensor, groups: Tensor) -> Tensor:
    return _group_sum(torch.where(mask, x, 0), groups) / _group_sum(mask.to(x.dtype), groups).clamp(min=1)


def _centred(x: Tensor, mask: Tensor, groups: Tensor) -> Tensor:
    """x minus the mean of its group: exactly 0 where the group's valid x are all equal, and at masked rows.

    The mean itself is rounded, and may miss equal scores by one unit in the last place. Subtracting the mean of the
    differences as well removes what rounding left, so that scores that differ in their last digits still sum to 0.
    """
    difference = x - _group_mean(x, mask, groups)
    difference = difference - _group_mean(difference, mask, groups)
    differ = _group_max(x, mask, groups) > -_group_max(-x, mask, groups)
    return torch.where(mask & differ, difference, 0)


def _group_std(x: Tensor, mask: Tensor, groups: Tensor, std: str) -> Tensor:
    deviation = _centred(x, mask, groups)
    peak = _group_max(deviation.abs(), mask, groups).clamp(min=0)
    unit = deviation / torch.where(peak > 0, peak, 1)  # squares of it neither overflow nor vanish
    count = _group_sum(mask.to(x.dtype), groups)
    degrees = count if std == "population" else count - 1
    return peak * (_group_sum(unit**2, groups) / degrees.clamp(min=1)).sqrt()
