"""Reading runs that are whole, cut off, still written, resumed, or from a newer version."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from esper.leyline import (
    AnomalyRaised,
    CheckpointSaved,
    Event,
    Place,
    RoundFinished,
    RunFinished,
    RunStarted,
)
from esper.nissa import (
    ReadingNotes,
    Record,
    Recorder,
    RunError,
    describe_run,
    is_being_written,
    list_runs,
    read_events,
    read_run,
)
from esper.nissa.event_file import encode, place_of
from esper.nissa.recorder import JsonlSink
from esper.nissa.run_directory import CONFIG_FILE, EVENTS_FILE, WriterLock
from event_examples import EXAMPLES

RECORDS = list(EXAMPLES.values())


def round_finished(number: int) -> RoundFinished:
    event = EXAMPLES["round_finished"].event
    assert isinstance(event, RoundFinished)
    return replace(event, round=number)


def write(run: Path, records: Iterable[Record]) -> Path:
    run.mkdir(parents=True, exist_ok=True)
    (run / CONFIG_FILE).write_text("{}")
    path = run / EVENTS_FILE
    with path.open("ab") as file:
        file.writelines(encode(record) for record in records)
    return path


def at(time: float, event: Event) -> Record:
    return Record(time, place_of(event, Place()), event)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, RECORDS)
    assert list(read_events(path)) == list(read_events(tmp_path)) == RECORDS


def test_only_the_kinds_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, RECORDS)
    with path.open("ab") as file:  # written by someone else: another order, other spaces
        file.write(b'{"time": 1.0, "slot": "a", "kind": "seed_fading", "alpha": 0.5, "epochs": 2}\n')
        file.write(b' { "kind" : "round_finished", "broken": true}\n')
    notes = ReadingNotes()
    kinds = [r.event.kind for r in read_events(tmp_path, kinds=["seed_fading", "run_started"], notes=notes)]
    assert kinds == ["run_started", "seed_fading", "seed_fading"]
    assert notes.broken_lines == []


def test_every_cut_of_the_last_line_is_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path, RECORDS[:3])
    whole, last = path.read_bytes(), encode(RECORDS[3])
    for length in range(1, len(last) - 1):
        path.write_bytes(whole + last[:length])
        notes = ReadingNotes()
        assert list(read_events(path, notes=notes)) == RECORDS[:3]
        assert notes.broken_lines == [4]
    path.write_bytes(whole + last[:-1])  # only its end is missing
    assert list(read_events(path)) == RECORDS[:4]


def test_broken_lines_in_the_middle_are_counted_and_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path, RECORDS[:1])
    with path.open("ab") as file:
        file.write(b"\0\0\0\xff\n\n[]\n" + b'{"kind":"seed_sang","time":1}\n' * 2)
    write(tmp_path, RECORDS[1:3])
    notes = ReadingNotes()
    assert list(read_events(path, notes=notes)) == RECORDS[:3]
    assert notes.broken_lines == [2, 4]
    assert notes.unknown_kinds == {"seed_sang": 2}


def test_a_resumed_writer_stands_on_its_own_line(tmp_path: Path) -> None:
    path = write(tmp_path, RECORDS[:2])
    path.write_bytes(path.read_bytes()[:-20])
    with Recorder([JsonlSink(path)], clock=lambda: RECORDS[2].time) as recorder:
        recorder.emit(RECORDS[2].event, RECORDS[2].place)
    notes = ReadingNotes()
    assert list(read_events(path, notes=notes)) == [RECORDS[0], RECORDS[2]]
    assert notes.broken_lines == [2]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="No such file"):
        list(read_events(tmp_path / "events.jsonl"))


WRITER = """
import itertools, sys
from pathlib import Path

from esper.nissa import Recorder
from event_examples import EXAMPLES
from esper.nissa.run_directory import WriterLock
from esper.nissa.recorder import JsonlSink
run = Path(sys.argv[1])
lock, recorder = WriterLock(run), Recorder([JsonlSink(run / "events.jsonl")])
recorder.emit(EXAMPLES["run_started"].event)
for number in itertools.count(1):
    for _ in range(50):
        recorder.emit(EXAMPLES["decision_taken"].event)
    recorder.emit(EXAMPLES["round_finished"].event)
    print(number, flush=True)
