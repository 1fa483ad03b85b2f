"""The headroom gate of `adapt`: is there anything to decide in frozen networks, and which signals say what?

An oracle plays, for each target, the best of: nothing, one seed of one of six kinds in one of four places, a few of
them together (`adapt_choices.py`), or an even spread; chosen by validation on other hosts than it is scored on, by
test. Against it: every rival of `esper.benchmark.rivals` (the head alone, fine-tuning, LoRA everywhere;
learning rates tuned on other draws), the even spread, a seed in a random place, each place, and for all targets the
one seed, or the seeds together, that are best. What is compared is test accuracy minus rent for added parameters. The
gate is open where the oracle is ahead of the best of them by more than two standard errors over targets.

Beside it: how the signals of `esper.kasmina.birth_signals`, measured before anything is trained and after the head
was, rank the (slot, blueprint) pairs of a target, against what a seed there really gained (Spearman, mean by kind of
shift). All on training draws.

    python benchmarks/study_adapt.py --device cuda --workers 15 --seconds 180

plays up to 48 targets on 2 hosts each. On one core, to see it run: `--instances 1 --tune 1 --epochs 6`. After
`--seconds` nothing new is begun, and the tables are of the targets that every arm has played.
"""

import argparse
import json
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from adapt_choices import KINDS, PLACES, SINGLES, TOGETHER
from adapt_signals import SIGNALS, Pair, signals_of
from esper.benchmark.rivals import AdaptRival, adapt_rivals
from esper.leyline import DecisionSettings, HostProtocol
from esper.leyline.utility import utility
from esper.simic.env.making import make_world, use_one_thread
from esper.simic.evaluation import RulePlayer, judge_cases
from esper.simic.reward import RewardConfig
from esper.tamiyo.rules import RulePolicy, SchedulePolicy, rule_policy
from esper.tolaria.data.targets import SHIFTS
from esper.tolaria.engine.host import TrainedHost
from esper.tolaria.final_report import test_score
from esper.tolaria.tasks import Instance, suite, task
from harness import RESULTS, Row, mean_and_error, report
from spreading import Job, Spread

NEVER, SPREAD = "head alone", "even spread (frozen_spread)"
SCHEDULES = SINGLES | TOGETHER
CHOICES = (NEVER, SPREAD, *SCHEDULES)
"""What the oracle chooses from."""
SCORED_DRAWS, TUNING_DRAWS = 30_261, 30_262
"""Rng seeds of the targets that are scored, and of those that rivals are tuned on."""
FIRST_HOST = 9000


# Playing


@dataclass(frozen=True, slots=True)
class Life:
    """What one life was worth."""

    arm: str
    case: str
    seed: int
    validation: float
    """Utility on all validation samples, by which is chosen; 0 for a host that the governor took away."""
    test: float
    """Utility on test samples, by which is scored."""
    trained: int
    """Parameters that were trained."""
    pairs: tuple[Pair, ...] = ()
    """Signals of each (slot, blueprint), where they were measured: on the head alone."""
    condemned: bool = False


@dataclass(slots=True)
class Look:
    """What is seen of the final model of a host."""

    accuracy: float
    parameters: int
    trained: int
    pairs: tuple[Pair, ...] = field(default=())


def play(job: Job) -> list[Life]:
    """One life for each host."""
    setting = make_world("adapt", len(job.hosts), device=job.device, horizon=job.epochs)
    rival = rivals().get(job.arm)
    wanted = [(case if rival is None else rival.case(case), seed) for case, seed in job.hosts]
    reward = RewardConfig(rent=setting.rent, counts=setting.counts, control_variate=False)
    player = RulePlayer(lambda _: policy_of(job.arm))
    episodes = setting.episodes(reward=reward, on_illegal="noop", decisions=DecisionSettings())
    signalled = job.arm == NEVER

    def look(host: HostProtocol) -> Look:
        assert isinstance(host, TrainedHost)
        model = host.model
        trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
        accuracy = test_score(model, host.data.source).accuracy
        return Look(
            accuracy,
            host.host_parameters + host.added_parameters,
            trained,
            signals_of(host) if signalled else (),
        )

    lives = []
    for (case, seed), one in zip(job.hosts, judge_cases(player, episodes, wanted, look=look), strict=True):
        seen, summary = one.seen, one.summary
        if seen is None:
            lives.append(Life(job.arm, case, seed, 0.0, 0.0, 0, condemned=True))
            continue
        bare = float(bare_parameters(case))
        assert summary.validation_accuracy is not None
        assert summary.observed_accuracy is not None
        both = (summary.validation_accuracy + summary.observed_accuracy) / 2
        worths = [
            utility(score, setting.rent, seen.parameters - bare, bare) for score in (both, seen.accuracy)
        ]
        lives.append(Life(job.arm, case, seed, worths[0], worths[1], seen.trained, seen.pairs))
    return lives


