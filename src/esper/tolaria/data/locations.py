"""Where data sets lie on disk, and what to say when they do not."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from esper.tolaria.data.errors import DatasetMissing


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file as its authors publish it."""

    name: str
    size: int
    """bytes"""
    md5: str

    def __str__(self) -> str:
        return f"{self.name} ({self.size:,} bytes, md5 {self.md5})"


def data_directory(dataset: str) -> Path:
    """$ESPER_DATA/<dataset>, or ~/.cache/esper/data/<dataset>."""
    root = os.environ.get("ESPER_DATA")
    return (Path(root) if root else Path.home() / ".cache" / "esper" / "data") / dataset


def missing(
    dataset: str, directory: Path, lacking: Iterable[str], ways: Iterable[Iterable[PublishedFile]], also: str
) -> DatasetMissing:
    """The error for a data set of which files are lacking; `ways` are the sets of files that would do."""
    choices = "\n  or\n".join("\n".join(f"  {file}" for file in way) for way in ways)
    return DatasetMissing(
        f"the data set {dataset} is not in {directory}: there is no {' and no '.join(lacking)}. Esper downloads "
        f"nothing. Put there\n{choices}\n({also}), or set the environment variable ESPER_DATA to a directory that "
        f"holds them in a folder named {dataset}."
    )
