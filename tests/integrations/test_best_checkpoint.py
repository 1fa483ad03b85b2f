"""The best checkpoint of a trainer: the network that was evaluated, with the seeds it had, whatever grew since."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

import esper
from esper.integrations.callback import HasGrower
from esper.kasmina import WrapError
from esper.leyline import Stage

pytestmark = pytest.mark.filterwarnings("ignore")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the packages' own imports
    pytest.importorskip("lightning.pytorch")
    transformers = pytest.importorskip("transformers")
    from lightning.pytorch import Trainer
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

    from integrations import test_lightning as in_lightning
    from integrations import test_transformers as in_transformers

BEST = 4
"""The evaluation that is best: a seed blends, which is pruned right after; two more see the next one grow."""
SLOT = "resnet.encoder.stages.1"


def schedule(kind: str, slot: int, following: str) -> object:
    line = (
        f"germinate {kind}@{slot} t=1; advance {slot} t=2; prune {slot} t={BEST}; germinate {following} t=5"
    )
    return esper.rule_policy("schedule", schedule=line)


class Ranked:
    """Metrics of which the fourth are the best."""

    def __init__(self) -> None:
        self.evaluations = 0

    def __call__(self, answer: object) -> dict[str, float]:
        self.evaluations += 1
        return {**in_transformers.accuracy(answer), "rank": -abs(self.evaluations - BEST)}  # type: ignore[arg-type]


def test_the_best_evaluation_of_hugging_face(tmp_path: Path) -> None:
    growth = in_transformers.callback(controller=schedule("lora", 1, "conv_light@0"))
    options = {
        "num_train_epochs": 10,
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
        "metric_for_best_model": "rank",
        "greater_is_better": True,
    }
    model = in_transformers.resnet()
    training = in_transformers.make(growth, tmp_path, model, **options)
    training.compute_metrics = Ranked()
    training.add_callback(transformers.EarlyStoppingCallback(early_stopping_patience=3))
    training.train()
    losses = [entry["eval_loss"] for entry in training.state.log_history if "eval_loss" in entry]
    assert len(losses) == BEST + 3  # stopped early
    grower = growth.grower
    assert grower.history[-1].epoch == BEST
    assert grower.history[-1].reason == "the last epoch: finish() settles"
    assert grower.model.slots[SLOT].stage is Stage.BLENDING
    assert grower.model.slots["resnet.encoder.stages.0"].seed is None
    assert training.evaluate()["eval_loss"] == losses[BEST - 1]
    training.save_model(str(tmp_path / "saved"))
    kept = transformers.ResNetForImageClassification.from_pretrained(str(tmp_path / "saved")).state_dict()
    own = {name: tensor for name, tensor in model.state_dict().items() if name in kept}
    assert own.keys() == kept.keys()
    assert all(torch.equal(tensor, kept[name]) for name, tensor in own.items())
    growth.finish()


class Scored(in_lightning.Classifier):
    """Logs which of its epochs is the best, and can be tested."""

    def on_validation_epoch_end(self) -> None:
        self.log("rank", -abs(self.current_epoch + 1.0 - BEST))

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)


def fitted(folder: Path, **saving: object) -> tuple[HasGrower, Trainer]:
    """A fit that stops early, three epochs after the best."""
    growth = in_lightning.callback(controller=schedule("mlp", 0, "lora@1"))
    keep = ModelCheckpoint(dirpath=folder, monitor="rank", mode="max", **saving)  # type: ignore[arg-type]
    stop = EarlyStopping(monitor="rank", mode="max", patience=3)
    fitting = in_lightning.trainer(
        growth, 10, folder, enable_checkpointing=True, callbacks=[growth, keep, stop]
    )
    fitting.fit(Scored(), in_lightning.loader(), in_lightning.loader())
    return growth, fitting


def test_the_best_epoch_of_lightning(tmp_path: Path) -> None:
    growth, fitting = fitted(tmp_path)
    history = growth.grower.history
    assert len(history) == BEST + 3
    assert growth.grower.model.slots["1"].seed is not None
    (found,) = fitting.test(dataloaders=in_lightning.loader(), ckpt_path="best", verbose=False)
    assert found["val_loss"] == history[BEST - 1].metrics.validation_loss
    assert growth.grower.history == (*history[: BEST - 1], growth.grower.history[-1])
    assert growth.grower.history[-1].reason == "the last epoch: finish() settles"
    assert growth.grower.model.slots["0"].stage is Stage.BLENDING
    assert growth.grower.model.slots["1"].seed is None
    growth.finish()


def test_weights_without_their_growth_are_refused(tmp_path: Path) -> None:
    _, fitting = fitted(tmp_path, save_weights_only=True)
    with pytest.raises(
        WrapError, match="holds no growth: it was saved without this callback, or with save_weights"
    ):
        fitting.test(dataloaders=in_lightning.loader(), ckpt_path="best", verbose=False)