def policy_of(arm: str) -> RulePolicy:
    """What decides; rivals grow nothing."""
    if arm == SPREAD:
        return rule_policy("frozen_spread")
    if arm in SCHEDULES:
        return SchedulePolicy(SCHEDULES[arm])
    return rule_policy("wait")


@cache
def bare_parameters(case: str) -> int:
    """Of the host that the instance itself has."""
    instance = Instance.parse(case)
    host = instance.row.host(instance.load())
    return sum(parameter.numel() for parameter in host.parameters())


@cache
def rivals() -> dict[str, AdaptRival]:
    return {str(rival): rival for rival in adapt_rivals()}


def first_alike(case: str) -> dict[str, str]:
    """arm -> the first one that is the same on this target: what need not be played twice."""
    firsts, alike = {case: NEVER}, {arm: arm for arm in CHOICES}
    for arm, rival in rivals().items():
        alike[arm] = firsts.setdefault(rival.case(case), arm)
    return alike


# Tables


Lives = dict[tuple[str, str, int], Life]
"""(arm, case, seed) -> its life"""


def by_key(lives: Iterable[Life]) -> Lives:
    """With what arms that are alike would have repeated."""
    played = {(life.arm, life.case, life.seed): life for life in lives}
    copies = {
        (arm, case, seed): played[first, case, seed]
        for case, seed in {(life.case, life.seed) for life in played.values()}
        for arm, first in first_alike(case).items()
        if (first, case, seed) in played
    }
    return copies | played


def tuned(lives: Lives, draws: Sequence[tuple[str, int]]) -> list[str]:
    """Of each rival the setting with the best mean validation on the draws that all its settings have played."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for arm, rival in rivals().items():
        by_name[rival.name].append(arm)
    chosen = []
    for arms in by_name.values():
        common = [host for host in draws if all((arm, *host) in lives for arm in arms)]
        means = [
            statistics.fmean(lives[(arm, *host)].validation for host in common) if common else 0.0
            for arm in arms
        ]
        chosen.append(arms[means.index(max(means))])
    return chosen


@dataclass(frozen=True, slots=True)
class Gate:
    """Every arm over the head alone, and the oracle over the best of the others, by target."""

    gains: dict[str, list[float]]
    """arm -> its mean test utility minus the head's, one entry a target"""
    trained: dict[str, list[float]]
    """arm -> parameters that it trained, one entry a target"""
    chosen: Counter[str]
    """How often the oracle chose each."""
    cases: list[str]

    @property
    def best_rival(self) -> str:
        """The best on average over these very targets, which is generous to it."""
        others = (arm for arm in self.gains if arm != "oracle")
        return max(others, key=lambda arm: statistics.fmean(self.gains[arm]))

    def headroom(self, places: Sequence[int] | None = None) -> list[float]:
        """The oracle minus the best of the others, of these targets (all by default)."""
        pairs = list(zip(self.gains["oracle"], self.gains[self.best_rival], strict=True))
        return [pairs[place][0] - pairs[place][1] for place in places or range(len(pairs))]


def judge(lives: Lives, cases: Sequence[str], seeds: Sequence[int], arms: Sequence[str]) -> Gate:
    """Of the targets that every arm has played on every host."""
    every = [*CHOICES, *arms]
    whole = [case for case in cases if all((arm, case, seed) in lives for arm in every for seed in seeds)]
    if not whole:
        raise SystemExit("no target was played by every arm: give it more --seconds, or fewer --instances")
    gains: dict[str, list[float]] = defaultdict(list)
    trained: dict[str, list[float]] = defaultdict(list)
    chosen: Counter[str] = Counter()

    def worth(arm: str) -> float:
        return sum(lives[arm, case, seed].test for case in whole for seed in seeds)

    groups = {**{arm: (arm,) for arm in (SPREAD, *arms)}, "random place": tuple(SINGLES)}
    groups |= {
        f"any kind @{place}": tuple(arm for arm in SINGLES if arm.endswith(f"@{place}")) for place in PLACES
    }
    for what, some in (("one seed", SINGLES), ("seeds together", TOGETHER)):
        fixed = max(some, key=worth)
        groups[f"{what} for all: {fixed}"] = (fixed,)
    for case in whole:
        head = statistics.fmean(lives[NEVER, case, seed].test for seed in seeds)
        best = [_best_elsewhere(lives, case, seed, seeds) for seed in seeds]
        chosen.update(best)
        picked = [lives[arm, case, seed] for arm, seed in zip(best, seeds, strict=True)]
        for arm, found in {
            "oracle": picked,
            NEVER: [lives[NEVER, case, seed] for seed in seeds],
            **{
                name: [lives[arm, case, seed] for arm in some for seed in seeds]
                for name, some in groups.items()
            },
        }.items():
            gains[arm].append(statistics.fmean(life.test for life in found) - head)
            trained[arm].append(statistics.fmean(life.trained for life in found))
    return Gate(dict(gains), dict(trained), chosen, whole)


