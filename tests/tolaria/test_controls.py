"""Control curves: the wait-only run, computed once."""

import json
import os
from pathlib import Path

import pytest
import torch

from esper.tolaria import controls
from esper.tolaria.controls import ControlCurves
from esper.tolaria.tasks import forget, register
from esper.tolaria.world import EngineWorld
from tiny_tasks import germinate, tiny_task


@pytest.fixture
def curves(tmp_path: Path) -> ControlCurves:
    return ControlCurves(tmp_path / "controls")


def test_a_run_that_waits_gains_exactly_nothing(curves: ControlCurves) -> None:
    control = curves.curve("tiny:change=2", 5, epochs=4)
    world = EngineWorld(2)
    world.begin(0, "tiny", 0)
    world.begin(1, "tiny:change=2", 5)
    for epoch in range(5):
        report = world.host(1).report
        assert report.validation_accuracy is not None
        assert control.gain(epoch, report.validation_accuracy) == 0.0
        assert control.validation_loss[epoch] == report.validation_loss
        assert control.train_loss[epoch] == report.train_loss
        world.apply(0, germinate()) if epoch == 0 else None
        world.epoch([0, 1])


def test_a_curve_is_computed_once(curves: ControlCurves, monkeypatch: pytest.MonkeyPatch) -> None:
    first = curves.curve("tiny", 0, epochs=3)

    def refuse(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(controls, "compute", refuse)
    assert curves.curve("tiny", 0, epochs=3) == first
    assert curves.curve("tiny:samples=61", 0, epochs=2) == first  # the same instance in other words
    with pytest.raises(AssertionError, match="computed again"):
        curves.curve("tiny", 1, epochs=3)
    with pytest.raises(AssertionError, match="computed again"):
        curves.curve("tiny", 0, epochs=4)


def test_a_longer_curve_begins_like_the_shorter_one(curves: ControlCurves) -> None:
    short, long = curves.curve("tiny", 0, epochs=2), curves.curve("tiny", 0, epochs=4)
    assert long.validation_loss[:3] == short.validation_loss
    assert long.epochs == 4


def test_what_the_numbers_depend_on_is_in_the_name(
    curves: ControlCurves, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = curves._path("tiny", 0)
    assert path == curves._path("tiny", 0)
    for home, name in ((controls, "NUMERICS"), (torch, "__version__"), (controls, "_hardware")):
        with monkeypatch.context() as changed:
            changed.setattr(home, name, (lambda _: "another") if name == "_hardware" else "another")
            assert path != curves._path("tiny", 0)
    assert path != curves._path("tiny:samples=60", 0)
    forget("tiny")
    register(tiny_task(clip_host=0.5))
    assert path != curves._path("tiny", 0)


def test_a_file_that_was_written_anew_has_another_curve(curves: ControlCurves, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    names: list[Path] = []
    for flip in (0, 1, 0):
        rows = (f"{i % 7},{(i * i) % 11},{(i + flip) % 2}" for i in range(200))
        file.write_text("\n".join(("a,b,class", *rows)))
        os.utime(file, ns=(len(names), len(names)))
        names.append(curves._path(f"tabular:path={file}", 0))
    assert names[0] != names[1]
    assert names[0] == names[2]


def test_a_damaged_file_is_computed_again(curves: ControlCurves) -> None:
    first = curves.curve("tiny", 0, epochs=2)
    path = curves._path("tiny", 0)
    for text in ("", "{", "[]", json.dumps({"case": "tiny"})):
        path.write_text(text)
        assert curves.curve("tiny", 0, epochs=2) == first


def test_several_processes_give_the_same_curves(tmp_path: Path) -> None:
    one, many = ControlCurves(tmp_path / "one"), ControlCurves(tmp_path / "many")
    wanted = [("digits", 0), ("mnist1d:size=500", 0)]
    many.prepare(wanted, epochs=1, processes=2)
    assert len(list((tmp_path / "many").iterdir())) == 2
    for case, seed in wanted:
        assert many.curve(case, seed, 1) == one.curve(case, seed, 1)
