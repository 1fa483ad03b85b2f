"""Losses and scores, of classes and of quantities, against answers by hand; and a host that predicts a quantity."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from esper.leyline import ActionSpec
from esper.simic.env.making import make_env
from esper.simic.reward import RewardConfig
from esper.tolaria.data import Phase, SealedTest, Split, TaskData
from esper.tolaria.engine.step import explained, loss_and_hits, mean_loss, mean_score
from esper.tolaria.tasks import forget, register, task
from esper.tolaria.worlds.engine import EngineWorld
from tiny_tasks import advance, germinate, tiny_task
from world_steps import begin_host, run_epoch

OUTPUTS = torch.tensor([[1.0, 0.0], [3.0, 2.0]])
QUANTITIES = torch.tensor([[0.0, 0.0], [1.0, 4.0]])  # errors 1, 0, 2, -2; variances 1/4 and 4


def test_quantities_have_a_squared_error_and_the_share_of_variance_they_explain() -> None:
    variance = Split(torch.zeros(2, 3), QUANTITIES).variance
    assert variance == pytest.approx((0.25 + 4.0) / 2)
    loss = mean_loss(OUTPUTS, QUANTITIES)
    assert loss.item() == pytest.approx(9 / 4)
    assert mean_score(OUTPUTS, QUANTITIES, loss, variance).item() == pytest.approx(1 - 2.25 / 2.125)
    each = loss_and_hits(torch.stack((OUTPUTS, QUANTITIES)).unsqueeze(2), QUANTITIES)
    assert each[..., 0].tolist() == [[0.5, 4.0], [0.0, 0.0]]


def test_scores_of_quantities_are_0_to_1() -> None:
    losses = torch.tensor([0.0, 0.5, 2.0, 3.0, math.inf, math.nan])
    assert explained(losses, 2.0).tolist() == [1.0, 0.75, 0.0, 0.0, 0.0, 0.0]
    assert explained(losses[:2], 0.0).tolist() == [0.0, 0.0]


def test_classes_have_a_cross_entropy_and_accuracy() -> None:
    logits, targets = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0]]), torch.tensor([0, 1, 0])
    right, wrong = math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))
    loss = mean_loss(logits, targets)
    assert loss.item() == pytest.approx((2 * right + wrong) / 3)
    assert mean_score(logits, targets, loss, math.nan).item() == pytest.approx(2 / 3)
    each = loss_and_hits(logits.view(1, 3, 1, 2), targets)
    assert each[0, :, 1].tolist() == [1.0, 1.0, 0.0]
    assert each[0, :, 0].tolist() == pytest.approx([right, right, wrong])


def _waves(count: int, seed: int, *, bias: float = 0.0) -> Split:
    """A sine's height and slope in the middle, from 13 points of it."""
    generator = torch.Generator().manual_seed(seed)
    phases = 6.28 * torch.rand(count, 1, generator=generator)
    inputs = torch.sin(phases + 0.5 * torch.arange(13)).unsqueeze(1)
    return Split(inputs, torch.cat((torch.sin(phases + 3.0), torch.cos(phases + 3.0)), 1) + bias)


def _host(data: TaskData) -> nn.Module:
    return nn.Sequential(nn.Conv1d(1, 5, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(65, data.classes))


@pytest.fixture
def waves() -> Iterator[str]:
    data = TaskData((Phase(0, _waves(61, 1), _waves(47, 2)),), SealedTest(_waves(53, 3)), classes=2)
    register(tiny_task("waves", load=lambda _: data, parameters={}, host=_host, slots=("1",)))
    yield "waves"
    forget("waves")


def test_a_host_learns_quantities_and_every_number_is_what_a_separate_pass_says(waves: str) -> None:
    world = EngineWorld(1)
    begin_host(world, 0, waves, seed=0)
    first = world.host(0).report
    for action in (replace(germinate(), slot="1"), replace(advance(), slot="1"), *[ActionSpec()] * 8):
        world.host(0).apply(action)
        run_epoch(world, [0])
    host = world.host(0)
    report, validation = host.report, host.validation
    assert report.judged_loss is not None
    assert report.validation_accuracy is not None
    host.model.eval()
    with torch.no_grad():
        outputs = host.model(validation.inputs)
    assert isinstance(outputs, Tensor)
    errors = (outputs - validation.targets).square().mean(1)
    observed, variance = host.observed_samples, host.data.source.phases[0].validation.variance
    assert report.validation_loss == pytest.approx(errors[:observed].mean().item(), abs=1e-6)
    assert report.judged_loss == pytest.approx(errors[observed:].mean().item(), abs=1e-6)
    assert report.validation_accuracy == pytest.approx(1 - report.validation_loss / variance, abs=1e-6)
    assert report.judged_accuracy == pytest.approx(1 - report.judged_loss / variance, abs=1e-6)
    assert report.train_accuracy == pytest.approx(1 - (report.train_loss or 0) / host.data.variance, abs=1e-5)
    assert report.validation_accuracy > 0.9 > 0.5 > (first.validation_accuracy or 0.0)
    (seed,) = host.snapshots()
    assert seed.contribution is not None


def test_a_host_that_explains_nothing_any_more_is_not_condemned_for_it(
    waves: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overfitting takes validation below the mean of the targets; that is a bad host, not a broken one."""
    world = EngineWorld(1)
    begin_host(world, 0, waves, seed=0)
    for _ in range(6):
        run_epoch(world, [0])
    assert (world.host(0).report.validation_accuracy or 0.0) > 0.5
    shifted = _waves(47, 2, bias=50.0)
    monkeypatch.setattr(world.host(0).data, "validations", [shifted])
    for _ in range(3):
        run_epoch(world, [0])
        assert world.host(0).report.validation_accuracy == 0.0
        assert world.host(0).report.rolled_back is None


def test_the_reward_is_explained_variance_minus_rent(waves: str) -> None:
    paid = RewardConfig(mode="sparse", rent=0.1, control_variate=False, gamma=1.0)
    env = make_env(waves, horizon=4, reward=paid)
    env.reset(seed=0)
    rewards = []
    for action in (replace(germinate(), slot="1"), replace(advance(), slot="1"), ActionSpec(), ActionSpec()):
        _, reward, _, _, info = env.step(env.encode([action]))
        rewards.append(float(reward[0]))
    env.close()
    summary = info["final_info"]["summary"][0]
    added = 0.1 * summary.added_parameters / sum(p.numel() for p in _host(task(waves).data({})).parameters())
    assert rewards[:3] == [0.0] * 3
    assert 0.0 < summary.validation_accuracy < 1.0
    assert rewards[3] == pytest.approx(summary.validation_accuracy - added, abs=1e-9)
