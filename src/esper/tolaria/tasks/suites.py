"""Suites: distributions of instances to train on, and the frozen held-out instances to be judged by.

`scripts/held_out.py` made the frozen lists in `held_out.json`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from esper.tolaria.data.mnist1d import POSITIONS
from esper.tolaria.tasks import adapt, adapt_stream, backbone, drawn
from esper.tolaria.tasks.drawn import in_corner
from esper.tolaria.tasks.instance import Instance
from esper.tolaria.tasks.series import SHIFT_KINDS
from esper.tolaria.tasks.stream import DRAWN_SWITCHES, SPRINKLED_KINDS, streaming
from esper.tolaria.tasks.task import Parameters

_DRAWN_PERMUTATIONS = (0, 100_000)
HELD_OUT_DATA = 1
_DRAWN_DATA = (2, 2**31)
"""Each draw has samples of its own, so that no validation set stands for all training."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A distribution of instances."""

    name: str
    summary: str
    """One line."""
    draw: Callable[[np.random.Generator], Instance]
    """An instance to train on."""
    held_out: tuple[Instance, ...]
    """Instances that are never drawn."""
    covering: tuple[Instance, ...] = ()
    """Instances whose hosts have every slot and blueprint that any has; empty where one of each task has them."""


def draw_cpu(rng: np.random.Generator) -> Instance:
    """MNIST-1D; never digits, where any mixer gains so much that a tenth of them taught to grow everywhere."""
    return instance_of("mnist1d", _outside_the_corner(rng))


def draw_shift(rng: np.random.Generator) -> Instance:
    """An MNIST-1D instance whose data change."""
    return instance_of("shift", shifting(_outside_the_corner(rng), str(rng.choice(SHIFT_KINDS)), rng))


def draw_stream(rng: np.random.Generator) -> Instance:
    """MNIST-1D that moves between two regimes; some kinds of changes and numbers of switches are never drawn."""
    base: Parameters = {
        "permutation": int(rng.integers(*_DRAWN_PERMUTATIONS)),
        "data": int(rng.integers(*_DRAWN_DATA)),
    }
    switches = int(rng.integers(DRAWN_SWITCHES.start, DRAWN_SWITCHES.stop))
    return instance_of("stream", streaming(base, switches, SPRINKLED_KINDS, rng))


def draw_hosts(rng: np.random.Generator) -> Instance:
    """A network, how it is trained, and its data; some kinds and sizes of networks are never drawn."""
    while drawn.held_out_only((chosen := drawn.draw_any(rng, _DRAWN_PERMUTATIONS))[1]):
        pass
    task, parameters = chosen
    return Instance.of(task, parameters | {"data": int(rng.integers(*_DRAWN_DATA))})


def draw_adapt(rng: np.random.Generator) -> Instance:
    """A frozen base and a target; some shifts are never drawn."""
    parameters = adapt.draw_target(rng, adapt.DRAWN_SHIFTS)
    return Instance.of("adapt", parameters | {"data": int(rng.integers(*_DRAWN_DATA))})


def draw_adapt_stream(rng: np.random.Generator) -> Instance:
    """A frozen base whose target changes; some shifts are never drawn."""
    parameters = adapt_stream.draw_targets(rng, adapt.DRAWN_SHIFTS)
    return Instance.of("adapt_stream", parameters | {"data": int(rng.integers(*_DRAWN_DATA))})


def draw_backbone(rng: np.random.Generator) -> Instance:
    """A published network and a target; some shifts are never drawn."""
    parameters = backbone.draw_target(rng, backbone.DRAWN)
    return Instance.of("backbone", parameters | {"data": int(rng.integers(*_DRAWN_DATA))})


def suite(name: str) -> Suite:
    """The suite of that name."""
    if name not in _SUITES:
        raise ValueError(f"no suite is named {name!r}; there are {', '.join(_SUITES)}")
    return _SUITES[name]()


def suite_names() -> tuple[str, ...]:
    """The names of all suites but the toy's."""
    return tuple(_SUITES)


