"""Streams on CUDA: a captured step survives every change of the data, and computes what an eager one does."""

from collections.abc import Iterator

import pytest
import torch

from esper.leyline import ActionSpec, LifecycleOp
from esper.tolaria.engine.step import CapturedStep
from esper.tolaria.worlds.engine import EngineWorld
from world_steps import begin_host, run_epoch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

STREAM = "stream:plan=shuffle@2/samples700@2/noise20@2/labels@4/return0@6/alarm@8,size=900"
BITS = "slow_bits:every=2"
TARGETS = "adapt_stream:plan=noise80@2/rename@4/return1@6/none@8,size=100"
GERMINATE, ADVANCE = LifecycleOp.GERMINATE, LifecycleOp.ADVANCE
GROWN = {
    STREAM: {1: ActionSpec(GERMINATE, "blocks.1", "mixer"), 3: ActionSpec(ADVANCE, "blocks.1")},
    BITS: {1: ActionSpec(GERMINATE, "blocks.0", "mlp"), 3: ActionSpec(ADVANCE, "blocks.0")},
    TARGETS: {1: ActionSpec(GERMINATE, "stem", "conv_small"), 3: ActionSpec(ADVANCE, "stem")},
}
EPOCHS = 10


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    """No TF32, so that both ways can agree."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def lived(case: str, script: dict[int, ActionSpec], *, captured: bool) -> tuple[torch.Tensor, list[object]]:
    """(epoch, 3): training loss, validation loss and score; and the step that trained each epoch."""
    world = EngineWorld(1, "cuda")
    if not captured:
        world.population._pool = None  # as on a device without graphs
    begin_host(world, 0, case, 0)
    told, steps = [], list[object]()
    for epoch in range(EPOCHS):
        if epoch in script:
            world.host(0).apply(script[epoch])
        run_epoch(world)
        report = world.host(0).report
        told.append([report.train_loss or 0.0, report.validation_loss, report.validation_accuracy or 0.0])
        steps.append(world.population._steps[0])
    return torch.tensor(told), steps


@pytest.mark.parametrize("case", [STREAM, BITS, TARGETS])
@pytest.mark.parametrize("grows", [False, True])
def test_a_captured_life_is_the_eager_one(case: str, grows: bool) -> None:
    script = GROWN[case] if grows else {}
    captured, steps = lived(case, script, captured=True)
    eager, plain = lived(case, script, captured=False)
    assert all(isinstance(step, CapturedStep) for step in steps)
    assert not any(isinstance(step, CapturedStep) for step in plain)
    assert torch.allclose(captured[:3], eager[:3], rtol=1e-3, atol=1e-4)  # the first change is among them
    assert torch.allclose(captured, eager, rtol=5e-2, atol=2e-2)


@pytest.mark.parametrize("case", [STREAM, BITS, TARGETS])
def test_a_change_of_the_data_captures_nothing_anew(case: str) -> None:
    told, steps = lived(case, {}, captured=True)
    assert len({id(step) for step in steps}) == 1
    validation = told[:, 1]
    assert validation[4] > validation[3] + 0.05  # classes have other names, or a bit has flipped
