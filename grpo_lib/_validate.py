"""Checks of inputs, shared by the core modules. Every message says what was given, what was expected and what to do."""

from collections.abc import Collection
from numbers import Integral

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32, or unchanged if it is float64: half precision, integers and booleans are widened."""
    return x if x.dtype == torch.float64 else x.to(torch.float32)


def require_tensor(name: str, x: object) -> None:
    if not isinstance(x, Tensor):
        raise ValueError(
            f"{name} must be a torch.Tensor, got {type(x).__name__}: wrap it with torch.tensor(...) first."
        )


def require_floating(name: str, x: Tensor) -> None:
    require_tensor(name, x)
    if not x.is_floating_point():
        raise ValueError(f"{name} must be a floating-point tensor, got {x.dtype}: convert it with .float().")


def require_real(name: str, x: object) -> None:
    require_tensor(name, x)
    if x.is_complex():
        raise ValueError(f"{name} must be real numbers, got {x.dtype}: take the real part.")


def require_integer(name: str, x: object) -> None:
    require_tensor(name, x)
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise ValueError(f"{name} must be an integer tensor, got {x.dtype}: pass the token ids themselves.")


def require_count(name: str, value: object) -> None:
    if not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be an integer, at least 1, got {value!r}.")


def require_ndim(name: str, x: Tensor, ndim: int, axes: str) -> None:
    if x.ndim != ndim:
        raise ValueError(f"{name} must have shape {axes}, got {tuple(x.shape)}.")


def require_same_shape(name: str, x: Tensor, other_name: str, other: Tensor) -> None:
    if x.shape != other.shape:
        raise ValueError(
            f"{name} has shape {tuple(x.shape)} but {other_name} has {tuple(other.shape)}: "
            f"they must be the same; nothing is broadcast."
        )


def require_choice(name: str, value: object, choices: Collection[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r} is unknown: choose one of {', '.join(map(repr, choices))}.")


def require_finite(name: str, x: Tensor, where: Tensor, remedy: str) -> None:
    """Raise if x is NaN or infinite at a position where `where` (same shape) is True."""
    bad = where & ~torch.isfinite(x)
    if bad.any():
        position = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"{name} holds {x[position].item()} at position {position} ({int(bad.sum())} such values): "
            f"expected finite numbers. {remedy}"
        )


def require_mask(name: str, mask: Tensor, other_name: str, other: Tensor) -> Tensor:
    """The mask as booleans, checked to have the shape of `other` and to hold only 0/1 or False/True."""
    require_tensor(name, mask)
    require_same_shape(name, mask, other_name, other)
    selected = mask != 0  # a new tensor: one made in inference mode could not be saved for the backward pass
    if mask.dtype != torch.bool and (odd := selected & (mask != 1)).any():
        raise ValueError(
            f"{name} holds {mask[odd][0].item()} but must hold only 0 and 1 (or False and True): it selects tokens, "
            f"it does not weigh them."
        )
    return selected


def require_clip_range(epsilon: float, epsilon_high: float | None, delta: float | None) -> float:
    """Check the clip widths and return the upper one (epsilon where epsilon_high is None)."""
    high = epsilon if epsilon_high is None else epsilon_high
    for name, value in (("epsilon", epsilon), ("epsilon_high", high)):
        if not value > 0:
            raise ValueError(
                f"{name} must be > 0, got {value}: it is the width of the clip interval (0.2 is usual)."
            )
    if delta is not None and not delta > 1 + high:
        raise ValueError(
            f"delta must be > 1 + epsilon_high = {1 + high:g}, got {delta}: it caps ratios that clipping leaves free."
        )
    return high
