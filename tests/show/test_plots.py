"""The book's figure style and the figures that the library draws."""

import io
import itertools

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb

from grpo_lib import group_advantages
from grpo_lib.show.plots import COLORS, POLICIES, label_curve, plot_all_patterns, use_style

PATTERNS = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)))

# Machado, Oliveira and Fernandes (2009), severity 1: how readers without one kind of cones see linear RGB.
VISION = {
    "all cones": np.eye(3),
    "no red cones": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green cones": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}


@pytest.fixture(autouse=True)
def style():
    with matplotlib.rc_context():
        use_style()
        yield
        plt.close("all")


def linear(color):
    rgb = np.array(to_rgb(color))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIE Lab of a linear RGB colour, where a distance of 2 is just visible."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("names", [("y1", "y2", "y3", "y4"), ("new", "old", "ref"), ("right", "wrong")])
@pytest.mark.parametrize("vision", VISION)
def test_colors_of_one_kind_stay_apart_for_color_blind_readers(names, vision):
    seen = [lab(VISION[vision] @ linear(COLORS[name])) for name in names]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 20


@pytest.mark.parametrize("name", ["y1", "y2", "y3", "y4", "new", "old", "ref", "ink", "grey"])
def test_colors_used_for_text_have_enough_contrast_on_white(name):
    luminance = np.array([0.2126, 0.7152, 0.0722]) @ linear(COLORS[name])
    assert 1.05 / (luminance + 0.05) >= 4.5


def test_policies_differ_by_line_style_too():
    assert len({policy["linestyle"] for policy in POLICIES.values()}) == len(POLICIES) == 3


def test_figures_are_solid_white_pngs_that_fit_a_page():
    fig, _ = plt.subplots()
    stream = io.BytesIO()
    fig.savefig(stream, format="png")
    stream.seek(0)
    image = plt.imread(stream)
    assert image.shape[:2] == (432, 720)
    assert (image[0, 0] == 1).all()


def test_a_curve_is_labelled_on_the_curve_in_its_color():
    _, ax = plt.subplots()
    (line,) = ax.plot([2, 0, 1], [4, 0, 1])
    label = label_curve(line, "$y_1$", 1.5)
    assert label.xy == (1.5, 2.5)
    assert label.get_color() == COLORS["y1"]
    with pytest.raises(ValueError, match="curve runs from 0 to 2"):
        label_curve(line, "$y_1$", 3)


def test_the_sixteen_patterns_are_drawn_with_the_advantages_given():
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    rewards = PATTERNS[order]
    fig = plot_all_patterns(rewards, group_advantages(rewards, eps=0))
    heights = {tuple(round(bar.get_height(), 3) for bar in ax.patches) for ax in fig.axes}
    assert len(fig.axes) == len({ax.get_ylim() for ax in fig.axes}) * 16 == 16
    assert len(heights) == 15  # all right and all wrong look the same: flat
    assert {
        (0, 0, 0, 0),
        (1, 1, -1, -1),
        (1.732, -0.577, -0.577, -0.577),
        (0.577, -1.732, 0.577, 0.577),
    } < heights
    assert [text.get_text() for text in fig.texts] == [
        "0 right:  every weight 0",
        "1 right:  right +1.732,  wrong −0.577",
        "2 right:  right +1.000,  wrong −1.000",
        "3 right:  right +0.577,  wrong −1.732",
        "4 right:  every weight 0",
    ]
    assert plt.get_fignums() == []  # a notebook would show it twice


def test_bars_stand_for_their_own_answers():
    fig = plot_all_patterns(PATTERNS, group_advantages(PATTERNS, eps=0))
    for ax in fig.axes:
        right = [bar.get_facecolor() == matplotlib.colors.to_rgba(COLORS["right"]) for bar in ax.patches]
        heights = np.array([bar.get_height() for bar in ax.patches])
        assert (np.abs(heights) < ax.get_ylim()[1]).all()
        if 0 < sum(right) < 4:
            assert ((heights > 0) == right).all()


@pytest.mark.parametrize(
    "rewards", [PATTERNS[:15], PATTERNS[torch.zeros(16, dtype=int)], PATTERNS * 2, PATTERNS[0]]
)
def test_anything_but_the_sixteen_patterns_is_refused(rewards):
    with pytest.raises(ValueError, match="give the sixteen patterns of 0 and 1"):
        plot_all_patterns(rewards, rewards)


def test_advantages_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="one for each score"):
        plot_all_patterns(PATTERNS, PATTERNS[:, :3])
