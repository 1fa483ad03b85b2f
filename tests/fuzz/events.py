"""Events: lines, and the record of a run that is read from them."""

import json
from pathlib import Path
from random import Random

from esper.nissa import ReadingNotes, list_runs, read_run
from esper.nissa.event_file import BrokenLine, UnknownKind, decode, encode
from event_examples import EXAMPLES
from fuzz.door import Door
from fuzz.mutations import bomb_bytes, spoil_bytes, spoil_tree

_LINES = [encode(record) for record in EXAMPLES.values()]


def _spoiled(rng: Random) -> bytes:
    line = rng.choice(_LINES)
    if rng.random() < 0.5:
        return json.dumps(spoil_tree(json.loads(line), rng)).encode() + b"\n"
    return spoil_bytes(line, rng)


def _line(rng: Random, _: Path) -> object:
    record = decode(_spoiled(rng))
    again = decode(encode(record))
    assert encode(again) == encode(record)
    return record


def _run(rng: Random, folder: Path) -> object:
    run = folder / "runs" / "first"
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.json").write_text("{}")
    lines = [rng.choice(_LINES) if rng.random() < 0.7 else _spoiled(rng) for _ in range(rng.randrange(1, 9))]
    content = b"".join(lines) if rng.random() < 0.95 else bomb_bytes(folder)
    (run / "events.jsonl").write_bytes(content)
    if rng.random() < 0.05:
        (run / "events.jsonl").unlink()
    notes = ReadingNotes()
    read_run(run, notes=notes)
    return list_runs(run.parent)


DOORS = (
    Door("event", _line, 20_000, (BrokenLine, UnknownKind)),
    Door("record of a run", _run, 1_000),
)
