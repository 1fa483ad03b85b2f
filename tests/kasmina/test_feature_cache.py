"""A frozen prefix is computed once for each sample, and training is what it was without."""

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import esper
from esper.kasmina import GrowingModel
from esper.kasmina.feature_cache import FeatureCache, FeatureCacheError
from esper.leyline import Stage
from tiny import grow_until

SAMPLES = 10


def _model() -> GrowingModel:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        encoder = nn.Sequential(*(nn.Sequential(nn.Linear(5, 5), nn.Tanh()) for _ in range(3)))
        host = nn.Sequential(encoder.requires_grad_(False), nn.Linear(5, 3))
    slots = ["0.0", "0.1", "0.2"]
    return esper.wrap(host, slots, torch.zeros(2, 5), rules=esper.GrowthRules(max_live_seeds=3)).eval()


@pytest.fixture(name="x")
def _x() -> Tensor:
    return torch.randn(SAMPLES, 5, generator=torch.Generator().manual_seed(1))


class _Calls:
    """How often each block of the encoder has run."""

    def __init__(self, model: GrowingModel) -> None:
        self.counts = [0, 0, 0]
        for index in range(3):
            model.host.get_submodule(f"0.{index}.0").register_forward_hook(self._counter(index))

    def _counter(self, index: int):  # type: ignore[no-untyped-def]
        def count(*_: object) -> None:
            self.counts[index] += 1

        return count


def _train(model: GrowingModel, x: Tensor, cache: FeatureCache | None) -> Iterator[Tensor]:
    learning = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(learning, lr=0.3)
    labels = torch.arange(SAMPLES) % 3
    order = torch.Generator().manual_seed(2)
    for _ in range(4):
        for rows in torch.randperm(SAMPLES, generator=order).split(4):
            optimizer.zero_grad()
            if cache is None:
                loss = F.cross_entropy(model(x[rows]), labels[rows])
            else:
                with cache.of(rows):
                    loss = F.cross_entropy(model(x[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            yield loss.detach()


def test_training_is_the_same_and_the_prefix_runs_once(x: Tensor) -> None:
    losses = []
    for cached in (False, True):
        model = _model()
        model.germinate("0.1", "mlp")  # of the boundary itself, and of a slot behind it
        model.germinate("0.2", "lora")
        calls = _Calls(model)
        cache = FeatureCache(model, "0.1", SAMPLES) if cached else None
        losses.append(torch.stack(list(_train(model, x, cache))))
    assert torch.allclose(losses[0], losses[1], atol=1e-6)
    assert losses[0][-1] < losses[0][0]
    assert calls.counts == [3, 3, 12]  # one epoch of three batches, and four of them
    assert cache is not None
    assert (cache.computed, cache.remembered) == (SAMPLES, 3 * SAMPLES)
    assert not any("forward" in vars(part) for part in model.modules())


@torch.no_grad()
def test_a_seed_before_the_slot_is_seen(x: Tensor) -> None:
    model, rows = _model(), torch.arange(SAMPLES)
    cache = FeatureCache(model, "0.1", SAMPLES)
    with cache.of(rows):
        bare = model(x)
    grow_until(model, "0.0", Stage.HOLDING, "mlp")
    model.slots["0.0"].seed.scale.fill_(1.0)  # type: ignore[union-attr]
    for _ in range(2):
        with cache.of(rows):
            assert torch.equal(model(x), copy.deepcopy(model)(x))
    assert not torch.equal(model(x), bare)
    assert cache.remembered == 0


@torch.no_grad()
def test_what_was_remembered_of_other_weights_is_forgotten(x: Tensor) -> None:
    model, rows = _model(), torch.arange(SAMPLES)
    cache = FeatureCache(model, "0.1", SAMPLES)
    for _ in range(2):
        with cache.of(rows):
            model(x)
    assert cache.remembered == SAMPLES
    model.host.get_submodule("0.0.0").weight.mul_(2.0)  # type: ignore[operator]
    with cache.of(rows):
        found = model(x)
    assert torch.equal(found, model(x))
    assert cache.remembered == SAMPLES


def test_a_module_held_twice_is_not_skipped(x: Tensor) -> None:
    shared = nn.Tanh()
    host = nn.Sequential(shared, nn.Linear(5, 5), shared, nn.Linear(5, 3)).requires_grad_(False).eval()
    model = esper.wrap(host, ["1"], x[:2])
    cache = FeatureCache(model, "1", SAMPLES)
    for _ in range(2):
        with torch.no_grad(), cache.of(torch.arange(SAMPLES)):
            found = model(x)
        assert torch.allclose(found, host(x))


def test_what_cannot_be_remembered_is_refused(x: Tensor) -> None:
    model = _model()
    rows = torch.arange(4)
    with pytest.raises(FeatureCacheError, match=r"samples is 0; expected how many"):
        FeatureCache(model, "0.1", 0)
    with pytest.raises(ValueError, match=r"0\.7"):
        FeatureCache(model, "0.7", SAMPLES)
    cache = FeatureCache(model, "0.1", SAMPLES)
    with pytest.raises(FeatureCacheError, match=r"rows has 10; there are 10 samples"), cache.of(rows + 7):
        pass
    with pytest.raises(FeatureCacheError, match=r"rows is torch.float32 \(10, 5\)"), cache.of(x):
        pass
    with pytest.raises(FeatureCacheError, match=r"returned \(3, 5\) for 4 samples"), cache.of(rows):
        model(x[:3])
    with pytest.raises(FeatureCacheError, match="one forward inside"), cache.of(rows):
        model(model.host(x[:4]).new_zeros(4, 5))
    with cache.of(rows):
        model(x[:4])
    with pytest.raises(FeatureCacheError, match="3 samples went in where"), cache.of(rows):
        model(x[:3])
    model.train()
    with pytest.raises(FeatureCacheError, match="is in training mode"), cache.of(rows):
        pass
    model.eval()
    model.host.get_submodule("0.0").requires_grad_(True)
    with pytest.raises(FeatureCacheError, match=r"0\.weight in the prefix up to '0\.1' is trained"):
        FeatureCache(model, "0.1", SAMPLES)
    assert not any("forward" in vars(part) for part in model.modules())
