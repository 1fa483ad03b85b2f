"""A Lightning fit that was stopped while seeds grew: resumed, it is the one that never stopped."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import esper
from esper.kasmina.persistence import ModelFileError
from esper.leyline import Stage
from integrations.resuming import Outcome, assert_same, outcome
from integrations.test_lightning import Classifier, callback, loader, trainer

if TYPE_CHECKING:
    from esper.integrations.lightning import GrowthCallback

callbacks = pytest.importorskip("lightning.pytorch.callbacks")

pytestmark = pytest.mark.filterwarnings("ignore")

EPOCHS = 10
SCHEDULE = "germinate mlp@0 t=1; advance 0 t=2; fossilize 0 t=6; germinate lora@1 t=7"
STANDING = {2: Stage.TRAINING, 4: Stage.BLENDING, 8: Stage.FOSSILIZED}
"""Epochs trained -> what slot 0 holds then; at 8 a seed of slot 1 is in training."""


def growing(schedule: str = SCHEDULE, **options: object) -> "GrowthCallback":
    return callback(controller=esper.rule_policy("schedule", schedule=schedule), **options)


def fit(
    growth: "GrowthCallback", folder: Path, *, ckpt_path: Path | None = None, **saving: object
) -> "GrowthCallback":
    """The growth after a fit that saves every epoch, from the start or from a checkpoint."""
    keep = callbacks.ModelCheckpoint(
        dirpath=folder, filename="{epoch}", save_top_k=-1, enable_version_counter=False, **saving
    )
    fitting = trainer(growth, EPOCHS, folder, enable_checkpointing=True, callbacks=[growth, keep])
    fitting.fit(Classifier(), loader(), loader(), ckpt_path=ckpt_path)
    return growth


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    folder = tmp_path_factory.mktemp("straight")
    return outcome(fit(growing(), folder).grower), folder


@pytest.mark.parametrize("epochs", STANDING)
def test_a_resumed_fit_is_the_one_that_never_stopped(
    epochs: int, straight: tuple[Outcome, Path], tmp_path: Path
) -> None:
    expected, folder = straight
    resumed = fit(growing(), tmp_path, ckpt_path=folder / f"epoch={epochs - 1}.ckpt").grower
    assert resumed.history[epochs - 1].slots["0"].stage is STANDING[epochs]
    assert_same(outcome(resumed), expected)


def test_a_checkpoint_after_validation_holds_what_was_validated(tmp_path: Path) -> None:
    """The epoch's end comes after the resumption, where Lightning knows nothing of it any more."""
    expected = fit(growing(), tmp_path, save_on_train_epoch_end=False).grower
    resumed = fit(growing(), tmp_path / "b", ckpt_path=tmp_path / "epoch=3.ckpt").grower
    ours, theirs = resumed.history[3].metrics, expected.history[3].metrics
    assert (ours.validation_loss, ours.validation_accuracy) == (
        theirs.validation_loss,
        theirs.validation_accuracy,
    )
    assert ours.train_loss is None  # which is in no checkpoint
    weights = expected.model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in resumed.model.state_dict().items())


def test_what_is_refused_before_fitting_goes_on(straight: tuple[Outcome, Path], tmp_path: Path) -> None:
    _, folder = straight
    first = folder / "epoch=1.ckpt"
    with pytest.raises(ModelFileError, match="slot layouts differ: the model has"):
        fit(growing(slots=["0"]), tmp_path, ckpt_path=first)
    with pytest.raises(ValueError, match="saved under controller 'schedule'; this Grower has 'wait'"):
        fit(callback(controller="wait"), tmp_path, ckpt_path=first)
    saved = torch.load(first, weights_only=True)
    growth = saved["callbacks"].pop("GrowthCallback")
    changed: list[tuple[object, str]] = [
        (None, "damaged.ckpt holds no growth: it was saved without this callback"),
        ({**growth, "mood": 1}, "the checkpoint's growth holds grower, validated, mood; this version"),
        ({**growth, "grower": {**growth["grower"], "version": 99}}, "version 99; this Esper reads"),
    ]
    for state, message in changed:
        callback_states = saved["callbacks"] | ({} if state is None else {"GrowthCallback": state})
        torch.save({**saved, "callbacks": callback_states}, tmp_path / "damaged.ckpt")
        with pytest.raises(ValueError, match=message):
            fit(growing(), tmp_path, ckpt_path=tmp_path / "damaged.ckpt")
