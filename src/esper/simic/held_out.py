"""The final score: policies on cases, permutations and host seeds that nothing was trained or selected on.

Every policy plays the same (case, host seed) pairs, so differences are paired. Only here the test split is opened, on
the settled model of each episode.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from esper.leyline import ActionSpec, DecisionSettings, EpisodeFinished, EpochReport, HostProtocol
from esper.leyline.errors import EsperError
from esper.simic.building import build, evaluation_episodes
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env import make_world
from esper.simic.env.episodes import Episodes
from esper.simic.evaluation import Judged, LearnedPlayer, Player, RulePlayer, judge_cases, utilities
from esper.simic.reward import Floats, RewardConfig
from esper.statistics import mean_interval
from esper.tamiyo.actions import GrowthSpace
from esper.tamiyo.controller import Controller, HeldOutScore
from esper.tamiyo.deciders import Decider, LearnedDecider
from esper.tamiyo.rules import rule_policy
from esper.tolaria import final_report
from esper.tolaria.engine.host import TrainedHost
from esper.tolaria.tasks import Instance, suite, suite_names
from esper.tolaria.worlds.baselines import BaselineCurves
from esper.tolaria.worlds.toy.instance import TOY_SUITES, TRAINING_DRAWS, toy_instance

LEARNED = "learned"
COMPARED = ("wait", "random", "probe_and_keep")
"""Rules that a controller is compared with."""
_HOST_SEEDS = 2_000_000
"""Host seeds from here on are neither trained nor selected on."""
ARENA = 8
"""Episodes that are played side by side."""


SCORED_TOO: Mapping[str, tuple[str, ...]] = {"cpu": ("digits",)}
"""suite -> cases that a benchmark scores beside its held-out list: a task that its draws never are."""


BASELINES = "baselines"
HeldOutProgress = Callable[[str, int, int], None]
"""Called with what is at work (a policy, or `baselines`) and how many of how many episodes are played, or trained."""


def _silent(part: str, done: int, total: int) -> None:
    del part, done, total


class UnfitCaseError(EsperError, ValueError):
    """A controller cannot be judged on hosts whose slots or blueprints it does not know."""


def held_out_cases(name: str, episodes: int, seed: int) -> list[tuple[str, int]]:
    """(case, host seed): the suite's frozen list, over and over with new host seeds."""
    if name in TOY_SUITES:
        cases = TOY_SUITES[name].held_out(episodes)
    elif name in suite_names():
        cases = tuple(str(case) for case in suite(name).held_out)
    else:
        cases = (name,)
    first = _HOST_SEEDS + 10_000 * seed
    return [(cases[index % len(cases)], first + index) for index in range(episodes)]


def is_held_out(name: str, case: str) -> bool:
    """Whether a case is one that a suite's controllers are judged on, and never trained on.

    A task instance in a suite's place has nothing that is held out: it is what its controllers train on.
    """
    if name in TOY_SUITES:
        return toy_instance(case).draw >= TRAINING_DRAWS
    if name not in suite_names():
        return False
    instance = Instance.parse(case)
    if str(instance) == name:  # digits
        return False
    return instance in suite(name).held_out or str(instance) in SCORED_TOO.get(name, ())


def evaluate_checkpoint(
    config: TrainingConfig,
    checkpoint: Path,
    *,
    name: str | None = None,
    episodes: int = 24,
    seed: int = 0,
    policies: Sequence[str] = COMPARED,
    progress: HeldOutProgress = _silent,
    scored: Callable[[HeldOutScore], None] = lambda _: None,
) -> list[HeldOutScore]:
    """The controller of a checkpoint, and rules, on what was held out of suite `name` (its own by default).

    progress  called before each policy plays, and after every epoch
    scored    called with each policy once it has played
    """
    training = build(replace(config, workers=0, cluster=None, cluster_round_deadline=None))
    training.agent.load(checkpoint)
    if name is not None:
        _require_fit(training.envs.space, config, name)
    wanted = held_out_cases(name or config.suite, episodes, seed)
    arena = evaluation_episodes(training, config, min(len(wanted), ARENA), suite=name)
    if isinstance(arena.baselines, BaselineCurves):
        count = partial(progress, BASELINES)
        arena.baselines.prepare(wanted, workers=max(config.workers, 1), progress=count)
    learned = {LEARNED: LearnedPlayer(training.agent.actor)}
    return _compare(learned, arena, wanted, rules=policies, seed=seed, progress=progress, scored=scored)


def evaluate_controller(
    controller: Controller,
    *,
    name: str | None = None,
    episodes: int = 24,
    seed: int = 0,
    device: str = "cpu",
    policies: Sequence[str] = COMPARED,
    progress: HeldOutProgress = _silent,
    scored: Callable[[HeldOutScore], None] = lambda _: None,
) -> list[HeldOutScore]:
    """The same for a controller that was saved: its weights serve any suite, whatever its hosts are offered."""
    card = controller.card
    wanted = held_out_cases(name or card.training.suite, episodes, seed)
    setting = make_world(name or card.training.suite, min(len(wanted), ARENA), device=device)
    arena = setting.episodes(
        reward=RewardConfig(**{**card.reward.model_dump(), "rent": setting.rent, "counts": setting.counts}),
        shown_reward=RewardConfig(**card.reward.model_dump()),
        on_illegal="noop",
        decisions=card.decisions,
    )
    learned = {card.name: LearnedPlayer(partial(controller.actor, setting.space))}
    return _compare(learned, arena, wanted, rules=policies, seed=seed, progress=progress, scored=scored)


