"""What a call of a module leaves in the objects that it reaches is seen, and ordinary modules are at rest."""

import random
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, ItemsView
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from esper.kasmina.surroundings import MOST, are_same, surroundings


@dataclass(slots=True)
class Slotted:
    """Keeps what it has in slots."""

    value: object = 0


@dataclass
class Config:
    """As every layer of a library of models holds one."""

    width: int = 4
    names: list[str] = field(default_factory=lambda: ["a", "b"])
    sentinel: object = field(default_factory=object)
    lock: object = field(default_factory=threading.Lock)


class Holds(nn.Module):
    """Does something to what it holds."""

    def __init__(self, held: object, act: Callable[[object], object]) -> None:
        super().__init__()
        self.held, self.act = held, act
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.act(self.held)
        out: Tensor = self.layer(x)
        return out


def is_at_rest(module: nn.Module) -> bool:
    before = surroundings(module)
    module(torch.zeros(1, 2))
    return are_same(before, surroundings(module))


@pytest.mark.parametrize(
    ("held", "act"),
    [
        (SimpleNamespace(value=1), lambda held: setattr(held, "value", 2)),
        (Slotted(), lambda held: setattr(held, "value", torch.zeros(()))),
        ([[1]], lambda held: held[0].append(2)),
        ([1], lambda held: held.__setitem__(0, 2)),
        (OrderedDict(a=1, b=2), lambda held: held.move_to_end("a")),
        ({"a": {1}}, lambda held: held["a"].add(2)),
        (SimpleNamespace(sum=torch.zeros(2)), lambda held: held.sum.add_(1.0)),
        (np.zeros(2), lambda held: held.__setitem__(0, 1.0)),
        (random.Random(1), lambda held: held.random()),
        ([].append, lambda held: held(1)),
        (nn.Parameter(torch.zeros(2)), lambda held: setattr(held, "seen", torch.ones(2))),
        # What cannot be looked into may have changed.
        (torch.Generator(), lambda held: torch.rand(1, generator=held)),
        (np.random.default_rng(1), lambda held: held.random()),
        (iter([1, 2]), next),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_call_leaves_behind_is_seen(held: object, act: Callable[[object], object]) -> None:
    assert not is_at_rest(Holds(held, act))


def test_what_only_reads_is_at_rest() -> None:
    config = Config()
    held = [config, np.ones(2), torch.ones(2), {"config": config}, torch.float32, nn.GELU, torch.relu]
    module = nn.Sequential(
        Holds(held, id), nn.TransformerEncoderLayer(2, 1, 4, batch_first=True), nn.LSTM(2, 2)
    )
    before = surroundings(module)
    module.eval()[:2](torch.zeros(1, 3, 2))
    module.train()
    assert are_same(before, surroundings(module))
    assert not are_same(before, surroundings(module.eval()))


class Eager:
    """Answers for every name, and runs code to do so."""

    __slots__ = ("unset",)

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"not connected: {name}")


def test_what_a_module_only_holds_is_not_run() -> None:
    module = nn.Linear(2, 2)
    module.held = Eager()  # type: ignore[assignment]
    assert surroundings(module) is not None
    gone = nn.Linear(2, 2)
    module.held = weakref.proxy(gone)  # type: ignore[assignment]
    del gone
    surroundings(module)  # whatever it makes of it


class Gate:
    """A callable with a state, of a user's own."""

    def __init__(self) -> None:
        self.value = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.value


GATE, TOTAL, BOX, BOARD = Gate(), torch.zeros(()), nn.Module(), dict[int, Tensor]()


class Gated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return GATE(x)


class OfItsClass(nn.Module):
    gate = Gate()

    def forward(self, x: Tensor) -> Tensor:
        return self.gate(x)


class Adds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + TOTAL


class Opens(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + BOX.inside  # type: ignore[operator]


class Inside(nn.Module):
    """Names what it works on in a function in a function."""

    def forward(self, x: Tensor) -> Tensor:
        return sum(((lambda place: BOARD[place])(place) for place in range(1)), x)


@pytest.mark.parametrize(
    ("kind", "act"),
    [
        (Gated, lambda: setattr(GATE, "value", 2.0)),
        (OfItsClass, lambda: setattr(OfItsClass.gate, "value", 2.0)),
        (Adds, lambda: TOTAL.add_(1.0)),
        (Opens, lambda: setattr(BOX, "inside", 1.0)),
        (Inside, lambda: BOARD.__setitem__(0, torch.ones(()))),
    ],
)
def test_what_is_in_a_file_or_a_class_is_seen(kind: type[nn.Module], act: Callable[[], object]) -> None:
    module = kind()
    before = surroundings(module)
    assert before is not None
    act()
    assert not are_same(before, surroundings(module))


class Counted(dict[int, int]):
    """Counts how often it is read through."""

    reads = 0

    def items(self) -> ItemsView[int, int]:  # type: ignore[override]
        Counted.reads += 1
        return super().items()


def test_what_is_too_large_is_not_read() -> None:
    table = Counted({each: each for each in range(50_000)})
    assert surroundings(Holds(table, id)) is None
    assert surroundings(Holds([[table]], id)) is None
    assert not Counted.reads
    assert surroundings(Holds([{each: each} for each in range(1_500)], id)) is None
    assert surroundings(Holds([np.ones(10_000) for _ in range(30)], id)) is None


def test_a_module_of_many_submodules_is_not_too_large() -> None:
    layers = [nn.TransformerEncoderLayer(2, 1, 4) for _ in range(24)]
    assert len(surroundings(nn.Sequential(*layers)) or ()) > MOST
