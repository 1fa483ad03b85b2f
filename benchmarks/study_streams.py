"""The headroom gate of streams: is there anything to decide that no rival does?

An oracle knows every change. It plays the best of a set of schedules that grow and give back by the state of the data
(a seed while positions are shuffled, while labels are clean and samples many, renewed at each change, ...), chosen
for each instance on other hosts than it is scored on. Against it: every rival of `esper.benchmark.stream_rivals`,
with settings that were tuned on other draws. What is compared is the life: mean validation accuracy minus rent for
parameter-epochs, under the instance's cap. The gate is open where the oracle is ahead of the best rival by more than
two standard errors over instances; else the suite must be designed anew.

    python benchmarks/study_streams.py --device cuda --workers 14 --seconds 290

plays up to 32 instances on 4 hosts each. On one core, to see it run: `--instances 1 --hosts 2 --tune 1 --epochs 3`.
Hosts train on the device; jobs are spread over processes, which on a GPU share it best under MPS. After `--seconds`
nothing new is begun, and the tables are of the instances that every arm has played.
"""

import argparse
import json
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np

from esper.benchmark.stream_rivals import StreamRival, stream_rivals, wide_cases
from esper.kasmina import GrowingModel
from esper.leyline import DecisionSettings, HostProtocol
from esper.leyline.utility import rent_due
from esper.simic.env.making import make_world, use_one_thread
from esper.simic.evaluation import Player, RulePlayer, judge_cases
from esper.simic.reward import RewardConfig
from esper.tamiyo.rules import SchedulePolicy
from esper.tolaria.tasks import Instance, suite, task
from esper.tolaria.tasks.stream import DataState, phases_of
from harness import RESULTS, Row, mean_and_error, report
from spreading import Job, Spread

SEEDS = (
    ("mixer@0",),
    ("mixer@1",),
    ("mixer@2",),
    ("mixer@0", "mixer@1"),
    ("conv_small@1",),
)
"""What a schedule grows, blueprint@slot."""
SHUFFLED, NOISY, MANY = 0.3, 0.1, 1500
"""From here on positions count as shuffled, labels as noisy, and samples as many."""
WHEN: dict[str, Callable[[DataState], bool]] = {
    "always": lambda _: True,
    "while shuffled": lambda state: state.shuffled >= SHUFFLED,
    "while ordered": lambda state: state.shuffled < SHUFFLED,
    "while many": lambda state: state.samples >= MANY,
    "while shuffled and clean": lambda state: state.shuffled >= SHUFFLED and state.noise < NOISY,
    "while shuffled and many": lambda state: state.shuffled >= SHUFFLED and state.samples >= MANY,
    "renewed": lambda _: True,
}
"""When the seeds are there, by the state of the data; a renewed one is replaced at each change."""
STRATEGIES = ("never", *(f"{'+'.join(seeds)} {when}" for seeds in SEEDS for when in WHEN))
SCORED_DRAWS, TUNING_DRAWS = 20_261, 20_262
"""Rng seeds of the instances that are scored, and of those that rivals are tuned on."""
FIRST_HOST = 9000


# What the oracle plays


def lasting_phases(case: str, epochs: int) -> list[tuple[int, int, DataState]]:
    """(first epoch, end, state) of what holds on; false alarms are no change."""
    instance = Instance.parse(case)
    calm: list[tuple[int, DataState]] = []
    for start, state in phases_of(task("stream").complete(dict(instance.parameters))):
        if start < epochs and not state.alarm and (not calm or calm[-1][1] != state):
            calm.append((start, state))
    ends = [start for start, _ in calm[1:]] + [epochs]
    return [(start, end, state) for (start, state), end in zip(calm, ends, strict=True)]


