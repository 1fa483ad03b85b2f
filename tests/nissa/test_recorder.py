"""Recording disturbs nobody: sinks that fail, generators that are not touched, weights that are the same."""

import random
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from esper.leyline import NOWHERE, EventSink, Place, PlacedSink, RoundFinished, RunSink, SeedFading
from esper.nissa import (
    KINDS,
    NullSink,
    Record,
    Recorder,
    RunDirectory,
    RunError,
    SinkFailed,
    collect_provenance,
    open_recorder,
    read_events,
)
from esper.nissa.recorder import JsonlSink, TensorBoardSink, WandbSink
from esper.simic.agent import PPOAgent, PPOConfig, PPOUpdateMetrics
from esper.simic.gymnasium_loop import action_layout, learn
from esper.simic.reports import BatchSummary, round_finished
from esper.tamiyo import ActorCritic
from event_examples import EXAMPLES

FADING = SeedFading("blocks.0", 0.5, 3)


class Memory:
    """A sink that remembers."""

    name = "memory"

    def __init__(self) -> None:
        self.calls: list[Record | str] = []

    def write(self, record: Record) -> None:
        self.calls.append(record)

    def flush(self) -> None:
        self.calls.append("flush")

    def close(self) -> None:
        self.calls.append("close")


class Failing(Memory):
    """A sink whose disk is full from the given call on."""

    name = "failing"

    def __init__(self, method: str, after: int = 0) -> None:
        super().__init__()
        self.method, self.left = method, after

    def _maybe_fail(self, method: str) -> None:
        if method == self.method:
            if self.left == 0:
                raise OSError(28, "No space left on device")
            self.left -= 1

    def write(self, record: Record) -> None:
        super().write(record)
        self._maybe_fail("write")

    def flush(self) -> None:
        super().flush()
        self._maybe_fail("flush")

    def close(self) -> None:
        super().close()
        self._maybe_fail("close")


def test_every_sink_gets_every_event_with_time_and_place() -> None:
    one, two = Memory(), Memory()
    with Recorder([one, two], clock=iter([1.0, 2.0]).__next__) as recorder:
        recorder.emit(FADING)
        recorder.emit(EXAMPLES["decision_taken"].event, Place(round=99))
    expected = [
        Record(1.0, NOWHERE, FADING),
        Record(2.0, Place(4, 3, 7, 2), EXAMPLES["decision_taken"].event),
        "close",
    ]
    assert one.calls == two.calls == expected
    recorder.close()
    assert one.calls == expected


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_reader_must_find_is_flushed(kind: str) -> None:
    memory = Memory()
    Recorder([memory]).emit(EXAMPLES[kind].event)
    flushed = kind in ("run_started", "round_finished", "checkpoint_saved", "run_finished")
    assert memory.calls[1:] == (["flush"] if flushed else [])


def test_a_placed_sink_says_where() -> None:
    memory = Memory()
    recorder: RunSink = Recorder([memory], clock=lambda: 0.0)
    placed = PlacedSink(recorder, Place(env=3, epoch=1))
    sink: EventSink = placed
    sink.emit(FADING)
    placed.place = replace(placed.place, epoch=2)
    sink.emit(FADING)
    assert memory.calls == [Record(0.0, Place(env=3, epoch=epoch), FADING) for epoch in (1, 2)]


