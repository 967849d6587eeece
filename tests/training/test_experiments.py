"""The runs whose results the practice chapters read."""

import json
import sys
from dataclasses import replace

import pytest
import torch

from grpo_lib.training import GRPOConfig, finetune, from_scratch, load_task, small_llama


@pytest.fixture
def small_model(monkeypatch):
    """SmolLM2's place is taken by a small model, the chat by plain text."""
    monkeypatch.setattr(
        finetune, "load_model", lambda name, device: small_llama("0123456789+=", hidden_size=32)
    )
    monkeypatch.setattr(
        finetune, "load_task", lambda name: load_task(name, low=0, high=3, style="plain", held_out=4)
    )


def run(module, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["run", *map(str, arguments)])
    module.main()


silence = pytest.mark.filterwarnings(
    "ignore:step .* (all answers|every answer)"
)  # so few steps teach nothing


@silence
def test_fine_tuning_writes_a_file_for_each_reward(small_model, monkeypatch, tmp_path):
    monkeypatch.setattr(finetune, "settings", lambda device: GRPOConfig(prompts_per_step=2, max_steps=9))
    run(finetune, monkeypatch, tmp_path, "--steps", 4)
    found = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert found.keys() == finetune.RUNS.keys()
    assert [len(found[name]["history"]) for name in finetune.RUNS] == [4, 1, 1, 1, 1]
    assert [found[name]["manifest"]["config"]["seed"] for name in finetune.RUNS] == [0, 0, 1, 2, 0]
    for name, result in found.items():
        assert result["manifest"]["run"] == name
        assert result["manifest"]["held_out_questions"] == 4
        assert result["manifest"]["versions"]["torch"] == torch.__version__
        assert result["before"].keys() == result["after"].keys()
        assert "strict/sampled" in result["before"]
        assert len(result["samples"]) == 4


def test_an_unknown_reward_is_refused():
    with pytest.raises(ValueError, match="choose one of answer, random-0"):
        finetune.finetune("luck", GRPOConfig(), load_task("addition"))


def test_settings_fit_the_device(monkeypatch):
    assert not finetune.settings("cpu").bf16
    for capability, bf16 in (((7, 5), False), ((8, 0), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda c=capability: c)
        assert finetune.settings("cuda").bf16 == bf16


@silence
def test_three_algorithms_start_from_the_same_model(monkeypatch, tmp_path):
    original = from_scratch.settings
    monkeypatch.setattr(
        from_scratch, "settings", lambda *a: replace(original(*a), max_steps=2, prompts_per_step=4)
    )
    warm_start = from_scratch.supervised.train_on_answers
    monkeypatch.setattr(
        from_scratch.supervised, "train_on_answers", lambda *a, steps, **k: warm_start(*a, steps=5, **k)
    )
    file = tmp_path / "seeds.json"
    run(from_scratch, monkeypatch, file, "--seeds", 1)
    (first, *_) = json.loads(file.read_text())["runs"]
    run(from_scratch, monkeypatch, file, "--seeds", 2)  # goes on where the first call ended
    runs = json.loads(file.read_text())["runs"]
    assert runs[0] == first
    assert [(r["seed"], r["algorithm"]) for r in runs] == [
        (seed, name) for seed in (0, 1) for name in from_scratch.ALGORITHMS
    ]
    for seed in (0, 1):
        starts = [r["before"] for r in runs if r["seed"] == seed]
        assert starts[0] == starts[1] == starts[2]
    assert all(len(r["reward"]) == 2 for r in runs)
