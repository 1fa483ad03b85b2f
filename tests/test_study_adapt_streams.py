"""The gate of targets that change: schedules by target, and an oracle that chooses on other hosts, by hand."""

import pytest

from adapt_stream_choices import ANEW, NEVER, Life, Lives, composed, fits, one_bit, schedule_of
from spreading import Job
from study_adapt_streams import (
    ALWAYS,
    KEPT,
    SPREAD,
    Gate,
    _by_target,
    bit_rows,
    gate_rows,
    judge,
    oracle_jobs,
    rivals,
    tuned,
)

CASE = "adapt_stream:base=digits_layer,cap=0.25,plan=noise80@10/rename@20/none@30,size=100"
SEEDS = (0, 1)


def lives_of(worths: dict[str, tuple[tuple[float | None, ...], ...]]) -> Lives:
    """arm -> for each host what each of the four targets was worth"""
    return {
        (arm, CASE, seed): Life(
            arm, CASE, seed, sum(x or 0.0 for x in targets) / len(targets), targets, None in targets
        )
        for arm, hosts in worths.items()
        for seed, targets in zip(SEEDS, hosts, strict=True)
    }


def test_a_schedule_has_a_seed_for_each_target_that_wants_one() -> None:
    choices = ["small@0", "small@0", NEVER, "lora@last"]
    assert schedule_of(choices, CASE, 40, keep=False) == (
        "germinate conv_small|mlp_small@0 t=2; advance 0 t=3; prune 0 t=10; "
        "germinate conv_small|mlp_small@0 t=12; advance 0 t=13; prune 0 t=20; "
        "germinate lora@last t=32; advance last t=33"
    )
    assert schedule_of(choices, CASE, 40, keep=True) == (
        "germinate conv_small|mlp_small@0 t=2; advance 0 t=3; prune 0 t=20; "
        "germinate lora@last t=32; advance last t=33"
    )
    assert schedule_of(["small@0"] * 4, CASE, 40, keep=True) == (
        "germinate conv_small|mlp_small@0 t=2; advance 0 t=3"
    )
    assert schedule_of([NEVER, "lora@1"], CASE, 15, keep=False) == "germinate lora@1 t=12; advance 1 t=13"


def test_what_the_cap_has_no_room_for_is_no_choice() -> None:
    assert fits("small@0", CASE)  # 1,320 of 1,846
    assert not fits("large@0", CASE)  # 2,336
    assert not fits("small@0", CASE.replace("0.25", "0.17"))


def test_a_host_that_was_taken_away_is_worth_nothing_from_there_on() -> None:
    curve = [0.5] * 10 + [0.8] * 5
    assert _by_target(CASE, 40, curve, 15) == pytest.approx((0.5, 0.4, None, None))
    assert _by_target(CASE, 20, [0.5] * 10 + [0.8] * 9, 20) == pytest.approx((0.5, 0.8))


HEAD = ((0.5, 0.5, 0.9, 0.9), (0.5, 0.5, 0.9, 0.9))
STEM = ((0.6, 0.9, 0.4, 0.8), (0.4, 0.9, 0.4, 0.8))  # of the first target either host says something else
LORA = ((0.5, 0.7, 0.8, 0.8), (0.5, 0.7, 0.95, 0.8))


def test_the_oracle_chooses_on_the_other_host() -> None:
    lives = lives_of({NEVER: HEAD, f"small@0 {ANEW}": STEM, f"lora@0 {ANEW}": LORA})
    (anew, kept) = oracle_jobs(lives, ["small@0", "lora@0"], [CASE], SEEDS, Job("", (), "cpu", 40))
    assert (anew.arm, kept.arm) == (ANEW, KEPT)
    assert anew.hosts == ((CASE, 0), (CASE, 1))
    noisy = "germinate conv_small|mlp_small@0 t=12; advance 0 t=13; prune 0 t=20"
    first = "germinate conv_small|mlp_small@0 t=2; advance 0 t=3"
    named = "germinate lora@0 t=22; advance 0 t=23; prune 0 t=30"
    # host 1 says: nothing at first, the stem on noise, LoRA on other names; host 0: the stem, the stem, nothing
    assert anew.schedules == (f"{noisy}; {named}", f"{first}; prune 0 t=10; {noisy}")  # type: ignore[attr-defined]
    assert kept.schedules == (f"{noisy}; {named}", f"{first}; prune 0 t=20")  # type: ignore[attr-defined]