def _compare(
    learned: Mapping[str, Player],
    arena: Episodes,
    wanted: Sequence[tuple[str, int]],
    *,
    rules: Sequence[str],
    seed: int,
    progress: HeldOutProgress,
    scored: Callable[[HeldOutScore], None] = lambda _: None,
) -> list[HeldOutScore]:
    """Every policy on the same (case, host seed), waiting first: gains are over it."""
    players: dict[str, Player] = {"wait": RulePlayer(lambda _: rule_policy("wait")), **learned}
    rng = np.random.default_rng(seed)  # one for all episodes of the rule random, so that none repeats another
    for rule in rules:
        players.setdefault(rule, RulePlayer(lambda _, rule=rule: rule_policy(rule, rng=rng)))  # type: ignore[misc]
    scores, waited, episodes = list[HeldOutScore](), None, len(wanted) * len(players)
    for place, (policy, player) in enumerate(players.items()):

        def tell(done: int, total: int, place: int = place, policy: str = policy) -> None:
            progress(policy, (place * total + done) * len(wanted) // total, episodes)

        tell(0, 1)
        judged = judge_cases(player, arena, wanted, look=accuracy_on_test, progress=tell)
        worth = np.array(utilities((row.summary for row in judged), arena.reward.family))
        waited = worth if waited is None else waited
        scores.append(_score(policy, judged, worth, waited))
        scored(scores[-1])
    return scores


def _require_fit(space: GrowthSpace, config: TrainingConfig, name: str) -> None:
    """Raise unless every host of the other suite has a place in the controller's space."""
    theirs = make_world(name, 1, device=config.device).space
    misfit = space.misfit(theirs.slot_config, theirs.blueprints)
    if misfit is not None:
        exported = ". Exported (`esper controllers export RUN --to FOLDER`) it serves any suite"
        raise UnfitCaseError(
            f"a run's policy trained on {config.suite} cannot be judged on {name}: {misfit}"
            f"{'' if config.normalize_observations else exported}"
        )


def accuracy_on_test(host: HostProtocol) -> float | None:
    """Test accuracy of a host that is finished, 0..1; None where there is no test split (the toy)."""
    if not isinstance(host, TrainedHost):
        return None
    return final_report.test_score(host.model, host.data.source).accuracy


def _score(policy: str, rows: list[Judged[float | None]], worth: Floats, waited: Floats) -> HeldOutScore:
    differences = worth - waited
    low, high = mean_interval(differences) or (None, None)
    tested = [row.seen for row in rows]
    added = [row.summary.added_parameters for row in rows if row.summary.added_parameters is not None]
    return HeldOutScore(
        policy=policy,
        episodes=len(rows),
        utility=float(worth.mean()),
        gain=float(differences.mean()),
        gain_low=low,
        gain_high=high,
        test_accuracy=None if None in tested else float(np.mean([one for one in tested if one is not None])),
        added_parameters=float(np.mean(added)) if added else None,
    )


# One task grown once, from the first epoch to the settled model, under any decider.


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
    """A finished episode and its final model. What a condemned host would have scored is None."""

    summary: EpisodeFinished
    host: TrainedHost
    test_accuracy: float | None
    host_parameters: int


def grow_case(
    case: str,
    decider: Decider,
    *,
    seed: int = 0,
    epochs: int | None = None,
    device: str = "cpu",
    parameter_budget: int | None = None,
    progress: Callable[[GrownEpoch], None] = lambda _: None,
) -> GrownTask:
    """Grow the host of a task instance, as in the environment; its baseline is trained too, once.

    progress  called after every epoch
    """
    setting = make_world(case, 1, device=device, horizon=epochs)
    shown = RewardConfig(rent=setting.rent, counts=setting.counts)
    if isinstance(decider, LearnedDecider):
        shown = RewardConfig(**decider.controller.card.reward.model_dump())
    reward = replace(shown, rent=setting.rent, counts=setting.counts, control_variate=True)
    retiring = DecisionSettings(retire=decider.settings.retire)
    episodes = setting.episodes(reward=reward, shown_reward=shown, decisions=retiring)
    episodes.seed(0, 0)
    episodes.begin(0, case=case, host_seed=seed)
    observer = decider.observer(episodes.host(0), horizon=setting.horizon, parameter_budget=parameter_budget)
    last = 0.0
    for _ in range(setting.horizon):
        choice = decider.decide(observer, episodes.host(0), reward=last)
        result = episodes.step(episodes.encode(0, choice.action)[None])
        host = episodes.host(0)
        observer.record(0, host, choice.action.op)
        last = float(result.shown_rewards[0])
        baseline = episodes.episode(0).baseline
        known = None if baseline is None else baseline.accuracies[episodes.episode(0).epoch]
        progress(GrownEpoch(choice.action, choice.probability, host.report, known, host.added_parameters))
        if result.terminated[0]:
            break
    assert isinstance(host, TrainedHost)
    summary = result.finished[0]
    tested = None if summary.rolled_back is not None else accuracy_on_test(host)
    return GrownTask(summary, host, tested, host.host_parameters)
