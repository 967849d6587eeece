"""`check` shows one line if the relation holds, and fails in every other case."""

import math
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sympy
import torch
import yaml

from grpo_lib.proof import CheckFailed, check
from grpo_lib.proof.check import _anchored, _stated, statement_html

ROOT = Path(__file__).parents[2]
x = sympy.Symbol("x", positive=True)
t = torch.tensor
f64 = torch.float64
nan, inf = math.nan, math.inf

HOLDS = {
    "ints": (2, 2, "=="),
    "int and float": (1, 1.0, "=="),
    "floats within 1e-9": (0.1 + 0.2, 0.3, "=="),
    "fraction and int": (Fraction(4, 2), 2, "=="),
    "fraction and float": (Fraction(1, 80), 0.0125, "=="),
    "booleans": (np.bool_(True), True, "=="),
    "strings": ("clip", "clip", "=="),
    "tensor and list": (t([1.0, -1.0]), [1, -1], "=="),
    "float32 within 1e-6": (t(0.1), 0.1, "=="),
    "bfloat16 within 1e-2": (t(0.3, dtype=torch.bfloat16), 0.3, "=="),
    "tensor with gradient": (torch.ones(2, requires_grad=True), torch.ones(2), "=="),
    "tensor and array": (torch.ones(2, 3), np.ones((2, 3)), "=="),
    "boolean tensors": (t([True, False]), [True, False], "=="),
    "0-dim tensor": (t(0.5), Fraction(1, 2), "=="),
    "ragged lists": ([[1, 2], [3]], ((1, 2), (3,)), "=="),
    "the same infinity": (t(inf), inf, "=="),
    "symbolic": (x**2 - 1, (x - 1) * (x + 1), "=="),
    "sympy number and int": (sympy.Rational(4, 2), 2, "=="),
    "sympy number and fraction": (sympy.Rational(1, 80), Fraction(1, 80), "=="),
    "sympy number and float": (sympy.sqrt(3), 1.7320508075688772, "=="),
    "sympy number and tensor": (t(3.0, dtype=f64).sqrt(), sympy.sqrt(3), "=="),
    "sympy matrix": (sympy.Matrix([[x, 1]]), [[x, sympy.Integer(1)]], "=="),
    "sympy truth": (sympy.Integer(1) > 0, True, "=="),
    "expressions in a list": ([x / 2, 1], [x - x / 2, 1], "=="),
    "unequal ints": (1, 2, "!="),
    "one element unequal": (t([1.0, 2.0]), t([1.0, 3.0]), "!="),
    "unequal expressions": (x, x + 1, "!="),
    "unequal strings": ("a", "b", "!="),
    "less": (1, 2, "<"),
    "every element less": (t([1.0, 2.0]), 3, "<"),
    "scalar on the left": (0, t([[1.0], [2.0]]), "<"),
    "less or equal": (t([1.0, 2.0]), t([1.0, 3.0]), "<="),
    "greater": (Fraction(1, 2), Fraction(1, 3), ">"),
    "greater or equal": (np.array([1, 2]), [1, 2], ">="),
    "finite below infinity": (1.0, inf, "<"),
    "positive expression": (x + 1, 0, ">"),
    "negative expression": (-x, 0, "<"),
}

