"""Run the notebooks of the book anew and store them in one normal form.

python tools/notebooks.py execute [PATH ...]       run each notebook (default: all of the book), normalise and store it
python tools/notebooks.py normalise [PATH ...]     normalise without running
python tools/notebooks.py check [PATH ...]         fail if one is not normalised
python tools/notebooks.py new SOURCE.py BOOK.ipynb     make a notebook from a percent script (needs jupytext)

The normal form has nothing that changes between two runs: cell ids by position, no timings, no widget state, no versions.
"""

import argparse
import copy
import os
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"

KERNEL_ENVIRONMENT = {
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "TQDM_DISABLE": "1",
}
CELL_METADATA = ("mystnb", "tags")
NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def notebooks(book: Path = BOOK) -> list[Path]:
    """All notebooks of the book, sorted by path."""
    hidden = ("_build", ".ipynb_checkpoints")
    return sorted(path for path in book.rglob("*.ipynb") if not set(hidden) & set(path.parts))


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def text(notebook: NotebookNode) -> str:
    """The notebook as it is stored."""
    return nbformat.writes(notebook, version=4).rstrip("\n") + "\n"


def normalised(notebook: NotebookNode) -> NotebookNode:
    """A copy in the normal form; sources, outputs, tags and MyST metadata are kept."""
    notebook = copy.deepcopy(notebook)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = nbformat.from_dict(NOTEBOOK_METADATA)
    for number, cell in enumerate(notebook.cells, start=1):
        cell.id = f"cell-{number:03d}"
        cell.metadata = nbformat.from_dict(
            {k: cell.metadata[k] for k in CELL_METADATA if cell.metadata.get(k)}
        )
        if cell.cell_type == "code":
            cell.outputs = _normalised_outputs(cell.outputs)
    nbformat.validate(notebook)
    return notebook


def _normalised_outputs(outputs: list[NotebookNode]) -> list[NotebookNode]:
    kept: list[NotebookNode] = []
    for output in outputs:
        if output.output_type == "stream":  # the kernel cuts one text into pieces at random
            if kept and kept[-1].output_type == "stream" and kept[-1].name == output.name:
                kept[-1].text += output.text
                continue
        elif "data" in output:
            output.data.pop(WIDGET_VIEW, None)
            if not output.data:
                continue
        kept.append(output)
    return kept


def execute(path: Path) -> NotebookNode:
    """Run a notebook in a fresh kernel, in its own folder, and return it in the normal form.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell that is not tagged raises-exception fails.
    """
    from nbclient import NotebookClient

    os.environ.update(KERNEL_ENVIRONMENT)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    client = NotebookClient(
        read(path),
        kernel_name="python3",
        timeout=1200,
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    return normalised(client.execute())


def convert(source: Path, target: Path) -> None:
    """Make a notebook from a percent script; cell metadata is kept, outputs start empty."""
    import jupytext

    target.write_text(text(normalised(jupytext.read(source, fmt="py:percent"))), encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["execute", "normalise", "check", "new"])
    parser.add_argument("paths", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "new":
        if len(options.paths) != 2:
            parser.error("new takes two paths: SOURCE.py BOOK.ipynb")
        convert(*options.paths)
        return 0

    failed = 0
    for path in [p.resolve() for p in options.paths] or notebooks():
        if options.command == "check":
            if path.read_text(encoding="utf-8") != text(normalised(read(path))):
                print(f"{path} is not normalised: run `make execute`", file=sys.stderr)
                failed += 1
            continue
        print(path, flush=True)
        try:
            result = execute(path) if options.command == "execute" else normalised(read(path))
        except Exception as error:
            print(f"{path} was left as it is:\n{error}", file=sys.stderr)
            failed += 1
            continue
        path.write_text(text(result), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
