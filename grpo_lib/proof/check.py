"""The ✔ of the book: compare two results of a cell, and name the claim that they prove."""

import difflib
import html
import math
import re
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

Relation = Literal["==", "!=", "<", "<=", ">", ">="]

_RELATIONS = ("==", "!=", "<", "<=", ">", ">=")
_TOLERANCES = {2: 1e-2, 4: 1e-6, 8: 1e-9}  # by the bytes of the floating dtype


class CheckFailed(AssertionError):
    """A claim does not hold: the two sides of a check are not in the stated relation."""


def check(
    id: str,
    left: object,
    right: object = True,
    *,
    relation: Relation = "==",
    tol: float | None = None,
    statement: str | None = None,
) -> None:
    """Show ``✔ id: statement`` if left and right are in the relation, else raise.

    Both sides may be numbers, fractions, booleans, strings, SymPy expressions, tensors, arrays, or sequences of these.
    They must have the same shape: nothing is broadcast, but a single number may stand on one side of ``<``, ``<=``,
    ``>`` and ``>=``, which hold if they hold for every element; ``!=`` holds if one element differs. NaN is in no
    relation to anything, and there must be at least one element to compare.

    SymPy expressions are equal if ``sympy.simplify(left - right)`` is 0. Limits, sums, integrals and derivatives that are
    written but not evaluated (``sympy.Limit`` and so on) are evaluated first.

    Args:
        id: slug of a claim in book/claims.yml, or ``slug/part``; ids that start with ``x-`` (exercises) are free.
        left: what was computed.
        right: what it is compared with; ``True`` if left is a truth value.
        relation: ``"=="``, ``"!="``, ``"<"``, ``"<="``, ``">"`` or ``">="``.
        tol: absolute tolerance, in the units of left and right. The default for ``==`` and ``!=`` is 0 between exact
            numbers (integers, fractions), 1e-9 with float64 or Python floats, 1e-6 with float32, 1e-2 with 16 bits. For
            ``<=`` and ``>=`` the default is 0, and ``<`` and ``>`` take none.
        statement: what an id starting with ``x-`` says; other ids have theirs from claims.yml.

    Raises:
        CheckFailed: the relation does not hold; the message has both sides and the difference.
        ValueError: unknown id, relation or tolerance.
        TypeError: a side holds something that cannot be compared.
    """
    slug, text, page = _claim(id, statement)
    if relation not in _RELATIONS:
        raise ValueError(f"relation must be one of {', '.join(_RELATIONS)}, got {relation!r}.")
    if tol is not None:
        if not 0 <= tol < math.inf:
            raise ValueError(f"tol must be >= 0 and finite, got {tol}.")
        if relation in ("<", ">") and tol != 0:
            raise ValueError(f"relation {relation!r} takes no tolerance, got tol={tol}: drop it.")

    try:
        _compare(left, right, relation, tol)
    except CheckFailed as failure:
        head = f"{id}: {text}" if text else id
        sides = f"  left:     {left!r}\n  relation: {relation}\n  right:    {right!r}"
        raise CheckFailed(f"✘ {head}\n{sides}\n  {failure}") from None
    _show(id, slug, text, page)


# ---------------------------------------------------------------------------------------------------- the claim


@cache
def _claims_path() -> Path:
    """book/claims.yml beside the package or above the working directory, else the copy in the installed package."""
    package = Path(__file__).resolve().parent
    folders = [package.parents[1], Path.cwd(), *Path.cwd().parents]
    candidates = [folder / "book" / "claims.yml" for folder in folders] + [package / "claims.yml"]
    path = next((p for p in candidates if p.is_file()), None)
    if path is None:
        raise FileNotFoundError("book/claims.yml was not found: run the notebook inside a copy of the book.")
    return path


@cache
def _claims() -> dict[str, tuple[str, str]]:
    """Statement and chapter of each slug."""
    import yaml

    entries = yaml.safe_load(_claims_path().read_text(encoding="utf-8"))
    return {entry["slug"]: (entry["statement"], entry["chapter"]) for entry in entries}


def _up_to_book(chapter: str) -> str:
    """The way from the page that runs to the folder book/: its working directory says, else the claim's own chapter."""
    book = _claims_path().parent
    here = Path.cwd()
    depth = len(here.relative_to(book).parts) if here.is_relative_to(book) else chapter.count("/")
    return "../" * depth


