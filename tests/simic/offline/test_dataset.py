"""Data sets survive the disk, are read in parts, and are refused by name where they cannot be learned from."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from esper.cli import main
from esper.simic.offline import dataset as on_disk
from esper.simic.offline.dataset import (
    Dataset,
    DatasetError,
    MinariError,
    export_minari,
    import_minari,
    write_episodes,
)
from esper.simic.offline.recording import BY_EPISODE, BY_STEP, Recording
from recorded_toy import random_episodes


def same(one: Recording, other: Recording) -> None:
    assert one.rows == other.rows
    assert one.terms == other.terms
    for name in (*BY_STEP, *BY_EPISODE):
        torch.testing.assert_close(
            getattr(one, name), getattr(other, name), rtol=0, atol=0, equal_nan=True, msg=name
        )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of 13 and 27 episodes."""
    recording = random_episodes(40)
    write_episodes(tmp_path / "runs" / "a" / "episodes" / "round-1.safetensors", recording.part(range(13)))
    write_episodes(
        tmp_path / "runs" / "a" / "episodes" / "round-2.safetensors", recording.part(range(13, 40))
    )
    return tmp_path / "runs" / "a"


def test_what_is_held_in_memory_is_drawn_the_same(tmp_path: Path) -> None:
    recording = random_episodes(40)
    for number, part in enumerate((range(17), range(17, 40))):
        write_episodes(tmp_path / f"{number}.safetensors", recording.part(part))
    lazy, held, large = (Dataset.open([tmp_path]) for _ in range(3))
    held.hold()
    large.hold(most_bytes=1000)
    for path in tmp_path.iterdir():
        path.unlink()
    draws = [data.draw(7, torch.Generator().manual_seed(3)) for data in (lazy, held, large)]
    for other in draws[1:]:
        assert torch.equal(draws[0].observation, other.observation)
        assert draws[0].rows == other.rows
    assert held._held is not None
    assert large._held is None


def test_episodes_survive_the_disk(folder: Path) -> None:
    recording = random_episodes(40)
    data = Dataset.open([folder])
    assert len(data) == 40
    assert data.steps == recording.steps
    assert data.rows == recording.rows
    same(data.read(range(40)), recording)
    chosen = [39, 2, 3, 14, 0]
    same(data.read(chosen), recording.part(chosen))
    same(Dataset.open([folder / "episodes"]).read([5]), recording.part([5]))
    twice = Dataset.open([folder, folder / "episodes" / "round-1.safetensors"])
    same(twice.read([40, 52]), recording.part([0, 12]))


def test_a_batch_has_different_episodes(folder: Path) -> None:
    data, generator = Dataset.open([folder]), torch.Generator().manual_seed(0)
    batches = [data.draw(16, generator) for _ in range(20)]
    cases = [[row.case for row in batch.rows] for batch in batches]
    assert all(len(set(batch)) == 16 for batch in cases)
    assert cases[0] != cases[1]
    assert {case for batch in cases for case in batch} == {row.case for row in data.rows}
    assert len(data.draw(100, generator)) == 40
    again = data.draw(16, torch.Generator().manual_seed(0))
    assert [row.case for row in again.rows] == cases[0]
    assert torch.equal(data.reward, random_episodes(40).reward)


def test_a_file_that_is_replaced_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, recording = tmp_path / "episodes.safetensors", random_episodes(40)
    write_episodes(path, recording.part([0]))

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="disk full"):
        write_episodes(path, recording)
    assert len(Dataset.open([path])) == 1
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def rewritten(path: Path, change: Callable[[dict[str, Tensor], dict[str, str]], None]) -> None:
    """Write a file again with other contents."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = dict(file.metadata())
    change(tensors, about)
    save_file(tensors, path, metadata=about)


def in_terms(**changes: object) -> Callable[[dict[str, Tensor], dict[str, str]], None]:
    def change(_: dict[str, Tensor], about: dict[str, str]) -> None:
        about["terms"] = json.dumps({**json.loads(about["terms"]), **changes})

    return change


def spoil(name: str, value: float) -> Callable[[dict[str, Tensor], dict[str, str]], None]:
    def change(tensors: dict[str, Tensor], _: dict[str, str]) -> None:
        tensors[name][25] = value

    return change


def forbid(tensors: dict[str, Tensor], _: dict[str, str]) -> None:
    tensors["mask"][25] = False


def all_too_long(tensors: dict[str, Tensor], _: dict[str, str]) -> None:
    tensors["length"][:2] = torch.tensor([40, 0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors, _: tensors.pop("mask"), "it has no mask"),
        (spoil("reward", float("nan")), "reward is NaN or infinite in step 5 of episode 1"),
        (spoil("observation", float("inf")), "observation is NaN or infinite in step 5 of episode 1"),
        (spoil("log_prob", 0.5), "log_prob is no log-probability"),
        (forbid, "mask forbids the action that was taken in step 5 of episode 1"),
        (all_too_long, r"length is not 1\.\.20 in every episode"),
        (in_terms(blueprints=["norm"]), r"observation is .*expected \('F32', \[\d+, \d+\]\)"),
        (in_terms(layout="abc"), "those of layout abc, this Esper has"),
        (in_terms(horizon="soon"), "does not say what its episodes are"),
        (lambda _, about: about.update(format="esper-clone-3"), "its format is 'esper-clone-3'"),
        (lambda _, about: about.pop("rows"), "does not say what its episodes are"),
        (lambda _, about: about.update(rows="[]"), "length is"),
    ],
)
def test_a_bad_file_is_refused_by_name(
    change: Callable[[dict[str, Tensor], dict[str, str]], None], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.safetensors"
    write_episodes(path, random_episodes(40))
    assert random_episodes(40).length[:2].tolist() == [20, 20]
    rewritten(path, change)
    with pytest.raises(DatasetError, match=rf"bad\.safetensors: .*{message}"):
        Dataset.open([path])


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.safetensors"
    write_episodes(path, random_episodes(40))
    whole = path.read_bytes()
    for kept in (0, 7, 500, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:kept])
        with pytest.raises(DatasetError, match=r"cut\.safetensors: no episodes can be read from it"):
            Dataset.open([path])


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    write_episodes(tmp_path / "a.safetensors", random_episodes(40))
    write_episodes(tmp_path / "b.safetensors", random_episodes(2, gamma=0.9))
    with pytest.raises(
        DatasetError, match=r"b\.safetensors cannot be learned from together with .*a\.safetensors: .*reward"
    ):
        Dataset.open([tmp_path])
    other = random_episodes(2)
    terms = other.terms.model_copy(update={"slots": ("x", "y", "z")})
    write_episodes(tmp_path / "b.safetensors", replace(other, terms=terms))
    with pytest.raises(DatasetError, match="it has slots"):
        Dataset.open([tmp_path])


def test_what_is_no_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no data set was named"):
        Dataset.open([])
    with pytest.raises(DatasetError, match=r"nowhere is no data set: there is no such file"):
        Dataset.open([tmp_path / "nowhere"])
    with pytest.raises(
        DatasetError, match=r"is no data set: it has no \*\.safetensors and no folder episodes"
    ):
        Dataset.open([tmp_path])


# Data sets that other learners read: written with Minari, and equal when they are read back.


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
