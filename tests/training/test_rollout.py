import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lib.training import completion_mask


def test_the_first_end_token_belongs_to_the_answer_and_nothing_after_it_does():
    ids = torch.tensor([[5, 7, 2, 2, 2], [5, 7, 8, 9, 6], [2, 2, 2, 2, 2], [5, 2, 7, 2, 2]])
    mask, finished = completion_mask(ids, 2)
    assert mask.int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]
    assert finished.tolist() == [True, False, True, True]
    assert mask.dtype == finished.dtype == torch.bool


def test_an_end_token_in_the_last_place_finishes_the_answer():
    mask, finished = completion_mask(torch.tensor([[5, 7, 2], [5, 7, 8]]), 2)
    assert mask.all() and finished.tolist() == [True, False]


def test_whichever_of_several_end_tokens_comes_first_ends_the_answer():
    ids = torch.tensor([[5, 3, 2, 9], [5, 2, 3, 9], [5, 5, 9, 3]])
    mask, finished = completion_mask(ids, [2, 3])
    assert mask.sum(1).tolist() == [2, 2, 4] and finished.all()


@given(st.lists(st.lists(st.integers(0, 4), min_size=6, max_size=6), min_size=1, max_size=5), st.sets(
    st.integers(0, 4), min_size=1))  # fmt: skip
def test_mask_agrees_with_reading_token_by_token(rows, ends):
    mask, finished = completion_mask(torch.tensor(rows), sorted(ends))
    for row, kept, done in zip(rows, mask.tolist(), finished.tolist(), strict=True):
        length = next((t + 1 for t, token in enumerate(row) if token in ends), len(row))
        assert kept == [t < length for t in range(len(row))]
        assert done == any(token in ends for token in row)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_empty_rollouts(shape):
    mask, finished = completion_mask(torch.zeros(shape, dtype=torch.int64), 2)
    assert mask.shape == shape and finished.shape == shape[:1] and not finished.any()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize("ends", [2, [2], (2, 3), [2, 258]])
def test_ids_of_any_integer_type(dtype, ends):
    ids = torch.tensor([[5, 2, 7]], dtype=dtype)
    mask, finished = completion_mask(ids, ends)
    assert mask.tolist() == [[True, True, False]] and finished.tolist() == [True]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "ends", [np.int64(2), np.array([2]), torch.tensor(2), torch.tensor([2, 3])], ids=repr
)
def test_end_tokens_may_come_as_arrays(ends):
    assert completion_mask(torch.tensor([[5, 2, 7]]), ends)[0].tolist() == [[True, True, False]]


@pytest.mark.bad_input
@pytest.mark.parametrize("ids, ends, words", [
    (torch.tensor([1, 2]), 2, r"completion_ids must have shape \(N, T\), got \(2,\)"),
    (torch.zeros(1, 2, 3, dtype=torch.int64), 2, r"completion_ids must have shape \(N, T\), got \(1, 2, 3\)"),
    (torch.tensor([[1.0, 2.0]]), 2, "completion_ids must be an integer tensor, got torch.float32"),
    ([[1, 2]], 2, "completion_ids must be a torch.Tensor, got list"),
    (torch.tensor([[1, 2]]), [], "eos_token_ids is empty: give at least one end token"),
    (torch.tensor([[1, 2]]), None, "eos_token_ids is empty: give at least one end token"),
    (torch.tensor([[1, 2]]), [2.5], "eos_token_ids must be an integer tensor, got torch.float32"),
    (torch.tensor([[1, 2]]), True, "eos_token_ids must be an integer tensor, got torch.bool"),
])  # fmt: skip
def test_bad_input_is_refused(ids, ends, words):
    with pytest.raises(ValueError, match=words):
        completion_mask(ids, ends)
