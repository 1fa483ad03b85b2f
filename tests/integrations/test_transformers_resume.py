"""A Hugging Face training that was stopped while seeds grew: resumed, it is the one that never stopped."""

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import esper
from esper.integrations.callback import GROWTH
from esper.kasmina.persistence import ModelFileError
from esper.leyline import Stage
from integrations import test_transformers as training
from integrations.resuming import Outcome, assert_same, outcome
from integrations.test_transformers import callback, make, resnet

if TYPE_CHECKING:
    from esper.integrations.transformers import GrowthCallback

pytestmark = pytest.mark.filterwarnings("ignore")

EPOCHS, STEPS_AN_EPOCH = 10, 3
SLOT = "resnet.encoder.stages.1"
SCHEDULE = "germinate lora@1 t=1; advance 1 t=2; fossilize 1 t=6; germinate conv_light@0 t=7"
STANDING = {2: Stage.TRAINING, 4: Stage.BLENDING, 8: Stage.FOSSILIZED}
"""Evaluations -> what the second slot holds then; at 8 a seed of the first is in training."""


def growing(schedule: str = SCHEDULE, **options: object) -> "GrowthCallback":
    return callback(controller=esper.rule_policy("schedule", schedule=schedule), **options)


def train(
    growth: "GrowthCallback",
    folder: Path,
    options: Mapping[str, object] | None = None,
    *,
    resume: Path | None = None,
) -> "GrowthCallback":
    """The growth after a training that saves every epoch, from the start or from a checkpoint."""
    given: dict[str, object] = {"num_train_epochs": EPOCHS, "save_strategy": "epoch"}
    trainer = make(growth, folder, resnet(), **(given | dict(options or {})))
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return growth


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    folder = tmp_path_factory.mktemp("straight")
    return outcome(train(growing(), folder).grower), folder


@pytest.mark.parametrize("epochs", STANDING)
def test_a_resumed_training_is_the_one_that_never_stopped(
    epochs: int, straight: tuple[Outcome, Path], tmp_path: Path
) -> None:
    expected, folder = straight
    resume = folder / f"checkpoint-{epochs * STEPS_AN_EPOCH}"
    resumed = train(growing(), tmp_path, {"save_strategy": "no"}, resume=resume).grower
    assert resumed.history[epochs - 1].slots[SLOT].stage is STANDING[epochs]
    assert_same(outcome(resumed), expected)


def test_a_checkpoint_in_the_middle_of_growth_and_of_an_epoch(tmp_path: Path) -> None:
    """Evaluated every 2 steps, saved at step 11, which is neither an evaluation nor the end of an epoch."""
    options: dict[str, object] = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "max_steps": 20,
        "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": 3,
    }
    saving = options | {"save_strategy": "steps", "save_steps": 11}
    expected = train(growing(), tmp_path, saving).grower
    unsaved = options | {"save_strategy": "no"}
    resumed = train(growing(), tmp_path / "b", unsaved, resume=tmp_path / "checkpoint-11").grower
    assert resumed.epochs == 10
    assert_same(outcome(resumed), outcome(expected))


@pytest.mark.parametrize("at_chance", [(4,), (4, 5)])  # the second time it is gone back
def test_a_checkpoint_after_an_epoch_at_chance(
    at_chance: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Trainer restores the host, and the checkpoint holds the last good epoch beside it."""

    def run(first_epoch: int, resume: Path | None = None) -> "GrowthCallback":
        epochs = itertools.count(first_epoch)
        monkeypatch.setattr(
            training, "accuracy", lambda _: {"accuracy": 0.0 if next(epochs) in at_chance else 0.9}
        )
        return train(growing(), tmp_path / str(first_epoch), {"num_train_epochs": 7}, resume=resume)

    straight = run(1).grower
    resumed = run(5, tmp_path / "1" / f"checkpoint-{4 * STEPS_AN_EPOCH}").grower
    assert [each.rolled_back for each in straight.history].count("collapsed") == len(at_chance) - 1
    assert_same(outcome(resumed), outcome(straight))


def test_what_is_refused_before_training_goes_on(straight: tuple[Outcome, Path], tmp_path: Path) -> None:
    _, folder = straight
    first = folder / f"checkpoint-{2 * STEPS_AN_EPOCH}"
    with pytest.raises(ModelFileError, match="slot layouts differ: the model has"):
        train(
            growing(slots=["resnet.encoder.stages.1"], schedule="germinate lora@0 t=1"),
            tmp_path,
            resume=first,
        )
    with pytest.raises(ValueError, match="saved under controller 'schedule'; this Grower has 'wait'"):
        train(callback(controller="wait"), tmp_path, resume=first)
    damaged = tmp_path / first.name
    shutil.copytree(first, damaged)
    file = damaged / "optimizer.pt"
    packed = torch.load(file, weights_only=True)
    growth = packed["state"].pop(GROWTH)
    changed: list[tuple[object, str]] = [
        (None, "resumes at step 6 from a checkpoint that holds no growth"),
        ({**growth, "mood": 1}, "the checkpoint's growth holds grower, evaluated_at, mood; this version"),
        ({**growth, "grower": {**growth["grower"], "version": 99}}, "version 99; this Esper reads"),
    ]
    for state, message in changed:
        told = {} if state is None else {GROWTH: state}
        torch.save({**packed, "state": packed["state"] | told}, file)
        with pytest.raises(ValueError, match=message):
            train(growing(), tmp_path / "out", resume=damaged)
