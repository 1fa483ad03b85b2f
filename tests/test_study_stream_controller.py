"""A controller and its ablations on streams: all arms are played, and the table is of what was played."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import JsonValue

import study_stream_controller as study
from bench_rows import ROW
from esper.benchmark.arms import RuleArm
from esper.benchmark.rows import RowStore
from esper.benchmark.suites import BenchSuite
from esper.tamiyo.actions import GrowthSpace, numbered_slots
from esper.tamiyo.controller import Controller, TrainingRecord, layout_fingerprint
from esper.tamiyo.networks import GrowthPolicy
from esper.tolaria.tasks import forget, register, task
from tiny_controllers import tiny_card

NAMES = ("wait", "learned", "without_memory", "without_return", "without_change", "blind")


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path / "cache"))
    register(replace(task("slow_bits"), name="tiny_life", epochs=8))
    yield "tiny_life"
    forget("tiny_life")


@pytest.fixture
def controller(tmp_path: Path) -> Path:
    """Random weights; it may retire."""
    settings: dict[str, JsonValue] = {"suite": "tiny_life", "retire": True}
    training = TrainingRecord(
        suite="tiny_life", horizon=8, slots=("a",), blueprints=("mixer",), seed=0, rounds=0, settings=settings
    )
    retiring = {"retire": True, "decay_epochs": 3, "decay_rent": 0.01}
    card = tiny_card(layout=layout_fingerprint(retire=True), training=training, frozen_heads={}, **retiring)
    policy = GrowthPolicy(
        GrowthSpace(numbered_slots(2), ("mixer", "norm", "widen"), retire=True),
        hidden_size=card.network.hidden_size,
        width=card.network.width,
        key_size=card.network.key_size,
        sight=card.network.sight,
        generator=torch.Generator().manual_seed(3),
    )
    weights = {name: 3.0 * tensor for name, tensor in policy.state_dict().items()}
    Controller(card, weights).save(tmp_path / "random")
    return tmp_path / "random"


def test_a_random_controller_and_its_ablations_live_on_two_streams(
    life: str, controller: Path, tmp_path: Path
) -> None:
    streams = BenchSuite(life, (f"{life}:every=3,size=64", f"{life}:every=5,size=64"))
    plan = study.plan_of(streams, [controller], hosts=1, device="cpu")
    assert tuple(arm.name for arm in plan.arms) == NAMES
    table = study.study(plan, tmp_path / "out")
    assert tuple(row["arm"] for row in table) == NAMES
    assert all(row["lives"] == 2 for row in table)
    assert table[0]["over waiting"] == "+0.00 ± 0.00"
    rows = RowStore(tmp_path / "out").read()
    returned = [row for row in rows if row.arm == "without_return"]
    assert not any(word in row.decisions for row in returned for word in ("prune", "retire"))
    assert any(row.decisions for row in rows if row.arm == "learned")
    assert (tmp_path / "out" / "stream_controller.json").is_file()


def test_differences_are_paired_by_stream() -> None:
    scores = {"wait": (0.5, 0.6, 0.4, 0.5), "learned": (0.7, 0.6, 0.5, 0.7), "blind": (0.4, 0.5, 0.5, 0.6)}
    rows = [
        replace(ROW, arm=arm, instance=f"s{place // 2}", seed=place % 2, test_accuracy=score, life_added=0.0)
        for arm, values in scores.items()
        for place, score in enumerate(values)
    ]
    assert study.differences(rows, "learned", "wait") == pytest.approx([0.1, 0.15])
    table = {row["arm"]: row for row in study.rows_of(rows, tuple(scores))}
    assert table["learned"]["over waiting"] == "+12.50 ± 2.50"
    assert table["blind"]["learned ahead by"] == "+12.50 ± 7.50"
    assert table["learned"]["learned ahead by"] == ""


def test_what_lacks_something_is_compared_with_the_same_controller() -> None:
    """The second controller is better by 0.2, and was not ablated; blind copies it on the second host alone."""
    rows = [
        replace(ROW, arm=arm, member=member, instance="s", seed=seed, test_accuracy=score, life_added=0.0)
        for arm, member, seed, score in (
            ("learned", 0, 0, 0.5),
            ("learned", 1, 0, 0.7),
            ("learned", 0, 1, 0.6),
            ("learned", 1, 1, 0.9),
            ("without_memory", 0, 0, 0.4),
            ("without_memory", 0, 1, 0.4),
            ("without_return", 0, 0, 0.5),
            ("without_return", 1, 1, 0.5),
            ("blind", 0, 0, 0.45),
            ("blind", 0, 1, 0.7),
        )
    ]
    assert study.differences(rows, "learned", "without_return") == pytest.approx([(0.0 + 0.4) / 2])
    assert study.differences(rows, "learned", "blind") == pytest.approx([(0.05 + 0.2) / 2])
    assert study.differences(rows, "learned", "without_memory") == pytest.approx([(0.1 + 0.2) / 2])


def test_rows_of_other_arms_are_not_mixed_in(life: str, controller: Path, tmp_path: Path) -> None:
    streams = BenchSuite(life, (f"{life}:every=3,size=64", f"{life}:every=5,size=64"))
    plan = study.plan_of(streams, [controller], hosts=1, device="cpu")
    study._require_same(plan, tmp_path / "out")
    study._require_same(plan, tmp_path / "out")
    changed = RuleArm("random")
    object.__setattr__(changed, "name", "learned")
    other = replace(plan, arms=(plan.arms[0], changed))
    with pytest.raises(SystemExit, match=r"learned in .* played otherwise than now"):
        study._require_same(other, tmp_path / "out")


def test_mistakes_are_refused_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments, message in (
        (["--runs", str(tmp_path / "none")], "there is no such controller, run or checkpoint"),
        (["--runs", "x", "--draws", "1"], "--draws is 1; expected 2 or more"),
        (["--runs", "x", "--rivals", "luck"], "invalid choice: 'luck'"),
    ):
        with pytest.raises(SystemExit):
            study.main(arguments)
        assert message in capsys.readouterr().err
