"""Unknown is a dash, never 0; what is no number says so."""

import math

import pytest

from esper.karn import drawing


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "—"),
        (0.0, "0.000"),
        (math.nan, "NaN"),
        (math.inf, "Inf"),
        (-math.inf, "-Inf"),
        (1e308, "1e+308"),
    ],
)
def test_numbers(value: float | None, expected: str) -> None:
    assert drawing.number(value) == expected


def test_signs() -> None:
    assert [drawing.signed(value, 2) for value in (0.5, -0.5, 0.0, None, math.nan)] == [
        "+0.50",
        "-0.50",
        "+0.00",
        "—",
        "NaN",
    ]
    assert drawing.interval(None, 0.5) == "—"
    assert drawing.interval(-0.25, 0.5, 2) == "-0.25 to +0.50"


def test_gains_are_in_points() -> None:
    assert [drawing.in_points(gain) for gain in (0.0625, -0.5, None, math.nan)] == [
        "+6.25 points",
        "-50.00 points",
        "—",
        "—",
    ]
    assert drawing.interval_in_points(-0.25, 0.5) == "-25.00 to +50.00 points"
    assert drawing.interval_in_points(None, 0.5) == drawing.interval_in_points(math.nan, math.nan) == "—"


def test_units() -> None:
    assert [drawing.size(value) for value in (None, 0, 1023, 1536, 734003200, 5 * 2**40)] == [
        "—",
        "0 B",
        "1023 B",
        "1.5 KiB",
        "700 MiB",
        "5.0 TiB",
    ]
    assert [drawing.duration(value) for value in (None, math.nan, 1e300, 2.25, 3661.0)] == [
        "—",
        "—",
        "—",
        "2.2 s",
        "1:01:01",
    ]
    assert drawing.share(1, 0) == "—"
    assert drawing.thousands(None) == "—"


def test_a_text_becomes_one_short_printable_line() -> None:
    assert drawing.clipped("a\nb\x1b[31m\x00") == "a b [31m "
    assert drawing.clipped("x" * 10_000_000, 10) == "x" * 9 + "…"
    assert drawing.clipped("<b>") == "<b>"  # escaping is the business of whoever makes markup
    assert drawing.operation("SET_ALPHA_TARGET") == "set alpha target"