def gate_of(oracle: tuple[float, ...]) -> Gate:
    spread = ((0.6, 0.6, 0.6, 0.6),) * 2
    lives = lives_of(
        {
            NEVER: HEAD,
            f"small@0 {ANEW}": STEM,
            f"small@0 {ALWAYS}": STEM,
            SPREAD: spread,
            ANEW: (oracle, oracle),
            KEPT: (oracle, oracle),
            "lora 4, lr 0.005": ((0.8,) * 4,) * 2,
        }
    )
    return judge(lives, ["small@0"], [CASE], SEEDS, ["lora 4, lr 0.005"], 40)


def test_the_gate_is_the_oracle_over_the_best_rival_at_the_cap_and_of_all() -> None:
    gate = gate_of((0.5, 0.9, 0.9, 0.9))
    assert gate.gains["oracle"] == pytest.approx([0.1])
    assert gate.gains[SPREAD] == pytest.approx([-0.1])
    assert gate.best_rival(capped=True) == NEVER  # the one seed for life is worth 0.65, the head alone 0.7
    assert gate.best_rival(capped=False) == "lora 4, lr 0.005"
    assert gate.headroom(NEVER) == pytest.approx([0.1])
    assert gate.headroom("lora 4, lr 0.005") == pytest.approx([0.0])
    assert gate.by_group["inputs"]["oracle"] == pytest.approx([0.4, 0.4])
    assert gate.chosen["inputs"] == {"small@0": 2}
    assert gate.chosen["labels"] == {NEVER: 2}


def test_a_life_composed_of_targets() -> None:
    lives = lives_of({NEVER: HEAD, f"small@0 {ANEW}": STEM, f"lora@0 {ANEW}": LORA})
    assert one_bit("small@0", CASE, 40) == [NEVER, "small@0", NEVER, NEVER]
    assert composed(lives, CASE, 0, one_bit("small@0", CASE, 40), 40) == pytest.approx(
        (0.5 + 0.9 + 0.9 + 0.9) / 4
    )
    assert composed(lives, CASE, 0, ["small@0", NEVER, "lora@0", NEVER], 40) == pytest.approx(2.8 / 4)


def test_what_and_where_is_more_than_whether() -> None:
    lives = lives_of(
        {NEVER: HEAD, f"small@0 {ANEW}": (STEM[0], STEM[0]), f"lora@0 {ANEW}": (LORA[1], LORA[1])}
    )
    gate = Gate({}, {}, {}, [CASE])
    rows = bit_rows(lives, ["small@0", "lora@0"], gate, SEEDS, 40)
    # whether: +0.4 on the second target of four; where: +0.1 on the first and +0.05 on the third besides
    assert [row["points"] for row in rows] == ["+10.00", "+13.75", "+3.75"]
    assert rows[0]["decided"] == "whether: small@0, or none"


def test_an_oracle_that_knows_of_nothing_better_waits() -> None:
    assert gate_of((0.1, 0.1, 0.1, 0.1)).gains["oracle"] == pytest.approx([0.0])


def test_a_stream_that_some_seed_has_not_played_is_left_out() -> None:
    with pytest.raises(SystemExit, match="no stream was played by every arm"):
        judge(lives_of({NEVER: HEAD}), ["small@0"], [CASE], SEEDS, [], 40)


def test_of_each_rival_the_setting_with_the_best_life_is_taken() -> None:
    worst_first = {arm: ((0.1 + 0.01 * place,) * 4,) * 2 for place, arm in enumerate(rivals())}
    lives = lives_of(worst_first)  # type: ignore[arg-type]
    last = {rival.name: arm for arm, rival in rivals().items()}
    assert tuned(lives, [(CASE, 0), (CASE, 1)]) == list(last.values())
    first, *_ = rivals()
    halved = {key: life for key, life in lives.items() if key != (first, CASE, 1)}
    assert tuned(halved, [(CASE, 0), (CASE, 1)]) == list(last.values())
    del halved[first, CASE, 0]
    with pytest.raises(
        SystemExit, match=r"reset cannot be tuned: no draw was played in all of its 2 settings"
    ):
        tuned(halved, [(CASE, 0), (CASE, 1)])


@pytest.mark.parametrize(
    ("oracle", "gate"),
    [
        ([0.1], "not measured"),
        ([0.1, 0.11], "open"),
        ([0.1, -0.09], "closed"),
        ([0.0, 0.0], "closed"),
    ],
)
def test_one_stream_does_not_say_whether_the_gate_is_open(oracle: list[float], gate: str) -> None:
    gains = {"oracle": oracle, NEVER: [0.0] * len(oracle)}
    assert [row["gate"] for row in gate_rows(Gate(gains, {}, {}, [CASE] * len(oracle)))] == [gate] * 2
