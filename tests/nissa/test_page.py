"""The page about events is current, every field has its line, and its Python runs."""

import re
import tempfile
from dataclasses import fields
from pathlib import Path

import pytest

from esper.leyline import Place
from esper.nissa import KINDS
from events_page import events_page, field_docs

PAGE = Path(__file__).parents[2] / "docs" / "events.md"


def test_the_page_is_what_the_events_say() -> None:
    assert PAGE.read_text() == events_page(), "run: python scripts/events_page.py > docs/events.md"


@pytest.mark.parametrize("cls", [*KINDS.values(), Place], ids=lambda cls: cls.__name__)
def test_every_field_has_one_line(cls: type) -> None:
    docs = field_docs(cls)
    for field in fields(cls):
        assert docs[field.name].strip()
        assert "\n" not in docs[field.name]
        assert "|" not in docs[field.name]
    assert cls.__doc__


def test_the_pages_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    exec(compile(block, str(PAGE), "exec"), {})
    assert len(list(tmp_path.glob("*/digits-1/events.jsonl"))) == 1
