"""Log-probabilities of sampled tokens."""

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Integer, Shaped
from torch import Tensor, nn

from grpo_lib._validate import (
    at_least_float32,
    require_floating,
    require_integer,
    require_mask,
    require_ndim,
)


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


def completion_logprobs(
    model: nn.Module,
    prompt_ids: Integer[Tensor, "B P"],
    prompt_mask: Shaped[Tensor, "B P"],
    completion_ids: Integer[Tensor, "N T"],
    completion_mask: Shaped[Tensor, "N T"],
    *,
    num_generations: int = 1,
    temperature: float = 1.0,
) -> Float[Tensor, "N T"]:
    """Log-probability of each token of sampled answers under a language model, differentiable in its weights.

    The prompt of a group runs once, not K times: its keys and values are computed under grad and repeated for the K
    answers. Values and gradients are those of the plain forward pass. A model that cannot reuse a cache (found out by
    comparing both ways once), or that trains with activation checkpointing, takes the plain forward pass; the first is
    said in a warning. Dropout is off in either way, and the model's modes are restored.

    Args:
        model: a causal language model of transformers.
        prompt_ids: prompts, padded on the left, shape (B, P).
        prompt_mask: True (or 1) at the prompts' tokens, shape (B, P).
        completion_ids: answers, shape (B·K, T), the K answers of a prompt next to each other.
        completion_mask: True (or 1) at the answers' tokens, shape (B·K, T); see :func:`grpo_lib.training.completion_mask`.
        num_generations: K, answers a prompt.
        temperature: of the sampler.

    Returns:
        Log-probabilities in nats, shape (B·K, T), float32 or wider; at masked positions numbers without meaning.

    Raises:
        ValueError: shapes that do not fit, prompts that are padded on the right or empty.

    Chapter: practice/fine-tune.
    """
    prompt_mask = check_prompts(prompt_ids, prompt_mask)
    require_ndim("completion_ids", completion_ids, 2, "(B·K, T)")
    mask = require_mask("completion_mask", completion_mask, "completion_ids", completion_ids)
    if completion_ids.shape[0] != prompt_ids.shape[0] * num_generations:
        raise ValueError(
            f"{completion_ids.shape[0]} completions for {prompt_ids.shape[0]} prompts with num_generations="
            f"{num_generations}: expected {prompt_ids.shape[0] * num_generations}."
        )
    if completion_ids.numel() == 0:
        return completion_ids.new_zeros(completion_ids.shape, dtype=torch.float32)
    with dropout_off(model):
        shared = not _checkpointing(model) and can_share_prompt(model)
        logits = (_shared_prompt_logits if shared else _plain_logits)(
            model, prompt_ids, prompt_mask, completion_ids, mask, num_generations
        )
    return token_logprobs(logits, completion_ids, temperature=temperature)


def check_prompts(prompt_ids: Tensor, prompt_mask: Tensor) -> Tensor:
    """The prompts' mask as booleans; raises ValueError unless every prompt ends in the last column."""
    require_ndim("prompt_ids", prompt_ids, 2, "(B, P)")
    mask = require_mask("prompt_mask", prompt_mask, "prompt_ids", prompt_ids)
    if mask.shape[1] == 0 or not mask[:, -1].all() or (mask[:, :-1] & ~mask[:, 1:]).any():
        raise ValueError(
            "prompts must be padded on the left and hold at least one token: a row of prompt_mask is not of the form "
            "0 … 0 1 … 1. Set tokenizer.padding_side = 'left'."
        )
    return mask


