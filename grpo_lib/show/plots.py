"""The one look of the book's figures: a style, a colour for each recurring thing, and the helpers several pages share.

A notebook calls :func:`use_style` once, in its setup cell. After that ``plt.subplots()`` gives a figure that is legible on
a 390 px phone and sits on solid white, on a light page and on the card that the site puts behind images in dark mode.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.text import Text

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
"""The same thing has the same colour on every page: the answers ``y1`` to ``y4``, the policies ``new`` (current), ``old``
and ``ref``, and ``right`` and ``wrong``. ``ink`` is for text and neutral curves, ``grey`` for remarks and limits.

The answers and the policies are dark enough for text on white (contrast 4.5 or more). ``right`` and ``wrong`` are fills,
to be read together with a mark or a word. Each group stays apart for readers with red-green colour blindness.
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
    """Set the book's matplotlib style for the rest of the session: 6 by 3.6 inches at 120 dots an inch on solid white.

    Takes and returns nothing. Call it in the notebook's setup cell. A wider or taller figure passes its own ``figsize``;
    keep the width at 6 inches, so that text keeps its size on a phone.
    """
    plt.rcParams.update(STYLE)


def label_curve(
    line: Line2D, text: str, x: float, *, offset: tuple[float, float] = (0, 6), **text_kwargs: object
) -> Text:
    """Write ``text`` beside a curve, in the curve's own colour, instead of a legend.

    line: one curve, as in ``(line,) = ax.plot(...)``. x: where, in data units; the height is read from the curve, with a
    straight line between its points. offset: how far from the curve, in points, right and up (default 6 points above).
    text_kwargs: passed on to ``ax.annotate``, for instance ``ha="right"``.
    Returns the text. Raises ValueError when the curve does not reach ``x``.
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
