"""The instances that are scored, the subsets they are reported by, and the rng seeds of the hosts."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

from esper.leyline.errors import EsperError
from esper.simic.held_out import SCORED_TOO
from esper.tolaria.tasks import Instance, suite, suite_names
from esper.tolaria.tasks.adapt import of_other_shift
from esper.tolaria.tasks.adapt_stream import meets_other_shift
from esper.tolaria.tasks.drawn import in_corner, of_other_kind, of_other_size
from esper.tolaria.worlds.toy.instance import TOY_SUITES

_FIRST_HOST_SEED = 3_000_000
"""Host seeds from here on are not met in training, selection or `esper evaluate`."""
SEEDS_EACH = 1000
"""Hosts that an instance can have."""
_TOY_INSTANCES = 24


class PlanError(EsperError, ValueError):
    """A benchmark that cannot be run as asked."""


@dataclass(frozen=True, slots=True)
class BenchSuite:
    """Instances to be scored on, in a fixed order."""

    name: str
    instances: tuple[str, ...]

    def first(self, count: int | None) -> "BenchSuite":
        """`count` of the instances, spread evenly over the list so that every kind is among them; None is all."""
        if count is None or count >= len(self.instances):
            return self
        if count < 1:
            raise PlanError(f"instances is {count}; expected >= 1")
        last = len(self.instances) - 1
        places = [round(index * last / (count - 1)) for index in range(count)] if count > 1 else [0]
        return BenchSuite(self.name, tuple(self.instances[place] for place in places))


def bench_suite(name: str) -> BenchSuite:
    """A suite's held-out instances, and what is scored beside them."""
    if name in TOY_SUITES:
        return BenchSuite(name, TOY_SUITES[name].held_out(_TOY_INSTANCES))
    if name not in suite_names():
        return BenchSuite(name, (str(Instance.parse(name)),))
    return BenchSuite(name, (*(str(case) for case in suite(name).held_out), *SCORED_TOO.get(name, ())))


def host_seed(instance: str, seed: int) -> int:
    """The rng seed of an instance's host, the same for every arm.

    Two instances of one suite here share none; others may by chance, one pair in a million.
    """
    if not 0 <= seed < SEEDS_EACH:
        raise ValueError(f"seed is {seed}; expected 0..{SEEDS_EACH - 1}")
    return _FIRST_HOST_SEED + (zlib.crc32(instance.encode()) % 1_000_000) * SEEDS_EACH + seed


def subsets(instances: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The ways a table is reported: everything first, then each subset that is neither empty nor everything."""
    chosen: dict[str, Callable[[Instance], bool]] = {
        "without digits": lambda case: case.task != "digits",
        "inside the training ranges": lambda case: (
            case.task != "digits"
            and not (_cornered(case) or _of_other_kind(case) or _of_other_size(case) or _of_other_shift(case))
        ),
        "held-out corner": _cornered,
        "held-out kind of host": _of_other_kind,
        "held-out sizes of hosts": _of_other_size,
        "held-out shifts": _of_other_shift,
    }
    parts = {"all": instances}
    if any(instance.startswith("toy") for instance in instances):
        return parts
    for name, belongs in chosen.items():
        part = tuple(instance for instance in instances if belongs(Instance.parse(instance)))
        if part and len(part) < len(instances) and part not in parts.values():
            parts[name] = part
    return parts


def _cornered(case: Instance) -> bool:
    drawn_through = case.task in ("stream", "adapt", "adapt_stream", "backbone")
    return not drawn_through and in_corner(dict(case.parameters))


def _of_other_kind(case: Instance) -> bool:
    return of_other_kind(dict(case.parameters))


def _of_other_size(case: Instance) -> bool:
    return case.task.startswith("drawn_") and of_other_size(dict(case.parameters))


def _of_other_shift(case: Instance) -> bool:
    parameters = dict(case.parameters)
    return (case.task in ("adapt", "backbone") and of_other_shift(parameters)) or (
        case.task == "adapt_stream" and meets_other_shift(parameters)
    )
