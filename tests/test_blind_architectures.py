"""SPEC F6: how models that nobody chose are drawn, made small and counted."""

from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

import bench_blind_architectures as blind
from bench_blind_architectures import Drawn, draw, runs_alone, section, write_page
from blind_configs import SMALL, shrunk
from blind_rules import NotByTheRules, Unit, filled


def _units() -> list[Unit]:
    return [Unit(f"family {index}", lambda _rng: [], lambda _host: iter(())) for index in range(13)]


def test_draws_are_fixed_and_share_no_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blind, "POOLS", {"package": (_units, 5)})
    first, second, third = ([unit.name for _, unit in draw(number)] for number in (1, 2, 3))
    assert [unit.name for _, unit in draw(1)] == first
    assert [len(first), len(second), len(third)] == [5, 5, 3]
    assert len({*first, *second, *third}) == 13


def test_the_fields_of_a_config_are_made_small_by_their_names() -> None:
    fields = {
        "hidden_size": 768, "num_attention_heads": 12, "num_key_value_heads": 1, "tie": True, "pad_token_id": 50256,
        "depths": [2, 2, 6], "hidden_sizes": (96, 192, 384), "dropout": 0.1,
        "text_config": {"num_layers": 24, "kind": "a"},
    }  # fmt: skip
    assert shrunk(fields, SMALL) == {
        "hidden_size": 32, "num_attention_heads": 4, "pad_token_id": 50256 % 90, "depths": [1, 1, 1],
        "hidden_sizes": [32, 32, 32], "text_config": {"num_layers": 4, "kind": "a"},
    }  # fmt: skip


def test_arguments_are_filled_in_by_name_and_an_unknown_one_is_named() -> None:
    def made(width: int, depth: int = 2, **more: object) -> None:
        del width, depth, more

    assert filled(made, {"width": 8, "heads": 2}) == {"width": 8}
    with pytest.raises(NotByTheRules, match="'width'"):
        filled(made, {"depth": 3})


def test_what_learns_nothing_by_itself_is_left_out() -> None:
    x = torch.randn(3, 7)
    runs_alone(nn.Linear(7, 5), x)
    with pytest.raises(blind.LeftOut, match="needs no gradient"):
        runs_alone(nn.Identity(), x)
    with pytest.raises(blind.LeftOut, match="not finite"):
        runs_alone(nn.Linear(7, 5), x / 0)


def test_a_draw_is_written_between_its_marks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nBy hand.\n")
    monkeypatch.setattr(blind, "PAGE", page)
    rows = [
        Drawn("a", "one", "pass", "a.One"), Drawn("a", "two", "crash", "a.Two", why="it broke"),
        Drawn("b", "three", "left out", why="does not run: no"), Drawn("b", "four", "pass", "b.Four"),
    ]  # fmt: skip
    write_page(1, rows)
    write_page(2, rows[:1])
    write_page(1, rows)
    text = page.read_text()
    assert text.startswith("# Title\n\nBy hand.\n")
    assert text.count("2 of 3 pass: 66.7 %.") == text.count("1 of 1 pass: 100.0 %.") == 1
    assert blind.classes_of(1) == {"a.One", "a.Two", "b.Four"}
    assert "| all | 2 | 0 | 1 | 0 | 66.7 % | 1 |" in section(rows)
    assert any(line.startswith("| a two | `a.Two` ") for line in section(rows))
    assert not any(line.startswith("| not passed ") for line in section(rows[:1]))
