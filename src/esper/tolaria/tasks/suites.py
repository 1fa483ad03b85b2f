"""Suites: where instances to train on are drawn from, and the frozen ones to be judged by."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from esper.tolaria.data.mnist1d import POSITIONS
from esper.tolaria.tasks.instance import Instance
from esper.tolaria.tasks.parameters import Parameter
from esper.tolaria.tasks.shift import KINDS

Parameters = dict[str, Parameter]

_DRAWN_PERMUTATIONS = (0, 100_000)
_HELD_OUT_PERMUTATIONS = (1_000_000, 1_100_000)
_HELD_OUT_DATA = 1  # draws use the samples of data seed 0
_SMALL, _NOISY = 800, 0.3


@dataclass(frozen=True, slots=True)
class Suite:
    name: str
    summary: str
    """One line."""
    draw: Callable[[np.random.Generator], Instance]
    held_out: tuple[Instance, ...]


def in_corner(parameters: Parameters) -> bool:
    """Few training samples with many wrong labels: a corner of the ranges that no draw enters."""
    return int(parameters["size"]) < _SMALL and float(parameters["noise"]) > _NOISY


def draw_cpu(rng: np.random.Generator) -> Instance:
    """Never digits: there any mixer gains so much that a tenth of them taught to grow everywhere."""
    return _instance("mnist1d", _outside_the_corner(rng))


def draw_shift(rng: np.random.Generator) -> Instance:
    return _instance("shift", _shifting(_outside_the_corner(rng), str(rng.choice(KINDS)), rng))


def generate_held_out(each: int = 16, cornered: int = 8, seed: int = 20_000) -> dict[str, list[str]]:
    """The held-out instances: new permutations and new samples, in the ranges of the draws and in the corner.

    `held_out.json` beside this file is `json.dumps(generate_held_out(), indent=1)`, written once. It stays as it is:
    results are compared on it.
    """
    lists: dict[str, list[str]] = {}
    for number, suite in enumerate(("cpu", "shift")):
        rng = np.random.default_rng([seed, number])
        lists[suite] = []
        for place in range(each + cornered):
            parameters = _held_out(rng, corner=place >= each)
            if suite == "shift":
                parameters = _shifting(parameters, KINDS[place % len(KINDS)], rng)
            lists[suite].append(str(_instance("mnist1d" if suite == "cpu" else suite, parameters)))
    return lists


def suite(name: str) -> Suite:
    if name not in _SUITES:
        raise ValueError(f"no suite is named {name!r}; there are {', '.join(_SUITES)}")
    return _SUITES[name]()


def suite_names() -> tuple[str, ...]:
    return tuple(_SUITES)


def _any_case(rng: np.random.Generator, permutations: tuple[int, int]) -> Parameters:
    """Training size log-uniform 500..4000, noise uniform 0..0.4; ordered, partly and fully shuffled equally often."""
    shuffled = (0.0, round(int(rng.integers(2, POSITIONS)) / POSITIONS, 3), 1.0)[int(rng.integers(3))]
    return {
        "size": round(float(np.exp(rng.uniform(np.log(500), np.log(4000))))),
        "noise": round(float(rng.uniform(0, 0.4)), 3),
        "shuffled": shuffled,
        "classes": 10 if rng.random() < 0.5 else int(rng.integers(3, 10)),
        "permutation": int(rng.integers(*permutations)),
    }


def _instance(task: str, parameters: Parameters) -> Instance:
    """Without the seed of a permutation that does not take place: equal cases are to be equal."""
    idle = () if parameters["shuffled"] else ("permutation",)
    return Instance.of(task, {name: value for name, value in parameters.items() if name not in idle})


def _outside_the_corner(rng: np.random.Generator) -> Parameters:
    while in_corner(parameters := _any_case(rng, _DRAWN_PERMUTATIONS)):
        pass
    return parameters


def _held_out(rng: np.random.Generator, *, corner: bool) -> Parameters:
    while in_corner(parameters := _any_case(rng, _HELD_OUT_PERMUTATIONS)) != corner:
        pass
    return parameters | {"data": _HELD_OUT_DATA}


def _shifting(parameters: Parameters, kind: str, rng: np.random.Generator) -> Parameters:
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


def _cpu() -> Suite:
    summary = "MNIST-1D of any size, noise, order and classes"
    return Suite("cpu", summary, draw_cpu, _frozen("cpu"))


def _shift() -> Suite:
    return Suite("shift", "MNIST-1D that changes at some epoch", draw_shift, _frozen("shift"))


def _digits() -> Suite:
    summary = "the one case of digits; nothing is held out but its test split"
    return Suite("digits", summary, lambda _: Instance("digits"), (Instance("digits"),))


def _mnist1d() -> Suite:
    held_out = Instance.of("mnist1d", {"data": _HELD_OUT_DATA})
    return Suite(
        "mnist1d", "plain MNIST-1D; held out are other samples", lambda _: Instance("mnist1d"), (held_out,)
    )


_SUITES: dict[str, Callable[[], Suite]] = {
    "cpu": _cpu,
    "shift": _shift,
    "digits": _digits,
    "mnist1d": _mnist1d,
}