def _best_elsewhere(lives: Lives, case: str, seed: int, seeds: Sequence[int]) -> str:
    """The choice with the best validation on the other hosts of the target."""
    others = [other for other in seeds if other != seed]
    return max(
        CHOICES, key=lambda arm: statistics.fmean(lives[arm, case, other].validation for other in others)
    )


def group_of(case: str) -> str:
    """What the target's shift changes."""
    shift = str(task("adapt").complete(dict(Instance.parse(case).parameters))["shift"])
    return SHIFTS[shift].group


def correlations(lives: Lives, cases: Sequence[str], seeds: Sequence[int]) -> list[tuple[str, str, float]]:
    """(group of shift, signal, Spearman's rank correlation with the gains over pairs), for each target."""
    found = []
    for case in cases:
        gains = pair_gains(lives, case, seeds)
        for signal in SIGNALS:
            values: dict[tuple[str, str], list[float]] = defaultdict(list)
            for seed in seeds:
                for pair in lives[NEVER, case, seed].pairs:
                    values[pair.slot, pair.blueprint].append(pair.signals[signal])
            both = [(statistics.fmean(some), gains[pair]) for pair, some in values.items() if pair in gains]
            if len({value for value, _ in both}) > 1 and len({gain for _, gain in both}) > 1:
                found.append((group_of(case), signal, float(spearmanr(*zip(*both, strict=True)).statistic)))
    return found


def pair_gains(lives: Lives, case: str, seeds: Sequence[int]) -> Mapping[tuple[str, str], float]:
    """(slot, blueprint) -> what a seed there gained over the head alone, on test, mean over hosts."""
    slots = dict.fromkeys(pair.slot for pair in lives[NEVER, case, seeds[0]].pairs)
    offered = {pair.blueprint for pair in lives[NEVER, case, seeds[0]].pairs}
    names, gains = list(slots), {}
    for arm in SINGLES:
        kind, _, place = arm.partition("@")
        slot = names[-1] if place == "last" else names[int(place)]
        blueprint = next((name for name in KINDS[kind].split("|") if name in offered), None)
        if blueprint is not None:
            gains[slot, blueprint] = statistics.fmean(
                lives[arm, case, seed].test - lives[NEVER, case, seed].test for seed in seeds
            )
    return gains


def arm_rows(gate: Gate) -> list[Row]:
    rows: list[Row] = []
    for arm, gains in sorted(gate.gains.items(), key=lambda item: -statistics.fmean(item[1])):
        mean, error = mean_and_error(gains)
        rows.append(
            {
                "arm": arm,
                "points over the head alone": f"{100 * mean:+.2f}",
                "standard error": f"{100 * error:.2f}",
                "parameters trained": f"{statistics.fmean(gate.trained[arm]):,.0f}",
            }
        )
    return rows


def group_rows(gate: Gate) -> list[Row]:
    """By what the shift changes; all first."""
    groups = [group_of(case) for case in gate.cases]
    rows: list[Row] = []
    for group in ("all", *dict.fromkeys(groups)):
        places = [place for place, own in enumerate(groups) if group in ("all", own)]
        mean, error = mean_and_error(gate.headroom(places))
        ratio = mean / error if error else math.nan
        gains = {arm: statistics.fmean(some[place] for place in places) for arm, some in gate.gains.items()}
        own = max((arm for arm in gains if arm != "oracle"), key=lambda arm: gains[arm])
        rows.append(
            {
                "shifts of": group,
                "targets": len(places),
                "oracle": f"{100 * gains['oracle']:+.2f}",
                gate.best_rival: f"{100 * gains[gate.best_rival]:+.2f}",
                "oracle minus it": f"{100 * mean:+.2f}",
                "standard error": f"{100 * error:.2f}",
                "gate": "open" if ratio > 2.0 else "closed",
                "best of the others here": f"{own} {100 * gains[own]:+.2f}",
            }
        )
    return rows


