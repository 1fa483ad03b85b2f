"""The colours of pages, figures and drawings, on light and on dark ground.

No meaning is carried by colour alone: there is always a word, a dash or a mark beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from esper.leyline import HEAD_NAMES
from esper.leyline.colours import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    STAGE_COLOURS,
    VERMILION,
    YELLOW,
)

ThemeName = Literal["light", "dark"]

GOOD, BAD = "#00664C", "#B3261E"
"""Dark enough for text on white."""
SERIES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
"""Runs or arms, in the order in which they are drawn on light ground."""
OPERATIONS: Mapping[str, str] = {
    "WAIT": GREY,
    "GERMINATE": GREEN,
    "SET_ALPHA_TARGET": YELLOW,
    "PRUNE": VERMILION,
    "FOSSILIZE": BLUE,
    "ADVANCE": SKY,
}
MARKERS: Mapping[str, str] = {
    "GERMINATE": "triangle-up",
    "SET_ALPHA_TARGET": "square",
    "PRUNE": "x",
    "FOSSILIZE": "star",
    "ADVANCE": "triangle-right",
}
"""Operation -> its symbol in plotly's figures."""
STAGES: Mapping[str, str] = {stage.name: colour for stage, colour in STAGE_COLOURS.items()}
HEADS: Mapping[str, str] = dict(
    zip(HEAD_NAMES, (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW, GREY), strict=True)
)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours of a page."""

    name: ThemeName
    page: str
    """Background of everything."""
    card: str
    """Background of a figure."""
    text: str
    faint: str
    """Secondary text; still readable (contrast 4.5 to 1)."""
    grid: str
    idle: str
    """Slots in which nothing grows."""
    runs: tuple[str, ...]
    """The run that is looked at, then those beside it."""

    def stage(self, name: str | None) -> str:
        """Colour of a slot; an unknown stage has the colour of the grid."""
        return self.idle if name == "DORMANT" else STAGES.get(name or "", self.grid)


LIGHT = Theme("light", "#F4F5F7", "#FFFFFF", "#1B1F24", "#5B6470", "#E3E6EA", "#D3D7DC", SERIES)
DARK = Theme(
    "dark",
    "#14171B",
    "#1D2126",
    "#E8EAED",
    "#A3ABB6",
    "#333941",
    "#4A525C",
    (SKY, ORANGE, GREEN, PURPLE, YELLOW, VERMILION),
)
THEMES: Mapping[ThemeName, Theme] = {"light": LIGHT, "dark": DARK}


def see_through(colour: str, opacity: float) -> str:
    """A colour as CSS with an opacity, 0..1."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