def schedule_of(strategy: str, case: str, epochs: int) -> str:
    """The strategy as a schedule for this stream; seeds are born an epoch before the data that they are for.

    What the cap has no room for is never grown.
    """
    seeds, _, when = strategy.partition(" ")
    room = int((Instance.parse(case).cap or 0.0) * host_parameters())
    if strategy == "never" or sum(seed_parameters()[seed] for seed in seeds.split("+")) > room:
        return ""
    windows: list[tuple[int, int]] = []
    for start, end, state in lasting_phases(case, epochs):
        if not WHEN[when](state):
            continue
        if windows and windows[-1][1] == start and when != "renewed":
            windows[-1] = windows[-1][0], end
        else:
            windows.append((start, end))
    clauses = []
    for seed in seeds.split("+"):
        slot = seed.partition("@")[2]
        for start, end in windows:
            born = max(start - 1, 0)
            clauses += [f"germinate {seed} t={born}", f"advance {slot} t={born + 1}"]
            if end < epochs:
                clauses.append(f"prune {slot} t={end}")
    return "; ".join(clauses)


@cache
def first_alike(case: str, epochs: int) -> dict[str, str]:
    """strategy -> the first one with the same schedule for this stream: what need not be played twice."""
    schedules = {strategy: schedule_of(strategy, case, epochs) for strategy in STRATEGIES}
    firsts: dict[str, str] = {}
    for strategy, schedule in schedules.items():
        firsts.setdefault(schedule, strategy)
    return {strategy: firsts[schedule] for strategy, schedule in schedules.items()}


@cache
def host_parameters() -> int:
    return _bare_host().host_parameters


@cache
def seed_parameters() -> dict[str, int]:
    """blueprint@slot -> parameters"""
    slots = enumerate(_bare_host().slots.values())
    return {f"{card.name}@{place}": card.parameters for place, slot in slots for card in slot.cards}


@cache
def _bare_host() -> GrowingModel:
    return task("stream").grow(Instance("stream").load(), seed=0)


# Playing


@dataclass(frozen=True, slots=True)
class Life:
    """What one life was worth."""

    arm: str
    case: str
    seed: int
    life: float
    """Mean utility; 0 for a host that the governor took away."""
    condemned: bool


def play(job: Job) -> list[Life]:
    """One life for each host."""
    setting = make_world("stream", len(job.hosts), device=job.device, horizon=job.epochs)
    rival = rivals().get(job.arm)
    cases = [case for case, _ in job.hosts]
    if rival is None:
        texts = [schedule_of(job.arm, case, job.epochs) for case in cases]
        player: Player = RulePlayer(lambda env_idx: SchedulePolicy(texts[env_idx]))
    else:
        player = rival.player()
    decisions = player.decisions(len(cases)) if isinstance(player, RulePlayer) else DecisionSettings()
    reward = RewardConfig(rent=setting.rent, counts=setting.counts, control_variate=False)
    episodes = setting.episodes(reward=reward, on_illegal="noop", decisions=decisions)
    bare = host_parameters()
    with wide_cases(cases, bare) as wide:
        met = wide if rival is not None and rival.wide else cases
        wanted = [(case, seed) for case, (_, seed) in zip(met, job.hosts, strict=True)]
        judged = judge_cases(player, episodes, wanted, look=_parameters)
    lives = []
    for (case, seed), one in zip(job.hosts, judged, strict=True):
        worth = one.summary.utility
        extra = 0.0 if one.seen is None else rent_due(setting.rent, float(one.seen - bare), float(bare))
        lives.append(Life(job.arm, case, seed, 0.0 if worth is None else worth - extra, worth is None))
    return lives


def _parameters(host: HostProtocol) -> int:
    return host.host_parameters


@cache
def rivals() -> dict[str, StreamRival]:
    return {str(rival): rival for rival in stream_rivals()}


# Tables


Lives = dict[tuple[str, str, int], float]
"""(arm, case, seed) -> what the life was worth"""


def by_key(lives: Iterable[Life]) -> Lives:
    return {(life.arm, life.case, life.seed): life.life for life in lives}


def with_copies(lives: Lives, cases: Iterable[str], seeds: Iterable[int], epochs: int) -> Lives:
    """The same with what every strategy would have repeated of another."""
    copies = {
        (strategy, case, seed): lives[first, case, seed]
        for case in cases
        for strategy, first in first_alike(case, epochs).items()
        for seed in seeds
        if (first, case, seed) in lives
    }
    return copies | lives


