"""Every notebook of the book passes every guard, and is stored in the normal form."""

from pathlib import Path

import guards
import pytest
import yaml

from tools import notebooks

ROOT = Path(__file__).parents[2]
PATHS = {path.relative_to(notebooks.BOOK).with_suffix("").as_posix(): path for path in notebooks.notebooks()}
CLAIMS = yaml.safe_load((notebooks.BOOK / "claims.yml").read_text(encoding="utf-8"))
ALLOWED = yaml.safe_load((Path(__file__).parent / "decimals_allowed.yml").read_text(encoding="utf-8"))
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
CHAPTERS = [TOC["root"], *(chapter["file"] for part in TOC["parts"] for chapter in part["chapters"])]


def page(name: str) -> guards.Page:
    allowed = {str(entry["number"]): entry["reason"] for entry in ALLOWED if entry["page"] == name}
    return guards.Page(name, notebooks.read(PATHS[name]), CLAIMS, allowed)


@pytest.mark.parametrize("guard", guards.PAGE_GUARDS, ids=lambda guard: guard.__name__)
@pytest.mark.parametrize("name", PATHS)
def test_page(name, guard):
    assert guard(page(name)) == []


@pytest.mark.parametrize("name", PATHS)
def test_notebook_is_normalised(name):
    stored = PATHS[name].read_text(encoding="utf-8")
    assert stored == notebooks.text(notebooks.normalised(notebooks.read(PATHS[name]))), "run `make execute`"


def test_equation_labels_are_unique_across_the_book():
    assert guards.labels_unique([page(name) for name in PATHS]) == []


def test_the_ledger_is_consistent():
    assert guards.ledger_is_consistent(CLAIMS, CHAPTERS) == []


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_chapter_of_the_table_of_contents_exists(chapter):
    assert any((notebooks.BOOK / chapter).with_suffix(suffix).is_file() for suffix in (".ipynb", ".md"))


def test_every_notebook_is_in_the_table_of_contents():
    assert set(PATHS) <= set(CHAPTERS)


def test_every_allowed_decimal_has_a_page_and_a_reason():
    for entry in ALLOWED:
        assert entry["page"] in CHAPTERS
        assert entry["reason"].strip()
