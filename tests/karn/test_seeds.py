"""The lives of seeds, from decisions, from the host's events, and from both."""

from dataclasses import replace
from typing import cast

from esper.karn.seeds import SeedLife, seed_lives
from esper.leyline import (
    DecisionTaken,
    EpisodeFinished,
    Event,
    LifecycleOp,
    Place,
    SeedFading,
    SeedGerminated,
    Stage,
    StageChanged,
    Style,
)
from esper.nissa import Record
from esper.nissa.event_file import place_of
from event_examples import EXAMPLES

TEMPLATE = cast(DecisionTaken, EXAMPLES["decision_taken"].event)
ENDED = cast(EpisodeFinished, EXAMPLES["episode_finished"].event)
HERE = Place(round=1, env=0, episode=0)
OP = LifecycleOp


def decide(epoch: int, op: LifecycleOp, slot: str = "a", contribution: float | None = None) -> Record:
    born = op is OP.GERMINATE
    event = replace(
        TEMPLATE,
        round=1,
        env=0,
        episode=0,
        epoch=epoch,
        op=op,
        slot=None if op is OP.WAIT else slot,
        blueprint="norm" if born else None,
        style=Style.GATE if born else None,
        contribution=contribution,
    )
    return tell(event)


def tell(event: Event, epoch: int | None = None, place: Place = HERE) -> Record:
    return Record(0.0, place_of(event, replace(place, epoch=epoch)), event)


def germinated(epoch: int, slot: str = "a") -> list[Record]:
    return [
        tell(SeedGerminated(slot, "norm", Style.GATE, 16), epoch),
        tell(StageChanged(slot, Stage.DORMANT, Stage.TRAINING, OP.GERMINATE), epoch),
    ]


def changed(epoch: int, before: Stage, after: Stage) -> Record:
    return tell(StageChanged("a", before, after, None), epoch)


DECIDED = [
    decide(1, OP.GERMINATE),
    decide(2, OP.WAIT),
    decide(3, OP.ADVANCE),
    decide(7, OP.SET_ALPHA_TARGET, contribution=0.05),
    decide(8, OP.FOSSILIZE, contribution=0.1),
]
TOLD = [
    *germinated(1),
    changed(3, Stage.TRAINING, Stage.BLENDING),
    changed(6, Stage.BLENDING, Stage.HOLDING),
    changed(7, Stage.HOLDING, Stage.BLENDING),
    changed(8, Stage.HOLDING, Stage.FOSSILIZED),
]
LIFE = SeedLife(
    round=1,
    env=0,
    episode=0,
    slot="a",
    blueprint="norm",
    style="gate",
    parameters=16,
    born=1,
    advanced=3,
    fossilized=8,
    contribution=0.1,
    fate="fossilized",
)


def test_a_life_from_decisions() -> None:
    assert seed_lives(DECIDED) == [replace(LIFE, parameters=None)]


def test_a_life_from_the_hosts_events() -> None:
    assert seed_lives(TOLD) == [replace(LIFE, contribution=None)]


def test_two_accounts_make_one_life_in_any_order() -> None:
    both = sorted([*DECIDED, *TOLD], key=lambda record: record.place.epoch or 0)
    assert seed_lives(both) == [LIFE]
    assert seed_lives(sorted([*TOLD, *DECIDED], key=lambda record: record.place.epoch or 0)) == [LIFE]


def test_a_slot_is_used_again_after_pruning() -> None:
    records = [
        *(decide(1, OP.GERMINATE), *germinated(1)),
        *(decide(5, OP.PRUNE, contribution=-0.1), tell(SeedFading("a", 0.5, 3), 5)),
        changed(8, Stage.BLENDING, Stage.EMBARGOED),
        changed(10, Stage.EMBARGOED, Stage.DORMANT),
        *(*germinated(11), decide(11, OP.GERMINATE)),
    ]
    first, second = seed_lives(records)
    assert (first.fate, first.born, first.pruned, first.contribution) == ("pruned", 1, 5, -0.1)
    assert (second.fate, second.born, second.pruned, second.parameters) == ("alive", 11, None, 16)


def test_a_fading_seed_was_pruned_when_it_began_to_fade() -> None:
    records = [*germinated(1), tell(SeedFading("a", 0.5, 3), 5), changed(8, Stage.BLENDING, Stage.EMBARGOED)]
    assert [life.pruned for life in seed_lives(records)] == [5]


def test_a_new_episode_begins_with_empty_slots() -> None:
    ended = tell(replace(ENDED, env=0, episode=0))
    again = tell(SeedGerminated("a", "norm", Style.GATE, 16), 1)  # a sink that does not count episodes
    assert [life.fate for life in seed_lives([*germinated(1), ended, again])] == ["alive", "alive"]


def test_slots_envs_and_episodes_are_apart() -> None:
    born = SeedGerminated("a", "norm", Style.GATE, 16)
    places = [Place(env=0, episode=0), Place(env=1, episode=0), Place(env=0, episode=1), Place()]
    assert len(seed_lives([*(tell(born, 1, place) for place in places), *germinated(1, "b")])) == 5


def test_what_concerns_no_known_seed_is_passed_over() -> None:
    assert seed_lives([decide(3, OP.PRUNE), changed(3, Stage.HOLDING, Stage.FOSSILIZED)]) == []
