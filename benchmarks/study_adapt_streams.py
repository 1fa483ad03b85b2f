"""The headroom gate of `adapt_stream`: is there anything to decide on targets that change that no rival does?

An oracle knows every change. For each target of a stream it grows what was best on that target in other hosts (one
seed of one of six kinds in one of three places, or nothing), and gives it back when the target goes, or keeps it
where the next one wants the same; or it plays one seed for the whole life, where that was better in the other hosts.
Against it: the head alone, the even spread, an adapter for each noticed change, a head that begins anew at a drop,
LoRA of rank 4 everywhere and fine-tuning, trained along (settings tuned on other draws); and the cheapest of all, the
one seed from epoch 2 on that is best over these very streams. What is compared is the life: mean validation accuracy
minus rent for parameter-epochs. The gate is open where the oracle is ahead of the best of them by more than two
standard errors over streams: of those that keep to the cap, and of all. What trains along does not keep to it.

    python benchmarks/study_adapt_streams.py --device cuda --workers 15 --seconds 300

plays up to 24 streams on 2 hosts each. On one core, to see it run: `--instances 1 --tune 1 --epochs 30 --kinds small
--places 0`. After `--seconds` nothing new is begun, and the tables are of the streams that every arm has played.
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
from itertools import product
from pathlib import Path

import numpy as np

from adapt_choices import KINDS
from adapt_stream_choices import (
    ANEW,
    NEVER,
    PLACES,
    Life,
    Lives,
    bare_parameters,
    best_of_targets,
    by_key,
    composed,
    fits,
    lived_targets,
    one_bit,
    others_than,
    schedule_of,
)
from esper.benchmark.rivals import AdaptRival, adapt_rivals
from esper.benchmark.stream_rivals import StreamRival, frozen_rivals
from esper.leyline import DecisionSettings, HostProtocol
from esper.leyline.utility import rent_due, utility
from esper.simic.env.episodes import Episodes
from esper.simic.env.making import make_world, use_one_thread
from esper.simic.evaluation import Player, Rewards, RulePlayer, judge_cases
from esper.simic.reward import RewardConfig
from esper.tamiyo.actions import Actions
from esper.tamiyo.rules import SchedulePolicy, rule_policy
from esper.tolaria.tasks import suite, task
from harness import RESULTS, Row, mean_and_error, report
from spreading import Job, Spread

SPREAD = "even spread (frozen_spread)"
ALWAYS, KEPT = "for life", "kept while wanted"
SCORED_DRAWS, TUNING_DRAWS = 40_261, 40_262
"""Rng seeds of the streams that are scored, and of those that rivals are tuned on."""
FIRST_HOST = 9000


# Playing


@cache
def rivals() -> dict[str, StreamRival | AdaptRival]:
    """All that grow by a trigger, and those that train along: LoRA of rank 4, fine-tuning of both useful kinds."""
    along = [rival for rival in adapt_rivals() if rival.name == "lora 4" or rival.name.startswith("fine")]
    found: list[StreamRival | AdaptRival] = [*frozen_rivals()]
    found += [rival for rival in along if rival.statistics != "source"]
    return {str(rival): rival for rival in found}


@dataclass(frozen=True, slots=True)
class OracleJob(Job):
    """A job with a schedule for each host."""

    schedules: tuple[str, ...] = ()


class Watched:
    """A player, and what validation showed of each host when it was asked."""

    def __init__(self, player: Player) -> None:
        self.player = player
        self.curves: list[list[float]] = []
        """Host -> the utility after each epoch but the last."""

    def begin(self, num_envs: int) -> None:
        """Forget earlier hosts."""
        self.player.begin(num_envs)
        self.curves = [[] for _ in range(num_envs)]

    def act(self, episodes: Episodes, rewards: Rewards) -> Actions:
        """What the player says."""
        for env_idx, curve in enumerate(self.curves):
            host = episodes.host(env_idx)
            report, rent = host.report, task("adapt_stream").rent
            both = ((report.validation_accuracy or 0.0) + (report.judged_accuracy or 0.0)) / 2
            curve.append(utility(both, rent, host.added_parameters, host.host_parameters))
        return self.player.act(episodes, rewards)


def play(job: Job) -> list[Life]:
    """One life for each host."""
    setting = make_world("adapt_stream", len(job.hosts), device=job.device, horizon=job.epochs)
    rival, cases = rivals().get(job.arm), [case for case, _ in job.hosts]
    player = player_of(job, cases)
    decisions = player.decisions(len(cases)) if isinstance(player, RulePlayer) else DecisionSettings()
    reward = RewardConfig(rent=setting.rent, counts=setting.counts, control_variate=False)
    episodes = setting.episodes(reward=reward, on_illegal="noop", decisions=decisions)
    met = [rival.case(case) for case in cases] if isinstance(rival, AdaptRival) else cases
    watched = Watched(player)
    wanted = [(case, seed) for case, (_, seed) in zip(met, job.hosts, strict=True)]
    lives = []
    judged = judge_cases(watched, episodes, wanted, look=_parameters)
    for (case, seed), one, curve in zip(job.hosts, judged, watched.curves, strict=True):
        size, worth = bare_parameters(case), one.summary.utility
        extra = 0.0 if one.seen is None else rent_due(setting.rent, float(one.seen - size), float(size))
        lasted = job.epochs if worth is not None else one.summary.epochs
        lives.append(
            Life(
                job.arm,
                case,
                seed,
                0.0 if worth is None else worth - extra,
                _by_target(case, job.epochs, [each - extra for each in curve[1:]], lasted),
                worth is None,
            )
        )
    return lives


def player_of(job: Job, cases: Sequence[str]) -> Player:
    """What decides for these hosts."""
    rival = rivals().get(job.arm)
    if isinstance(rival, StreamRival):
        return rival.player()
    if job.arm == SPREAD:
        return RulePlayer(lambda _: rule_policy("frozen_spread"))
    if isinstance(rival, AdaptRival) or job.arm == NEVER:
        return RulePlayer(lambda _: rule_policy("wait"))
    texts = job.schedules if isinstance(job, OracleJob) else [fixed_schedule(job, case) for case in cases]
    return RulePlayer(lambda env_idx: SchedulePolicy(texts[env_idx]))


def fixed_schedule(job: Job, case: str) -> str:
    """Of an arm that is one seed, for life or anew for each target."""
    choice, _, way = job.arm.partition(" ")
    targets = lived_targets(case, job.epochs)
    return schedule_of([choice] * len(targets), case, job.epochs, keep=way == ALWAYS)


def _parameters(host: HostProtocol) -> int:
    return host.host_parameters


def _by_target(case: str, epochs: int, curve: Sequence[float], lasted: int) -> tuple[float | None, ...]:
    worths: list[float | None] = []
    for start, end, _ in lived_targets(case, epochs):
        lived = [*curve[start : min(end, lasted)]]
        missing = [0.0] * (end - max(lasted, start)) if lasted < end else []
        worths.append(statistics.fmean([*lived, *missing]) if start < lasted and (lived or missing) else None)
    return tuple(worths)


# Choosing


def oracle_jobs(
    lives: Lives, singles: Sequence[str], cases: Sequence[str], seeds: Sequence[int], like: Job
) -> list[Job]:
    """Both ways to play the best of each target, chosen on the other hosts of a stream."""
    hosts = tuple(product(played_by(lives, (NEVER,), (ANEW,), singles, cases, seeds), seeds))
    chosen = [best_of_targets(lives, singles, case, others_than(seed, seeds)) for case, seed in hosts]
    return [
        OracleJob(
            way,
            hosts,
            like.device,
            like.epochs,
            tuple(
                schedule_of(choices, case, like.epochs, keep=way == KEPT)
                for choices, (case, _) in zip(chosen, hosts, strict=True)
            ),
        )
        for way in (ANEW, KEPT)
        if hosts
    ]


def played_by(
    lives: Lives,
    arms: Sequence[str],
    ways: Sequence[str],
    singles: Sequence[str],
    cases: Sequence[str],
    seeds: Sequence[int],
) -> list[str]:
    """The streams that all of these arms have played on every host, and in these ways every seed that has room."""

    def needed(case: str) -> list[str]:
        grown = [single for single in singles if fits(single, case)]
        return [*arms, *(f"{single} {way}" for single in grown for way in ways)]

    return [case for case in cases if all((arm, case, s) in lives for arm in needed(case) for s in seeds)]


def tuned(lives: Lives, draws: Sequence[tuple[str, int]]) -> list[str]:
    """Of each rival the setting with the best mean life on the tuning draws that all its settings have played."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for arm, rival in rivals().items():
        by_name[rival.name].append(arm)
    chosen = []
    for arms in by_name.values():
        common = [host for host in draws if all((arm, *host) in lives for arm in arms)]
        if not common:
            raise SystemExit(
                f"{rivals()[arms[0]].name} cannot be tuned: no draw was played in all of its {len(arms)} settings; "
                "give it more --seconds, or fewer --tune"
            )
        means = [statistics.fmean(lives[(arm, *host)].life for host in common) for arm in arms]
        chosen.append(arms[means.index(max(means))])
    return chosen


