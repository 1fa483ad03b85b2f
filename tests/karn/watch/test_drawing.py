"""The network as SVG: well-formed whatever it is given, with everything in words."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from esper.karn.drawing import DARK, LIGHT
from esper.karn.watch.episodes import Frame, SlotView, network
from esper.leyline import DecisionTaken, LifecycleOp
from run_examples import example

DECISION = replace(example(DecisionTaken), op=LifecycleOp.PRUNE, slot="blocks.1")


def texts_in(svg: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("text")]


def test_everything_is_in_words() -> None:
    slots = (
        SlotView("blocks.0", "DORMANT", None, None, None),
        SlotView("blocks.1", "BLENDING", 0.25, -0.0125, "mixer"),
    )
    said = texts_in(network(Frame(DECISION, slots), LIGHT))
    for part in (
        "blending",
        "mixer",
        "alpha 0.25",
        "contribution -0.013",
        "prune",
        "alpha —",
        "contribution —",
    ):
        assert part in said


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_unknown_and_hostile_slots(theme: object) -> None:
    hostile = '"><script>alert(1)</script>'
    slots = (
        SlotView(hostile, hostile, float("nan"), float("inf"), hostile),
        SlotView("y" * 100_000, None, None, None, None),
    )
    svg = network(Frame(replace(DECISION, slot=hostile), slots), LIGHT if theme is LIGHT else DARK)
    ElementTree.fromstring(svg)
    assert "<script" not in svg
    assert len(svg) < 10_000


def test_nothing_to_draw() -> None:
    assert any("no slots" in said for said in texts_in(network(None, LIGHT)))
    assert any("no slots" in said for said in texts_in(network(Frame(DECISION, ()), DARK)))