def any_case(rng: np.random.Generator, permutations: tuple[int, int]) -> Parameters:
    """Training size log-uniform 500..4000, noise uniform 0..0.4; ordered, partly and fully shuffled equally often."""
    shuffled = (0.0, round(int(rng.integers(2, POSITIONS)) / POSITIONS, 3), 1.0)[int(rng.integers(3))]
    return {
        "size": round(float(np.exp(rng.uniform(np.log(500), np.log(4000))))),
        "noise": round(float(rng.uniform(0, 0.4)), 3),
        "shuffled": shuffled,
        "classes": 10 if rng.random() < 0.5 else int(rng.integers(3, 10)),
        "permutation": int(rng.integers(*permutations)),
    }


def instance_of(task: str, parameters: Parameters) -> Instance:
    """Without the seed of a permutation that does not take place: equal cases are to be equal."""
    idle = () if parameters["shuffled"] or task == "stream" else ("permutation",)
    return Instance.of(task, {name: value for name, value in parameters.items() if name not in idle})


def _outside_the_corner(rng: np.random.Generator) -> Parameters:
    while in_corner(parameters := any_case(rng, _DRAWN_PERMUTATIONS)):
        pass
    return parameters | {"data": int(rng.integers(*_DRAWN_DATA))}


def shifting(parameters: Parameters, kind: str, rng: np.random.Generator) -> Parameters:
    """The same case with a change in it; what changes is made large enough to be one."""
    shifting = parameters | {"kind": kind, "change": int(rng.integers(5, 16))}
    if kind == "shuffle":
        shifting["shuffled"] = max(0.5, float(parameters["shuffled"]))
    if kind == "noise":
        shifting["noise"] = max(0.1, float(parameters["noise"]))
    del shifting["classes"]
    return shifting | ({"classes": int(rng.integers(3, 8))} if kind == "classes" else {})


@cache
def _frozen(name: str) -> tuple[Instance, ...]:
    lists: dict[str, list[str]] = json.loads(files(__package__).joinpath("held_out.json").read_text("utf-8"))
    return tuple(Instance.parse(text) for text in lists[name])


_SUITES: dict[str, Callable[[], Suite]] = {
    "cpu": lambda: Suite("cpu", "MNIST-1D of any size, noise, order and classes", draw_cpu, _frozen("cpu")),
    "shift": lambda: Suite("shift", "MNIST-1D that changes at some epoch", draw_shift, _frozen("shift")),
    "stream": lambda: Suite(
        "stream",
        "MNIST-1D that moves 2 to 4 times between data on which growth pays and harms; held out are more moves, too",
        draw_stream,
        _frozen("stream"),
    ),
    "hosts": lambda: Suite(
        "hosts",
        "networks of four kinds and many sizes on six families of data; held out are a kind and sizes, too",
        draw_hosts,
        _frozen("hosts"),
        drawn.covering(),
    ),
    "adapt": lambda: Suite(
        "adapt",
        "frozen networks, trained before, on targets that have shifted; held out are some shifts, too",
        draw_adapt,
        _frozen("adapt"),
        adapt.covering(),
    ),
    "adapt_stream": lambda: Suite(
        "adapt_stream",
        "frozen networks whose target changes 3 to 8 times while they live; held out are some shifts, too",
        draw_adapt_stream,
        _frozen("adapt_stream"),
        adapt_stream.covering(),
    ),
    "backbone": lambda: Suite(
        "backbone",
        "frozen networks of ImageNet and of sentences, from files on disk, on targets of 800 labels; held out are "
        "some shifts, too",
        draw_backbone,
        _frozen("backbone"),
        backbone.covering(),
    ),
    "digits": lambda: Suite(
        "digits",
        "the one instance of digits; nothing is held out but its test split",
        lambda _: Instance("digits"),
        (Instance("digits"),),
    ),
    "mnist1d": lambda: Suite(
        "mnist1d",
        "plain MNIST-1D; held out are other samples",
        lambda _: Instance("mnist1d"),
        (Instance.of("mnist1d", {"data": HELD_OUT_DATA}),),
    ),
}
"""Made when they are asked for: an instance needs its task in the table."""
