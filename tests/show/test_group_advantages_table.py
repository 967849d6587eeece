"""The interactive table in Python, and the numbers of its JavaScript against the library's."""

import base64
import itertools
import json
import re
import shutil
import subprocess

import pytest
import torch

from grpo_lib import group_advantages
from grpo_lib.show.widgets import GroupAdvantagesTable
from grpo_lib.show.widgets.group_advantages import DELTA, _decimals
from grpo_lib.show.widgets.static_page import static_page_html

PATTERNS = [list(pattern) for pattern in itertools.product((1, 0), repeat=4)]
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def run_module(code: str, expression: str, request: pytest.FixtureRequest) -> object:
    """Value of a JavaScript ``expression`` that may use the exports of module ``code`` as ``m``.

    Runs in Node where it is installed, else in the browser (which skips, or fails if one is required).
    """
    url = "data:text/javascript;base64," + base64.b64encode(code.encode()).decode()
    if shutil.which("node"):
        program = f"import * as m from '{url}'; console.log(JSON.stringify({expression}))"
        command = ["node", "--input-type=module", "--eval", program]
        return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    page = request.getfixturevalue("browser").new_page()
    try:
        return page.evaluate(f"async () => {{ const m = await import('{url}'); return {expression}; }}")
    finally:
        page.close()


def test_javascript_gives_the_librarys_advantages_in_all_sixteen_states(request):
    expression = f"{json.dumps(PATTERNS)}.map((rewards) => m.groupAdvantages(rewards, {DELTA}))"
    ours = torch.tensor(run_module(GroupAdvantagesTable._esm, expression, request), dtype=torch.float64)
    theirs = group_advantages(torch.tensor(PATTERNS, dtype=torch.float64), eps=DELTA)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert ours[[0, -1]].eq(0).all()


def test_javascript_gives_the_librarys_advantages_for_other_scores_and_group_sizes(request):
    groups = [[0.9, 0.95, 1.0, 1.0], [2.5, -1.0], [0.1, 0.7, 0.7, 0.2, 0.3, 0.4, 0.5, 0.6]]
    expression = f"{json.dumps(groups)}.map((rewards) => m.groupAdvantages(rewards, 0.01))"
    for scores, ours in zip(groups, run_module(GroupAdvantagesTable._esm, expression, request), strict=True):
        theirs = group_advantages(torch.tensor([scores], dtype=torch.float64), eps=0.01)[0]
        torch.testing.assert_close(torch.tensor(ours, dtype=torch.float64), theirs, rtol=0, atol=1e-12)


def test_javascript_gives_exactly_zero_to_equal_scores_whose_mean_is_rounded(request):
    assert sum([0.98] * 15) / 15 != 0.98
    assert (
        run_module(GroupAdvantagesTable._esm, "m.groupAdvantages(Array(15).fill(0.98), 0)", request)
        == [0] * 15
    )


def test_numbers_have_three_decimals_a_true_minus_sign_and_no_sign_on_zero(request):
    values = [0.5, -1.7320508, -0.0004, -0.0, 0.9999, 12.0, -0.0006]
    shown = ["0.500", "−1.732", "0.000", "0.000", "1.000", "12.000", "−0.001"]
    assert [_decimals(value) for value in values] == shown
    assert run_module(GroupAdvantagesTable._esm, f"{json.dumps(values)}.map(m.decimals)", request) == shown


def test_javascript_uses_the_same_delta():
    (delta,) = re.findall(r"^const DELTA = (.+);$", GroupAdvantagesTable._esm, flags=re.MULTILINE)
    assert float(delta) == DELTA == 1e-8


def test_rewards_are_synced_and_observed():
    table, seen = GroupAdvantagesTable(), []
    table.observe(lambda change: seen.append((change.old, change.new)), "rewards")
    assert table.get_state()["rewards"] == [1, 1, 0, 0]
    table.rewards = [1, 0, 0, 0]
    assert table.get_state()["rewards"] == [1, 0, 0, 0]
    assert seen == [([1, 1, 0, 0], [1, 0, 0, 0])]


def test_a_front_end_message_changes_rewards():
    table = GroupAdvantagesTable()
    table.set_state({"rewards": [1, 1, 1, 0]})
    assert table.rewards == [1, 1, 1, 0]


