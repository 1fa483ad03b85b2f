"""Chunks: every arm meets the same hosts, rows say what happened, and what would be repeated is not played."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from bench_rows import ROW
from esper.benchmark.arms import Arm, BlindArm, Group, Hosts, LearnedArm, MatchedArm, RuleArm, ScheduleArm
from esper.benchmark.controllers import ControllerError, find_controller, open_controller, open_fitting
from esper.benchmark.playing import KnownBaselines, play_chunk
from esper.benchmark.rows import BenchRow
from esper.benchmark.suites import host_seed
from esper.nissa import Checkpoints
from esper.nissa.run_directory import collect_provenance
from esper.runs.ship import controller_of_run
from esper.simic.building import build, evaluation_episodes
from esper.simic.cloning import PolicyNetwork, clone_rule
from esper.simic.config.training_config import TrainingConfig
from esper.simic.evaluation import LearnedPlayer, judge_cases
from esper.simic.trainer import train_ppo_vectorized
from esper.tolaria import final_report
from esper.tolaria.data import TaskData
from esper.tolaria.tasks import forget, register, task
from esper.tolaria.worlds.baselines import BaselineCurves
from tiny_controllers import tiny_controller
from tiny_tasks import tiny_task

GROW = "germinate mixer@1 t=0; advance 1 t=1; fossilize 1 t=3"


def play(
    arm: Arm, case: str, known: dict[Group, list[BenchRow]] | None = None, *, member: int = 0
) -> list[BenchRow]:
    return play_chunk(arm, Hosts(case, case, (0, 1), known or {}, member))


def without_seconds(rows: list[BenchRow]) -> list[BenchRow]:
    return [replace(row, wall_seconds=0.0) for row in rows]


def test_waiting_is_the_control_curve(tiny: str) -> None:
    for row in play(RuleArm("wait"), tiny):
        control = BaselineCurves(7).curve(tiny, row.host_seed)
        assert row.host_seed == host_seed(tiny, row.seed)
        assert (row.validation_accuracies, row.validation_losses) == (control.accuracies, control.losses)
        assert row.utility == row.validation_accuracy == control.accuracies[-1]
        assert (row.added_parameters, row.decisions, row.seeds) == (0, "", ())
        assert row.train_accuracies[0] is None
        assert row.training_flops is not None
        assert row.training_flops > 0
        longer = KnownBaselines({(tiny, row.host_seed): row}, 9).curve(tiny, row.host_seed)
        assert longer.losses == (*control.losses, *[control.losses[-1]] * 2)
        assert longer.accuracies == (*control.accuracies, *[control.accuracies[-1]] * 2)


def test_rows_do_not_depend_on_who_is_beside(tiny: str) -> None:
    arm = ScheduleArm("sbs", {tiny: GROW})
    together = without_seconds(play(arm, tiny))
    alone = [play_chunk(arm, Hosts(tiny, tiny, (seed,)))[0] for seed in (0, 1)]
    assert together == without_seconds(alone)
    assert together[0].validation_losses != together[1].validation_losses


def test_a_schedule_is_told_as_it_was_executed(tiny: str) -> None:
    for row in play(ScheduleArm("sbs", {tiny: GROW}), tiny):
        assert row.decisions == (
            "germinate mixer@blocks.1 t=0; advance blocks.1 t=1; fossilize blocks.1 t=4"  # it held since 4
        )
        (seed,) = row.seeds
        assert (seed.slot, seed.blueprint, seed.fossilized, seed.kept) == ("blocks.1", "mixer", True, True)
        assert seed.contribution is not None
        assert row.added_parameters == seed.parameters
        assert row.validation_accuracy is not None
        rent = 0.01 * seed.parameters / row.host_parameters
        assert row.utility == pytest.approx(row.validation_accuracy - rent)
    again = ScheduleArm("vbs", {tiny: play(ScheduleArm("sbs", {tiny: GROW}), tiny)[0].decisions})
    assert [row.validation_losses for row in play(again, tiny)] == [
        row.validation_losses for row in play(ScheduleArm("sbs", {tiny: GROW}), tiny)
    ]


RETIRE = "germinate mixer@1 t=0; advance 1 t=1; fossilize 1 t=3; retire 1 t=8"


def test_a_fossil_that_was_given_back_is_neither_kept_nor_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a schedule, and by a blind copy of what it did."""
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path))
    register(tiny_task(epochs=11))
    try:
        rows = play(ScheduleArm("sbs", {"tiny": RETIRE}), "tiny")
        blind = play(BlindArm("sbs", 1), "tiny", {("sbs", 0, "tiny"): rows})
    finally:
        forget("tiny")
    for row in (*rows, *blind):
        assert row.decisions.endswith("retire blocks.1 t=8")
        assert (row.added_parameters, row.kept) == (0, ())
        assert row.utility == row.validation_accuracy
    assert [row.validation_losses for row in rows] == [row.validation_losses for row in blind]