FAILS = {
    "ints": (2, 3, "=="),
    "floats": (0.3, 0.3 + 1e-8, "=="),
    "fractions": (Fraction(1, 3), Fraction(333333333333, 1000000000000), "=="),
    "booleans": (False, True, "=="),
    "strings": ("clip", "cispo", "=="),
    "tensor": (t([1.0, -1.0]), [1, 1], "=="),
    "float32 off by 1e-5": (t(0.1), 0.10001, "=="),
    "float64 off by 1e-8": (t(0.1, dtype=f64), 0.1 + 1e-8, "=="),
    "integer tensor": (t([1, 2]), [1, 3], "=="),
    "array": (np.ones(2), np.array([1.0, 1.1]), "=="),
    "infinities of two signs": (inf, -inf, "=="),
    "infinity and number": (inf, 1e300, "=="),
    "nan": (nan, nan, "=="),
    "nan in a tensor": (t([1.0, nan]), t([1.0, nan]), "=="),
    "nan unequal": (nan, 1.0, "!="),
    "nan unequal beside a difference": (t([nan, 1.0]), t([0.0, 2.0]), "!="),
    "nan below": (nan, 1.0, "<="),
    "sympy nan": (sympy.nan, sympy.nan, "=="),
    "sympy infinity minus infinity": (sympy.oo - x * 0, -sympy.oo, "=="),
    "shapes": (torch.ones(2), torch.ones(3), "=="),
    "shapes of the same size": (torch.ones(2, 1), torch.ones(1, 2), "=="),
    "a scalar is not spread": (torch.ones(2), 1.0, "=="),
    "a scalar is not spread for unequal": (torch.ones(2), 2.0, "!="),
    "one-element tensor and number": (torch.ones(1), 1.0, "=="),
    "a row is not spread": (torch.ones(2, 2), torch.ones(2), "<="),
    "a row of ones is not spread": (torch.ones(2, 2), [1, 1], ">="),
    "ragged lists": ([[1, 2], [3]], [[1], [2, 3]], "=="),
    "nothing on both sides": (torch.ones(0), [], "=="),
    "nothing below": (torch.ones(0), 1, "<"),
    "symbolic": (x, x + 1, "=="),
    "symbolic and number": (x, 1, "=="),
    "sympy number": (sympy.sqrt(3), 1.732, "=="),
    "matrix": (sympy.Matrix([[x, 1]]), sympy.Matrix([[x, 2]]), "=="),
    "equal ints": (1, 1, "!="),
    "equal to rounding": (0.1 + 0.2, 0.3, "!="),
    "equal tensors": (torch.ones(2), torch.ones(2), "!="),
    "equal expressions": (x**2 - 1, (x - 1) * (x + 1), "!="),
    "equal strings": ("a", "a", "!="),
    "equal is not less": (1, 1, "<"),
    "one element not less": (t([1.0, 4.0]), 3, "<"),
    "greater is not less or equal": (1 + 1e-12, 1.0, "<="),
    "equal is not greater": (t([2.0]), t([2.0]), ">"),
    "less is not greater or equal": (1, Fraction(3, 2), ">="),
    "equal expressions that SymPy does not simplify": (sympy.sqrt(x**2 + 2 * x + 1), x + 1, "!="),
    "sign not known": (x - 1, 0, ">"),
    "sign not known, or equal": (x - 1, 0, ">="),
    "sign not known, below": (x - 1, 0, "<"),
    "sign not known, below or equal": (x - 1, 0, "<="),
    "sign wrong": (-x, 0, ">="),
}


@pytest.mark.parametrize(("left", "right", "relation"), HOLDS.values(), ids=HOLDS)
def test_shows_a_line_if_the_relation_holds(left, right, relation, capsys):
    check("x-test", left, right, relation=relation)
    assert capsys.readouterr().out == "✔ x-test\n"


@pytest.mark.parametrize(("left", "right", "relation"), FAILS.values(), ids=FAILS)
def test_raises_if_the_relation_does_not_hold(left, right, relation, capsys):
    with pytest.raises(CheckFailed, match="x-test"):
        check("x-test", left, right, relation=relation)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (True, 1),
        (1.0, True),
        (t([True]), [1]),
        ("1", 1),
        (None, None),
        (1j, 1j),
        ({1}, {1}),
        (sympy.Eq(x, 1), True),
    ],
    ids=str,
)
def test_refuses_what_cannot_be_compared(left, right):
    with pytest.raises(TypeError, match="cannot compare"):
        check("x-test", left, right)


@pytest.mark.parametrize(("left", "right"), [(True, False), ("a", "b")])
def test_refuses_to_order_truth_values_and_strings(left, right):
    with pytest.raises(TypeError, match="== or !="):
        check("x-test", left, right, relation="<")


def test_a_truth_value_needs_no_right_side():
    check("x-test", 1 < 2)
    with pytest.raises(CheckFailed):
        check("x-test", 1 > 2)


