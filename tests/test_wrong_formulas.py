"""Ten wrong formulas, one at a time in a copy of the library: in each case a check of the book must fail."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
import nbformat.v4 as v4
import pytest

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "grpo_lib"
OBJECTIVE = ROOT / "book" / "objective"


@dataclass(frozen=True)
class Wrong:
    """A wrong formula: in a file of grpo_lib, right becomes wrong, and a check of the chapter must fail."""

    file: str
    right: str
    wrong: str
    chapter: str


WRONG = {
    "sample for population std": Wrong(
        "advantages.py",
        'degrees = count if std == "population" else count - 1',
        "degrees = count - 1",
        "group-advantage",
    ),
    "own score left in the leave-one-out mean": Wrong(
        "advantages.py",
        "residual = residual * count / (count - 1).clamp(min=1)",
        "residual = residual",
        "group-advantage",
    ),
    "ratio inverted": Wrong(
        "ratios.py",
        "masked_log_ratio(per_token_logps, old_per_token_logps.detach(), mask",
        "masked_log_ratio(old_per_token_logps.detach(), per_token_logps, mask",
        "ratio-and-clipping",
    ),
    "max for min": Wrong(
        "ratios.py",
        "return torch.minimum(free * advantages, clipped * advantages)",
        "return torch.maximum(free * advantages, clipped * advantages)",
        "ratio-and-clipping",
    ),
    "clip without min": Wrong(
        "ratios.py",
        "return torch.minimum(free * advantages, clipped * advantages)",
        "return clipped * advantages",
        "ratio-and-clipping",
    ),
    "k3 reversed": Wrong(
        "kl.py",
        "log_x = _ref_log_ratio(logps, ref_logps).clamp(max=LOG_RATIO_CAP)",
        "log_x = (-_ref_log_ratio(logps, ref_logps)).clamp(max=LOG_RATIO_CAP)",
        "reference-kl",
    ),
    "k1 with the other sign": Wrong(
        "kl.py",
        "return 0 - _ref_log_ratio(logps, ref_logps)",
        "return _ref_log_ratio(logps, ref_logps)",
        "reference-kl",
    ),
    "β added": Wrong(
        "objective.py",
        "terms = terms - objective.beta * penalty",
        "terms = terms + objective.beta * penalty",
        "full-objective",
    ),
    "token mean for answer mean": Wrong(
        "aggregation.py",
        'if mode == "token-mean":',
        'if mode in ("token-mean", "seq-mean-token-mean"):',
        "full-objective",
    ),
    "end token masked out": Wrong(
        "training/rollout.py",
        "return ~ended_before, ",
        "return ~ended_before & ~is_end, ",
        "full-objective",
    ),
}


def library_copy(folder: Path, change: Wrong | None = None) -> Path:
    """A copy of grpo_lib in the folder, with the change made, which must be possible in exactly one place."""
    shutil.copytree(LIBRARY, folder / "grpo_lib", ignore=shutil.ignore_patterns("__pycache__"))
    if change is not None:
        path = folder / "grpo_lib" / change.file
        source = path.read_text(encoding="utf-8")
        places = source.count(change.right)
        if places != 1:
            raise ValueError(
                f"{change.file} has {places} places with {change.right!r}, expected 1: update WRONG."
            )
        path.write_text(source.replace(change.right, change.wrong), encoding="utf-8")
    return folder


def run_cells(notebook: Path, folder: Path) -> dict[str, object]:
    """What tests/run_cells.py reports of a notebook that is run with the library in the folder."""
    settings = {"PYTHONPATH": str(folder), "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "run_cells.py"), str(notebook)],
        env={**os.environ, **settings, "PYTHONUTF8": "1", "TQDM_DISABLE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("chapter", sorted({wrong.chapter for wrong in WRONG.values()}))
def test_the_right_formulas_pass(chapter, tmp_path):
    result = run_cells(OBJECTIVE / f"{chapter}.ipynb", library_copy(tmp_path))
    assert "error" not in result, result
    assert result["checks"] > 0


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_formula_trips_a_check(wrong, tmp_path, record_property):
    result = run_cells(OBJECTIVE / f"{wrong.chapter}.ipynb", library_copy(tmp_path, wrong))
    assert result.get("error") == "CheckFailed", result
    check = str(result["message"]).splitlines()[0].removeprefix("✘ ")
    record_property("check", check)
    print(f"{wrong.chapter}, {check}")


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
    assert run_cells(notebook, library_copy(tmp_path / "right")) == {"checks": 1}
    result = run_cells(notebook, library_copy(tmp_path / "wrong", WRONG["sample for population std"]))
    assert (result["error"], result["cell"], result["checks"]) == ("CheckFailed", 2, 0)
    assert "x-advantages" in str(result["message"])


def test_another_error_is_not_taken_for_a_check(made_up):
    assert run_cells(made_up("assert 1 > 2"), ROOT)["error"] == "AssertionError"
    assert run_cells(made_up("assert 1 > 2", tags=["raises-exception"]), ROOT) == {"checks": 0}


def test_a_check_that_fails_counts_even_where_an_exception_is_expected(made_up):
    source = "from grpo_lib.proof import check\ncheck('x-a', 1, 2)"
    assert run_cells(made_up(source, tags=["raises-exception"]), ROOT)["error"] == "CheckFailed"


@pytest.mark.parametrize("right", ["no such text", "return "])
def test_a_change_that_does_not_fit_exactly_once_is_refused(right, tmp_path):
    with pytest.raises(ValueError, match="expected 1: update WRONG"):
        library_copy(tmp_path, Wrong("ratios.py", right, "", ""))


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_each_wrong_formula_fits_the_library_in_one_place(wrong, tmp_path):
    library_copy(tmp_path, wrong)
