"""The page that advises says no number that the page it names does not say."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
NUMBER = re.compile(r"(?<![\w.,])[-+]?\d[\d,]*(?:\.\d+)?(?![\w]|\.\d)")
LINK = re.compile(r"\]\((\w+\.md)")


def rows() -> list[str]:
    lines = (DOCS / "should_i_use_this.md").read_text().splitlines()
    return [line for line in lines if line.startswith("| ") and LINK.search(line)]


def test_it_has_rows_of_both_kinds() -> None:
    page = (DOCS / "should_i_use_this.md").read_text()
    _, pays, pays_not = re.split(r"## Where it (?:pays|does not)\n", page)
    assert all(len(LINK.findall(part)) >= 5 for part in (pays, pays_not))


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[2:42])
def test_every_number_is_on_the_page_that_its_row_names(row: str) -> None:
    (source,) = LINK.findall(row)
    there = set(NUMBER.findall((DOCS / source).read_text()))
    ours = NUMBER.findall(row)
    assert [number for number in ours if number not in there] == [], f"see docs/{source}"
    assert any("." in number for number in ours)
