"""Recorded episodes on disk: `.safetensors` files with everything in them, read when they are needed.

A data set is such a file, a folder of them, a run that recorded its episodes, or several of these. Files need no list
of what belongs together: each says under which terms its episodes were played, and only equal terms go together.
"""

import json
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from esper.leyline.errors import EsperError, install
from esper.leyline.files import write_bytes
from esper.simic.env.growth_env import action_space, observation_space
from esper.simic.offline.recording import BY_EPISODE, BY_STEP, EpisodeRow, Recording, Terms, joined
from esper.tamiyo.controller import layout_fingerprint
from esper.tamiyo.features import BOUND, observation_parts, observation_size
from esper.tamiyo.masks import LegalChoices

FORMAT = "esper-episodes-1"
EPISODES_FOLDER = "episodes"
"""Of a run, where its episodes are."""
_SUFFIX = ".safetensors"
_ROWS = TypeAdapter(tuple[EpisodeRow, ...])


class DatasetError(EsperError, ValueError):
    """A data set that cannot be learned from; the message names the file and what is wrong with it."""


def write_episodes(path: Path, recording: Recording) -> None:
    """Write a recording as one file, whole or not at all; folders are made as needed."""
    write_bytes(path, episode_bytes(recording))


def episode_bytes(recording: Recording) -> bytes:
    """What a file of this recording holds; a process can send it to the one that writes."""
    tensors = {name: getattr(recording, name).contiguous() for name in (*BY_STEP, *BY_EPISODE)}
    about = {
        "format": FORMAT,
        "terms": recording.terms.model_dump_json(),
        "rows": _ROWS.dump_json(recording.rows).decode(),
    }
    return save(tensors, metadata=about)


