"""Data sets for other people's learners, by way of Minari (extra `minari`), and back.

The observation is a dict of `host`, `slots`, `blueprints`, `mask` (1 where legal, flat, as `ActionLayout` has it),
`previous_reward` and, where recorded, `privileged`, which only a critic may see. Log-probabilities are an info.
Minari wants an observation after the last step too; the last one is repeated there, and is not read back.
"""

import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from esper.leyline.errors import EsperError
from esper.simic.env.spaces import action_space, observation_space
from esper.simic.offline.dataset import Dataset
from esper.simic.offline.recording import EpisodeRow, Recording, Terms
from esper.tamiyo.features import BOUND, observation_parts

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
                f"the package {package} is not installed, and Minari data sets need it: "
                "pip install 'esper-grow[minari]'"
            )
