"""Files: written whole or not at all, found, compared, and refused in words where they cannot be read."""

import contextlib
import csv
import hashlib
import io
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from neural_em.errors import NeuralEMError, refuse


@contextlib.contextmanager
def told(path: object, verb: str = "written") -> Iterator[None]:
    """Turns the system's refusal to read or write something into the project's error, in one line."""
    try:
        yield
    except (OSError, ValueError, RecursionError, csv.Error) as error:  # ValueError: also a null character in a name
        raise NeuralEMError(f"{path}: cannot be {verb}: {getattr(error, 'strerror', None) or error}") from None


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], make_folder: bool = False) -> Iterator[Path]:
    """A temporary name beside ``path``: what is written there takes its place at the end, or goes on an error.

    Where there is no folder that it is in, ``make_folder`` makes it instead of refusing.
    """
    if make_folder:
        make(Path(path).parent)
    target = writable(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial{target.suffix}")
    try:
        partial.unlink(missing_ok=True)  # left by a killed process of the same number, or a link to somewhere else
        yield partial
        os.replace(partial, target)
    except OSError as error:
        raise NeuralEMError(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):  # it is there only if something went wrong
            partial.unlink()


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file whole or not at all; it is on the disk when this returns."""
    with replacing(path) as partial, open(partial, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_table(path: str | os.PathLike[str], header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Writes a table as CSV, whole or not at all; None is an empty cell."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode())


def read_json(path: Path, most: int) -> Any:
    """What a JSON file of at most so many bytes holds."""
    with told(path, "read"):
        if path.stat().st_size > most:
            refuse(str(path), f"a file of at most {most} bytes", f"{path.stat().st_size} bytes")
        return json.loads(path.read_text(encoding="utf-8"))


def make(folder: Path) -> None:
    """Makes a folder, and those above it, where it is not there."""
    with told(folder):
        folder.mkdir(parents=True, exist_ok=True)


def writable(path: str | os.PathLike[str]) -> Path:
    """The path, if a file can have this name."""
    target = Path(path)
    if "\0" in str(target):
        refuse(f"{str(target)!r}", "the name of a file to write", "a null character in it")
    if os.path.isdir(target):
        refuse(str(target), "the name of a file to write", "a folder")
    if os.path.exists(target) and not os.path.isfile(target):  # the new file would take the place of a device or a pipe
        refuse(str(target), "the name of a file to write", "something else")
    if not os.path.isdir(target.parent):
        raise NeuralEMError(f"{target}: cannot be written: there is no folder {str(target.parent)!r}")
    return target


def short(name: str, most: int = 200) -> str:
    """A name that a file can have, with an ending: of a longer one its beginning and a checksum."""
    return name if len(name) <= most else f"{name[:most]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def checksum(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file, which tells one content from another."""
    with told(path, "read"):
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def from_home(path: str | os.PathLike[str]) -> Path:
    """The path with ``~`` as the home folder; as it stands where nobody has that one (`Path.expanduser` raises)."""
    return Path(os.path.expanduser(path))


def absolute(path: str | os.PathLike[str]) -> str:
    """The path from the root, with ``~`` as the home folder."""
    return os.path.abspath(from_home(path))


def existing(path: str | os.PathLike[str]) -> Path:
    """The path, if a file or a folder is there."""
    found = from_home(path)
    with told(found, "read"):
        mode = found.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # reading a device or a pipe might never end
        refuse(str(found), "a file or a folder", "something else")
    return found
