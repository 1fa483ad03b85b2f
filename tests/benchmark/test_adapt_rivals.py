"""Rivals on frozen hosts: each is the same target with a host that is trained in another way."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench_rows import ROW
from esper.benchmark.arms import Hosts
from esper.benchmark.outcomes import WAITING, Outcomes, grown
from esper.benchmark.planning import BenchRequest, plan_bench
from esper.benchmark.playing import FlopLedger, play_chunk
from esper.benchmark.rivals import ADAPT_ARMS, HALVING, LOOK_ONCE, LOOK_UP, adapt_rivals
from esper.benchmark.rows import RowStore
from esper.benchmark.runner import run_bench
from esper.benchmark.stream_rivals import tuned_rivals
from esper.benchmark.suites import PlanError
from esper.leyline import Beginning, Layout
from esper.simic.env.making import make_world
from esper.simic.evaluation import RulePlayer
from esper.simic.reward import RewardConfig
from esper.tolaria.engine.host import TrainedHost
from esper.tolaria.engine.population import Population
from esper.tolaria.tasks import Instance
from make_outcomes import outcome_of

CASE = "adapt:amount=0.5,size=100"


def test_a_rival_changes_how_the_host_is_trained_and_nothing_else() -> None:
    for rival in adapt_rivals():
        theirs = dict(Instance.parse(rival.case(CASE)).parameters)
        ours = dict(Instance.parse(CASE).parameters)
        assert {name: theirs.get(name) for name in ours} == ours
        assert theirs.keys() - ours.keys() <= {"trains", "statistics", "lr"}
    names = {rival.name for rival in adapt_rivals()}
    assert names >= {"head, source statistics", "fine-tuning, moving statistics", "lora 4", "lora 16"}


def test_a_base_without_batch_norm_has_no_statistics_to_choose() -> None:
    case = "adapt:amount=0.5,base=digits_layer,size=100"
    cases = {rival.case(case) for rival in adapt_rivals() if rival.trains == "all" and rival.lr == 0.002}
    assert cases == {"adapt:amount=0.5,base=digits_layer,lr=0.002,size=100,trains=all"}
    assert adapt_rivals()[0].case(case) == case


def test_they_are_arms_of_a_benchmark_of_adapt_alone() -> None:
    plan = plan_bench(BenchRequest(suite=CASE, arms=("frozen_spread", *ADAPT_ARMS), seeds=1))
    assert [arm.name for arm in plan.arms] == ["wait", "frozen_spread", *ADAPT_ARMS]
    with pytest.raises(PlanError, match="lora4 trains a base in another way, and hosts of digits have none"):
        plan_bench(BenchRequest(suite="digits", arms=("lora4",), seeds=1))
    assert "lora4" not in {arm.name for arm in plan_bench(BenchRequest(suite="digits", seeds=1)).arms}


def test_on_targets_that_change_those_of_streams_that_can_be_played_are_arms_too() -> None:
    names = ("frozen_spread", "reset", "adapters", "fine_tuning", "lora4")
    plan = plan_bench(BenchRequest(suite="adapt_stream", arms=names, seeds=1))
    assert [arm.name for arm in plan.arms] == ["wait", *names]
    with pytest.raises(PlanError, match="wide is for hosts that learn as a whole, and those of adapt_stream"):
        plan_bench(BenchRequest(suite="adapt_stream", arms=("wide",), seeds=1))
    with pytest.raises(PlanError, match=r"adapters is a rival on streams, and adapt:.* is none"):
        plan_bench(BenchRequest(suite=CASE, arms=("adapters",), seeds=1))


@pytest.mark.parametrize(
    ("base", "kind"), [("series_batch", "conv_small"), ("digits_attention", "mlp_small")]
)
def test_an_adapter_is_of_the_kind_that_the_base_offers(base: str, kind: str) -> None:
    """Validation falls when names change; the head has two epochs, then slots are filled from the input on."""
    case = f"adapt_stream:base={base},cap=1.0,plan=rename@3/none@9,size=100"
    player = tuned_rivals(frozen=True)["adapters"].player()
    assert isinstance(player, RulePlayer)
    episodes = make_world(case, 1, horizon=9).episodes(
        reward=RewardConfig(counts="life", control_variate=False), decisions=player.decisions(1)
    )
    episodes.begin_many([Beginning(0, case, 0)])
    player.begin(1)
    host = episodes.host(0)
    assert isinstance(host, TrainedHost)
    for _ in range(6):  # noticed after the fourth
        episodes.step(player.act(episodes, np.zeros(1)))
    assert all(slot.seed is None for slot in host.slots)
    episodes.step(player.act(episodes, np.zeros(1)))
    assert [slot.snapshot().blueprint for slot in host.slots] == [kind] + [None] * (len(host.slots) - 1)


def test_what_is_frozen_costs_no_backward() -> None:
    """The same ledger meets hosts of equal shapes, of which one is trained as a whole."""
    population, ledger = Population(2), FlopLedger()
    head = ledger.epoch(population.begin(0, CASE, seed=0))
    everything = ledger.epoch(population.begin(1, f"{CASE},trains=all", seed=0))
    assert 2.5 * head < everything < 3.0 * head


@pytest.mark.slow
def test_lora_pays_rent_for_what_it_adds() -> None:
    plan = plan_bench(BenchRequest(suite=CASE, arms=("lora4",), seeds=1))
    wait, lora = plan.arms
    (waited,) = play_chunk(wait, Hosts(CASE, CASE, (0,)))
    (row,) = play_chunk(lora, Hosts(CASE, CASE, (0,), known={("wait", 0, CASE): [waited]}))
    assert waited.added_parameters == 0
    assert row.added_parameters == 4 * (24 + 5) + 4 * 4 * (24 + 120)  # the stem, and four convolutions
    assert row.host_parameters == waited.host_parameters
    assert row.utility is not None
    assert row.validation_accuracy is not None
    assert row.utility == pytest.approx(
        row.validation_accuracy - 0.01 * row.added_parameters / row.host_parameters
    )


GROWN = grown("norm", 0, 2)


@pytest.fixture
def outcomes(tmp_path: Path) -> Path:
    """On two drawn targets and the one of the suite: a seed gains, behind attention it costs."""
    worths = {"adapt:data=1,size=100": 0.1, "adapt:base=digits_attention,data=2,size=200": -0.1, CASE: 0.1}
    rows = [
        outcome_of(
            replace(ROW, instance=case, seed=500, validation_accuracy=0.5 + gain * (schedule == GROWN)),
            held_out=case == CASE,
            schedule=schedule,
        )
        for case, gain in worths.items()
        for schedule in (WAITING, GROWN)
    ]
    Outcomes(rows).write(tmp_path / "adapt.parquet")
    return tmp_path / "adapt.parquet"


def test_what_a_user_would_try_first_is_fitted_on_drawn_targets(outcomes: Path) -> None:
    names = (LOOK_UP, LOOK_ONCE, "try_2", HALVING)
    plan = plan_bench(BenchRequest(suite=CASE, arms=names, seeds=1, outcomes=outcomes))
    arms = {arm.name: arm for arm in plan.arms}
    assert list(arms) == ["wait", LOOK_UP, LOOK_ONCE, "schedule_1", "try_2", HALVING]
    assert arms[LOOK_UP].schedules == {Layout.SERIES: GROWN, Layout.TOKENS: WAITING}  # type: ignore[attr-defined]
    with pytest.raises(
        PlanError, match=r"look_up needs the outcomes of schedules on adapt.*make_outcomes.py"
    ):
        plan_bench(BenchRequest(suite=CASE, arms=(LOOK_UP,), seeds=1))


@pytest.mark.slow
def test_they_are_played_and_the_better_run_is_kept(outcomes: Path, tmp_path: Path) -> None:
    plan = plan_bench(BenchRequest(suite=CASE, arms=(LOOK_UP, "try_2"), seeds=1, outcomes=outcomes))
    store = RowStore(tmp_path / "rows")
    assert run_bench(plan, store, workers=0) is None
    rows = {row.arm: row for row in store.read()}
    assert (
        rows[LOOK_UP].decisions == rows["schedule_1"].decisions == "germinate norm@stem t=2; advance stem t=3"
    )
    assert rows[LOOK_UP].utility == rows["schedule_1"].utility
    runs = [rows["wait"], rows["schedule_1"]]
    assert rows["try_2"].utility == max(row.utility or 0.0 for row in runs)
    assert rows["try_2"].training_flops == sum(row.training_flops or 0.0 for row in runs)
