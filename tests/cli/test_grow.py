"""`esper grow` on a task that trains in moments, and what it exports."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from esper.cli import main
from esper.cli.grow import usual
from esper.leyline import HostProtocol
from esper.leyline.files import require_exportable
from esper.simic.held_out import grow_case
from esper.simic.reward import RewardConfig
from esper.tamiyo.controller import RewardRecord
from esper.tamiyo.deciders import Choice, Decider, decider
from esper.tamiyo.observation import Observer
from esper.tamiyo.tracker import Paymaster
from esper.tolaria.tasks import Instance, forget, register, task
from tiny_controllers import tiny_controller
from tiny_tasks import tiny_task


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    register(tiny_task())
    yield "tiny"
    forget("tiny")


GROW = ["grow", "tiny", "--epochs", "9", "--controller", "periodic"]


def test_it_tells_of_every_epoch_and_of_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(GROW) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0]
        == "tiny under periodic; accuracy is of validation, on the half of it by which nothing is decided"
    )
    assert lines[1] == "epoch  accuracy  without growth    added  decision before it"
    assert [line.split()[0] for line in lines[2:11]] == [str(epoch) for epoch in range(1, 10)]
    assert "germinate" in lines[2]
    assert any(line.startswith("test accuracy") for line in lines)
    assert not any(line.startswith("rolled back") for line in lines)
    gain = next(line for line in lines if line.startswith("gain "))
    assert main([*GROW, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["epochs"] == 9
    assert result["gain"] == pytest.approx(
        result["validation_accuracy"]
        - result["without_growth"]
        - task("tiny").rent * result["added_parameters"] / result["host_parameters"]
    )
    assert gain.split()[1:3] == [f"{100 * result['gain']:+.1f}", "points:"]
    assert main([*GROW, "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_a_run_too_short_for_its_controller_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    short = ["grow", "tiny", "--controller", "cpu-v1", "--quiet"]
    assert main([*short, "--epochs", "5"]) == 0
    assert (
        "note: controller cpu-v1 germinates nothing before epoch 4, so in epochs=5" in capsys.readouterr().err
    )
    assert main([*short, "--epochs", "6"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("case", "who"),
    [
        ("mnist1d:shuffled=1.0", "cpu-v1"),
        ("shift:change=8", "shift-v1"),
        ("stream", "stream-v1"),
        ("digits", "by_layout"),
        ("adapt:size=100", "adapt-v1"),
        ("adapt_stream", "frozen_spread"),
    ],
)
def test_where_nobody_is_named_the_controller_of_the_task_decides(case: str, who: str) -> None:
    assert usual(case) == who


def test_waiting_gains_exactly_nothing() -> None:
    grown = grow_case("tiny", decider("wait"), epochs=5)
    assert grown.summary.gain == 0.0
    assert grown.summary.added_parameters == 0


def test_what_is_exported_is_the_settled_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GROW, "--export", "out.safetensors"]) == 0
    assert capsys.readouterr().out.endswith("exported to out.safetensors\n")
    again = grow_case("tiny", decider("periodic"), epochs=9).host
    fresh = task("tiny").grow(Instance.parse("tiny").load(), seed=0)
    fresh.load("out.safetensors")
    inputs = again.validation.inputs
    with torch.no_grad():
        assert torch.equal(fresh.eval()(inputs), again.model.eval()(inputs))
    assert main([*GROW, "--export", "out.safetensors"]) == 0
    assert capsys.readouterr().out.endswith("exported to out.safetensors, in place of what was there\n")


def _listen(
    who: Decider, record: RewardRecord, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[float], list[float]]:
    """What a decider is shown once it plays, and what a Grower would show it under the same record."""
    rewards, expected, decide = list[float](), list[float](), who.decide
    grower = Paymaster(record.rent, record)

    def listening(observer: Observer, host: HostProtocol, *, reward: float) -> Choice:
        rewards.append(reward)
        grown = any(slot.alpha > 0.0 for slot in host.readings())
        score, sizes = host.report.validation_accuracy, (host.added_parameters, host.host_parameters)
        expected.append(grower.pay(score, *sizes, grown=grown) if host.report.epoch else 0.0)
        return decide(observer, host, reward=reward)

    monkeypatch.setattr(who, "decide", listening)
    return rewards, expected


def test_a_decider_is_shown_its_reward_as_in_a_grower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the forecast, from what is observed: the baseline is for the table alone."""
    who, gamma, rent = decider("periodic"), RewardConfig().gamma, task("tiny").rent
    record = RewardRecord(family="contribution", mode="shaped", rent=rent, gamma=gamma, control_variate=True)
    rewards, expected = _listen(who, record, monkeypatch)
    grow_case("tiny", who, epochs=6)
    assert rewards == expected
    assert any(expected)


def test_a_controller_is_shown_the_reward_of_its_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in its training, whatever its utility is measured by here: the task's rent, against the baseline."""
    record = RewardRecord(family="contribution", mode="shaped", rent=0.5, gamma=0.9, control_variate=False)
    who = decider(tiny_controller(1, scale=3.0, reward=record))
    rewards, expected = _listen(who, record, monkeypatch)
    grown = grow_case("tiny", who, epochs=6)
    assert rewards == expected
    assert any(expected)
    end, rent = grown.summary, task("tiny").rent * grown.host.added_parameters / grown.host_parameters
    assert None not in (end.utility, end.validation_accuracy, end.gain)
    assert end.utility == pytest.approx((end.validation_accuracy or 0.0) - rent)


def test_a_controller_from_a_folder_within_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    tiny_controller(1, scale=3.0).save("mine")
    assert main([*GROW[:4], "--controller", "mine", "--sample", "--budget", "40", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["controller"] == "tiny"
    assert result["added_parameters"] <= 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["grow", "nope"], "task is 'nope'; expected one of digits, "),
        (["grow", "cpu"], "task is 'cpu', a suite: it draws instances of tasks; expected one of digits, "),
        (["grow", "toy"], "task is 'toy', a suite in which no network trains; expected one of digits, "),
        (["grow", "tiny", "--controller", "plato"], "esper: --controller is 'plato'; expected one of"),
        (
            ["grow", "tiny", "--controller", "schedule"],
            "--controller is 'schedule', a rule that needs its text",
        ),
        (
            ["grow", "tiny", "--export", "a.pkl"],
            "esper: --export is a.pkl; expected an ending among .safetensors, .onnx, .pt2",
        ),
        (["grow", "tiny", "--export", "no/a.pt2"], "esper: --export is no/a.pt2, and there is no folder no"),
        (["grow", "tiny", "--epochs", "0"], "esper: --epochs is 0; expected a whole number >= 1"),
        (["grow", "tiny", "--epochs", "9" * 9], "esper: --epochs is 999999999; expected a whole number"),
        (
            ["grow", "tiny", "--seed", "-1"],
            "esper: --seed is -1; expected a whole number from 0 to 4294967295",
        ),
        (
            ["grow", "tiny", "--seed", "9" * 20],
            f"esper: --seed is {'9' * 20}; expected a whole number from 0",
        ),
        (["grow", "tiny", "--device", "tpu"], "esper: --device is 'tpu'; expected cpu"),
        (["grow", "tiny", "--device", "cuda"], "torch finds no CUDA device"),
    ],
)
def test_what_cannot_be_grown(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_onnx_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.leyline.files.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install 'esper-grow\[onnx\]'"):
        require_exportable(Path("a.onnx"))
