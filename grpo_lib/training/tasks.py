"""Questions with answers: built-in tasks, one's own data, and an adapter to reasoning-gym."""

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grpo_lib.training.rewards import RewardFunction, exact_match, number_match

Row = dict[str, Any]

_GYM_TASKS = ("chain_sum", "gsm_symbolic")  # their scorers read the answer and evaluate nothing


@dataclass(frozen=True)
class Task:
    """Questions to train on, questions held out, and the reward.

    Attributes:
        name: of the task.
        train, eval: rows with the key ``prompt`` (a text, or a chat) and columns for the reward function, such as ``answer``.
        reward: what is trained on.
        strict, lenient: two readings of an answer, to tell format from skill.
    """

    name: str
    train: list[Row]
    eval: list[Row]
    reward: RewardFunction = exact_match
    strict: RewardFunction = exact_match
    lenient: RewardFunction = number_match


def load_task(name: str = "addition", **settings: Any) -> Task:
    """A task by name.

    Args:
        name: ``"addition"``, or ``"chain_sum"`` or ``"gsm_symbolic"`` from reasoning-gym (pip install "grpo-lib[gym]").
        **settings: for addition ``low=0, high=20, style="chat", held_out=48, seed=0``; for reasoning-gym
            ``train_size=1000, eval_size=100, seed=0`` and the settings of its dataset.

    Returns:
        A :class:`Task`. The held-out questions of ``"addition"`` share no unordered pair of numbers with the training ones.

    Raises:
        ValueError: an unknown name or setting.
        RuntimeError: reasoning-gym is not installed.

    Chapter: practice/fine-tune.
    """
    if name == "addition":
        return _addition(**settings)
    if name in _GYM_TASKS:
        return _reasoning_gym(name, **settings)
    raise ValueError(f"task {name!r} is unknown: choose one of {', '.join(('addition', *_GYM_TASKS))}.")


def load_rows(source: str | Path | Iterable[Mapping[str, Any]]) -> list[Row]:
    """One's own questions as rows: a JSONL file, a list of dicts, or a Hugging Face dataset.

    Args:
        source: each row has the key ``prompt``: a text, or a list of messages with ``role`` and ``content``. All other
            keys go to the reward function as columns; every row has the same keys.

    Raises:
        ValueError: no rows, a row without a prompt, rows with different keys, a line that is not JSON.
    """
    if isinstance(source, (str, Path)):
        rows = []
        for number, line in enumerate(Path(source).read_text(encoding="utf-8").splitlines(), start=1):
            if line.strip():
                try:
                    rows.append(json.loads(line))
                except json.JSONDecodeError as error:
                    raise ValueError(f"{source}, line {number} is not JSON: {error}.") from error
    else:
        rows = [dict(row) for row in source]
    if not rows:
        raise ValueError("there are no questions: give at least one row with the key 'prompt'.")
    for i, row in enumerate(rows):
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), (str, list)) or not row["prompt"]:
            raise ValueError(
                f"row {i} has no prompt: expected {{'prompt': text or list of messages, ...}}, got {row!r:.200}."
            )
        if row.keys() != rows[0].keys():
            raise ValueError(
                f"row {i} has the keys {sorted(row)}, row 0 has {sorted(rows[0])}: they must be the same."
            )
    return rows


def _addition(
    low: int = 0,
    high: int = 20,
    style: Literal["chat", "plain"] = "chat",
    held_out: int = 48,
    seed: int = 0,
) -> Task:
    """Sums of two numbers from low to high. held_out: unordered pairs kept for evaluation, each asked in one order."""
    if style not in ("chat", "plain"):
        raise ValueError(f"style={style!r} is unknown: choose 'chat' or 'plain'.")
    pairs = [(a, b) for a in range(low, high + 1) for b in range(a, high + 1)]
    if not 0 < held_out < len(pairs):
        raise ValueError(f"held_out must lie between 1 and {len(pairs) - 1}, got {held_out}.")
    generator = random.Random(seed)
    generator.shuffle(pairs)
    held, rest = pairs[:held_out], pairs[held_out:]
    asked = [pair if generator.random() < 0.5 else pair[::-1] for pair in held]
    train = [order for a, b in rest for order in dict.fromkeys(((a, b), (b, a)))]
    generator.shuffle(train)
    examples = rest[:2]

    def row(a: int, b: int) -> Row:
        if style == "plain":
            return {"prompt": f"{a}+{b}=", "answer": str(a + b)}
        chat = []
        for c, d in examples:
            chat += [
                {"role": "user", "content": f"{c} + {d} ="},
                {"role": "assistant", "content": str(c + d)},
            ]
        return {"prompt": [*chat, {"role": "user", "content": f"{a} + {b} ="}], "answer": str(a + b)}

    train = [(a, b) for a, b in train if tuple(sorted((a, b))) not in examples or style == "plain"]
    return Task("addition", [row(a, b) for a, b in train], [row(a, b) for a, b in asked])


def _reasoning_gym(
    name: str, train_size: int = 1000, eval_size: int = 100, seed: int = 0, **settings: Any
) -> Task:
    try:
        import reasoning_gym
    except ImportError as error:
        raise RuntimeError(
            f'{name!r} needs reasoning-gym and a C compiler: pip install "grpo-lib[gym]"'
        ) from error
    dataset = reasoning_gym.create_dataset(name, size=train_size + eval_size, seed=seed, **settings)
    instruction = "Answer with the number only."
    seen: set[str] = set()
    rows = []
    for entry in dataset:
        if (
            entry["question"] not in seen
        ):  # a question of the held-out part must not be one of the training part
            seen.add(entry["question"])
            content = f"{entry['question']}\n{instruction}"
            rows.append({"prompt": [{"role": "user", "content": content}], "answer": str(entry["answer"])})
    return Task(name, rows[eval_size:], rows[:eval_size], reward=number_match)


def columns(rows: Sequence[Row], repeat: int = 1) -> dict[str, list[Any]]:
    """What a reward function gets: the rows' columns and the ``prompts``, each value repeated for its question's answers."""
    table = {key: [row[key] for row in rows for _ in range(repeat)] for key in rows[0]}
    return {"prompts": table.pop("prompt"), **table}
