"""Pictures that vary: a slow reference, a loop by hand, draws that twins share, and states that go on."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from esper.tolaria.engine.host import ShuffledStream, TrainedHost, derived_seed, draw_views, shown
from esper.tolaria.engine.population import Population
from esper.tolaria.tasks import Augmentation, OptimiserSpec, forget, register, task
from esper.tolaria.worlds.engine import EngineWorld
from tiny_tasks import BATCH, STEPS, advance, germinate, picture_task, tiny_task
from world_steps import act_on, begin_host, run_epoch

AUGMENTATION = Augmentation(padding=2)
WAYS = (AUGMENTATION, Augmentation(flip=False, padding=1), Augmentation(padding=0))


@pytest.fixture(autouse=True)
def _varied() -> Iterator[None]:
    register(
        picture_task(
            "varied",
            augmentation=AUGMENTATION,
            schedule="one_cycle",
            optimiser=OptimiserSpec(kind="sgd", lr=0.05, weight_decay=5e-4),
        )
    )
    yield
    forget("varied")


def slowly_shown(picture: NDArray[np.float32], view: int, way: Augmentation) -> NDArray[np.float32]:
    """One picture (channel, height, width): surround it by zeros, cut one of its size out, mirror that."""
    pad, (_, height, width) = way.padding, picture.shape
    mirrored = way.flip and view % 2 == 1
    down, right = divmod(view // 2 if way.flip else view, 2 * pad + 1)
    crop = np.pad(picture, ((0, 0), (pad, pad), (pad, pad)))[:, down : down + height, right : right + width]
    return crop[:, :, ::-1] if mirrored else crop


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_every_view_is_that_of_a_slow_reference(way: Augmentation, layout: torch.memory_format) -> None:
    pictures = torch.randn(17, 3, 7, 5).contiguous(memory_format=layout)
    views = torch.arange((2 * way.padding + 1) ** 2 * (2 if way.flip else 1))
    indices = torch.randint(17, views.shape)
    before = pictures.clone()
    seen = shown(pictures, indices, views, way)
    slow = [
        slowly_shown(pictures[index].numpy(), int(view), way)
        for index, view in zip(indices, views, strict=True)
    ]
    np.testing.assert_array_equal(seen.numpy(), np.stack(slow))
    assert seen.is_contiguous(memory_format=layout)
    assert torch.equal(pictures, before)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_views_are_drawn_alike(way: Augmentation) -> None:
    generator = torch.Generator().manual_seed(5)
    count = (2 * way.padding + 1) ** 2 * (2 if way.flip else 1)
    views = draw_views(way, 100, 10 * count, generator=generator)
    assert views.shape == (100, 10 * count)
    often = views.flatten().bincount()
    assert len(often) == count
    assert (often.float() - 1000).abs().max() < 5 * 1000**0.5


def test_a_life_is_what_a_loop_by_hand_does() -> None:
    population = Population(1)
    host = population.begin(0, "varied", seed=3)
    for _ in range(2):
        population.train_epoch()
    row, data = task("varied"), host.data.source
    bare = row.grow(data, seed=3).host
    optimizer = torch.optim.SGD(bare.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    train, stream = data.phases[0].train, ShuffledStream(3)
    for epoch in range(2):
        generator = torch.Generator().manual_seed(derived_seed(3, f"views of epoch {epoch}"))
        views = torch.randint(50, (STEPS, BATCH), generator=generator)
        for step, indices in enumerate(stream.draw(range(len(train)), STEPS, BATCH)):
            progress = (epoch * STEPS + step) / (row.epochs * STEPS)
            risen, fallen = 0.04 + 0.96 * progress / 0.25, (1 + np.cos(np.pi * (progress - 0.25) / 0.75)) / 2
            optimizer.param_groups[0]["lr"] = 0.05 * (risen if progress < 0.25 else fallen)
            pictures = [
                slowly_shown(train.inputs[index].numpy(), int(view), AUGMENTATION).copy()
                for index, view in zip(indices, views[step], strict=True)
            ]
            optimizer.zero_grad()
            F.cross_entropy(bare(torch.from_numpy(np.stack(pictures))), train.targets[indices]).backward()
            torch.nn.utils.clip_grad_norm_(bare.parameters(), row.clip_host)
            optimizer.step()
    for ours, theirs in zip(host.model.parameters(), bare.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def _weights(host: TrainedHost) -> list[Tensor]:
    return [value.clone() for value in host.model.state_dict().values()]


def _same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_host_among_others_is_as_if_it_were_alone() -> None:
    crowd, alone = Population(3), Population(1)
    for index in range(3):
        crowd.begin(index, "varied", seed=index)
    alone.begin(0, "varied", seed=1)
    for _ in range(3):
        crowd.train_epoch()
        alone.train_epoch()
    assert _same(_weights(crowd.host(1)), _weights(alone.host(0)))
    assert not _same(_weights(crowd.host(0)), _weights(crowd.host(1)))


def test_a_host_that_grows_is_shown_what_its_baseline_is() -> None:
    world = EngineWorld(3)
    for index, seed in enumerate((4, 4, 5)):
        begin_host(world, index, "varied", seed)
    for action in (germinate(), advance()):
        act_on(world, action, 0)
        run_epoch(world, (1, 2))
    grown, baseline, other = (world.host(index).plan_epoch() for index in range(3))
    again = world.host(1).plan_epoch()
    assert grown.views is not None
    assert baseline.views is not None
    assert other.views is not None
    assert torch.equal(grown.order, baseline.order)
    assert torch.equal(grown.views, baseline.views)
    assert not torch.equal(other.views, baseline.views)
    world.host(1).epoch += 1
    later = world.host(1).plan_epoch()
    assert again.views is not None
    assert later.views is not None
    assert torch.equal(again.views, baseline.views)  # of the same epoch
    assert not torch.equal(later.views, baseline.views)


def test_a_host_goes_on_from_a_snapshot_bit_for_bit() -> None:
    lives = [EngineWorld(2), EngineWorld(1)]
    for index in range(2):
        begin_host(lives[0], index, "varied", index)
    for action in (germinate(), advance()):
        act_on(lives[0], action, 1)
    lives[1].restore({0: lives[0].snapshot([1])[1]})
    for _ in range(3):
        run_epoch(lives[0], (0, 1))
        run_epoch(lives[1])
    assert lives[0].host(1).report == lives[1].host(0).report
    assert _same(_weights(lives[0].host(1)), _weights(lives[1].host(0)))


def test_validation_sees_pictures_as_they_are() -> None:
    population = Population(1)
    host = population.begin(0, "varied", seed=0)
    population.train_epoch()
    scores = population.validate()
    host.model.eval()
    with torch.inference_mode():
        outputs = host.model(host.validation.inputs[: host.observed_samples])
    assert isinstance(outputs, Tensor)
    loss = F.cross_entropy(outputs, host.validation.targets[: host.observed_samples])
    assert scores.loss.item() == pytest.approx(loss.item(), rel=1e-5)


def test_only_what_varies_is_part_of_the_settings() -> None:
    plain, varied = picture_task(), picture_task(augmentation=AUGMENTATION)
    assert "augmentation" not in plain.settings()
    assert varied.settings() == plain.settings() | {"augmentation": "Augmentation(flip=True, padding=2)"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"padding": -1}, r"Augmentation.padding must be a whole number >= 0, not -1"),
        ({"padding": True}, r"Augmentation.padding must be a whole number >= 0, not True"),
        ({"flip": False, "padding": 0}, r"flip is False and padding 0, which varies nothing"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Augmentation(**options)  # type: ignore[arg-type]


def test_only_pictures_that_no_crop_misses_vary() -> None:
    register(tiny_task("series", augmentation=Augmentation()))
    register(picture_task("narrow", augmentation=Augmentation(padding=5)))
    try:
        with pytest.raises(ValueError, match=r"Task series: .* samples have shape \(1, 13\)"):
            Population(1).begin(0, "series", 0)
        with pytest.raises(ValueError, match=r"padding is 5, .* miss a picture of 13 x 5: give less than 5"):
            Population(1).begin(0, "narrow", 0)
    finally:
        forget("series")
        forget("narrow")
