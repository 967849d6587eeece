"""Sampled answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from grpo_lib._validate import require_count, require_integer, require_ndim
from grpo_lib.training import logprobs
from grpo_lib.training.models import end_token_ids

Prompt = str | list[dict[str, str]]
"""A text as it is, or a chat: messages with the keys ``role`` and ``content``."""


@dataclass(frozen=True)
class Rollout:
    """K answers to each of B prompts, the answers of a prompt next to each other; N = B·K.

    Attributes:
        prompt_ids, prompt_mask: the prompts, padded on the left, shape (B, P).
        completion_ids: the sampled tokens, as sampled, shape (N, T); padding after the end token.
        completion_mask: True at the answer's tokens, its end token included, shape (N, T).
        finished: True where an end token was sampled, shape (N,); the others were cut off by the length limit.
        per_token_logps: log-probability of each token under the policy that sampled it, in nats, shape (N, T); 0 where
            masked.
        entropy: of the distribution that each token was sampled from, in nats, shape (N, T); 0 where masked.
        texts: the answers as text, without special tokens, N strings.
    """

    prompt_ids: Integer[Tensor, "B P"]
    prompt_mask: Bool[Tensor, "B P"]
    completion_ids: Integer[Tensor, "N T"]
    completion_mask: Bool[Tensor, "N T"]
    finished: Bool[Tensor, " N"]
    per_token_logps: Float[Tensor, "N T"]
    entropy: Float[Tensor, "N T"]
    texts: list[str]


@torch.no_grad()
def sample_completions(
    model: nn.Module,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    *,
    num_generations: int,
    max_completion_length: int,
    temperature: float = 1.0,
    greedy: bool = False,
    eos_token_ids: int | Sequence[int] | None = None,
    generator: torch.Generator | None = None,
) -> Rollout:
    """Sample K answers to each prompt, from the very distribution whose log-probabilities are trained.

    Each token is drawn from the softmax over the whole vocabulary at the given temperature. Nothing is taken from the
    checkpoint's generation settings: no top-k, no top-p, no repetition penalty. A group's prompt runs once, and answers
    that have ended leave the batch.

    Args:
        model: a causal language model of transformers.
        tokenizer: its tokenizer.
        prompts: B texts, or chats to which the tokenizer's chat template is applied.
        num_generations: K, answers a prompt, at least 1.
        max_completion_length: longest answer in tokens, its end token included.
        temperature: > 0. Greedy answers ignore it.
        greedy: take the most likely token instead of drawing one (for evaluation).
        eos_token_ids: the end tokens; all that model and tokenizer name if None.
        generator: of the random numbers, on the model's device; the global one if None.

    Returns:
        A :class:`Rollout`.

    Raises:
        ValueError: no prompts, an empty prompt, a count below 1, a temperature that is not positive.

    Chapter: practice/fine-tune.
    """
    require_count("num_generations", num_generations)
    require_count("max_completion_length", max_completion_length)
    if not 0 < temperature < float("inf"):
        raise ValueError(
            f"temperature must be > 0 and finite, got {temperature}: for greedy answers pass greedy=True."
        )
    prompt_ids, prompt_mask = encode_prompts(tokenizer, prompts, model.device)
    ends = torch.as_tensor(
        end_token_ids(model, tokenizer) if eos_token_ids is None else eos_token_ids, device=model.device
    ).reshape(-1)
    shape = (len(prompts) * num_generations, max_completion_length)
    ids = torch.full(shape, int(ends[0]), device=model.device)
    logps, entropy = torch.zeros(shape, device=model.device), torch.zeros(shape, device=model.device)

    with logprobs.dropout_off(model):
        live = torch.arange(shape[0], device=model.device)
        step = logprobs.Decoder(model, prompt_ids, prompt_mask, num_generations)
        logits = step.first
        for t in range(max_completion_length):
            log_p = (logits.float() / temperature).log_softmax(-1)
            if greedy:
                token = log_p.argmax(-1)
            else:
                token = torch.multinomial(log_p.exp(), 1, generator=generator)[:, 0]
            ids[live, t] = token
            logps[live, t] = log_p.gather(1, token[:, None])[:, 0]
            entropy[live, t] = torch.special.entr(log_p.exp()).sum(-1)
            going = ~torch.isin(token, ends)
            if t + 1 == max_completion_length or not going.any():
                break
            live = live[going]
            logits = step(token[going], going)

    mask, finished = completion_mask(ids[:, : t + 1], ends)
    texts = [
        tokenizer.decode(row[keep & ~torch.isin(row, ends)], skip_special_tokens=True)
        for row, keep in zip(ids[:, : t + 1], mask, strict=True)
    ]
    return Rollout(
        prompt_ids,
        prompt_mask,
        ids[:, : t + 1],
        mask,
        finished,
        logps[:, : t + 1],
        entropy[:, : t + 1],
        texts,
    )


def encode_prompts(
    tokenizer: Any, prompts: Sequence[Prompt], device: torch.device | str = "cpu"
) -> tuple[Integer[Tensor, "B P"], Bool[Tensor, "B P"]]:
    """Token ids of the prompts, padded on the left, and their mask.

    A text gets the special tokens that the tokenizer adds by itself; a chat gets those of its template and no others.

    Raises:
        ValueError: no prompts, or one without a token.
    """
    if isinstance(prompts, str) or len(prompts) == 0:
        raise ValueError(f"prompts must be a list of at least one text or chat, got {prompts!r}.")
    rows = [
        tokenizer(prompt).input_ids
        if isinstance(prompt, str)
        else tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]
        for prompt in prompts
    ]
    if empty := [i for i, row in enumerate(rows) if len(row) == 0]:
        raise ValueError(f"prompt {empty[0]} has no tokens: {prompts[empty[0]]!r}.")
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in rows], device=device)
    return ids, mask


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
