"""How often a policy is right: greedy, sampled, and within k tries, each with an interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import nn

from grpo_lib._validate import require_count
from grpo_lib.training.rewards import RewardFunction, score
from grpo_lib.training.rollout import sample_completions
from grpo_lib.training.tasks import Row, columns

_Z = 1.959964  # of a 95 % interval


@dataclass(frozen=True)
class Rate:
    """A share of right answers with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def wilson(successes: float, trials: int) -> Rate:
    """Share of successes with Wilson's 95 % interval, which stays sensible near 0 and 1.

    Raises:
        ValueError: no trials, or successes outside 0 … trials.

    Source: Wilson (1927), Probable Inference, the Law of Succession, and Statistical Inference.
    """
    require_count("trials", trials)
    if not 0 <= successes <= trials:
        raise ValueError(f"successes must lie between 0 and {trials}, got {successes}.")
    p = successes / trials
    center = (p + _Z**2 / (2 * trials)) / (1 + _Z**2 / trials)
    half = _Z / (1 + _Z**2 / trials) * sqrt(p * (1 - p) / trials + _Z**2 / (4 * trials**2))
    return Rate(p, max(0.0, center - half), min(1.0, center + half))


def clustered(shares: Sequence[float], seed: int = 0) -> Rate:
    """Mean of per-question shares with a 95 % bootstrap interval over questions: the answers to one question are alike.

    Raises:
        ValueError: no questions.
    """
    if len(shares) == 0:
        raise ValueError("there are no questions to average over.")
    x = torch.tensor(shares, dtype=torch.float64)
    draws = torch.randint(len(x), (2000, len(x)), generator=torch.Generator().manual_seed(seed))
    low, high = torch.quantile(
        x[draws].mean(dim=1), torch.tensor([0.025, 0.975], dtype=torch.float64)
    ).tolist()
    return Rate(x.mean().item(), low, high)


def evaluate(
    model: nn.Module,
    tokenizer: Any,
    rows: Sequence[Row],
    correct: RewardFunction | dict[str, RewardFunction],
    *,
    max_completion_length: int,
    num_samples: int = 8,
    temperature: float = 1.0,
    batch_size: int = 16,
    seed: int = 0,
    progress: bool = True,
) -> dict[str, Rate]:
    """Accuracy on a set of questions.

    Args:
        model, tokenizer: the policy.
        rows: questions with the columns that ``correct`` reads.
        correct: a reward function; an answer counts as right where it gives 1 or more. Or several by name, for instance a strict and
            a lenient reading of the same answers.
        max_completion_length: in tokens.
        num_samples: answers drawn for each question, at least 1.
        temperature: of the samples.
        batch_size: questions at a time.
        seed: of the samples.
        progress: whether to show a bar.

    Returns:
        For each name ``"NAME/greedy"``, ``"NAME/sampled"`` (mean over questions and samples) and ``"NAME/pass@k"`` (share of questions
        with a right answer among the k = num_samples drawn), as :class:`Rate`. With a single function there is no ``NAME/``.

    Raises:
        ValueError: no questions, a count below 1.

    Chapter: practice/fine-tune.
    """
    from tqdm.auto import tqdm

    require_count("num_samples", num_samples)
    require_count("batch_size", batch_size)
    if len(rows) == 0:
        raise ValueError("rows is empty: there are no questions to evaluate on.")
    readings = correct if isinstance(correct, dict) else {"": correct}
    generator = torch.Generator(model.device).manual_seed(seed)
    right: dict[tuple[str, str], list[float]] = {
        (name, how): [] for name in readings for how in ("greedy", "sampled")
    }
    for start in tqdm(range(0, len(rows), batch_size), desc="evaluating", disable=not progress, leave=False):
        batch = list(rows[start : start + batch_size])
        for how, count in (("greedy", 1), ("sampled", num_samples)):
            rollout = sample_completions(
                model,
                tokenizer,
                [row["prompt"] for row in batch],
                num_generations=count,
                max_completion_length=max_completion_length,
                temperature=temperature,
                greedy=how == "greedy",
                generator=generator,
            )
            for name, function in readings.items():
                values = torch.tensor(score(function, rollout.texts, columns(batch, count)))
                hits = (values >= 1).double().reshape(-1, count)
                right[name, how] += hits.tolist()

    result = {}
    for name in readings:
        prefix = f"{name}/" if name else ""
        greedy, sampled = right[name, "greedy"], right[name, "sampled"]
        result[f"{prefix}greedy"] = wilson(sum(row[0] for row in greedy), len(rows))
        result[f"{prefix}sampled"] = clustered([sum(row) / num_samples for row in sampled])
        result[f"{prefix}pass@{num_samples}"] = wilson(sum(max(row) for row in sampled), len(rows))
    return result