def test_tolerance_is_absolute_and_exact_by_default_between_exact_numbers():
    check("x-test", 1000.0, 1000.4, tol=0.5)
    with pytest.raises(CheckFailed):
        check("x-test", 1000.0, 1000.4, tol=0.3)
    check("x-test", 1.1, 1, relation="<=", tol=0.2)
    check("x-test", sympy.pi, Fraction(22, 7), tol=0.01)
    with pytest.raises(CheckFailed):
        check("x-test", sympy.pi, Fraction(22, 7))
    with pytest.raises(CheckFailed):
        check("x-test", "a", "b", tol=2.0)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("relation", "tol", "message"),
    [
        ("=", None, "relation"),
        ("==", -1.0, "tol"),
        ("==", nan, "tol"),
        ("==", inf, "tol"),
        ("<", 0.1, "no tolerance"),
    ],
)
def test_refuses_an_unknown_relation_or_tolerance(relation, tol, message):
    with pytest.raises(ValueError, match=message):
        check("x-test", 1, 1, relation=relation, tol=tol)


def test_the_message_names_both_sides_the_relation_and_the_difference():
    with pytest.raises(CheckFailed) as failure:
        check("adv-example-mean", Fraction(1, 3), Fraction(1, 2))
    message = str(failure.value)
    for part in ("adv-example-mean: The scores", "Fraction(1, 3)", "==", "Fraction(1, 2)", "-1/6"):
        assert part in message


def test_a_claim_is_shown_with_its_statement_and_a_part_of_it_too(capsys):
    check("adv-example-mean", 0.5, 0.5)
    check("adv-example-mean/by-hand", 0.5, 0.5)
    assert capsys.readouterr().out == (
        "✔ adv-example-mean: The scores [1, 1, 0, 0] have mean 1/2.\n"
        "✔ adv-example-mean/by-hand: The scores [1, 1, 0, 0] have mean 1/2.\n"
    )


@pytest.mark.parametrize("id", ["adv-exmple-mean", "", "x-", "adv-example-mean/", "/adv-example-mean"])
def test_an_unknown_claim_is_refused_even_if_the_relation_holds(id):
    with pytest.raises(ValueError, match=r"claims\.yml"):
        check(id, 1, 1)


def test_a_misspelt_claim_gets_a_suggestion():
    with pytest.raises(ValueError, match="Did you mean adv-example-mean"):
        check("adv-exmple-mean", 1, 1)


def test_only_an_exercise_brings_its_own_statement(capsys):
    check("x-mean", 1, 1, statement="the mean is 1")
    assert capsys.readouterr().out == "✔ x-mean: the mean is 1\n"
    with pytest.raises(ValueError, match="drop statement"):
        check("adv-example-mean", 1, 1, statement="the mean is 1")


@pytest.fixture
def notebook(monkeypatch):
    """What a notebook would show, and its shell, whose events start a new cell."""
    IPython = pytest.importorskip("IPython")
    events = pytest.importorskip("IPython.core.events")
    shell = SimpleNamespace(events=events.EventManager(None, events.available_events), shown=[])
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shell.shown.append(data))
    _anchored.clear()
    yield shell
    _stated.clear()


def test_in_a_notebook_the_line_links_to_the_ledger(notebook):
    check("ratio-sign-and-size/y1", 1, 1)
    check("x-<b>", 1, 1)
    line, free = notebook.shown
    assert line["text/plain"].startswith("✔ ratio-sign-and-size/y1: The advantage gives")
    assert "each token's" in line["text/plain"]
    link = '<a href="../reference/claims.html#ratio-sign-and-size">ratio-sign-and-size/y1</a>'
    assert link in line["text/html"]
    assert "each token&#x27;s" in line["text/html"]
    assert free == {"text/plain": "✔ x-<b>", "text/html": '<div class="grpo-check">✔ x-&lt;b&gt;</div>'}


def test_a_cell_shows_the_statement_of_a_claim_once(notebook):
    check("adv-example-mean/a", 1, 1)
    check("adv-example-mean/b", 1, 1)
    check("adv-example-std", 1, 1)
    notebook.events.trigger("pre_run_cell", None)
    check("adv-example-mean/b", 1, 1)
    lines = [data["text/plain"] for data in notebook.shown]
    assert lines[1] == "✔ adv-example-mean/b"
    assert lines[0].startswith("✔ adv-example-mean/a: The scores")
    assert lines[2].startswith("✔ adv-example-std: The population")
    assert lines[3].startswith("✔ adv-example-mean/b: The scores")


