"""The training step, and what happens when data, rewards or settings are bad."""

import copy
import math
import warnings

import pytest
import torch

from grpo_lib.training import GRPOConfig, GRPOTrainer, load_task, small_llama
from grpo_lib.training.trainer import describe

CHARACTERS = "0123456789+="
QUESTIONS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(5) for b in range(5)]


def starts_with_seven(completions):
    return [float(text.startswith("7")) for text in completions]


def digits(completions, **columns):
    return [sum(map(text.count, "02468")) / 4 for text in completions]


def trainer(reward=digits, model=None, **settings) -> GRPOTrainer:
    own, tokenizer = small_llama(CHARACTERS, hidden_size=32, num_layers=1)
    settings = {
        "prompts_per_step": 3,
        "num_generations": 4,
        "max_completion_length": 4,
        "max_steps": 2,
        "learning_rate": 1e-3,
    } | settings
    return GRPOTrainer(
        model or own, reward, GRPOConfig(**settings), train_dataset=QUESTIONS, processing_class=tokenizer
    )


def weights(t: GRPOTrainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in t.model.parameters()])


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "rloo", "dapo", "gspo", "cispo"])
def test_it_learns(algorithm):
    wide = {"epsilon": 0.2, "epsilon_high": 0.2} if algorithm == "gspo" else {}
    t = trainer(
        starts_with_seven,
        algorithm=algorithm,
        max_steps=60,
        prompts_per_step=8,
        num_generations=8,
        learning_rate=3e-3,
        **wide,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # once it has learned, all groups are silent
        history = t.train(progress=False)
    assert history[0]["reward"] < 0.3
    assert sum(row["reward"] for row in history[-5:]) / 5 > 0.85


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("aggregation", ["seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"])
def test_micro_batches_change_nothing(aggregation, beta):
    whole = trainer(aggregation=aggregation, beta=beta, num_iterations=2)
    parts = trainer(aggregation=aggregation, beta=beta, num_iterations=2, micro_batch_size=4)
    before = weights(whole)
    for t in (whole, parts):
        t.train(progress=False)
    assert (weights(whole) - before).abs().max() > 1e-4
    torch.testing.assert_close(weights(whole), weights(parts), atol=2e-6, rtol=0)
    for ours, theirs in zip(whole.log_history, parts.log_history, strict=True):
        for name in theirs.keys() - {"step_time"}:
            assert ours[name] == pytest.approx(theirs[name], abs=1e-4), name


def test_skipping_silent_groups_gives_the_same_step(monkeypatch):
    def first_question_silent(completions, prompts):
        return [
            0.0 if prompt == prompts[0] else value
            for prompt, value in zip(prompts, digits(completions), strict=True)
        ]

    skipping, full = trainer(first_question_silent), trainer(first_question_silent, beta=1e-30)
    for t in (skipping, full):
        t.train(progress=False)
    assert skipping.log_history[0]["frac_reward_zero_std"] > 0
    torch.testing.assert_close(weights(skipping), weights(full), atol=1e-6, rtol=0)


def test_a_step_without_a_live_group_still_moves_the_optimizer():
    t = trainer(lambda completions: [1.0] * len(completions), max_steps=1)
    before = weights(t)
    with pytest.warns(UserWarning, match="teach nothing"):
        t.train(progress=False)
    assert torch.equal(weights(t), before)
    assert t.optimizer.state[next(t.model.parameters())]["step"] == 1
    assert t.log_history[0]["frac_reward_zero_std"] == 1.0


def test_old_log_probs_stay_frozen_over_several_updates():
    t = trainer(num_iterations=3, learning_rate=5e-2, max_steps=1)
    assert t.train(progress=False)[0]["clip_ratio/region_mean"] > 0
    single = trainer(num_iterations=1, learning_rate=5e-2, max_steps=1)
    assert single.train(progress=False)[0]["clip_ratio/region_mean"] == 0


def test_the_reference_never_moves_and_is_used():
    t = trainer(beta=0.5, max_steps=3)
    reference = copy.deepcopy(t.reference.state_dict())
    history = t.train(progress=False)
    for name, value in t.reference.state_dict().items():
        assert torch.equal(value, reference[name])
    assert history[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert history[-1]["kl"] > 0
    assert trainer(beta=0.0).reference is None


def test_the_same_seed_gives_the_same_run():
    runs = [trainer(seed=seed).train(progress=False) for seed in (0, 0, 1)]
    rows = [[{k: v for k, v in row.items() if k != "step_time"} for row in run] for run in runs]
    assert rows[0] == rows[1] != rows[2]


def test_metrics_have_trls_names():
    (row, _) = trainer().train(progress=False)
    assert {
        "step", "reward", "reward_std", "frac_reward_zero_std", "rewards/digits/mean", "loss", "grad_norm", "entropy",
        "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "completions/mean_length",
        "completions/min_length", "completions/max_length", "completions/clipped_ratio", "num_tokens", "step_time",
    } <= row.keys()  # fmt: skip


def test_truncated_answers_can_be_left_out_of_the_loss():
    def step(**settings):
        t = trainer(max_completion_length=2, max_steps=1, **settings)
        before = weights(t)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row = t.train(progress=False)[0]
        return row, (weights(t) - before).abs().max()

    row, moved = step()
    masked_row, _ = step(mask_truncated_completions=True)
    assert row["completions/clipped_ratio"] == masked_row["completions/clipped_ratio"] > 0.5
    assert row["completions/mean_length"] == masked_row["completions/mean_length"]
    assert moved > 0 and row["loss"] != masked_row["loss"]


def test_everything_cut_off_is_said():
    def never_ends(completions):
        return [len(text) / 2 + text.count("1") for text in completions]

    model, _ = small_llama(CHARACTERS, hidden_size=32, num_layers=1)
    with torch.no_grad():
        model.get_input_embeddings().weight[1] *= -30
    t = trainer(never_ends, model=model, max_completion_length=1, max_steps=1, num_generations=8)
    t.tokenizer.eos_token = "0"
    t.model.generation_config.eos_token_id = None
    with torch.no_grad():
        t.model.get_input_embeddings().weight[2] = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        row = t.train(progress=False)[0]
    said = any("every answer was cut off at max_completion_length=1" in str(w.message) for w in caught)
    assert said == (row["completions/clipped_ratio"] == 1.0)


def test_none_and_nan_leave_an_answer_out():
    def some_unknown(completions):
        return [
            None if i % 4 == 0 else math.nan if i % 4 == 1 else float(i % 4 == 2)
            for i in range(len(completions))
        ]

    t = trainer(some_unknown, max_steps=1)
    row = t.train(progress=False)[0]
    assert row["reward"] == 0.5
    assert math.isfinite(row["loss"]) and row["grad_norm"] > 0


def test_several_reward_functions_are_weighed_and_the_known_ones_count():
    def unknown(completions):
        return [None] * len(completions)

    t = trainer([digits, starts_with_seven, unknown], reward_weights=[1.0, 2.0, 5.0], max_steps=1)
    row = t.train(progress=False)[0]
    assert row["reward"] == pytest.approx(
        row["rewards/digits/mean"] + 2 * row["rewards/starts_with_seven/mean"]
    )
    assert math.isnan(row["rewards/unknown/mean"])


def test_a_reward_function_gets_texts_prompts_and_columns_repeated():
    seen = {}

    def look(completions, prompts, answer, **columns):
        seen.update(completions=completions, prompts=prompts, answer=answer, columns=columns)
        return digits(completions)

    trainer(look, max_steps=1).train(progress=False)
    assert len(seen["completions"]) == len(seen["prompts"]) == len(seen["answer"]) == 12
    assert all(isinstance(text, str) for text in seen["completions"])
    assert seen["prompts"][:4] == [seen["prompts"][0]] * 4
    assert seen["columns"] == {}


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("reward", "error", "message"),
    [
        (lambda completions: [1.0], ValueError, "returned 1 values for 12 completions"),
        (lambda completions: "1" * 12, ValueError, "expected a list of 12 numbers"),
        (lambda completions: None, ValueError, "returned None"),
        (lambda completions: ["good"] * 12, ValueError, r"returned 'good' for the prompt '\d\+\d='"),
        (lambda completions: [math.inf] * 12, ValueError, "expected a finite number"),
        (lambda completions: 1 / 0, ZeroDivisionError, "division"),
    ],
)
def test_a_bad_reward_stops_before_the_weights(reward, error, message):
    t = trainer(reward)
    before = weights(t)
    with pytest.raises(error, match=message):
        t.train(progress=False)
    assert torch.equal(weights(t), before)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_generations": 1}, "at least 2"),
        ({"micro_batch_size": 6}, "no multiple of num_generations=4"),
        ({"prompts_per_step": 26}, "train_dataset has 25 questions"),
        ({"algorithm": "ppo"}, "per-token rewards or a critic"),
        ({"algorithm": "grop"}, "'grop' is unknown"),
        ({"epsilon": 0.0}, "epsilon must be > 0"),
        ({"temperature": 0.0}, "temperature must be > 0"),
        ({"max_steps": 0}, "max_steps"),
        ({"reward_weights": [1.0, 2.0]}, "2 reward_weights for 1 reward"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_any_work(settings, message):
    with pytest.raises(ValueError, match=message):
        trainer(**settings)


@pytest.mark.bad_input
def test_a_model_without_trainable_weights_is_refused_and_half_precision_is_said():
    model, _ = small_llama(CHARACTERS, hidden_size=32, num_layers=1)
    with pytest.warns(UserWarning, match="Load the model in float32"):
        trainer(model=copy.deepcopy(model).bfloat16())
    with pytest.raises(ValueError, match="no trainable parameter"):
        trainer(model=model.requires_grad_(False))


def test_the_objective_is_described_in_one_line():
    line = describe(GRPOConfig(algorithm="dapo", beta=0.04))
    assert "\n" not in line
    assert "epsilon_high 0.28 instead of None" in line
    assert "aggregation token-mean instead of seq-mean-token-mean" in line
    assert "Other than TRL's default: epsilon_high 0.28" in line
    paper = describe(GRPOConfig(beta=0.04))
    assert "Other than in DeepSeekMath: nothing." in paper


def test_evaluation_during_training():
    task = load_task("addition", style="plain")
    model, tokenizer = small_llama(CHARACTERS, hidden_size=32, num_layers=1)
    config = GRPOConfig(
        prompts_per_step=2, num_generations=2, max_completion_length=3, max_steps=2, eval_steps=2
    )
    t = GRPOTrainer(
        model,
        digits,
        config,
        train_dataset=task.train,
        eval_dataset=task.eval[:4],
        processing_class=tokenizer,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = t.train(progress=False)
    assert "eval/greedy" not in first and {"eval/greedy", "eval/sampled", "eval/pass@2"} <= second.keys()
