"""A benchmark that records: the same rows, and episodes that a data set can be made of."""

from dataclasses import replace
from pathlib import Path

import pytest

from esper.benchmark import RowStore, run_bench
from esper.benchmark.arms import BlindArm, Hosts, MatchedArm, RuleArm, ScheduleArm, Staging
from esper.benchmark.matching import ScratchPlayer
from esper.benchmark.outcomes import grown
from esper.benchmark.planning import BenchPlan
from esper.benchmark.playing import play_recorded
from esper.benchmark.rows import BenchRow
from esper.benchmark.suites import BenchSuite, bench_suite
from esper.runs.train import require_trainable
from esper.simic.config.checks import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.evaluation import RulePlayer
from esper.simic.held_out import is_held_out
from esper.simic.offline.dataset import Dataset
from esper.tamiyo.rules import rule_policy
from esper.tolaria.tasks import suite, suite_names

GROWING = grown("mixer", 0, 2)


def plan_of(instances: BenchSuite, seeds: int = 3) -> BenchPlan:
    schedules = ScheduleArm("sbs", dict.fromkeys(instances.instances, GROWING))
    arms = (
        RuleArm("wait"),
        RuleArm("random"),
        schedules,
        MatchedArm("from_birth", "random", 1),
        BlindArm("random", 1),
    )
    return BenchPlan(instances, arms, seeds, "random", ("random",))


def timeless(rows: list[BenchRow]) -> list[BenchRow]:
    return sorted((replace(row, wall_seconds=0.0) for row in rows), key=lambda row: row.key)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_recording_changes_no_row(workers: int, tmp_path: Path) -> None:
    plan = plan_of(bench_suite("toy").first(2))
    run_bench(plan, RowStore(tmp_path / "plain"))
    run_bench(plan, RowStore(tmp_path / "kept"), workers=workers, episodes=tmp_path / "kept" / "episodes")
    rows = timeless(RowStore(tmp_path / "kept").read())
    assert rows == timeless(RowStore(tmp_path / "plain").read())
    assert not (tmp_path / "plain" / "episodes").exists()
    data = Dataset.open([tmp_path / "kept"])
    played = {(row.arm, row.instance, row.host_seed): row for row in rows}
    recorded = {(row.policy, row.case, row.host_seed) for row in data.rows}
    assert len(recorded) == len(data)  # each once
    assert {arm for arm, _, _ in recorded} == {arm.name for arm in plan.arms}
    # What would only repeat waiting is copied, not played.
    assert all(not played[missing].decisions for missing in played.keys() - recorded)
    for number, row in enumerate(data.rows):
        of_bench = played[row.policy, row.case, row.host_seed]
        assert data.length[number] == of_bench.epochs
        done = int((data.read([number]).action[:, 0] != 0).sum())
        assert done == len([each for each in of_bench.decisions.split(";") if each])


def test_only_what_acts_is_recorded() -> None:
    """Hosts of other sizes, or with seeds built in, are not what a controller would meet."""
    case = bench_suite("toy").instances[0]
    waiting = RulePlayer(lambda _: rule_policy("wait"))
    assert Staging(waiting).only_acts
    assert not Staging(waiting, (case,)).only_acts
    assert not Staging(ScratchPlayer([()])).only_acts
    rows, file = play_recorded(RuleArm("random"), Hosts("toy", case, (0, 1)))
    again, same = play_recorded(RuleArm("random"), Hosts("toy", case, (0, 1)))
    assert file is not None
    assert same is not None
    assert file.name == same.name  # played again after a stop it is written again, not twice
    assert len(rows) == len(again) == 2


def offline(folder: Path) -> TrainingConfig:
    """A run that fits what a benchmark records of rules: their reward, and no look at the baseline."""
    return TrainingConfig.preset(
        "toy",
        offline=(str(folder),),
        gamma=0.995,
        privileged_critic=False,
        reward_control_variate=False,
        run_directory=folder / "runs",
    )


def test_held_out_instances_are_not_learned_from(tmp_path: Path) -> None:
    run_bench(plan_of(bench_suite("toy").first(1)), RowStore(tmp_path), episodes=tmp_path / "episodes")
    held_out = bench_suite("toy").instances[0]
    message = f"episodes of held-out instances of toy, the first of {held_out}: a controller that learned"
    with pytest.raises(ConfigError, match=message):
        require_trainable(offline(tmp_path))


def test_draws_that_a_search_played_are_learned_from(tmp_path: Path) -> None:
    plan = plan_of(BenchSuite("toy", ("toy:draw=5", "toy:draw=17")))
    run_bench(plan, RowStore(tmp_path), episodes=tmp_path / "episodes")
    require_trainable(offline(tmp_path))


def test_what_is_held_out_of_every_suite() -> None:
    for name in set(suite_names()) - {"digits"}:
        assert all(is_held_out(name, str(case)) for case in suite(name).held_out)
    assert is_held_out("cpu", "digits")  # scored, and never drawn
    assert not is_held_out("cpu", "mnist1d:permutation=4711")
    assert not is_held_out("mnist1d:permutation=7", "mnist1d:permutation=7")  # it is its own suite
    assert not is_held_out("digits", "digits")
    assert is_held_out("toy", "toy:draw=1000000")
    assert not is_held_out("toy", "toy:draw=999999")
