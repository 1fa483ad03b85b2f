"""Colours that colour-blind readers tell apart (Okabe and Ito), on light and on dark ground.

No meaning is carried by colour alone: there is always a word, a dash or a mark beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from esper.leyline import HEAD_NAMES

ThemeName = Literal["light", "dark"]

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE, GREY = "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#8C8C8C"

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
STAGES: Mapping[str, str] = {
    "DORMANT": GREY,
    "TRAINING": ORANGE,
    "BLENDING": SKY,
    "HOLDING": GREEN,
    "FOSSILIZED": BLUE,
    "EMBARGOED": VERMILION,
}
HEADS: Mapping[str, str] = dict(
    zip(HEAD_NAMES, (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW, GREY), strict=True)
)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


@dataclass(frozen=True, slots=True)
class Theme:
    name: ThemeName
    page: str
    """Behind everything."""
    card: str
    """Behind a figure."""
    text: str
    faint: str
    """Of what is said in passing; still readable (4.5 to 1)."""
    grid: str
    idle: str
    """Of slots where nothing grows."""
    runs: tuple[str, ...]
    """Of the run that is looked at, then of those beside it."""

    def stage(self, name: str | None) -> str:
        """Of a slot; an unknown stage looks like nothing."""
        return self.idle if name == "DORMANT" else STAGES.get(name or "", self.grid)


LIGHT = Theme(
    "light",
    "#F4F5F7",
    "#FFFFFF",
    "#1B1F24",
    "#5B6470",
    "#E3E6EA",
    "#D3D7DC",
    (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY),
)
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
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
