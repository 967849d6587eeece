"""Shares with their intervals."""

import pytest
import torch

from grpo_lib.training import evaluate, small_llama
from grpo_lib.training.evaluation import clustered, wilson


def test_wilson_by_hand():
    """8 of 10: (0.8 + z²/20)/(1 + z²/10) ± z/(1 + z²/10)·sqrt(0.016 + z²/400), z² = 3.841459."""
    rate = wilson(8, 10)
    assert (rate.value, rate.low, rate.high) == (
        0.8,
        pytest.approx(0.4902, abs=1e-4),
        pytest.approx(0.9433, abs=1e-4),
    )
    assert str(rate) == "0.80 [0.49, 0.94]"


def test_wilson_stays_inside_at_the_ends():
    assert wilson(0, 5).low == pytest.approx(0, abs=1e-12) and wilson(0, 5).high == pytest.approx(
        0.4345, abs=1e-4
    )
    assert wilson(5, 5).high == pytest.approx(1)


def test_clustered_interval_is_that_of_the_questions():
    """Twenty answers to each of ten questions, all alike within a question: only ten independent observations."""
    shares = [1.0] * 5 + [0.0] * 5
    rate = clustered(shares)
    assert rate.value == 0.5
    assert rate.high - rate.low > 0.5
    assert clustered([0.5] * 10).low == clustered([0.5] * 10).high == 0.5


@pytest.mark.bad_input
def test_nothing_to_average_is_refused():
    with pytest.raises(ValueError, match="no questions"):
        clustered([])
    with pytest.raises(ValueError, match="trials"):
        wilson(0, 0)
    with pytest.raises(ValueError, match="successes"):
        wilson(3, 2)


def test_greedy_sampled_and_pass_at_k_count_the_same_answers():
    model, tokenizer = small_llama("01", hidden_size=32, num_layers=1)
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()  # every token with probability 1/4
    rows = [{"prompt": "0", "answer": str(i % 2)} for i in range(40)]

    def first(completions, answer):
        return [float(text[:1] == a) for text, a in zip(completions, answer, strict=True)]

    rates = evaluate(
        model, tokenizer, rows, {"first": first}, max_completion_length=2, num_samples=8, progress=False
    )
    assert rates.keys() == {"first/greedy", "first/sampled", "first/pass@8"}
    assert rates["first/sampled"].value == pytest.approx(0.25, abs=0.1)
    assert rates["first/pass@8"].value == pytest.approx(1 - 0.75**8, abs=0.12)
    again = evaluate(model, tokenizer, rows, first, max_completion_length=2, num_samples=8, progress=False)
    assert again["sampled"] == rates["first/sampled"]
