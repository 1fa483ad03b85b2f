"""A loop under Accelerate that was stopped while seeds grew: `load_state` goes on as if it never had been."""

import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import esper
from esper.kasmina import WrapError
from esper.kasmina.persistence import ModelFileError
from esper.leyline import Stage
from grower.loops import data, net
from integrations.resuming import assert_same, outcome

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the package's own imports
    pytest.importorskip("accelerate")
    from accelerate import Accelerator

    from esper.integrations.accelerate import FILE, register_growth

pytestmark = pytest.mark.filterwarnings("ignore")
EPOCHS = 10
SCHEDULE = "germinate mlp@0 t=1; advance 0 t=2; fossilize 0 t=6; germinate lora@1 t=7"
STANDING = {2: Stage.TRAINING, 4: Stage.BLENDING, 8: Stage.FOSSILIZED}


def run(
    folder: Path,
    *,
    until: int = EPOCHS,
    resume: bool = False,
    slots: tuple[str, ...] = ("0", "1"),
    growth: bool = True,
) -> esper.Grower:
    """Train with shuffling, dropout and accumulation; save when done."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.default_generator.manual_seed(3)
    model = nn.Sequential(*net(), nn.Dropout(0.1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
    grower = esper.Grower(
        model,
        slots=slots,
        optimizer=optimizer,
        scheduler=scheduler,
        example_input=data()[0][:2],
        controller=esper.rule_policy("schedule", schedule=SCHEDULE),
        validate=[data()],
        epochs=EPOCHS,
        accumulate=2,
    )
    loader = DataLoader(TensorDataset(*data()), batch_size=22, shuffle=True)
    prepared, stepping, batches, rates = accelerator.prepare(model, optimizer, loader, scheduler)
    if growth:
        register_growth(accelerator, grower)
    if resume:
        accelerator.load_state(str(folder))
    while grower.epoch < until:
        prepared.train()
        for inputs, targets in batches:
            with accelerator.accumulate(prepared):
                loss = F.cross_entropy(prepared(inputs), targets)
                accelerator.backward(loss)
                stepping.step()
                stepping.zero_grad()
        rates.step()
        grower.step(train_loss=loss)
    if not resume:
        accelerator.save_state(str(folder))
    return grower


@pytest.mark.parametrize("epochs", STANDING)
def test_a_loaded_loop_is_the_one_that_never_stopped(epochs: int, tmp_path: Path) -> None:
    stopped = run(tmp_path, until=epochs)
    assert stopped.history[-1].slots["0"].stage is STANDING[epochs]
    assert_same(outcome(run(tmp_path, resume=True)), outcome(run(tmp_path / "straight")))


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, until=2)
    with pytest.raises(
        ModelFileError, match=r"slot layouts differ: the model has \(0\), the saved state has \(0, 1\)"
    ):
        run(tmp_path, resume=True, slots=("0",))
    (tmp_path / FILE).unlink()
    with pytest.raises(WrapError, match=f"holds no growth: {FILE} is missing"):
        run(tmp_path, resume=True)
    monkeypatch.setattr(Accelerator, "num_processes", 2)
    with pytest.raises(WrapError, match="the Accelerator runs 2 processes: growing under it is for one"):
        run(tmp_path)
