"""The callback inside a real Lightning Trainer: it grows, stops, goes on, and exports."""

import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import esper
from esper.kasmina import WrapError
from esper.leyline import LifecycleOp, Stage
from grower.loops import data, net

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the package's own imports
    lightning = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.utilities.types import OptimizerLRScheduler

    from esper.integrations.lightning import GrowthCallback

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning has many opinions on small runs
SCHEDULE = "germinate mlp@0 t=2; advance 0 t=3; fossilize 0 t=7"


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.example_input_array = data()[0][:2]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        del batch_idx
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        del batch_idx
        logits = self(batch[0])
        self.log("val_loss", F.cross_entropy(logits, batch[1]))
        self.log("val_acc", (logits.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 5)}


def loader() -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(*data()), batch_size=22)


def callback(**options: object) -> GrowthCallback:
    given: dict[str, object] = {
        "slots": ["0", "1"],
        "module": "net",
        "controller": esper.rule_policy("schedule", schedule=SCHEDULE),
        "validate": loader(),
    }
    return GrowthCallback(**(given | options))  # type: ignore[arg-type]


def trainer(growth: GrowthCallback, epochs: int, folder: Path, **options: object) -> Trainer:
    given: dict[str, object] = {
        "max_epochs": epochs,
        "callbacks": [growth],
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        "devices": 1,
        "default_root_dir": folder,
        "enable_checkpointing": False,
    }
    return Trainer(**(given | options))  # type: ignore[arg-type]


def test_a_fit_grows(tmp_path: Path) -> None:
    growth, model = callback(), Classifier()
    with pytest.raises(RuntimeError, match="nothing has been trained yet"):
        growth.finish()
    fitting = trainer(growth, 9, tmp_path)
    fitting.fit(model, loader(), loader())
    history = growth.grower.history
    assert [decision.epoch for decision in history] == list(range(1, 10))
    assert growth.grower.model.slots["0"].stage is Stage.FOSSILIZED
    assert all(decision.metrics.train_loss is not None for decision in history)
    assert all(decision.metrics.validation_accuracy is not None for decision in history)
    last = history[-1].metrics
    assert last.validation_accuracy == pytest.approx(float(fitting.callback_metrics["val_acc"]))
    rates = [group["lr"] for group in fitting.optimizers[0].param_groups]
    assert rates == pytest.approx([1e-3])
    plain = growth.finish()
    inputs = data()[0]
    assert isinstance(plain, nn.Sequential)
    assert torch.equal(plain.eval()(inputs), model.eval()(inputs))


def test_a_fit_that_stopped_goes_on(tmp_path: Path) -> None:
    straight = callback()
    trainer(straight, 8, tmp_path).fit(Classifier(), loader(), loader())
    stopped = callback()
    first = trainer(stopped, 5, tmp_path)
    first.fit(Classifier(), loader(), loader())
    first.save_checkpoint(tmp_path / "mid.ckpt")
    resumed = callback()
    second = trainer(resumed, 8, tmp_path)
    second.fit(Classifier(), loader(), loader(), ckpt_path=tmp_path / "mid.ckpt")
    done = [[(d.epoch, d.action.op) for d in each.grower.history] for each in (resumed, straight)]
    assert done[0] == done[1]
    assert (2, LifecycleOp.GERMINATE) in done[0]
    assert resumed.grower.model.slots["0"].stage is Stage.FOSSILIZED


def test_the_whole_module_and_its_own_example(tmp_path: Path) -> None:
    growth = callback(module="", slots=["net.0"], controller="wait")
    trainer(growth, 1, tmp_path).fit(Classifier(), loader(), loader())
    assert list(growth.grower.model.slots) == ["net.0"]
    assert isinstance(growth.finish(), LightningModule)


@pytest.mark.parametrize("measured", [False, True])
def test_an_older_validation_is_not_told_again(measured: bool, tmp_path: Path) -> None:
    validate = (lambda _: {"validation_accuracy": 0.25}) if measured else None
    growth = callback(controller="wait", validate=validate)
    trainer(growth, 6, tmp_path, check_val_every_n_epoch=3).fit(Classifier(), loader(), loader())
    told = [decision.metrics.validation_accuracy != 0.25 for decision in growth.grower.history]
    assert told == ([False, False, True] * 2 if measured else [True, True])
    assert growth.grower.epochs == len(told)


def test_mixed_precision_and_accumulation(tmp_path: Path) -> None:
    growth = callback()
    trainer(growth, 5, tmp_path, precision="bf16-mixed", accumulate_grad_batches=3).fit(
        Classifier(), loader(), loader()
    )
    assert growth.grower.model.isolation_penalty == pytest.approx(1 / 3)
    assert growth.grower.model.slots["0"].stage is Stage.BLENDING


def test_a_fit_by_steps_with_several_validations_an_epoch(tmp_path: Path) -> None:
    growth = callback(controller="wait")  # 3 steps an epoch: the third epoch ends after its first
    trainer(growth, -1, tmp_path, max_steps=7, val_check_interval=1).fit(Classifier(), loader(), loader())
    assert growth.grower.epochs == 3  # known once it is over
    assert [decision.metrics.validation_accuracy is not None for decision in growth.grower.history] == [
        True
    ] * 3


def test_what_is_refused(tmp_path: Path) -> None:
    class Silent(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.example_input_array = None

    with pytest.raises(WrapError, match="example_input is missing"):
        trainer(callback(), 1, tmp_path).fit(Silent(), loader(), loader())

    class Two(Classifier):
        automatic_optimization = False

        def configure_optimizers(self) -> OptimizerLRScheduler:
            return [torch.optim.SGD(self.parameters(), 0.1) for _ in range(2)]

    with pytest.raises(WrapError, match="has 2 optimizers; growing expects one"):
        trainer(callback(), 1, tmp_path).fit(Two(), loader(), loader())
    with pytest.raises(ValueError, match="given nothing of validation"):
        trainer(callback(validate=None, validation_loss="x", validation_accuracy="y"), 1, tmp_path).fit(
            Classifier(), loader(), loader()
        )
