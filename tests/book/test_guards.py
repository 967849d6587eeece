"""Each guard passes a small good page, and turns red on each way to break it."""

import copy
from collections.abc import Callable

import guards
import nbformat.v4 as v4
import pytest

FIGURE = {
    "image": {"alt": "two bars of height 0.5"},
    "figure": {"caption": "Both weigh 0.5.", "name": "fig-a"},
}
SOLUTION = {"tags": ["hide-cell", "solution"], "mystnb": {"code_prompt_show": "Solution"}}


def claim(slug: str, **fields: str) -> guards.Claim:
    default = {
        "source_id": slug,
        "statement": "A statement.",
        "kind": "computed",
        "verdict": "stands",
        "condition": "",
    }
    entry = {"slug": slug, **default, "chapter": "part/good", **fields}
    return {name: entry[name] for name in guards.CLAIM_FIELDS}


def good_page() -> guards.Page:
    shown = v4.new_output(
        "display_data", {"text/plain": "✔ good-mean: A statement with 0.75.", "text/html": "<div>✔</div>"}
    )
    printed = v4.new_output("stream", name="stdout", text="mean 0.5\nmiss -0.57735\nshare 1/80\n")
    cells = [
        v4.new_markdown_cell(
            "# A page\n\nThe mean is 0.50, the miss $-0.577$, the share 1.25 %; see arXiv:2402.03300."
        ),
        v4.new_markdown_cell(
            "## A section\n\n$$ R = 1 $$ (good-first)\n\n### A part\n\n```text\n# 9.75\n```"
        ),
        v4.new_code_cell("x = 1; y = 2\ns = ';'", execution_count=1, outputs=[printed, shown]),
        v4.new_code_cell("plot()", execution_count=2, metadata={"mystnb": FIGURE}),
        v4.new_markdown_cell("## Exercises"),
    ]
    cells[3].outputs = [v4.new_output("display_data", {"image/png": "iVBO/tmp/", "text/plain": "<Figure>"})]
    for n in (1, 2, 3):
        done = v4.new_output("stream", name="stdout", text=f"✔ x-{n}\n")
        cells.append(v4.new_markdown_cell(f"### Exercise {n}. Title\n\nWhat?"))
        cells.append(v4.new_code_cell("1", execution_count=n + 2, outputs=[done], metadata=SOLUTION))
    claims = [
        claim("good-mean"),
        claim("good-name", kind="defined"),
        claim("other-mean", chapter="part/other"),
    ]
    return guards.Page("part/good", v4.new_notebook(cells=cells), claims)


@pytest.mark.parametrize("guard", guards.PAGE_GUARDS, ids=lambda guard: guard.__name__)
def test_a_good_page_passes(guard):
    assert guard(good_page()) == []


def add_markdown(text: str) -> Callable[[guards.Page], object]:
    return lambda page: page.notebook.cells.insert(1, v4.new_markdown_cell(text))


def add_output(text: str, **options: str) -> Callable[[guards.Page], object]:
    output = v4.new_output("stream", text=text, **{"name": "stdout", **options})
    return lambda page: page.code_cells[0].outputs.append(output)


def add_data(**data: str) -> Callable[[guards.Page], object]:
    bundle = {mime.replace("_", "/"): content for mime, content in data.items()}
    return lambda page: page.code_cells[0].outputs.append(v4.new_output("display_data", bundle))


def set_source(text: str) -> Callable[[guards.Page], object]:
    return lambda page: page.code_cells[0].update(source=text)


def set_metadata(cell: int, **metadata: object) -> Callable[[guards.Page], object]:
    return lambda page: page.code_cells[cell].metadata.update(metadata)


def add_claim(slug: str, **fields: str) -> Callable[[guards.Page], object]:
    return lambda page: page.claims.append(claim(slug, **fields))


ERROR = v4.new_output("error", ename="E", evalue="at /home/me/x", traceback=["File /usr/lib/x.py"])