# Tables


@dataclass(frozen=True, slots=True)
class Gate:
    """Every arm over the head alone, and the oracle over the best of the others, by stream."""

    gains: dict[str, list[float]]
    """arm -> its mean life minus that of the head alone, one entry a stream"""
    by_group: dict[str, dict[str, list[float]]]
    """What a target changes -> arm -> what it gained over the head alone on each such target"""
    chosen: dict[str, Counter[str]]
    """What a target changes -> how often each choice was the best in other hosts"""
    cases: list[str]

    def best_rival(self, *, capped: bool) -> str:
        """The best on average over these very streams, which is generous to it.

        capped  of those that keep to the cap; else of all
        """
        others = [arm for arm in self.gains if arm not in ("oracle", ANEW, KEPT)]
        if capped:
            others = [arm for arm in others if not isinstance(rivals().get(arm), AdaptRival)]
        return max(others, key=lambda arm: statistics.fmean(self.gains[arm]))

    def headroom(self, rival: str) -> list[float]:
        """The oracle minus this one, one entry a stream."""
        pairs = zip(self.gains["oracle"], self.gains[rival], strict=True)
        return [ours - theirs for ours, theirs in pairs]


def judge(
    lives: Lives,
    singles: Sequence[str],
    cases: Sequence[str],
    seeds: Sequence[int],
    arms: Sequence[str],
    epochs: int,
) -> Gate:
    """Of the streams that every arm has played on every host. A seed that the cap has no room for is not grown."""

    def life(arm: str, case: str, seed: int) -> Life:
        return lives.get((arm, case, seed)) or lives[NEVER, case, seed]

    always = [f"{single} {ALWAYS}" for single in singles]
    needed = [NEVER, SPREAD, ANEW, KEPT, *arms]
    whole = played_by(lives, needed, (ANEW, ALWAYS), singles, cases, seeds)
    if not whole:
        raise SystemExit("no stream was played by every arm: give it more --seconds, or fewer --instances")
    fixed = max(always, key=lambda arm: sum(life(arm, case, seed).life for case in whole for seed in seeds))
    named = {SPREAD: SPREAD, f"one seed for life: {fixed.partition(' ')[0]}": fixed} | {
        arm: arm for arm in (ANEW, KEPT, *arms)
    }
    gains: dict[str, list[float]] = defaultdict(list)
    by_group: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    chosen: dict[str, Counter[str]] = defaultdict(Counter)
    for case in whole:
        waited = [lives[NEVER, case, seed] for seed in seeds]
        played = {name: [life(arm, case, seed) for seed in seeds] for name, arm in named.items()}
        played["oracle"] = []
        for seed in seeds:
            ways = [NEVER, ANEW, KEPT, *always]
            others = others_than(seed, seeds)
            best = max(ways, key=lambda arm: sum(life(arm, case, other).life for other in others))
            played["oracle"].append(life(best, case, seed))
            targets = zip(
                lived_targets(case, epochs), best_of_targets(lives, singles, case, others), strict=True
            )
            for (_, _, target), choice in targets:
                chosen[target.group][choice] += 1
        for name, found in {NEVER: waited, **played}.items():
            pairs = list(zip(found, waited, strict=True))
            gains[name].append(statistics.fmean(one.life - head.life for one, head in pairs))
            for place, (_, _, target) in enumerate(lived_targets(case, epochs)):
                by_group[target.group][name] += [
                    (one.targets[place] or 0.0) - (head.targets[place] or 0.0) for one, head in pairs
                ]
    return Gate(dict(gains), {group: dict(some) for group, some in by_group.items()}, dict(chosen), whole)


