"""Coalitions measured together give the numbers of one validation after another, to the bit, and cost less."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import esper
from esper.grower.measuring import EpochMetrics, Gauge, measure, measure_each
from esper.grower.validating import LoaderValidation
from esper.kasmina import GrowingModel, GrowthRules
from esper.kasmina.coalitions import plan_coalitions
from esper.kasmina.hosts import GPT, MLP, ConvNet
from esper.leyline import Stage
from tiny import grow_until

STAGES = (Stage.FOSSILIZED, Stage.HOLDING, Stage.BLENDING, Stage.TRAINING)
STYLES = ("linear_add", "sigmoid_add", "gate", "multiply")
WIDTH, CLASSES = 5, 3


def grown(host: nn.Module, example: Tensor, kind: str, *, causal: bool = False) -> GrowingModel:
    """Four slots with seeds in all stages and styles that have something to say."""
    model = esper.wrap(host, ["blocks.*"], example, causal=causal, rules=GrowthRules(max_live_seeds=3))
    for name, stage, style in zip(model.slots, STAGES, STYLES, strict=True):
        grow_until(model, name, stage, kind, alpha_target=0.7, style=style)
    generator = torch.Generator().manual_seed(3)
    model.slots["blocks.2"].life.alpha = 0.3
    for slot in model.slots.values():
        assert slot.seed is not None
        slot.sync_seed()
        with torch.no_grad():
            slot.seed.scale.copy_(torch.randn(slot.seed.scale.shape, generator=generator))
    return model


def batches(example: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Of two sizes, and one that is empty."""
    generator = torch.Generator().manual_seed(5)
    return [
        (example[: len(targets)].flip(0), targets)
        for targets in (torch.randint(CLASSES, (size,), generator=generator) for size in (5, 0, 2))
    ]


def assert_same_numbers(model: GrowingModel, validate: LoaderValidation, *, fossils: bool = True) -> None:
    plan = plan_coalitions(model, bare=True, fossils=fossils)
    for coalitions in ([None, *plan.coalitions[1:]], list(plan.coalitions), list(reversed(plan.coalitions))):
        slowly = [measure(model, validate, each, weighed=plan.weighed) for each in coalitions]
        random = torch.get_rng_state()
        together = list(measure_each(model, validate, coalitions, mode=None, weighed=plan.weighed))
        assert together == slowly
        assert torch.equal(random, torch.get_rng_state())
    assert len({found.validation_loss for found, _ in slowly}) == len(coalitions), "each should differ"
    assert not any("forward" in vars(module) for module in model.modules())


