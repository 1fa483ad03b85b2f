"""A training that breaks off while seeds grow: afterwards weights are loaded as ever, those of seeds too."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.integrations.callback import HasGrower
from esper.kasmina import WrapError
from esper.kasmina.tree import names_a_seed

pytestmark = pytest.mark.filterwarnings("ignore")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the packages' own imports
    pytest.importorskip("lightning.pytorch")
    transformers = pytest.importorskip("transformers")

    from integrations import test_lightning as in_lightning
    from integrations import test_transformers as in_transformers

STOP_AT = 4
"""The epoch in which training breaks off; the seed is there from the second on."""


def growing(kind: str, slot: int) -> object:
    return esper.rule_policy("schedule", schedule=f"germinate {kind}@{slot} t=1")


class Interrupt(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
    """Ctrl-C, in the midst of training or once the Trainer is about to stop; None: not here."""

    def __init__(self, *, ending: bool | None) -> None:
        self.ending = ending

    def on_step_end(self, args: object, state: Any, control: Any, **kwargs: object) -> None:
        del args, kwargs
        if state.epoch > STOP_AT and self.ending is not None:
            control.should_training_stop = self.ending
            raise KeyboardInterrupt


def interrupted(folder: Path, *, ending: bool | None) -> tuple[HasGrower, nn.Module]:
    growth, model = in_transformers.callback(controller=growing("lora", 1)), in_transformers.resnet()
    best = {"save_strategy": "epoch", "load_best_model_at_end": True}
    training = in_transformers.make(growth, folder, model, **best)
    training.add_callback(Interrupt(ending=ending))
    with pytest.raises(KeyboardInterrupt):
        training.train()
    assert any(map(names_a_seed, model.state_dict()))
    return growth, model


def assert_loads_whole(model: nn.Module) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    model.load_state_dict(before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def without_seeds(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if not names_a_seed(name)}


@pytest.mark.parametrize("ending", [False, True])
def test_after_an_interrupted_hugging_face_training(tmp_path: Path, ending: bool) -> None:
    growth, model = interrupted(tmp_path, ending=ending)
    assert_loads_whole(model)
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict(without_seeds(model))
    growth.finish()


@pytest.mark.parametrize("mended", [False, True])
def test_interrupted_when_the_best_is_loaded_and_its_growth_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mended: bool
) -> None:
    load = transformers.Trainer._load_best_model

    def interrupted_load(trainer: object) -> None:
        load(trainer)
        raise KeyboardInterrupt

    monkeypatch.setattr(transformers.Trainer, "_load_best_model", interrupted_load)
    growth, model = interrupted(tmp_path, ending=None)
    if mended:
        assert_loads_whole(model)
    else:
        with pytest.raises(WrapError, match="their growth was not restored: load them again"):
            growth.finish()
    growth.finish()


class Breaks(in_lightning.Classifier):
    def on_train_batch_start(self, *_: object) -> None:
        if self.current_epoch == STOP_AT:
            raise OSError("the disk is gone")


def test_after_a_lightning_fit_that_failed(tmp_path: Path) -> None:
    growth, model = in_lightning.callback(controller=growing("mlp", 0)), Breaks()
    with pytest.raises(OSError, match="the disk is gone"):
        in_lightning.trainer(growth, 9, tmp_path).fit(model, in_lightning.loader(), in_lightning.loader())
    assert_loads_whole(model)
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict(without_seeds(model))