def signal_rows(found: Sequence[tuple[str, str, float]]) -> list[Row]:
    rows: list[Row] = []
    for group in ("all", *dict.fromkeys(own for own, _, _ in found)):
        row: dict[str, str | float | int] = {"shifts of": group}
        for signal in SIGNALS:
            values = [value for own, name, value in found if name == signal and group in ("all", own)]
            row["targets"] = max(len(values), int(row.get("targets", 0)))
            if values:
                mean, error = mean_and_error(values)
                row[signal] = f"{mean:+.2f} ± {error:.2f}"
            else:
                row[signal] = "-"
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0 is this one (%(default)s)")
    parser.add_argument("--instances", type=int, default=48, help="targets that are scored (%(default)s)")
    parser.add_argument("--hosts", type=int, default=2, help="hosts of each, at least 2 (%(default)s)")
    parser.add_argument("--tune", type=int, default=8, help="targets that rivals are tuned on (%(default)s)")
    parser.add_argument("--epochs", type=int, default=task("adapt").epochs, help="of a life (%(default)s)")
    parser.add_argument("--group", type=int, default=3, help="targets played side by side (%(default)s)")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="folder of the tables as JSON (%(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing new after these")
    chosen = parser.parse_args()
    if chosen.hosts < 2:
        parser.error(
            f"--hosts is {chosen.hosts}; expected at least 2: what is scored on one is chosen on others"
        )
    use_one_thread()
    began = time.monotonic()
    seeds = range(FIRST_HOST, FIRST_HOST + chosen.hosts)
    cases, tuning = drawn(SCORED_DRAWS, chosen.instances), drawn(TUNING_DRAWS, chosen.tune)
    groups = [cases[start : start + chosen.group] for start in range(0, len(cases), chosen.group)]

    def jobs(arms: Iterable[str], some: Sequence[str], hosts: Sequence[int]) -> list[Job]:
        wanted: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for case in some:
            alike = first_alike(case)
            for arm in dict.fromkeys(alike[arm] for arm in arms):
                wanted[arm] += [(case, seed) for seed in hosts]
        return [Job(arm, tuple(pairs), chosen.device, chosen.epochs) for arm, pairs in wanted.items()]

    with Spread(play, chosen.workers, chosen.seconds) as spread:
        draws = [(case, seed) for case in tuning for seed in seeds[:1]]
        tried = spread.results(jobs(rivals(), tuning, seeds[:1]), "tuning rivals")
        arms = tuned(by_key(tried), draws)
        wanted = [job for group in groups for job in jobs([*CHOICES, *arms], group, seeds)]
        lives = spread.results(wanted, f"{len(cases)} targets")
    chosen.out.mkdir(parents=True, exist_ok=True)
    everything = {"lives": [asdict(life) for life in lives], "tuning": [asdict(life) for life in tried]}
    (chosen.out / "adapt_lives.json").write_text(json.dumps(everything) + "\n")
    known = by_key(lives)
    gate = judge(known, cases, seeds, arms)
    show(gate, chosen.out, f"on {chosen.device} in {time.monotonic() - began:.0f} s")
    found = correlations(known, gate.cases, seeds)
    if found:
        title = "Spearman's rank correlation of each signal with the gains of (slot, blueprint) pairs"
        report("adapt_signals", title, signal_rows(found), out=chosen.out / "adapt_signals.json")
    condemned = Counter(life.arm for life in lives if life.condemned)
    print(
        f"\nHosts that the governor took away: {sum(condemned.values())} of {len(lives)} {dict(condemned) or ''}"
    )
    if spread.left_out:
        print(f"The time was up: {spread.left_out} jobs were not begun")


def show(gate: Gate, out: Path, where: str) -> None:
    """Print the tables of the gate, and write them."""
    title = "Test accuracy minus rent, over the head alone; each rival as tuned on other draws"
    report("adapt_arms", title, arm_rows(gate), out=out / "adapt_arms.json")
    print("\nWhat the oracle chose: " + ", ".join(f"{arm} x{n}" for arm, n in gate.chosen.most_common(12)))
    title = f"The headroom gate of adapt, {where}"
    report("adapt_gate", title, group_rows(gate), out=out / "adapt_gate.json")


def drawn(seed: int, count: int) -> list[str]:
    """So many targets of the suite's distribution."""
    rng = np.random.default_rng(seed)
    return [str(suite("adapt").draw(rng)) for _ in range(count)]


if __name__ == "__main__":
    main()
