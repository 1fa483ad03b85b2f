"""From what was asked for to a plan: every mistake is found here, before anything is played."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from esper.benchmark.arms import (
    BLIND,
    MATCHED,
    RULES,
    SBS,
    VBS,
    WAIT,
    Arm,
    BlindArm,
    LearnedArm,
    MatchedArm,
    RuleArm,
    ScheduleArm,
)
from esper.benchmark.controllers import find_controller, require_fit
from esper.benchmark.outcomes import Outcomes, shipped_outcomes
from esper.benchmark.runner import BenchPlan, PlanError
from esper.benchmark.static import NotWidenable, shape_of
from esper.benchmark.suites import BenchSuite, bench_suite
from esper.tolaria.tasks import Instance, task
from esper.tolaria.worlds.toy.instance import TOY_SUITES

LEARNED = "learned"
SCHEDULES = (SBS, VBS)
ALL_ARMS = (WAIT, *RULES, *SCHEDULES, *MATCHED, BLIND)
"""Every arm but the learned ones, which --controller names."""
_BEST_RULE = {"shift": "detect_then_probe", "toy_shift": "detect_then_probe"}


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What somebody wants to see compared."""

    suite: str = "cpu"
    arms: tuple[str, ...] | None = None
    """None: every arm that the suite and the given files allow."""
    seeds: int = 8
    instances: int | None = None
    """So many of the suite's instances, spread over its list; None is all."""
    controllers: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    """arm -> runs or checkpoints, one for each training seed"""
    match: str | None = None
    """The arm that matched arms are made from; None is the first learned one, or the suite's best rule."""
    outcomes: Path | None = None
    """Outcomes of schedules; None is what is shipped for the suite."""
    device: str = "cpu"


def plan_bench(request: BenchRequest) -> BenchPlan:
    suite = bench_suite(request.suite).first(request.instances)
    clash = [name for name in request.controllers if name in ALL_ARMS]
    if clash:
        raise PlanError(f"a controller is named {clash[0]!r}, which is another arm's name; choose another")
    learned = [_learned(name, paths, request.suite) for name, paths in request.controllers.items()]
    reference = request.match or (
        learned[0].name if learned else _BEST_RULE.get(suite.name, "probe_and_keep")
    )
    names = _chosen(request, suite)
    if any(name in (*MATCHED, BLIND) for name in names) and reference not in [
        *names,
        *(a.name for a in learned),
    ]:
        if reference not in RULES:
            raise PlanError(f"match is {reference!r}; expected a learned arm or one of {', '.join(RULES)}")
        names = [*names, reference]
    members = next((arm.members for arm in learned if arm.name == reference), 1)
    outcomes = _outcomes(request, suite) if set(SCHEDULES) & set(names) else None
    order: list[Arm] = [RuleArm(WAIT), *(RuleArm(name) for name in RULES if name in names)]
    if outcomes is not None:
        order += [arm for arm in _schedule_arms(outcomes, suite) if arm.name in names]
    order += learned
    order += [MatchedArm(name, reference, members) for name in MATCHED if name in names]
    order += [BlindArm(reference, members)] if BLIND in names else []
    return BenchPlan(
        suite=suite,
        arms=tuple(order),
        seeds=request.seeds,
        reference=reference if reference in [arm.name for arm in order] else WAIT,
        treatments=_treatments([arm.name for arm in learned], reference, names),
        device=request.device,
    )


def _treatments(learned: Sequence[str], reference: str, names: Sequence[str]) -> tuple[str, ...]:
    """What the verdict is about: learned arms; or else the reference; or else everything that was asked for."""
    if learned:
        return tuple(learned)
    return (reference,) if reference in names else tuple(name for name in names if name != WAIT)


def _chosen(request: BenchRequest, suite: BenchSuite) -> list[str]:
    impossible = _impossible(request, suite)
    if request.arms is None:
        return [name for name in ALL_ARMS if name not in impossible]
    for name in request.arms:
        if name not in ALL_ARMS:
            known = ", ".join(ALL_ARMS)
            raise PlanError(f"no arm is named {name!r}; there are {known}, and those that --controller names")
        if name in impossible:
            raise PlanError(impossible[name])
    return list(dict.fromkeys((WAIT, *request.arms)))


def _impossible(request: BenchRequest, suite: BenchSuite) -> dict[str, str]:
    """arm -> why it cannot be had here."""
    reasons = {}
    if request.outcomes is None and shipped_outcomes(suite.name) is None:
        for name in SCHEDULES:
            reasons[name] = (
                f"{name} needs the outcomes of schedules on {suite.name}, and none are shipped: make them with "
                f"`python benchmarks/make_outcomes.py --suite {suite.name}` and give --outcomes"
            )
    if len(suite.instances) < 2:
        reasons[BLIND] = f"{BLIND} copies decisions from another instance, and {suite.name} has only one here"
    if suite.name in TOY_SUITES:
        for name in ("static", "from_scratch"):
            reasons[name] = f"{name} needs hosts that are trained, and those of {suite.name} are not"
        return reasons
    try:
        instance = Instance.parse(suite.instances[0])
        shape_of(task(instance.task).host(instance.load()))
    except NotWidenable as error:
        reasons["static"] = str(error)
    return reasons


def _learned(name: str, paths: Sequence[Path], suite: str) -> LearnedArm:
    files = tuple(find_controller(path) for path in paths)
    if not files:
        raise PlanError(f"controller {name!r} has no path")
    repeated = [file.checkpoint for file in files if [f.digest for f in files].count(file.digest) > 1]
    if repeated:
        raise PlanError(f"{repeated[0]} is given twice for {name}: members are to be trained apart")
    for file in files:
        require_fit(file, suite)
    return LearnedArm(name, files)


def _outcomes(request: BenchRequest, suite: BenchSuite) -> Outcomes:
    path = request.outcomes or shipped_outcomes(suite.name)
    assert path is not None  # or the arm was refused
    outcomes = Outcomes.read(path)
    missing = set(suite.instances) - set(outcomes.part(held_out=True).cases)
    if missing:
        raise PlanError(f"{path} has no outcomes of {min(missing)}: it was made for other instances")
    return outcomes


def _schedule_arms(outcomes: Outcomes, suite: BenchSuite) -> list[ScheduleArm]:
    """Both are chosen on validation: one on drawn cases, the other on hosts that are not scored on."""
    single, best = outcomes.part(held_out=False).single_best(), outcomes.part(held_out=True).best_of_each()
    return [
        ScheduleArm(SBS, dict.fromkeys(suite.instances, single)),
        ScheduleArm(VBS, {instance: best[instance] for instance in suite.instances}),
    ]