class _File:
    """One file, open: its header is checked, its steps are read on demand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._open = cast("Any", safe_open(path, "pt"))  # the package has no types for it
            about = self._open.metadata() or {}
        except (OSError, SafetensorError) as error:
            raise DatasetError(
                f"{path}: no episodes can be read from it, is it cut short? ({error})"
            ) from None
        if about.get("format") != FORMAT:
            raise DatasetError(f"{path}: its format is {about.get('format')!r}; expected {FORMAT!r}")
        try:
            self.terms = Terms.model_validate_json(about["terms"])
            self.rows = _ROWS.validate_json(about["rows"])
        except (KeyError, ValidationError, json.JSONDecodeError) as error:
            raise DatasetError(f"{path}: it does not say what its episodes are ({error})") from None
        known = layout_fingerprint(retire=self.terms.retire, units=self.terms.units)
        if self.terms.layout != known:
            raise DatasetError(
                f"{path}: its observations and choices are those of layout {self.terms.layout}, this Esper has "
                f"{known}: record them anew"
            )
        self._require_form()
        self.length: Tensor = self._open.get_tensor("length")
        self.first = self.length.cumsum(0) - self.length

    def _require_form(self) -> None:
        """Every tensor is there, with the sizes that its space has."""
        space, count = self.terms.space, len(self.rows)
        layout = space.action_layout
        missing = {*BY_STEP, *BY_EPISODE} - set(self._open.keys())
        if missing:
            raise DatasetError(f"{self.path}: it has no {', '.join(sorted(missing))}")
        steps = int(self._open.get_tensor("length").sum())
        shapes = {
            "observation": ("F32", [steps, observation_size(space)]),
            "privileged": ("F32", [steps, len(self.terms.privileged)]),
            "mask": ("BOOL", [steps, layout.width]),
            "action": ("I64", [steps, layout.head_count]),
            **{name: ("F32", [steps]) for name in ("previous_reward", "reward", "log_prob")},
            "length": ("I64", [count]),
            "terminated": ("BOOL", [count]),
        }
        for name, expected in shapes.items():
            part = self._open.get_slice(name)
            found = (part.get_dtype(), part.get_shape())
            if found != expected:
                raise DatasetError(f"{self.path}: {name} is {found}; expected {expected}")

    def require_sound(self) -> None:
        """Raise DatasetError for lengths, numbers or actions that no environment returns."""
        everything = self.read(range(len(self.rows)))
        if not bool(((self.length >= 1) & (self.length <= self.terms.horizon)).all()):
            raise DatasetError(f"{self.path}: length is not 1..{self.terms.horizon} in every episode")
        for name in ("observation", "privileged", "previous_reward", "reward"):
            wrong = ~torch.isfinite(getattr(everything, name)).reshape(everything.steps, -1).all(1)
            if bool(wrong.any()):
                raise DatasetError(f"{self.path}: {name} is NaN or infinite in {self._place(wrong)}")
        if bool((everything.log_prob > 0.0).any()) or bool(torch.isneginf(everything.log_prob).any()):
            raise DatasetError(f"{self.path}: log_prob is no log-probability of what was done")
        choices = LegalChoices(self.terms.space.action_layout)
        legal = choices.allowed(everything.action.numpy(), everything.mask.numpy())
        if not legal.all():
            place = self._place(torch.from_numpy(~legal))
            raise DatasetError(f"{self.path}: mask forbids the action that was taken in {place}")

    def read(self, episodes: Sequence[int]) -> Recording:
        """Some of its episodes; those that follow each other are read at once."""
        runs = _runs(episodes)
        spans = [(int(self.first[a]), int(self.first[b - 1] + self.length[b - 1])) for a, b in runs]
        by_step = {name: torch.cat([self._open.get_slice(name)[a:b] for a, b in spans]) for name in BY_STEP}
        by_episode = {
            name: torch.cat([self._open.get_slice(name)[a:b] for a, b in runs]) for name in BY_EPISODE
        }
        return Recording(
            **by_step, **by_episode, terms=self.terms, rows=tuple(self.rows[number] for number in episodes)
        )

    def _place(self, wrong: Tensor) -> str:
        """The first step (step,) that is wrong, in words."""
        step = int(wrong.nonzero()[0])
        episode = int((self.first <= step).sum()) - 1
        return f"step {step - int(self.first[episode])} of episode {episode}"


class Dataset:
    """Recorded episodes in one or more files, whose numbers run through all of them.

    >>> data = Dataset.open(["runs/first", "random.safetensors"])
    >>> data.read([0, 17])  # a `Recording` of two episodes
    """

    def __init__(self, files: Sequence[_File]) -> None:
        self._files = list(files)
        self.terms = self._files[0].terms
        """What all episodes have in common."""
        self._held: Recording | None = None
        sizes = torch.tensor([len(file.rows) for file in self._files])
        self._file = torch.arange(len(sizes)).repeat_interleave(sizes)
        self._number = torch.arange(len(self._file)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)

    @staticmethod
    def open(places: Sequence[Path | str]) -> "Dataset":
        """Open files, folders of files, and runs; raises DatasetError, by name, for what cannot be learned from."""
        if not places:
            raise DatasetError("no data set was named")
        files = [_File(path) for place in places for path in _files_of(Path(place))]
        for file in files:
            difference = files[0].terms.difference(file.terms)
            if difference is not None:
                raise DatasetError(
                    f"{file.path} cannot be learned from together with {files[0].path}: it has {difference}"
                )
        for file in files:
            file.require_sound()
        return Dataset(files)

    def __len__(self) -> int:
        return len(self._file)

    @cached_property
    def rows(self) -> tuple[EpisodeRow, ...]:
        """Where each episode comes from."""
        return tuple(row for file in self._files for row in file.rows)

    @cached_property
    def length(self) -> Tensor:
        """(episode,) steps of each."""
        return torch.cat([file.length for file in self._files])

    @property
    def steps(self) -> int:
        """Steps of all episodes."""
        return int(self.length.sum())

    @cached_property
    def reward(self) -> Tensor:
        """(step,) of all episodes."""
        return torch.cat([file.read(range(len(file.rows))).reward for file in self._files])

    def read(self, episodes: Sequence[int]) -> Recording:
        """Some of the episodes, by number, in the order given."""
        chosen = list(episodes)
        if self._held is not None:
            return self._held.part(chosen)
        of_files = self._file[chosen].tolist(), self._number[chosen].tolist()
        together = groupby(zip(*of_files, strict=True), key=lambda place: place[0])
        return joined(self._files[file].read([number for _, number in group]) for file, group in together)

    def hold(self, most_bytes: int = 4 * 1024**3) -> None:
        """Read all episodes into memory now, for many draws, unless they are larger than this."""
        if sum(file.path.stat().st_size for file in self._files) <= most_bytes:
            self._held = joined(self.parts())

    def parts(self) -> Iterator[Recording]:
        """All episodes, file by file."""
        for file in self._files:
            yield file.read(range(len(file.rows)))

    def draw(self, size: int, generator: torch.Generator) -> Recording:
        """So many different episodes at random, or all if there are fewer."""
        chosen = torch.randperm(len(self), generator=generator)[:size]
        return self.read(sorted(chosen.tolist()))


def _files_of(place: Path) -> list[Path]:
    """The files of a data set: itself, those in the folder, or those in the run's `episodes` folder."""
    if place.is_file():
        return [place]
    for folder in (place / EPISODES_FOLDER, place):
        files = sorted(folder.glob(f"*{_SUFFIX}"))
        if files:
            return files
    found = (
        f"it has no *{_SUFFIX} and no folder {EPISODES_FOLDER}, which `esper train --run-record-episodes` fills"
        if place.is_dir()
        else "there is no such file"
    )
    raise DatasetError(f"{place} is no data set: {found}")


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers as ranges [first, end) of those that follow each other."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs


# For other people's learners, by way of Minari


_TERMS, _ROW = "esper_terms", "row"


class MinariError(EsperError, RuntimeError):
    """What cannot be exported to Minari, or read from it."""


