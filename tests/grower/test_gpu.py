"""The same life on a CUDA device, in half precision with a scaler."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.amp.grad_scaler import GradScaler

import esper
from esper.grower import Grower
from esper.grower.losses import Rows
from esper.grower.sharing import agree
from esper.leyline import Stage
from grower.loops import Loop, net
from grower.test_grower import LIFE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("half", [False, True])
def test_a_life_on_the_device(half: bool) -> None:
    loop, model = Loop(), net().cuda()
    inputs, targets = loop.inputs.cuda(), loop.targets.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    scaler = GradScaler("cuda", enabled=half)
    grower = Grower(
        model,
        ["0", "1"],
        optimizer=optimizer,
        example_input=inputs[:2],
        controller=esper.rule_policy("schedule", schedule=LIFE),
        validate=[(loop.inputs, loop.targets)],  # a loader's batches come from the CPU
        scaler=scaler,
    )
    for _ in range(9):
        for _ in range(3):
            with torch.autocast("cuda", dtype=torch.float16, enabled=half):
                loss = F.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        grower.step(train_loss=loss)
    assert grower.model.slots["0"].stage is Stage.FOSSILIZED
    assert all(p.is_cuda for p in grower.model.parameters())
    fresh = grower.state_dict()
    assert fresh["controller"] == "schedule"
    plain = grower.finish()
    torch.testing.assert_close(plain(inputs), grower.model(inputs))


def test_off_the_cpu_rounding_is_no_difference() -> None:
    def rows(*losses: float) -> Rows:
        return Rows(torch.tensor(losses, device="cuda"), torch.ones(len(losses), device="cuda"))

    assert agree(rows(1.0, 2.0, math.inf), rows(1.0001, 2.0, math.inf))
    assert not agree(rows(1.0, 2.0), rows(1.01, 2.0))