@pytest.mark.parametrize(
    "scores", [(True, False, True, True), (1.0, 0.0, 1.0, 1.0), torch.tensor([1, 0, 1, 1])]
)
def test_any_zeros_and_ones_become_integers(scores):
    assert repr(GroupAdvantagesTable(scores)) == "GroupAdvantagesTable(rewards=[1, 0, 1, 1])"


@pytest.mark.parametrize(
    "scores", [[], [1, 0], [1, 1, 0, 0, 0], [1, 0.5, 0, 0], [float("nan")] * 4, ["1", 1, 0, 0]]
)
def test_bad_scores_are_refused_and_leave_the_table_as_it_was(scores):
    with pytest.raises(ValueError, match=r"give four scores, each 0 \(wrong\) or 1 \(right\)"):
        GroupAdvantagesTable(scores)
    table = GroupAdvantagesTable()
    with pytest.raises(ValueError, match="give four scores"):
        table.rewards = scores
    assert table.rewards == [1, 1, 0, 0]


def test_two_tables_have_the_same_representations():
    first, second = (GroupAdvantagesTable([1, 0, 0, 0])._repr_mimebundle_()[0] for _ in range(2))
    assert first.keys() == {"text/plain", "text/html", WIDGET_VIEW}
    assert first["text/plain"] == second["text/plain"]
    assert first["text/html"] == second["text/html"]
    assert repr(GroupAdvantagesTable()) == "GroupAdvantagesTable(rewards=[1, 1, 0, 0])"


def test_plain_text_is_the_notes_table():
    assert GroupAdvantagesTable()._repr_mimebundle_()[0]["text/plain"].splitlines() == [
        "answer  right  score  minus mean  advantage",
        "y1      yes        1       0.500      1.000",
        "y2      yes        1       0.500      1.000",
        "y3      no         0      −0.500     −1.000",
        "y4      no         0      −0.500     −1.000",
        "Group mean 0.500, population standard deviation 0.500.",
        "2 right, 2 wrong: each right answer gets weight 1.000, each wrong one −1.000.",
    ]


@pytest.mark.parametrize(("score", "word", "zeros"), [(1, "right", 9), (0, "wrong", 10)])
def test_a_silent_group_is_told_so_without_a_sign_on_zero(score, word, zeros):
    text = GroupAdvantagesTable([score] * 4)._repr_mimebundle_()[0]["text/plain"]
    assert text.endswith(
        f"All four answers are {word}: no answer is better than the group, every weight is 0. "
        "This question sends no task signal."
    )
    assert text.count("0.000") == zeros
    assert "−" not in text


def test_html_needs_nothing_from_elsewhere():
    html = GroupAdvantagesTable()._repr_mimebundle_()[0]["text/html"]
    assert not re.search(
        r"https?:|\bsrc=|\bhref=|url\(|@import|^import |localStorage", html, flags=re.MULTILINE
    )
    assert html.count("</script>") == html.count("</style>") == 1


def test_every_style_rule_is_scoped_to_the_table():
    rules = re.sub(r"/\*.*?\*/", "", GroupAdvantagesTable._css, flags=re.DOTALL)
    selectors = re.findall(r"^\s*([^\s@}][^{};]*?)\s*\{", rules, flags=re.MULTILINE)
    assert len(selectors) > 20
    parts = [part for selector in selectors for part in re.split(r",(?![^(]*\))", selector)]
    assert [part for part in parts if "grpo-group-advantages" not in part] == []


def test_scripts_and_styles_cannot_be_ended_early():
    esm = 'function render({ model, el }) { el.textContent = "</script><!--" + model.get("x"); }'
    html = static_page_html(esm, "a::after { content: '</style>' }", {"x": "</script><!--"}, "body")
    assert html.count("</script>") == html.count("</style>") == 1
    assert "<!--" not in html


@pytest.mark.parametrize(
    ("esm", "complaint"),
    [
        ("export default { render({ model, el }) {} };", "no top-level 'function render"),
        ('import x from "x";\nfunction render({ model, el }) {}', "imports a module"),
    ],
)
def test_a_module_that_cannot_run_on_a_static_page_is_refused(esm, complaint):
    with pytest.raises(ValueError, match=complaint):
        static_page_html(esm, "", {}, "")