def bit_rows(
    lives: Lives, singles: Sequence[str], gate: Gate, seeds: Sequence[int], epochs: int
) -> list[Row]:
    """What is won by whether alone, with the one seed that is best over these very streams; and by what and where."""

    def over_head(choose: Callable[[str, int], list[str]]) -> list[float]:
        return [
            statistics.fmean(
                composed(lives, case, seed, choose(case, seed), epochs)
                - composed(lives, case, seed, [NEVER] * len(lived_targets(case, epochs)), epochs)
                for seed in seeds
            )
            for case in gate.cases
        ]

    bits = {single: over_head(lambda case, _, s=single: one_bit(s, case, epochs)) for single in singles}  # type: ignore[misc]
    single = max(bits, key=lambda single: statistics.fmean(bits[single]))
    where = over_head(lambda case, seed: best_of_targets(lives, singles, case, others_than(seed, seeds)))
    more = [one - other for one, other in zip(where, bits[single], strict=True)]
    rows: list[Row] = []
    for what, values in (
        (f"whether: {single}, or none", bits[single]),
        ("what and where", where),
        ("the difference", more),
    ):
        mean, error = mean_and_error(values)
        rows.append({"decided": what, "points": f"{100 * mean:+.2f}", "standard error": f"{100 * error:.2f}"})
    return rows