def test_a_row_has_every_seed_from_birth_to_end(tiny: str) -> None:
    """One is pruned, one becomes a fossil and is there at the end."""
    first, second = "germinate norm@0 t=0; advance 0 t=1; prune 0 t=3", "germinate mixer@1 t=4; advance 1 t=5"
    schedule = f"{first}; {second}; fossilize 1 t=6"
    for row in play(ScheduleArm("sbs", {tiny: schedule}), tiny):
        norm, mixer = row.lives
        assert (norm.slot, norm.blueprint, norm.born, norm.ended, norm.fossilized) == (
            "blocks.0",
            "norm",
            0,
            3,
            None,
        )
        assert (mixer.slot, mixer.blueprint, mixer.born, mixer.ended) == ("blocks.1", "mixer", 4, None)
        assert mixer.fossilized in (None, 7)  # settled at 7, a fossil where it could be one by then
        sizes = [0, *[norm.parameters] * 3, 0, *[mixer.parameters] * 3]
        assert list(row.epoch_parameters) == sizes
        assert row.parameter_budget is None  # tiny has no cap
    assert all(row.lives == () and set(row.epoch_parameters) == {0} for row in play(RuleArm("wait"), tiny))


def test_matched_arms_have_what_was_kept(tiny: str) -> None:
    wait, grown = play(RuleArm("wait"), tiny), play(ScheduleArm("grown", {tiny: GROW}), tiny)
    known = {("wait", 0, tiny): wait, ("grown", 0, tiny): grown}
    for name in ("static", "from_birth", "from_scratch", "random_matched"):
        rows = play(MatchedArm(name, "grown", 1), tiny, known)
        assert [row.arm for row in rows] == [name] * 2
        assert {row.host_parameters for row in rows} == {wait[0].host_parameters}
        assert [row.host_seed for row in rows] == [row.host_seed for row in wait]
        assert all(row.instance == tiny for row in rows)
        if name == "static":
            assert all(not row.decisions and not row.seeds for row in rows)
            assert rows[0].parameters == pytest.approx(grown[0].parameters, rel=0.05)
        if name == "from_birth":
            assert rows[0].validation_losses == grown[0].validation_losses  # it was born at 0 there, too
        if name == "from_scratch":
            assert not rows[0].decisions
            assert rows[0].parameters == grown[0].parameters
            assert rows[0].training_flops != grown[0].training_flops
        if name == "random_matched":
            assert rows[0].decisions.count("germinate") == 1


