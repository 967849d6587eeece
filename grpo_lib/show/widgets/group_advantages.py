"""The four answers, live: tick which are right, read the group's mean, standard deviation and advantages."""

from collections.abc import Sequence
from pathlib import Path

import anywidget
import torch
import traitlets

from grpo_lib.advantages import group_advantages
from grpo_lib.show.widgets.static_page import static_page_html

DELTA = 1e-8
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class GroupAdvantagesTable(anywidget.AnyWidget):
    """Four answers to one question, each right (score 1) or wrong (score 0), and their relative weights.

    Beside a kernel the boxes and ``rewards`` follow each other, and ``observe(f, "rewards")`` calls ``f`` at
    each change. On the site the same table works without a kernel. Only the group's statistics change: no
    ratio, no clipping, no KL, no policy. δ is 1e-8 and numbers show three decimals.

    Args:
        rewards: the four scores, each 0 or 1. Default (1, 1, 0, 0), the book's running example.

    Raises:
        ValueError: not four scores, or one that is neither 0 nor 1.

    Chapter: objective/group-advantage, equation adv-standardised.
    """

    _esm = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
    _css = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
    rewards = traitlets.List().tag(sync=True)

    def __init__(self, rewards: Sequence[int] = (1, 1, 0, 0)) -> None:
        super().__init__(rewards=list(rewards))

    @traitlets.validate("rewards")
    def _four_scores(self, proposal: traitlets.Bunch) -> list[int]:
        values = proposal.value
        if len(values) != 4 or any(value not in (0, 1) for value in values):
            raise ValueError(f"rewards is {values}; give four scores, each 0 (wrong) or 1 (right)")
        return [int(value) for value in values]

    def __repr__(self) -> str:
        return f"GroupAdvantagesTable(rewards={self.rewards})"

    def _repr_mimebundle_(self, **kwargs: object) -> tuple[dict[str, object], dict[str, object]]:
        """The view for a kernel, HTML that needs no kernel, and a text table for paper."""
        data, metadata = super()._repr_mimebundle_(**kwargs)
        html = static_page_html(self._esm, self._css, {"rewards": self.rewards}, _html_table(self.rewards))
        bundle = {
            "text/plain": _text_table(self.rewards),
            "text/html": html,
            _WIDGET_VIEW: data[_WIDGET_VIEW],
        }
        return bundle, metadata


def _text_table(rewards: list[int]) -> str:
    mean, std, residuals, advantages = _numbers(rewards)
    lines = ["answer  right  score  minus mean  advantage"]
    for i, (reward, residual, advantage) in enumerate(zip(rewards, residuals, advantages, strict=True), 1):
        right = "yes" if reward else "no"
        lines.append(
            f"y{i:<5}  {right:<5}  {reward:>5}  {_decimals(residual):>10}  {_decimals(advantage):>9}"
        )
    lines.append(f"Group mean {_decimals(mean)}, population standard deviation {_decimals(std)}.")
    lines.append(_sentence(rewards, advantages))
    return "\n".join(lines)


def _html_table(rewards: list[int]) -> str:
    """What the script draws for ``rewards``, with boxes and button switched off."""
    mean, std, residuals, advantages = _numbers(rewards)
    rows = "\n".join(map(_html_row, range(1, 5), rewards, residuals, advantages))
    return f"""<div class="grpo-group-advantages">
<table>
<caption>Tick the answers that are right: score 1, otherwise 0.</caption>
<thead><tr><th scope="col">Answer</th><th scope="col">Right</th><th scope="col">Score</th>
<th scope="col">Minus mean</th><th scope="col">Advantage</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
<p class="grpo-statistics">Group mean <b class="grpo-mean">{_decimals(mean)}</b>,
population standard deviation <b class="grpo-std">{_decimals(std)}</b>.</p>
<output class="grpo-sentence" aria-live="polite">{_sentence(rewards, advantages)}</output>
<button type="button" disabled>Back to two right</button>
<p class="grpo-still">The boxes work in a browser with JavaScript on, and in a running notebook.</p>
</div>"""


def _html_row(number: int, reward: int, residual: float, advantage: float) -> str:
    row, box = (' class="grpo-right"', " checked") if reward else ("", "")
    return f"""<tr{row}><th scope="row"><var>y</var><sub>{number}</sub></th>
<td class="grpo-tick"><label>\
<input type="checkbox" aria-label="y{number} is right"{box} disabled></label></td>
<td class="grpo-score">{reward}</td>
<td class="grpo-residual">{_decimals(residual)}</td>
<td class="grpo-advantage"><span class="grpo-value">{_decimals(advantage)}</span>\
<span class="grpo-bar" aria-hidden="true" style="--grpo-advantage: {advantage:.3f}"><i></i></span></td>
</tr>"""


def _numbers(rewards: list[int]) -> tuple[float, float, list[float], list[float]]:
    """Mean, population standard deviation, residuals and advantages of one group."""
    scores = torch.tensor([rewards], dtype=torch.float64)
    advantages = group_advantages(scores, eps=DELTA)
    mean = scores.mean()
    return mean.item(), scores.std(correction=0).item(), (scores - mean)[0].tolist(), advantages[0].tolist()


def _decimals(value: float) -> str:
    """Three decimals, with a true minus sign and no sign on zero."""
    return f"{value:z.3f}".replace("-", "\N{MINUS SIGN}")


def _sentence(rewards: list[int], advantages: list[float]) -> str:
    """What happened, in one sentence."""
    right, wrong = rewards.count(1), rewards.count(0)
    if right == 0 or wrong == 0:
        return (
            f"All four answers are {'right' if right else 'wrong'}: no answer is better than the group, "
            "every weight is 0. This question sends no task signal."
        )
    good, bad = (_decimals(advantages[rewards.index(score)]) for score in (1, 0))
    return (
        f"{right} right, {wrong} wrong: {'the' if right == 1 else 'each'} right answer gets weight {good}, "
        f"{'the' if wrong == 1 else 'each'} wrong one {bad}."
    )
