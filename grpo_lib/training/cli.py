"""The command line: grpo-lib train, grpo-lib eval (also python -m grpo_lib.training)."""

import importlib.util
import re
import sys
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from grpo_lib.training import finetune
from grpo_lib.training.evaluation import Rate, evaluate
from grpo_lib.training.models import load_model
from grpo_lib.training.rewards import RewardFunction, exact_match, number_match
from grpo_lib.training.tasks import load_rows, load_task
from grpo_lib.training.trainer import GRPOConfig, GRPOTrainer

USAGE = """grpo-lib train [settings.yaml] [--name value ...]    train a model; without anything, SmolLM2 on sums
grpo-lib eval MODEL [--name value ...]             how often a model is right

grpo-lib train --help and grpo-lib eval --help list the names. A YAML file holds the same names; flags win over it.
"""


@dataclass
class Data:
    """What is trained on."""

    model: str = field(
        default="smollm2-135m",
        metadata={"help": "a Hugging Face id, a folder, or smollm2-135m from its package"},
    )
    task: str | None = field(
        default=None, metadata={"help": "addition (the default), chain_sum or gsm_symbolic"}
    )
    train_file: str | None = field(
        default=None, metadata={"help": "your own questions, a JSONL file: {'prompt': ..., 'answer': ...}"}
    )
    eval_file: str | None = field(default=None, metadata={"help": "held-out questions, of the same form"})
    reward: str | None = field(
        default=None,
        metadata={
            "help": "your own reward, FILE.py:FUNCTION; by default 1 if the completion is the row's answer, else 0"
        },
    )
    num_samples: int = field(
        default=8, metadata={"help": "answers to each held-out question in an evaluation"}
    )
    resume: bool = field(default=False, metadata={"help": "go on from the last checkpoint in output_dir"})


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: those of the process if None.

    Returns:
        The exit status: 0; 1 for input that cannot work, said in one line; 130 after Ctrl-C.
    """
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    commands = {"train": train, "eval": evaluate_model}
    if command not in commands:
        print(USAGE, end="")
        return int(command not in ("-h", "--help"))
    try:
        commands[command](rest)
    except KeyboardInterrupt as stop:
        print(f"\n{stop}".replace("train(resume=True) goes on", "--resume goes on"), file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        print(f"grpo-lib {command}: {error}: pip install 'grpo-lib[train]'", file=sys.stderr)
        return 1
    except (ValueError, RuntimeError, OSError) as error:
        print(f"grpo-lib {command}: {error}", file=sys.stderr)
        return 1
    return 0


def train(arguments: list[str]) -> None:
    """Train by the settings given, and evaluate before and after on held-out questions."""
    import yaml

    data, config = _read(arguments)
    rows, held_out, reward, correct = _questions(data)
    if config.output_dir is None:
        raise ValueError("output_dir is empty: give a folder for the checkpoints and the metrics.")
    folder = Path(config.output_dir)
    model, tokenizer = load_model(data.model, device=_device())
    trainer = GRPOTrainer(
        model, reward, config, train_dataset=rows, eval_dataset=held_out, processing_class=tokenizer
    )

    def rates() -> dict[str, Rate]:
        return (
            {} if held_out is None else _rates(model, tokenizer, held_out, correct, config, data.num_samples)
        )

    before = rates()
    history = trainer.train(resume=data.resume)
    settings = {**asdict(data), **asdict(config)}
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    samples = [
        {"question": question, "completion": text, "reward": value}
        for question, text, value in trainer.samples
    ]
    (folder / "samples.yaml").write_text(
        yaml.safe_dump(samples, sort_keys=False, allow_unicode=True), encoding="utf-8"
    )
    _plot(history, folder / "curve.png")
    for name, after in rates().items():
        print(f"{name:8} {before[name]}  →  {after}")
    print(f"{folder}: checkpoints, metrics.jsonl, settings.yaml, samples.yaml, curve.png")


def evaluate_model(arguments: list[str]) -> None:
    """Print greedy, sampled and pass@k accuracy of a model on held-out questions."""
    if not arguments or arguments[0] in ("-h", "--help"):
        _parser("eval").print_help()
        return
    data, config = _read(["--model", *arguments])
    rows, held_out, _, correct = _questions(data)
    model, tokenizer = load_model(data.model, device=_device())
    for name, rate in _rates(model, tokenizer, held_out or rows, correct, config, data.num_samples).items():
        print(f"{name:8} {rate}")


def load_reward(where: str) -> RewardFunction:
    """A reward function from a file of one's own.

    Args:
        where: ``FILE.py:FUNCTION``.

    Raises:
        ValueError: not of that form, no such file, no such function in it.
    """
    file, mark, name = where.rpartition(":")
    path = Path(file)
    if not mark or not path.is_file():
        raise ValueError(f"reward={where!r}: expected FILE.py:FUNCTION, with a file that exists.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"reward={where!r}: {path} has no function {name!r}.")
    return function


def _questions(data: Data) -> tuple[list, list | None, RewardFunction, RewardFunction]:
    """Rows to train on, held-out rows, what is trained on, and what counts as right."""
    if data.train_file and data.task:
        raise ValueError(f"both train_file={data.train_file} and task={data.task} were given: choose one.")
    own = None if data.reward is None else load_reward(data.reward)
    if data.train_file is None:
        task = load_task(data.task or "addition")
        return task.train, task.eval, own or task.reward, task.reward
    rows = load_rows(data.train_file)
    held_out = None if data.eval_file is None else load_rows(data.eval_file)
    if own is None and "answer" not in rows[0]:
        raise ValueError(
            f"the rows of {data.train_file} have no 'answer': add it, or give a reward=FILE.py:FUNCTION."
        )
    reward = own or exact_match
    return rows, held_out, reward, reward if own else number_match if _numbers(rows) else exact_match


def _numbers(rows: list[dict[str, Any]]) -> bool:
    return all(re.fullmatch(r"-?\d+(\.\d+)?", str(row["answer"])) for row in rows)


def _rates(
    model: Any, tokenizer: Any, rows: list, correct: Any, config: GRPOConfig, k: int
) -> dict[str, Rate]:
    return evaluate(
        model, tokenizer, rows, correct, max_completion_length=config.max_completion_length, num_samples=k
    )


def _parser(command: str, defaults: GRPOConfig | None = None) -> Any:
    from transformers import HfArgumentParser

    parser = HfArgumentParser([Data, GRPOConfig], prog=f"grpo-lib {command}")
    described = _descriptions()
    for action in parser._actions:
        action.help = described.get(action.dest, action.help)
    if defaults is not None:
        parser.set_defaults(**asdict(defaults))
    return parser


def _descriptions() -> dict[str, str]:
    """What GRPOConfig's docstring says of each setting."""
    found = {}
    lines = re.split(r"\n {8}(?=\w[\w, ]*: )", (GRPOConfig.__doc__ or "").partition("Attributes:")[2])
    for names, _, text in (line.strip().partition(": ") for line in lines):
        text = (
            re.sub(r":\w+:`~?\.?([^`]*)`", r"\1", re.sub(r"\s+", " ", text))
            .replace("``", "")
            .replace("%", "%%")
        )
        found |= dict.fromkeys(names.split(", "), text)
    return found