@contextmanager
def dropout_off(model: nn.Module) -> Iterator[None]:
    """Dropout off within the block, and every module's mode restored after it, also after an error.

    Activation checkpointing works in training mode only, and computes the activations again after the block, in the
    backward pass. A model that uses it stays in that mode, and must have no dropout.

    Raises:
        ValueError: a model with activation checkpointing whose dropout is not 0; see :func:`disable_dropout`.
    """
    training = [module for module in model.modules() if module.training]
    if not _checkpointing(model):
        model.eval()
    elif dropouts := [value for *_, value in _dropout_probabilities(model) if value > 0]:
        raise ValueError(
            f"the model has dropout {dropouts[0]} and uses activation checkpointing, whose second forward pass would draw another "
            f"dropout: call grpo_lib.training.disable_dropout(model) first."
        )
    try:
        yield
    finally:
        for module in training:
            module.training = True


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout probability of a model to 0, for good: the policy that samples and the one that is trained are then the
    same in training mode too."""
    for module, name, _ in _dropout_probabilities(model):
        setattr(module, name, 0.0)


def _dropout_probabilities(model: nn.Module) -> list[tuple[nn.Module, str, float]]:
    return [
        (module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, float)
        and ("dropout" in name or (name == "p" and isinstance(module, nn.Dropout)))
    ]


def positions(mask: Tensor) -> Tensor:
    """Position of each token of left-padded rows: the first valid one is 0."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


def cache_keyword(model: nn.Module) -> str | None:
    """The name under which the model's forward takes its key-value cache, or None if it takes none.

    transformers renames ``past_key_values`` to ``cache``: older versions swallow the new name without a word, newer ones
    warn at the old one.
    """
    names = inspect.signature(_bare(model).forward).parameters
    return next((name for name in ("cache", "past_key_values") if name in names), None)


_SHARES_PROMPT: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def can_share_prompt(model: nn.Module) -> bool:
    """Whether a cached prompt gives the model's plain log-probabilities; found out once, on a small made-up batch."""
    bare = _bare(model)
    if bare not in _SHARES_PROMPT:
        _SHARES_PROMPT[bare] = _try_shared_prompt(bare)
        if not _SHARES_PROMPT[bare]:
            warnings.warn(
                f"{type(bare).__name__} does not give the same log-probabilities from a cached prompt: every answer "
                f"repeats its prompt from here on, which is slower and exact.",
                stacklevel=3,
            )
    return _SHARES_PROMPT[bare]


@torch.no_grad()
def _try_shared_prompt(model: nn.Module) -> bool:
    if cache_keyword(model) is None:
        return False
    device = next(model.parameters()).device
    vocabulary = model.get_input_embeddings().num_embeddings
    generator = torch.Generator().manual_seed(0)
    prompt_ids = torch.randint(vocabulary, (2, 5), generator=generator).to(device)
    prompt_mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], dtype=torch.bool, device=device)
    completion_ids = torch.randint(vocabulary, (4, 3), generator=generator).to(device)
    mask = torch.ones_like(completion_ids, dtype=torch.bool)
    arguments = (model, prompt_ids, prompt_mask, completion_ids, mask, 2)
    plain = token_logprobs(_plain_logits(*arguments), completion_ids)
    try:
        shared = token_logprobs(_shared_prompt_logits(*arguments), completion_ids)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return False
    exact = next(model.parameters()).dtype in (
        torch.float32,
        torch.float64,
    ) and not torch.is_autocast_enabled(device.type)
    return bool(torch.allclose(shared, plain, atol=1e-4 if exact else 0.25))


def _shared_prompt_logits(
    model: nn.Module,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    completion_ids: Tensor,
    mask: Tensor,
    num_generations: int,
) -> Tensor:
    """Logits (N, T, V) that predict the completion's tokens, with each prompt run once."""
    first, cache = run_prompts(model, prompt_ids, prompt_mask)
    logits = first.repeat_interleave(num_generations, dim=0)
    if completion_ids.shape[1] == 1:
        return logits
    cache.batch_repeat_interleave(num_generations)
    rows_mask = prompt_mask.repeat_interleave(num_generations, dim=0)
    before = mask[:, :-1]
    rest = model(
        input_ids=completion_ids[:, :-1],
        attention_mask=torch.cat([rows_mask, before], dim=1).long(),
        position_ids=positions(torch.cat([rows_mask, before], dim=1))[:, rows_mask.shape[1] :],
        use_cache=True,
        **{cache_keyword(model): cache},
    ).logits
    return torch.cat([logits, rest], dim=1)


