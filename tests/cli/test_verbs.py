"""Each verb against what it stands on; the trainer is played by a stand-in."""

import json
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path

import pytest
import torch

from esper.cli import doctor, main
from esper.leyline import CheckpointStore, RoundFinished, RunFinished, RunSink, RunStarted, RunStatus
from esper.runs.train import new_name
from esper.simic.agent import NonFiniteUpdateError
from esper.simic.agent.checkpoint import CHECKPOINT_VERSION
from esper.simic.config.training_config import TrainingConfig
from esper.simic.reports import Progress
from esper.simic.trainer import TrainingResult
from esper.tamiyo.controller import HeldOutScore
from run_examples import example

ROOT = Path(__file__).parents[2]
RESULT = TrainingResult(
    directory=None,
    rounds=3,
    env_steps=9,
    seconds=1.0,
    interrupted=None,
    best_score=None,
    last_checkpoint=Path("last.pt"),
)
SCORE = HeldOutScore(
    policy="learned",
    episodes=6,
    utility=0.75,
    gain=0.25,
    gain_low=0.125,
    gain_high=0.375,
    test_accuracy=None,
    added_parameters=1234.0,
)


@dataclass(slots=True)
class Trainer:
    """Stands in for esper.simic.trainer."""

    error: BaseException | None = None
    stopped_by: str | None = None
    best_score: float | None = None
    configs: list[TrainingConfig] = field(default_factory=list)
    resumed: list[Path | None] = field(default_factory=list)
    sinks: list[RunSink] = field(default_factory=list)

    def train_ppo_vectorized(
        self,
        config: TrainingConfig,
        *,
        checkpoints: CheckpointStore | None = None,
        resume: Path | None = None,
        accept: Callable[[], None] | None = None,
        note: str | None = None,
        sink: RunSink | None = None,
        progress: Progress | None = None,
    ) -> TrainingResult:
        assert note is None
        assert sink is not None
        assert progress is not None
        assert config.run_name is not None
        assert checkpoints is not None
        assert checkpoints.folder == config.run_directory / config.run_name / "checkpoints"
        self.configs.append(config)
        self.resumed.append(resume)
        if accept is not None:
            accept()
        self.sinks.append(sink)
        sink.emit(RunStarted(name=config.run_name, esper="0"))
        progress(example(RoundFinished))
        saved = {
            "version": CHECKPOINT_VERSION,
            "counters": {"env_steps": 9},
            "extra": {"round": 3, "best_score": None, "config": config.to_dict(), "envs": {}},
        }
        checkpoints.save(lambda path: torch.save(saved, path), round_number=3, reason="last")
        if self.error is not None:
            raise self.error
        status: RunStatus = "finished" if self.stopped_by is None else "interrupted"
        sink.emit(RunFinished(status=status, reason=self.stopped_by, rounds=3, env_steps=9, seconds=1.0))
        return replace(RESULT, interrupted=self.stopped_by, best_score=self.best_score)


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trainer:
    stand_in = Trainer()
    monkeypatch.setattr("esper.runs.train.train_ppo_vectorized", stand_in.train_ppo_vectorized)
    monkeypatch.chdir(tmp_path)
    return stand_in


