"""On CUDA: scheduled learning rates and quantities, inside the captured step, have the numbers of the CPU."""

import pytest
import torch

from esper.leyline import ActionSpec, LifecycleOp
from esper.tolaria.worlds.engine import EngineWorld
from world_steps import begin_host, run_epoch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CASES = (
    "drawn_functions:host=mlp,lr=0.01,schedule=cosine,width=8",
    "drawn_functions:depth=2,host=attention,lr=0.05,optimiser=sgd,schedule=one_cycle,width=4",
    "drawn_pictures:depth=2,host=conv,optimiser=adamw,schedule=one_cycle,width=4",
)


@pytest.mark.parametrize("case", CASES)
def test_a_scheduled_life_has_the_numbers_of_the_cpu(case: str) -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    told, rates = [], []
    for device in ("cpu", "cuda"):
        world = EngineWorld(1, device)
        begin_host(world, 0, case, 0)
        host = world.host(0)
        slot = host.slot_config.slot_ids[-1]
        numbers = []
        for epoch in range(6):
            if epoch == 1:
                host.apply(ActionSpec(LifecycleOp.GERMINATE, slot, "norm"))
            if epoch == 2:
                host.apply(ActionSpec(LifecycleOp.ADVANCE, slot))
            run_epoch(world)
            numbers.append([host.report.train_loss or 0.0, host.report.validation_loss])
        told.append(torch.tensor(numbers))
        rates.append([float(group["lr"]) for group in host.optimizer.param_groups])
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    assert rates[0] == pytest.approx(rates[1], rel=1e-5)
    assert rates[1][1] == pytest.approx(3 * rates[1][0], rel=1e-5)
    assert torch.allclose(told[0][:2], told[1][:2], rtol=1e-3, atol=1e-4)
    assert torch.allclose(told[0], told[1], rtol=3e-2, atol=3e-3)
