"""One of our tasks grown once, from the first epoch to the settled model, under any decider."""

from collections.abc import Callable
from dataclasses import dataclass

from esper.leyline import ActionSpec, EpochReport
from esper.simic.env.episodes import Episodes
from esper.simic.env.making import make_world
from esper.simic.env.summary import EpisodeSummary
from esper.simic.held_out import accuracy_on_test
from esper.simic.rewards import RewardConfig
from esper.tamiyo.deciders import Decider, LearnedDecider
from esper.tolaria.host import TrainedHost


@dataclass(frozen=True, slots=True)
class GrownEpoch:
    """What was decided before an epoch, and what the epoch measured."""

    action: ActionSpec
    probability: float | None
    report: EpochReport
    control_accuracy: float | None
    """Of the same host without growth, after the same epoch."""
    added_parameters: int


@dataclass(frozen=True, slots=True)
class GrownTask:
    """The end of it. What a condemned host would have scored is None."""

    summary: EpisodeSummary
    host: TrainedHost
    test_accuracy: float | None
    host_parameters: int


def grow_case(
    case: str,
    who: Decider,
    *,
    seed: int = 0,
    epochs: int | None = None,
    device: str = "cpu",
    parameter_budget: int | None = None,
    tell: Callable[[GrownEpoch], None] = lambda _: None,
) -> GrownTask:
    """Grow the host of a task instance, as in the environment; the same host without growth is trained too, once."""
    setting = make_world(case, 1, device=device, horizon=epochs)
    paid = who.controller.card.reward.model_dump() if isinstance(who, LearnedDecider) else {}
    episodes = Episodes(
        setting.world,
        setting.space,
        setting.cases,
        num_envs=1,
        horizon=setting.horizon,
        reward=RewardConfig(**{**paid, "rent": setting.rent, "control_variate": True}),
        controls=setting.controls,
        on_illegal="raise",
    )
    episodes.seed(0, 0)
    episodes.begin(0, case=case, host_seed=seed)
    observer = who.observer(episodes.host(0), horizon=setting.horizon, parameter_budget=parameter_budget)
    reward = 0.0
    for _ in range(setting.horizon):
        choice = who.decide(observer, episodes.host(0), reward=reward)
        result = episodes.step(episodes.encode(0, choice.action)[None])
        host = episodes.host(0)
        observer.record(0, host, choice.action.op)
        reward = float(result.components.total[0])
        control = episodes.episode(0).control
        known = None if control is None else control.accuracies[episodes.episode(0).epoch]
        tell(GrownEpoch(choice.action, choice.probability, host.report, known, host.added_parameters))
        if result.terminated[0]:
            break
    host = episodes.host(0)
    assert isinstance(host, TrainedHost)
    summary = episodes.summary(0, lost=False)
    tested = None if summary.rolled_back is not None else accuracy_on_test(host, case)
    return GrownTask(summary, host, tested, host.host_parameters)
