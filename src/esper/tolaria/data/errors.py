"""What can be wrong with data that lie on disk."""

from pathlib import Path


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
