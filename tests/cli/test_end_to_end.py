"""The verbs with the real trainer behind them, in the toy."""

import json
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from copies import EsperInACopy
from esper.cli import main

pytestmark = pytest.mark.filterwarnings("ignore:advantage std:RuntimeWarning")

SMALL = shlex.split(
    "--suite toy --horizon 6 --num-envs 4 --num-minibatches 1 --hidden-size 16 --gamma 1 --pool-cases 8 "
    "--eval-every 3 --eval-episodes 4 --run-checkpoint-every 2 --no-run-tensorboard"
)


def train(name: str, rounds: int, *more: str) -> list[str]:
    return ["train", *SMALL, "--rounds", str(rounds), "--run-name", name, *more]


def weights(run: str) -> dict[str, Tensor]:
    checkpoint = torch.load(Path("runs") / run / "checkpoints" / "last.pt", weights_only=True)
    policy: dict[str, Tensor] = checkpoint["policy"]
    return policy


def require_equal_weights(one: str, other: str) -> None:
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert torch.equal(mine[name], theirs[name]), name


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def between(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what passes between processes, so that the run's own holds nothing else."""
    return tmp_path_factory.mktemp("between")


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main([*arguments, "--json"]) == 0
    answer: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return answer


def test_train_then_ask_then_evaluate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(train("mine", 6)) == 0
    told = capsys.readouterr().out
    assert [f"round {number:4} of 6  " in told for number in (1, 6, 7)] == [True, True, False]
    assert "judged on 4 hosts it does not train on" in told

    (listing,) = ask(capsys, "runs")
    assert (listing["name"], listing["standing"], listing["last_round"]) == ("mine", "finished", 6)

    counts = (
        "select (select count(*) from rounds) as rounds, (select count(*) from episodes) as episodes, "
        "(select count(*) from decisions) as decisions, (select count(*) from evaluations) as evaluations"
    )
    assert ask(capsys, "sql", "mine", counts) == [
        {"rounds": 6, "episodes": 24, "decisions": 144, "evaluations": 2}
    ]
    germinated = "select count(*) as n from decisions where op = 'GERMINATE'"
    (from_decisions,) = ask(capsys, "sql", "mine", germinated)
    (from_rounds,) = ask(capsys, "sql", "mine", "select sum(operations['GERMINATE'])::int as n from rounds")
    assert from_decisions == from_rounds
    assert from_decisions["n"] > 0

    scores = ask(capsys, "evaluate", "mine", "--episodes", "7")
    by_policy = {score["policy"]: score for score in scores}
    assert set(by_policy) == {"wait", "learned", "random", "probe_and_keep"}
    assert (by_policy["wait"]["gain"], by_policy["wait"]["gain_high"]) == (0.0, 0.0)
    assert all(score["episodes"] == 7 for score in by_policy.values())


def test_a_stopped_run_goes_on_to_the_same_weights(capsys: pytest.CaptureFixture[str], between: Path) -> None:
    child = EsperInACopy(*train("stopped", 20), folder=between)
    child.wait_for("round    3")
    returned, told = child.stop(signal.SIGTERM)
    assert returned == 130
    assert told == "esper: stopped by SIGTERM; `esper resume runs/stopped` goes on\n"
    (listing,) = ask(capsys, "runs")
    assert listing["standing"] == "interrupted"
    assert listing["last_round"] < 20

    assert main(["resume", "stopped", "--quiet"]) == 0
    assert main(train("whole", 20, "--quiet")) == 0
    require_equal_weights("stopped", "whole")
    rounds = "select round, mean_return, approx_kl from rounds order by round"
    recorded = [ask(capsys, "sql", run, rounds) for run in ("stopped", "whole")]
    assert recorded[0] == recorded[1]
    counted = [ask(capsys, "sql", run, "select count(*) as n from episodes") for run in ("stopped", "whole")]
    assert counted == [[{"n": 80}]] * 2


def test_what_a_run_may_go_on_with_is_an_option_of_resume(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(train("mine", 2, "--quiet")) == 0
    more = ["--rounds", "3", "--eval-every", "3", "--run_keep_checkpoints=1", "--no-run-record-episodes"]
    assert main(["resume", "mine", "--quiet", *more]) == 0
    config = json.loads(Path("runs/mine/config.json").read_text())
    assert (config["rounds"], config["eval_every"], config["run_keep_checkpoints"]) == (3, 3, 1)
    assert main(["resume", "mine", "--rounds", "4", "--workers", "-1"]) == 2
    assert capsys.readouterr().err == "esper: --workers is -1; expected a whole number >= 0\n"


@pytest.mark.filterwarnings("always:no checkpoint:UserWarning")
def test_a_run_that_has_no_checkpoint_yet_begins_anew(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(train("mine", 2, "--quiet")) == 0
    assert main(train("same", 2, "--quiet")) == 0
    shutil.rmtree("runs/mine/checkpoints")
    assert main(["resume", "mine"]) == 0
    assert "round    1" in capsys.readouterr().out
    require_equal_weights("mine", "same")
    assert ask(capsys, "sql", "mine", "select count(*) as n from episodes") == [{"n": 8}]


def test_a_name_that_exists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(train("mine", 1, "--quiet")) == 0
    before = Path("runs/mine/events.jsonl").read_bytes()
    assert main(train("mine", 1)) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert (
        told.err
        == "esper: run runs/mine exists; `esper resume runs/mine` goes on with it, or choose another name\n"
    )
    assert Path("runs/mine/events.jsonl").read_bytes() == before


def test_a_checkpoint_of_another_layout_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(train("three", 1, "--quiet")) == 0
    assert main(train("four", 1, "--suite", "toy_slots", "--quiet")) == 0
    shutil.copy("runs/four/checkpoints/last.pt", "runs/three/checkpoints/last.pt")
    Path("runs/three/checkpoints/best.pt").unlink()
    before = Path("runs/three/events.jsonl").read_bytes()
    refused = {"resume": "these differ: suite toy_slots -> toy", "evaluate": "the checkpoint's slot_ids is"}
    for verb, why in refused.items():
        assert main([verb, "three"]) == 2
        told = capsys.readouterr().err
        assert why in told
        assert told.count("\n") == 1
    assert Path("runs/three/events.jsonl").read_bytes() == before
    assert [each["standing"] for each in ask(capsys, "runs")] == ["finished", "finished"]


def test_a_checkpoint_of_another_version_leaves_the_run_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(train("mine", 1, "--quiet")) == 0
    for path in Path("runs/mine/checkpoints").iterdir():
        torch.save({**torch.load(path, weights_only=True), "version": "esper-ppo-0"}, path)
    assert main(["resume", "mine"]) == 2
    assert "version 'esper-ppo-0'; this code reads" in capsys.readouterr().err
    (listing,) = ask(capsys, "runs")
    assert (listing["standing"], listing["last_round"]) == ("finished", 1)


def test_old_checkpoints_go_and_the_best_and_the_last_stay() -> None:
    assert main(train("mine", 9, "--quiet", "--run-keep-checkpoints", "2")) == 0
    kept = {path.name for path in Path("runs/mine/checkpoints").iterdir()}
    assert kept == {"round-000006.pt", "round-000008.pt", "best.pt", "last.pt", "previous.pt"}


def test_a_run_that_is_stopped_before_its_first_round_says_what_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, between: Path
) -> None:
    """Control curves of real hosts take a while; those that were trained need not be trained again."""
    monkeypatch.setenv("ESPER_CACHE", str(Path("cache").resolve()))
    hosts = "--suite mnist1d:size=500 --horizon 5 --num-envs 1 --num-minibatches 1 --pool-host-seeds 40"
    child = EsperInACopy(
        "train", *shlex.split(hosts), "--eval-every", "0", "--run-name", "mine", folder=between
    )
    child.wait_for("  4 of 40")
    returned, told = child.stop(signal.SIGTERM)
    assert returned == 130
    kept = len(list(Path("cache/controls").iterdir()))
    assert told == (
        f"esper: stopped by SIGTERM while baseline curves were trained ({kept} of 40 are kept); "
        "`esper resume runs/mine` goes on with the first round\n"
    )
    assert 4 <= kept < 40
    (listing,) = ask(capsys, "runs")
    assert (listing["standing"], listing["last_round"]) == ("interrupted", None)


def test_a_task_of_another_world_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(train("mine", 1, "--quiet")) == 0
    assert main(["evaluate", "mine", "--task", "mnist1d"]) == 2
    assert "mnist1d" in capsys.readouterr().err