# guard, what is done to the good page, a part of the problem that must be named
BAD = {
    "not executed": (
        guards.executed_in_order,
        lambda p: p.code_cells[1].update(execution_count=None),
        "None",
    ),
    "executed twice": (
        guards.executed_in_order,
        lambda p: p.code_cells[1].update(execution_count=5),
        "count 5",
    ),
    "empty cell": (
        guards.executed_in_order,
        lambda p: p.notebook.cells.insert(2, v4.new_code_cell("")),
        "None",
    ),
    "unknown tag": (guards.known_tags, set_metadata(0, tags=["hide_input"]), "hide_input"),
    "unknown tag on text": (
        guards.known_tags,
        lambda p: p.notebook.cells[0].metadata.update(tags=["toc"]),
        "toc",
    ),
    "semicolon": (guards.no_trailing_semicolons, set_source("plot();"), "cell 1"),
    "semicolon before a comment": (guards.no_trailing_semicolons, set_source("plot(); # x\n2"), "cell 1"),
    "semicolon in the middle": (guards.no_trailing_semicolons, set_source("plot();\n2"), "cell 1"),
    "semicolon after a magic": (
        guards.no_trailing_semicolons,
        set_source("%matplotlib inline\n!ls 'a\nplot();"),
        "1",
    ),
    "path in a source": (guards.no_absolute_paths, set_source("open('/home/me/x')"), "/home/"),
    "path in text": (guards.no_absolute_paths, add_markdown("Look in /tmp/x."), "/tmp/"),
    "path printed": (guards.no_absolute_paths, add_output("at /root/x.py"), "/root/"),
    "path in HTML": (guards.no_absolute_paths, add_data(text_html="<b title='/work/x'>a</b>"), "/work/"),
    "path in plain text": (guards.no_absolute_paths, add_data(text_plain="<x at /usr/lib/y>"), "/usr/"),
    "path of Windows": (guards.no_absolute_paths, add_output("C:\\Users\\me"), "C:"),
    "path in an error": (guards.no_absolute_paths, lambda p: p.code_cells[0].outputs.append(ERROR), "/home/"),
    "path in a traceback": (
        guards.no_absolute_paths,
        lambda p: p.code_cells[0].outputs.append(ERROR),
        "/usr/",
    ),
    "stderr": (guards.no_warnings, add_output("careful", name="stderr"), "stderr"),
    "warning printed": (guards.no_warnings, add_output("UserWarning: no"), "warning"),
    "warning in HTML": (guards.no_warnings, add_data(text_html="<p>FutureWarning</p>"), "warning"),
    "error": (guards.no_warnings, lambda p: p.code_cells[0].outputs.append(ERROR), "error"),
    "no alt": (guards.figures_described, set_metadata(1, mystnb={"figure": {"caption": "c"}}), "image.alt"),
    "empty alt": (
        guards.figures_described,
        set_metadata(1, mystnb={**FIGURE, "image": {"alt": " "}}),
        "image.alt",
    ),
    "no caption": (
        guards.figures_described,
        set_metadata(1, mystnb={"image": {"alt": "a"}}),
        "figure.caption",
    ),
    "second figure": (guards.figures_described, add_data(**{"image_svg+xml": "<svg/>"}), "cell 1"),
    "image in text": (guards.figures_described, add_markdown("![](a.png)"), "a.png"),
    "no title": (guards.heading_ladder, lambda p: p.notebook.cells.pop(0), "title"),
    "code first": (
        guards.heading_ladder,
        lambda p: p.notebook.cells.insert(0, v4.new_code_cell("1")),
        "title",
    ),
    "second title": (guards.heading_ladder, add_markdown("# Another"), "Another"),
    "jump": (guards.heading_ladder, add_markdown("### Too deep"), "Too deep"),
    "exercise missing": (
        guards.exercises_solved,
        lambda p: p.notebook.cells.__delitem__(slice(-2, None)),
        "2 exercises",
    ),
    "no solution": (guards.exercises_solved, lambda p: p.notebook.cells.pop(), "exercise 3"),
    "solution without check": (
        guards.exercises_solved,
        lambda p: p.code_cells[-1].update(outputs=[]),
        "exercise 3",
    ),
    "solution not hidden": (guards.exercises_solved, set_metadata(-1, tags=["solution"]), "hide-cell"),
    "solution without prompt": (guards.exercises_solved, set_metadata(-1, mystnb={}), "code_prompt_show"),
    "solution too early": (
        guards.exercises_solved,
        lambda p: p.notebook.cells.insert(1, v4.new_code_cell("1", metadata=SOLUTION)),
        "before the first",
    ),
    "wrong number": (
        guards.exercises_solved,
        lambda p: p.notebook.cells[-2].update(source="### Exercise 4. T"),
        "1, 2, 4",
    ),
    "wrong heading": (guards.exercises_solved, add_markdown("#### Exercise 1"), "of the form"),
    "no label": (guards.labels_prefixed, add_markdown("$$ a = b $$"), "a = b"),
    "label of another page": (guards.labels_prefixed, add_markdown("$$ a $$ (other-a)"), "other-a"),
    "label without prefix": (guards.labels_prefixed, add_markdown("$$\na\n$$ (good)"), "good"),
    "unknown claim": (guards.checks_are_claims, add_output("✔ good-typo: x"), "good-typo"),
    "unknown claim as data": (guards.checks_are_claims, add_data(text_plain="✔ good-typo"), "good-typo"),
    "claim of another page": (guards.checks_are_claims, add_output("✔ other-mean/a: x"), "part/other"),
    "check of a definition": (guards.checks_are_claims, add_output("✔ good-name: x"), "defined"),
    "unchecked claim": (guards.claims_are_checked, add_claim("good-new", kind="proved"), "good-new"),
    "claim checked in a solution only": (
        guards.claims_are_checked,
        lambda p: p.code_cells[-1].outputs.append(p.code_cells[0].outputs.pop()),
        "good-mean",
    ),
    "check inside try": (
        guards.no_swallowed_checks,
        set_source("try:\n    check('x-a', 1)\nexcept E: pass"),
        "1",
    ),
    "check of constants": (
        guards.no_empty_checks,
        set_source("check('x-a', Fraction(1, 4), 1 / 4)"),
        "constants",
    ),
    "check of a thing with itself": (
        guards.no_empty_checks,
        set_source("check('x-a', a, right=a)"),
        "itself",
    ),
    "check of True": (guards.no_empty_checks, set_source("check('x-a', True)"), "itself"),
    "decimal": (guards.decimals_shown, add_markdown("It is 0.51."), "0.51"),
    "decimal in code style": (guards.decimals_shown, add_markdown("It is `0.51`."), "0.51"),
    "decimal in a caption": (
        guards.decimals_shown,
        set_metadata(1, mystnb={**FIGURE, "figure": {"caption": "0.52"}}),
        "0.52",
    ),
    "decimal in alt text": (
        guards.decimals_shown,
        set_metadata(1, mystnb={**FIGURE, "image": {"alt": "0.52"}}),
        "0.52",
    ),
    "decimal with the wrong sign": (guards.decimals_shown, add_markdown("It is −0.50."), "-0.50"),
    "decimal rounded wrongly": (guards.decimals_shown, add_markdown("It is -0.578."), "-0.578"),
    "decimal with more digits": (guards.decimals_shown, add_markdown("It is 0.5001."), "0.5001"),
    "decimal shown by a check alone": (guards.decimals_shown, add_markdown("It is 0.75."), "0.75"),
    "decimal in an output that is not compared": (
        guards.decimals_shown,
        set_metadata(0, tags=["nbval-ignore-output"]),
        "0.50",
    ),
    "percentage": (guards.decimals_shown, add_markdown("It is 1.27 %."), "1.27"),
    "allowed decimal that is not typed": (
        guards.decimals_shown,
        lambda p: p.decimals_allowed.update({"7.5": ""}),
        "7.5",
    ),
    "decimal in a claim": (
        guards.claim_decimals_shown,
        add_claim("good-new", statement="It is 0.51."),
        "0.51",
    ),
}


