"""From a request to a plan. Every mistake is found here, the cheap ones before anything is loaded."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from esper.benchmark.arms import (
    BLIND,
    LEARNED,
    MATCHED,
    RULES,
    SBS,
    SBS_HINDSIGHT,
    VBS,
    WAIT,
    Arm,
    BlindArm,
    Group,
    LearnedArm,
    MatchedArm,
    RuleArm,
    ScheduleArm,
)
from esper.benchmark.controllers import find_controller, open_fitting
from esper.benchmark.matching import NotWidenable, require_widenable
from esper.benchmark.outcomes import Outcomes, shipped_outcomes
from esper.benchmark.rivals import (
    ADAPT_ARMS,
    BASED,
    HALVING,
    LISTED,
    LOOK_ONCE,
    LOOK_UP,
    RIVALS,
    TRIES,
    AdaptArm,
    KeepBestArm,
    LookArm,
    LookUpArm,
    fit_look,
    fit_look_up,
    listed_arms,
    met_hosts,
)
from esper.benchmark.stream_rivals import (
    STREAM_RIVALS,
    StreamArm,
    looking_again,
    played_rivals,
    require_streaming,
)
from esper.benchmark.stream_rules import LOOK_AGAIN, fit_look_again
from esper.benchmark.suites import SEEDS_EACH, BenchSuite, PlanError, bench_suite
from esper.benchmark.verdict import counted
from esper.leyline.errors import nearest
from esper.simic.env.making import require_device, require_suite
from esper.tolaria.tasks import Instance
from esper.tolaria.worlds.toy.instance import TOY_SUITES

SCHEDULES = (SBS, SBS_HINDSIGHT, VBS)
ALL_ARMS = (WAIT, *RULES, *ADAPT_ARMS, *SCHEDULES, *RIVALS, *STREAM_RIVALS, *MATCHED, BLIND)
"""Every arm but the learned ones, which a request names by its controllers."""
_BEST_RULE = {
    "adapt": "frozen_spread",
    "adapt_stream": "frozen_spread",
    "backbone": "frozen_spread",
    "hosts": "by_layout",
    "shift": "detect_then_probe",
    "toy_shift": "detect_then_probe",
}


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What to compare, and on which hosts: what `esper.bench` takes."""

    suite: str = "cpu"
    """A suite, or one task instance."""
    arms: tuple[str, ...] | None = None
    """Names of arms; None is every arm that the suite and the given files allow. `wait` and the controllers' arms are
    always played."""
    seeds: int = 8
    """Hosts of each instance."""
    instances: int | None = None
    """How many of the suite's instances, spread over its list; None is all."""
    controllers: Mapping[str, Sequence[Path | str]] = field(default_factory=dict)
    """arm -> runs, checkpoints or saved controllers, one for each training seed"""
    match: str | None = None
    """The arm that matched arms are made from; None is the first learned one, or the suite's best rule."""
    outcomes: Path | str | None = None
    """A file with outcomes of schedules; None is the one that is shipped for the suite."""
    device: str = "cpu"
    """Where hosts are trained."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The arms and hosts that are to be played."""

    suite: BenchSuite
    arms: tuple[Arm, ...]
    """In an order in which each comes after those it needs; `wait` is the first."""
    seeds: int
    """Hosts of each instance."""
    reference: str
    """The arm that matched arms are made from."""
    treatments: tuple[str, ...]
    """The arms that the verdict is about."""
    device: str = "cpu"
    first_seed: int = 0

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names):
            raise PlanError(f"an arm is named twice in {', '.join(names)}")
        if not names or names[0] != WAIT:
            raise PlanError(
                f"the first arm is {names[:1]}; expected {WAIT}, which every other is compared with"
            )
        if self.seeds < 1:
            raise PlanError(f"seeds is {self.seeds}; expected >= 1")
        for name in (self.reference, *self.treatments):
            if name not in names:
                raise PlanError(f"no arm is named {name!r}; the arms are {', '.join(names)}")
        for place, arm in enumerate(self.arms):
            needs = arm.needs(self.suite.instances[0], self.suite.instances)
            late = [name for name, _, _ in needs if name not in names[:place]]
            if late:
                raise PlanError(f"arm {arm.name} needs {late[0]} before it; the arms are {', '.join(names)}")

    @property
    def all_seeds(self) -> range:
        """The numbers of the hosts of each instance."""
        return range(self.first_seed, self.first_seed + self.seeds)

    @property
    def episodes(self) -> int:
        """How many there are in all."""
        return len(self.suite.instances) * self.seeds * sum(arm.members for arm in self.arms)

    def groups(self) -> Iterator[tuple[Group, Arm]]:
        """Every (arm, member, instance), in the order of the arms."""
        for arm in self.arms:
            for member in range(arm.members):
                for instance in self.suite.instances:
                    yield (arm.name, member, instance), arm