def test_on_the_front_page_the_link_starts_from_its_folder(notebook, monkeypatch):
    for folder in ("book", "book/reference", "tests"):
        monkeypatch.chdir(ROOT / folder)
        check("adv-example-mean", 1, 1)
    links = [re.search('href="(.*?)#', data["text/html"])[1] for data in notebook.shown]
    assert links == ["reference/claims.html", "../reference/claims.html", "../reference/claims.html"]


def test_subscripts_in_statements():
    shown = statement_html("π_θ/π_ref of y_{1,2} & |y_i| in grpo_lib")
    assert shown == "π<sub>θ</sub>/π<sub>ref</sub> of y<sub>1,2</sub> &amp; |y<sub>i</sub>| in grpo_lib"


def run_python(code: str, cwd: Path, package_root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={"PYTHONPATH": str(package_root), "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
    )


def test_the_claims_are_found_from_the_working_directory_and_in_the_installed_package(tmp_path):
    installed = tmp_path / "site"
    installed.mkdir()
    subprocess.run(["cp", "-r", str(ROOT / "grpo_lib"), str(installed)], check=True)
    code = "from grpo_lib.proof import check; check('mine', 1, 1)"
    entry = yaml.safe_dump([{"slug": "mine", "statement": "one is one", "chapter": "objective/here"}])

    page_folder = tmp_path / "copy" / "book" / "objective"
    page_folder.mkdir(parents=True)
    (page_folder.parent / "claims.yml").write_text(entry)
    assert run_python(code, page_folder, installed).stdout == "✔ mine: one is one\n"

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert "was not found" in run_python(code, elsewhere, installed).stderr

    (installed / "grpo_lib" / "proof" / "claims.yml").write_text(entry)
    assert run_python(code, elsewhere, installed).stdout == "✔ mine: one is one\n"


def test_importing_the_library_loads_neither_proof_nor_sympy_nor_yaml(tmp_path):
    code = (
        "import sys, grpo_lib; before = 'grpo_lib.proof' in sys.modules, 'sympy' in sys.modules, 'yaml' in sys.modules\n"
        "import torch; print(before)"
    )
    result = run_python(code, tmp_path, ROOT)
    in_torch = run_python(
        "import sys, torch; print('sympy' in sys.modules, 'yaml' in sys.modules)", tmp_path, ROOT
    )
    sympy_loaded, yaml_loaded = in_torch.stdout.split()
    assert result.stdout == f"(False, {sympy_loaded}, {yaml_loaded})\n"


X = sympy.Symbol("x", positive=True)


@pytest.mark.parametrize(
    ("left", "right", "relation"),
    [
        (sympy.Limit(sympy.sin(X) / X, X, 0), 1, "=="),
        (sympy.Limit((1 + 1 / X) ** X, X, sympy.oo), sympy.E, "=="),
        (sympy.Limit(1 / X, X, 0, "+"), sympy.oo, "=="),
        (sympy.Limit(1 / X, X, sympy.oo), 1, "<"),
        (sympy.Sum(X, (X, 0, 4)), 10, "=="),
        (sympy.Integral(X, (X, 0, 1)), Fraction(1, 2), "=="),
        (sympy.Derivative(X**2, X), 2 * X, "=="),
    ],
)
def test_limits_sums_and_derivatives_are_evaluated(left, right, relation):
    check("x-a", left, right, relation=relation)
    with pytest.raises(CheckFailed):
        check("x-a", left, right, relation={"==": "!=", "<": ">"}[relation])


def test_a_wrong_limit_fails():
    with pytest.raises(CheckFailed, match="left − right is -1"):
        check("x-a", sympy.Limit(sympy.sin(X) / X, X, 0), 2)


def test_the_first_check_of_a_claim_on_a_page_carries_its_anchor(notebook):
    for id in ("adv-example-mean/a", "adv-example-mean/b", "adv-example-std", "x-free"):
        check(id, 1, 1)
        notebook.events.trigger("pre_run_cell", None)
    anchors = [
        re.findall(r'<div class="grpo-check"(?: id="(.*?)")?>', line["text/html"]) for line in notebook.shown
    ]
    assert anchors == [["check-adv-example-mean"], [""], ["check-adv-example-std"], [""]]