@pytest.mark.parametrize(("guard", "break_it", "named"), BAD.values(), ids=BAD)
def test_a_bad_page_is_named(guard, break_it, named):
    page = copy.deepcopy(good_page())
    break_it(page)
    problems = guard(page)
    assert any(named in problem for problem in problems), problems


def test_every_page_guard_has_a_bad_page():
    assert {guard for guard, *_ in BAD.values()} == set(guards.PAGE_GUARDS)


@pytest.mark.parametrize(
    "text",
    [
        "1.0.4",
        "version 2.13",
        "v1.16",
        "TRL 1.16",
        "section 4.1",
        "§4.1.1",
        "appendix A.1",
        "App. A.1.6",
        "arXiv:2402.03300v3",
        "[2501.12948]",
        "https://example.org/1.5/x",
        "[text](page-1.5.html)",
        "{cite}`a2.5`",
        "```\n1.5\n```",
    ],
)
def test_what_is_no_typed_decimal(text):
    assert guards.typed_decimals(text) == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("$r=1.1$", ["1.1"]),
        ("| −0.85 | -1.20 |", ["-0.85", "-1.20"]),
        ("$[0.9, -0.302]$", ["0.9", "-0.302"]),
        ("±0.866", ["0.866"]),
        (r"$\pm 0.866$", ["0.866"]),
        ("$1.1-0.2$ and 3.5 - 0.5", ["1.1", "0.2", "3.5", "0.5"]),
        ("from 0.1375 to 0.13125.", ["0.1375", "0.13125"]),
        ("1.5e-3", ["1.5e-3"]),
        (r"$\frac{0.22}{0.20}$", ["0.22", "0.20"]),
    ],
)
def test_typed_decimals(text, numbers):
    assert [decimal.text for decimal in guards.typed_decimals(text)] == numbers


