"""The data of a task: splits to train on and validate on, phases in time, and the sealed test split."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class DatasetMissing(FileNotFoundError):
    """Files that a task needs are not there. The message says which, and where they belong."""


class DatasetCorrupt(ValueError):
    """A file is not what it should be."""

    def __init__(self, file: Path | str, found: str, expected: str) -> None:
        super().__init__(str(file), found, expected)

    def __str__(self) -> str:
        file, found, expected = self.args
        return f"{file}: found {found}, expected {expected}"


_HALVES_SEED = 0x4A1F


@dataclass(frozen=True, slots=True)
class Split:
    """Samples and their targets."""

    inputs: Tensor
    """(sample, ...) float32, or (sample, position) int64 tokens"""
    targets: Tensor
    """int64 classes (sample,), for text (sample, position); or float32 quantities (sample, quantity)"""

    def __post_init__(self) -> None:
        if self.inputs.dtype not in (torch.float32, torch.int64):
            raise ValueError(f"Split.inputs must be float32 or int64, not {self.inputs.dtype}")
        if self.targets.dtype not in (torch.int64, torch.float32):
            raise ValueError(
                f"Split.targets must be int64 classes or float32 quantities, not {self.targets.dtype}"
            )
        if self.regression and (self.targets.ndim != 2 or not self.targets.isfinite().all()):
            raise ValueError(
                f"Split.targets must be finite, of shape (sample, quantity), where they are float32; they have shape "
                f"{tuple(self.targets.shape)}, {int((~self.targets.isfinite()).sum())} of them not finite"
            )
        if not len(self.inputs) or len(self.inputs) != len(self.targets):
            raise ValueError(
                f"Split needs one target per sample and at least one of them, not {len(self.inputs)} inputs and "
                f"{len(self.targets)} targets"
            )

    @classmethod
    def from_arrays(
        cls,
        inputs: NDArray[np.float32] | NDArray[np.int64],
        targets: NDArray[np.int64] | NDArray[np.float32],
    ) -> "Split":
        """From copies, so that nothing else can write into it."""
        return cls(torch.tensor(inputs), torch.tensor(targets))

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device | str) -> "Split":
        """The same on another device."""
        return Split(self.inputs.to(device), self.targets.to(device))

    @property
    def regression(self) -> bool:
        """Whether targets are measured quantities, not classes."""
        return self.targets.is_floating_point()

    @property
    def variance(self) -> float:
        """Mean squared deviation of quantities from their means: the loss of always predicting these."""
        return float(self.targets.double().var(0, correction=0).mean())

    @property
    def commonest_share(self) -> float:
        """The share of the commonest class: the accuracy of always predicting it."""
        return int(torch.bincount(self.targets.flatten()).max()) / self.targets.numel()

    def halves(self) -> tuple["Split", "Split"]:
        """Two halves, always the same ones, with nearly the same mixture of classes; of text any halves."""
        if len(self) < 2:
            raise ValueError(
                "a validation split of 1 sample has no halves to observe and to judge by; expected >= 2"
            )
        rng, labels = np.random.default_rng(_HALVES_SEED), self.targets.cpu().numpy()
        order = stratified_order(labels, rng) if labels.ndim == 1 else rng.permutation(len(self))
        first, second = (torch.from_numpy(np.sort(part)) for part in np.array_split(order, 2))
        return Split(self.inputs[first], self.targets[first]), Split(
            self.inputs[second], self.targets[second]
        )

    def digest(self) -> str:
        """A hash of the content."""
        content = hashlib.blake2b(digest_size=16)
        for tensor in (self.inputs, self.targets):
            content.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            content.update(tensor.cpu().contiguous().numpy().data)
        return content.hexdigest()


@dataclass(frozen=True, slots=True)
class Phase:
    """The data from an epoch on."""

    start_epoch: int
    """The first epoch that is trained on them, counted from 0."""
    train: Split
    validation: Split
    test: "SealedTest | None" = None
    """Test samples of this phase, where each has its own; None: only the last phase is tested."""


class ReportKey:
    """Opens a SealedTest. Only `esper.tolaria.final_report` makes one, which a test checks."""

    __slots__ = ()


class SealedTest:
    """A test split that nothing in a run can read by accident."""

    __slots__ = ("__openings", "__split")

    def __init__(self, split: Split) -> None:
        self.__split = split
        self.__openings = 0

    def open(self, key: ReportKey) -> Split:
        """The split, for the final report; counted."""
        if type(key) is not ReportKey:
            raise TypeError(f"the test split opens with a ReportKey, not {type(key).__name__}")
        self.__openings += 1
        return self.__split

    @property
    def openings(self) -> int:
        """How often it has been opened, before it was copied too."""
        return self.__openings

    def __len__(self) -> int:
        return len(self.__split)

    def __repr__(self) -> str:
        return f"SealedTest({len(self)} samples, opened {self.__openings} times)"

    def to(self, device: torch.device | str) -> "SealedTest":
        """The same on another device."""
        moved = SealedTest(self.__split.to(device))
        moved.__openings = self.__openings
        return moved

    def digest(self) -> str:
        """A hash of the content."""
        return self.__split.digest()

    def __copy__(self) -> "SealedTest":
        return self.to(self.__split.inputs.device)  # nothing writes into a split, so copies may share it

    def __deepcopy__(self, memo: dict[int, object]) -> "SealedTest":
        return self.__copy__()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a SealedTest is never pickled: load the task's data again where the final report is made"
        )

    def __iter__(self) -> NoReturn:
        raise TypeError("a SealedTest is not iterable: only the final report opens it")


class SealedElsewhere(SealedTest):
    """A test split that is not here: the final report loads it, and then opens that."""

    __slots__ = ("_load", "_opened")

    def __init__(self, load: Callable[[], SealedTest], opened: int = 0) -> None:
        self._load, self._opened = load, opened

    def open(self, key: ReportKey) -> Split:
        """The split, for the final report; counted from now on."""
        split = self._load().open(key)
        self._opened += 1
        return split

    @property
    def openings(self) -> int:
        """How often it has been opened here, before it was copied too."""
        return self._opened

    def __repr__(self) -> str:
        return f"SealedElsewhere(opened {self._opened} times)"

    def __len__(self) -> int:
        return len(self._load())

    def to(self, device: torch.device | str) -> SealedTest:
        """The same on another device, loaded."""
        return self._load().to(device)

    def digest(self) -> str:
        """A hash of the content."""
        return self._load().digest()

    def __copy__(self) -> SealedTest:
        return SealedElsewhere(self._load, self._opened)


@dataclass(frozen=True, slots=True)
class TaskData:
    """The phases that a task instance trains on, in the order of time, and its sealed test split."""

    phases: tuple[Phase, ...]
    """The first starts at epoch 0; one phase unless the task shifts."""
    test: SealedTest
    """Test samples of the last phase."""
    classes: int
    """Outputs of a host: classes, or how many quantities are predicted."""

    @property
    def regression(self) -> bool:
        """Whether quantities are predicted, not classes."""
        return self.phases[0].train.regression

    @property
    def untrained_loss(self) -> float:
        """log(classes): the cross-entropy of a uniform prediction. Of quantities the largest variance to train on."""
        if self.regression:
            return max(phase.train.variance for phase in self.phases)
        return math.log(self.classes)

    def __post_init__(self) -> None:
        starts = [phase.start_epoch for phase in self.phases]
        if not starts or starts[0] != 0 or starts != sorted(set(starts)):
            raise ValueError(f"TaskData.phases must start at 0 and then ever later, not at {starts}")
        least = 1 if self.regression else 2
        if self.classes < least:
            raise ValueError(f"TaskData.classes must be at least {least}, not {self.classes}")
        for phase in self.phases:
            for name, split in (("train", phase.train), ("validation", phase.validation)):
                if split.regression != self.regression:
                    raise ValueError(f"{name} targets are {split.targets.dtype}, others are not: choose one")
                if self.regression:
                    self._require_quantities(name, split)
                    continue
                low, high = int(split.targets.min()), int(split.targets.max())
                if low < 0 or high >= self.classes:
                    raise ValueError(
                        f"{name} targets must be 0..{self.classes - 1}, not {low}..{high} "
                        f"(phase from epoch {phase.start_epoch})"
                    )

    def _require_quantities(self, name: str, split: Split) -> None:
        if split.targets.shape[1] != self.classes:
            raise ValueError(f"{name} targets have {split.targets.shape[1]} quantities, not {self.classes}")
        if not split.variance > 0.0:
            raise ValueError(f"{name} targets never vary: there is nothing to predict")

    def to(self, device: torch.device | str) -> "TaskData":
        """The same on another device."""
        moved = tuple(
            Phase(
                phase.start_epoch,
                phase.train.to(device),
                phase.validation.to(device),
                None if phase.test is None else phase.test.to(device),
            )
            for phase in self.phases
        )
        return TaskData(moved, self.test.to(device), self.classes)

    def digest(self) -> str:
        """A hash of the content of every split, the sealed one included."""
        phases = (
            f"{each.start_epoch}:{each.train.digest()}:{each.validation.digest()}" for each in self.phases
        )
        tests = [phase.test.digest() for phase in self.phases if phase.test is not None]
        content = ";".join([*phases, *tests, self.test.digest(), str(self.classes)])
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


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
    """Disjoint index arrays of the given sizes, each with the same mixture of classes."""
    if sum(sizes) > len(labels):
        raise ValueError(f"splits of {tuple(sizes)} need {sum(sizes)} samples, there are {len(labels)}")
    order = stratified_order(labels, np.random.default_rng(seed))
    return list(np.split(order, np.cumsum(sizes)))[: len(sizes)]
