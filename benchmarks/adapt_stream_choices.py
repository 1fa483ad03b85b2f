"""What can be grown on the targets of a stream (suite `adapt_stream`), as schedules, and what was best in
other hosts: one seed, or none, for each."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from adapt_choices import BORN, KINDS
from esper.benchmark.outcomes import grown
from esper.kasmina import GrowingModel
from esper.tolaria.tasks import Instance, task
from esper.tolaria.tasks.adapt_stream import Target, targets_of

NEVER, ANEW = "head alone", "anew for each target"
PLACES = ("0", "1", "last")
"""Slots from the input on: the stem, the first block, the last one."""


def lived_targets(case: str, epochs: int) -> list[tuple[int, int, Target]]:
    """(first epoch, end, target) of every target that is lived."""
    phases = targets_of(task("adapt_stream").complete(dict(Instance.parse(case).parameters)))
    lived = [(start, target) for start, target in phases if start < epochs]
    ends = [start for start, _ in lived[1:]] + [epochs]
    return [(start, end, target) for (start, target), end in zip(lived, ends, strict=True)]


def schedule_of(choices: Sequence[str], case: str, epochs: int, *, keep: bool) -> str:
    """One choice for each target, as a schedule: grown when the head has met the target, given back at its end.

    keep  a seed stays where the next target wants the same
    """
    clauses, standing = [], NEVER
    for (start, end, _), choice, then in zip(
        lived_targets(case, epochs), choices, [*choices[1:], NEVER], strict=True
    ):
        kind, _, place = choice.partition("@")
        if choice != NEVER and not (keep and choice == standing):
            clauses.append(grown(KINDS[kind], place, start + BORN))
        if choice != NEVER and end < epochs and not (keep and then == choice):
            clauses.append(f"prune {place} t={end}")
        standing = choice
    return "; ".join(clauses)


def fits(choice: str, case: str) -> bool:
    """Whether the cap has room for it."""
    kind, _, place = choice.partition("@")
    slots = list(_bare_host(_base(case)).slots.values())
    offered = {card.name: card.parameters for card in slots[-1 if place == "last" else int(place)].cards}
    sizes = [offered[name] for name in KINDS[kind].split("|") if name in offered]
    return bool(sizes) and sizes[0] <= int((Instance.parse(case).cap or 0.0) * bare_parameters(case))


def bare_parameters(case: str) -> int:
    """Of its base, without anything added."""
    return _bare_host(_base(case)).host_parameters


def _base(case: str) -> str:
    return str(task("adapt_stream").complete(dict(Instance.parse(case).parameters))["base"])


@cache
def _bare_host(base: str) -> GrowingModel:
    instance = Instance.of("adapt_stream", {"base": base, "size": 100})
    return instance.row.grow(instance.load(), seed=0)


# What was best in other hosts


@dataclass(frozen=True, slots=True)
class Life:
    """What one life was worth."""

    arm: str
    case: str
    seed: int
    life: float
    """Mean utility; 0 for a host that the governor took away."""
    targets: tuple[float | None, ...]
    """Mean utility during each target; 0 of the one in which it was taken away, None of what it did not live."""
    condemned: bool


Lives = dict[tuple[str, str, int], Life]
"""(arm, case, seed) -> its life"""


def by_key(lives: Iterable[Life]) -> Lives:
    return {(life.arm, life.case, life.seed): life for life in lives}


def best_of_targets(lives: Lives, singles: Sequence[str], case: str, others: Sequence[int]) -> list[str]:
    """For each target the choice that was best on it in the other hosts; what was not lived is as the head alone."""
    waited = [lives[NEVER, case, seed].targets for seed in others]
    gains: dict[str, list[float]] = {NEVER: [0.0] * len(waited[0])}
    for single in singles:
        arm = f"{single} {ANEW}"
        if (arm, case, others[0]) not in lives:
            continue
        lived = [lives[arm, case, seed].targets for seed in others]
        gains[single] = [
            statistics.fmean(
                0.0 if one is None else one - (head or 0.0) for one, head in zip(ones, heads, strict=True)
            )
            for ones, heads in zip(zip(*lived, strict=True), zip(*waited, strict=True), strict=True)
        ]
    return [max(gains, key=lambda choice: gains[choice][place]) for place in range(len(waited[0]))]


def composed(lives: Lives, case: str, seed: int, choices: Sequence[str], epochs: int) -> float:
    """A life in which each target goes as it went where its choice was grown anew for each; else as the head's."""
    head, worth = lives[NEVER, case, seed].targets, 0.0
    for place, ((start, end, _), choice) in enumerate(zip(lived_targets(case, epochs), choices, strict=True)):
        life = lives.get((f"{choice} {ANEW}", case, seed))
        own = None if life is None else life.targets[place]
        worth += (end - start) * ((head[place] or 0.0) if own is None else own)
    return worth / epochs


def one_bit(single: str, case: str, epochs: int) -> list[str]:
    """This seed on each target where more than the head can gain, and none where names changed or nothing did."""
    idle = ("labels", "none")
    return [NEVER if target.group in idle else single for _, _, target in lived_targets(case, epochs)]


def others_than(seed: int, seeds: Sequence[int]) -> list[int]:
    return [other for other in seeds if other != seed]
