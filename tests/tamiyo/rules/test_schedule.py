"""Schedules: their text, and following them strictly or as well as they can be."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import esper
from esper.leyline import (
    ALPHA_CURVES,
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    CAUSAL_TABLE,
    STYLES,
    TEMPOS,
    ActionSpec,
    LifecycleOp,
    Style,
)
from esper.tamiyo.rules import Clause, Schedule, SchedulePolicy
from watched import ModelHost, live, small_model


def test_a_schedule_is_read() -> None:
    text = "germinate mixer@1 t=0; advance 1 t=2;\n prune blocks.0 alpha_speed=3 t=5 ;"
    schedule = Schedule.parse(text)
    assert schedule.clauses == (
        Clause(0, ActionSpec(LifecycleOp.GERMINATE, "1", "mixer")),
        Clause(2, ActionSpec(LifecycleOp.ADVANCE, "1")),
        Clause(5, ActionSpec(LifecycleOp.PRUNE, "blocks.0", alpha_speed=3)),
    )
    assert str(schedule) == "germinate mixer@1 t=0; advance 1 t=2; prune blocks.0 alpha_speed=3 t=5"
    (clause,) = Schedule.parse("germinate norm@a style=gate alpha_target=0.7 tempo=8 t=3").clauses
    assert (clause.action.style, clause.action.alpha_target, clause.action.tempo) == (Style.GATE, 0.7, 8)
    assert Schedule.parse("").clauses == ()


@st.composite
def clauses(draw: st.DrawFn) -> Clause:
    op = draw(st.sampled_from([op for op in LifecycleOp if op is not LifecycleOp.WAIT]))
    place = st.text("abz019._", min_size=1, max_size=8)
    options = {
        "style": st.sampled_from(STYLES),
        "tempo": st.sampled_from(TEMPOS),
        "alpha_target": st.sampled_from(ALPHA_TARGETS),
        "alpha_speed": st.sampled_from(ALPHA_SPEEDS),
        "alpha_curve": st.sampled_from(ALPHA_CURVES),
    }
    used = {head: draw(options[head]) for head in CAUSAL_TABLE[op] if head in options}
    blueprint = draw(place) if op is LifecycleOp.GERMINATE else None
    action = ActionSpec(op, draw(place), blueprint, **used)  # type: ignore[arg-type]
    return Clause(draw(st.integers(0, 99)), action)


@settings(max_examples=50, deadline=None)
@given(st.lists(clauses(), max_size=5))
def test_text_round_trips(parts: list[Clause]) -> None:
    schedule = Schedule(tuple(parts))
    assert Schedule.parse(str(schedule)) == schedule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "advnce 1 t=2",
            "clause 1 of the schedule, at character 0, 'advnce 1 t=2': 'advnce' is no operation",
        ),
        (
            "prune 1 t=2;  advance 1",
            "clause 2 of the schedule, at character 14, 'advance 1': t is None; expected t=",
        ),
        ("advance 1 t=-1", "t is '-1'; expected t= and the epoch"),
        ("advance t=1", "advance has 'nothing' for a place; expected one slot"),
        ("advance 1 2 t=1", "advance has '1 2' for a place"),
        ("germinate mixer t=1", "the place is 'mixer'; expected blueprint@slot, such as mixer@1"),
        ("prune mixer@1 t=1", "the place is 'mixer@1'; expected a slot alone"),
        (
            "germinate mixer@1 alpha_speed=3 t=1",
            "'alpha_speed' is no option here; expected style, tempo, alpha_target, t",
        ),
        ("germinate mixer@1 tempo=4 t=1", "tempo is '4'; expected one of 3, 5, 8"),
    ],
)
def test_what_cannot_be_read_is_shown(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        Schedule.parse(text)


def host() -> ModelHost:
    return ModelHost(small_model("series"))


def test_a_strict_schedule_is_followed_to_the_letter() -> None:
    text = "germinate mixer@1 t=0; advance blocks.1 t=2; fossilize 1 t=9"
    assert live(SchedulePolicy(text, strict=True), host(), horizon=12) == [
        (0, "germinate mixer@blocks.1"),
        (2, "advance blocks.1"),
        (9, "fossilize blocks.1"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "germinate mixer@1 t=0; fossilize 1 t=1",
            "clause 'fossilize 1 t=1' cannot be executed at epoch 1: FOSSILIZE is not legal at 'blocks.1' now; "
            "legal: WAIT, ADVANCE",
        ),
        ("germinate nothing@1 t=0", "blueprint is 'nothing'; legal at 'blocks.1': "),
        ("germinate mixer@7 t=0", "slot is '7'; the slots are blocks.0, blocks.1, blocks.2"),
    ],
)
def test_a_strict_schedule_says_what_went_wrong(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        live(SchedulePolicy(text, strict=True), host())


def test_places_by_rank_and_the_first_blueprint_that_is_offered() -> None:
    text = "germinate nothing|mixer|norm@last t=0; advance last t=1; germinate norm|mixer@middle t=2; prune first t=3"
    assert live(SchedulePolicy(text), host(), horizon=6) == [
        (0, "germinate mixer@blocks.2"),
        (1, "advance blocks.2"),
        (2, "germinate norm@blocks.1"),
    ]
    assert Schedule.parse(str(Schedule.parse(text))) == Schedule.parse(text)
    with pytest.raises(ValueError, match="blueprint is 'nothing'; legal at"):
        live(SchedulePolicy("germinate nothing|never@first t=0", strict=True), host())


def test_a_strict_schedule_does_one_thing_an_epoch() -> None:
    with pytest.raises(ValueError, match="several clauses at t=3"):
        SchedulePolicy("advance 1 t=3; advance 0 t=3", strict=True)


def test_otherwise_a_clause_waits_for_its_time() -> None:
    text = "germinate mixer@1 t=0; advance 1 t=0; fossilize 1 t=0; germinate norm@0 t=0"
    assert live(SchedulePolicy(text), host(), horizon=12) == [
        (0, "germinate mixer@blocks.1"),
        (1, "advance blocks.1"),
        (2, "germinate norm@blocks.0"),  # another slot does not wait behind the fossilising
        (4, "fossilize blocks.1"),
    ]


def test_a_clause_does_not_overtake_another_of_its_slot() -> None:
    text = "germinate mixer@1 t=0; advance 1 t=1; fossilize 1 t=2; prune 1 t=2"
    assert live(SchedulePolicy(text), host(), horizon=12)[2:] == [(4, "fossilize blocks.1")]


def test_a_slot_is_germinated_again_after_its_embargo() -> None:
    text = "germinate mixer@1 t=0; prune 1 alpha_speed=0 t=3; germinate norm@1 t=4"
    assert live(SchedulePolicy(text), host(), horizon=12)[-1] == (5, "germinate norm@blocks.1")
    fading = "germinate mixer@1 t=0; advance 1 t=1; prune 1 alpha_speed=3 t=4; germinate norm@1 t=5"
    assert live(SchedulePolicy(fading), host(), horizon=20)[-1][1] == "germinate norm@blocks.1"


def test_what_waiting_cannot_help_is_skipped() -> None:
    text = (
        "advance 0 t=0; germinate nothing@0 t=0; germinate mixer@9 t=0; fossilize 0 t=0; prune 0 t=0; "
        "set_alpha_target 0 t=0; germinate mixer@0 t=0; germinate norm@0 t=1; advance 0 t=1"
    )
    assert live(SchedulePolicy(text), host(), horizon=12) == [
        (0, "germinate mixer@blocks.0"),
        (1, "advance blocks.0"),
    ]


def test_targets_are_set() -> None:
    text = (
        "germinate mixer@1 t=0; advance 1 t=1; set_alpha_target 1 alpha_target=1.0 t=2; "
        "set_alpha_target 1 alpha_target=0.5 alpha_speed=0 t=2; fossilize 1 t=6"
    )
    watched = host()
    assert [what for _, what in live(SchedulePolicy(text), watched, horizon=12)] == [
        "germinate mixer@blocks.1",
        "advance blocks.1",
        "set_alpha_target blocks.1",
        "fossilize blocks.1",
    ]
    assert watched.model.slots["blocks.1"].alpha == 0.5


def test_names_come_before_positions() -> None:
    layers = [torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()) for _ in range(3)]
    model = esper.wrap(torch.nn.Sequential(*layers), ["1", "2"], torch.zeros(2, 3))
    done = live(SchedulePolicy("germinate norm@1 t=0; germinate norm@0 t=1"), ModelHost(model), horizon=3)
    assert done == [(0, "germinate norm@1")]  # the slot named 1; position 0 is the same one, and taken
