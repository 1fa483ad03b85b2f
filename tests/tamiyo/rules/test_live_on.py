"""The rule `live_on`: waits, grows after a fall, and retires what has decayed where it needs the room."""

from collections.abc import Callable

import pytest

from esper.leyline import Stage
from esper.tamiyo.rules import rule_policy
from esper.tamiyo.rules.by_layout import LiveOnPolicy
from watched import ModelHost, live, small_model

FIRST_FALL, SECOND_FALL, HORIZON = 6, 40, 80
Accuracy = Callable[[int], float]


def two_changes(epoch: int) -> float:
    """Validation falls twice and never comes back by itself."""
    return 0.9 if epoch < FIRST_FALL else 0.6 if epoch < SECOND_FALL else 0.3


def useful_until_the_second_change(epoch: int, _slot: str, _blueprint: str) -> float:
    return 0.2 if epoch < SECOND_FALL else -0.1


def lived(
    measure: Callable[[int, str, str], float] = useful_until_the_second_change,
    accuracy: Accuracy = two_changes,
    budget: int | None = None,
) -> tuple[list[tuple[int, str]], ModelHost]:
    host = ModelHost(small_model("flat"), measure=measure, accuracy=accuracy)
    return live(LiveOnPolicy(), host, horizon=HORIZON, budget=budget), host


def test_nothing_grows_while_validation_holds() -> None:
    assert lived(accuracy=lambda epoch: 0.9 - 0.02 * (epoch % 2))[0] == []
    assert lived(accuracy=lambda epoch: 0.3 if epoch == 9 else 0.9)[0] == []  # a false alarm


def test_after_a_fall_it_tries_keeps_and_goes_on() -> None:
    done, host = lived()
    first = done[:4]
    assert first[0] == (FIRST_FALL + 1, "germinate widen@blocks.0")  # after two epochs below
    assert [what.split()[0] for _, what in first] == ["germinate", "advance", "fossilize", "germinate"]
    assert first[2][0] - first[0][0] == 8
    kept = [what for epoch, what in done if what.startswith("fossilize") and epoch < SECOND_FALL]
    assert len(kept) == 3
    assert host.model.live_slots == () or host.model.free_places >= 0


def test_what_has_decayed_makes_room_for_what_is_needed_now() -> None:
    """All slots hold fossils that were useful once; those that are in the way go, and their slots grow again."""
    done, host = lived()
    late = [(epoch, what) for epoch, what in done if epoch > SECOND_FALL]
    retired = [epoch for epoch, what in late if what.startswith("retire")]
    assert retired
    assert retired[0] == SECOND_FALL + 2  # the third epoch in a row below its rent
    born_again = [epoch for epoch, what in late if what.startswith("germinate")]
    assert born_again
    assert born_again[0] > retired[0] + 3  # faded out, and the embargo
    assert any(slot.life.births > 1 for slot in host.model.slots.values())


def test_a_fossil_that_earns_its_rent_stays() -> None:
    done, host = lived(measure=lambda *_: 0.2)
    assert not any(what.startswith("retire") for _, what in done)
    assert [slot.stage for slot in host.model.slots.values()] == [Stage.FOSSILIZED] * 3


def test_the_budget_is_kept_and_made_by_retiring() -> None:
    """There is room for one seed: the next needs what the first holds, and gets it once that has decayed."""
    host = ModelHost(small_model("flat"))
    cost = max(card.parameters for cards in host.cards.values() for card in cards if card.name == "widen")
    done, host = lived(budget=cost)
    germinated = [epoch for epoch, what in done if what.startswith("germinate")]
    retired = [epoch for epoch, what in done if what.startswith("retire")]
    assert len([epoch for epoch in germinated if epoch < SECOND_FALL]) == 1
    assert len(retired) == 1
    assert any(epoch > retired[0] for epoch in germinated)
    assert host.model.added_parameters <= cost


def test_no_more_is_given_back_than_is_needed() -> None:
    """Two fossils have decayed, and the candidate in the empty slot needs the room of one."""

    def measure(epoch: int, slot: str, _blueprint: str) -> float:
        return 0.2 if epoch < SECOND_FALL and slot != "blocks.0" else -0.1

    host = ModelHost(small_model("flat"))
    cost = max(card.parameters for cards in host.cards.values() for card in cards if card.name == "widen")
    done, _ = lived(measure, budget=2 * cost)
    late = [what for epoch, what in done if epoch > SECOND_FALL]
    assert late[:2] == ["retire blocks.1", "germinate widen@blocks.0"]


def test_validation_that_came_back_by_itself_needs_nothing() -> None:
    def back_soon(epoch: int) -> float:
        return 0.5 if 10 <= epoch < 12 else 0.9

    done, _ = lived(accuracy=back_soon, measure=lambda *_: -0.2)
    assert [what.split()[0] for _, what in done] == [
        "germinate",
        "advance",
        "prune",
    ]  # one, begun before it was back


def test_what_does_not_help_is_faded_out_and_the_next_is_tried() -> None:
    done, _ = lived(measure=lambda *_: -0.1)
    operations = [what.split()[0] for epoch, what in done if epoch < SECOND_FALL]
    assert operations == ["germinate", "advance", "prune"] * 3


def test_its_memory_goes_through_a_checkpoint() -> None:
    host = ModelHost(small_model("flat"), measure=useful_until_the_second_change, accuracy=two_changes)
    policy = LiveOnPolicy()
    live(policy, host, horizon=20)
    other = LiveOnPolicy()
    other.load_state_dict(policy.state_dict())
    assert other.memory == policy.memory
    assert policy.memory.queue


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop": 0.0}, "drop is 0.0; expected > 0"),
        ({"patience": 0}, "patience is 0; expected >= 1 epoch"),
        ({"judge_age": 0}, "judge_age is 0; expected >= 1 epoch"),
        ({"decay_epochs": 0}, "decay_epochs is 0; expected a whole number >= 1"),
        ({"rent": -1.0}, "decay_rent is -1.0; expected a number >= 0"),
    ],
)
def test_bad_options_are_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rule_policy("live_on", **options)  # type: ignore[arg-type]
