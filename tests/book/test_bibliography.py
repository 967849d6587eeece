"""Every source is complete, and says what is taken from it."""

import re

import pytest
from pybtex.database import parse_file

from tools import notebooks

WORKS = parse_file(str(notebooks.BOOK / "references.bib")).entries


@pytest.mark.parametrize("key", WORKS)
def test_a_source_can_be_found_and_says_what_is_taken_from_it(key):
    work = WORKS[key]
    assert work.persons["author"]
    assert re.fullmatch(r"(19|20)\d\d", work.fields["year"])
    assert work.fields["title"]
    assert {"eprint", "url", "booktitle", "journal", "publisher"} & set(work.fields)
    assert len(work.fields["annote"]) > 20
    if "eprint" in work.fields:
        assert re.fullmatch(r"\d{4}\.\d{4,5}", work.fields["eprint"])


def test_no_work_stands_twice():
    for field in ("title", "eprint"):
        found = [
            re.sub(r"\W", "", work.fields[field]).lower() for work in WORKS.values() if field in work.fields
        ]
        assert len(found) == len(set(found))
