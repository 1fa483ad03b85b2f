"""Going on with a run: from what is sound, under what may change, and beyond the rounds first asked for."""

import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import esper
from esper.cli import main
from esper.leyline import RunStarted
from esper.nissa import describe_run, read_events
from esper.simic.agent import CheckpointError
from esper.simic.config.checks import ConfigError
from esper.simic.trainer import TrainingResult

pytestmark = [
    pytest.mark.filterwarnings("ignore:advantage std:RuntimeWarning"),
    pytest.mark.filterwarnings("always::UserWarning"),  # which the command prints
]
CHECKPOINTS = Path("runs/mine/checkpoints")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def config(name: str = "mine", **changes: object) -> esper.TrainingConfig:
    settings = {"num_envs": 4, "num_minibatches": 1, "hidden_size": 16, "pool_cases": 5, "eval_episodes": 2}
    settings["horizon"] = 6
    record = {"run_tensorboard": False, "run_checkpoint_every": 3, "run_name": name}
    return esper.TrainingConfig.preset(
        "toy", **{**settings, **record, "rounds": 5, "eval_every": 0, **changes}
    )


_TRAINED: dict[str, tuple[TrainingResult, dict[Path, bytes]]] = {}


def content(folder: str = "runs/mine") -> dict[Path, bytes]:
    files = (path for path in Path(folder).rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files if path.name != "writer.lock"}


def train(settings: esper.TrainingConfig) -> TrainingResult:
    """`esper.train`; where a test before has trained the same, its files are written again."""
    if repr(settings) not in _TRAINED:
        _TRAINED[repr(settings)] = esper.train(settings), content(f"runs/{settings.run_name}")
    result, files = _TRAINED[repr(settings)]
    for path, data in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return result


def weights(name: str) -> dict[str, torch.Tensor]:
    saved = torch.load(Path("runs") / name / "checkpoints" / "last.pt", weights_only=True)
    policy: dict[str, torch.Tensor] = saved["policy"]
    return policy


def require_equal_weights(one: str, other: str) -> None:
    mine, theirs = weights(one), weights(other)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine | theirs)


def overwrite(path: Path) -> None:
    """Other bytes in the middle, as a bad disk leaves them: torch loads or refuses it, for the wrong reason."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = os.urandom(64)
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Other content, with the checksum of it."""
    saved = torch.load(path, weights_only=True)
    change(saved)
    torch.save(saved, path)


def start_notes() -> list[str | None]:
    events = (record.event for record in read_events(Path("runs/mine"), kinds=[RunStarted.kind]))
    return [event.note for event in events if isinstance(event, RunStarted)]


