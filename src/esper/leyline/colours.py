"""Colours that colour-blind readers can tell apart (Okabe and Ito). No meaning is carried by colour alone."""

from collections.abc import Mapping

from esper.leyline.slots import Stage

ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#8C8C8C"

STAGE_COLOURS: Mapping[Stage, str] = {
    Stage.DORMANT: GREY,
    Stage.TRAINING: ORANGE,
    Stage.BLENDING: SKY,
    Stage.HOLDING: GREEN,
    Stage.FOSSILIZED: BLUE,
    Stage.EMBARGOED: VERMILION,
}
"""Stage of a slot -> its colour, in every drawing."""
