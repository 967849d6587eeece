"""From a language model to a trained one: models, tasks, rewards, sampling, log-probabilities, the trainer, evaluation.

transformers and tqdm are imported when they are first needed: masks, log-probabilities, rewards and tasks do without.
"""

from grpo_lib.training.evaluation import Rate, evaluate
from grpo_lib.training.logprobs import completion_logprobs, disable_dropout, token_logprobs
from grpo_lib.training.models import load_model, small_llama
from grpo_lib.training.rewards import exact_match, integer_format, last_number, number_match, random_reward
from grpo_lib.training.rollout import Rollout, completion_mask, sample_completions
from grpo_lib.training.supervised import train_on_answers
from grpo_lib.training.tasks import Task, load_rows, load_task
from grpo_lib.training.trainer import GRPOConfig, GRPOTrainer

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
    "train_on_answers",
]