@pytest.mark.parametrize("damage", [overwrite, cut])
@pytest.mark.parametrize(
    ("damaged", "source", "rounds"),
    [
        (["last.pt"], "previous.pt", 4),
        (["last.pt", "previous.pt"], "round-000003.pt", 3),
    ],
)
def test_a_run_falls_back_to_the_newest_sound_checkpoint_and_ends_as_if_nothing_had_been(
    damage: Callable[[Path], None],
    damaged: Iterable[str],
    source: str,
    rounds: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train(config())
    shutil.copytree("runs/mine", "runs/whole")
    for name in damaged:
        damage(CHECKPOINTS / name)
    assert main(["resume", "mine", "--quiet"]) == 0
    told = f"damaged: {', '.join(damaged)}; going on from {source}, after round {rounds}; rounds lost: {5 - rounds}"
    assert capsys.readouterr().err == f"esper: note: {told}\n"
    assert start_notes() == [None, told]
    require_equal_weights("mine", "whole")
    assert {path.stem for path in CHECKPOINTS.glob("*.damaged")} == {
        name.removesuffix(".pt") for name in damaged
    }


def test_the_newest_is_the_one_of_the_latest_round_whatever_the_clock_says() -> None:
    settings = config(rounds=4, run_checkpoint_every=1)
    train(settings)
    os.utime(CHECKPOINTS / "round-000003.pt")
    for newest in ("last.pt", "round-000004.pt"):
        os.utime(CHECKPOINTS / newest, (0, 0))
        with pytest.warns(UserWarning, match="is finished, with 4 rounds"):
            assert esper.train(settings, resume=True).rounds == 4
        for name in ("last.pt", "previous.pt"):  # then there are periodic ones alone
            (CHECKPOINTS / name).unlink(missing_ok=True)


def test_a_damaged_best_is_chosen_anew() -> None:
    before = train(config(eval_every=1, rounds=2))
    assert before.best_score is not None
    overwrite(CHECKPOINTS / "best.pt")
    with pytest.warns(
        UserWarning, match=r"damaged: best.pt; going on from last.pt, after round 2; rounds lost: 0"
    ):
        after = esper.train(config(eval_every=1, rounds=3), resume=True)
    train(config("whole", eval_every=1, rounds=3, lr_anneal_steps=2, entropy_anneal_steps=2))
    require_equal_weights("mine", "whole")
    best = torch.load(CHECKPOINTS / "best.pt", weights_only=True)["extra"]
    assert (best["round"], best["best_score"]) == (3, after.best_score)


def test_the_best_is_gone_on_from_where_nothing_newer_is_sound() -> None:
    train(config(rounds=1, eval_every=1))
    overwrite(CHECKPOINTS / "last.pt")
    with pytest.warns(
        UserWarning, match=r"damaged: last.pt; going on from best.pt, after round 1; rounds lost: 0"
    ):
        esper.train(config(rounds=2, eval_every=1), resume=True)


def test_a_run_without_any_sound_checkpoint_is_refused_with_the_reason() -> None:
    train(config(rounds=1))
    cut(CHECKPOINTS / "last.pt")
    with pytest.raises(CheckpointError, match=r"has no sound checkpoint \(.*last.pt: damaged or cut short"):
        esper.train(config(rounds=1), resume=True)
    assert (CHECKPOINTS / "last.pt").is_file()


def test_a_resume_under_other_settings_is_refused_with_all_that_differs() -> None:
    train(config(rounds=2))
    recorded = Path("runs/mine/events.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"these differ: num_envs 4 -> 6, lr 0\.001 -> 0\.002$"):
        esper.train(config(rounds=3, num_envs=6, lr=2e-3), resume=True)
    with pytest.raises(ConfigError, match="entropy_anneal_steps None -> 9"):
        esper.train(config(rounds=3, entropy_anneal_steps=9), resume=True)
    shutil.rmtree(CHECKPOINTS)
    with pytest.raises(ConfigError, match=r"these differ: seed 0 -> 1"):
        esper.train(config(rounds=2, seed=1), resume=True)
    assert Path("runs/mine/events.jsonl").read_bytes() == recorded


def test_settings_that_were_edited_in_the_folder_are_compared_too(capsys: pytest.CaptureFixture[str]) -> None:
    train(config(rounds=2))
    file = Path("runs/mine/config.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "gamma": 0.5}))
    assert main(["resume", "mine", "--rounds", "3"]) == 2
    assert "these differ: gamma" in capsys.readouterr().err


def test_what_may_change_is_taken_and_recorded() -> None:
    train(config(rounds=2))
    esper.train(config(rounds=4, workers=2, run_telemetry="rounds"), resume=True)
    assert start_notes() == [
        None,
        "workers 0 -> 2; rounds 2 -> 4; lr_anneal_steps None -> 2; entropy_anneal_steps None -> 2; "
        "run_telemetry full -> rounds",
    ]
    assert esper.TrainingConfig.load("runs/mine/config.json") == config(
        rounds=4, workers=2, run_telemetry="rounds", lr_anneal_steps=2, entropy_anneal_steps=2
    )
    train(config("whole", rounds=4, lr_anneal_steps=2, entropy_anneal_steps=2))
    require_equal_weights("mine", "whole")


def test_more_rounds_go_on_at_the_end_of_what_was_annealed() -> None:
    """Bit for bit as a run that was asked for all rounds at once, with annealing of the length that the first had."""
    short = config(rounds=4)
    assert (short.lr_anneal_steps, short.entropy_anneal_steps) == (None, None)
    train(short)
    assert main(["resume", "mine", "--rounds", "6", "--quiet"]) == 0
    esper.train(replace(short, rounds=7), resume=True)  # as first asked for, but for the rounds
    train(config("whole", rounds=7, lr_anneal_steps=4, entropy_anneal_steps=3))
    require_equal_weights("mine", "whole")
    assert describe_run(Path("runs/mine")).last_round == 7


def test_a_finished_run_says_so_and_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    first = esper.train(config(rounds=2))
    files = ("runs/mine/events.jsonl", "runs/mine/config.json")
    before = [Path(file).read_bytes() for file in files]
    assert main(["resume", "mine", "--rounds", "2"]) == 0
    told = capsys.readouterr()
    assert "going on" not in told.out
    path = Path("runs/mine")
    assert told.err == (
        f"esper: note: run {path} is finished, with 2 rounds; `esper resume {path} --rounds N` goes on to N\n"
    )
    assert [Path(file).read_bytes() for file in files] == before
    with pytest.warns(UserWarning, match="is finished, with 2 rounds"):
        assert esper.train(config(rounds=2), resume=True) == replace(first, seconds=0.0)


def test_a_resume_that_is_refused_or_has_nothing_to_do_changes_no_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    train(config(rounds=2))
    before = content()
    assert main(["resume", "mine", "--rounds", "1"]) == 2
    assert capsys.readouterr().err == "esper: --rounds is 1; 2 are done\n"
    assert content() == before
    assert main(["resume", "mine"]) == 0
    assert content() == before
    for path in CHECKPOINTS.iterdir():
        edit(path, lambda saved: saved["extra"]["envs"].update(version=0))
    overwrite(CHECKPOINTS / "previous.pt")
    before = content()
    with (
        pytest.warns(UserWarning, match=r"damaged: previous\.pt; going on from last\.pt"),
        pytest.raises(CheckpointError, match="the saved environments have version 0"),
    ):
        esper.train(config(rounds=3), resume=True)
    assert content() == before


def test_lost_checkpoints_are_said_and_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    train(config(eval_every=4))
    for name in ("last.pt", "best.pt"):
        (CHECKPOINTS / name).unlink()
    assert main(["resume", "mine", "--quiet"]) == 0
    lost = "going on from previous.pt, after round 4; rounds lost: 1; the best is chosen anew"
    shutil.rmtree(CHECKPOINTS)
    assert main(["resume", "mine", "--quiet"]) == 0
    none = "no checkpoint; from the start, rounds lost: 5"
    assert capsys.readouterr().err == f"esper: note: {lost}\nesper: note: {none}\n"
    assert start_notes() == [None, lost, none]


def test_a_finished_run_says_only_what_is_damaged(capsys: pytest.CaptureFixture[str]) -> None:
    assert train(config(eval_every=1, rounds=2)).best_score is not None
    overwrite(CHECKPOINTS / "best.pt")
    assert main(["resume", "mine", "--json"]) == 0
    told = capsys.readouterr()
    assert told.err.splitlines()[0] == "esper: note: damaged: best.pt, set aside"
    assert "going on" not in told.err
    assert json.loads(told.out)["best_score"] is None
    assert (CHECKPOINTS / "best.damaged").is_file()


def test_one_checkpoint_that_is_refused_does_not_strand_a_run() -> None:
    train(config(eval_every=2, rounds=2))
    edit(CHECKPOINTS / "best.pt", lambda saved: saved.update(version="esper-ppo-0"))
    (CHECKPOINTS / "round-000009.pt").mkdir()
    with pytest.warns(
        UserWarning, match=r"best.pt: version 'esper-ppo-0'.* only; going on from last.pt, after round 2"
    ):
        assert esper.train(config(eval_every=0, rounds=3), resume=True).rounds == 3
    assert (CHECKPOINTS / "best.pt").is_file()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"counters": {}}, "counters have no env_steps"),
        ({"counters": None}, "counters have no env_steps"),
        ({"round": -5}, "round is not a whole number from 0 to 1"),
        ({"round": True}, "round is not a whole number"),
        ({"round": 10**30}, "round is not a whole number"),
        ({"best_score": "hi"}, "best_score is neither None nor a finite number"),
        ({"best_score": float("nan")}, "best_score is neither"),
        ({"config": {}}, "config is not the settings of a run"),
    ],
)
def test_a_checkpoint_with_impossible_parts_is_refused_by_name(change: dict[str, object], why: str) -> None:
    train(config(rounds=1))
    part = "counters" if "counters" in change else "extra"
    edit(
        CHECKPOINTS / "last.pt",
        lambda saved: saved.update(change) if part in change else saved[part].update(change),
    )
    with pytest.raises(CheckpointError, match=why):
        esper.train(config(rounds=2), resume=True)


def test_a_run_that_was_killed_before_it_said_that_it_is_finished_says_it() -> None:
    train(config(rounds=2))
    events = Path("runs/mine/events.jsonl")
    events.write_bytes(b"".join(events.read_bytes().splitlines(keepends=True)[:-1]))
    assert describe_run(Path("runs/mine")).standing == "crashed"
    with pytest.warns(UserWarning, match="is finished"):
        esper.train(config(rounds=2), resume=True)
    assert describe_run(Path("runs/mine")).standing == "finished"


def test_a_checkpoint_is_put_on_the_disk_once(monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("esper.leyline.files.os.fsync", synced.append)
    esper.train(config(rounds=2, run_telemetry="off"))
    assert len(synced) == 2 + 2, "config.json, provenance.json and one checkpoint a round"


@pytest.mark.parametrize(("start", "why"), [("cpu-v9", "expected one of"), ("cpu-v1", "this run has 16")])
def test_a_warm_start_that_cannot_be_begins_no_run(start: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"warm_start is '{start}'.*{why}"):
        esper.train(config(warm_start=start))
    assert not Path("runs").exists()