def tuned(lives: Lives, draws: Sequence[tuple[str, int]]) -> list[str]:
    """Of each rival the setting with the best mean life on the tuning draws that all its settings have played."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for arm, rival in rivals().items():
        by_name[rival.name].append(arm)
    chosen = []
    for arms in by_name.values():
        common = [host for host in draws if all((arm, *host) in lives for arm in arms)]
        means = [statistics.fmean(lives[(arm, *host)] for host in common) if common else 0.0 for arm in arms]
        chosen.append(arms[means.index(max(means))])
    return chosen


def oracle(lives: Lives, case: str, halves: Sequence[Sequence[int]]) -> tuple[dict[int, float], list[str]]:
    """seed -> the life of the schedule that is best on the other half of the hosts; and which these were."""
    scores: dict[int, float] = {}
    chosen = []
    for judged, others in (halves, halves[::-1]):
        best = max(STRATEGIES, key=lambda arm: statistics.fmean(lives[arm, case, seed] for seed in others))
        chosen.append(best)
        scores |= {seed: lives[best, case, seed] for seed in judged}
    return scores, chosen


@dataclass(frozen=True, slots=True)
class Gate:
    """Every arm over waiting, and the oracle over the best rival, by instance."""

    gains: dict[str, list[float]]
    """arm -> its mean life minus that of waiting, one entry an instance"""
    chosen: Counter[str]
    """How often the oracle chose each strategy."""
    cases: list[str]

    @property
    def best_rival(self) -> str:
        """The best on average over these very instances, which is generous to it."""
        return max(
            (arm for arm in self.gains if arm in rivals()), key=lambda arm: statistics.fmean(self.gains[arm])
        )

    @property
    def headroom(self) -> list[float]:
        """The oracle minus the best rival, one entry an instance."""
        pairs = zip(self.gains["oracle"], self.gains[self.best_rival], strict=True)
        return [ours - theirs for ours, theirs in pairs]


def judge(lives: Lives, cases: Sequence[str], seeds: Sequence[int], arms: Sequence[str]) -> Gate:
    """Of the instances that every arm has played on every host."""
    every = [*STRATEGIES, *arms]
    whole = [case for case in cases if all((arm, case, seed) in lives for arm in every for seed in seeds)]
    if not whole:
        raise SystemExit("no instance was played by every arm: give it more --seconds, or fewer --instances")
    gains: dict[str, list[float]] = defaultdict(list)
    chosen: Counter[str] = Counter()
    halves = seeds[::2], seeds[1::2]
    for case in whole:
        waited = statistics.fmean(lives["never", case, seed] for seed in seeds)
        scores, best = oracle(lives, case, halves)
        chosen.update(best)
        gains["oracle"].append(statistics.fmean(scores.values()) - waited)
        for arm in arms:
            gains[arm].append(statistics.fmean(lives[arm, case, seed] for seed in seeds) - waited)
    fixed = max(
        STRATEGIES,
        key=lambda arm: statistics.fmean(lives[arm, case, seed] for case in whole for seed in seeds),
    )
    gains[f"one schedule for all: {fixed}"] = [
        statistics.fmean(lives[fixed, case, seed] - lives["never", case, seed] for seed in seeds)
        for case in whole
    ]
    return Gate(dict(gains), chosen, whole)


def arm_rows(gate: Gate) -> list[Row]:
    rows: list[Row] = []
    for arm, gains in sorted(gate.gains.items(), key=lambda item: -statistics.fmean(item[1])):
        mean, error = mean_and_error(gains)
        rows.append(
            {
                "arm": arm,
                "points over never growing": f"{100 * mean:+.2f}",
                "standard error": f"{100 * error:.2f}",
            }
        )
    return rows


def gate_rows(gate: Gate) -> list[Row]:
    mean, error = mean_and_error(gate.headroom)
    ratio = mean / error if error else math.nan
    return [
        {
            "best rival": gate.best_rival,
            "instances": len(gate.cases),
            "oracle minus it, points": f"{100 * mean:+.2f}",
            "standard error": f"{100 * error:.2f}",
            "errors": f"{ratio:.1f}",
            "gate": "open" if ratio > 2.0 else "closed",
        }
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0 is this one (%(default)s)")
    parser.add_argument("--instances", type=int, default=32, help="streams that are scored (%(default)s)")
    parser.add_argument("--hosts", type=int, default=4, help="hosts of each, an even number (%(default)s)")
    parser.add_argument("--tune", type=int, default=8, help="streams that rivals are tuned on (%(default)s)")
    parser.add_argument("--epochs", type=int, default=task("stream").epochs, help="of a life (%(default)s)")
    parser.add_argument("--group", type=int, default=4, help="instances played side by side (%(default)s)")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="folder of the tables as JSON (%(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing new after these")
    chosen = parser.parse_args()
    if chosen.hosts < 2 or chosen.hosts % 2:
        parser.error(f"--hosts is {chosen.hosts}; expected an even number from 2 on: half of them choose")
    use_one_thread()
    began = time.monotonic()
    seeds = range(FIRST_HOST, FIRST_HOST + chosen.hosts)
    cases, tuning = drawn(SCORED_DRAWS, chosen.instances), drawn(TUNING_DRAWS, chosen.tune)
    groups = [cases[start : start + chosen.group] for start in range(0, len(cases), chosen.group)]

    def jobs(arms: Iterable[str], some: Sequence[str], hosts: Sequence[int]) -> list[Job]:
        wanted = []
        for arm in arms:
            own = [case for case in some if first_alike(case, chosen.epochs).get(arm, arm) == arm]
            pairs = tuple((case, seed) for case in own for seed in hosts)
            wanted += [Job(arm, pairs, chosen.device, chosen.epochs)] if own else []
        return wanted

    with Spread(play, chosen.workers, chosen.seconds) as spread:
        draws = [(case, seed) for case in tuning for seed in seeds[:2]]
        tried = spread.results(jobs(rivals(), tuning, seeds[:2]), "tuning rivals")
        arms = tuned(by_key(tried), draws)
        lives: list[Life] = []
        for number, group in enumerate(groups, start=1):
            wanted = jobs([*arms, *STRATEGIES], group, seeds)
            lives += spread.results(wanted, f"group {number} of {len(groups)}")
    chosen.out.mkdir(parents=True, exist_ok=True)
    everything = {"lives": [asdict(life) for life in lives], "tuning": [asdict(life) for life in tried]}
    (chosen.out / "streams_lives.json").write_text(json.dumps(everything) + "\n")
    gate = judge(with_copies(by_key(lives), cases, seeds, chosen.epochs), cases, seeds, arms)
    show(gate, lives, chosen.out, f"on {chosen.device} in {time.monotonic() - began:.0f} s", spread.left_out)


def show(gate: Gate, lives: Sequence[Life], out: Path, where: str, left_out: int) -> None:
    """Print the tables, and write them."""
    title = "Lives over never growing, each rival as tuned on other draws"
    report("streams_arms", title, arm_rows(gate), out=out / "streams_arms.json")
    print("\nWhat the oracle chose: " + ", ".join(f"{arm} x{n}" for arm, n in gate.chosen.most_common(12)))
    condemned = Counter(life.arm for life in lives if life.condemned)
    print(
        f"Hosts that the governor took away: {sum(condemned.values())} of {len(lives)} {dict(condemned) or ''}"
    )
    if left_out:
        print(f"The time was up: {left_out} jobs were not begun")
    title = f"The headroom gate of streams, {where}"
    report("streams_gate", title, gate_rows(gate), out=out / "streams_gate.json")


def drawn(seed: int, count: int) -> list[str]:
    """So many streams of the suite's distribution."""
    rng = np.random.default_rng(seed)
    return [str(suite("stream").draw(rng)) for _ in range(count)]


if __name__ == "__main__":
    main()
