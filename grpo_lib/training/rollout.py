"""Sampled answers."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from grpo_lib._validate import require_integer, require_ndim


def completion_mask(
    completion_ids: Integer[Tensor, "N T"], eos_token_ids: int | Sequence[int] | Tensor
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
        ValueError: completion_ids not of shape (N, T), ids that are not integers, or no end token given.

    Chapter: objective/full-objective.
    """
    require_integer("completion_ids", completion_ids)
    require_ndim("completion_ids", completion_ids, 2, "(N, T)")
    ends = torch.as_tensor([] if eos_token_ids is None else eos_token_ids, device=completion_ids.device)
    if ends.numel() == 0:
        raise ValueError(
            "eos_token_ids is empty: give at least one end token, or every answer would count as cut off."
        )
    require_integer("eos_token_ids", ends)
    is_end = torch.isin(completion_ids, ends)
    ended_before = is_end.cumsum(dim=1) - is_end.long() > 0
    return ~ended_before, is_end.any(dim=1)
