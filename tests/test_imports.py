"""Who may import what. Who may import whom inside grpo_lib is a contract in pyproject.toml, held by lint-imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = ("_validate", "advantages", "ratios", "kl", "aggregation", "objective", "algorithms")
CORE_NEEDS = {"torch", "numpy", "jaxtyping"}


def top_level_imports(source: str) -> set[str]:
    """The top-level packages that a module imports, anywhere in it; relative imports as "."."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." if node.level else node.module.partition(".")[0])
    return names


def top_level_modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return set(result.stdout.split())


def test_top_level_imports_sees_imports_inside_functions() -> None:
    source = "import torch.nn as nn\nfrom .a import b\n\n\ndef f():\n    from sympy.core import S\n"
    assert top_level_imports(source) == {"torch", ".", "sympy"}


@pytest.mark.parametrize("module", ["__init__", *CORE])
def test_the_core_imports_torch_numpy_and_jaxtyping_alone(module: str) -> None:
    source = (ROOT / "grpo_lib" / f"{module}.py").read_text(encoding="utf-8")
    assert top_level_imports(source) <= CORE_NEEDS | {"grpo_lib"} | sys.stdlib_module_names


def test_import_grpo_lib_loads_nothing_but_the_core() -> None:
    needed = top_level_modules_after("import torch, numpy, jaxtyping")
    loaded = top_level_modules_after("import grpo_lib")
    assert "grpo_lib" in loaded
    assert loaded - needed - sys.stdlib_module_names == {"grpo_lib"}
    assert not {"transformers", "sympy", "matplotlib", "anywidget"} & loaded


def test_import_grpo_lib_loads_no_other_part_of_it() -> None:
    code = "import grpo_lib, sys\nprint(*[name for name in sys.modules if name.startswith('grpo_lib.')])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert set(result.stdout.split()) == {f"grpo_lib.{module}" for module in CORE}


def test_import_training_loads_no_transformers() -> None:
    """Its masks and log-probabilities serve other trainers, which may have no use for a library of models."""
    assert not {"transformers", "tokenizers", "sympy", "matplotlib"} & top_level_modules_after(
        "import grpo_lib.training"
    )
