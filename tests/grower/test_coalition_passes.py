"""Coalitions measured together give the numbers of one validation after another, to the bit, and cost less."""

import random
from collections.abc import Iterable
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import esper
from esper.grower.measuring import EpochMetrics, Gauge, measure, measure_each
from esper.grower.validating import LoaderValidation
from esper.kasmina import GrowingModel, GrowthRules
from esper.kasmina.coalitions import plan_coalitions
from esper.kasmina.hosts import GPT, MLP, ConvNet
from esper.kasmina.tree import bare_modules
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


def generators() -> list[object]:
    """The states of all generators that a forward or a loader may draw from."""
    _, key, place, *_ = np.random.get_state()  # noqa: NPY002
    return [torch.get_rng_state().tolist(), random.getstate(), np.asarray(key).tolist(), place]


def assert_same_numbers(
    model: GrowingModel, validate: LoaderValidation, *, fossils: bool = True, refuted: bool = False
) -> None:
    plan = plan_coalitions(model, bare=True, fossils=fossils)
    for coalitions in ([None, *plan.coalitions[1:]], list(plan.coalitions), list(reversed(plan.coalitions))):
        drawn = generators()
        slowly = [measure(model, validate, each, weighed=plan.weighed) for each in coalitions]
        together = list(measure_each(model, validate, coalitions, mode=None, weighed=plan.weighed))
        assert together == slowly
        assert drawn == generators()
    assert len({found.validation_loss for found, _ in slowly}) == len(coalitions), "each should differ"
    assert not any("forward" in vars(module) for module in model.modules())
    assert validate.sharing[model].refuted is refuted


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


class DrawsInPython(Plain):
    """Random by the generators of Python and numpy."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.1 * random.random() + 0.1 * float(np.random.rand())  # noqa: NPY002


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


@pytest.mark.parametrize("kind", [Plain, InPlace, Remembers, Draws, DrawsInPython, Appends])
def test_hosts_that_do_more_than_compute(kind: type[Plain]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = grown(Host(kind), drawn((5, WIDTH)), "mlp")
        torch.manual_seed(1)
        assert_same_numbers(model, LoaderValidation(batches(drawn((5, WIDTH)))))


# Hosts whose parts talk through Python objects


class Gate:
    """Where one part leaves what others read, in each of the places that a part can reach."""

    in_a_class: ClassVar[SimpleNamespace] = SimpleNamespace(value=0.0)

    def __init__(self, place: str) -> None:
        self.held, self.place = SimpleNamespace(value=0.0), place
        closed_over = SimpleNamespace(value=0.0)

        def read() -> SimpleNamespace:
            return closed_over

        self.read_closed_over = read

    @property
    def at(self) -> SimpleNamespace:
        places = {
            "attribute": self.held,
            "class": self.in_a_class,
            "closure": self.read_closed_over(),
            "global": IN_A_FILE[0],
        }
        return places[self.place]


IN_A_FILE = [SimpleNamespace(value=0.0)]


class Writes(Plain):
    """Leaves a gate and puts out what it was given."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        if self.gate.place == "global":
            IN_A_FILE[0].value = torch.sigmoid(self.linear(x))
        else:
            self.gate.at.value = torch.sigmoid(self.linear(x))
        return x


class Reads(Plain):
    """A block under the gate that was left last."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.gate.at.value * super().forward(x)
        return out


class Pushes(Plain):
    """Leaves a skip on a stack."""

    def __init__(self, skips: list[Tensor]) -> None:
        super().__init__()
        self.skips = skips

    def forward(self, x: Tensor) -> Tensor:
        self.skips.append(x)
        return super().forward(x)


class Pops(Pushes):
    """Takes the last skip from the stack, which is empty after a forward as it was before."""

    def forward(self, x: Tensor) -> Tensor:
        return Plain.forward(self, x + self.skips.pop())


class Around(Plain):
    """Calls another part that it is not the parent of."""

    def __init__(self, others: list[Plain]) -> None:
        super().__init__()
        self.others = others

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.others[0](x))


class Talking(nn.Module):
    """Parts and slots in turn; the first and the fifth part leave something for those after them."""

    def __init__(self, parts: list[Plain]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Plain() for _ in range(4))
        self.parts, self.head = nn.ModuleList(parts), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        order = [self.parts[0], self.parts[1], *self.blocks, *self.parts[2:]]
        order.insert(4, self.parts[1])
        for part in order:
            x = part(x)
        out: Tensor = self.head(x)
        return out


@pytest.mark.parametrize("channel", ["attribute", "class", "closure", "global", "stack", "call"])
def test_parts_that_talk_through_an_object(channel: str) -> None:
    skips: list[Tensor] = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if channel == "stack":
            parts: list[Plain] = [Pushes(skips), Plain(), Pops(skips)]
        elif channel == "call":
            inner = Plain()
            parts = [Around([inner]), inner, Plain()]
        else:
            gate = Gate(channel)
            parts = [Writes(gate), Reads(gate), Writes(gate), Reads(gate)]
        model = grown(Talking(parts), drawn((5, WIDTH)), "mlp")
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
    list(measure_each(model, validate, plan.coalitions, mode=None, weighed=plan.weighed))  # and checked
    host.stem.linear.register_forward_hook(scale("inside"))  # type: ignore[arg-type]
    host.blocks[0].register_forward_hook(scale("on a part"))  # type: ignore[arg-type]
    slowly = [measure(model, validate, each, weighed=plan.weighed) for each in plan.coalitions]
    calls = dict(counts)
    counts.update(dict.fromkeys(counts, 0))
    together = list(measure_each(model, validate, plan.coalitions, mode=None, weighed=plan.weighed))
    assert (together, counts) == (slowly, calls)


class Convolutions(TorchFunctionMode):
    """Notes the weights of all convolutions; unlike a wrapped forward it leaves nothing where a part can see it."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[int] = []

    def __torch_function__(  # type: ignore[no-untyped-def]
        self, function, types, args=(), kwargs=None
    ):
        del types
        if function is F.conv1d:
            self.weights.append(id(args[1]))
        return function(*args, **(kwargs or {}))


def test_what_comes_before_a_switched_seed_is_computed_once() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        host = ConvNet(2, CLASSES, dims=1, widths=(4, 4, 6, 6), pools=(1, 2, 1, 2))
        model = grown(host, example := drawn((5, 2, 16)), "conv_small")
    gauge = Gauge(LoaderValidation([(example, torch.zeros(5).long())]), None)
    gauge.validated(model, EpochMetrics())  # and checked
    with Convolutions() as calls:
        validated = gauge.validated(model, EpochMetrics())
    assert validated.seeds is not None

    def counts(parts: Iterable[nn.Module]) -> list[int]:
        firsts = [next(part for part in bare_modules(each) if isinstance(part, nn.Conv1d)) for each in parts]
        return [calls.weights.count(id(first.weight)) for first in firsts]

    # The seeds at 1, 2 and 3 are switched in turn: what is behind each is computed anew, and no more.
    assert counts(host.blocks) == [1, 1, 2, 3]
    assert counts(slot.seed.body for slot in model.slots.values() if slot.seed is not None) == [1, 1, 2, 1]
