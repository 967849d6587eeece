import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lib import importance_ratio
from grpo_lib.training import token_logprobs

F64 = torch.float64


def random_logits(shape=(2, 3, 5), dtype=F64):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(shape, generator=generator, dtype=F64)
    return logits.to(dtype), torch.randint(0, shape[-1], shape[:-1], generator=generator)


def test_temperature_divides_the_logits_not_the_log_probability():
    logits, token = torch.tensor([[2.0, 1, 0]], dtype=F64), torch.tensor([0])
    with_t, without_t = token_logprobs(logits, token, temperature=0.5), token_logprobs(logits, token)
    assert with_t.item() == pytest.approx(-0.14293, abs=5e-6)
    assert with_t.item() == pytest.approx(4 - math.log(math.exp(4) + math.exp(2) + 1), rel=1e-14)
    assert without_t.item() == pytest.approx(-0.40761, abs=5e-6)
    assert importance_ratio(without_t[None], with_t[None]).item() == pytest.approx(0.7675, abs=5e-5)


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=8), st.floats(0.1, 10))
def test_probabilities_over_the_vocabulary_sum_to_one(row, temperature):
    logits = torch.tensor([row] * len(row), dtype=F64)
    logps = token_logprobs(logits, torch.arange(len(row)), temperature=temperature)
    assert logps.exp().sum().item() == pytest.approx(1, rel=1e-12)
    assert (logps <= 0).all()
    for i, j in ((0, -1), (-1, 0)):
        expected = (row[i] - row[j]) / temperature
        assert (logps[i] - logps[j]).item() == pytest.approx(expected, abs=1e-12)


def test_uniform_logits_give_minus_log_v():
    logps = token_logprobs(torch.zeros(2, 200), torch.tensor([0, 199]))
    assert logps.tolist() == pytest.approx([-5.2983] * 2, abs=5e-5)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_log_probabilities_are_those_of_log_softmax(temperature):
    for dtype, tol in ((F64, 1e-13), (torch.float32, 2e-6)):
        logits, ids = random_logits(dtype=dtype)
        expected = (logits / temperature).log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        logps = token_logprobs(logits, ids, temperature=temperature)
        assert logps.dtype == dtype
        assert torch.allclose(logps, expected, rtol=0, atol=tol)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_gradient_with_respect_to_the_logits(temperature):
    logits, ids = random_logits()
    assert torch.autograd.gradcheck(
        lambda x: token_logprobs(x, ids, temperature=temperature), logits.requires_grad_()
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_normalised_in_float32(dtype):
    logits, ids = random_logits(dtype=dtype)
    logps = token_logprobs(logits, ids, temperature=0.7)
    assert logps.dtype == torch.float32
    assert torch.equal(logps, token_logprobs(logits.float(), ids, temperature=0.7))


def test_excluded_tokens_have_probability_zero():
    logits = torch.tensor([[0.0, 0.0, -math.inf]] * 2, requires_grad=True)
    logps = token_logprobs(logits, torch.tensor([0, 2]))
    assert logps.tolist() == pytest.approx([-math.log(2), -math.inf])
    logps[0].backward()
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 5), (0, 5), (2, 0, 5)])
def test_any_leading_shape(shape):
    logits, ids = random_logits(shape)
    assert token_logprobs(logits, ids).shape == shape[:-1]
    assert torch.equal(token_logprobs(logits, ids.int()), token_logprobs(logits, ids))


@pytest.mark.bad_input
@pytest.mark.parametrize("logits, ids, temperature, words", [
    (torch.zeros(2, 5), torch.zeros(3, dtype=torch.int64), 1.0,
     r"token_ids of shape \(3,\) do not fit logits of shape \(2, 5\).*\(2,\)"),
    (torch.zeros(2, 5), torch.zeros(2, 1, dtype=torch.int64), 1.0, r"token_ids of shape \(2, 1\)"),
    (torch.tensor(1.0), torch.tensor(0), 1.0, "logits must have a vocabulary axis, got a scalar"),
    (torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), 1.0, "logits must be a floating"),
    (torch.zeros(2, 5), torch.tensor([1.7, 0.0]), 1.0, "token_ids must be an integer tensor, got torch.float32"),
    (torch.zeros(2, 5), torch.tensor([True, False]), 1.0, "token_ids must be an integer tensor, got torch.bool"),
    (torch.zeros(2, 5), [0, 1], 1.0, "token_ids must be a torch.Tensor, got list"),
    (torch.zeros(2, 5), torch.tensor([0, -100]), 1.0, "token_ids hold -100.*0 to 4.*padding"),
    (torch.zeros(2, 5), torch.tensor([0, -1]), 1.0, "token_ids hold -1.*0 to 4"),
    (torch.zeros(2, 5), torch.tensor([5, 0]), 1.0, "token_ids hold 5.*0 to 4"),
    (torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64), 0.0, "temperature must be > 0 and finite, got 0.0"),
    (torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64), -1.0, "temperature must be > 0 and finite, got -1.0"),
    (torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64), math.nan, "temperature must be > 0 and finite, got nan"),
    (torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64), math.inf, "temperature must be > 0 and finite, got inf"),
])  # fmt: skip
def test_bad_input_is_refused(logits, ids, temperature, words):
    with pytest.raises(ValueError, match=words):
        token_logprobs(logits, ids, temperature=temperature)