def _read(arguments: list[str]) -> tuple[Data, GRPOConfig]:
    """Settings from a YAML file, if the first argument is one, and from flags, which win."""
    import yaml

    given: dict[str, Any] = {}
    if arguments and not arguments[0].startswith("-"):
        path = Path(arguments[0])
        given = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        arguments = arguments[1:]
        known = {f.name for cls in (Data, GRPOConfig) for f in fields(cls)}
        if unknown := sorted(set(given) - known):
            raise ValueError(f"{path} has unknown settings {unknown}: grpo-lib train --help lists the names.")
    first = _parser("train")
    first.set_defaults(**given)
    data = first.parse_args_into_dataclasses(arguments)[0]
    own = data.train_file or data.task not in (None, "addition")
    base = GRPOConfig() if own else finetune.settings(_device())
    parser = _parser("train", base)
    name = Path(data.train_file).stem if data.train_file else data.task or "addition"
    parser.set_defaults(output_dir=f"runs/{name}")
    parser.set_defaults(**given)
    data, config = parser.parse_args_into_dataclasses(arguments)
    return data, config


def _plot(history: list[dict[str, float]], file: Path) -> None:
    import matplotlib.pyplot as plt

    from grpo_lib.show.plots import COLORS, use_style

    use_style()
    fig, ax = plt.subplots(figsize=(6.4, 3.0))
    ax.plot([row["step"] for row in history], [row["reward"] for row in history], color=COLORS["y1"])
    ax.set(xlabel="step", ylabel="mean reward")
    fig.savefig(file, dpi=150, facecolor="white")
    plt.close(fig)


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    sys.exit(main())
