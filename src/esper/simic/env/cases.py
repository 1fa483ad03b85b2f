"""Where the task instance of each episode comes from."""

from collections.abc import Sequence
from dataclasses import dataclass
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