def arm_rows(gate: Gate) -> list[Row]:
    rows: list[Row] = []
    for arm, gains in sorted(gate.gains.items(), key=lambda item: -statistics.fmean(item[1])):
        mean, error = mean_and_error(gains)
        row: dict[str, str | float | int] = {
            "arm": arm,
            "points over the head alone": f"{100 * mean:+.2f}",
            "standard error": f"{100 * error:.2f}",
        }
        for group, some in gate.by_group.items():
            row[group] = f"{100 * statistics.fmean(some[arm]):+.1f}"
        rows.append(row)
    return rows


def gate_rows(gate: Gate) -> list[Row]:
    """Whether it is open to rivals at the cap, and to all; of one stream, without an error, that is not known."""
    rows: list[Row] = []
    for of, capped in (("that keep to the cap", True), ("of all", False)):
        rival = gate.best_rival(capped=capped)
        mean, error = mean_and_error(gate.headroom(rival))
        ratio = mean / error if error else math.nan
        gate_is = "not measured" if math.isnan(error) else "open" if ratio > 2.0 else "closed"
        rows.append(
            {
                "rivals": of,
                "the best": rival,
                "streams": len(gate.gains[rival]),
                "oracle minus it, points": f"{100 * mean:+.2f}",
                "standard error": f"{100 * error:.2f}",
                "errors": f"{ratio:.1f}",
                "gate": gate_is,
            }
        )
    return rows


def show(gate: Gate, lives: Sequence[Life], out: Path, where: str, left_out: int) -> None:
    """Print the tables, and write them."""
    title = "Lives over the head alone, each rival as tuned on other draws; and during targets of each group"
    report("adapt_streams_arms", title, arm_rows(gate), out=out / "adapt_streams_arms.json")
    for group, counts in gate.chosen.items():
        best = ", ".join(f"{choice} x{count}" for choice, count in counts.most_common(6))
        print(f"Best where targets change {group}: {best}")
    condemned = Counter(life.arm for life in lives if life.condemned)
    print(f"Hosts that the governor took away: {sum(condemned.values())} of {len(lives)} {dict(condemned)}")
    if left_out:
        print(f"The time was up: {left_out} jobs were not begun")
    title = f"The headroom gate of adapt_stream, {where}"
    report("adapt_streams_gate", title, gate_rows(gate), out=out / "adapt_streams_gate.json")


