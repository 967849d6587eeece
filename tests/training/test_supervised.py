"""Supervised training on given answers."""

import pytest
import torch

from grpo_lib.training import evaluate, exact_match, sample_completions, small_llama, train_on_answers

CHARACTERS = "0123456789+="
QUESTIONS = [{"prompt": f"{a}+{b}=", "answer": a + b} for a in range(4) for b in range(10, 14)]


@pytest.fixture
def small():
    return small_llama(CHARACTERS, hidden_size=32, num_layers=1)


def test_the_loss_is_the_cross_entropy_of_the_answer_and_its_end_token(small):
    model, tokenizer = small
    row = {"prompt": "1+12=", "answer": 13}
    ids = torch.tensor([tokenizer("1+12=").input_ids + tokenizer("13").input_ids + [1]])
    labels = ids.clone()
    labels[:, :5] = -100
    expected = model(ids, labels=labels).loss.item()
    (loss,) = train_on_answers(model, tokenizer, [row], steps=1, batch_size=3, progress=False)
    assert loss == pytest.approx(expected, rel=1e-5)


def test_short_and_long_answers_are_averaged_over_tokens(small):
    model, tokenizer = small
    rows = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "10+11=", "answer": "21"}]

    def total(row):
        prompt, answer = tokenizer(row["prompt"]).input_ids, [*tokenizer(row["answer"]).input_ids, 1]
        ids = torch.tensor([prompt + answer])
        labels = torch.tensor([[-100] * len(prompt) + answer])
        return model(ids, labels=labels).loss.item() * len(answer), len(answer)

    sums, counts = zip(*map(total, rows), strict=True)
    for seed in range(20):  # a draw of two questions that holds both
        copy, _ = small_llama(CHARACTERS, hidden_size=32, num_layers=1)
        (loss,) = train_on_answers(copy, tokenizer, rows, steps=1, batch_size=2, seed=seed, progress=False)
        if loss == pytest.approx(sum(sums) / sum(counts), rel=1e-5):
            return
    pytest.fail("no draw of two gave the mean over the tokens of both answers")


def test_it_learns_to_answer_and_to_stop(small):
    model, tokenizer = small
    losses = train_on_answers(
        model, tokenizer, QUESTIONS, steps=200, batch_size=16, learning_rate=1e-2, progress=False
    )
    assert losses[-1] < losses[0] / 10
    rate = evaluate(model, tokenizer, QUESTIONS, exact_match, max_completion_length=4, progress=False)
    assert rate["greedy"].value > 0.9
    rollout = sample_completions(
        model, tokenizer, ["1+12="], num_generations=8, max_completion_length=6, greedy=True
    )
    assert rollout.finished.all()


def test_a_seed_gives_the_same_run(small):
    first, second = (
        train_on_answers(
            small_llama(CHARACTERS)[0], small[1], QUESTIONS, steps=3, batch_size=4, seed=5, progress=False
        )
        for _ in range(2)
    )
    assert first == second


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ([], {"steps": 1}, "rows is empty"),
        ([{"prompt": "1+1="}], {"steps": 1}, "row 0 has no answer"),
        ([{"prompt": "1+1=", "answer": None}], {"steps": 1}, "row 0 has no answer"),
        (QUESTIONS, {"steps": 0}, "steps"),
        (QUESTIONS, {"steps": 1, "batch_size": 0}, "batch_size"),
    ],
)
def test_bad_input_is_refused(small, rows, settings, message):
    with pytest.raises(ValueError, match=message):
        train_on_answers(*small, rows, **settings)