def export_minari(data: Dataset, name: str) -> None:
    """Write all episodes as the local Minari data set `name`, such as "esper/toy/random-v0", episode by episode."""
    _require_minari()
    import minari

    if name in minari.list_local_datasets():
        raise MinariError(f"there is a Minari data set {name!r} already; choose another name")
    space, privileged = data.terms.space, len(data.terms.privileged)
    extra: dict[str, gym.Space[Any]] = {
        "mask": gym.spaces.MultiBinary(space.action_layout.width),
        "previous_reward": gym.spaces.Box(-np.inf, np.inf, (), np.float32),
    }
    if privileged:
        extra["privileged"] = gym.spaces.Box(-BOUND, BOUND, (privileged,), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of authors and links, which a recording does not have
        try:
            written = minari.create_dataset_from_buffers(
                name,
                _buffers(data),
                observation_space=gym.spaces.Dict({**observation_space(space).spaces, **extra}),
                action_space=action_space(space),
                algorithm_name=", ".join(sorted({row.policy for row in data.rows})),
                description="Episodes of growth, recorded by Esper.",
                data_format="hdf5",
            )
        except ValueError as error:
            raise MinariError(f"{name!r} cannot be a Minari data set: {error}") from None
    written.storage.update_metadata({_TERMS: data.terms.model_dump_json()})


def import_minari(name: str) -> Recording:
    """All episodes of a Minari data set that `export_minari` wrote."""
    _require_minari()
    import minari

    dataset = minari.load_dataset(name)
    metadata = dataset.storage.metadata
    if _TERMS not in metadata:
        raise MinariError(f"Minari data set {name!r} was not written by Esper: it has no {_TERMS}")
    terms = Terms.model_validate_json(metadata[_TERMS])
    parts = observation_parts(terms.space)
    numbers = range(dataset.total_episodes)
    episodes = list(dataset.iterate_episodes(numbers))
    rows = [one["options"][_ROW] for one in dataset.storage.get_episode_metadata(numbers)]

    def steps(pick: Any, dtype: Any) -> torch.Tensor:
        """The steps of all episodes, without what stands after each last one."""
        whole = [np.asarray(pick(episode))[: len(episode.rewards)] for episode in episodes]
        return torch.from_numpy(np.concatenate(whole).astype(dtype))

    lengths = [len(episode.rewards) for episode in episodes]
    flat = [
        np.concatenate([episode.observations[part][:length].reshape(length, -1) for part in parts], axis=1)
        for episode, length in zip(episodes, lengths, strict=True)
    ]
    unseen = torch.zeros(sum(lengths), 0)
    return Recording(
        observation=torch.from_numpy(np.concatenate(flat)),
        privileged=steps(lambda one: one.observations["privileged"], np.float32)
        if terms.privileged
        else unseen,
        mask=steps(lambda one: one.observations["mask"], np.bool_),
        action=steps(lambda one: one.actions, np.int64),
        previous_reward=steps(lambda one: one.observations["previous_reward"], np.float32),
        reward=steps(lambda one: one.rewards, np.float32),
        log_prob=steps(lambda one: one.infos["log_prob"], np.float32),
        length=torch.tensor(lengths),
        terminated=torch.tensor([bool(episode.terminations[-1]) for episode in episodes]),
        terms=terms,
        rows=tuple(EpisodeRow.model_validate_json(row) for row in rows),
    )


def _buffers(data: Dataset) -> Iterator[Any]:
    from minari.data_collector.episode_buffer import EpisodeBuffer

    parts = observation_parts(data.terms.space)
    sizes = np.cumsum([int(np.prod(shape)) for shape in parts.values()])[:-1]
    for number in range(len(data)):
        one = data.read([number])
        length, row = one.steps, one.rows[0]
        pieces = np.split(one.observation.numpy(), sizes, axis=1)
        seen = {
            part: piece.reshape(length, *shape)
            for (part, shape), piece in zip(parts.items(), pieces, strict=True)
        }
        seen |= {"mask": one.mask.numpy().astype(np.int8), "previous_reward": one.previous_reward.numpy()}
        if data.terms.privileged:
            seen["privileged"] = one.privileged.numpy()
        ends = np.zeros(length, dtype=np.bool_)
        ends[-1] = True
        never, terminated = np.zeros_like(ends), bool(one.terminated[0])
        yield EpisodeBuffer(
            id=number,
            seed=row.host_seed,
            options={_ROW: row.model_dump_json()},
            observations={name: _and_after(values) for name, values in seen.items()},
            actions=one.action.numpy(),  # an array does as well as a list
            rewards=one.reward.numpy(),
            terminations=ends if terminated else never,
            truncations=never if terminated else ends,
            infos={"log_prob": _and_after(one.log_prob.numpy())},
        )


def _and_after(values: NDArray[Any]) -> NDArray[Any]:
    """Repeat the last entry: Minari wants one after the last step."""
    return np.concatenate((values, values[-1:]))


def _require_minari() -> None:
    for package in ("minari", "h5py", "PIL"):
        if find_spec(package) is None:
            raise MinariError(
                f"the package {package} is not installed, and Minari data sets need it: {install('minari')}"
            )
