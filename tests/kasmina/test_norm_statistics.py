"""Running statistics: estimated anew, several sets kept, one in use."""

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina.norm_statistics import KeptStatistics, estimating, norm_statistics
from frozen import frozen_base, pictures


def test_the_answer_by_hand() -> None:
    layer = nn.BatchNorm1d(2, momentum=0.1)
    host = nn.Sequential(layer, nn.Dropout(0.5)).train()
    batches = (torch.tensor([[0.0, 2.0], [2.0, 2.0], [4.0, 8.0]]), torch.tensor([[10.0, 0.0]]))
    with pytest.raises(ValueError, match="Expected more than 1 value"), estimating(host):
        host(batches[1])  # as torch says of a single sample
    assert layer.running_mean is not None
    assert layer.running_mean.tolist() == [0.0, 0.0]
    with estimating(host):
        host(batches[0])
        host(torch.tensor([[10.0, 0.0], [12.0, 2.0]]))
    assert layer.running_mean.tolist() == pytest.approx([28 / 5, 14 / 5])
    assert layer.running_var is not None
    # unbiased: 4 and 12 of three samples, 2 and 2 of two
    assert layer.running_var.tolist() == pytest.approx([(3 * 4 + 2 * 2) / 5, (3 * 12 + 2 * 2) / 5])
    assert layer.momentum == 0.1
    assert layer.training
    assert host[1].training
    assert not layer._forward_pre_hooks


def test_nothing_else_moves() -> None:
    base = frozen_base().train()
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    random = torch.get_rng_state()
    with estimating(base):
        assert not base(pictures()).requires_grad
        base(pictures(seed=2))
    assert torch.equal(torch.get_rng_state(), random)
    moved = {name for name, tensor in base.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == set(norm_statistics(base))
    assert all(part.training for part in base.modules())


def _estimate(base: nn.Module, *, failing: bool) -> None:
    with estimating(base):
        if failing:
            base(pictures())
            raise ValueError("boom")


@pytest.mark.parametrize("failing", [False, True])
def test_without_samples_statistics_are_as_before(failing: bool) -> None:
    base = frozen_base()
    before = {name: tensor.clone() for name, tensor in norm_statistics(base).items()}
    message = "no samples reached some BatchNorm layer" if not failing else "boom"
    with pytest.raises(ValueError, match=message):
        _estimate(base, failing=failing)
    assert all(torch.equal(tensor, before[name]) for name, tensor in norm_statistics(base).items())
    assert not base.norm._forward_pre_hooks


def test_a_host_without_batch_norm_is_refused() -> None:
    with pytest.raises(ValueError, match="has no BatchNorm layer"), estimating(nn.Linear(2, 2)):
        pass


@torch.no_grad()
def test_both_are_kept_and_either_is_used() -> None:
    base, x = frozen_base(), pictures() * 3 + 1
    kept, alone = KeptStatistics(base), base(x)
    with estimating(base):
        base(x)
    drifted = kept.in_use
    kept.keep("target")
    adapted = base(x)
    assert (drifted, kept.names, kept.in_use) == (None, ("source", "target"), "target")
    assert not torch.allclose(adapted, alone, atol=1e-3)
    kept.use("source")
    assert kept.in_use == "source"
    assert torch.equal(base(x), alone)
    kept.use("target")
    assert torch.equal(base(x), adapted)
    with pytest.raises(ValueError, match="no statistics are named 'night'; kept: source, target"):
        kept.use("night")


def test_the_first_layer_sees_what_the_target_is() -> None:
    base = frozen_base()
    x: Tensor = pictures(32) * 2 + 1
    with torch.no_grad():
        seen = base.stem(x)
    with estimating(base):
        for part in x.split([20, 12]):
            base(part)
    assert base.norm.running_mean is not None
    assert torch.allclose(base.norm.running_mean, seen.mean((0, 2, 3)), atol=1e-5)
