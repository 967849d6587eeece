"""Wrong formulas, one at a time in a copy of the library: in each case checks of the book must fail, those that the ledger names."""

from pathlib import Path

import nbformat
import nbformat.v4 as v4
import pytest
import yaml

from tools.wrong_formulas import BOOK, RESULT, ROOT, WRONG, Wrong, failing_checks, library_copy, run_cells


@pytest.mark.parametrize("chapter", sorted({wrong.chapter for wrong in WRONG.values()}))
def test_the_right_formulas_pass(chapter, tmp_path):
    result = run_cells(BOOK / f"{chapter}.ipynb", library_copy(tmp_path))
    assert "error" not in result, result
    assert result["failed"] == []
    assert result["checks"] > 0


STORED = {row["wrong"]: row for row in yaml.safe_load(RESULT.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_formula_trips_the_checks_that_the_ledger_names(name):
    found = failing_checks(WRONG[name])
    assert found, "no check fails"
    assert found == STORED[name]["checks"], "run `make wrong-formulas`"


def test_the_ledger_names_every_wrong_formula():
    assert {name: row["chapter"] for name, row in STORED.items()} == {n: w.chapter for n, w in WRONG.items()}


# --------------------------------------------------------------------------------------------- the test of the test

MADE_UP = (
    """
import torch
from grpo_lib import group_advantages
from grpo_lib.proof import check
A = group_advantages(torch.tensor([[1.0, 1.0, 0.0, 0.0]]), eps=0)
display(A)
""",
    'check("x-advantages", A, [[1, 1, -1, -1]])',
)


@pytest.fixture
def made_up(tmp_path):
    def write(*sources: str, tags: list[str] | None = None) -> Path:
        cells = [v4.new_code_cell(source, metadata={"tags": tags or []}) for source in sources]
        path = tmp_path / "page.ipynb"
        nbformat.write(v4.new_notebook(cells=[v4.new_markdown_cell("# Made up"), *cells]), path)
        return path

    return write


def test_a_made_up_notebook_passes_with_the_right_formula_and_fails_with_a_wrong_one(made_up, tmp_path):
    notebook = made_up(*MADE_UP)
    (tmp_path / "right").mkdir()
    (tmp_path / "wrong").mkdir()
    assert run_cells(notebook, library_copy(tmp_path / "right")) == {"checks": 1, "failed": []}
    result = run_cells(notebook, library_copy(tmp_path / "wrong", WRONG["sample for population std"]))
    assert result == {"checks": 0, "failed": ["x-advantages"]}


def test_all_checks_that_fail_are_named(made_up):
    source = (
        "from grpo_lib.proof import check\ncheck('x-a', 1, 2)\ncheck('x-b', 1, 3 - 2)\ncheck('x-c', 1, 4)"
    )
    assert run_cells(made_up(source), ROOT) == {"checks": 1, "failed": ["x-a", "x-c"]}


def test_another_error_is_not_taken_for_a_check(made_up):
    assert run_cells(made_up("assert 1 > 2"), ROOT)["error"] == "AssertionError"
    assert run_cells(made_up("assert 1 > 2", tags=["raises-exception"]), ROOT) == {
        "checks": 0,
        "failed": [],
    }


def test_a_check_that_fails_counts_even_where_an_exception_is_expected(made_up):
    source = "from grpo_lib.proof import check\ncheck('x-a', 1, 2)"
    assert run_cells(made_up(source, tags=["raises-exception"]), ROOT)["failed"] == ["x-a"]


@pytest.mark.parametrize("right", ["no such text", "return "])
def test_a_change_that_does_not_fit_exactly_once_is_refused(right, tmp_path):
    with pytest.raises(ValueError, match="expected 1: update WRONG"):
        library_copy(tmp_path, Wrong("ratios.py", right, "", ""))


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_each_wrong_formula_fits_the_library_in_one_place(wrong, tmp_path):
    library_copy(tmp_path, wrong)
