"""Where the task instance of each episode comes from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import numpy as np


class CaseSource(Protocol):
    """Draws task instances, as the text that `World.begin` takes."""

    @property
    def name(self) -> str: ...

    def draw(self, rng: np.random.Generator) -> str: ...


@dataclass(frozen=True, slots=True)
class CaseList:
    """Some given cases, each as likely as the others."""

    cases: tuple[str, ...]
    name: str = "cases"

    def __post_init__(self) -> None:
        if not self.cases:
            raise ValueError(f"{self.name} has no instance: name at least one case")

    def draw(self, rng: np.random.Generator) -> str:
        return self.cases[int(rng.integers(len(self.cases)))]


def as_source(cases: CaseSource | Sequence[str] | str) -> CaseSource:
    """A source as it is; one case or several as a list to draw from."""
    if isinstance(cases, str):
        return CaseList((cases,))
    return CaseList(tuple(cases)) if isinstance(cases, Sequence) else cases


# A pool of cases and host seeds to train on: finite, so that each control curve is computed once.


@dataclass(frozen=True, slots=True)
class CasePool:
    """Some cases of a source, each as likely as it was drawn often, with the first so many host seeds."""

    name: str
    cases: tuple[str, ...]
    host_seeds: int

    @staticmethod
    def drawn(source: CaseSource, *, size: int, host_seeds: int, seed: int) -> "CasePool":
        """`size` cases drawn from a source."""
        if size < 1 or host_seeds < 1:
            raise ValueError(f"a pool needs at least one case and one host seed, not {size} and {host_seeds}")
        rng = np.random.default_rng((0x9001, seed))
        return CasePool(source.name, tuple(source.draw(rng) for _ in range(size)), host_seeds)

    def draw(self, rng: np.random.Generator) -> str:
        return self.cases[int(rng.integers(len(self.cases)))]

    def pairs(self) -> Iterator[tuple[str, int]]:
        """Every (case, host seed) that can be met."""
        return product(dict.fromkeys(self.cases), range(self.host_seeds))
