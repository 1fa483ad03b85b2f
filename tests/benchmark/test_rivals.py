"""Rivals that a user would try first: fitted on drawn cases, played as told, and charged with all that ran."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench_rows import ROW, rows_of
from esper.benchmark import BenchRow, RowsError, verdict
from esper.benchmark.arms import Hosts
from esper.benchmark.outcomes import WAITING, Outcome, Outcomes, grown, shipped_outcomes
from esper.benchmark.planning import BenchPlan, BenchRequest, plan_bench
from esper.benchmark.playing import FlopLedger, play_chunk
from esper.benchmark.rivals import (
    ADAPT_ARMS,
    HALVING,
    LOOK_ONCE,
    LOOK_UP,
    Look,
    LookUpPolicy,
    adapt_rivals,
    fit_look,
    fit_look_up,
    keep_best,
    look_features,
    race,
)
from esper.benchmark.rows import RowStore
from esper.benchmark.runner import run_bench
from esper.benchmark.stream_rivals import frozen_rivals
from esper.benchmark.suites import PlanError
from esper.benchmark.table import bench_table, best_rival
from esper.leyline import Beginning, Layout, LifecycleOp
from esper.simic.env.making import make_world
from esper.simic.evaluation import RulePlayer
from esper.simic.reward import RewardConfig
from esper.tamiyo import GrowthSpace, Observer
from esper.tolaria.engine.host import TrainedHost
from esper.tolaria.engine.population import Population
from esper.tolaria.tasks import Instance
from make_outcomes import outcome_of
from watched import ModelHost, small_model

EARLY, LATE = grown("mixer", 1, 2), grown("norm", 0, 4)


def drawn(gain_at: int, *, schedule: str = EARLY, hosts: int = 40, signal: float = 1.0) -> Outcomes:
    """Hosts whose lead over training after `gain_at` epochs foretells what `schedule` gains; nothing else tells."""
    rng, rows = np.random.default_rng(3), list[Outcome]()
    for host in range(hosts):
        telling = rng.standard_normal()
        validation = tuple(float(each) for each in 0.5 + 0.05 * rng.standard_normal(7))
        train = [float(each) for each in 0.5 + 0.05 * rng.standard_normal(7)]
        train[gain_at] = validation[gain_at] - 0.1 * telling
        waited = replace(
            ROW, instance=f"case{host}", validation_accuracies=validation, train_accuracies=(None, *train[1:])
        )
        rows.append(outcome_of(waited, held_out=False, schedule=WAITING))
        for other in (EARLY, LATE):
            gain = signal * 0.1 * telling if other == schedule else -0.01
            row = replace(waited, validation_accuracy=0.8125 + gain, test_accuracy=0.0)
            rows.append(outcome_of(row, held_out=False, schedule=other))
    return Outcomes(rows)


SAMPLES = {f"case{host}": 1000 for host in range(40)}


@pytest.mark.parametrize(("epoch", "schedule"), [(2, EARLY), (1, EARLY), (3, LATE)])
def test_a_look_finds_the_epoch_and_the_schedule_that_can_be_told(epoch: int, schedule: str) -> None:
    look = fit_look(drawn(epoch, schedule=schedule), SAMPLES)
    assert (look.epoch, look.schedule) == (epoch, schedule)
    assert look.expected(look_features(1000, (0.5, 0.5), 0.3)) > 0.1
    assert look.expected(look_features(1000, (0.5, 0.5), 0.7)) < -0.1


def test_a_look_comes_before_what_it_decides_on() -> None:
    """What is seen after epoch 3 cannot decide on a seed that is born after epoch 2."""
    look = fit_look(drawn(3, schedule=EARLY), SAMPLES)
    assert look.epoch <= 2 or look.schedule == LATE


def test_a_case_whose_waiting_host_was_given_up_is_not_learned_from() -> None:
    outcomes = drawn(2)
    lost = [
        replace(
            row, case="lost", validation_accuracy=None, validation_accuracies=(0.1,), train_accuracies=(None,)
        )
        if row.schedule == WAITING
        else replace(row, case="lost", validation_accuracy=1.0)
        for row in outcomes.rows
        if row.case == "case0"
    ]
    assert fit_look(Outcomes([*outcomes.rows, *lost]), SAMPLES) == fit_look(outcomes, SAMPLES)


def test_waiting_must_have_been_watched() -> None:
    rows = [replace(row, train_accuracies=()) for row in drawn(2).rows]
    with pytest.raises(RowsError, match=r"waiting on case0, seed 0, has no accuracies after epoch 1"):
        fit_look(Outcomes(rows), SAMPLES)


def test_the_shipped_outcomes_give_the_one_bit() -> None:
    """On `cpu`: after epoch 4 a mixer, the more so the more samples and the less validation leads over training."""
    path = shipped_outcomes("cpu")
    assert path is not None
    outcomes = Outcomes.read(path).part(held_out=False)
    samples = {case: int(case.partition("size=")[2].split(",")[0] or 4000) for case in outcomes.cases}
    look = fit_look(outcomes, samples)
    assert (look.epoch, look.schedule) == (4, grown("mixer", 1, 4))
    assert look.weights[1] > 0.0 > look.weights[3]


def test_the_best_schedule_is_looked_up_by_layout() -> None:
    """Each layout has its own best; a layout that no case has gets the single best of all."""
    first, second = grown("norm", 0, 1), grown("widen", 1, 1)
    worth = {
        "a": {WAITING: 0.5, first: 0.9, second: 0.4},
        "b": {WAITING: 0.5, first: 0.3, second: 0.6},
        "c": {WAITING: 0.5, first: 0.4, second: 0.7},
    }
    rows = [
        outcome_of(
            replace(ROW, instance=case, validation_accuracy=accuracy), held_out=False, schedule=schedule
        )
        for case, row in worth.items()
        for schedule, accuracy in row.items()
    ]
    layouts = {"a": Layout.IMAGE, "b": Layout.FLAT, "c": Layout.FLAT}
    found = fit_look_up(Outcomes(rows), layouts)
    assert found == {Layout.IMAGE: first, Layout.FLAT: second}
    for kind, blueprint in (("image", "norm"), ("flat", "widen"), ("series", None)):
        host = ModelHost(small_model(kind))
        observer = Observer(GrowthSpace.covering([host]), 1)
        observer.begin(0, host, horizon=20)
        host.epoch()
        observer.record(0, host, LifecycleOp.WAIT)
        assert LookUpPolicy(found, WAITING).act(observer.situation(0)).blueprint == blueprint


def made(utility: float | None, curve: tuple[float, ...], flops: tuple[float, ...]) -> BenchRow:
    return replace(
        ROW,
        utility=utility,
        validation_accuracies=curve,
        epoch_flops=flops,
        training_flops=sum(flops),
        epochs=len(flops),
        wall_seconds=2.0,
    )


def test_the_best_on_validation_is_kept_and_all_are_paid_for() -> None:
    low, high = made(0.5, (0.0,), (1.0, 2.0)), made(0.6, (0.0,), (1.0, 4.0))
    condemned = replace(made(None, (0.0,), (8.0,)), rolled_back="lost")
    kept = keep_best([low, replace(high, test_accuracy=0.0), condemned])
    assert (kept.utility, kept.test_accuracy) == (0.6, 0.0)
    assert (kept.training_flops, kept.wall_seconds) == (16.0, 6.0)
    assert keep_best([low, replace(high, training_flops=None)]).training_flops is None


def test_a_race_stops_the_slow_and_charges_what_ran() -> None:
    """Eight epochs, five runs: two stop after 2 epochs, one after 4, two finish: 2 x 2 + 4 + 2 x 8 epochs."""

    def run(start: float, middle: float, end: float) -> BenchRow:
        return made(end, (0.0, 0.0, start, 0.0, middle, 0.0, 0.0, 0.0, end), (1.0,) * 8)

    late = run(0.0, 0.9, 0.99)  # the best in the end, stopped first
    rows = [run(0.1, 0.9, 0.98), run(0.5, 0.2, 0.97), run(0.6, 0.5, 0.7), run(0.7, 0.6, 0.8), late]
    kept = race(rows)
    assert kept.utility == 0.8
    assert kept.training_flops == 24.0
    assert kept.wall_seconds == pytest.approx(2.0 * 24 / 8)


def test_rivals_are_played(tiny: str, tmp_path: Path) -> None:
    schedules = {WAITING: 0.5, grown("norm", 0, 1): 0.7, grown("mixer", 1, 2): 0.6}
    curve = tuple(np.linspace(0.1, 0.5, 8))
    rows = [
        outcome_of(
            replace(
                ROW,
                instance=tiny,
                seed=500 + host,
                validation_accuracy=worth,
                validation_accuracies=curve,
                train_accuracies=(None, *curve[1:]),
            ),
            held_out=held_out,
            schedule=schedule,
        )
        for held_out in (False, True)
        for schedule, worth in schedules.items()
        for host in range(3)
    ]
    path = tmp_path / "outcomes.parquet"
    Outcomes(rows).write(path)
    names = ("look_up", "look_once", "try_2", "try_3", "successive_halving")
    plan = plan_bench(BenchRequest(suite=tiny, arms=names, seeds=2, outcomes=path))
    found = played(plan, tmp_path / "rows")
    for seed in range(2):
        wait, first, second = (found[arm, seed] for arm in ("wait", "schedule_1", "schedule_2"))
        assert found["try_2", seed].utility == max(wait.utility or 0.0, first.utility or 0.0)
        assert found["try_3", seed].training_flops == pytest.approx(
            sum(row.training_flops or 0.0 for row in (wait, first, second))
        )
        assert wait.training_flops == sum(wait.epoch_flops)
        assert len(wait.epoch_flops) == wait.epochs == 7
        raced, tried = found["successive_halving", seed].training_flops, found["try_3", seed].training_flops
        assert raced is not None
        assert tried is not None
        assert raced < tried
        looked = found["look_once", seed]
        assert looked.decisions == found["schedule_1", seed].decisions
        assert looked.test_accuracy == found["schedule_1", seed].test_accuracy
        assert found["look_up", seed].decisions == found["schedule_1", seed].decisions


def played(plan: BenchPlan, folder: Path) -> dict[tuple[str, int], BenchRow]:
    store = RowStore(folder)
    assert run_bench(plan, store) is None
    return {(row.arm, row.seed): row for row in store.read()}


def test_the_verdict_names_the_best_rival_at_no_more_training() -> None:
    arms = {
        "wait": lambda *_: 0.5,
        "look_once": lambda *_: 0.58,
        "try_2": lambda *_: 0.65,
        "vbs": lambda *_: 0.7,
        "learned": lambda *_: 0.6,
    }
    rows = [
        replace(row, training_flops=4e9) if row.arm == "try_2" else row for row in rows_of(arms, instances=6)
    ]
    table = bench_table(rows, ["learned"])
    rival = best_rival(table, "learned")
    assert rival is not None
    assert rival.control == "look_once"
    told = " ".join(verdict(table))
    assert (
        "Of what costs no more training, look_once is best: learned is better than look_once, +2.00" in told
    )
    assert "with instances drawn anew [+2.00, +2.00]" in told
    without = [row for row in rows if row.arm not in ("look_once", "try_2")]
    assert best_rival(bench_table(without, ["learned"]), "learned") is None
    cheap = [replace(row, training_flops=2e9) for row in rows]
    assert getattr(best_rival(bench_table(cheap, ["learned"]), "learned"), "control", None) == "try_2"


def test_a_look_that_expects_nothing_waits() -> None:
    look = Look(1, EARLY, (0.0,) * 4, (1.0,) * 4, (-0.1, 0.0, 0.0, 0.0, 0.0))
    assert look.expected((10.0, 0.5, 0.1, 0.0)) == pytest.approx(-0.1)


def test_the_verdict_says_after_how_many_hosts_the_training_is_paid_back() -> None:
    """A run of the treatment is 2 units; training took 30 runs, try_2 costs 3 units more and halving 1."""
    arms = {arm: lambda *_: 0.5 for arm in ("wait", "try_2", "successive_halving", "try_3", "learned")}
    flops = {"learned": 2e9, "try_2": 5e9, "successive_halving": 3e9, "try_3": 2e9}
    rows = [replace(row, training_flops=flops.get(row.arm, 2e9)) for row in rows_of(arms)]
    table = bench_table(rows, ["learned"], training_epochs={"learned": 30.0 * rows[0].epochs})
    assert table.notes[0].paid_back == {"try_2": 20.0, "successive_halving": 60.0}
    assert (
        "Training it took as much as 30 runs of these hosts, which is what is spared by 20 hosts of try_2, 60 "
        "hosts of successive_halving." in verdict(table)
    )
    unknown = bench_table(rows, ["learned"])
    assert unknown.notes[0].training_runs is None
    assert "Training" not in " ".join(verdict(unknown))


# Rivals on frozen hosts: each is the same target with a host that is trained in another way.


CASE = "adapt:amount=0.5,size=100"


def test_a_rival_changes_how_the_host_is_trained_and_nothing_else() -> None:
    for rival in adapt_rivals():
        theirs = dict(Instance.parse(rival.case(CASE)).parameters)
        ours = dict(Instance.parse(CASE).parameters)
        assert {name: theirs.get(name) for name in ours} == ours
        assert theirs.keys() - ours.keys() <= {"trains", "statistics", "lr"}
    names = {rival.name for rival in adapt_rivals()}
    assert names >= {"head, source statistics", "fine-tuning, moving statistics", "lora 4", "lora 16"}


@pytest.mark.parametrize("case", [CASE, "adapt_stream:base=digits_layer,plan=rename@3,size=100"])
def test_the_rates_for_published_networks_are_theirs_alone(case: str) -> None:
    theirs = {arm: Instance.parse(rival.case(case)) for arm, rival in ADAPT_ARMS.items()}
    rates = {arm: each.row.complete(dict(each.parameters))["lr"] for arm, each in theirs.items()}
    assert rates == {"fine_tuning": 0.002, "lora4": 0.005, "lora16": 0.002}


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
    words = "adapters, conv_small|mlp_small from the input on at a drop of 0.15"
    player = next(rival for rival in frozen_rivals() if str(rival) == words).player()
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
def test_lora_pays_rent_for_what_it_adds_and_trains_no_more_than_that_and_the_head() -> None:
    plan = plan_bench(BenchRequest(suite=CASE, arms=("lora4",), seeds=1))
    wait, lora = plan.arms
    (waited,) = play_chunk(wait, Hosts(CASE, CASE, (0,)))
    (row,) = play_chunk(lora, Hosts(CASE, CASE, (0,), known={("wait", 0, CASE): [waited]}))
    assert waited.added_parameters == 0
    assert row.added_parameters == 4 * (24 + 5) + 4 * 4 * (24 + 120)  # the stem, and four convolutions
    assert row.host_parameters == waited.host_parameters
    assert waited.trained_parameters == 24 * 10 + 10  # the head's
    assert row.trained_parameters == waited.trained_parameters + row.added_parameters
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