TRAIN = ["train", "--preset", "toy", "--run-name", "mine", "--no-run-tensorboard"]


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ([], "; at the defaults that can take hours, `--preset toy` takes two minutes"),
        (["--rounds", "1"], ""),
        (["--num-envs", "1", "--num-minibatches", "1"], ""),
        (["--preset", "cpu"], ""),
    ],
)
def test_a_run_as_long_as_by_default_says_so(
    options: list[str], hint: str, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--suite", "digits", "--run-name", "mine", *options]) == 0
    assert trainer.configs
    assert capsys.readouterr().out.splitlines()[0].endswith(f"on digits{hint}")


def test_train_records_a_run(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--rounds", "3"]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert lines[0] == "run runs/mine: 3 rounds on toy"
    assert lines[1].startswith(
        "round    4 of 3      2,560 steps  return +0.0938  gain +6.25 points  accuracy 0.828"
    )
    assert "rounds           3" in lines
    assert "best_score       -" in lines
    config = TrainingConfig.load(Path("runs/mine/config.json"))
    assert trainer.configs == [config]
    assert trainer.resumed == [None]
    assert config == TrainingConfig.preset("toy", run_name="mine", run_tensorboard=False, rounds=3)
    assert main(["runs", "--json"]) == 0
    (listing,) = json.loads(capsys.readouterr().out)
    assert (listing["name"], listing["standing"]) == ("mine", "finished")


def test_the_gain_of_the_best_checkpoint_is_in_points_for_people(
    trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer.best_score = 0.0625
    assert main(TRAIN) == 0
    assert "best_score       +6.25 points" in capsys.readouterr().out.splitlines()
    assert main([*TRAIN, "--json", "--run-name", "other"]) == 0
    assert json.loads(capsys.readouterr().out)["best_score"] == 0.0625


def test_train_says_nothing_or_only_json(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert main([*TRAIN, "--json", "--run-name", "other"]) == 0
    assert json.loads(capsys.readouterr().out) == {**asdict(RESULT), "last_checkpoint": "last.pt"}
    assert len(trainer.configs) == 2


def test_a_run_gets_a_name_of_its_own(trainer: Trainer) -> None:
    assert main(["train", "--preset", "toy", "--no-run-tensorboard"]) == 0
    (config,) = trainer.configs
    assert config.run_name is not None
    assert config.run_name.startswith("toy-20")
    assert new_name("mnist1d:noise=0.2", datetime(2024, 5, 6, 7, 8, 9)) == "mnist1d-20240506-070809"


def test_without_telemetry_nothing_is_recorded(trainer: Trainer) -> None:
    assert main([*TRAIN, "--run-telemetry", "off"]) == 0
    assert trainer.sinks
    assert not Path("runs/mine/events.jsonl").exists()


def test_a_name_that_is_taken_is_refused(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(TRAIN) == 0
    capsys.readouterr()
    assert main(TRAIN) == 2
    assert (
        "run runs/mine exists; `esper resume runs/mine` goes on with it, or choose another name"
        in capsys.readouterr().err
    )
    assert len(trainer.configs) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "nope"], "--suite is 'nope'; expected a suite (cpu, shift, "),
        (
            ["--suite", "mnist1d:nois=1"],
            "--suite is 'mnist1d:nois=1': task 'mnist1d' has no parameter 'nois'",
        ),
        (["--suite", "cpu:x=1"], "--suite is 'cpu:x=1', and suites have no parameters"),
        (["--suite", "mnist1d", "--menu", "foo"], "--menu has 'foo'; the hosts of mnist1d are offered "),
        (["--suite", "cifar10"], "--suite is 'cifar10': the data set cifar10 is not in "),
        (["--device", "cuda"], "--device is 'cuda'; the toy has nothing to compute there"),
    ],
)
def test_what_cannot_be_trained_begins_no_run(
    trainer: Trainer,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ESPER_DATA", "nowhere")
    assert main([*TRAIN, *arguments]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"esper: {message}")
    assert told.count("\n") == 1
    assert not Path("runs").exists()
    assert trainer.configs == []


def test_wandb_that_is_missing_begins_no_run(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("esper.runs.train.find_spec", lambda _: None)
    assert main([*TRAIN, "--run-wandb"]) == 2
    assert "the package wandb is not installed" in capsys.readouterr().err
    assert trainer.configs == []


def test_an_interrupted_run_can_be_resumed(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    trainer.error = KeyboardInterrupt()
    assert main(TRAIN) == 130
    assert capsys.readouterr().err == "esper: stopped by Ctrl-C; `esper resume runs/mine` goes on\n"
    trainer.error = None
    for given in ("mine", "runs/mine"):
        assert main(["resume", given, "--quiet"]) == 0
        assert trainer.resumed[-1] == Path("runs/mine/checkpoints/last.pt")
        assert trainer.configs[-1].suite == "toy"


def test_a_run_is_resumed_where_it_is_and_named_as_it_was(
    trainer: Trainer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*TRAIN, "--quiet"]) == 0
    assert main(["resume", "mine"]) == 0
    assert capsys.readouterr().out.startswith("run runs/mine: ")
    monkeypatch.chdir("runs/mine")
    assert main(["resume", ".", "--quiet"]) == 0
    assert trainer.configs[-1].run_name == "mine"


def test_what_is_refused_was_not_announced(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--quiet", "--rounds", "3"]) == 0
    assert main(["resume", "mine", "--rounds", "2"]) == 2
    assert capsys.readouterr() == ("", "esper: --rounds is 2; 3 are done\n")
    assert len(trainer.configs) == 1


def test_a_signal_ends_a_run_in_order(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    trainer.stopped_by = "SIGTERM"
    assert main([*TRAIN, "--quiet"]) == 130
    assert capsys.readouterr().err == "esper: stopped by SIGTERM; `esper resume runs/mine` goes on\n"


def test_a_learner_that_gave_up_is_told_in_one_line(
    trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer.error = NonFiniteUpdateError("three updates in a row were not finite")
    assert main(TRAIN) == 1
    assert capsys.readouterr().err == "esper: three updates in a row were not finite\n"


def test_a_run_that_is_misspelled(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--quiet"]) == 0
    assert main(["resume", "mime"]) == 2
    assert capsys.readouterr().err == "esper: there is no run 'mime' in runs; did you mean mine?\n"
    assert len(trainer.configs) == 1


def test_evaluate(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_for: list[tuple[object, ...]] = []

    def evaluate_checkpoint(
        config: TrainingConfig,
        checkpoint: Path,
        *,
        name: str | None,
        episodes: int,
        seed: int,
        progress: Callable[[str, int, int], None],
        scored: Callable[[HeldOutScore], None],
    ) -> list[HeldOutScore]:
        asked_for.append((config.run_name, checkpoint, name, episodes, seed))
        for done in (0, 1, 2):  # only the first is worth a line so soon
            progress("learned", done, 4)
        scored(SCORE)
        if seed == 9:
            raise KeyboardInterrupt
        return [SCORE]

    monkeypatch.setattr("esper.simic.held_out.evaluate_checkpoint", evaluate_checkpoint)
    assert main([*TRAIN, "--quiet"]) == 0
    asked = ["evaluate", "mine", "--task", "toy", "--episodes", "4", "--seed", "7"]
    assert main(asked) == 0
    told = capsys.readouterr()
    assert told.err == "     0 of 4 episodes  learned plays\n"
    assert told.out.splitlines() == [
        "last checkpoint of mine on toy, held out",
        "policy   utility  points over waiting      test accuracy  added parameters  episodes",
        "learned    0.750  +25.00 [+12.50, +37.50]              -  1,234                    6",
        "Utility and points are of validation, less rent for added parameters.",
    ]
    last, best = (Path(f"runs/mine/checkpoints/{name}.pt") for name in ("last", "best"))
    shutil.copy(last, best)
    assert main(["evaluate", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [SCORE.model_dump()]
    assert asked_for == [("mine", last, "toy", 4, 7), ("mine", best, None, 128, 0)]
    assert main(["evaluate", "mine", "--seed", "9"]) == 130
    told = capsys.readouterr()
    assert told.out.splitlines()[2].startswith("learned    0.750  +25.00")
    assert "stopped by Ctrl-C: these were judged to their end" in told.err
    assert main(["evaluate", "mine", "--task", "nope"]) == 2
    assert capsys.readouterr().err.startswith("esper: --task is 'nope'; expected a suite")
    assert main(["evaluate", "cpu-v1", "--task", "digit"]) == 2
    assert capsys.readouterr().err.endswith("; did you mean 'digits'?\n")
    assert main(["evaluate", "mine", "--seed", "x"]) == 2
    assert capsys.readouterr().err.startswith("esper: --seed is x; expected a whole number from 0 to ")
    assert trainer.configs


def test_nothing_to_evaluate(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--quiet"]) == 0
    Path("runs/mine/checkpoints/last.pt").unlink()
    assert main(["evaluate", "mine"]) == 2
    assert "run runs/mine has no checkpoint; train it first" in capsys.readouterr().err
    assert trainer.configs


def test_sql(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--quiet"]) == 0
    assert main(["sql", "mine", "select run, standing from runs"]) == 0
    assert capsys.readouterr().out.splitlines() == ["run   standing", "mine  finished"]
    assert main(["sql", "mine", "select 1 as one, null as no", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"one": 1, "no": None}]
    assert main(["sql", "mine", "select nonsense from rounds"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("esper: there is no column nonsense; spelled most like it are ")
    assert main(["sql", "mine", "describe rounds", "--json"]) == 0
    columns = json.loads(capsys.readouterr().out)
    assert told.endswith(f"; rounds has {len(columns)} columns, which `describe rounds` lists\n")
    assert main(["sql", "mine", "select nonsense from rounds join episodes using (round)"]) == 2
    assert capsys.readouterr().err.endswith("; `describe TABLE` lists all columns of one\n")
    for wrong in ("select a.mean_gin from rounds as a", "select mean_gin from rounds"):
        assert main(["sql", "mine", wrong]) == 2
        assert capsys.readouterr().err.startswith(
            "esper: there is no column mean_gin; spelled most like it are mean_gain, "
        )
    assert main(["sql", "mine", "select round, count(*) from rounds"]) == 2
    assert "must appear in the GROUP BY clause" in capsys.readouterr().err
    assert main(["sql", "mine", "select rnd from rounds"]) == 2
    assert "no column rnd; spelled most like it are round" in capsys.readouterr().err
    of_another = "select e.approx_kl from episodes e join rounds r on e.round = r.round"
    assert main(["sql", "mine", of_another]) == 2
    told = capsys.readouterr().err
    assert told.startswith(
        "esper: there is no column approx_kl in what it is asked of, as there is in rounds; spelled"
    )
    assert "like it are approx_kl" not in told
    assert main(["sql", "mine", "with a as (select round as r from rounds) select round from a"]) == 2
    assert "as there is in rounds; spelled most like it are r;" in capsys.readouterr().err
    assert main(["sql", "mine", "select case when round > 1 then 2 from rounds"]) == 2
    assert capsys.readouterr().err == 'esper: Parser Error: syntax error at or near "from"\n'
    assert main(["sql", "mine", "select case from episodes"]) == 2
    assert capsys.readouterr().err.endswith("; the column of case is called instance\n")
    assert main(["sql", "mine", "select mean_gain fro rounds"]) == 2
    assert capsys.readouterr().err == 'esper: Parser Error: syntax error at or near "rounds"\n'
    assert trainer.configs


def test_runs_of_an_empty_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["runs", "--directory", str(tmp_path)]) == 0
    told = f"no runs in the folder {tmp_path}/ (`esper train --preset demo` makes one)\n"
    assert capsys.readouterr().out == told


def test_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100
    assert main(["tasks"]) == 0
    told = capsys.readouterr().out
    assert "mnist1d" in told
    assert "toy_shift" in told
    assert main(["tasks", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert {"task", "epochs", "rent", "parameters", "what it is"} == set(content["tasks"][0])
    assert "noise" in next(row for row in content["tasks"] if row["task"] == "mnist1d")["parameters"]
    assert [row["suite"] for row in content["suites"]][:2] == ["cpu", "shift"]


def test_doctor(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data" / "cifar10").mkdir(parents=True)
    (tmp_path / "data" / "cifar10" / "cifar-10-binary.tar.gz").write_bytes(b"not an archive")
    assert main(["doctor", "--json"]) == 0
    found = {each["what"]: each["found"] for each in json.loads(capsys.readouterr().out)}
    assert found["esper-grow"] == "0.1.0"
    assert found["torch threads"] == "1"
    assert found["data: mnist"] == f"not in {tmp_path / 'data' / 'mnist'}"
    assert found["data: cifar10"].startswith("damaged: ")
    assert found["cache"].endswith("can be written")


def test_doctor_knows_the_extras_that_are_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"esper-grow": "0.1.0", "onnx": "1.2", "nicegui": "3.4"}
    monkeypatch.setattr(doctor, "_version", there.get)
    main(["doctor", "--json"])
    rows = json.loads(capsys.readouterr().out)
    found = {each["what"]: (each["found"], each["advice"]) for each in rows}
    assert found["extra: watch"] == ("nicegui 3.4", None)
    partly = "onnx 1.2, onnxruntime (missing), onnxscript (missing)"
    assert found["extra: onnx"] == (partly, "pip install 'esper-grow[onnx]'")
    assert found["extra: ray"] == ("not installed", "pip install 'esper-grow[ray]'")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = {"architectures", "dev", "docs"}
    assert set(doctor.EXTRAS) == project["optional-dependencies"].keys() - ours


def test_doctor_finds_a_cache_that_cannot_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path / "file"))
    assert main(["doctor"]) == 1
    assert "set ESPER_CACHE to a folder that can be written" in capsys.readouterr().out
