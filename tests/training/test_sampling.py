"""The policy that samples is the policy that is trained."""

import itertools
import math
import warnings

import pytest
import torch

from grpo_lib.training import completion_logprobs, sample_completions, small_llama
from grpo_lib.training.rollout import encode_prompts

CHARACTERS = "0123456789+="


@pytest.fixture
def policy():
    return small_llama(CHARACTERS, hidden_size=32, num_layers=2, seed=3)


def draw(model, tokenizer, prompts=("1+2=", "10+11="), seed=0, **settings):
    settings = {"num_generations": 4, "max_completion_length": 6} | settings
    return sample_completions(
        model, tokenizer, list(prompts), generator=torch.Generator().manual_seed(seed), **settings
    )


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_recorded_log_probs_are_those_that_are_trained(policy, temperature):
    model, tokenizer = policy
    rollout = draw(model, tokenizer, temperature=temperature)
    logps = completion_logprobs(
        model,
        rollout.prompt_ids,
        rollout.prompt_mask,
        rollout.completion_ids,
        rollout.completion_mask,
        num_generations=4,
        temperature=temperature,
    )
    mask = rollout.completion_mask
    torch.testing.assert_close(rollout.per_token_logps[mask], logps[mask], atol=1e-5, rtol=0)
    assert (rollout.per_token_logps[~mask] == 0).all()


def test_nothing_is_taken_from_the_generation_settings(policy):
    """Top-k and a repetition penalty in the checkpoint would make the sampler another policy than the trained one."""
    model, tokenizer = policy
    expected = draw(model, tokenizer)
    model.generation_config.update(
        do_sample=True, top_k=2, top_p=0.5, repetition_penalty=1.5, temperature=0.1
    )
    torch.testing.assert_close(draw(model, tokenizer).completion_ids, expected.completion_ids)


def test_every_token_of_the_vocabulary_can_be_drawn(policy):
    model, tokenizer = policy
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()  # tied: all logits are 0
    rollout = draw(model, tokenizer, num_generations=400, max_completion_length=1)
    size = len(tokenizer)
    assert len(rollout.completion_ids.unique()) == size
    torch.testing.assert_close(rollout.per_token_logps, torch.full((800, 1), -math.log(size)))
    torch.testing.assert_close(rollout.entropy, torch.full((800, 1), math.log(size)))


def test_answers_that_end_leave_the_batch_and_change_no_other(policy):
    """Greedy answers next to each other equal those of each prompt alone, whoever ends first."""
    model, tokenizer = policy
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(8)  # a fresh model says the same token for ever
    prompts = [f"{a}+{b}=" for a in (0, 3, 12) for b in (5, 11)]
    settings = {"num_generations": 1, "greedy": True, "max_completion_length": 8}
    spoken = draw(model, tokenizer, prompts, eos_token_ids=[1], **settings).completion_ids
    # End tokens after which some answers end early and others late; the model is random, so they are looked for.
    settings["eos_token_ids"] = next(
        [1, a, b]
        for a, b in itertools.combinations(spoken.unique().tolist(), 2)
        if len({tuple(row).index(next((t for t in row if t in (a, b)), row[-1])) for row in spoken.tolist()})
        > 1
    )
    together = draw(model, tokenizer, prompts, **settings)
    lengths = together.completion_mask.sum(dim=1)
    assert len(lengths.unique()) > 1, "some answer must end before another for this test to mean something"
    for i, prompt in enumerate(prompts):
        alone = draw(model, tokenizer, [prompt], **settings)
        assert torch.equal(
            alone.completion_ids[0][alone.completion_mask[0]],
            together.completion_ids[i][together.completion_mask[i]],
        )


def test_the_first_of_several_end_tokens_ends_the_answer_and_the_text(policy):
    model, tokenizer = policy
    five = tokenizer.convert_tokens_to_ids("5")
    rollout = draw(model, tokenizer, num_generations=64, eos_token_ids=[1, five])
    for ids, mask, finished, text in zip(
        rollout.completion_ids, rollout.completion_mask, rollout.finished, rollout.texts, strict=True
    ):
        kept = ids[mask].tolist()
        assert not {1, five} & set(kept[:-1])
        assert bool(finished) == (kept[-1] in (1, five))
        assert "5" not in text and "<end>" not in text
        assert finished or len(kept) == 6
    assert 0 < rollout.finished.float().mean() < 1


def test_the_same_seed_gives_the_same_answers_and_answers_of_a_group_differ(policy):
    model, tokenizer = policy
    first, again, other = (draw(model, tokenizer, num_generations=8, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.completion_ids, again.completion_ids)
    assert first.texts != other.texts
    assert len(set(first.texts[:8])) > 1


def test_the_training_mode_is_restored(policy):
    model, tokenizer = policy
    model.train()
    draw(model, tokenizer)
    assert model.training


def test_a_chat_gets_its_template_and_no_second_first_token(policy):
    _, tokenizer = policy
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    ids, mask = encode_prompts(tokenizer, [[{"role": "user", "content": "1+1="}], "22+1="])
    assert ids[0][mask[0]].tolist() == tokenizer("1+1=").input_ids
    assert mask.tolist() == [[False, True, True, True, True], [True] * 5]


def test_it_is_silent(policy):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(*policy)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompts": []}, "at least one"),
        ({"prompts": [""]}, "prompt 0 has no tokens"),
        ({"temperature": 0.0}, "greedy=True"),
        ({"num_generations": 0}, "num_generations"),
        ({"max_completion_length": 0}, "max_completion_length"),
    ],
)
def test_bad_input_is_refused(policy, settings, message):
    with pytest.raises(ValueError, match=message):
        draw(*policy, **settings)
