"""From a language model to a trained one: models, tasks, rewards, sampling, log-probabilities, the trainer, evaluation.

What needs transformers is imported when it is first used: masks, log-probabilities, rewards and tasks do without.
"""

import importlib
from typing import Any

from grpo_lib.training.logprobs import completion_logprobs, disable_dropout, token_logprobs
from grpo_lib.training.rewards import exact_match, integer_format, last_number, number_match, random_reward
from grpo_lib.training.rollout import Rollout, completion_mask, sample_completions
from grpo_lib.training.tasks import Task, load_rows, load_task

_LATER = {
    "GRPOConfig": "trainer",
    "GRPOTrainer": "trainer",
    "Rate": "evaluation",
    "evaluate": "evaluation",
    "load_model": "models",
    "small_llama": "models",
}

__all__ = [
    "GRPOConfig",
    "GRPOTrainer",
    "Rate",
    "Rollout",
    "Task",
    "completion_logprobs",
    "completion_mask",
    "disable_dropout",
    "evaluate",
    "exact_match",
    "integer_format",
    "last_number",
    "load_model",
    "load_rows",
    "load_task",
    "number_match",
    "random_reward",
    "sample_completions",
    "small_llama",
    "token_logprobs",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
