"""On CUDA: pictures that vary and rates that change, inside the captured step, are those of the CPU."""

from collections.abc import Iterator
from typing import Literal

import pytest
import torch
from torch import Tensor

from cuda_waits import waits
from esper.tolaria.engine.host import draw_views, shown
from esper.tolaria.engine.population import Population
from esper.tolaria.engine.step import TrainingStep, upload_plans
from esper.tolaria.tasks import Augmentation, OptimiserSpec, forget, register
from esper.tolaria.worlds.engine import EngineWorld
from tiny_tasks import STEPS_ON_GPU, advance, germinate, picture_task
from world_steps import act_on, begin_host, run_epoch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
AUGMENTATION = Augmentation(padding=2)


@pytest.fixture(autouse=True)
def _varied() -> Iterator[None]:
    """A recipe in small, and no TF32, so that the devices can agree."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    register(
        picture_task(
            "varied",
            steps_per_epoch=STEPS_ON_GPU,
            augmentation=AUGMENTATION,
            schedule="warm_up_cosine",
            optimiser=OptimiserSpec(kind="sgd", lr=0.02, weight_decay=5e-4),
        )
    )
    yield
    forget("varied")
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_pictures_are_shown_as_on_the_cpu(layout: torch.memory_format) -> None:
    pictures = torch.randn(67, 3, 13, 7).contiguous(memory_format=layout)
    indices = torch.randint(67, (101,))
    views = draw_views(AUGMENTATION, 1, 101, generator=torch.Generator().manual_seed(0))[0]
    here = shown(pictures, indices, views, AUGMENTATION)
    there = shown(pictures.cuda(), indices.cuda(), views.cuda(), AUGMENTATION)
    assert torch.equal(here, there.cpu())
    assert here.stride() == there.stride()


def test_a_growing_life_has_the_numbers_of_the_cpu() -> None:
    lives = []
    for device in ("cpu", "cuda"):
        world = EngineWorld(1, device)
        begin_host(world, 0, "varied", 0)
        numbers = []
        for epoch in range(6):
            if epoch in (1, 2):
                act_on(world, germinate(0) if epoch == 1 else advance(0))
            else:
                run_epoch(world)
            numbers.append([world.host(0).report.train_loss or 0.0, world.host(0).report.validation_loss])
        lives.append(torch.tensor(numbers))
    assert torch.allclose(lives[0][:2], lives[1][:2], rtol=1e-3, atol=1e-4)
    assert torch.allclose(lives[0], lives[1], rtol=3e-2, atol=3e-3)


def test_a_captured_epoch_is_an_eager_one() -> None:
    """Three epochs, so that plans are replaced under a captured step."""
    weights = [_trained(way) for way in ("captured", "eager")]
    for captured, eager in zip(*weights, strict=True):
        assert torch.allclose(captured, eager, rtol=1e-3, atol=1e-4)


def _trained(way: Literal["captured", "eager"]) -> list[Tensor]:
    population = Population(1, "cuda")
    host = population.begin(0, "varied", 0)
    step = TrainingStep(host, torch.zeros(64, device="cuda"))
    for _ in range(3):
        if way == "captured":
            population.train_epoch()
            continue
        (plan,) = upload_plans([host.plan_epoch()], torch.device("cuda"))
        assert plan.views is not None
        assert plan.rates is not None
        for indices, views, rate in zip(plan.order, plan.views, plan.rates, strict=True):
            step(indices, views, rate)
        host.epoch += 1
    return [parameter.detach().clone() for parameter in host.model.parameters()]


def test_the_hot_path_waits_for_nothing() -> None:
    population = Population(3, "cuda")
    for index in range(3):
        population.begin(index, "varied", index)
    population.train_epoch()
    with waits("error"):
        population.train_epoch()
    torch.cuda.synchronize()
