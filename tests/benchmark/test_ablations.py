"""Controllers that lack something: each lacks just that."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from esper.benchmark.arms import SHOWN_EPOCHS, AblatedPlayer, moving_features
from esper.leyline import LifecycleOp
from esper.tamiyo.actions import GrowthSpace, numbered_slots
from esper.tamiyo.features import host_features, observation_size

SPACE = GrowthSpace(numbered_slots(2), ("mixer", "norm"), retire=True)


class Noting:
    """An actor that keeps what it was shown."""

    def __init__(self) -> None:
        self.resets = 0
        self.seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def reset(self) -> None:
        self.resets += 1

    def act(self, observation: Tensor, mask: Tensor, *, reward: Tensor) -> Tensor:
        self.seen.append((observation.clone(), mask.clone(), reward.clone()))
        return torch.zeros(len(observation), 8, dtype=torch.int64)


def played(ablation: str, epochs: int = 9) -> Noting:
    """What an actor is shown in epochs whose every number is the epoch's."""
    actor = Noting()
    player = AblatedPlayer(lambda _: actor, ablation)  # type: ignore[arg-type, return-value]
    player.begin(3)
    for epoch in range(epochs):
        episodes = SimpleNamespace(
            observe=lambda: None,
            masks=lambda: np.ones((3, SPACE.action_layout.width), dtype=np.bool_),
            observer=SimpleNamespace(flat=torch.full((3, observation_size(SPACE)), float(epoch))),
            space=SPACE,
        )
        player.act(episodes, np.full(3, float(epoch)))  # type: ignore[arg-type]
    return actor


def test_without_memory_every_decision_is_the_first() -> None:
    actor = played("without_memory")
    assert actor.resets == len(actor.seen) == 9
    assert all(mask.all() for _, mask, _ in actor.seen)
    assert all((flat == epoch).all() for epoch, (flat, _, _) in enumerate(actor.seen))


def test_without_return_nothing_can_be_given_back() -> None:
    actor = played("without_return")
    assert actor.resets == 0
    for _, mask, _ in actor.seen:
        forbidden = [LifecycleOp(place) for place in (~mask[0]).nonzero().flatten().tolist()]
        assert forbidden == [LifecycleOp.PRUNE, LifecycleOp.RETIRE]


def test_without_change_the_host_stands_still_and_growth_does_not() -> None:
    actor = played("without_change")
    moving = moving_features(SPACE)
    others = [place for place in range(observation_size(SPACE)) if place not in moving]
    for epoch, (flat, mask, reward) in enumerate(actor.seen):
        shown = min(epoch, SHOWN_EPOCHS)
        assert (flat[:, moving] == shown).all()
        assert (flat[:, others] == epoch).all()
        assert (reward == shown).all()
        assert mask.all()


def test_what_moves_with_the_data() -> None:
    names = {host_features(SPACE)[place] for place in moving_features(SPACE)}
    assert {
        "training_samples",
        "plateau",
        "validation_accuracy",
        "validation_loss_change",
        "accuracy_gap",
    } <= names
    still = set(host_features(SPACE)) - names
    assert {
        "time_left",
        "added_parameters",
        "budget_left",
        "budget_left_known",
        "last_prune",
        "last_retire",
    } <= still
    assert not any("accuracy" in name or "loss" in name for name in still)


def test_an_unknown_ablation_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"ablation is 'without_luck'; expected one of without_memory, "):
        AblatedPlayer(lambda _: Noting(), "without_luck")  # type: ignore[arg-type, return-value]