def _claim(id: str, statement: str | None) -> tuple[str, str | None, str | None]:
    """Slug, statement and chapter of an id; statement and chapter are None where there are none."""
    slug = id.split("/")[0]
    if id.startswith("x-") and len(id) > 2:
        return slug, statement, None
    if statement is not None:
        raise ValueError(
            f"{id!r} has its statement from claims.yml: drop statement=, or let the id start with x-."
        )
    claims = _claims()
    if slug not in claims or id.endswith("/"):
        near = difflib.get_close_matches(slug, claims, n=3)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(
            f"{id!r} is no claim of book/claims.yml: add the claim there, or let the id start with x-.{hint}"
        )
    return slug, *claims[slug]


_stated: set[str] = set()
"""Claims whose statement the running cell has shown."""

_anchored: set[str] = set()
"""Claims whose first check on this page carries the anchor that the ledger links to."""


def _show(id: str, slug: str, text: str | None, page: str | None) -> None:
    """One line, the same at every run: as plain text, and as HTML with a link to the claim's place in the ledger.

    Within a cell, the first check of a claim shows its statement and further parts of it their id alone.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if slug in _stated:
        text = None
    tail = f": {text}" if text else ""
    if shell is None:
        print(f"✔ {id}{tail}")
        return
    shown = html.escape(id)
    if page is not None:
        shown = f'<a href="{_up_to_book(page)}reference/claims.html#{slug}">{shown}</a>'
        if _new_cell not in shell.events.callbacks["pre_run_cell"]:
            shell.events.register("pre_run_cell", _new_cell)
        _stated.add(slug)
    from IPython.display import display

    anchor = "" if page is None or slug in _anchored else f' id="check-{slug}"'
    _anchored.add(slug)
    page_line = f'<div class="grpo-check"{anchor}>✔ {shown}{statement_html(tail)}</div>'
    display({"text/plain": f"✔ {id}{tail}", "text/html": page_line}, raw=True)


def _new_cell(info: object) -> None:
    _stated.clear()


def statement_html(text: str) -> str:
    """A claim's text as HTML: escaped, with subscripts where it has y_1 or y_{1,2}."""
    return re.sub(r"(?<!\w)(\w)_(?:\{([^}]*)\}|(\w+))", r"\1<sub>\2\3</sub>", html.escape(text))


# ----------------------------------------------------------------------------------------------- the comparison


def _compare(left: object, right: object, relation: str, tol: float | None) -> None:
    """Raise CheckFailed with the reason if the relation does not hold."""
    if tol is None:
        tol = max(_tolerance(left), _tolerance(right)) if relation in ("==", "!=") else 0.0
    pairs = list(_pairs(_plain(left), _plain(right), may_spread=relation not in ("==", "!=")))
    if not pairs:
        raise CheckFailed("nothing to compare: both sides are empty")
    differences = [(_difference(a, b, relation, tol), where) for where, a, b in pairs]
    for difference, where in differences:
        if isinstance(difference, float) and math.isnan(difference):
            raise CheckFailed(f"left or right is NaN{where}")
    failed = [
        (difference, where) for difference, where in differences if not _holds(difference, relation, tol)
    ]
    if failed and not (relation == "!=" and len(failed) < len(differences)):
        difference, where = failed[0]
        raise CheckFailed(f"left − right is {difference}{where}, tolerance {tol:g}")


def _is_sympy(x: object) -> bool:
    sympy = sys.modules.get("sympy")
    return sympy is not None and isinstance(x, (sympy.Basic, sympy.MatrixBase))


def _plain(x: object) -> Any:
    """Tensors, arrays and matrices as nested lists; leaves are bool, int, float, Fraction, str or SymPy expressions."""
    if isinstance(x, torch.Tensor):
        x = x.detach().cpu().tolist()
    elif isinstance(x, (np.ndarray, np.generic)):
        x = x.tolist()
    elif _is_sympy(x):
        import sympy

        if isinstance(x, sympy.MatrixBase):
            x = x.tolist()
        elif x in (sympy.true, sympy.false):
            return bool(x)
        elif isinstance(x, sympy.Expr):
            unevaluated = (sympy.Limit, sympy.Sum, sympy.Product, sympy.Integral, sympy.Derivative)
            return x.doit() if x.has(*unevaluated) else x
    if isinstance(x, (bool, int, float, Fraction, str)):
        return x
    if isinstance(x, Sequence):
        return [_plain(element) for element in x]
    raise TypeError(
        f"cannot compare {x!r} ({type(x).__name__}): give numbers, fractions, booleans, strings, SymPy expressions, "
        f"tensors, arrays or sequences of these."
    )


