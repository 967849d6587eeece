"""Tiny random models of several families, and a task that a tiny model learns in seconds."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    Qwen2Config,
)

_SIZE = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
FAMILIES = {
    "llama": lambda: LlamaConfig(**_SIZE, attention_dropout=0.3),
    "qwen2": lambda: Qwen2Config(**_SIZE),
    "gpt2, learned positions and dropout": lambda: GPT2Config(
        vocab_size=40,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    ),
    "gemma2, capped logits and a sliding window": lambda: Gemma2Config(
        **_SIZE, head_dim=8, sliding_window=4, final_logit_softcapping=2.0
    ),
    "granite, scaled logits": lambda: GraniteConfig(**_SIZE, logits_scaling=4.0),
}


def tiny(family: str = "llama") -> torch.nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(FAMILIES[family]()).float()


@pytest.fixture(params=FAMILIES)
def model(request):
    """A tiny model of each family, in training mode, so that dropout would show."""
    return tiny(request.param).train()


@pytest.fixture
def llama():
    return tiny().train()
