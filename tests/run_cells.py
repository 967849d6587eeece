"""Run the code cells of a notebook in this process, without a kernel: python run_cells.py NOTEBOOK.ipynb

Stops at the first failure. The last line printed is JSON: the number of checks that held and, after a failure, the cell's number,
the kind of error, and its message.
"""

import json
import os
import sys
from pathlib import Path


def run(path: Path) -> dict[str, object]:
    from IPython.display import display

    from grpo_lib import proof

    held = 0

    def counted(*args: object, **kwargs: object) -> None:
        nonlocal held
        original(*args, **kwargs)
        held += 1

    original, proof.check = proof.check, counted
    os.chdir(path.parent)
    space: dict[str, object] = {"__name__": "__main__", "display": display}
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate((cell for cell in cells if cell["cell_type"] == "code"), start=1):
        try:
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), space)
        except proof.CheckFailed as failure:
            return {"checks": held, "cell": number, "error": "CheckFailed", "message": str(failure)}
        except Exception as error:
            if "raises-exception" not in cell["metadata"].get("tags", []):
                return {"checks": held, "cell": number, "error": type(error).__name__, "message": str(error)}
    return {"checks": held}


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]).resolve())))
