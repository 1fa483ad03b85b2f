"""The signal of every (slot, blueprint) at once is that of each seed born and differentiated by itself."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import esper
from esper.kasmina import GrowingModel
from esper.kasmina.birth_signals import SignalError, birth_signals
from esper.kasmina.hosts import GPT
from frozen import CLASSES, frozen_base, pictures

Batch = tuple[Tensor, Tensor]


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def _by_force(model: GrowingModel, batches: list[Batch]) -> dict[tuple[str, str], float]:
    """One model for each pair, whose seed is born and differentiated."""
    found = {}
    for slot, place in model.slots.items():
        for kind in place.blueprints:
            grown = copy.deepcopy(model).eval()
            grown.germinate(slot, kind)
            seed = grown.slots[slot].seed
            assert seed is not None
            gradients = []
            for batch in batches:
                with grown.override_alpha({slot: 1.0}):
                    (gradient,) = torch.autograd.grad(_loss(grown, batch), [seed.scale])
                gradients.append(gradient.double())
            stacked = torch.stack(gradients)  # (batch, channel)
            noise = stacked.var(0).sum()
            found[slot, kind] = float(len(batches) * stacked.mean(0).square().sum() / noise)
    return found


class _InPlace(nn.Module):
    """Works in place on what a slot gives, and calls that slot twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.first(self.first(x).relu_()).mul_(2.0))
        return out


def _cases() -> dict[str, tuple[GrowingModel, list[Batch]]]:
    generator = torch.Generator().manual_seed(4)

    def labels(*shape: int, below: int = CLASSES) -> Tensor:
        return torch.randint(below, shape, generator=generator)

    images = [(pictures(6, seed), labels(6)) for seed in range(4)]
    flat = [(torch.randn(7, 5, generator=generator), labels(7)) for _ in range(3)]
    tokens = [(labels(3, 7, below=11), labels(3, 7, below=11)) for _ in range(3)]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        in_place, gpt = _InPlace(), GPT(11, 7, layers=2, width=16)
    return {
        "frozen": (esper.wrap(frozen_base(), ["stem", "norm", "first"], images[0][0]), images),
        "trained": (esper.wrap(frozen_base().requires_grad_(True), ["deep", "first"], images[0][0]), images),
        "in place": (esper.wrap(in_place, ["first"], flat[0][0]), flat),
        "causal": (
            esper.wrap(gpt, ["blocks.*"], tokens[0][0], causal=True, blueprints=["l*", "mlp*"]),
            tokens,
        ),
    }


@pytest.mark.parametrize("case", ["frozen", "trained", "in place", "causal"])
def test_all_pairs_at_once_are_each_by_itself(case: str) -> None:
    model, batches = _cases()[case]
    expected = _by_force(model, batches)
    found = birth_signals(model, batches, _loss)
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=1e-4)
    assert len(set(found.values())) > 1


def test_the_answer_by_hand() -> None:
    host = nn.Linear(1, 1, bias=False).requires_grad_(False)
    nn.init.ones_(host.weight)
    model = esper.wrap(nn.Sequential(host), ["0"], torch.ones(2, 1), blueprints=["norm"])
    # h = x, of norm 1, so v is dL/dh = c, the batch's factor: mean 2, variance 2 over the batches 1 and 3
    batches = [(torch.ones(1, 1), c) for c in (1.0, 3.0)]
    found = birth_signals(model, batches, lambda net, batch: (net(batch[0]) * batch[1]).sum())
    assert found == pytest.approx({("0", "norm"): 2 * 4 / 2}, rel=1e-4)
    same = birth_signals(model, batches[:1] * 3, lambda net, batch: (net(batch[0]) * batch[1]).sum())
    assert same == {("0", "norm"): math.inf}


def test_the_model_is_left_as_it_was() -> None:
    model, batches = _cases()["trained"]
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random, hooks = torch.get_rng_state(), [len(part._forward_hooks) for part in model.modules()]
    birth_signals(model, batches, _loss)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.state_dict().keys() == before.keys()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(part.training for part in model.modules())
    assert [len(part._forward_hooks) for part in model.modules()] == hooks
    assert torch.equal(torch.get_rng_state(), random)
    assert all(slot.seed is None for slot in model.slots.values())


def test_noise_alone_gives_one() -> None:
    """Labels that nothing tells: over many batches the mean of the ratios is near 1."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        host = nn.Sequential(nn.Linear(5, 29), nn.Linear(29, 2)).requires_grad_(False)
    model = esper.wrap(host, ["0"], torch.zeros(2, 5), blueprints=["lora_large"])
    batches = [(torch.randn(16, 5, generator=generator), 0) for _ in range(200)]

    def loss(net: nn.Module, batch: tuple[Tensor, int]) -> Tensor:
        signs = torch.randint(2, (16, 2), generator=generator) * 2.0 - 1.0
        return (net(batch[0]) * signs).mean()

    found = birth_signals(model, batches, loss)["0", "lora_large"]
    assert found is not None
    assert 0.3 < found < 2.5


def test_what_gives_no_ratio_is_refused() -> None:
    model, batches = _cases()["frozen"]
    with pytest.raises(SignalError, match="batches has 1; a ratio over minibatches needs at least 2"):
        birth_signals(model, batches[:1], _loss)
    with pytest.raises(SignalError, match="expected the mean loss of the batch"):
        birth_signals(model, batches, lambda net, batch: net(batch[0]))
    with pytest.raises(SignalError, match="does not depend on any slot"):
        birth_signals(model, batches, lambda net, batch: net(batch[0]).mean().detach())
    for slot in ("stem", "norm"):
        model.germinate(slot, "lora")
    seen = birth_signals(model, batches, _loss)
    assert {slot for slot, _ in seen} == {"first"}  # the others hold a seed
