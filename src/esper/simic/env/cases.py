"""Where the task instance of each episode comes from, and what is remembered of an env between steps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from esper.leyline import BaselineCurve, LifecycleOp


class CaseSource(Protocol):
    """Draws task instances, as the text that `Beginning` takes."""

    @property
    def name(self) -> str:
        """Name for messages."""

    def draw(self, rng: np.random.Generator) -> str:
        """One instance, as text."""


@dataclass(frozen=True, slots=True)
class CaseList:
    """Some given cases, each as likely as the others."""

    cases: tuple[str, ...]
    name: str = "cases"

    def __post_init__(self) -> None:
        if not self.cases:
            raise ValueError(f"{self.name} has no instance: name at least one")

    def draw(self, rng: np.random.Generator) -> str:
        """One of the cases."""
        return self.cases[int(rng.integers(len(self.cases)))]


TRAINING_HOSTS = 1_000_000
"""Host seeds of a pool are below this; what selects and judges begins here."""


class HostSource(Protocol):
    """Draws the hosts of episodes."""

    def draw_host(self, rng: np.random.Generator) -> tuple[str, int]:
        """(case, host seed)."""


@dataclass(frozen=True, slots=True)
class AnyHost:
    """Cases of a source, each with any host seed below `host_seeds`."""

    cases: CaseSource
    host_seeds: int

    def draw_host(self, rng: np.random.Generator) -> tuple[str, int]:
        """A case, and a host seed that does not depend on it."""
        return self.cases.draw(rng), int(rng.integers(self.host_seeds))


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
    """Cases of a source, each with host seeds of its own: finite, so that each baseline curve is computed once.

    A case that was drawn twice is twice as likely. One that was first drawn at place n has the host seeds from
    n x `host_seeds` on: no initialisation and no order of minibatches stands for all training. All are below
    TRAINING_HOSTS; where more are asked for, as by the preset `toy`, they begin again at 0 and cases share them.
    """

    host_seeds: int
    """How many each case has."""

    @staticmethod
    def drawn(source: CaseSource, *, size: int, host_seeds: int, seed: int) -> "CasePool":
        """`size` cases drawn from a source."""
        if size < 1 or not 1 <= host_seeds <= TRAINING_HOSTS:
            raise ValueError(
                f"a pool needs at least one instance and 1..{TRAINING_HOSTS} host seeds, not {size} and {host_seeds}"
            )
        rng = np.random.default_rng((0x9001, seed))
        cases = tuple(source.draw(rng) for _ in range(size))
        return CasePool(cases, source.name, host_seeds=host_seeds)

    def draw_host(self, rng: np.random.Generator) -> tuple[str, int]:
        """A case, and one of its host seeds."""
        case = self.draw(rng)
        return case, self._host_seed(self.cases.index(case), int(rng.integers(self.host_seeds)))

    def pairs(self) -> Iterator[tuple[str, int]]:
        """Every (case, host seed) that can be met; all cases before the next host seed of each."""
        first = dict(reversed([(case, place) for place, case in enumerate(self.cases)]))
        places = sorted(first.values())
        for number in range(self.host_seeds):
            for place in places:
                yield self.cases[place], self._host_seed(place, number)

    def _host_seed(self, place: int, number: int) -> int:
        """The `number`-th of the case that was first drawn at `place`."""
        return (place * self.host_seeds + number) % TRAINING_HOSTS


@dataclass(slots=True)
class Episode:
    """One running episode."""

    number: int
    """Episodes that this env has finished since it was seeded."""
    case: str
    host_seed: int
    baseline: BaselineCurve | None
    """None when the reward does not subtract one."""
    epoch: int = 0
    """Epochs trained."""
    operations: list[int] = field(default_factory=lambda: [0] * len(LifecycleOp))
    illegal_actions: int = 0
    episode_return: float = 0.0

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> "Episode":
        """The inverse of `asdict`."""
        baseline = state["baseline"]
        return Episode(
            **{
                **state,
                "baseline": None if baseline is None else BaselineCurve(**baseline),
                "operations": list(state["operations"]),  # to count in, while the saved state stays as it is
            }
        )


@dataclass(slots=True)
class ParallelEnvState:
    """One of the envs that are stepped together: what draws its episodes, and the one that runs."""

    generator: np.random.Generator | None = None
    """None until the env is seeded."""
    begun: int = 0
    """Episodes that have begun since then."""
    episode: Episode | None = None
    """None before the first."""

    def begin(self, case: str, host_seed: int, baseline: BaselineCurve | None) -> None:
        """The next episode takes the place of the running one."""
        self.episode = Episode(self.begun, case, host_seed, baseline)
        self.begun += 1

    def state_dict(self) -> dict[str, object]:
        """Plain data, in the middle of an episode."""
        rng = self.generator
        episode = self.episode
        if episode is not None and episode.baseline is not None:
            episode = replace(episode, baseline=episode.baseline.whole())
        return {
            "generator": None if rng is None else dict(rng.bit_generator.state),
            "episode": None if episode is None else asdict(episode),
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state_dict` was taken."""
        generator, episode = state["generator"], state["episode"]
        assert isinstance(episode, Mapping)
        if isinstance(generator, Mapping):
            self.generator = case_generator(0)
            self.generator.bit_generator.state = dict(generator)
        self.episode = Episode.from_state(episode)
        self.begun = self.episode.number + 1
