"""What the callbacks hand on to `esper.Grower`."""

import os
from collections.abc import Mapping, Sequence
from typing import TypedDict

import torch

from esper.grower.measuring import Validate
from esper.kasmina import GrowthRules
from esper.kasmina.governor import GovernorRules
from esper.leyline import EventSink, Layout
from esper.tamiyo.controller import Controller
from esper.tamiyo.rules import RulePolicy


class GrowerOptions(TypedDict, total=False):
    """The options of `esper.Grower` that no trainer knows better."""

    controller: str | os.PathLike[str] | Controller | RulePolicy
    validate: Validate | None
    parameter_budget: int | None
    rent: float
    training_samples: int | None
    governor: GovernorRules | None
    generator: torch.Generator | None
    seed_lr_multiplier: float
    layout: Layout | str | Mapping[str, Layout | str] | None
    causal: bool
    blueprints: Sequence[str] | None
    rules: GrowthRules | None
    seed: int
    events: EventSink | None
    isolation_penalty: float
