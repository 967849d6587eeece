"""Run the code cells of a notebook in this process, without a kernel: python run_cells.py NOTEBOOK.ipynb

A check that fails is noted, and the run goes on; any other error ends it. The last line printed is JSON: the number of checks that
held, the ids of those that failed, and after an error the cell's number, the kind of error, and its message.
"""

import json
import os
import sys
from pathlib import Path


def run(path: Path) -> dict[str, object]:
    from IPython.display import display

    from grpo_lib import proof

    held, failed = 0, []
    original = proof.check

    def noted(id: str, *args: object, **kwargs: object) -> None:
        nonlocal held
        try:
            original(id, *args, **kwargs)
        except proof.CheckFailed:
            failed.append(id)
        else:
            held += 1

    proof.check = noted
    os.chdir(path.parent)
    space: dict[str, object] = {"__name__": "__main__", "display": display}
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate((cell for cell in cells if cell["cell_type"] == "code"), start=1):
        try:
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), space)
        except Exception as error:
            if "raises-exception" not in cell["metadata"].get("tags", []):
                what = {"cell": number, "error": type(error).__name__, "message": str(error)}
                return {"checks": held, "failed": failed, **what}
    return {"checks": held, "failed": failed}


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]).resolve())))
