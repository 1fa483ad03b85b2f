"""`esper evaluate --offline`: what recorded episodes say of a controller."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import esper
from esper.cli import main
from esper.runs.offline import judge_offline
from esper.simic.config.checks import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.offline.dataset import write_episodes
from recorded_toy import random_episodes

pytestmark = pytest.mark.filterwarnings("ignore:advantage std:RuntimeWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set, and a run that has learned from it to wait: everything else is far less probable."""
    path = tmp_path_factory.mktemp("offline")
    write_episodes(path / "random.safetensors", random_episodes(40))
    config = TrainingConfig.preset(
        "toy",
        hidden_size=16,
        num_envs=2,
        num_minibatches=1,
        pool_cases=9,
        rounds=1,
        offline_batches=1,
        offline=(str(path / "random.safetensors"),),
        lr=1e-9,
        initial_op_logits={"WAIT": 50.0},
        run_directory=path,
        run_name="waits",
    )
    esper.train(config)
    return path


def test_the_command_prints_all_three_estimates(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["evaluate", "waits", "--directory", str(folder), "--updates", "20"]
    data = ["--offline", str(folder / "random.safetensors")]
    assert main([*arguments, *data]) == 0
    printed = capsys.readouterr().out
    assert "waits from 40 recorded episodes, greedy" in printed
    for row in ("what was recorded", "fitted Q", "importance weighted"):
        assert row in printed
    assert main([*arguments, *data, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    recording = random_episodes(40)
    assert report["recorded"] == pytest.approx(recording.returns.mean().item(), abs=1e-5)
    assert report["weighted"] is None  # nobody waited all along
    assert report["effective"] == 0.0
    assert main([*arguments, *data, "--task", "toy"]) == 2
    assert "--task is for hosts; with --offline nothing is played" in capsys.readouterr().err


def test_unknown_probabilities_are_not_made_up(folder: Path, tmp_path: Path) -> None:
    recording = random_episodes(40)
    write_episodes(
        tmp_path / "rule.safetensors",
        replace(recording, log_prob=torch.full_like(recording.log_prob, torch.nan)),
    )
    report = judge_offline(folder / "waits", [tmp_path / "rule.safetensors"], updates=1)
    assert (report.weighted, report.effective) == (None, None)


def test_episodes_that_were_cut_short_have_no_return(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seven of forty lost their host: what they would have returned is unknown."""
    recording = random_episodes(40)
    lost = torch.arange(40) % 6 == 0
    path = tmp_path / "lost.safetensors"
    write_episodes(path, replace(recording, terminated=~lost))
    report = judge_offline(folder / "waits", [path], updates=1)
    assert (report.episodes, report.cut_short) == (33, 7)
    assert report.recorded == pytest.approx(recording.returns[~lost].mean().item(), abs=1e-5)
    known = ["evaluate", "waits", "--updates", "1", "--directory"]
    assert main([*known, str(folder), "--offline", str(path)]) == 0
    assert "waits from 33 recorded episodes (7 more were cut short), greedy" in capsys.readouterr().out
    write_episodes(path, replace(recording, terminated=torch.zeros(40, dtype=torch.bool)))
    with pytest.raises(ConfigError, match="all of the 40 recorded episodes were cut short"):
        judge_offline(folder / "waits", [path], updates=1)


def test_a_shipped_controller_is_judged_on_other_slots(folder: Path) -> None:
    report = judge_offline("cpu-v1", [folder / "random.safetensors"], updates=1)
    assert report.policy == "cpu-v1"


def test_other_slots_are_refused(folder: Path, tmp_path: Path) -> None:
    recording = random_episodes(40)
    terms = recording.terms.model_copy(update={"slots": ("a", "b", "c")})
    write_episodes(tmp_path / "other.safetensors", replace(recording, terms=terms))
    with pytest.raises(ConfigError, match=r"the data are of slots a, b, c .*the run waits has other ones"):
        judge_offline(folder / "waits", [tmp_path / "other.safetensors"], updates=1)
