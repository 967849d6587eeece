"""The run of the chapter "Fine-tuning a real model": SmolLM2 learns sums, with two controls.

python -m grpo_lib.training.finetune FOLDER     runs all three and writes one JSON file each (make finetune)
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

REWARDS: dict[str, RewardFunction] = {
    "answer": exact_match,
    "random": random_reward(0.5),
    "format": integer_format,
}
"""What is rewarded, by the name of the run: the right answer, and for the two controls nothing and the format alone."""


def settings(device: str) -> GRPOConfig:
    """Settings that fit the device: minutes on two CPU cores; more answers and bf16 autocast where a GPU has them.

    bf16 is used from compute capability 8.0 on; older GPUs only emulate it.
    """
    config = GRPOConfig(
        prompts_per_step=8,
        num_generations=8,
        max_completion_length=6,
        max_steps=80,
        learning_rate=1e-5,
    )
    if device == "cuda":
        bf16 = torch.cuda.get_device_capability() >= (8, 0)
        config = replace(config, prompts_per_step=32, num_generations=16, max_steps=150, bf16=bf16)
    return config


def finetune(
    reward: str,
    config: GRPOConfig,
    task: Task,
    *,
    model_name: str = "smollm2-135m",
    device: str = "cpu",
    num_samples: int = 8,
    progress: bool = True,
) -> dict[str, Any]:
    """Train a model on a task by one of :data:`REWARDS`, with evaluations before and after.

    Args:
        reward: ``"answer"``, ``"random"`` or ``"format"``.
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
        ValueError: an unknown reward.

    Chapter: practice/fine-tune.
    """
    if reward not in REWARDS:
        raise ValueError(f"reward={reward!r} is unknown: choose one of {', '.join(REWARDS)}.")
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
    trainer = GRPOTrainer(
        model, REWARDS[reward], config, train_dataset=task.train, processing_class=tokenizer
    )
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
            "reward": reward,
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
    parser.add_argument(
        "--rewards", nargs="+", default=list(REWARDS), choices=list(REWARDS), help="which runs"
    )
    parser.add_argument("--steps", type=int, help="steps of the run on right answers; the controls take half")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = settings(device)
    if arguments.steps:
        config = replace(config, max_steps=arguments.steps)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for reward in arguments.rewards:
        run = config if reward == "answer" else replace(config, max_steps=max(1, config.max_steps // 2))
        result = finetune(reward, run, load_task("addition"), device=device)
        path = arguments.folder / f"{reward}.json"
        path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(
            f"{path}: sampled, strict {result['before']['strict/sampled']['value']:.2f} → {result['after']['strict/sampled']['value']:.2f}"
        )


if __name__ == "__main__":
    main()
