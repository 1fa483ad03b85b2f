"""`esper.train`: the run's folder, its record and its result; and what the pages say about it is true."""

import re
import shlex
from pathlib import Path

import pytest
import torch

import esper
from esper.benchmark.arms import Hosts, LearnedArm, RuleArm
from esper.benchmark.controllers import find_controller
from esper.benchmark.playing import play_chunk
from esper.cli import main
from esper.leyline import RoundFinished, RunFinished, RunStarted
from esper.nissa import RunError, describe_run, read_run
from esper.runs.ship import controller_of_run
from esper.simic.config.checks import ConfigError
from esper.simic.reports import News
from esper.tamiyo.actions import GrowthSpace, numbered_slots
from esper.tamiyo.controller import Controller

pytestmark = pytest.mark.filterwarnings("ignore:advantage std:RuntimeWarning")
ROOT = Path(__file__).parents[2]
SMALL = "--num-envs 4 --num-minibatches 1 --rounds 2 --eval-episodes 4 --pool-cases 5 --no-run-tensorboard"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def small(**changes: object) -> esper.TrainingConfig:
    settings = {"num_envs": 4, "num_minibatches": 1, "rounds": 2, "eval_every": 0, "pool_cases": 5}
    settings["hidden_size"] = 16
    return esper.TrainingConfig.preset("toy", **{**settings, "run_tensorboard": False, **changes})


def test_a_run_from_python() -> None:
    news: list[News] = []
    result = esper.train(small(run_name="mine"), progress=news.append)
    assert result.directory == Path("runs/mine")
    assert (result.rounds, result.interrupted) == (2, None)
    assert result.last_checkpoint == Path("runs/mine/checkpoints/last.pt")
    assert describe_run(result.directory).standing == "finished"
    assert [type(one) for one in news if isinstance(one, RunStarted | RoundFinished | RunFinished)] == [
        RunStarted,
        RoundFinished,
        RoundFinished,
        RunFinished,
    ]
    recorded = [record.event for record in read_run(result.directory)]
    assert [event for event in recorded if isinstance(event, RoundFinished)] == [
        event for event in news if isinstance(event, RoundFinished)
    ]


def test_python_trains_with_one_thread_as_the_command_does() -> None:
    try:
        torch.set_num_threads(2)
        esper.train(small(rounds=1))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(1)


def test_a_name_is_made_and_never_taken_twice() -> None:
    result = esper.train(small())
    assert result.directory is not None
    assert result.directory.name.startswith("toy-20")
    with pytest.raises(RunError, match=r"exists; `esper resume .*` goes on with it, or choose another name"):
        esper.train(small(run_name=result.directory.name))


def test_a_run_whose_controller_may_retire() -> None:
    """From its settings over its episodes to the controller that is shipped, and back."""
    result = esper.train(
        small(run_name="giver", retire=True, decay_rent=0.02, rounds=3, exploration_floor=0.9)
    )
    assert result.directory is not None
    rounds = [
        record.event for record in read_run(result.directory) if isinstance(record.event, RoundFinished)
    ]
    assert sum(event.operations.get("RETIRE", 0) for event in rounds) > 0
    assert result.last_checkpoint is not None
    shipped = controller_of_run(result.directory, result.last_checkpoint, name="giver")
    assert (shipped.card.decisions.retire, shipped.card.decisions.decay_rent) == (True, 0.02)
    shipped.save("giver")
    assert Controller.load("giver").policy(GrowthSpace(numbered_slots(2), ("norm",))).layout.sizes[0] == 7
    with pytest.raises(ConfigError, match=r"a network of 7 operations; this run has 6 \(retire=False\)"):
        esper.train(small(warm_start="giver", run_name="other"))
    with pytest.raises(
        ConfigError, match="initial_op_logits names RETIRE, which retire=False does not offer"
    ):
        small(initial_op_logits={"RETIRE": -2.0})


def test_a_run_that_observes_in_ratios() -> None:
    """From its settings to the controller that is shipped, to the bench that plays it, and back."""
    result = esper.train(small(run_name="ratios", observation_units="ratios", exploration_floor=0.5))
    assert result.directory is not None
    assert result.last_checkpoint is not None
    shipped = controller_of_run(result.directory, result.last_checkpoint, name="ratios")
    assert shipped.card.decisions.observation_units == "ratios"
    assert shipped.card.training.settings["observation_units"] == "ratios"
    shipped.save("ratios")
    case = "toy:draw=3"
    known = {("wait", 0, case): play_chunk(RuleArm("wait"), Hosts("toy", case, (0, 1)))}
    played = [
        play_chunk(LearnedArm("learned", (find_controller(place),)), Hosts("toy", case, (0, 1), known))
        for place in (result.directory, Path("ratios"))
    ]
    assert [row.decisions for row in played[0]] == [row.decisions for row in played[1]]
    assert all(row.utility is not None for row in played[0])
    with pytest.raises(ConfigError, match=r"warm_start is 'ratios', .*observation_units=ratios; .* absolute"):
        esper.train(small(warm_start="ratios", run_name="other"))
    assert not Path("runs/other").exists()
    esper.train(small(warm_start="ratios", run_name="again", observation_units="ratios"))


def test_what_cannot_be_trained_begins_no_run() -> None:
    with pytest.raises(ConfigError, match="suite is 'nope'; expected a suite"):
        esper.train(small(suite="nope"))
    assert not Path("runs").exists()
    with pytest.raises(
        ConfigError, match=r"menu has 'mixr'; the hosts of toy are offered .*did you mean 'mixer'"
    ):
        esper.train(small(menu="norm,mixr"))
    for suite, has_none in (("toy", "toy"), ("cpu", "mnist1d")):
        with pytest.raises(
            ConfigError,
            match=f"reparametrise is True, and {has_none} has no lr, width, steps to draw; expected",
        ):
            esper.train(small(suite=suite, reparametrise=True))
    assert not Path("runs").exists()


@pytest.mark.filterwarnings("always:run .* is finished:UserWarning")
def test_the_commands_pages_commands_work(capsys: pytest.CaptureFixture[str]) -> None:
    """Those about a run, after a small one of the name that the page uses; other verbs have their tests."""
    assert main(["train", "--preset", "toy", "--run-name", "my-run", *shlex.split(SMALL)]) == 0
    (block,) = re.findall(r"```bash\n(.*?)```", (ROOT / "docs/command.md").read_text(), flags=re.DOTALL)
    commands = [shlex.split(line, comments=True)[1:] for line in block.splitlines()]
    about_the_run = [command for command in commands if "my-run" in command and "--task" not in command]
    assert [command[0] for command in about_the_run] == ["resume", "resume", "evaluate", "controllers", "sql"]
    for command in about_the_run:
        assert main(command) == 0
    assert "mean_gain" in capsys.readouterr().out


def test_the_commands_pages_python_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/command.md").read_text(), flags=re.DOTALL)
    exec(compile(block, "command.md", "exec"), {})
    assert Path("runs/from-python/events.jsonl").is_file()