@pytest.mark.parametrize("method", ["write", "flush", "close"])
def test_a_failing_sink_is_told_once_and_left(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    failing, memory = Failing(method, after=0), Memory()
    with Recorder([failing, memory]) as recorder:
        for _ in range(3):
            recorder.emit(EXAMPLES["round_finished"].event)
    assert len([call for call in memory.calls if isinstance(call, Record)]) == 3
    assert memory.calls[-1] == "close"
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert told[0].startswith("esper: failing is no longer recorded (OSError: [Errno 28] No space left")
    if method == "write":
        assert [call for call in failing.calls if call != "close"] == failing.calls[:1]


def test_a_callback_that_fails_does_no_harm() -> None:
    failures: list[SinkFailed] = []

    def complain(failure: SinkFailed) -> None:
        failures.append(failure)
        raise RuntimeError("nobody listens")

    recorder = Recorder([Failing("write", after=1)], on_failure=complain)
    for _ in range(3):
        recorder.emit(FADING)
    assert [failure.sink for failure in failures] == ["failing"]


def test_an_event_that_cannot_be_written_is_a_failure_of_the_sink(tmp_path: Path) -> None:
    failures: list[SinkFailed] = []
    recorder = Recorder([JsonlSink(tmp_path / "events.jsonl")], on_failure=failures.append)
    recorder.emit(SeedFading("a", alpha=torch.ones(()), epochs=3))  # type: ignore[arg-type]
    assert "alpha is a Tensor" in str(failures[0])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_does_not_stop_the_others() -> None:
    failures: list[SinkFailed] = []
    memory = Memory()
    recorder = Recorder([JsonlSink(Path("/dev/full")), memory], on_failure=failures.append)
    for _ in range(3):
        recorder.emit(EXAMPLES["round_finished"].event)
    recorder.close()
    assert [failure.sink for failure in failures] == ["events.jsonl"]
    assert len(memory.calls) == 7


def test_an_interrupt_is_not_swallowed() -> None:
    class Interrupted(Memory):
        def write(self, record: Record) -> None:
            raise KeyboardInterrupt(record)

    with pytest.raises(KeyboardInterrupt):
        Recorder([Interrupted()]).emit(FADING)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    provenance = collect_provenance(seeds={}, device="cpu", precision="fp32")
    return RunDirectory.create(tmp_path, "one", {"envs": 8}, provenance)


def test_a_runs_recorder(run: RunDirectory) -> None:
    with open_recorder(run) as recorder:
        for record in EXAMPLES.values():
            recorder.emit(record.event, record.place)
    assert [(r.event, r.place) for r in read_events(run.path)] == [
        (r.event, r.place) for r in EXAMPLES.values()
    ]
    assert len(list((run.path / "tensorboard").glob("events.out.tfevents.*"))) == 1
    with open_recorder(run, tensorboard=False):
        pass
    assert len(list((run.path / "tensorboard").iterdir())) == 1


def test_a_recorder_that_cannot_open_its_files_raises(run: RunDirectory) -> None:
    (run.path / "events.jsonl").mkdir()
    with pytest.raises(RunError, match="Is a directory"):
        open_recorder(run)


def test_tensorboard_can_be_read_back(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = EXAMPLES["round_finished"]
    assert isinstance(first.event, RoundFinished)
    with Recorder([TensorBoardSink(tmp_path)], clock=lambda: 5.0) as recorder:
        recorder.emit(first.event)
    with Recorder([TensorBoardSink(tmp_path)], clock=lambda: 6.0) as recorder:  # a resumed run
        recorder.emit(replace(first.event, round=5, env_steps=3200, value_loss=float("nan")))
    read = EventAccumulator(str(tmp_path)).Reload()
    losses = read.Scalars("losses/value_loss")
    assert [(loss.step, loss.wall_time) for loss in losses] == [(2560, 5.0), (3200, 6.0)]
    assert losses[0].value == 0.125
    assert np.isnan(losses[1].value)
    assert "entropy/style" not in read.Tags()["scalars"]  # unknown is not drawn


class FakeWandb(ModuleType):
    def __init__(self) -> None:
        super().__init__("wandb")
        self.given: dict[str, object] = {}
        self.logged: list[tuple[dict[str, float], int]] = []
        self.finished = False

    def init(self, **given: object) -> "FakeWandb":
        self.given = given
        return self

    def log(self, data: dict[str, float], *, step: int) -> None:
        self.logged.append((data, step))

    def finish(self) -> None:
        self.finished = True


def test_wandb_gets_the_same_numbers(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with open_recorder(run, wandb_project="growth") as recorder:
        recorder.emit(EXAMPLES["round_finished"].event)
        recorder.emit(FADING)
    assert fake.given["project"] == "growth"
    assert (fake.given["name"], fake.given["config"]) == ("one", {"envs": 8})
    assert [(step, data["charts/gain"]) for data, step in fake.logged] == [(2560, 0.0625)]
    assert fake.finished


def test_without_wandb_the_error_says_what_to_do(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(RunError, match=r"pip install 'esper-grow\[wandb\]'"):
        open_recorder(run, wandb_project="growth")


def test_wandb_that_breaks_does_not_stop_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    failures: list[SinkFailed] = []
    recorder = Recorder([WandbSink("growth", "one", tmp_path, {})], on_failure=failures.append)
    monkeypatch.setattr(fake, "log", None)
    recorder.emit(EXAMPLES["round_finished"].event)
    assert [failure.sink for failure in failures] == ["wandb"]


# SPEC E7: telemetry is one-way.


def generators() -> tuple[Any, ...]:
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002 (looking, not drawing)
    assert isinstance(numpy_state, dict)
    return torch.get_rng_state().tolist(), random.getstate(), str(numpy_state["state"])


def test_no_generator_is_touched_and_nothing_is_changed(run: RunDirectory) -> None:
    before, told = generators(), repr(list(EXAMPLES.values()))
    with open_recorder(run) as recorder:
        for record in EXAMPLES.values():
            recorder.emit(record.event, record.place)
    list(read_events(run.path))
    assert generators() == before
    assert repr(list(EXAMPLES.values())) == told


def trained(sink: RunSink) -> dict[str, torch.Tensor]:
    envs = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    layout = action_layout(envs.single_action_space)
    policy = ActorCritic(4, layout, generator=torch.Generator().manual_seed(1))
    agent = PPOAgent(policy, PPOConfig(n_epochs=1), num_envs=3, num_steps=16, seed=1)

    def tell(metrics: PPOUpdateMetrics) -> None:
        sink.emit(
            round_finished(
                1,
                metrics,
                BatchSummary(),
                env_steps=agent.env_steps,
                seconds=1.0,
                learning_rate=3e-4,
                reward_components={},
            )
        )

    learn(agent, envs, 96, seed=1, progress=tell)
    envs.close()
    return {name: value.clone() for name, value in policy.state_dict().items()}


def test_a_run_without_recording_ends_with_the_same_weights(run: RunDirectory) -> None:
    silent = trained(NullSink())
    with open_recorder(run) as recorder:
        recorded = trained(recorder)
    assert all(torch.equal(silent[name], recorded[name]) for name in silent)
    assert len(list(read_events(run.path))) == 2
