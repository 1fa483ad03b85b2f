"""Rivals on streams: what they notice, what they do to hosts, and that they keep to the cap."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from esper.benchmark import BenchRequest, PlanError, plan_bench, planning
from esper.benchmark.arms import RULES, Hosts, RuleArm
from esper.benchmark.outcomes import Outcome, Outcomes
from esper.benchmark.playing import play_chunk
from esper.benchmark.stream_rivals import (
    FITTED,
    STREAM_RIVALS,
    TUNED,
    AdapterPolicy,
    StreamArm,
    StreamRival,
    UpkeepPlayer,
    played_rivals,
    require_streaming,
    stream_rivals,
    wide_cases,
)
from esper.leyline import DecisionSettings, LifecycleOp
from esper.simic.env.episodes import Episodes
from esper.simic.env.making import make_world
from esper.simic.evaluation import RulePlayer
from esper.simic.reward import RewardConfig
from esper.tamiyo.tracker import DropDetector
from esper.tolaria.data import TaskData
from esper.tolaria.engine.host import TrainedHost
from esper.tolaria.tasks import Instance, ParameterSpec, forget, register, task
from esper.tolaria.upkeep import L2Init, Reset, Upkeep
from tiny_tasks import tiny_task

CASE = "tiny_stream:change=3"
OUTCOME = Outcome(False, "stream:size=500", "", 0, 0.5, 0.5, 1426, 0, 0.01, None, None, (), ())


@pytest.fixture(autouse=True)
def _tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path))
    register(tiny_task("tiny_stream", epochs=8, counts="life"))
    yield
    forget("tiny_stream")


def begun(player: RulePlayer | UpkeepPlayer, case: str = CASE, hosts: int = 2) -> Episodes:
    setting = make_world(case, hosts)
    reward = RewardConfig(rent=setting.rent, counts=setting.counts, control_variate=False)
    decisions = player.decisions(hosts) if isinstance(player, RulePlayer) else DecisionSettings()
    episodes = setting.episodes(reward=reward, decisions=decisions)
    for env_idx in range(hosts):
        episodes.seed(env_idx, 0)
        episodes.begin(env_idx, case=case, host_seed=env_idx)
    player.begin(hosts)
    return episodes


def test_a_drop_is_noticed_once() -> None:
    detector = DropDetector(0.2)
    seen = [detector.noticed(accuracy) for accuracy in (0.5, 0.8, 0.61, None, 0.59, 0.5, 0.7, 0.45)]
    assert seen == [False, False, False, False, True, False, False, True]
    with pytest.raises(ValueError, match=r"drop is 1\.5; expected between 0 and 1"):
        DropDetector(1.5)


def test_upkeep_that_does_nothing_is_waiting() -> None:
    runs = []
    for player in (UpkeepPlayer(Upkeep), UpkeepPlayer(lambda: L2Init(0.0))):
        episodes = begun(player)
        for _ in range(5):
            episodes.step(player.act(episodes, np.zeros(2)))
        runs.append([episodes.host(env_idx).report for env_idx in range(2)])
    waited = begun(UpkeepPlayer(Upkeep))
    for _ in range(5):
        waited.step(np.zeros((2, 8), dtype=np.int64))
    assert runs[0] == runs[1] == [waited.host(env_idx).report for env_idx in range(2)]


def test_a_strong_pull_keeps_the_weights_where_they_began() -> None:
    moved = []
    for strength in (0.0, 1e4):
        player = UpkeepPlayer(lambda strength=strength: L2Init(strength))  # type: ignore[misc]
        episodes = begun(player, hosts=1)
        host = episodes.host(0)
        assert isinstance(host, TrainedHost)
        start = torch.cat([weight.detach().flatten() for weight in host.model.bare_parameters()])
        for _ in range(4):
            episodes.step(player.act(episodes, np.zeros(1)))
        now = torch.cat([weight.detach().flatten() for weight in host.model.bare_parameters()])
        moved.append(float((now - start).norm()))
    assert moved[1] < 0.5 * moved[0]


def test_a_reset_comes_with_the_drop_and_not_before() -> None:
    resets: list[int] = []

    class Noted(Reset):
        def maintain(self, inputs: torch.Tensor, *, changed: bool = False) -> None:
            if changed:
                resets.append(len(inputs))
            super().maintain(inputs, changed=changed)

    player = UpkeepPlayer(Noted, drop=0.05)
    episodes = begun(player, hosts=1)
    before = 0
    for epoch in range(6):
        episodes.step(player.act(episodes, np.zeros(1)))
        if epoch == 3:  # the first epoch on the new data was just trained; nothing can have been noticed yet
            before = len(resets)
    assert len(resets) > before
    assert set(resets) <= {61, 67}  # samples of now


@pytest.mark.slow
def test_adapters_answer_each_drop_within_the_cap_and_replace_the_oldest() -> None:
    case = "short_stream:plan=labels@6/labels@14/labels@22/labels@30/labels@38,size=1000,cap=0.21"
    register(replace(task("stream"), name="short_stream"))
    try:
        player = RulePlayer(lambda _: AdapterPolicy(drop=0.1, kind="lora"))
        episodes = begun(player, case, hosts=1)
        done = []
        for _ in range(46):
            actions = player.act(episodes, np.zeros(1))
            episodes.step(actions)
            done.append(int(actions[0, 0]))
            host = episodes.host(0)
            assert host.added_parameters <= int(0.21 * 1426)
    finally:
        forget("short_stream")
    assert done.count(LifecycleOp.GERMINATE) >= 3
    assert done.count(LifecycleOp.RETIRE) >= 1  # the cap has room for two
    assert done.index(LifecycleOp.RETIRE) > done.index(LifecycleOp.FOSSILIZE)


def test_a_wide_host_has_all_that_its_cap_allows() -> None:
    cases = ["stream:cap=0.5,size=500", "stream:cap=2.0,size=500"]
    with wide_cases(cases, 1426) as wide:
        assert len(set(wide)) == 2
        for case, allowed in zip(wide, (1426 + 713, 1426 + 2852), strict=True):
            instance = Instance.parse(case)
            host = task(instance.task).host(instance.load())
            assert abs(sum(weight.numel() for weight in host.parameters()) - allowed) < 0.02 * allowed
    with pytest.raises(ValueError, match="no task is named"):
        Instance.parse(wide[0])


def test_rivals_are_arms_that_pay_for_their_width() -> None:
    register(replace(task("stream"), name="brief", epochs=3))
    try:
        case = "brief:size=500,cap=1.0"
        waited = play_chunk(RuleArm("wait"), Hosts(case, case, (0,)))
        known = {("wait", 0, case): waited}
        wide = next(rival for rival in stream_rivals() if rival.name == "wide")
        (played,) = play_chunk(StreamArm(wide), Hosts(case, case, (0,), known))
    finally:
        forget("brief")
    assert played.host_parameters == 1426
    assert played.life_added == pytest.approx(1426, rel=0.02)
    assert played.parameter_budget == waited[0].parameter_budget == 1426  # the cap is over the bare host
    assert played.epoch_parameters == (round(played.life_added or 0.0),) * 4
    assert played.utility is not None
    assert played.life_added is not None
    mean = np.mean([accuracy for accuracy in played.validation_accuracies[1:] if accuracy is not None])
    assert played.utility == pytest.approx(mean - 0.01 * played.life_added / 1426)


def test_every_rival_has_words_of_its_own() -> None:
    rivals = stream_rivals()
    assert len({str(rival) for rival in rivals}) == len(rivals)
    assert {rival.name for rival in rivals} == {
        "wait",
        "wide",
        "l2_init",
        "shrink_and_perturb",
        "continual_backprop",
        "redo",
        "reset",
        "detect_then_probe",
        "adapters",
        "look_again",
        "look_always",
    }
    assert str(StreamRival("redo", "threshold 0.1", lambda: UpkeepPlayer(Upkeep), wide=True)) == (
        "redo, as wide as the cap, threshold 0.1"
    )


def test_each_rival_is_an_arm_by_its_name_with_its_tuned_setting() -> None:
    plan = plan_bench(BenchRequest(suite="stream", arms=tuple(TUNED), instances=2))
    assert [arm.name for arm in plan.arms] == ["wait", *TUNED]
    assert plan.treatments == tuple(TUNED)
    for arm in plan.arms[1:]:
        assert isinstance(arm, StreamArm)
        assert arm.identity == f"rival of streams: {TUNED[arm.name]}"
        assert pickle.loads(pickle.dumps(arm)).identity == arm.identity  # worker processes get it so
    assert set(TUNED) == {rival.name for rival in stream_rivals()} - {"wait"}
    assert set(played_rivals()) - set(STREAM_RIVALS) == {"detect_then_probe"} <= set(RULES)


def test_by_default_a_stream_has_every_rival_and_other_suites_none() -> None:
    names = [arm.name for arm in plan_bench(BenchRequest(suite="stream", instances=2)).arms]
    assert set(STREAM_RIVALS) <= set(names)
    assert names.count("detect_then_probe") == 1
    assert not set(STREAM_RIVALS) & {arm.name for arm in plan_bench(BenchRequest(suite="toy")).arms}


@pytest.mark.parametrize(
    ("suite", "arm", "message"),
    [
        ("digits", "redo", "redo is a rival on streams, and digits is none: choose --suite stream"),
        ("toy", "wide", "wide needs hosts that are trained, and those of toy are not"),
        (CASE, "wide", f"wide is as wide as the cap, and {CASE} has none"),
    ],
)
def test_a_rival_that_cannot_be_played_is_refused_by_name(suite: str, arm: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan_bench(BenchRequest(suite=suite, arms=(arm,)))


def test_units_begin_anew_only_where_layers_read_one_another() -> None:
    def forked(data: TaskData) -> nn.Module:
        return nn.ModuleList([nn.Linear(3, 5), nn.Linear(3, data.classes)])

    cap = ParameterSpec(kind="float", default=1.0, low=0.0, doc="for tests")
    row = tiny_task("forked", counts="life", parameters={**task("tiny_stream").parameters, "cap": cap})
    register(replace(row, host=forked))
    try:
        with pytest.raises(
            PlanError, match=r"redo cannot be played on forked: the static control widens a ConvNet"
        ):
            plan_bench(BenchRequest(suite="forked", arms=("redo",)))
        narrow = replace(played_rivals()["redo"], wide=False)
        with pytest.raises(PlanError, match=r"redo cannot be played on forked: a Linear reads 3 units"):
            require_streaming(narrow, "forked")
    finally:
        forget("forked")


@pytest.mark.parametrize("name", ["look_again", "look_always"])
def test_what_grows_a_mixer_is_refused_where_there_is_none(name: str) -> None:
    with pytest.raises(PlanError, match=f"{name} grows a mixer, and slow_bits"):
        require_streaming(played_rivals()[name], "slow_bits")


def test_look_again_is_fitted_where_there_are_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = replace(FITTED, drop=0.07)
    monkeypatch.setattr(Outcomes, "read", lambda _: Outcomes([OUTCOME]))
    monkeypatch.setattr(planning, "fit_look_again", lambda outcomes, samples: fitted if samples else None)  # noqa: ARG005
    plan = plan_bench(
        BenchRequest(suite="stream", arms=("look_again",), instances=1, outcomes="some.parquet")
    )
    assert plan.arms[1].identity == f"rival of streams: look_again, {fitted}"