def run_prompts(model: nn.Module, prompt_ids: Tensor, prompt_mask: Tensor) -> tuple[Tensor, object]:
    """Logits (B, 1, V) after each prompt, and the cache of the prompts' keys and values."""
    from transformers import DynamicCache

    cache = DynamicCache(config=_bare(model).config)
    logits = model(
        input_ids=prompt_ids,
        attention_mask=prompt_mask.long(),
        position_ids=positions(prompt_mask),
        use_cache=True,
        **{cache_keyword(model): cache},
        **_last(model, 1),
    ).logits
    return logits[:, -1:], cache


class Decoder:
    """Next-token logits of a growing batch of answers: from a cache of the prompts where the model has one, else by reading
    everything again."""

    def __init__(
        self, model: nn.Module, prompt_ids: Tensor, prompt_mask: Tensor, num_generations: int
    ) -> None:
        self.model = model
        self.mask = prompt_mask.repeat_interleave(num_generations, dim=0)
        self.cache, self.ids = None, None
        if can_share_prompt(model):
            first, self.cache = run_prompts(model, prompt_ids, prompt_mask)
            if num_generations > 1:
                self.cache.batch_repeat_interleave(num_generations)
        else:
            first = _read_all(model, prompt_ids, prompt_mask, 1)
            self.ids = prompt_ids.repeat_interleave(num_generations, dim=0)
        self.first = first[:, -1].repeat_interleave(num_generations, dim=0)

    def __call__(self, token: Tensor, going: Tensor) -> Tensor:
        """Logits (n, V) after one more token for each of the n rows that go on; the other rows are dropped."""
        self.mask = torch.cat([self.mask[going], torch.ones_like(token, dtype=torch.bool)[:, None]], dim=1)
        if self.cache is None:
            self.ids = torch.cat([self.ids[going], token[:, None]], dim=1)
            return _read_all(self.model, self.ids, self.mask, 1)[:, -1]
        if not going.all():
            self.cache.batch_select_indices(going.nonzero()[:, 0])
        return self.model(
            input_ids=token[:, None],
            attention_mask=self.mask.long(),
            position_ids=positions(self.mask)[:, -1:],
            use_cache=True,
            **{cache_keyword(self.model): self.cache},
        ).logits[:, -1]


def _plain_logits(
    model: nn.Module,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    completion_ids: Tensor,
    mask: Tensor,
    num_generations: int,
) -> Tensor:
    """The same from one forward pass over prompt and completion, with the prompt repeated for each answer."""
    ids = torch.cat([prompt_ids.repeat_interleave(num_generations, dim=0), completion_ids], dim=1)
    both = torch.cat([prompt_mask.repeat_interleave(num_generations, dim=0), mask], dim=1)
    length = completion_ids.shape[1]
    return _read_all(model, ids, both, length + 1)[:, -length - 1 : -1]


def _read_all(model: nn.Module, ids: Tensor, mask: Tensor, count: int) -> Tensor:
    """Logits of a plain forward pass, at the last count positions at least."""
    arguments = {"position_ids": positions(mask)} if "position_ids" in _parameters(model) else {}
    return model(
        input_ids=ids, attention_mask=mask.long(), use_cache=False, **arguments, **_last(model, count)
    ).logits


def _last(model: nn.Module, count: int) -> dict[str, int]:
    """The argument that keeps the head to the last positions, where the model has it."""
    return {"logits_to_keep": count} if "logits_to_keep" in _parameters(model) else {}


def _parameters(model: nn.Module) -> set[str]:
    return set(inspect.signature(_bare(model).forward).parameters)


def _bare(model: nn.Module) -> nn.Module:
    """The language model inside a LoRA wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _checkpointing(model: nn.Module) -> bool:
    # transformers renames the property, and warns at the old name
    names = ("is_activation_checkpointing", "is_gradient_checkpointing")
    name = next((name for name in names if hasattr(type(_bare(model)), name)), None)
    return model.training and name is not None and bool(getattr(_bare(model), name))
