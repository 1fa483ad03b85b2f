"""From a request to a plan: what is compared by default, what it is matched to, and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from esper.benchmark import BenchRequest, PlanError, plan_bench
from esper.benchmark import planning as module
from esper.benchmark.arms import LearnedArm, MatchedArm
from esper.benchmark.bench import record_of
from esper.benchmark.controllers import ControllerFile
from esper.benchmark.outcomes import WAITING, Outcome, Outcomes, grown
from esper.benchmark.suites import bench_suite
from esper.tolaria.tasks import forget, register
from tiny_tasks import tiny_task

MIXER = grown("mixer", 1, 0)


@pytest.fixture
def controllers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any path is a controller, whose content is its name."""
    monkeypatch.setattr(module, "find_controller", lambda path: ControllerFile(path, path, path.name))
    monkeypatch.setattr(module, "open_fitting", lambda file, suite: SimpleNamespace(env_steps=400))  # noqa: ARG005


@pytest.fixture
def tiny() -> Iterator[str]:
    register(tiny_task())
    yield "tiny"
    forget("tiny")


def names(request: BenchRequest) -> list[str]:
    return [arm.name for arm in plan_bench(request).arms]


def test_by_default_every_arm_that_can_be_had(tiny: str) -> None:
    rules = ["random", "periodic", "plateau", "fit_ratio", "probe_and_keep", "detect_then_probe"]
    rules += ["by_layout", "frozen_spread", "live_on"]
    assert names(BenchRequest(suite="toy")) == ["wait", *rules, "from_birth", "random_matched", "blind"]
    matched = ["static", "from_birth", "from_scratch", "random_matched"]
    assert names(BenchRequest(suite=tiny)) == ["wait", *rules, *matched]
    plan = plan_bench(BenchRequest(suite="toy_shift"))
    assert (plan.reference, plan.treatments) == ("detect_then_probe", ("detect_then_probe",))


def test_matched_arms_bring_what_they_are_matched_to() -> None:
    plan = plan_bench(BenchRequest(suite="toy", arms=("from_birth",)))
    assert [arm.name for arm in plan.arms] == ["wait", "probe_and_keep", "from_birth"]
    plan = plan_bench(BenchRequest(suite="toy", arms=("from_birth",), match="plateau"))
    assert [arm.name for arm in plan.arms] == ["wait", "plateau", "from_birth"]
    assert plan_bench(BenchRequest(suite="toy", arms=("plateau", "random"))).treatments == (
        "plateau",
        "random",
    )


@pytest.mark.usefixtures("controllers")
def test_learned_arms_are_the_treatment_and_what_is_matched() -> None:
    request = BenchRequest(
        suite="toy",
        arms=("from_birth", "plateau"),
        controllers={"ppo": [Path("a"), Path("b")], "warm": [Path("c")]},
    )
    plan = plan_bench(request)
    assert [arm.name for arm in plan.arms] == ["wait", "plateau", "ppo", "warm", "from_birth"]
    assert (plan.reference, plan.treatments) == ("ppo", ("ppo", "warm"))
    learned, matched = plan.arms[2], plan.arms[4]
    assert isinstance(learned, LearnedArm)
    assert isinstance(matched, MatchedArm)
    assert (learned.members, matched.reference, matched.reference_members) == (2, "ppo", 2)
    assert plan.episodes == 24 * 8 * 6
    assert record_of(plan, {}).training_epochs == {"ppo": 400.0, "warm": 400.0}
    with pytest.raises(PlanError, match="a is given twice for ppo"):
        plan_bench(BenchRequest(suite="toy", controllers={"ppo": [Path("a"), Path("a")]}))
    with pytest.raises(PlanError, match="controller 'ppo' has no path"):
        plan_bench(BenchRequest(suite="toy", controllers={"ppo": []}))
    with pytest.raises(PlanError, match="which is another arm's name"):
        plan_bench(BenchRequest(suite="toy", controllers={"vbs": [Path("a")]}))


@pytest.mark.usefixtures("controllers")
def test_every_name_that_a_table_prints_is_an_arm() -> None:
    request = BenchRequest(suite="toy", arms=("learned", "plateau"), controllers={"learned": [Path("a")]})
    assert names(request) == ["wait", "plateau", "learned"]
    assert names(BenchRequest(suite="toy", controllers={"learned": [Path("a")]}))[-4:] == [
        "learned",
        "from_birth",
        "random_matched",
        "blind",
    ]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            BenchRequest(arms=("learned",)),
            "arm 'learned' is a trained controller; say which with --controller",
        ),
        (BenchRequest(arms=("ppo",), controllers={"learned": [Path("a")]}), "no arm is named 'ppo'"),
        (BenchRequest(seeds=0), "seeds is 0"),
        (BenchRequest(match="wait"), "match is 'wait'"),
        (BenchRequest(controllers={"blind": [Path("a")]}), "which is another arm's name"),
    ],
)
def test_wrong_names_are_found_before_anything_is_loaded(
    request_: BenchRequest, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("require_suite", "bench_suite", "find_controller", "open_fitting", "shipped_outcomes"):
        monkeypatch.setattr(module, name, None)
    with pytest.raises(PlanError, match=message):
        plan_bench(request_)


def test_schedules_are_chosen_from_outcomes(tmp_path: Path) -> None:
    cases = bench_suite("toy").first(2).instances

    def outcome(held_out: bool, case: str, schedule: str, accuracy: float) -> Outcome:
        return Outcome(held_out, case, schedule, 500, accuracy, 0.0, 100, 0, 0.01, None, None, (), ())

    rows = [outcome(False, "drawn", WAITING, 0.5), outcome(False, "drawn", MIXER, 0.6)]
    for case, better in zip(cases, (WAITING, MIXER), strict=True):
        rows += [
            # over both cases waiting is a little better
            outcome(True, case, schedule, 0.6 if schedule == better else 0.5 + 0.01 * (schedule == WAITING))
            for schedule in (WAITING, MIXER)
        ]
    path = tmp_path / "toy.parquet"
    Outcomes(rows).write(path)
    wanted = ("sbs", "sbs_hindsight", "vbs")
    plan = plan_bench(BenchRequest(suite="toy", arms=wanted, instances=2, outcomes=path))
    _, sbs, hindsight, vbs = plan.arms
    assert sbs.schedules == dict.fromkeys(cases, MIXER)  # type: ignore[attr-defined]
    assert hindsight.schedules == dict.fromkeys(cases, WAITING)  # type: ignore[attr-defined]
    assert vbs.schedules == {cases[0]: WAITING, cases[1]: MIXER}  # type: ignore[attr-defined]
    assert record_of(plan, {}).schedules == 2
    alone = plan_bench(BenchRequest(suite="toy", arms=("sbs",), instances=2, outcomes=path))
    assert record_of(alone, {}).schedules is None
    with pytest.raises(PlanError, match="has no outcomes of toy:draw="):
        plan_bench(BenchRequest(suite="toy", arms=("vbs",), outcomes=path))
    others = plan_bench(
        BenchRequest(suite="toy", arms=("sbs",), outcomes=path)
    )  # which drawn cases alone choose
    assert [arm.name for arm in others.arms] == ["wait", "sbs"]
