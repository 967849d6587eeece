"""The learning curve of the README, from the stored results: python tools/learning_curve.py"""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from grpo_lib.show.plots import COLORS, use_style

BOOK = Path(__file__).parents[1] / "book"


def main() -> None:
    run = json.loads((BOOK / "practice" / "results" / "answer.json").read_text(encoding="utf-8"))
    rewards = torch.tensor([row["reward"] for row in run["history"]])
    before, after = (run[when]["strict/sampled"]["value"] for when in ("before", "after"))
    use_style()
    fig, ax = plt.subplots(figsize=(6.4, 2.8))
    ax.plot(range(1, len(rewards) + 1), rewards, color=COLORS["y1"], alpha=0.3, linewidth=1)
    ax.plot(range(10, len(rewards) + 1), rewards.unfold(0, 10, 1).mean(dim=1), color=COLORS["y1"])
    ax.set(xlabel="step", ylabel="right answers", ylim=(0, 1.05), xlim=(0, len(rewards)))
    ax.set_title(f"Held-out questions: {before:.2f} right before, {after:.2f} after", fontsize=10)
    fig.savefig(BOOK / "assets" / "learning-curve.png", dpi=150, facecolor="white")


if __name__ == "__main__":
    main()
