"""The run of the chapter "Fine-tuning a real model": SmolLM2 learns sums, with controls.

python -m grpo_lib.training.finetune FOLDER     runs all and writes one JSON file each (make finetune)
"""

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from grpo_lib.training.evaluation import evaluate
from grpo_lib.training.manifest import machine, peak_memory_gb
from grpo_lib.training.models import load_model
from grpo_lib.training.rewards import RewardFunction, exact_match, integer_format, last_text, random_reward
from grpo_lib.training.rollout import sample_completions
from grpo_lib.training.tasks import Task, load_task
from grpo_lib.training.trainer import GRPOConfig, GRPOTrainer

RUNS: dict[str, tuple[RewardFunction, int]] = {
    "answer": (exact_match, 0),
    "random-0": (random_reward(0.5, seed=0), 0),
    "random-1": (random_reward(0.5, seed=1), 1),
    "random-2": (random_reward(0.5, seed=2), 2),
    "format": (integer_format, 0),
}
"""What is rewarded, and the seed, by the name of the run: the right answer, and for the controls nothing (three coins) and the
format alone."""


def settings(device: str) -> GRPOConfig:
    """Settings that fit the device: minutes on two CPU cores; more answers and bf16 autocast where a GPU has them.

    bf16 is used from compute capability 8.0 on; older GPUs only emulate it.
    """
    config = GRPOConfig(
        prompts_per_step=8,
        num_generations=8,
        max_completion_length=6,
        max_steps=160,
        learning_rate=1e-5,
    )
    if device == "cuda":
        bf16 = torch.cuda.get_device_capability() >= (8, 0)
        config = replace(config, prompts_per_step=32, num_generations=16, bf16=bf16)
    return config


def finetune(
    name: str,
    config: GRPOConfig,
    task: Task,
    *,
    model_name: str = "smollm2-135m",
    device: str = "cpu",
    num_samples: int = 8,
    progress: bool = True,
) -> dict[str, Any]:
    """Train a model on a task by one reward of :data:`RUNS`, with evaluations before and after.

    Args:
        name: key of :data:`RUNS`; its seed takes the place of the settings'.
        config: settings of the run.
        task: questions; the held-out ones are for the evaluations alone.
        model_name: see :func:`grpo_lib.training.load_model`.
        device: ``"cpu"`` or ``"cuda"``.
        num_samples: answers a question in the evaluations.
        progress: whether to show bars.

    Returns:
        A dictionary that JSON can hold: ``history`` (metrics of each step), ``before`` and ``after`` (rates with their intervals, by a
        strict and a lenient reading), ``samples`` (questions with a greedy answer before and after) and ``manifest``.

    Raises:
        ValueError: an unknown name.

    Chapter: practice/fine-tune.
    """
    if name not in RUNS:
        raise ValueError(f"run {name!r} is unknown: choose one of {', '.join(RUNS)}.")
    reward, seed = RUNS[name]
    config = replace(config, seed=seed)
    model, tokenizer = load_model(model_name, device=device)
    length = config.max_completion_length

    def rates() -> dict[str, dict[str, float]]:
        readings = {"strict": task.strict, "lenient": task.lenient}
        result = evaluate(
            model,
            tokenizer,
            task.eval,
            readings,
            max_completion_length=length,
            num_samples=num_samples,
            progress=progress,
        )
        return {name: asdict(rate) for name, rate in result.items()}

    def answers() -> list[str]:
        prompts = [row["prompt"] for row in task.eval[:8]]
        return sample_completions(
            model, tokenizer, prompts, num_generations=1, max_completion_length=length, greedy=True
        ).texts

    before, first = rates(), answers()
    trainer = GRPOTrainer(model, reward, config, train_dataset=task.train, processing_class=tokenizer)
    started = time.perf_counter()
    history = trainer.train(progress=progress)
    seconds = time.perf_counter() - started
    after, last = rates(), answers()
    return {
        "before": before,
        "after": after,
        "history": history,
        "samples": [
            {"question": last_text(row["prompt"]), "answer": row["answer"], "before": b, "after": a}
            for row, b, a in zip(task.eval[:8], first, last, strict=True)
        ],
        "manifest": {
            "run": name,
            "model": model_name,
            "task": task.name,
            "train_questions": len(task.train),
            "held_out_questions": len(task.eval),
            "config": asdict(config),
            "training_seconds": round(seconds, 1),
            "peak_memory_gb": round(peak_memory_gb(device), 2),
            **machine(device),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the results go, one JSON file a run")
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=list(RUNS), help="which of them")
    parser.add_argument(
        "--steps", type=int, help="steps of the run on right answers; the controls take a quarter"
    )
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = settings(device)
    if arguments.steps:
        config = replace(config, max_steps=arguments.steps)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.runs:
        run = config if name == "answer" else replace(config, max_steps=max(1, config.max_steps // 4))
        result = finetune(name, run, load_task("addition"), device=device)
        path = arguments.folder / f"{name}.json"
        path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(
            f"{path}: sampled, strict {result['before']['strict/sampled']['value']:.2f} → {result['after']['strict/sampled']['value']:.2f}"
        )


if __name__ == "__main__":
    main()
