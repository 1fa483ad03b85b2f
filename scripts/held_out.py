"""How the held-out instances of `cpu`, `shift`, `stream`, `hosts`, `adapt`, `adapt_stream` and `backbone` were made.

python scripts/held_out.py            prints them
"""

import json

import numpy as np

from esper.tolaria.tasks import Instance, backbone
from esper.tolaria.tasks.adapt import DRAWN_SHIFTS, HELD_OUT_SHIFTS, draw_target
from esper.tolaria.tasks.adapt_stream import draw_targets, meets_other_shift
from esper.tolaria.tasks.drawn import draw_any, in_corner
from esper.tolaria.tasks.series import SHIFT_KINDS
from esper.tolaria.tasks.stream import DRAWN_SWITCHES, SPRINKLED_KINDS, streaming
from esper.tolaria.tasks.suites import HELD_OUT_DATA, any_case, instance_of, shifting
from esper.tolaria.tasks.task import Parameters

_HELD_OUT_PERMUTATIONS = (1_000_000, 1_100_000)
_HELD_OUT_KIND = "corrupt"
_HELD_OUT_SWITCHES = range(DRAWN_SWITCHES.stop, 7)
_HELD_OUT_DATA_FROM = 2**31
"""Draws have smaller seeds of their samples."""


def generate_held_out(each: int = 16, cornered: int = 8, seed: int = 20_000) -> dict[str, list[str]]:
    """The held-out instances: new permutations and new samples, in the ranges of the draws and in the corner.

    `src/esper/tolaria/tasks/held_out.json` is `json.dumps(generate_held_out(), indent=1)`, written once. It stays as
    it is: results are compared on it.
    """
    lists: dict[str, list[str]] = {}
    for number, suite in enumerate(("cpu", "shift")):
        rng = np.random.default_rng([seed, number])
        lists[suite] = []
        for place in range(each + cornered):
            parameters = _held_out(rng, corner=place >= each)
            if suite == "shift":
                parameters = shifting(parameters, SHIFT_KINDS[place % len(SHIFT_KINDS)], rng)
            lists[suite].append(str(instance_of("mnist1d" if suite == "cpu" else suite, parameters)))
    own = {"stream": _streams(20, seed), "hosts": _hosts(200, seed), "adapt": _targets(200, seed)}
    return lists | own | {"adapt_stream": _target_streams(60, seed), "backbone": _backbones(24, seed)}


def _backbones(count: int, seed: int) -> list[str]:
    """Turn by turn a shift that is drawn and one that never is, each with samples of its own."""
    rng, cases = np.random.default_rng([seed, 6]), []
    for place in range(count):
        shifts = backbone.HELD_OUT if place % 2 else backbone.DRAWN
        parameters = backbone.draw_target(rng, shifts)
        cases.append(str(Instance.of("backbone", parameters | {"data": _HELD_OUT_DATA_FROM + place})))
    return cases


def _target_streams(count: int, seed: int) -> list[str]:
    """Turn by turn like the draws, and with a target of a shift that is never drawn; each with its own samples."""
    rng, cases = np.random.default_rng([seed, 5]), []
    for place in range(count):
        parameters = draw_targets(rng, DRAWN_SHIFTS)
        while place % 2 and not meets_other_shift(parameters):
            parameters = draw_targets(rng, (*DRAWN_SHIFTS, *HELD_OUT_SHIFTS))
        cases.append(str(Instance.of("adapt_stream", parameters | {"data": _HELD_OUT_DATA_FROM + place})))
    return cases


def _targets(count: int, seed: int) -> list[str]:
    """Turn by turn a shift that is drawn and one that never is, each with samples of its own."""
    rng, cases = np.random.default_rng([seed, 4]), []
    for place in range(count):
        parameters = draw_target(rng, HELD_OUT_SHIFTS if place % 2 else DRAWN_SHIFTS)
        cases.append(str(Instance.of("adapt", parameters | {"data": _HELD_OUT_DATA_FROM + place})))
    return cases


def _hosts(count: int, seed: int) -> list[str]:
    """From the whole ranges, each with samples of its own: what is never trained on has its natural share."""
    rng, cases = np.random.default_rng([seed, 3]), []
    for place in range(count):
        task, parameters = draw_any(rng, _HELD_OUT_PERMUTATIONS)
        cases.append(str(Instance.of(task, parameters | {"data": _HELD_OUT_DATA_FROM + place})))
    return cases


def _streams(each: int, seed: int) -> list[str]:
    """So many like the draws, as many with a kind of change that is never drawn, and as many with more switches."""
    rng, cases = np.random.default_rng([seed, 2]), []
    for place in range(3 * each):
        other_kinds = each <= place < 2 * each
        counts = _HELD_OUT_SWITCHES if place >= 2 * each else DRAWN_SWITCHES
        kinds = (*SPRINKLED_KINDS, _HELD_OUT_KIND) if other_kinds else SPRINKLED_KINDS
        while True:
            base: Parameters = {
                "permutation": int(rng.integers(*_HELD_OUT_PERMUTATIONS)),
                "data": HELD_OUT_DATA,
            }
            switches = int(rng.integers(counts.start, counts.stop))
            case = instance_of("stream", streaming(base, switches, kinds, rng))
            if not other_kinds or _HELD_OUT_KIND in str(case):
                break
        cases.append(str(case))
    return cases


def _held_out(rng: np.random.Generator, *, corner: bool) -> Parameters:
    while in_corner(parameters := any_case(rng, _HELD_OUT_PERMUTATIONS)) != corner:
        pass
    return parameters | {"data": HELD_OUT_DATA}


if __name__ == "__main__":
    print(json.dumps(generate_held_out(), indent=1))
