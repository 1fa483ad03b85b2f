"""A controller that has learned nothing, for tests that need one."""

import torch

from esper.tamiyo.actions import GrowthSpace, numbered_slots
from esper.tamiyo.controller import (
    Controller,
    ControllerCard,
    NetworkRecord,
    RewardRecord,
    TrainingRecord,
    layout_fingerprint,
)
from esper.tamiyo.networks import GrowthPolicy


def tiny_card(**changes: object) -> ControllerCard:
    fields: dict[str, object] = {
        "name": "tiny",
        "summary": "knows nothing",
        "licence": "MIT",
        "layout": layout_fingerprint(),
        "network": NetworkRecord(hidden_size=11, width=7, key_size=5, sight=2),
        "frozen_heads": {"style": "linear_add", "tempo": 3, "alpha_target": 1.0},
        "plateau_threshold": 0.005,
        "reward": RewardRecord(
            family="contribution", mode="shaped", rent=0.01, gamma=1.0, control_variate=True
        ),
        "training": TrainingRecord(
            suite="toy", horizon=20, slots=("a",), blueprints=("mixer",), seed=0, rounds=0
        ),
    }
    return ControllerCard.model_validate(fields | changes)


def tiny_controller(seed: int = 0, *, scale: float = 1.0, **changes: object) -> Controller:
    """Random weights; a `scale` over 1 makes it opinionated."""
    card = tiny_card(**changes)
    sizes = card.network
    policy = GrowthPolicy(
        GrowthSpace(numbered_slots(2), ("mixer", "norm", "widen")).under(card.decisions),
        hidden_size=sizes.hidden_size,
        width=sizes.width,
        key_size=sizes.key_size,
        sight=sizes.sight,
        generator=torch.Generator().manual_seed(seed),
    )
    return Controller(card, {name: scale * tensor for name, tensor in policy.state_dict().items()})
