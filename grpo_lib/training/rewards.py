"""Reward functions: ``f(completions, **columns) -> list[float | None]``, as in TRL, with one value for each completion."""

import inspect
import math
import random
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

RewardFunction = Callable[..., Sequence[float | None]]

_NUMBER = re.compile(
    r"(?<![\w.,])[-+\N{MINUS SIGN}]?\s?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:\s?/\s?\d+)?(?:\s?%)?",
    re.ASCII,
)


def exact_match(completions: Sequence[str], answer: Sequence[Any], **columns: Any) -> list[float]:
    """1 where the completion is the answer and nothing else, up to white space at its ends; else 0."""
    return [float(text.strip() == str(right)) for text, right in zip(completions, answer, strict=True)]


def number_match(completions: Sequence[str], answer: Sequence[Any], **columns: Any) -> list[float]:
    """1 where the last number in the completion equals the answer; else 0. Nothing is evaluated, only read.

    Raises:
        ValueError: an answer that is no number.
    """
    return [
        float((number := last_number(text)) is not None and number == _gold(right))
        for text, right in zip(completions, answer, strict=True)
    ]


def integer_format(completions: Sequence[str], **columns: Any) -> list[float]:
    """1 where the completion is an integer and nothing else, right or wrong: a control that rewards the format alone."""
    return [float(re.fullmatch(r"\s*-?[0-9]+\s*", text) is not None) for text in completions]


def random_reward(probability: float = 0.5, seed: int = 0) -> RewardFunction:
    """A reward function that does not read the completion: 1 with the given probability. A control.

    Raises:
        ValueError: a probability outside [0, 1].
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"probability must lie between 0 and 1, got {probability}.")
    generator = random.Random(seed)

    def random_reward(completions: Sequence[str], **columns: Any) -> list[float]:
        return [float(generator.random() < probability) for _ in completions]

    return random_reward


def last_number(text: str) -> Fraction | None:
    """The last number written in a text, exactly: ``"72."``, ``"-3"``, ``"1,000"``, ``"1/2"``, ``"$70,000.00"``, ``"50%"``.

    Returns:
        The number, or None where there is none or it divides by 0.
    """
    found = _NUMBER.findall(text.replace("{,}", ","))
    if not found:
        return None
    token = re.sub(r"[\s$,]", "", found[-1]).replace("\N{MINUS SIGN}", "-")
    percent = token.endswith("%")
    top, _, bottom = token.rstrip("%").partition("/")
    if bottom and int(bottom) == 0:
        return None
    return Fraction(top) / int(bottom or 1) / (100 if percent else 1)


def _gold(answer: Any) -> Fraction:
    number = last_number(str(answer))
    if number is None:
        raise ValueError(
            f"the answer {answer!r} of a question is no number: mend the data, or use exact_match."
        )
    return number


def score(function: RewardFunction, texts: list[str], table: dict[str, list[Any]]) -> list[float]:
    """The values of a reward function, one for each completion, NaN for None.

    Args:
        function: gets ``completions`` and those of the columns that it takes.
        texts: the completions.
        table: columns by name, ``prompts`` among them, each with one value a completion.

    Raises:
        ValueError: a wrong count, a value that is no number, an infinite one; names the function and the prompt. What the
            function itself raises is not caught.
    """
    values = function(completions=texts, **_accepted_columns(function, table))
    if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
        raise ValueError(
            f"reward function {function_name(function)} returned {values!r:.100}: expected a list of {len(texts)} numbers."
        )
    if len(values) != len(texts):
        raise ValueError(
            f"reward function {function_name(function)} returned {len(values)} values for {len(texts)} completions."
        )
    numbers = []
    for i, value in enumerate(values):
        if value is None:
            value = math.nan
        try:
            if isinstance(value, str):
                raise TypeError
            numbers.append(float(value))
        except (TypeError, ValueError):
            raise ValueError(
                f"reward function {function_name(function)} returned {value!r:.100} for the prompt {last_text(table['prompts'][i])!r:.200}: "
                f"expected a number, or None to leave the answer out."
            ) from None
        if math.isinf(numbers[-1]):
            raise ValueError(
                f"reward function {function_name(function)} returned {value} for the prompt {last_text(table['prompts'][i])!r:.200}: "
                f"expected a finite number."
            )
    return numbers


def _accepted_columns(function: RewardFunction, table: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The columns that the function takes: all of them if it has ``**columns``."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return table
    return {name: table[name] for name in table if name in {p.name for p in parameters}}


def function_name(function: RewardFunction) -> str:
    return getattr(function, "__name__", type(function).__name__)


def last_text(prompt: str | list[dict[str, str]]) -> str:
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]
