"""A Sphinx extension: the API page is made from grpo_lib alone.

The static analysis behind it would follow every import. Where torch and transformers are installed it would read thousands of their
files, for minutes, to no use: the page says only what grpo_lib's own files say.
"""

import sys
from typing import Any

import astroid
from astroid.manager import AstroidManager


class _Foreign(set[str]):
    """All modules but grpo_lib's and the standard library's."""

    def __contains__(self, module: object) -> bool:
        top = str(module).partition(".")[0]
        return top != "grpo_lib" and top not in sys.stdlib_module_names


def setup(app: Any) -> dict[str, bool]:
    AstroidManager.brain["module_denylist"] = astroid.MANAGER.module_denylist = _Foreign()
    return {"parallel_read_safe": True, "parallel_write_safe": True}
