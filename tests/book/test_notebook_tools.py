"""tools/notebooks.py: one normal form, the same at every run."""

import nbformat.v4 as v4
import pytest

from tools import notebooks

MESSY_OUTPUTS = [
    v4.new_output("stream", name="stdout", text="a"),
    v4.new_output("stream", name="stdout", text="b\n"),
    v4.new_output("display_data", {notebooks.WIDGET_VIEW: {"model_id": "1f"}, "text/html": "<b>x</b>"}),
    v4.new_output("display_data", {notebooks.WIDGET_VIEW: {"model_id": "2f"}}),
]
KEPT = {"tags": ["hide-input"], "mystnb": {"image": {"alt": "a"}}}


def messy():
    timing = {"execution": {"iopub.status.busy": "2026-01-01T00:00:00"}, "collapsed": True, **KEPT}
    cells = [
        v4.new_markdown_cell("# A", id="zz"),
        v4.new_code_cell("1", metadata=timing, outputs=MESSY_OUTPUTS),
    ]
    metadata = {
        "widgets": {"state": {}},
        "kernelspec": {"name": "mine", "display_name": "Mine"},
        "language_info": {"name": "python", "version": "3.11.2"},
    }
    return v4.new_notebook(cells=cells, metadata=metadata)


def test_the_normal_form_keeps_content_and_drops_what_changes():
    notebook = messy()
    result = notebooks.normalised(notebook)
    assert [cell.id for cell in result.cells] == ["cell-001", "cell-002"]
    assert result.cells[1].metadata == KEPT
    assert result.metadata == notebooks.NOTEBOOK_METADATA
    assert [o.get("text") or o.data for o in result.cells[1].outputs] == ["ab\n", {"text/html": "<b>x</b>"}]
    assert notebook.cells[0].id == "zz"  # the original is not touched
    assert notebooks.text(notebooks.normalised(result)) == notebooks.text(result)


def test_check_is_red_until_the_notebook_is_normalised(tmp_path, capsys):
    path = tmp_path / "page.ipynb"
    path.write_text(notebooks.text(messy()))
    assert notebooks.main(["check", str(path)]) == 1
    assert "page.ipynb is not normalised" in capsys.readouterr().err
    assert notebooks.main(["normalise", str(path)]) == 0
    assert notebooks.main(["check", str(path)]) == 0


CODE = """
import os, sys
from pathlib import Path
import grpo_lib
print(Path.cwd().name, os.environ["TQDM_DISABLE"], os.environ["OMP_NUM_THREADS"], os.environ["PYTHONHASHSEED"])
sys.stdout.flush()
print({"a", "b", "c"})
"""


def test_executing_twice_gives_the_same_file(tmp_path):
    pytest.importorskip("nbclient")
    path = tmp_path / "page.ipynb"
    path.write_text(
        notebooks.text(v4.new_notebook(cells=[v4.new_code_cell(CODE), v4.new_code_cell("1 + 1")]))
    )
    stored = []
    for _ in range(2):
        assert notebooks.main(["execute", str(path)]) == 0
        stored.append(path.read_text())
    assert stored[0] == stored[1]
    assert f"{tmp_path.name} 1 1 0" in stored[0]
    assert [cell.execution_count for cell in notebooks.read(path).cells] == [1, 2]
    assert notebooks.main(["check", str(path)]) == 0


def test_a_notebook_that_fails_is_named_and_left_as_it_is(tmp_path, capsys):
    path = tmp_path / "page.ipynb"
    path.write_text(notebooks.text(v4.new_notebook(cells=[v4.new_code_cell("1 / 0")])))
    before = path.read_text()
    assert notebooks.main(["execute", str(path)]) == 1
    assert path.read_text() == before
    error = capsys.readouterr().err
    assert "page.ipynb" in error
    assert "ZeroDivisionError" in error
