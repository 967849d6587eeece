"""Sampled answers."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def completion_mask(
    completion_ids: Int[Tensor, "N T"], eos_token_ids: int | Sequence[int]
) -> tuple[Bool[Tensor, "N T"], Bool[Tensor, " N"]]:
    """Which tokens belong to the answer: all up to and including its first end token.

    The end token is trained like any other, or the model never learns to stop. What follows it is padding, even if
    it looks like text; whether the padding token equals the end token does not matter.

    Args:
        completion_ids: sampled tokens, shape (N, T).
        eos_token_ids: the end token, or several of which the first to appear ends the answer.

    Returns:
        ``(mask, finished)``: shape (N, T), True at the answer's tokens; shape (N,), True where an end token appeared. An
        answer cut off by the length limit keeps all its tokens and is not finished.

    Raises:
        ValueError: completion_ids not of shape (N, T), or no end token given.

    Chapter: objective/full-objective.
    """
    if completion_ids.ndim != 2:
        raise ValueError(f"completion_ids must have shape (N, T), got {tuple(completion_ids.shape)}.")
    ends = [eos_token_ids] if isinstance(eos_token_ids, int) else list(eos_token_ids)
    if not ends:
        raise ValueError(
            "eos_token_ids is empty: give at least one end token, or every answer would count as cut off."
        )
    is_end = torch.isin(completion_ids, torch.tensor(ends, device=completion_ids.device))
    ended_before = is_end.cumsum(dim=1) - is_end.long() > 0
    return ~ended_before, is_end.any(dim=1)
