"""Log-probabilities of sampled tokens."""

from jaxtyping import Float, Integer
from torch import Tensor

from grpo_lib._validate import at_least_float32, require_floating, require_integer


def token_logprobs(
    logits: Float[Tensor, "*batch V"], token_ids: Integer[Tensor, "*batch"], *, temperature: float = 1.0
) -> Float[Tensor, "*batch"]:
    r"""Log-probability of each sampled token under the distribution it was sampled from.

    .. math:: \log\pi(y_t) = z_{y_t}/T - \log\sum_a e^{z_a/T}

    Args:
        logits: z, any leading shape, vocabulary last.
        token_ids: the sampled tokens, shape of logits without the last axis; padding too holds a token of the vocabulary.
        temperature: T of the sampler, > 0: the same for the current, old and reference policies, or the ratio is not 1 where
            nothing changed.

    Returns:
        Log-probabilities in nats, shape of token_ids, float32 or wider.

    Raises:
        ValueError: shapes that do not fit, ids that are not integers or not in the vocabulary, a temperature that is not
            positive.

    Chapter: objective/full-objective.
    """
    require_floating("logits", logits)
    require_integer("token_ids", token_ids)
    if logits.ndim == 0:
        raise ValueError("logits must have a vocabulary axis, got a scalar.")
    if logits.shape[:-1] != token_ids.shape:
        raise ValueError(
            f"token_ids of shape {tuple(token_ids.shape)} do not fit logits of shape {tuple(logits.shape)}: "
            f"expected one token for each position, {tuple(logits.shape[:-1])}."
        )
    outside = (token_ids < 0) | (token_ids >= logits.shape[-1])
    if outside.any():
        raise ValueError(
            f"token_ids hold {token_ids[outside][0].item()}, outside the vocabulary of logits, 0 to "
            f"{logits.shape[-1] - 1}: put any token of it at padding, and mask its log-probability."
        )
    if not 0 < temperature < float("inf"):
        raise ValueError(
            f"temperature must be > 0 and finite, got {temperature}: greedy decoding has no log-probabilities."
        )
    scaled = at_least_float32(logits) / temperature
    return scaled.gather(-1, token_ids.unsqueeze(-1).long()).squeeze(-1) - scaled.logsumexp(-1)
