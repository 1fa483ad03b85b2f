"""What a task trains on, validates on, and is tested on at the very end."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# What can be wrong with data that lie on disk.


class DatasetMissing(FileNotFoundError):
    """Files that a task needs are not there. The message says which, and where they belong."""


class DatasetCorrupt(ValueError):
    """A file is there and is not what it should be."""

    def __init__(self, file: Path | str, *, found: str, expected: str) -> None:
        self.file, self.found, self.expected = str(file), found, expected
        super().__init__(f"{file}: found {found}, expected {expected}")

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (self.file, self.found, self.expected)


def _again(file: str, found: str, expected: str) -> DatasetCorrupt:
    return DatasetCorrupt(file, found=found, expected=expected)


# Splits with the same mixture of classes in each.


def stratified_order(labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """A random order of the samples in which every stretch has the classes in nearly their overall shares.

    Each class is shuffled and laid out evenly over 0..1; the samples are then taken in the order of those places.
    """
    place = np.empty(len(labels))
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        # The offset keeps rare classes from all sitting at the same place.
        place[members] = (np.arange(len(members)) + rng.random()) / len(members)
    return np.argsort(place, kind="stable")


def stratified_splits(labels: NDArray[np.int64], sizes: Sequence[int], seed: int) -> list[NDArray[np.int64]]:
    """Disjoint index arrays of the given sizes."""
    if sum(sizes) > len(labels):
        raise ValueError(f"splits of {tuple(sizes)} need {sum(sizes)} samples, there are {len(labels)}")
    order = stratified_order(labels, np.random.default_rng(seed))
    return list(np.split(order, np.cumsum(sizes)))[: len(sizes)]


@dataclass(frozen=True, slots=True)
class Split:
    """Samples and what they should be taken for."""

    inputs: Tensor
    """(sample, ...) float32, or (sample, position) int64 tokens"""
    targets: Tensor
    """(sample,) int64; (sample, position) for text"""

    def __post_init__(self) -> None:
        if self.inputs.dtype not in (torch.float32, torch.int64):
            raise ValueError(f"Split.inputs must be float32 or int64, not {self.inputs.dtype}")
        if self.targets.dtype != torch.int64:
            raise ValueError(f"Split.targets must be int64, not {self.targets.dtype}")
        if not len(self.inputs) or len(self.inputs) != len(self.targets):
            raise ValueError(
                f"Split needs one target per sample and at least one of them, not {len(self.inputs)} inputs and "
                f"{len(self.targets)} targets"
            )

    @classmethod
    def from_arrays(
        cls, inputs: NDArray[np.float32] | NDArray[np.int64], targets: NDArray[np.int64]
    ) -> "Split":
        """Copies, so that nothing else can write into it."""
        return cls(torch.tensor(inputs), torch.tensor(targets))

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device | str) -> "Split":
        return Split(self.inputs.to(device), self.targets.to(device))

    def digest(self) -> str:
        """A hash of the content."""
        content = hashlib.blake2b(digest_size=16)
        for tensor in (self.inputs, self.targets):
            content.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            content.update(tensor.cpu().contiguous().numpy().data)
        return content.hexdigest()


@dataclass(frozen=True, slots=True)
class Phase:
    """What the data are from `start_epoch` on: the 0-based epoch that is about to be trained."""

    start_epoch: int
    train: Split
    validation: Split


class ReportKey:
    """Opens a SealedTest. Made in `esper.tolaria.final_report` and nowhere else, which a test checks."""

    __slots__ = ()


class SealedTest:
    """A test split that nothing in a run can read by accident."""

    __slots__ = ("__openings", "__split")

    def __init__(self, split: Split) -> None:
        self.__split = split
        self.__openings = 0

    def open(self, key: ReportKey) -> Split:
        if type(key) is not ReportKey:
            raise TypeError(f"the test split opens with a ReportKey, not {type(key).__name__}")
        self.__openings += 1
        return self.__split

    @property
    def openings(self) -> int:
        """How often it has been opened, in whatever copy it was moved from."""
        return self.__openings

    def __len__(self) -> int:
        return len(self.__split)

    def __repr__(self) -> str:
        return f"SealedTest({len(self)} samples, opened {self.__openings} times)"

    def to(self, device: torch.device | str) -> "SealedTest":
        moved = SealedTest(self.__split.to(device))
        moved.__openings = self.__openings
        return moved

    def digest(self) -> str:
        return self.__split.digest()

    def __copy__(self) -> "SealedTest":
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, object]) -> "SealedTest":
        twin = SealedTest(self.__split)  # nobody writes into a split, so copies may share it
        twin.__openings = self.__openings
        return twin

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a SealedTest is never pickled: load the task's data again where the final report is made"
        )

    def __iter__(self) -> NoReturn:
        raise TypeError("a SealedTest is not iterable: only the final report opens it")


@dataclass(frozen=True, slots=True)
class TaskData:
    """Everything a task instance trains on, in the order of time, and its sealed test split."""

    phases: tuple[Phase, ...]
    """The first starts at epoch 0; one phase unless the task shifts."""
    test: SealedTest
    """Belongs to the last phase."""
    classes: int
    chance_accuracy: float = field(init=False)
    """The share of the commonest class in the last phase's validation set."""
    untrained_loss: float = field(init=False)
    """log(classes): the cross-entropy of a uniform prediction."""

    def __post_init__(self) -> None:
        starts = [phase.start_epoch for phase in self.phases]
        if not starts or starts[0] != 0 or starts != sorted(set(starts)):
            raise ValueError(f"TaskData.phases must start at 0 and then ever later, not at {starts}")
        if self.classes < 2:
            raise ValueError(f"TaskData.classes must be at least 2, not {self.classes}")
        for phase in self.phases:
            for name, split in (("train", phase.train), ("validation", phase.validation)):
                low, high = int(split.targets.min()), int(split.targets.max())
                if low < 0 or high >= self.classes:
                    raise ValueError(
                        f"{name} targets must be 0..{self.classes - 1}, not {low}..{high} "
                        f"(phase from epoch {phase.start_epoch})"
                    )
        targets = self.phases[-1].validation.targets.flatten()
        commonest = int(torch.bincount(targets, minlength=self.classes).max())
        object.__setattr__(self, "chance_accuracy", commonest / len(targets))
        object.__setattr__(self, "untrained_loss", math.log(self.classes))

    def to(self, device: torch.device | str) -> "TaskData":
        moved = tuple(
            Phase(phase.start_epoch, phase.train.to(device), phase.validation.to(device))
            for phase in self.phases
        )
        return TaskData(moved, self.test.to(device), self.classes)

    def digest(self) -> str:
        """A hash of the content of every split, the sealed one included."""
        parts = [
            f"{phase.start_epoch}:{phase.train.digest()}:{phase.validation.digest()}" for phase in self.phases
        ]
        return hashlib.blake2b(
            ";".join([*parts, self.test.digest(), str(self.classes)]).encode(), digest_size=16
        ).hexdigest()
