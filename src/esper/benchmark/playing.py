"""Playing a chunk: one arm on the hosts of one instance, from the first epoch to the rows."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from esper.benchmark.arms import WAIT, Arm, Hosts, Staging
from esper.benchmark.controllers import open_controller
from esper.benchmark.metering import EpisodeLog, FlopLedger, MeteredWorld
from esper.benchmark.rows import BenchRow, SeedRow
from esper.leyline import BaselineCurve, DecisionSettings, HostProtocol, Settle
from esper.leyline.utility import Counts, utility
from esper.simic.env.cases import CaseList
from esper.simic.env.episodes import Episodes
from esper.simic.env.making import Setting, make_world
from esper.simic.evaluation import Judged, RulePlayer, judge_cases
from esper.simic.held_out import accuracy_on_test
from esper.simic.offline.dataset import episode_bytes
from esper.simic.offline.recorder import EpisodeRecorder
from esper.simic.offline.recording import Recording
from esper.simic.reward import RewardConfig
from esper.tolaria.engine.host import TrainedHost
from esper.tolaria.final_report import phase_scores
from esper.tolaria.tasks import Instance

_FLOPS = FlopLedger()
"""One for the process, so that each topology is counted once."""


@dataclass(frozen=True, slots=True)
class Product:
    """The final model of an episode."""

    test_accuracy: float | None
    parameters: int
    seeds: tuple[SeedRow, ...]


@dataclass(frozen=True, slots=True)
class EpisodeFile:
    """Recorded episodes of a chunk as a file of a data set, ready to be written."""

    name: str
    """TERMS-EPISODES.safetensors: names that begin alike are of equal terms, and can be learned from together."""
    content: bytes

    @staticmethod
    def of(recording: Recording) -> "EpisodeFile":
        """The file of a recording; episodes that are played again have the same name."""
        played = "\n".join(f"{row.policy} {row.case} {row.host_seed}" for row in recording.rows)
        both = (recording.terms.model_dump_json(), played)
        name = "-".join(hashlib.sha256(text.encode()).hexdigest()[:12] for text in both)
        return EpisodeFile(f"{name}.safetensors", episode_bytes(recording))


@dataclass(frozen=True, slots=True)
class KnownBaselines:
    """Baseline curves from the rows of `wait` (leyline's `Baselines`)."""

    rows: Mapping[tuple[str, int], BenchRow]
    epochs: int

    def curve(self, case: str, seed: int) -> BaselineCurve:
        """Of one host; where the governor ended it, its last values are repeated."""
        row = self.rows[case, seed]
        missing = self.epochs + 1 - len(row.validation_losses)
        accuracies = (*row.validation_accuracies, *row.validation_accuracies[-1:] * missing)
        return BaselineCurve(accuracies, (*row.validation_losses, *row.validation_losses[-1:] * missing))

    def curves(self, wanted: Sequence[tuple[str, int]]) -> list[BaselineCurve]:
        """One for each (case, rng seed of the host)."""
        return [self.curve(case, seed) for case, seed in wanted]


def play_chunk(arm: Arm, hosts: Hosts) -> list[BenchRow]:
    """Play an arm; returns one row per seed, in their order. What would repeat another arm's episode is copied."""
    rows, _ = play_recorded(arm, hosts, record=False)
    return rows


def play_recorded(
    arm: Arm, hosts: Hosts, *, record: bool = True
) -> tuple[list[BenchRow], EpisodeFile | None]:
    """The same, and the episodes to learn from; None where none was played, or the arm does more than act."""
    copied, file = arm.copied(hosts), None
    rows = {seed: replace(row, arm=arm.name, member=hosts.member) for seed, row in copied.items()}
    left = tuple(seed for seed in hosts.seeds if seed not in rows)
    if left:
        played, file = _play(arm, replace(hosts, seeds=left), record=record)
        rows |= {row.seed: arm.settled(hosts, row) for row in played}
    return [rows[seed] for seed in hosts.seeds], file


def _play(arm: Arm, hosts: Hosts, *, record: bool) -> tuple[list[BenchRow], EpisodeFile | None]:
    with ExitStack() as context:
        staging = arm.stage(hosts, context)
        setting = make_world(hosts.suite, len(hosts.seeds), device=hosts.device)
        world = MeteredWorld(setting.world, len(hosts.seeds), _FLOPS)
        episodes = _episodes(world, setting, staging, hosts)
        cases = staging.cases or (hosts.instance,) * len(hosts.seeds)
        wanted = list(zip(cases, hosts.host_seeds, strict=True))
        recorder = None
        if record and staging.only_acts:
            recorder = episodes.watcher = EpisodeRecorder(episodes, policy=_who(arm, hosts))
        began = time.perf_counter()
        judged = judge_cases(
            staging.player, episodes, wanted, look=lambda host: _product(world, host, setting.counts)
        )
        seconds = (time.perf_counter() - began) / len(wanted)
    waited = hosts.known.get((WAIT, 0, hosts.instance))
    bare = waited[0].host_parameters if waited else world.host(0).host_parameters
    rows = [
        _row(arm.name, hosts, seed, one, world.first_log(place), bare=bare, setting=setting, seconds=seconds)
        for place, (seed, one) in enumerate(zip(hosts.seeds, judged, strict=True))
    ]
    recording = None if recorder is None else recorder.take(firsts=len(wanted))
    return rows, None if recording is None else EpisodeFile.of(recording)


def _who(arm: Arm, hosts: Hosts) -> str:
    return arm.name if arm.members == 1 else f"{arm.name} {hosts.member}"


def _episodes(world: MeteredWorld, setting: Setting, staging: Staging, hosts: Hosts) -> Episodes:
    """Horizon and rent are the task's own for every arm; a controller observes what it did in its training."""
    settle: Settle = "worth"
    decisions = DecisionSettings()
    shown = reward = RewardConfig(rent=setting.rent, counts=setting.counts, control_variate=False)
    if staging.controller is not None:
        controller = open_controller(staging.controller, hosts.suite)
        config = controller.config
        shown = config.reward(task_rent=setting.rent, task_counts=controller.counts)
        reward = replace(shown, rent=setting.rent, counts=setting.counts)
        waited = hosts.known[WAIT, 0, hosts.instance]
        rows = {(row.instance, row.host_seed): row for row in waited}
        setting = replace(setting, space=controller.space, baselines=KnownBaselines(rows, setting.horizon))
        settle, decisions = config.settle, config.decisions
    elif isinstance(staging.player, RulePlayer):
        decisions = staging.player.decisions(len(hosts.seeds))
    setting = replace(setting, world=world, cases=CaseList((hosts.instance,)))
    return setting.episodes(
        reward=reward, shown_reward=shown, on_illegal="noop", settle=settle, decisions=decisions
    )


def _product(world: MeteredWorld, host: HostProtocol, counts: Counts) -> Product:
    log, parameters = world.log_of(host), host.host_parameters + host.added_parameters
    tested = _life_on_test(host, log) if counts == "life" else accuracy_on_test(host)
    return Product(tested, parameters, log.seeds(host))


def _life_on_test(host: HostProtocol, log: EpisodeLog) -> float:
    """Test accuracy of the model at the end of each phase that it lived, mean over the epochs."""
    assert isinstance(host, TrainedHost)  # the toy has no lives
    ends = [*log.phase_ends, (host.epoch, host.model)]
    scores = phase_scores([model for _, model in ends], host.data.source)
    epochs = np.diff([0, *(epoch for epoch, _ in ends)])
    return float(np.average([score.accuracy for score in scores], weights=epochs))


def _row(
    arm: str,
    hosts: Hosts,
    seed: int,
    judged: Judged[Product],
    log: EpisodeLog,
    *,
    bare: int,
    setting: Setting,
    seconds: float,
) -> BenchRow:
    summary, product, rent = judged.summary, judged.seen, setting.rent
    added = None if product is None else product.parameters - bare
    accuracy, life_added = summary.validation_accuracy, None
    if setting.counts == "life" and product is not None:
        # the last epoch is the product's: settling came after it
        life_added = float(np.mean([*log.parameters[1:-1], product.parameters])) - bare
    return BenchRow(
        suite=hosts.suite,
        instance=hosts.instance,
        arm=arm,
        member=hosts.member,
        seed=seed,
        host_seed=summary.host_seed,
        test_accuracy=None if product is None else product.test_accuracy,
        validation_accuracy=accuracy,
        utility=_worth(log, accuracy, added if life_added is None else life_added, bare, setting),
        rent=rent,
        host_parameters=bare,
        added_parameters=added,
        training_flops=float(sum(log.epoch_flops)) if log.epoch_flops else None,
        wall_seconds=seconds,
        epochs=summary.epochs,
        decisions=log.decisions,
        rolled_back=summary.rolled_back or ("lost" if summary.lost else None),
        seeds=() if product is None else product.seeds,
        validation_accuracies=tuple(log.validation_accuracies),
        validation_losses=tuple(log.validation_losses),
        train_accuracies=tuple(log.train_accuracies),
        epoch_flops=tuple(map(float, log.epoch_flops)),
        life_added=life_added,
        lives=log.lives,
        epoch_parameters=tuple(each - bare for each in log.parameters),
        parameter_budget=None if log.parameter_budget is None else _budget(hosts.instance, bare),
    )


def _budget(instance: str, bare: int) -> int:
    """Parameters that may be added to the bare host, also where an arm's own host is a wider one."""
    return int((Instance.parse(instance).cap or 0.0) * bare)


def _worth(
    log: EpisodeLog, accuracy: float | None, added: float | None, bare: int, setting: Setting
) -> float | None:
    """The utility on validation of the product, or of the life; None where there is no product."""
    if accuracy is None or added is None:
        return None
    if setting.counts == "life":
        lived = [*log.validation_accuracies[1:-1], accuracy]
        accuracy = float(np.mean([each for each in lived if each is not None]))
    return utility(accuracy, setting.rent, added, bare)
