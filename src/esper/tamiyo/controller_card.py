"""What a controller's file says besides its weights. Everything is checked when it is read."""

import hashlib
import json
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from esper.leyline import HEAD_NAMES, LifecycleOp
from esper.tamiyo.actions import CHOICES
from esper.tamiyo.blueprints import BLUEPRINT_FEATURE_NAMES
from esper.tamiyo.observation_layout import HOST_FEATURES, SLOT_FEATURES

FORMAT: Final = "esper controller"
VERSION: Final = 1

Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0.0)]
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class NetworkRecord(_Record):
    """The sizes of a `GrowthPolicy`."""

    hidden_size: AtLeastOne
    width: AtLeastOne
    key_size: AtLeastOne


class RewardRecord(_Record):
    """What it was paid while it learned: the reward of the step before is one of its inputs."""

    family: Literal["contribution", "loss"]
    mode: Literal["sparse", "shaped"]
    rent: NotNegative
    gamma: Annotated[float, Field(gt=0.0, le=1.0)]
    control_variate: bool


class TrainingRecord(_Record):
    """What it learned from, and what that cost. Unknown is None."""

    suite: Text
    horizon: AtLeastOne
    slots: tuple[Text, ...]
    blueprints: tuple[Text, ...]
    seed: Count
    rounds: Count
    env_steps: Count | None = None
    seconds: NotNegative | None = None
    device: Text = "cpu"
    esper: Text | None = None
    commit: Text | None = None
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Every setting of the run."""


class EvidenceRow(_Record):
    """One policy on held-out cases; gains are paired with waiting, intervals 95 %."""

    policy: Text
    suite: Text
    episodes: AtLeastOne
    utility: float
    gain: float
    gain_low: float
    gain_high: float
    test_accuracy: float | None
    added_parameters: float | None


class ControllerCard(_Record):
    """Everything about a controller that is not a tensor."""

    format: Literal["esper controller"] = FORMAT
    version: Literal[1] = VERSION
    name: Name
    summary: str
    """One line."""
    licence: Text
    layout: Text
    """What it sees and how it answers, see `layout_fingerprint`."""
    network: NetworkRecord
    frozen_heads: dict[str, str | float | int]
    """head -> its only choice."""
    first_growth: Count = 0
    """Epochs that a host trains before it germinates anything."""
    menu: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """The only kinds of seeds that it germinates; None is all that it is offered."""
    plateau_threshold: NotNegative
    reward: RewardRecord
    training: TrainingRecord
    evidence: tuple[EvidenceRow, ...] = ()
    weights_sha256: str = ""
    """Of the weights beside the card; filled in when it is saved."""

    @model_validator(mode="after")
    def _heads_have_these_choices(self) -> "ControllerCard":
        for head, value in self.frozen_heads.items():
            if head not in CHOICES or value not in CHOICES[head]:
                raise ValueError(
                    f"frozen_heads has {head}={value!r}; the heads are {', '.join(CHOICES)}, each with its choices"
                )
        return self

    @property
    def frozen_choices(self) -> dict[str, int]:
        """head -> the index of its only choice, as masks take it."""
        return {head: CHOICES[head].index(value) for head, value in self.frozen_heads.items()}


def layout_fingerprint() -> str:
    """A text that changes when the observation, the blueprint features or the action's choices do."""
    choices = {
        head: [op.name for op in LifecycleOp] if head == "op" else [str(choice) for choice in known]
        for head, known in CHOICES.items()
    }
    layout = [HOST_FEATURES, SLOT_FEATURES, BLUEPRINT_FEATURE_NAMES, HEAD_NAMES, choices]
    return hashlib.sha256(json.dumps(layout).encode()).hexdigest()[:12]
