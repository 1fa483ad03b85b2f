"""Control curves: the wait-only run, computed once."""

import json
import os
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
import torch

from esper.leyline import HostsLost, HostStep
from esper.tolaria.tasks import forget, register
from esper.tolaria.worlds import baselines as controls
from esper.tolaria.worlds.baselines import BaselineCurves, BaselineRun, compute
from esper.tolaria.worlds.engine import EngineWorld
from tiny_tasks import germinate, tiny_task
from world_steps import begin_host, run_epoch


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "controls"


def test_a_run_that_waits_gains_exactly_nothing(directory: Path) -> None:
    control = BaselineCurves(4, directory).run("tiny:change=2", 5)
    world = EngineWorld(2)
    begin_host(world, 0, "tiny", 0)
    begin_host(world, 1, "tiny:change=2", 5)
    for epoch in range(5):
        report = world.host(1).report
        assert control.validation_accuracy[epoch] == report.validation_accuracy
        assert control.validation_loss[epoch] == report.validation_loss
        assert (control.judged_loss[epoch], control.judged_accuracy[epoch]) == report.judged
        assert control.train_loss[epoch] == report.train_loss
        world.host(0).apply(germinate()) if epoch == 0 else None
        run_epoch(world, [0, 1])


def test_a_curve_is_computed_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = BaselineCurves(3, directory).run("tiny", 0)

    def refuse(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(controls, "compute", refuse)
    again = BaselineCurves(3, directory)
    assert again.run("tiny", 0) == first
    assert again.curve("tiny", 0).accuracies == first.judged_accuracy
    assert again.curve("tiny", 0).losses == first.judged_loss
    assert BaselineCurves(2, directory).run("tiny:samples=61", 0) == first  # the same instance in other words
    with pytest.raises(AssertionError, match="computed again"):
        again.run("tiny", 1)
    with pytest.raises(AssertionError, match="computed again"):
        BaselineCurves(4, directory).run("tiny", 0)


def test_a_longer_curve_begins_like_the_shorter_one(directory: Path) -> None:
    short, long = BaselineCurves(2, directory).run("tiny", 0), BaselineCurves(4, directory).run("tiny", 0)
    assert long.validation_loss[:3] == short.validation_loss
    assert long.epochs == 4


def test_what_the_numbers_depend_on_is_in_the_name(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    curves = BaselineCurves(2, directory)
    path = curves._path("tiny", 0)
    assert path == curves._path("tiny", 0)
    names = ((controls, "NUMERICS"), (torch, "__version__"), (torch.backends.cpu, "get_cpu_capability"))
    for home, name in names:
        with monkeypatch.context() as changed:
            changed.setattr(home, name, (lambda: "another") if name == "get_cpu_capability" else "another")
            assert path != curves._path("tiny", 0)
    assert path != curves._path("tiny:samples=60", 0)
    assert path != curves._path("tiny", 1)
    forget("tiny")
    register(tiny_task(clip_host=0.5))
    assert path != curves._path("tiny", 0)


def test_threads_are_in_the_name_where_they_are_in_the_numbers(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, by_workers = BaselineCurves(2, directory), BaselineCurves(2, directory, trainer=controls.train_here)
    path = here._path("tiny", 0)
    assert path == by_workers._path("tiny", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert path != here._path("tiny", 0)
    assert path == by_workers._path("tiny", 0)
    # workers would train with one thread what is kept as trained with two
    monkeypatch.delattr(controls, "train_in_processes")
    here.prepare([("tiny", 0), ("tiny", 1)], workers=2)


def test_a_file_that_was_written_anew_has_another_curve(tmp_path: Path) -> None:
    curves = BaselineCurves(2, tmp_path / "controls")
    file = tmp_path / "table.csv"
    names: list[Path] = []
    for flip in (0, 1, 0):
        rows = (f"{i % 7},{(i * i) % 11},{(i + flip) % 2}" for i in range(200))
        file.write_text("\n".join(("a,b,class", *rows)))
        os.utime(file, ns=(len(names), len(names)))
        names.append(curves._path(f"tabular:path={file}", 0))
    assert names[0] != names[1]
    assert names[0] == names[2]


def test_a_damaged_file_is_computed_again(directory: Path) -> None:
    first = BaselineCurves(2, directory).run("tiny", 0)
    path = BaselineCurves(2, directory)._path("tiny", 0)
    for text in ("", "{", "[]", json.dumps({"case": "tiny"})):
        path.write_text(text)
        assert BaselineCurves(2, directory).run("tiny", 0) == first


def test_several_processes_give_the_same_curves(tmp_path: Path) -> None:
    one, many = BaselineCurves(1, tmp_path / "one"), BaselineCurves(1, tmp_path / "many")
    wanted = [("digits", 0), ("mnist1d:size=500", 0)]
    many.prepare(wanted, workers=2)
    assert len(list((tmp_path / "many").iterdir())) == 2
    for case, seed in wanted:
        assert many.run(case, seed) == one.run(case, seed)


def test_preparing_tells_how_far_it_is(directory: Path) -> None:
    curves, told = BaselineCurves(2, directory), list[tuple[int, int]]()
    curves.run("tiny", 1)  # is there already
    wanted = [("tiny", seed) for seed in (0, 1, 2, 0)]
    curves.prepare(wanted, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    curves.prepare(wanted, progress=lambda done, total: told.append((done, total)))
    assert len(told) == 3


def test_preparing_stops_when_it_is_asked_to_and_keeps_what_is_done(directory: Path) -> None:
    curves, told = BaselineCurves(2, directory), list[tuple[int, int]]()
    wanted = [("tiny", seed) for seed in range(5)]
    curves.prepare(
        wanted, progress=lambda done, total: told.append((done, total)), stop=lambda: len(told) >= 3
    )
    assert told == [(0, 5), (1, 5), (2, 5)]
    assert len(list(directory.iterdir())) == 2
    looked: list[int] = []
    curves.prepare(
        wanted,
        progress=lambda done, total: told.append((done, total)),
        looking=lambda done, _: looked.append(done),
        stop=lambda: True,
    )
    assert (len(told), looked) == (3, [0])


def test_several_at_once_are_trained_by_whoever_is_there_for_it(directory: Path) -> None:
    asked: list[list[tuple[str, int]]] = []

    def trainer(
        wanted: Sequence[tuple[str, int]], epochs: int, device: torch.device
    ) -> Generator[BaselineRun]:
        asked.append(list(wanted))
        for case, seed in reversed(wanted):  # the order in which they come back is theirs
            yield compute(case, seed, epochs, device)

    curves = BaselineCurves(2, directory, trainer=trainer)
    curves.curve("tiny", 1)
    found = curves.curves([("tiny", 0), ("tiny", 1), ("tiny", 2), ("tiny", 0)])
    assert asked == [[("tiny", 1)], [("tiny", 0), ("tiny", 2)]]
    alone = BaselineCurves(2, directory / "alone")
    assert found == [alone.curve("tiny", seed) for seed in (0, 1, 2, 0)]


def test_a_curve_is_trained_as_far_as_it_is_looked_at(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs: list[int] = []
    step_many = EngineWorld.step_many

    def count(world: EngineWorld, steps: Sequence[HostStep]) -> None:
        epochs.append(len(steps))
        step_many(world, steps)

    monkeypatch.setattr(EngineWorld, "step_many", count)
    (curve,) = BaselineCurves(4, directory).curves([("tiny:samples=61", 3)])
    assert len(curve.losses) == len(curve.accuracies) == 5
    assert not epochs
    seen = [curve.losses[0], curve.accuracies[2]]
    assert len(epochs) == 2
    assert not directory.exists()
    whole = curve.whole()
    assert len(epochs) == 4
    expected = compute("tiny", 3, 4)
    assert (whole.losses, whole.accuracies) == (expected.judged_loss, expected.judged_accuracy)
    assert seen == [whole.losses[0], whole.accuracies[2]]
    assert (curve.losses[-1], curve.losses[1:3]) == (whole.losses[4], whole.losses[1:3])
    with pytest.raises(IndexError):
        curve.losses[5]
    assert BaselineCurves(4, directory).curves([("tiny", 3)]) == [whole]  # from disk
    assert len(epochs) == 8  # 4 of them of compute


def test_a_curve_without_epochs_is_refused() -> None:
    with pytest.raises(ValueError, match="epochs must be at least 1, not 0"):
        BaselineCurves(0)


def test_a_baseline_that_cannot_be_trained_is_worth_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One host that diverges for good must not end the training of a controller on many."""
    sound, steps = compute("tiny", 0, 4), iter(range(10))
    step_many = EngineWorld.step_many

    def lose_the_third(self: EngineWorld, wanted: Sequence[HostStep]) -> None:
        if next(steps) == 2:
            raise HostsLost([0], "restored in vain")
        step_many(self, wanted)

    monkeypatch.setattr(EngineWorld, "step_many", lose_the_third)
    run = BaselineCurves(4, directory).run("tiny", 0)
    assert run.judged_accuracy == (*sound.judged_accuracy[:3], 0.0, 0.0)
    assert run.judged_loss == (*sound.judged_loss[:3], sound.judged_loss[0], sound.judged_loss[0])
    assert run.validation_accuracy[3:] == (0.0, 0.0)
    assert next(steps) == 3  # a lost host is not trained again
    assert "the baseline of tiny, seed 0, is given up: restored in vain" in caplog.text


def test_a_cache_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    curves = BaselineCurves(2, tmp_path / "file" / "controls")
    told = r"the cache .*controls cannot be written \(Not a directory\); set ESPER_CACHE to a folder that can"
    with pytest.warns(UserWarning, match=told) as warned:
        first, (looked_at,) = curves.run("tiny", 0), curves.curves([("tiny", 1)])
    with warnings.catch_warnings(action="error"):
        list(looked_at.accuracies)
    assert len(warned) == 1
    assert curves.run("tiny", 0) is first
    assert curves.curve("tiny", 1) == BaselineCurves(2, tmp_path / "there").curve("tiny", 1)
