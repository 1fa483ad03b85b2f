"""Where the task instance of each episode comes from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class CaseSource(Protocol):
    """Draws task instances, as the text that `Beginning` takes."""

    @property
    def name(self) -> str:
        """Name for messages."""
        ...

    def draw(self, rng: np.random.Generator) -> str:
        """One instance, as text."""
        ...


@dataclass(frozen=True, slots=True)
class CaseList:
    """Some given cases, each as likely as the others."""

    cases: tuple[str, ...]
    name: str = "cases"

    def __post_init__(self) -> None:
        if not self.cases:
            raise ValueError(f"{self.name} has no instance: name at least one case")

    def draw(self, rng: np.random.Generator) -> str:
        """One of the cases."""
        return self.cases[int(rng.integers(len(self.cases)))]


def as_source(cases: CaseSource | Sequence[str] | str) -> CaseSource:
    """A source as it is; one case or several as a list to draw from."""
    if isinstance(cases, str):
        return CaseList((cases,))
    return CaseList(tuple(cases)) if isinstance(cases, Sequence) else cases


_GENERATOR_TAG = 0xCA5E
"""Names the stream that draws cases and host seeds: no other generator of the same seed shares it."""


def case_generator(seed: int) -> np.random.Generator:
    """Draws the cases and host seeds of one environment's episodes."""
    return np.random.default_rng((_GENERATOR_TAG, seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class CasePool(CaseList):
    """Cases of a source and host seeds to train on: finite, so that each baseline curve is computed once.

    A case that was drawn twice is twice as likely.
    """

    host_seeds: int

    @staticmethod
    def drawn(source: CaseSource, *, size: int, host_seeds: int, seed: int) -> "CasePool":
        """`size` cases drawn from a source."""
        if size < 1 or host_seeds < 1:
            raise ValueError(f"a pool needs at least one case and one host seed, not {size} and {host_seeds}")
        rng = np.random.default_rng((0x9001, seed))
        cases = tuple(source.draw(rng) for _ in range(size))
        return CasePool(cases, source.name, host_seeds=host_seeds)

    def pairs(self) -> Iterator[tuple[str, int]]:
        """Every (case, host seed) that can be met; all cases before the next host seed."""
        return ((case, seed) for seed in range(self.host_seeds) for case in dict.fromkeys(self.cases))
