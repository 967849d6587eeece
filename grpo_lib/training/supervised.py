"""Supervised training on given answers: the warm start without which all groups of a fresh model are silent."""

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from grpo_lib._validate import require_count
from grpo_lib.aggregation import aggregate
from grpo_lib.training.logprobs import completion_logprobs
from grpo_lib.training.models import end_token_ids
from grpo_lib.training.rollout import encode_prompts
from grpo_lib.training.tasks import Row


def train_on_answers(
    model: nn.Module,
    tokenizer: Any,
    rows: Sequence[Row],
    *,
    steps: int,
    batch_size: int = 64,
    learning_rate: float = 2e-3,
    seed: int = 0,
    progress: bool = True,
) -> list[float]:
    """Raise the log-probability of given answers, their end token included, by AdamW.

    Args:
        model, tokenizer: a causal language model of transformers, trained in place.
        rows: questions with the keys ``prompt`` and ``answer``.
        steps: of the optimizer.
        batch_size: questions a step, drawn with replacement.
        learning_rate: of AdamW; the default suits a small model from scratch, a pretrained one wants 1e-5.
        seed: of the draws.
        progress: whether to show a bar.

    Returns:
        The loss at each step, which is minus the mean log-probability of a token, in nats.

    Raises:
        ValueError: no rows, a row without an answer, a count below 1.

    Chapter: practice/train-a-small-model.
    """
    from tqdm.auto import tqdm

    require_count("steps", steps)
    require_count("batch_size", batch_size)
    if len(rows) == 0:
        raise ValueError("rows is empty: there are no answers to train on.")
    if missing := [i for i, row in enumerate(rows) if row.get("answer") is None]:
        raise ValueError(f"row {missing[0]} has no answer: supervised training needs the key 'answer'.")
    end = end_token_ids(model, tokenizer)[0]
    draw = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    losses = []
    for _ in tqdm(range(steps), desc="answers", disable=not progress, leave=False):
        batch = draw.choices(rows, k=batch_size)
        prompt_ids, prompt_mask = encode_prompts(tokenizer, [row["prompt"] for row in batch], model.device)
        answers = [[*tokenizer(str(row["answer"]), add_special_tokens=False).input_ids, end] for row in batch]
        width = max(map(len, answers))
        ids = torch.tensor([ids + [end] * (width - len(ids)) for ids in answers], device=model.device)
        mask = torch.arange(width, device=model.device) < torch.tensor(
            [[len(ids)] for ids in answers], device=model.device
        )
        logps = completion_logprobs(model, prompt_ids, prompt_mask, ids, mask)
        loss = -aggregate(logps, mask, "token-mean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
