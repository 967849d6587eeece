"""The one look of the book's figures: a style, a colour for each recurring thing, and the shared helpers.

A notebook calls :func:`use_style` once, in its setup cell. After that ``plt.subplots()`` gives a figure that
is legible on a 390 px phone and sits on solid white, on a light page and in dark mode.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from numpy.typing import ArrayLike

COLORS: dict[str, str] = {
    "y1": "#0067b1",
    "y2": "#c24a00",
    "y3": "#00805f",
    "y4": "#6b2a63",
    "new": "#222222",
    "old": "#767676",
    "ref": "#8a6d1f",
    "right": "#56b4e9",
    "wrong": "#e69f00",
    "ink": "#222222",
    "grey": "#767676",
    "grid": "#dddddd",
}
"""The same thing has the same colour on every page: the answers ``y1`` to ``y4``, the policies ``new``
(current), ``old`` and ``ref``, and ``right`` and ``wrong``. ``ink`` is for text and neutral curves, ``grey``
for remarks and limits.

The answers and the policies are dark enough for text on white (contrast 4.5 or more). ``right`` and ``wrong``
are fills, to be read together with a mark or a word. Each of the three sets stays apart for readers with
red-green colour blindness.
"""

POLICIES: dict[str, dict[str, str]] = {
    "new": {"color": COLORS["new"], "linestyle": "-"},
    "old": {"color": COLORS["old"], "linestyle": "--"},
    "ref": {"color": COLORS["ref"], "linestyle": ":"},
}
"""Colour and line style of each policy, for ``ax.plot(x, y, **POLICIES["old"])``."""

STYLE: dict[str, object] = {
    "figure.figsize": (6.0, 3.6),
    "figure.dpi": 120,
    "savefig.dpi": 120,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same picture on every machine
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.labelsize": 12,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "legend.fontsize": 11,
    "text.color": COLORS["ink"],
    "axes.labelcolor": COLORS["ink"],
    "axes.edgecolor": COLORS["grey"],
    "xtick.color": COLORS["grey"],
    "ytick.color": COLORS["grey"],
    "xtick.labelcolor": COLORS["ink"],
    "ytick.labelcolor": COLORS["ink"],
    "axes.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLORS["grid"],
    "grid.linewidth": 0.8,
    "lines.linewidth": 2.2,
    "lines.markersize": 7,
    "legend.frameon": False,
    "axes.prop_cycle": plt.cycler(color=[COLORS[name] for name in ("y1", "y2", "y3", "y4")]),
}


def use_style() -> None:
    """Set the book's matplotlib style: figures of 6 by 3.6 inches at 120 dots an inch, on solid white.

    Holds until the session ends; takes and returns nothing. Call it in the notebook's setup cell. A taller
    figure passes its own ``figsize``; keep the width at 6 inches, so that text keeps its size on a phone.
    """
    plt.rcParams.update(STYLE)


def label_curve(
    line: Line2D, text: str, x: float, *, offset: tuple[float, float] = (0, 6), **text_kwargs: object
) -> Text:
    """Write ``text`` beside a curve, in the curve's own colour, instead of a legend.

    Args:
        line: one curve, as in ``(line,) = ax.plot(...)``.
        text: what to write; ``$...$`` is mathematics.
        x: where, in data units. The height is read from the curve, with a straight line between its points.
        offset: how far from the curve, in points, right and up.
        text_kwargs: passed on to ``ax.annotate``, for instance ``ha="right"``.

    Returns:
        The text.

    Raises:
        ValueError: the curve does not reach ``x``.
    """
    xs, ys = np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)
    if not xs.min() <= x <= xs.max():
        raise ValueError(
            f"label_curve: x={x}, but the curve runs from {xs.min():g} to {xs.max():g}; choose x in between"
        )
    order = np.argsort(xs, kind="stable")
    y = float(np.interp(x, xs[order], ys[order]))
    settings = {
        "color": line.get_color(),
        "ha": "center",
        "va": "bottom" if offset[1] >= 0 else "top",
        "path_effects": [withStroke(linewidth=3, foreground="white")],  # lifts the text off the grid
    } | text_kwargs
    return line.axes.annotate(text, (x, y), xytext=offset, textcoords="offset points", **settings)


def plot_all_patterns(rewards: ArrayLike, advantages: ArrayLike) -> Figure:
    """Draw the advantages of all sixteen right/wrong patterns of four answers.

    There is one row for each number of right answers. Each pattern is a small chart of four bars, y1 to y4
    from left to right, all on one scale. The values in a row's heading are read from ``advantages``.

    Args:
        rewards: shape (16, 4), the sixteen patterns of 0 and 1, in any order; a tensor, an array or lists.
        advantages: shape (16, 4), their advantages as computed by :func:`grpo_lib.group_advantages`.

    Returns:
        The figure. pyplot does not keep it: a notebook shows it once, as the last expression of a cell.

    Raises:
        ValueError: ``rewards`` is not each of the sixteen patterns once, or the shapes differ.

    Chapter: objective/group-advantage.
    """
    scores, weights = np.asarray(rewards, dtype=float), np.asarray(advantages, dtype=float)
    patterns = {tuple(row) for row in scores} if scores.ndim == 2 else set()
    if scores.shape != (16, 4) or len(patterns) != 16 or not np.isin(scores, (0, 1)).all():
        raise ValueError(
            f"plot_all_patterns: rewards of shape {scores.shape} with {len(patterns)} different rows; "
            "give the sixteen patterns of 0 and 1 for four answers, shape (16, 4), each once"
        )
    if weights.shape != scores.shape:
        raise ValueError(
            f"plot_all_patterns: advantages of shape {weights.shape}; give one for each score, (16, 4)"
        )

    fig = plt.figure(figsize=(6.0, 6.4), layout="none")
    limit = 1.12 * max(np.abs(weights).max(), 1e-12)
    width, height = 0.15, 0.13  # of one small chart, as parts of the figure
    for right in range(5):
        rows = sorted(np.flatnonzero(scores.sum(axis=1) == right), key=lambda row: tuple(-scores[row]))
        top = 0.985 - right * 0.2
        if right in (0, 4):
            values = f"every weight {_values(weights[rows])}"
        else:
            good, bad = (_values(weights[rows][scores[rows] == score]) for score in (1, 0))
            values = f"right {good},  wrong {bad}"
        fig.text(0.5, top, f"{right} right:  {values}", ha="center", va="top")
        for place, row in enumerate(rows):
            left = 0.5 + (place - len(rows) / 2) * (width + 0.014) + 0.007
            ax = fig.add_axes((left, top - 0.032 - height, width, height))
            _draw_pattern(ax, scores[row], weights[row], limit)
    plt.close(fig)
    return fig


def _values(weights: np.ndarray) -> str:
    """The different values among ``weights``, at three decimals, with a true minus sign and a plain 0."""
    rounded = sorted({float(np.round(weight, 3)) + 0.0 for weight in weights.ravel()})
    return ", ".join(
        "0" if value == 0 else f"{value:+.3f}".replace("-", "\N{MINUS SIGN}") for value in rounded
    )


def _draw_pattern(ax: Axes, scores: np.ndarray, weights: np.ndarray, limit: float) -> None:
    """Four bars on the line of weight 0, with a dot on a right answer's bar and a cross on a wrong one's."""
    for place, (score, weight) in enumerate(zip(scores, weights, strict=True)):
        color, marker = (COLORS["right"], "o") if score else (COLORS["wrong"], "X")
        ax.bar(place, weight, width=0.72, color=color)
        ax.plot(place, 0, marker=marker, markersize=7, color=color, markeredgecolor=COLORS["ink"])
    ax.axhline(0, color=COLORS["grey"], linewidth=0.8, zorder=0)
    ax.set(xlim=(-0.6, 3.6), ylim=(-limit, limit), xticks=[], yticks=[])
    for side in ax.spines.values():
        side.set_color(COLORS["grid"])
        side.set_visible(True)