def drawn(seed: int, count: int) -> list[str]:
    """So many streams of the suite's distribution."""
    rng = np.random.default_rng(seed)
    return [str(suite("adapt_stream").draw(rng)) for _ in range(count)]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    row = task("adapt_stream")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0 is this one (%(default)s)")
    parser.add_argument("--instances", type=int, default=24, help="streams that are scored (%(default)s)")
    parser.add_argument("--hosts", type=int, default=2, help="hosts of each, at least 2 (%(default)s)")
    parser.add_argument("--tune", type=int, default=6, help="streams that rivals are tuned on (%(default)s)")
    parser.add_argument("--epochs", type=int, default=row.epochs, help="of a life (%(default)s)")
    parser.add_argument("--group", type=int, default=4, help="streams played side by side (%(default)s)")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS, help="of seeds (all)")
    parser.add_argument("--places", nargs="+", default=list(PLACES), choices=PLACES, help="of seeds (all)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the tables (%(default)s)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing new after these")
    chosen = parser.parse_args()
    if chosen.hosts < 2:
        parser.error(f"--hosts is {chosen.hosts}; expected at least 2: some choose, others are scored")
    return chosen


def main() -> None:
    chosen = parsed()
    use_one_thread()
    began = time.monotonic()
    seeds = range(FIRST_HOST, FIRST_HOST + chosen.hosts)
    cases, tuning = drawn(SCORED_DRAWS, chosen.instances), drawn(TUNING_DRAWS, chosen.tune)
    singles = [f"{kind}@{place}" for kind, place in product(chosen.kinds, chosen.places)]

    def jobs(arms: Iterable[str], some: Sequence[str], hosts: Sequence[int]) -> list[Job]:
        wanted = []
        for arm in arms:
            single = arm.partition(" ")[0]
            own = [case for case in some if single not in singles or fits(single, case)]
            pairs = tuple(product(own, hosts))
            wanted += [Job(arm, pairs, chosen.device, chosen.epochs)] if pairs else []
        return wanted

    groups = [cases[start : start + chosen.group] for start in range(0, len(cases), chosen.group)]
    lives: list[Life] = []
    with Spread(play, chosen.workers, chosen.seconds) as spread:
        tried = spread.results(jobs(rivals(), tuning, seeds[:1]), "tuning rivals")
        arms = tuned(by_key(tried), [(case, seed) for case in tuning for seed in seeds[:1]])
        every = [NEVER, SPREAD, *arms, *(f"{single} {way}" for single in singles for way in (ANEW, ALWAYS))]
        like = Job("", (), chosen.device, chosen.epochs)
        before: list[str] = []
        for number, group in enumerate(
            [*groups, []], start=1
        ):  # the oracle plays a group while the next begins
            wanted = [*oracle_jobs(by_key(lives), singles, before, seeds, like), *jobs(every, group, seeds)]
            lives += spread.results(wanted, f"group {number} of {len(groups)}, and the oracle on the last")
            before = group
    chosen.out.mkdir(parents=True, exist_ok=True)
    everything = {"lives": [asdict(life) for life in lives], "tuning": [asdict(life) for life in tried]}
    (chosen.out / "adapt_streams_lives.json").write_text(json.dumps(everything) + "\n")
    gate = judge(by_key(lives), singles, cases, seeds, arms, chosen.epochs)
    title = (
        "What there is to decide, over the head alone: lives composed of what was grown anew for each target"
    )
    bits = bit_rows(by_key(lives), singles, gate, seeds, chosen.epochs)
    report("adapt_streams_bit", title, bits, out=chosen.out / "adapt_streams_bit.json")
    show(gate, lives, chosen.out, f"on {chosen.device} in {time.monotonic() - began:.0f} s", spread.left_out)


if __name__ == "__main__":
    main()
