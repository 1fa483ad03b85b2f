"""What a saved model's file says besides its tensors. Everything is checked when it is read."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from esper.leyline import Curve, Stage, Style

Option = bool | int | float | str | None | list[float] | list[str]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Share = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=0)]


class RampRecord(_Record):
    start: Share
    target: Share
    epochs: Count
    curve: Curve
    elapsed: Count


class SlotRecord(_Record):
    """One slot: its life, and what grows there."""

    blueprint: Annotated[str, Field(min_length=1)] | None
    stage: Stage
    fading: bool
    age: Count
    epochs_in_stage: Count
    births: Count
    alpha: Share
    alpha_target: Share | None
    style: Style | None
    tempo: Count
    ramp: RampRecord | None
    contribution: float | None
    probe: float | None = None
    gradient_norm: float | None = None
    gradient_health: float | None = None
    reported_gradients_finite: bool | None
    remembered_gradients_finite: bool | None
    non_finite: tuple[bool, bool]

    @model_validator(mode="after")
    def _is_a_life(self) -> "SlotRecord":
        grown = self.stage.is_live or self.stage is Stage.FOSSILIZED
        blended = grown and self.stage is not Stage.TRAINING
        checks = {
            "a seed is there exactly in the stages that have one": (self.blueprint is not None) == grown,
            "a seed has a style, an alpha target and a birth": not grown
            or (self.style is not None and self.alpha_target is not None and self.births > 0),
            "alpha is 0 before blending and without a seed": blended or self.alpha == 0.0,
            "a ramp belongs to BLENDING": (self.ramp is not None) == (self.stage is Stage.BLENDING),
            "only a BLENDING seed fades": not self.fading or self.stage is Stage.BLENDING,
        }
        for rule, holds in checks.items():
            if not holds:
                raise ValueError(rule)
        return self


class GroupRecord(_Record):
    parameters: list[str]
    options: dict[str, Option]


class OptimizerRecord(_Record):
    kind: str
    groups: list[GroupRecord]
    scalars: dict[str, dict[str, float | int | None]]
    """parameter -> what its state holds besides tensors"""
    tensors: dict[str, list[str]]
    """parameter -> the tensors its state holds"""


class ModelRecord(_Record):
    """Everything about a growing model that is not a tensor."""

    format: Literal["esper growing model"]
    version: int
    growth_seed: int
    isolation_penalty: Annotated[float, Field(ge=0.0)]
    rules: dict[str, int]
    slots: dict[str, SlotRecord]
    optimizer: OptimizerRecord | None
