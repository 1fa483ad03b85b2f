"""Known answers."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from esper.cli.common import as_json, table


def test_tables_are_aligned_and_what_is_unknown_is_a_dash() -> None:
    rows: list[tuple[object, ...]] = [("a", 1, None), ("bcd", 20.5, "x")]
    assert table(("name", "n", "what"), rows) == "name     n  what\na        1  -\nbcd   20.5  x"


def test_what_is_too_long_goes_on_in_the_last_column() -> None:
    told = table(("n", "what"), [(10, "one two three"), (2, "four")], width=11)
    assert told == " n  what\n10  one two\n    three\n 2  four"


def test_an_empty_table_is_its_head() -> None:
    assert table(("a", "b"), []) == "a  b"


def test_texts_cannot_command_the_terminal() -> None:
    told = table(("a",), [("\x1b[2Jx\ny",)])
    assert "\x1b" not in told
    assert told.count("\n") == 1
    assert "\\x1b[2Jx\\ny" in told


@dataclass(frozen=True, slots=True)
class Result:
    path: Path
    score: float
    lost: float
    parts: tuple[int, ...]


def test_json_is_strict() -> None:
    told = as_json([Result(Path("runs/a"), 0.5, math.nan, (1, 2))])
    assert json.loads(told) == [{"path": "runs/a", "score": 0.5, "lost": None, "parts": [1, 2]}]
