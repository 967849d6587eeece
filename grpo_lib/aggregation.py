"""Token terms → one number."""

from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from grpo_lib._validate import at_least_float32, require_choice, require_floating, require_mask, require_ndim

Aggregation = Literal["seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm", "seq-mean-token-sum"]
AGGREGATIONS = ("seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm", "seq-mean-token-sum")


def aggregate(
    values: Float[Tensor, "N T"],
    mask: Shaped[Tensor, "N T"],
    mode: Aggregation = "seq-mean-token-mean",
    *,
    normalizer: float | Tensor | None = None,
    max_completion_length: int | None = None,
) -> Float[Tensor, ""]:
    r"""One number from the terms of all tokens: every mode is a choice of the weight c_i of the tokens of answer i.

    .. math:: J = \sum_i c_i \sum_t \ell_{i,t}

    ========================= ========================= =============
    mode                      c_i                       used by
    ========================= ========================= =============
    seq-mean-token-mean       :math:`1/(N|y_i|)`        GRPO
    token-mean                :math:`1/\sum_j|y_j|`     DAPO
    seq-mean-token-sum-norm   :math:`1/(NL)`            Dr. GRPO
    seq-mean-token-sum        :math:`1/N`               the plain sum
    ========================= ========================= =============

    N counts the answers with at least one valid token, :math:`|y_i|` the valid tokens of answer i.

    Args:
        values: one term a token, shape (N, T). What masked positions hold (NaN, ±inf) cannot matter.
        mask: shape (N, T), True (or 1) at valid tokens.
        mode: one of the four above, by verl's names.
        normalizer: the global count that the mode divides by, when values are only a part of the batch (a micro-batch, one
            of several processes): all valid tokens for ``token-mean``, all answers for the other modes. The parts'
            results then add up to the whole batch's, in value and gradient. Undoing a mean over processes is the
            caller's business.
        max_completion_length: L of ``seq-mean-token-sum-norm``, in tokens.

    Returns:
        A scalar, float32 or wider; 0, still attached to the graph, if nothing is valid.

    Raises:
        ValueError: wrong shapes, a mask that is not 0/1, an unknown mode, L missing or not positive, a negative
            normalizer, or a normalizer of 0 while a token is valid.

    Source: DeepSeekMath (2024), equation 3; DAPO (2025), equation 12; Dr. GRPO (2025), section 3.2.

    Chapter: objective/full-objective, equation full-objective.
    """
    require_choice("mode", mode, AGGREGATIONS)
    require_floating("values", values)
    require_ndim("values", values, 2, "(N, T)")
    mask = require_mask("mask", mask, "values", values)
    if mode == "seq-mean-token-sum-norm" and not (max_completion_length or 0) > 0:
        raise ValueError(
            f"mode 'seq-mean-token-sum-norm' divides by max_completion_length, got {max_completion_length}: "
            f"pass the longest answer allowed, in tokens."
        )
    values = torch.where(mask, at_least_float32(values), 0)
    lengths = mask.sum(dim=1)
    if mode == "token-mean":
        total, count = values.sum(), lengths.sum()
    else:
        total, count = values.sum(dim=1), (lengths > 0).sum()
        if mode == "seq-mean-token-mean":
            total = total / lengths.clamp(min=1)
        elif mode == "seq-mean-token-sum-norm":
            total = total / max_completion_length
        total = total.sum()
    return total / _denominator(normalizer, count)


def _denominator(normalizer: float | Tensor | None, count: Tensor) -> float | Tensor:
    """What the mode divides by: the given global count or the batch's own, and 1 where nothing is valid."""
    if normalizer is None:
        return count.clamp(min=1)
    number = float(normalizer)
    if not 0 <= number < float("inf") or (number == 0 and int(count) > 0):
        raise ValueError(
            f"normalizer={number:g} for a batch with {int(count)} to count: give the global number of valid tokens "
            f"(token-mean) or of answers (other modes)."
        )
    return number or 1.0