def _tolerance(x: object) -> float:
    """Default tolerance for equality: that of the coarsest floating number in x, 0 if all is exact."""
    if isinstance(x, torch.Tensor):
        return _TOLERANCES[min(x.element_size(), 8)] if x.is_floating_point() else 0.0
    if isinstance(x, (np.ndarray, np.generic)) and x.dtype != object:
        return _TOLERANCES[min(x.dtype.itemsize, 8)] if np.issubdtype(x.dtype, np.floating) else 0.0
    if isinstance(x, float):
        return _TOLERANCES[8]
    if _is_sympy(x):
        import sympy

        return _TOLERANCES[8] if x.has(sympy.Float) else 0.0
    if isinstance(x, (Sequence, np.ndarray)) and not isinstance(x, str):
        return max(map(_tolerance, x), default=0.0)
    return 0.0


def _pairs(left: Any, right: Any, *, may_spread: bool, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each pair of leaves, with its place; a single leaf goes with every element of the other side if it may spread."""
    place = f" at {where}" if where else ""
    match isinstance(left, list), isinstance(right, list):
        case False, False:
            yield place, left, right
        case True, True:
            if len(left) != len(right):
                raise CheckFailed(
                    f"shapes differ{place}: {len(left)} elements on the left, {len(right)} on the right"
                )
            for i, (a, b) in enumerate(zip(left, right, strict=True)):
                yield from _pairs(a, b, may_spread=False, where=f"{where}[{i}]")
        case _ if may_spread:
            for i, element in enumerate(left if isinstance(left, list) else right):
                a, b = (element, right) if isinstance(left, list) else (left, element)
                yield from _pairs(a, b, may_spread=True, where=f"{where}[{i}]")
        case _:
            raise CheckFailed(f"shapes differ{place}: a single value on one side, a sequence on the other")


def _difference(a: Any, b: Any, relation: str, tol: float) -> Any:
    """a − b: 0 if they are equal, NaN if one of them is, infinity between truth values or strings that differ."""
    if isinstance(a, (bool, str)) or isinstance(b, (bool, str)):
        if type(a) is not type(b):
            raise TypeError(
                f"cannot compare {a!r} with {b!r}: truth values and strings go with their own kind only."
            )
        if relation not in ("==", "!="):
            raise TypeError(f"truth values and strings are compared with == or !=, got {relation!r}.")
        return 0 if a == b else math.inf
    if _is_sympy(a) or _is_sympy(b):
        import sympy

        a, b = sympy.sympify(a), sympy.sympify(b)
        if a.has(sympy.nan) or b.has(sympy.nan):
            return math.nan
        if not (a.is_number and b.is_number and (tol > 0 or a.has(sympy.Float) or b.has(sympy.Float))):
            return sympy.Integer(0) if a == b else sympy.simplify(a - b)
        a, b = _real(a), _real(b)
    if isinstance(a, float) or isinstance(b, float):
        a, b = float(a), float(b)
    return 0 if a == b else a - b  # equal infinities would subtract to NaN


def _real(x: Any) -> float:
    if x.is_extended_real is not True:
        raise TypeError(f"cannot compare {x}: it is not a real number.")
    return float(x.evalf(30))


def _holds(difference: Any, relation: str, tol: float) -> bool:
    if _is_sympy(difference):
        return {
            "==": difference == 0,
            "!=": difference != 0 and difference.equals(0) is False,
            "<": difference.is_negative is True,
            "<=": difference.is_nonpositive is True,
            ">": difference.is_positive is True,
            ">=": difference.is_nonnegative is True,
        }[relation]
    return {
        "==": abs(difference) <= tol,
        "!=": abs(difference) > tol,
        "<": difference < 0,
        "<=": difference <= tol,
        ">": difference > 0,
        ">=": difference >= -tol,
    }[relation]
