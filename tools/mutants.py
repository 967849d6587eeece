"""Mutants of the core formulas: small changes, one at a time, each of which a test should notice (make mutate).

python tools/mutants.py        runs mutmut, and lists the mutants that survived and are not in tests/survivors.yml

Only arithmetic, comparisons, constants and arguments count: a mutant that changes nothing but the words of an error message is left
out.
"""

import ast
import copy
import difflib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
MUTANTS = ROOT / "mutants"
KNOWN = ROOT / "tests" / "survivors.yml"


class _WithoutWords(ast.NodeTransformer):
    """Drops what an error says: the arguments of raise, and the names and hints given to require_… functions."""

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.Raise()

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id.lstrip("_").startswith("require_"):
            node.args = [arg for arg in node.args if not isinstance(arg, (ast.Constant, ast.JoinedStr))]
        return node


def changes(file: Path) -> Iterator[tuple[str, str, str, str]]:
    """Name, function, line before and line after of each mutant of a file that changes more than words."""
    functions = {
        node.name: node
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    module = f"grpo_lib.{file.stem}"
    for name, node in functions.items():
        function, mark, number = name.rpartition("__mutmut_")
        if not mark or number == "orig":
            continue
        original = functions[f"{function}__mutmut_orig"]
        sides = [[ast.unparse(part) for part in f.body] for f in (original, node)]
        bare = [
            [ast.dump(_WithoutWords().visit(copy.deepcopy(part))) for part in f.body]
            for f in (original, node)
        ]
        if bare[0] == bare[1]:
            continue
        lines = ["\n".join(side).splitlines() for side in sides]
        differ = [line for line in difflib.ndiff(*lines) if line[0] in "-+"]
        before = " ".join(line[1:].strip() for line in differ if line[0] == "-")
        after = " ".join(line[1:].strip() for line in differ if line[0] == "+")
        yield (
            f"{module}.{name}",
            f"{file.stem}.{function.rpartition('ǁ')[2].removeprefix('x_')}",
            before,
            after,
        )


def main() -> int:
    subprocess.run([sys.executable, "-m", "mutmut", "run"], cwd=ROOT, check=True)
    listed = subprocess.run(
        [sys.executable, "-m", "mutmut", "results", "--all", "true"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    status = dict(line.strip().rsplit(": ", 1) for line in listed.splitlines() if ": " in line)
    files = sorted(path.with_suffix("") for path in (MUTANTS / "grpo_lib").glob("*.py.meta"))
    known = {
        (row["function"], row["before"], row["after"]): row["reason"]
        for row in yaml.safe_load(KNOWN.read_text(encoding="utf-8"))
    }
    total, survived, new = 0, 0, []
    for file in files:
        for name, *what in changes(file):
            total += 1
            if status[name] != "killed":
                survived += 1
                if tuple(what) not in known:
                    new.append({"function": what[0], "before": what[1], "after": what[2]})
    print(
        f"{total} mutants, {total - survived} killed ({(total - survived) / total:.1%}), {survived} survived, {len(new)} of them without a reason."
    )
    if new:
        print(yaml.safe_dump(new, allow_unicode=True, sort_keys=False, width=1000))
    return bool(new)


if __name__ == "__main__":
    sys.exit(main())
