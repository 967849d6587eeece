"""Log-probabilities with a shared prompt are those of the plain forward pass, in value and gradient."""

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

from grpo_lib.training import completion_logprobs
from grpo_lib.training.logprobs import can_share_prompt, check_prompts, disable_dropout, dropout_off

K = 3


def batch(length: int = 5):
    generator = torch.Generator().manual_seed(1)
    prompt_ids = torch.randint(2, 40, (2, 6), generator=generator)
    prompt_mask = torch.tensor([[0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1]], dtype=torch.bool)
    completion_ids = torch.randint(2, 40, (2 * K, length), generator=generator)
    mask = torch.arange(length) < torch.randint(1, length + 1, (2 * K, 1), generator=generator)
    return prompt_ids, prompt_mask, completion_ids, mask


def one_by_one(model, prompt_ids, prompt_mask, completion_ids, mask, temperature=1.0):
    """Each answer alone, without padding, from the softmax of the logits: what the function must equal."""
    rows = []
    for i, answer in enumerate(completion_ids):
        prompt = prompt_ids[i // K][prompt_mask[i // K]]
        length = int(mask[i].sum())
        logits = model(torch.cat([prompt, answer[:length]])[None]).logits[0, len(prompt) - 1 : -1]
        logps = (logits / temperature).softmax(-1).log()
        row = torch.zeros(completion_ids.shape[1])
        rows.append(row.index_put((torch.arange(length),), logps[torch.arange(length), answer[:length]]))
    return torch.stack(rows)


def gradients(model, logps, mask):
    weights = torch.linspace(-1, 1, mask.numel()).reshape(mask.shape)
    loss = (torch.where(mask, logps, 0) * weights).sum()
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


@pytest.mark.parametrize("length", [1, 5])
def test_shared_prompt_equals_each_answer_alone_in_value_and_gradient(model, length):
    arguments = batch(length)
    mask = arguments[-1]
    shared = completion_logprobs(model, *arguments, num_generations=K, temperature=0.7)
    with dropout_off(model):
        alone = one_by_one(model, *arguments, temperature=0.7)
    torch.testing.assert_close(torch.where(mask, shared, 0), alone, atol=1e-5, rtol=0)
    for ours, theirs in zip(gradients(model, shared, mask), gradients(model, alone, mask), strict=True):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, atol=1e-5 * (1 + theirs.abs().max().item()), rtol=0)
    assert can_share_prompt(model)


def test_what_padding_holds_cannot_matter(model):
    prompt_ids, prompt_mask, completion_ids, mask = batch()
    logps = completion_logprobs(model, prompt_ids, prompt_mask, completion_ids, mask, num_generations=K)
    other = completion_logprobs(
        model,
        torch.where(prompt_mask, prompt_ids, 7),
        prompt_mask,
        torch.where(mask, completion_ids, 9),
        mask,
        num_generations=K,
    )
    torch.testing.assert_close(logps[mask], other[mask], atol=1e-6, rtol=0)


def test_dropout_is_off_and_the_mode_restored_also_after_an_error(model):
    arguments = batch()
    model.lm_head.eval()
    modes = [module.training for module in model.modules()]
    first, second = (completion_logprobs(model, *arguments, num_generations=K) for _ in range(2))
    assert torch.equal(first, second)
    with pytest.raises(ZeroDivisionError), dropout_off(model):
        raise ZeroDivisionError
    assert [module.training for module in model.modules()] == modes


def test_with_activation_checkpointing_nothing_changes(llama):
    arguments = batch()
    plain = completion_logprobs(llama, *arguments, num_generations=K)
    expected = gradients(llama, plain, arguments[-1])
    name = next(
        n for n in ("activation_checkpointing_enable", "gradient_checkpointing_enable") if hasattr(llama, n)
    )
    getattr(llama, name)()  # transformers renames it
    with pytest.raises(ValueError, match=r"dropout 0\.3 and uses activation checkpointing"):
        completion_logprobs(llama, *arguments, num_generations=K)
    disable_dropout(llama)
    logps = completion_logprobs(llama, *arguments, num_generations=K)
    torch.testing.assert_close(logps, plain, atol=1e-5, rtol=0)
    for ours, theirs in zip(gradients(llama, logps, arguments[-1]), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_a_model_without_a_reusable_cache_takes_the_plain_pass_and_says_so():
    torch.manual_seed(0)
    mamba = MambaForCausalLM(MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, state_size=4))
    prompt_ids, _, completion_ids, mask = batch()
    everything = torch.ones_like(prompt_ids, dtype=torch.bool)
    with pytest.warns(UserWarning, match="MambaForCausalLM does not give the same"):
        logps = completion_logprobs(mamba, prompt_ids, everything, completion_ids, mask, num_generations=K)
    alone = one_by_one(mamba, prompt_ids, everything, completion_ids, mask)
    torch.testing.assert_close(torch.where(mask, logps, 0), alone, atol=1e-5, rtol=0)


def test_no_completions_give_nothing(llama):
    prompt_ids, prompt_mask, completion_ids, mask = batch()
    logps = completion_logprobs(
        llama, prompt_ids[:0], prompt_mask[:0], completion_ids[:0], mask[:0], num_generations=K
    )
    assert logps.shape == (0, 5)


@pytest.mark.bad_input
def test_prompts_padded_on_the_right_are_refused():
    with pytest.raises(ValueError, match="padded on the left"):
        check_prompts(torch.ones(1, 3, dtype=torch.long), torch.tensor([[1, 1, 0]]))
    with pytest.raises(ValueError, match="at least one token"):
        check_prompts(torch.ones(1, 3, dtype=torch.long), torch.zeros(1, 3))


@pytest.mark.bad_input
def test_completions_that_do_not_match_the_prompts_are_refused(llama):
    prompt_ids, prompt_mask, completion_ids, mask = batch()
    with pytest.raises(ValueError, match="6 completions for 2 prompts with num_generations=2: expected 4"):
        completion_logprobs(llama, prompt_ids, prompt_mask, completion_ids, mask, num_generations=2)
