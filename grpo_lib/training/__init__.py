"""From a language model to the tensors that the core functions take."""

from grpo_lib.training.logprobs import token_logprobs
from grpo_lib.training.rollout import completion_mask

__all__ = ["completion_mask", "token_logprobs"]
