"""What must be remembered of an env between steps, besides its host and observer."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from esper.leyline import BaselineCurve, LifecycleOp
from esper.simic.env.cases import case_generator


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
