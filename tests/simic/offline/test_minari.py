"""Data sets that other learners read: written with Minari, and equal when they are read back."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.cli import main
from esper.simic.offline import dataset as on_disk
from esper.simic.offline.dataset import Dataset, MinariError, export_minari, import_minari, write_episodes
from esper.simic.offline.recording import BY_EPISODE, BY_STEP, Recording
from recorded_toy import random_episodes


def twelve() -> Recording:
    """Episodes of one slot, which can ruin a host of the toy: some ended early."""
    recording = random_episodes(60, slots=1)
    shortest = recording.length.argsort()[:3].tolist()
    return recording.part([*range(9), *shortest])


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder with recorded episodes, of which one was cut short and one ended early."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    recording = replace(twelve(), terminated=torch.arange(12) != 4)
    assert len(set(recording.length.tolist())) > 1
    write_episodes(tmp_path / "runs" / "first" / "episodes" / "round-1.safetensors", recording)
    (tmp_path / "runs" / "first" / "config.json").write_text("{}")
    return tmp_path / "runs" / "first"


def test_a_data_set_comes_back_equal(data: Path) -> None:
    pytest.importorskip("minari")
    pytest.importorskip("h5py")
    dataset = Dataset.open([data])
    export_minari(dataset, "esper/random-v0")
    again, recording = import_minari("esper/random-v0"), dataset.read(range(len(dataset)))
    assert again.terms == recording.terms
    assert again.rows == recording.rows
    for name in (*BY_STEP, *BY_EPISODE):
        assert getattr(again, name).dtype == getattr(recording, name).dtype, name
        torch.testing.assert_close(
            getattr(again, name), getattr(recording, name), rtol=0, atol=0, equal_nan=True, msg=name
        )
    with pytest.raises(MinariError, match="there is a Minari data set 'esper/random-v0' already"):
        export_minari(dataset, "esper/random-v0")


def test_others_read_it_as_any_data_set(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    minari = pytest.importorskip("minari")
    pytest.importorskip("h5py")
    arguments = ["runs", "export", "first", "--directory", str(data.parent), "--minari", "esper/cli-v0"]
    assert main(arguments) == 0
    assert "12 episodes" in capsys.readouterr().out
    dataset = minari.load_dataset("esper/cli-v0")
    recording = twelve()
    assert dataset.total_steps == recording.steps
    episode = dataset[4]
    assert episode.truncations[-1]
    assert not episode.terminations.any()
    assert dataset.observation_space["mask"].n == recording.mask.shape[1]
    assert episode.observations["slots"].shape[:2] == (len(episode.rewards) + 1, 3)
    for step in range(len(episode.rewards)):
        assert dataset.action_space.contains(np.asarray(episode.actions[step]))
        seen = {name: np.asarray(values[step]) for name, values in episode.observations.items()}
        assert dataset.observation_space.contains(seen)


def test_without_the_package_it_says_what_to_install(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_disk, "find_spec", lambda _: None)
    with pytest.raises(MinariError, match=r"minari is not installed.*pip install 'esper-grow\[minari\]'"):
        export_minari(Dataset.open([data]), "esper/random-v0")


def test_a_verb_that_does_not_exist_is_refused(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "export", "first", "--directory", str(data.parent)]) == 2
    assert "--minari" in capsys.readouterr().err
    assert main(["runs", "export", "nobody", "--directory", str(data.parent), "--minari", "x-v0"]) == 2
    assert "nobody is no data set" in capsys.readouterr().err
