"""Reward functions: ``f(completions, **columns) -> list[float | None]``, as in TRL, with one value for each completion."""

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