def drawn(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("fossils", [False, True])
@pytest.mark.parametrize("kind", ["mlp", "series", "batch norm", "gpt"])
def test_hosts_of_all_layouts(kind: str, fossils: bool) -> None:
    pools, widths = (1, 2, 1, 2), (4, 4, 6, 6)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "mlp":
            model = grown(MLP(7, CLASSES, (8, 8, 8, 8)), example := drawn((5, 7)), "mlp")
        elif kind == "series":
            host = ConvNet(2, CLASSES, dims=1, widths=widths, pools=pools)
            model = grown(host, example := drawn((5, 2, 16)), "conv_small")
        elif kind == "batch norm":
            host = ConvNet(2, CLASSES, dims=2, widths=widths, pools=pools, norm="batch")
            model = grown(host, example := drawn((5, 2, 8, 8)), "attention")
            model.train()(example)
        else:
            example = torch.randint(11, (5, 7), generator=torch.Generator().manual_seed(1))
            model = grown(GPT(11, 7, layers=4, width=16), example, "attention", causal=True)
    loss = (lambda outputs, targets: F.cross_entropy(outputs[:, -1], targets)) if kind == "gpt" else None
    assert_same_numbers(model, LoaderValidation(batches(example), loss), fossils=fossils)


# Hosts that do what a host may do beside computing


class Plain(nn.Module):
    """A linear layer in a block."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.tanh(self.linear(x))
        return out


class InPlace(Plain):
    """Changes what its layer put out, and what it was given."""

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(0.9)
        out: Tensor = self.linear(x).tanh_()
        return out


class Remembers(Plain):
    """Leaves something for whoever reads it at the end."""

    seen: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.seen = super().forward(x)
        return self.seen


class Draws(Plain):
    """Random in evaluation too."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.1 * torch.randn_like(x)


class Appends(Plain):
    """Hands something on in a list that it is given."""

    def forward(self, x: Tensor, trail: list[Tensor] | None = None) -> Tensor:
        if trail is not None:
            trail.append(x)
        return super().forward(x)


class Host(nn.Module):
    """Blocks with glue between them, one of them called again behind all slots."""

    def __init__(self, kind: type[Plain]) -> None:
        super().__init__()
        self.stem, self.drop = kind(), nn.Dropout(0.5)
        self.blocks, self.between = (
            nn.ModuleList(Plain() for _ in range(4)),
            nn.ModuleList(kind() for _ in range(4)),
        )
        self.twice, self.head = kind(), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x, trail = self.stem(x.clone()), list[Tensor]()
        for block, between in zip(self.blocks, self.between, strict=True):
            given = self.drop(x + block(x))
            x = between(given, trail) if isinstance(between, Appends) else between(given)
            x = x + given + self.twice(x * 0.5)
        x = self.twice(x)
        for each in self.between:
            x = x + (each.seen if isinstance(each, Remembers) else 0.0)
        out: Tensor = self.head(x + sum(trail))
        return out


@pytest.mark.parametrize("kind", [Plain, InPlace, Remembers, Draws, Appends])
def test_hosts_that_do_more_than_compute(kind: type[Plain]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = grown(Host(kind), drawn((5, WIDTH)), "mlp")
        torch.manual_seed(1)
        assert_same_numbers(model, LoaderValidation(batches(drawn((5, WIDTH)))))


def test_hooks_of_others() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        host = Host(Plain)
        model = grown(host, drawn((5, WIDTH)), "mlp")
    counts = dict.fromkeys(("inside", "on a part"), 0)

    def scale(name: str) -> object:
        def hook(_module: nn.Module, _args: object, output: Tensor) -> Tensor:
            counts[name] += 1
            return output * 1.1

        return hook

    validate = LoaderValidation(batches(drawn((5, WIDTH)))[:1])
    plan = plan_coalitions(model)
    host.stem.linear.register_forward_hook(scale("inside"))  # type: ignore[arg-type]
    host.blocks[0].register_forward_hook(scale("on a part"))  # type: ignore[arg-type]
    slowly = [measure(model, validate, each, weighed=plan.weighed) for each in plan.coalitions]
    calls = dict(counts)
    counts.update(dict.fromkeys(counts, 0))
    together = list(measure_each(model, validate, plan.coalitions, mode=None, weighed=plan.weighed))
    assert (together, counts) == (slowly, calls)


def test_what_comes_before_a_switched_seed_is_computed_once() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        host = ConvNet(2, CLASSES, dims=1, widths=(4, 4, 6, 6), pools=(1, 2, 1, 2))
        model = grown(host, example := drawn((5, 2, 16)), "conv_small")
    calls: list[str] = []

    def count(name: str, module: nn.Module) -> None:
        compute = module.forward

        def counted(x: Tensor) -> object:
            calls.append(name)
            return compute(x)

        module.forward = counted

    for index, (block, slot) in enumerate(zip(host.blocks, model.slots.values(), strict=True)):
        assert isinstance(block, nn.Sequential)
        assert slot.seed is not None
        count(f"block {index}", block[0])
        count(f"seed {index}", slot.seed.body)
    validated = Gauge(LoaderValidation([(example, torch.zeros(5).long())]), None).validated(
        model, EpochMetrics()
    )
    assert validated.seeds is not None
    # The seeds at 1, 2 and 3 are switched in turn: what is behind each is computed anew, and no more.
    assert [calls.count(f"block {index}") for index in range(4)] == [1, 1, 2, 3]
    assert [calls.count(f"seed {index}") for index in range(4)] == [1, 1, 2, 1]
