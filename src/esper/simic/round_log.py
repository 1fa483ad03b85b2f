"""What happened in a round, remembered as it happens and told in order when the round is full.

A round that is cut short tells nothing: whoever goes on repeats it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from esper.leyline import NOWHERE, EpisodeFinished, Event, HostEvent, Place
from esper.simic.agent import PPOAgent
from esper.simic.decisions import DecisionLog
from esper.simic.env import GrowthVectorEnv


@dataclass(frozen=True, slots=True)
class _Step:
    happened: tuple[tuple[Place, HostEvent], ...]
    ended: tuple[EpisodeFinished, ...]


class RoundLog:
    """The steps of one round: in each the decisions, what hosts told of what came of them, and what ended.

    decisions     whether they are told, too
    observations  and with each what the policy saw
    """

    def __init__(self, envs: GrowthVectorEnv, *, decisions: bool, observations: bool = False) -> None:
        self._decisions = DecisionLog(envs, observations=observations) if decisions else None
        self._steps: list[_Step] = []

    def before(self) -> None:
        """A step is about to be taken."""
        if self._decisions is not None:
            self._decisions.before()

    def after(
        self,
        places: Sequence[Place],
        accuracies: Sequence[float | None],
        happened: Iterable[tuple[int, HostEvent]],
        ended: Iterable[EpisodeFinished],
    ) -> None:
        """It was taken: where each env was, its accuracy after it, (env, what its host told), and what ended."""
        if self._decisions is not None:
            self._decisions.after(places, accuracies)
        in_order = sorted(happened, key=lambda told: told[0])  # with workers or without, the same
        self._steps.append(_Step(tuple((places[env], event) for env, event in in_order), tuple(ended)))

    def events(self, agent: PPOAgent) -> Iterator[tuple[Event, Place]]:
        """Everything, step by step, with what the agent's full rollout knows of the decisions."""
        decided = iter(()) if self._decisions is None else self._decisions.steps(agent)
        for step in self._steps:
            for decision in next(decided, ()):
                yield decision, NOWHERE  # it knows its place
            for place, event in step.happened:
                yield event, place
            for episode in step.ended:
                yield episode, NOWHERE
