"""The runs of the chapter "Training a small model from scratch": one start, three algorithms, many seeds.

python -m grpo_lib.training.from_scratch FILE       runs them all and writes one JSON file (make from-scratch)
"""

import argparse
import copy
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from grpo_lib.training import supervised
from grpo_lib.training.evaluation import evaluate
from grpo_lib.training.manifest import machine
from grpo_lib.training.models import small_llama
from grpo_lib.training.tasks import Task, load_task
from grpo_lib.training.trainer import GRPOConfig, GRPOTrainer

ALGORITHMS = ("grpo", "dr_grpo", "rloo")
"""The algorithms that are compared, rows of :data:`grpo_lib.ALGORITHMS`."""

LENGTH = 4  # tokens: the longest right answer is two digits and the end token


def start(seed: int, *, progress: bool = True) -> tuple[Any, Any, Task]:
    """A small model that is right now and then, its tokenizer and its task.

    Args:
        seed: of the weights, the split of the questions and the order of the answers it was shown.
        progress: whether to show a bar.

    Chapter: practice/train-a-small-model.
    """
    task = load_task("addition", style="plain", seed=seed)
    model, tokenizer = small_llama("0123456789+=", seed=seed)
    supervised.train_on_answers(model, tokenizer, task.train, steps=280, seed=seed, progress=progress)
    return model, tokenizer, task


def settings(algorithm: str, seed: int) -> GRPOConfig:
    """The settings of a run: the same for each algorithm."""
    return GRPOConfig(
        algorithm=algorithm,
        prompts_per_step=32,
        num_generations=8,
        max_completion_length=LENGTH,
        max_steps=300,
        learning_rate=3e-4,
        seed=seed,
    )


def improve(
    model: Any, tokenizer: Any, task: Task, config: GRPOConfig, *, progress: bool = True
) -> dict[str, Any]:
    """Train a copy of a model with the settings given; the model itself stays.

    Returns:
        ``before`` and ``after``: greedy and sampled accuracy on the held-out questions; ``history``: metrics of each step.

    Chapter: practice/train-a-small-model.
    """
    model = copy.deepcopy(model)

    def rates() -> dict[str, dict[str, float]]:
        result = evaluate(
            model, tokenizer, task.eval, task.strict, max_completion_length=LENGTH, progress=False
        )
        return {name: asdict(rate) for name, rate in result.items()}

    before = rates()
    trainer = GRPOTrainer(model, task.reward, config, train_dataset=task.train, processing_class=tokenizer)
    history = trainer.train(progress=progress)
    return {"before": before, "after": rates(), "history": history}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="where the results go")
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    arguments = parser.parse_args()
    made = {**machine(), "config": {name: asdict(settings(name, 0)) for name in ALGORITHMS}}
    runs = _finished_runs(arguments.file, made)
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    for seed in tqdm(range(len(runs) // len(ALGORITHMS), arguments.seeds), desc="seeds"):
        model, tokenizer, task = start(seed, progress=False)
        for name in ALGORITHMS:
            result = improve(model, tokenizer, task, settings(name, seed), progress=False)
            reward = [round(row["reward"], 4) for row in result.pop("history")]
            runs.append({"algorithm": name, "seed": seed, **result, "reward": reward})
        text = json.dumps({"manifest": made, "runs": runs})
        arguments.file.write_text(text + "\n", encoding="utf-8")


def _finished_runs(file: Path, made: dict[str, Any]) -> list[dict[str, Any]]:
    """What an interrupted call has stored, if it had the same settings, versions and commit."""
    if not file.is_file():
        return []
    stored = json.loads(file.read_text(encoding="utf-8"))
    return stored["runs"] if stored["manifest"] == made else []


if __name__ == "__main__":
    main()