def test_nothing_kept_is_nothing_to_match(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = play(RuleArm("wait"), tiny)
    known = {("wait", 0, tiny): wait, ("idle", 0, tiny): [replace(row, arm="idle") for row in wait]}
    monkeypatch.setattr("esper.benchmark.playing.judge_cases", None)
    rows = play(MatchedArm("static", "idle", 1), tiny, known)
    assert rows == [replace(row, arm="static") for row in wait]
    assert play(ScheduleArm("vbs", {tiny: ""}), tiny, known) == [replace(row, arm="vbs") for row in wait]


def test_members_of_the_reference_take_turns() -> None:
    arm = MatchedArm("static", "learned", 3)
    assert arm.needs("a", ("a", "b")) == (
        ("wait", 0, "a"),
        ("learned", 0, "a"),
        ("learned", 1, "a"),
        ("learned", 2, "a"),
    )


def test_a_blind_copy_takes_the_next_instance(tiny: str) -> None:
    arm = BlindArm("grown", 2)
    assert arm.needs("b", ("a", "b", "c")) == (("grown", 0, "c"), ("grown", 1, "c"))
    assert arm.needs("c", ("a", "b", "c")) == (("grown", 0, "a"), ("grown", 1, "a"))
    grown = play(ScheduleArm("grown", {tiny: GROW}), tiny)
    idle = [replace(row, member=1, decisions="") for row in grown]
    rows = play(arm, tiny, {("grown", 0, "other"): grown, ("grown", 1, "other"): idle})
    assert [row.decisions for row in rows] == [grown[0].decisions, ""]


def test_the_test_split_is_opened_once_an_episode(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[TaskData] = []
    real = final_report.test_score

    def counted(model: object, data: TaskData) -> object:
        opened.append(data)
        return real(model, data)  # type: ignore[arg-type]

    monkeypatch.setattr(final_report, "test_score", counted)
    play(RuleArm("probe_and_keep"), tiny)
    assert len(opened) == 2


# Controllers


@pytest.fixture
def run(tiny: str, tmp_path: Path) -> Path:
    config = TrainingConfig.of(
        {
            "suite": tiny,
            "num_envs": 2,
            "num_minibatches": 1,
            "hidden_size": 16,
            "rounds": 1,
            "eval_every": 0,
            "pool_cases": 1,
            "pool_host_seeds": 1,
            "freeze_tempo": 3,
        }
    )
    config.save(_made(tmp_path / "run") / "config.json")
    train_ppo_vectorized(config, checkpoints=Checkpoints(tmp_path / "run" / "checkpoints"))
    return tmp_path / "run"


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_controller_plays_as_it_was_trained(tiny: str, run: Path) -> None:
    file = find_controller(run)
    known = {("wait", 0, tiny): play(RuleArm("wait"), tiny)}
    rows = play(LearnedArm("learned", (file,)), tiny, known)
    config = TrainingConfig.load(run / "config.json")
    training = build(config)
    training.agent.load(file.checkpoint)
    wanted = [(tiny, host_seed(tiny, seed)) for seed in (0, 1)]
    arena = evaluation_episodes(training, config, 2)
    judged = judge_cases(LearnedPlayer(training.agent.actor), arena, wanted, look=lambda *_: 1)
    assert [row.utility for row in rows] == [one.summary.utility for one in judged]
    open_fitting(file, tiny)


def test_an_idle_controller_is_the_waiting_host(run: Path) -> None:
    arm, waited = LearnedArm("learned", (find_controller(run),)), replace(ROW, test_accuracy=0.25, seed=3)
    hosts = Hosts("cpu", ROW.instance, (3,), {("wait", 0, ROW.instance): [waited]}, member=0)
    idle = replace(ROW, arm="learned", seed=3, test_accuracy=0.26)
    assert arm.settled(hosts, idle) == replace(waited, arm="learned")
    busy = replace(idle, decisions="germinate mixer@0 t=3")
    assert arm.settled(hosts, busy) is busy
    assert RuleArm("plateau").settled(hosts, idle) is idle


def test_an_exported_controller_plays_as_its_run(
    tiny: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = find_controller(run)
    provenance = collect_provenance(seeds={}, device="cpu", precision="fp32")
    (run / "provenance.json").write_text(provenance.model_dump_json())
    controller_of_run(run, checkpoint.checkpoint, name="mine").save(tmp_path / "mine")
    exported = find_controller(tmp_path / "mine")
    known = {("wait", 0, tiny): play(RuleArm("wait"), tiny)}
    first, again = (play(LearnedArm("learned", (file,)), tiny, known) for file in (checkpoint, exported))
    assert [row.decisions for row in first] == [row.decisions for row in again]
    assert [row.utility for row in first] == [row.utility for row in again]
    monkeypatch.setattr("esper.tamiyo.controller.SHIPPED", tmp_path)
    assert find_controller(Path("mine")) == exported
    shutil.copytree(tmp_path / "mine", tmp_path / "torn")
    (tmp_path / "torn" / "weights.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ControllerError, match="damaged, or replaced"):
        open_controller(find_controller(tmp_path / "torn"), "toy")


def test_a_controller_serves_hosts_of_another_kind(tiny: str, tmp_path: Path) -> None:
    """Its card tells of one slot and one blueprint; these hosts have others."""
    tiny_controller(scale=3.0).save(tmp_path / "foreign")
    file = find_controller(tmp_path / "foreign")
    open_fitting(file, tiny)
    known = {("wait", 0, tiny): play(RuleArm("wait"), tiny)}
    rows = play(LearnedArm("foreign", (file,)), tiny, known)
    assert all(row.utility is not None for row in rows)
    assert any("germinate" in row.decisions for row in rows)


def test_a_cloned_network_is_a_controller(tmp_path: Path) -> None:
    config = TrainingConfig.preset("toy", num_envs=4, num_minibatches=1, hidden_size=16, pool_cases=8)
    network, _ = clone_rule(config, "probe_and_keep", episodes=8, held_out=1)
    network.save(tmp_path / "clone.safetensors")
    file = find_controller(tmp_path / "clone.safetensors")
    open_fitting(file, "toy")
    case = "toy:draw=3"
    known = {("wait", 0, case): play_chunk(RuleArm("wait"), Hosts("toy", case, (0, 1)))}
    rows = play_chunk(LearnedArm("clone", (file,)), Hosts("toy", case, (0, 1), known))
    assert [row.arm for row in rows] == ["clone", "clone"]
    assert all(row.utility is not None for row in rows)
    PolicyNetwork(network.space).save(tmp_path / "bare.safetensors")
    with pytest.raises(ControllerError, match="does not say what settings"):
        open_controller(find_controller(tmp_path / "bare.safetensors"), "toy")


def test_controllers_are_found_and_mistakes_are_told(run: Path, tmp_path: Path) -> None:
    best = run / "checkpoints" / "best.pt"
    last = run / "checkpoints" / "last.pt"
    assert find_controller(run).checkpoint == (best if best.exists() else last)
    assert find_controller(last).digest == find_controller(last).digest
    with pytest.raises(ControllerError, match="there is no such controller, run or checkpoint"):
        find_controller(tmp_path / "none.pt")
    with pytest.raises(
        ControllerError, match="is not the folder of a controller, or of a run with a checkpoint"
    ):
        find_controller(tmp_path)
    with pytest.raises(ControllerError, match="does not fit the hosts of mnist1d"):
        open_fitting(find_controller(run), "mnist1d")
    last.write_bytes(b"nonsense")
    with pytest.raises(ControllerError, match="damaged or cut short"):
        open_controller(find_controller(last), "toy")


def test_a_life_is_scored_over_all_of_it_and_tested_phase_by_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested: list[list[int]] = []

    def scores(models: Sequence[nn.Module], data: TaskData) -> list[final_report.TestScore]:
        known = [0.1, 0.2, 0.6, 0.9][: len(final_report.phase_scores(models, data))]
        tested.append([sum(p.numel() for p in model.parameters()) for model in models])
        return [final_report.TestScore(accuracy=accuracy, loss=1.0, samples=1) for accuracy in known]

    monkeypatch.setenv("ESPER_CACHE", str(tmp_path))
    monkeypatch.setattr("esper.benchmark.playing.phase_scores", scores)
    register(replace(task("stream"), name="short_life", epochs=7))
    try:
        case = "short_life:plan=classes4@2/labels@5/shuffle@40,size=500"
        (waited,) = play_chunk(RuleArm("wait"), Hosts(case, case, (0,)))
        late = GROW.replace("t=0", "t=2")
        (grown,) = play_chunk(ScheduleArm("sbs", {case: late}), Hosts(case, case, (0,)))
    finally:
        forget("short_life")
    assert tested[0] == [1426] * 3  # the last change is never lived
    assert tested[1][:2] == [1426, 1426 + 436]  # each as it stood when its phase ended
    assert waited.life_added == 0
    assert grown.life_added == pytest.approx(436 * (5 if grown.added_parameters else 4) / 7)
    for row in (waited, grown):
        assert row.validation_accuracy is not None
        assert row.life_added is not None
        rent = 0.01 * row.life_added / row.host_parameters
        lived = [accuracy or 0.0 for accuracy in row.validation_accuracies[1:-1]]
        assert row.utility == pytest.approx(sum([*lived, row.validation_accuracy]) / 7 - rent)
        on_test = (2 * 0.1 + 3 * 0.2 + 2 * 0.6) / 7
        assert row.test_accuracy == pytest.approx(on_test)
        assert row.score == pytest.approx(on_test - rent)
