"""Records as lines: exact round trips, strict JSON, and refusal of what is not a record."""

import json
import math
from dataclasses import fields, replace
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline import DecisionTaken, LifecycleOp, Place, RoundFinished, SeedFading, Stage, StageChanged
from esper.nissa import KINDS, Record
from esper.nissa.event_file import BrokenLine, UnknownKind, decode, encode
from event_examples import EXAMPLES


def round_finished() -> RoundFinished:
    event = EXAMPLES["round_finished"].event
    assert isinstance(event, RoundFinished)
    return event


def strictly(line: bytes) -> dict[str, object]:
    def refuse(constant: str) -> object:
        raise AssertionError(f"{constant} is not JSON")

    read = json.loads(line, parse_constant=refuse)
    assert isinstance(read, dict)
    return read


def test_every_kind_has_an_example() -> None:
    assert set(EXAMPLES) == set(KINDS)
    assert len(KINDS) == 13


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(kind: str) -> None:
    record = EXAMPLES[kind]
    line = encode(record)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert line.startswith(b'{"kind":"' + kind.encode() + b'","time":')
    assert decode(line) == record
    assert set(strictly(line)) >= {"kind", "time", *(field.name for field in fields(record.event))}


def test_a_line_as_it_is_written() -> None:
    changed = StageChanged("b.0", Stage.HOLDING, Stage.FOSSILIZED, LifecycleOp.FOSSILIZE)
    assert encode(Record(2.5, Place(env=3, epoch=4), changed)) == (
        b'{"kind":"stage_changed","time":2.5,"env":3,"epoch":4,"slot":"b.0","before":"HOLDING",'
        b'"after":"FOSSILIZED","operation":"FOSSILIZE"}\n'
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_may_be_non_finite(kind: str) -> None:
    record = EXAMPLES[kind]
    for name, hint in get_type_hints(type(record.event)).items():
        if hint not in (float, float | None):
            continue
        for number in (math.nan, math.inf, -math.inf):
            line = encode(replace(record, event=replace(record.event, **{name: number})))  # type: ignore[arg-type]
            read = strictly(line)
            assert read[name] is None
            assert read["non_finite"] == {name: str(number)}
            back = getattr(decode(line).event, name)
            assert back == number or (math.isnan(back) and math.isnan(number))


def test_a_non_finite_entry_of_a_mapping_is_named_and_put_back() -> None:
    event = replace(round_finished(), entropy_by_head={"op": math.nan, "a.b": math.inf, "slot": None})
    line = encode(Record(0.0, Place(round=4), event))
    read = strictly(line)
    assert read["entropy_by_head"] == {"op": None, "a.b": None, "slot": None}
    assert read["non_finite"] == {"entropy_by_head.op": "nan", "entropy_by_head.a.b": "inf"}
    back = decode(line).event
    assert isinstance(back, RoundFinished)
    assert back.entropy_by_head["a.b"] == math.inf
    assert math.isnan(back.entropy_by_head["op"] or 0.0)
    assert back.entropy_by_head["slot"] is None


@given(st.text(), st.floats(), st.integers(), st.integers(0, 2**40))
def test_any_content_comes_back(slot: str, alpha: float, epochs: int, env: int) -> None:
    record = Record(1.0, Place(env=env), SeedFading(slot, alpha, epochs))
    back = decode(encode(record))
    assert isinstance(back.event, SeedFading)
    assert (back.event.slot, back.event.epochs, back.place) == (slot, epochs, record.place)
    assert back.event.alpha == alpha or (math.isnan(back.event.alpha) and math.isnan(alpha))


def test_an_events_own_place_is_the_records() -> None:
    decision = EXAMPLES["decision_taken"]
    assert isinstance(decision.event, DecisionTaken)
    assert decision.place == Place(round=4, env=3, episode=7, epoch=2)
    assert decode(encode(replace(decision, place=Place()))).place == decision.place


def test_unknown_fields_of_a_newer_version_are_ignored() -> None:
    line = strictly(encode(EXAMPLES["seed_fading"])) | {"mood": "wistful"}
    assert decode(json.dumps(line).encode()) == EXAMPLES["seed_fading"]


def test_an_unknown_kind_is_told_apart() -> None:
    with pytest.raises(UnknownKind, match="'seed_sang'"):
        decode(b'{"kind":"seed_sang","time":1.0}')


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"kind":7,"time":1}',
        b'{"kind":"seed_fading","time":"now","slot":"a","alpha":0.5,"epochs":3}',
        b'{"kind":"seed_fading","time":NaN,"slot":"a","alpha":0.5,"epochs":3}',
        b'{"kind":"seed_fading","time":true,"slot":"a","alpha":0.5,"epochs":3}',
        b'{"kind":"seed_fading","time":1,"slot":"a","alpha":0.5}',
        b'{"kind":"seed_fading","time":1,"slot":"a","alpha":"0.5","epochs":3}',
        b'{"kind":"seed_fading","time":1,"slot":"a","alpha":null,"epochs":3}',
        b'{"kind":"seed_fading","time":1,"slot":null,"alpha":0.5,"epochs":3}',
        b'{"kind":"seed_fading","time":1,"env":"0","slot":"a","alpha":0.5,"epochs":3}',
        b'{"kind":"stage_changed","time":1,"slot":"a","before":"ASLEEP","after":"HOLDING","operation":null}',
        b'{"kind":"stage_changed","time":1,"slot":"a","before":3,"after":"HOLDING","operation":null}',
        b'{"kind":"seed_fading","time":1' + b"0" * 5000 + b',"slot":"a","alpha":0.5,"epochs":3}',
        b'{"kind":"seed_fading","time":1,"slot":' + b"[" * 100_000,
        b'{"kind":"seed_fading","time":1,"slot":"\xff\xfe","alpha":0.5,"epochs":3}',
    ],
)
def test_what_is_not_a_record_is_refused(line: bytes) -> None:
    with pytest.raises(BrokenLine):
        decode(line)


def test_what_is_not_plain_data_is_refused_by_name() -> None:
    fading = SeedFading("a", alpha=object(), epochs=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="alpha is a object"):
        encode(Record(0.0, Place(), fading))


def test_half_a_character_becomes_a_question_mark() -> None:
    event = replace(round_finished(), reward_components={"\udc80": 1.0})
    back = decode(encode(Record(0.0, Place(round=4), event))).event
    assert isinstance(back, RoundFinished)
    assert back.reward_components == {"?": 1.0}
    fading = decode(encode(Record(0.0, Place(), SeedFading("a\ud800", 0.5, 3)))).event
    assert fading == SeedFading("a?", 0.5, 3)
