"""The API page names every public object, with the signature that it has."""

import inspect
import re
from pathlib import Path

import pytest

import grpo_lib
import grpo_lib.proof
import grpo_lib.training

PAGE = (Path(__file__).parents[2] / "book/reference/api.md").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^\.\. autoapi\w+:: (grpo_lib\.[\w.]+)(\(.*\))?$", PAGE, re.MULTILINE))


@pytest.mark.parametrize(
    "module", [grpo_lib, grpo_lib.proof, grpo_lib.training], ids=lambda module: module.__name__
)
def test_every_public_name_is_on_the_page(module) -> None:
    listed = {entry for entry in ENTRIES if entry.rpartition(".")[0] == module.__name__}
    assert listed == {f"{module.__name__}.{name}" for name in module.__all__}


@pytest.mark.parametrize("name", [name for name, signature in ENTRIES.items() if signature])
def test_a_signature_on_the_page_is_the_one_in_the_code(name: str) -> None:
    signature = inspect.signature(getattr(grpo_lib, name.rpartition(".")[2]))
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()
    ]
    assert ENTRIES[name] == str(inspect.Signature(bare))
