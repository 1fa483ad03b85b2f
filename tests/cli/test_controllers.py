"""A real run becomes a controller, which is judged, listed and used like one that comes with Esper."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from esper.cli import main
from esper.nissa import RunError
from esper.runs.ship import controller_of_run, require_checkpoint
from esper.simic.config.checks import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.held_out import evaluate_checkpoint, evaluate_controller
from esper.tamiyo import controller as controllers
from esper.tamiyo.controller import Controller
from tiny_controllers import tiny_controller

pytestmark = pytest.mark.filterwarnings("ignore:advantage std:RuntimeWarning")
TRAIN = ["train", "--preset", "toy", "--run-name", "mine", "--no-run-tensorboard", "--quiet"]
TRAIN += [
    "--rounds",
    "1",
    "--num-envs",
    "3",
    "--num-minibatches",
    "1",
    "--hidden-size",
    "13",
    "--num-lstm-layers",
    "2",
]
TRAIN += ["--pool-cases", "3", "--pool-host-seeds", "1", "--eval-every", "0"]


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(TRAIN) == 0
    return Path("runs/mine")


def test_a_run_becomes_a_controller(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["controllers", "export", "mine", "--to", "given", "--summary", "a try", "--episodes", "3"]) == 0
    )
    assert capsys.readouterr().out == "last checkpoint of mine is now the controller given\n"
    card = Controller.load("given").card
    assert (card.name, card.summary, card.licence) == ("given", "a try", "MIT")
    assert (card.network.hidden_size, card.network.num_lstm_layers) == (13, 2)
    assert card.decisions.frozen_heads == {
        "style": "linear_add", "tempo": 3, "alpha_target": 1.0, "alpha_speed": 0, "alpha_curve": "linear"
    }  # fmt: skip
    assert (card.training.suite, card.training.rounds) == ("toy", 1)
    assert card.training.env_steps == 3 * 20
    assert card.training.seconds is not None
    assert card.training.settings["num_envs"] == 3
    assert "run_directory" not in card.training.settings
    assert [row.policy for row in card.evidence] == ["wait", "given", "random", "probe_and_keep"]
    # The same numbers as the run's own policy: saving it changed nothing of what it decides.
    checkpoint = require_checkpoint(trained)
    config = TrainingConfig.load(trained / "config.json")
    (_, own) = evaluate_checkpoint(config, checkpoint, episodes=3, policies=())
    (_, ours) = evaluate_controller(Controller.load("given"), episodes=3, policies=())
    assert (ours.utility, ours.added_parameters) == (own.utility, own.added_parameters)


def test_a_controller_is_not_written_over_unasked(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = ["controllers", "export", trained.name, "--to", "given", "--summary"]
    assert main([*export, "the first"]) == 0
    capsys.readouterr()
    assert main([*export, "the second"]) == 2
    told = "esper: --to is 'given', which is a controller already; --force writes over it\n"
    assert capsys.readouterr().err == told
    assert Controller.load("given").card.summary == "the first"
    assert main([*export, "the second", "--force"]) == 0
    assert Controller.load("given").card.summary == "the second"


def test_a_controller_is_no_file(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("given").write_text("mine")
    assert main(["controllers", "export", trained.name, "--to", "given", "--force"]) == 2
    assert capsys.readouterr().err == "esper: --to is 'given', which is a file; a controller is a folder\n"
    assert Path("given").read_text() == "mine"


def test_a_menu_goes_with_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*TRAIN, "--menu", "norm"]) == 0
    assert main(["controllers", "export", "mine", "--to", "given"]) == 0
    given = Controller.load("given")
    assert given.card.decisions.menu == ("norm",)
    # Nothing on the menu of such a card is offered in the toy: whoever plays by it has to wait.
    elsewhere = replace(given.card.decisions, menu=("no such kind",))
    none = Controller(given.card.model_copy(update={"decisions": elsewhere}), given.weights)
    (_, idle, random) = evaluate_controller(none, episodes=3, policies=("random",))
    assert idle.added_parameters == random.added_parameters == 0.0
    capsys.readouterr()


def test_a_controller_is_judged_by_its_name_or_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(controllers, "SHIPPED", tmp_path / "shipped")
    tiny_controller().save("shipped/known")
    for given in ("known", "shipped/known"):
        assert main(["evaluate", given, "--episodes", "2", "--task", "toy_slots"]) == 0
        told = capsys.readouterr().out.splitlines()
        assert told.pop() == "2 episodes are too few to say who is better, which takes 6"
        assert not any("[" in line for line in told)
        assert main(["evaluate", given, "--episodes", "1", "--task", "toy_slots", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert {(row["gain_low"], row["gain_high"]) for row in rows} == {(None, None)}
        assert told[0] == "controller tiny on toy_slots, held out"
        assert told[3].startswith("tiny ")
    (tmp_path / "shipped/known/card.json").write_text('{"format": "esper controller", "version": 7}')
    assert main(["evaluate", "known"]) == 2
    assert "has version 7; this Esper reads version 1" in capsys.readouterr().err


def test_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(controllers, "SHIPPED", tmp_path)
    assert main(["controllers"]) == 0
    assert capsys.readouterr().out.startswith("none comes with this version")
    tiny_controller().save(tmp_path / "tiny")
    assert main(["controllers"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed[1].split() == ["tiny", "toy", "-", "-", "-", "MIT"]
    assert listed[3] == "tiny: knows nothing"
    assert main(["controllers", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "tiny"


def test_what_comes_with_esper_is_listed_beside_the_best_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["controllers"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert max(map(len, listed)) <= 80
    shipped = next(line for line in listed if line.startswith("cpu-v1"))
    assert shipped.split()[:7] == ["cpu-v1", "cpu", "54400", "+2.8", "on", "cpu", "+0.9"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "mine", "--to", "out", "--name", "a b"], "esper: --name is 'a b'"),
        (["export", "mine", "--to", "a b"], "esper: --to names it 'a b'"),
        (
            ["export", "mine", "--to", "out", "--episodes", "-1"],
            "--episodes is -1; expected a whole number >= 1",
        ),
        (
            ["export", "mine", "--to", "out", "--episodes", "0"],
            "--episodes is 0; expected a whole number >= 1",
        ),
        (
            ["export", "mine", "--to", "runs/mine/config.json/out"],
            "controller runs/mine/config.json/out cannot be written (Not a directory); choose another folder",
        ),
        (["export", "nope", "--to", "out"], "there is no run 'nope' in runs"),
        (["export", "mine"], "the following arguments are required: --to"),
    ],
)
def test_what_cannot_be_exported(
    trained: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["controllers", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not Path("out").exists()
    assert trained.exists()


@pytest.mark.filterwarnings("always:damaged:UserWarning")
def test_a_damaged_or_missing_checkpoint_gives_way_to_the_next(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best, last, previous = (trained / "checkpoints" / f"{name}.pt" for name in ("best", "last", "previous"))
    previous.write_bytes(last.read_bytes())
    best.write_bytes(last.read_bytes()[:-100])
    assert main(["controllers", "export", "mine", "--to", "given"]) == 0
    told = capsys.readouterr()
    assert told.out == "last checkpoint of mine is now the controller given\n"
    assert told.err == "esper: note: damaged: best.pt; last.pt is used\n"
    last.unlink()
    assert main(["evaluate", "mine", "--episodes", "1"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("previous checkpoint of mine on toy")
    assert told.err.startswith("esper: note: damaged: best.pt; previous.pt is used\n")
    previous.unlink()
    with pytest.raises(RunError, match=r"has no sound checkpoint \(.*best.pt: damaged"):
        require_checkpoint(trained)


def test_statistics_of_one_suite_cannot_be_shipped(trained: Path) -> None:
    config = TrainingConfig.load(trained / "config.json")
    checkpoint = require_checkpoint(trained)
    TrainingConfig.of({**config.to_dict(), "normalize_observations": True}).save(trained / "config.json")
    with pytest.raises(ConfigError, match="normalize_observations is on"):
        controller_of_run(trained, checkpoint, name="x")
    checkpoint.unlink()
    for name in ("last.pt", "best.pt"):
        (trained / "checkpoints" / name).unlink(missing_ok=True)
    with pytest.raises(RunError, match="has no checkpoint; train it first"):
        require_checkpoint(trained)
    assert main(["controllers", "export", "mine", "--to", "out"]) == 2