@dataclass(frozen=True, slots=True)
class BenchSize:
    """How much a request asks for."""

    arms: int
    """Each training seed of a controller counts, and what is matched to it."""
    instances: int
    seeds: int
    """Hosts of each instance."""

    @property
    def episodes(self) -> int:
        """How many there are in all."""
        return self.arms * self.instances * self.seeds

    def __str__(self) -> str:
        where = f"{counted(self.instances, 'instance')} with {counted(self.seeds, 'host')} each"
        return f"{self.arms} arms on {where}"


def bench_size(request: BenchRequest) -> BenchSize:
    """The size of the plan of a request, before anything is drawn or fitted for it; raises as `plan_bench`."""
    suite, names, reference = _require_possible(request)
    members = len(request.controllers.get(reference, (None,)))
    runs = [LISTED if name == HALVING else TRIES[name] for name in names & {*TRIES, HALVING}]
    # waiting is on the list of what they run
    arms = max(runs, default=1) - 1 + sum(map(len, request.controllers.values()))
    arms += sum(members if name in (*MATCHED, BLIND) else 1 for name in names)
    return BenchSize(arms, len(suite.instances), request.seeds)


def _require_possible(request: BenchRequest) -> tuple[BenchSuite, set[str], str]:
    """The suite, the arms besides the learned ones, and the arm that others are matched to."""
    _require_names(request)
    require_suite(request.suite)
    require_device(request.device, request.suite)
    suite = bench_suite(request.suite).first(request.instances)
    names = _names(request, suite)
    best_rule = _BEST_RULE.get(request.suite, "probe_and_keep")
    reference = request.match or next(iter(request.controllers), best_rule)
    if reference not in request.controllers and names & {*MATCHED, BLIND}:
        names.add(reference)
    return suite, names, reference


def plan_bench(request: BenchRequest) -> BenchPlan:
    """The plan of a request; raises PlanError, ConfigError, ControllerError or RowsError for what cannot be done."""
    suite, names, reference = _require_possible(request)
    learned = [_learned_arm(name, paths, request.suite) for name, paths in request.controllers.items()]
    members = next((arm.members for arm in learned if arm.name == reference), 1)
    rivals = played_rivals(frozen=_based(suite)) if _lives(suite) else {}
    arms: list[Arm] = [RuleArm(name) for name in (WAIT, *RULES) if name in names and name not in rivals]
    arms += _stream_arms(request, suite, names & set(rivals))
    arms += [AdaptArm(name, rival) for name, rival in ADAPT_ARMS.items() if name in names]
    if names & {*SCHEDULES, *RIVALS}:
        outcomes = Outcomes.read(_outcomes_file(request, suite))
        arms += _schedule_arms(outcomes, suite, names)
        arms += _rival_arms(outcomes.part(held_out=False), suite, names)
    arms += learned
    arms += [MatchedArm(name, reference, members) for name in MATCHED if name in names]
    arms += [BlindArm(reference, members)] if BLIND in names else []
    played = [arm.name for arm in arms]
    if learned:
        treatments = tuple(request.controllers)
    else:
        asked = dict.fromkeys(request.arms or ())
        treatments = (reference,) if reference in names else tuple(name for name in asked if name != WAIT)
    return BenchPlan(
        suite=suite,
        arms=tuple(arms),
        seeds=request.seeds,
        reference=reference if reference in played else WAIT,
        treatments=treatments,
        device=request.device,
    )


