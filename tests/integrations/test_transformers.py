"""The callback inside a real Hugging Face Trainer, on a ResNet with random weights."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import esper
from esper.kasmina import WrapError
from esper.leyline import Stage

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the package's own imports
    pytest.importorskip("transformers")
    from transformers import (
        EvalPrediction,
        ResNetConfig,
        ResNetForImageClassification,
        Trainer,
        TrainingArguments,
    )

    from esper.integrations.transformers import GrowthCallback

pytestmark = pytest.mark.filterwarnings("ignore")
SCHEDULE = "germinate lora@1 t=1; advance 1 t=2; fossilize 1 t=6"
EXAMPLE = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Pictures(Dataset[dict[str, Tensor]]):
    """Bright and dark noise."""

    def __init__(self, samples: int) -> None:
        generator = torch.Generator().manual_seed(samples)
        self.labels = torch.arange(samples) % 2
        noise = torch.randn(samples, 3, 16, 16, generator=generator)
        self.pictures = noise + 0.3 * self.labels.view(-1, 1, 1, 1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"pixel_values": self.pictures[index], "labels": self.labels[index]}


def resnet() -> ResNetForImageClassification:
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic")
    config.num_labels = 2
    make_model: Callable[..., ResNetForImageClassification] = ResNetForImageClassification
    return make_model(config)


def accuracy(answer: EvalPrediction) -> dict[str, float]:
    likeliest = np.asarray(answer.predictions).argmax(-1)
    return {"accuracy": float((likeliest == np.asarray(answer.label_ids)).mean())}


def make(growth: GrowthCallback, folder: Path, model: nn.Module, **options: object) -> Trainer:
    given: dict[str, object] = {
        "output_dir": str(folder),
        "num_train_epochs": 7,
        "per_device_train_batch_size": 8,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "logging_strategy": "epoch",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "lr_scheduler_type": "cosine",
        "seed": 0,
    }
    arguments: Callable[..., TrainingArguments] = TrainingArguments
    return Trainer(
        model=model,
        args=arguments(**(given | options)),
        train_dataset=Pictures(24),
        eval_dataset=Pictures(10),
        compute_metrics=accuracy,
        callbacks=[growth],
    )


def callback(**options: object) -> GrowthCallback:
    given: dict[str, object] = {
        "slots": ["resnet.encoder.stages.*"],
        "example_input": {"pixel_values": EXAMPLE},
        "controller": esper.rule_policy("schedule", schedule=SCHEDULE),
    }
    return GrowthCallback(**(given | options))  # type: ignore[arg-type]


def test_a_trainer_grows(tmp_path: Path) -> None:
    growth, model = callback(), resnet()
    with pytest.raises(RuntimeError, match="nothing has been trained yet"):
        growth.finish()
    training = make(growth, tmp_path, model)
    training.train()
    history = growth.grower.history
    assert len(history) == 7
    assert growth.grower.model.slots["resnet.encoder.stages.1"].stage is Stage.FOSSILIZED
    assert all(
        d.metrics.train_loss is not None and d.metrics.validation_accuracy is not None for d in history
    )
    holding = next(d for d in history if d.slots["resnet.encoder.stages.1"].stage is Stage.HOLDING)
    assert holding.slots["resnet.encoder.stages.1"].contribution is not None
    training.evaluate()  # afterwards, nothing is decided any more
    assert len(history) == len(growth.grower.history)
    plain = growth.finish().eval()
    model.train(False)
    torch.testing.assert_close(plain(EXAMPLE).logits, model(EXAMPLE).logits)
    assert not any("esper" in type(module).__module__ for module in plain.modules())


def test_losses_alone_and_no_measuring(tmp_path: Path) -> None:
    growth = callback(controller="wait", validate=None, validation_accuracy="eval_nothing")
    make(growth, tmp_path, resnet(), num_train_epochs=1).train()
    assert growth.grower.history[0].metrics.validation_accuracy is None
    assert growth.grower.history[0].metrics.validation_loss is not None


def test_a_training_loss_that_was_not_logged_is_unknown(tmp_path: Path) -> None:
    growth = callback(controller="wait")  # 3 steps an epoch, a loss at step 5 only
    make(growth, tmp_path, resnet(), num_train_epochs=3, logging_strategy="steps", logging_steps=5).train()
    told = [decision.metrics.train_loss is not None for decision in growth.grower.history]
    assert told == [False, True, False]


@pytest.mark.parametrize(
    ("options", "decisions"),
    [
        ({"num_train_epochs": 1.5}, 2),
        ({"max_steps": 7}, 3),
        ({"eval_strategy": "steps", "eval_steps": 2, "num_train_epochs": 3}, 5),
    ],
)
def test_decisions_are_counted_as_the_trainer_counts(
    options: dict[str, object], decisions: int, tmp_path: Path
) -> None:
    growth = callback(controller="wait")
    make(growth, tmp_path, resnet(), **options).train()
    assert growth.grower.epochs == decisions == len(growth.grower.history)
    assert growth.grower.history[-1].reason == "the last epoch: finish() settles"


def test_mixed_precision(tmp_path: Path) -> None:
    growth = callback()
    make(growth, tmp_path, resnet(), num_train_epochs=4, bf16=True, eval_on_start=True).train()
    assert [decision.epoch for decision in growth.grower.history] == [1, 2, 3, 4]
    assert growth.grower.model.slots["resnet.encoder.stages.1"].stage is Stage.BLENDING
    assert all(parameter.dtype == torch.float32 for parameter in growth.finish().parameters())


def test_what_is_refused(tmp_path: Path) -> None:
    best = {"save_strategy": "epoch", "load_best_model_at_end": True, "save_only_model": True}
    with pytest.raises(WrapError, match="the best checkpoint would hold no growth"):
        make(callback(), tmp_path, resnet(), **best).train()
    with pytest.raises(WrapError, match="never evaluates, so nothing can be decided"):
        make(callback(), tmp_path, resnet(), eval_strategy="no").train()