"""


def test_a_killed_writer_loses_no_finished_round(tmp_path: Path) -> None:
    write(tmp_path, [])
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert writer.stdout is not None
    with writer.stdout as told:
        while int(told.readline()) < 20:
            pass
        assert describe_run(tmp_path).standing == "running"
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        rounds = max([20, *map(int, told.read().split())])
    notes = ReadingNotes()
    read = list(read_events(tmp_path, notes=notes))
    assert sum(isinstance(record.event, RoundFinished) for record in read) >= rounds
    assert len(notes.broken_lines) <= 1
    assert describe_run(tmp_path).standing == "crashed"


def test_following_ends_with_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.nissa.event_file.POLL_SECONDS", 0.01)
    path = write(tmp_path, RECORDS[:1])
    lock = WriterLock(tmp_path)
    lines = [encode(record) for record in RECORDS[1:4]]

    def go_on() -> None:
        with path.open("ab", buffering=0) as file:
            for line in lines:
                for half in (line[:30], line[30:]):  # a reader may see half a line
                    file.write(half)
                    time.sleep(0.05)
        lock.release()

    writer = threading.Thread(target=go_on)
    writer.start()
    assert list(read_events(tmp_path, follow=True)) == RECORDS[:4]
    writer.join()
    assert list(read_events(tmp_path, follow=True)) == RECORDS[:4]


def test_a_resumed_run_counts_once(tmp_path: Path) -> None:
    saved = CheckpointSaved(2, "periodic", "checkpoints/round-000002.pt", None)
    decision = EXAMPLES["decision_taken"].event
    events: list[Event] = [
        RunStarted("one", "0.1.0"),
        *(round_finished(1), round_finished(2), saved),
        *(decision, round_finished(3), decision),
        RunStarted("one", "0.1.0", resumed_from=2),
        *(round_finished(3), RunFinished("finished", None, 3, 9, 1.0)),
    ]
    write(tmp_path, [at(number, event) for number, event in enumerate(events)])
    kept = [record.time for record in read_run(tmp_path)]
    assert kept == [0, 1, 2, 3, 7, 8, 9]
    assert len(list(read_events(tmp_path))) == 10
    assert [r.time for r in read_run(tmp_path, kinds=["decision_taken"])] == [0, 1, 2, 7, 8]


def test_a_run_resumed_from_a_round_without_its_checkpoint_event(tmp_path: Path) -> None:
    raised = replace(cast(AnomalyRaised, EXAMPLES["anomaly_raised"].event), round=1)
    events: list[Event] = [
        RunStarted("one", "0"),
        *(round_finished(1), raised, round_finished(2), replace(raised, round=2)),
        RunFinished("interrupted", "SIGTERM", 2, 9, 1.0),
        RunStarted("one", "0", resumed_from=1),
    ]
    write(tmp_path, [at(number, event) for number, event in enumerate(events)])
    assert [record.time for record in read_run(tmp_path)] == [0, 1, 2, 6]


def test_the_runs_of_a_folder(tmp_path: Path) -> None:
    begun, ended = at(10.0, RunStarted("x", "0.1.0")), RunFinished("finished", None, 2, 8, 3.0)
    write(tmp_path / "a-finished", [begun, at(15.0, round_finished(2)), at(18.0, ended)])
    write(tmp_path / "b-interrupted", [begun, at(12.0, replace(ended, status="interrupted"))])
    write(tmp_path / "c-failed", [begun, at(12.0, replace(ended, status="failed"))])
    write(tmp_path / "d-crashed", [begun, at(11.0, round_finished(1))])
    resumed = [at(30.0, RunStarted("x", "0.1.0", resumed_from=1))]
    write(tmp_path / "e-crashed-again", [begun, at(15.0, round_finished(2)), at(18.0, ended), *resumed])
    write(tmp_path / "f-empty", [])
    write(tmp_path / "g-running", [begun])
    write(tmp_path / "h-no-events", [])
    (tmp_path / "h-no-events" / EVENTS_FILE).unlink()
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / "file").touch()
    lock = WriterLock(tmp_path / "g-running")
    listed = list_runs(tmp_path)
    lock.release()
    assert [(run.name, run.standing, run.last_round, run.seconds) for run in listed] == [
        ("a-finished", "finished", 2, 8.0),
        ("b-interrupted", "interrupted", None, 2.0),
        ("c-failed", "failed", None, 2.0),
        ("d-crashed", "crashed", 1, 1.0),
        ("e-crashed-again", "crashed", 1, 8.0),
        ("f-empty", "crashed", None, None),
        ("g-running", "running", None, 0.0),
        ("h-no-events", "crashed", None, None),
    ]
    assert {run.started for run in listed} == {10.0, None}
    assert list_runs(tmp_path / "nowhere") == []


def test_reading_leaves_no_trace(tmp_path: Path) -> None:
    path = write(tmp_path, RECORDS)
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in os.listdir(tmp_path)}
    list(read_events(path))
    describe_run(tmp_path)
    assert not is_being_written(tmp_path)
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in os.listdir(tmp_path)} == before
    assert json.loads((tmp_path / CONFIG_FILE).read_text()) == {}