@pytest.mark.parametrize(
    "shown", ["0.0125", "1/80", "tensor([1., 0.0125])", r"$\frac{1}{80}$", "Fraction(0.01253)", "1.25e-2"]
)
def test_output_numbers_that_round_to_a_typed_one(shown):
    page = good_page()
    add_markdown("It is 0.0125.")(page)
    add_output(shown)(page)
    assert guards.decimals_shown(page) == []


def test_an_allowed_decimal_needs_no_output():
    page = good_page()
    add_markdown("It is 0.51.")(page)
    page.decimals_allowed["0.51"] = "a reason"
    assert guards.decimals_shown(page) == []


def test_equation_labels_must_differ_between_pages():
    page = good_page()
    other = guards.Page("part/other", page.notebook)
    assert guards.labels_unique([page]) == []
    assert "good-first" in guards.labels_unique([page, other])[0]


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        (claim("good-mean"), "twice"),
        (claim("good-new", source_id="good-mean"), "twice"),
        (claim("good-new", kind="guessed"), "guessed"),
        (claim("good-new", verdict="fine"), "fine"),
        (claim("good-new", verdict="condition"), "needs a condition"),
        (claim("good-new", chapter="part/none"), "part/none"),
        (claim("good-new", chapter="part/other"), "prefix"),
        (claim("good-new", statement="a\nb"), "one line"),
        (claim("x-new"), "prefix-words"),
        (claim("Good"), "prefix-words"),
        ({"slug": "good-new"}, "fields"),
        ({**claim("good-new"), "source_id": 3}, "string"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_claim_is_named(entry, named):
    claims = good_page().claims
    chapters = ["part/good", "part/other"]
    assert guards.ledger_is_consistent(claims, chapters) == []
    assert any(named in problem for problem in guards.ledger_is_consistent([*claims, entry], chapters))