def _require_names(request: BenchRequest) -> None:
    """What can be checked without loading anything."""
    expected: tuple[tuple[str, bool, str], ...] = (
        ("suite", isinstance(request.suite, str), "a text"),
        ("arms", request.arms is None or _are_texts(request.arms), "names, such as ('wait',), or None"),
        (
            "seeds",
            _is_count(request.seeds) and request.seeds <= SEEDS_EACH,
            f"a whole number from 1 to {SEEDS_EACH}",
        ),
        (
            "instances",
            request.instances is None or _is_count(request.instances),
            "a whole number >= 1, or None",
        ),
        ("controllers", _are_paths(request.controllers), "name -> a list of paths"),
        ("outcomes", isinstance(request.outcomes, str | Path | None), "a path, or None"),
        ("device", isinstance(request.device, str), "a text"),
    )
    for field_name, good, what in expected:
        if not good:
            raise PlanError(f"{field_name} is {getattr(request, field_name)!r}; expected {what}")
    for name, paths in request.controllers.items():
        if name in ALL_ARMS:
            raise PlanError(f"a controller is named {name!r}, which is another arm's name; choose another")
        if not paths:
            raise PlanError(f"controller {name!r} has no path")
    for name in request.arms or ():
        if name == LEARNED and name not in request.controllers:
            raise PlanError(f"arm {name!r} is a trained controller; say which with --controller")
        if name not in (*ALL_ARMS, *request.controllers):
            known = ", ".join(ALL_ARMS)
            raise PlanError(
                f"no arm is named {name!r}; there are {known}, and those that --controller names"
                f"{nearest(name, (*ALL_ARMS, *request.controllers))}"
            )
    known_references = (*request.controllers, *RULES)
    if request.match is not None and request.match not in known_references:
        raise PlanError(f"match is {request.match!r}; expected a learned arm or one of {', '.join(RULES)}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _are_texts(value: object) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(each, str) for each in value)


def _are_paths(value: object) -> bool:
    lists = value.values() if isinstance(value, Mapping) else (None,)
    return all(
        isinstance(some, tuple | list) and all(isinstance(x, str | Path) for x in some) for some in lists
    )


def _names(request: BenchRequest, suite: BenchSuite) -> set[str]:
    """The arms that are to be played besides the learned ones."""
    impossible = _impossible(request, suite)
    if request.arms is None:
        return set(ALL_ARMS) - set(impossible)
    for name in request.arms:
        if name in impossible:
            raise PlanError(impossible[name])
    return {WAIT, *request.arms} - set(request.controllers)


def _impossible(request: BenchRequest, suite: BenchSuite) -> dict[str, str]:
    """arm -> why it cannot be had here."""
    reasons = {}
    if request.outcomes is None and shipped_outcomes(suite.name) is None:
        for name in (*SCHEDULES, *RIVALS):
            reasons[name] = (
                f"{name} needs the outcomes of schedules on {suite.name}, and none are shipped: make them with "
                f"`python benchmarks/make_outcomes.py --suite {suite.name}` and give --outcomes"
            )
    if not _based(suite):
        for name in ADAPT_ARMS:
            reasons[name] = (
                f"{name} trains a base in another way, and hosts of {suite.name} have none: see adapt"
            )
    if len(suite.instances) < 2:
        reasons[BLIND] = f"{BLIND} copies decisions from another instance, and {suite.name} has only one here"
    if suite.name in TOY_SUITES:
        for name in ("static", "from_scratch", *STREAM_RIVALS):
            reasons[name] = f"{name} needs hosts that are trained, and those of {suite.name} are not"
    elif request.arms is None or "static" in request.arms:
        try:
            require_widenable(suite.instances[0])
        except NotWidenable as error:
            reasons["static"] = str(error)
    if suite.name not in TOY_SUITES:
        reasons |= _impossible_rivals(suite)
    return reasons


def _impossible_rivals(suite: BenchSuite) -> dict[str, str]:
    rivals, reasons = played_rivals(frozen=_based(suite) and _lives(suite)), {}
    for name in STREAM_RIVALS:
        if name not in rivals:
            reasons[name] = f"{name} is for hosts that learn as a whole, and those of {suite.name} are bases"
            continue
        try:
            require_streaming(rivals[name], suite.instances[0])
        except PlanError as error:
            reasons[name] = str(error)
    return reasons


def _lives(suite: BenchSuite) -> bool:
    """Whether lives count on it, and not ends."""
    return suite.name not in TOY_SUITES and Instance.parse(suite.instances[0]).row.counts == "life"


def _based(suite: BenchSuite) -> bool:
    """Whether its hosts are bases or backbones, frozen but for their heads."""
    return all(instance.partition(":")[0] in BASED for instance in suite.instances)


def _learned_arm(name: str, paths: Sequence[Path | str], suite: str) -> LearnedArm:
    files = tuple(find_controller(Path(path)) for path in paths)
    digests = [file.digest for file in files]
    for file in files:
        if digests.count(file.digest) > 1:
            raise PlanError(f"{file.checkpoint} is given twice for {name}: members are to be trained apart")
    steps = [open_fitting(file, suite).env_steps for file in files]
    known = [each for each in steps if each is not None]
    return LearnedArm(name, files, sum(known) / len(known) if len(known) == len(steps) else None)


def _outcomes_file(request: BenchRequest, suite: BenchSuite) -> Path:
    path = request.outcomes or shipped_outcomes(suite.name)
    assert path is not None  # or the arm was refused
    return Path(path)


def _schedule_arms(outcomes: Outcomes, suite: BenchSuite, names: set[str]) -> Iterator[ScheduleArm]:
    """Those named, all chosen on validation: SBS on drawn cases; the single best in hindsight and VBS on these
    instances, by hosts that are not scored on."""
    if SBS in names:
        yield ScheduleArm(SBS, dict.fromkeys(suite.instances, outcomes.part(held_out=False).single_best()))
    if not names & {SBS_HINDSIGHT, VBS}:
        return
    held_out = outcomes.part(held_out=True)
    best = held_out.best_of_each()
    missing = set(suite.instances) - set(best)
    if missing:
        raise PlanError(f"the file of outcomes has no outcomes of {min(missing)}: it was made for others")
    if SBS_HINDSIGHT in names:
        yield ScheduleArm(SBS_HINDSIGHT, dict.fromkeys(suite.instances, held_out.single_best()))
    if VBS in names:
        chosen = {instance: best[instance] for instance in suite.instances}
        yield ScheduleArm(VBS, chosen, chosen_of=len(held_out.schedules))


def _rival_arms(drawn: Outcomes, suite: BenchSuite, names: set[str]) -> Iterator[Arm]:
    """What a user would try first, fitted on drawn cases; the schedules that several of them run come before."""
    if names & {LOOK_UP, LOOK_ONCE}:
        samples, layouts = met_hosts(drawn.cases, suite.name)
        if LOOK_UP in names:
            yield LookUpArm(fit_look_up(drawn, layouts), drawn.single_best())
        if LOOK_ONCE in names:
            yield LookArm(fit_look(drawn, samples))
    runs = {name: LISTED if name == HALVING else TRIES[name] for name in (*TRIES, HALVING) if name in names}
    if runs:
        listed = drawn.portfolio(max(runs.values()))
        yield from listed_arms(listed, suite.instances)
        for name, wanted in runs.items():
            yield KeepBestArm(name, min(wanted, len(listed)), listed, halving=name == HALVING)


def _stream_arms(request: BenchRequest, suite: BenchSuite, names: set[str]) -> Iterator[StreamArm]:
    """Rivals in the settings that a benchmark plays; `look_again` is fitted anew where there are outcomes."""
    rivals = played_rivals(frozen=_based(suite))
    if LOOK_AGAIN in names and (request.outcomes or shipped_outcomes(suite.name)):
        drawn = Outcomes.read(_outcomes_file(request, suite)).part(held_out=False)
        rivals[LOOK_AGAIN] = looking_again(fit_look_again(drawn, _phase_samples(drawn.cases)))
    yield from (StreamArm(rival) for name, rival in rivals.items() if name in names)


def _phase_samples(cases: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
    """case -> (first epoch, training samples) of each phase"""
    return {
        case: [(phase.start_epoch, len(phase.train)) for phase in Instance.parse(case).load().phases]
        for case in cases
    }
