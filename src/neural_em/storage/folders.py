"""Folders that appear whole or not at all."""

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from neural_em.errors import NeuralEMError, refuse
from neural_em.files import told


@contextlib.contextmanager
def new_folder(
    path: str | os.PathLike[str], always: Sequence[str] = (), sometimes: Sequence[str] = ()
) -> Iterator[Path]:
    """A temporary folder beside ``path`` that takes its place at the end, or goes on an error.

    There may be nothing yet, an empty folder, or an earlier result, which is replaced: a folder that holds all of
    ``always`` and beside these nothing but ``sometimes``, where ``*`` stands for any part of a name. Any other
    folder is refused and kept; without ``always`` results are not replaced.
    """
    target = Path(path)
    check_new(target, always, sometimes)
    partial = target.absolute().with_name(f".{target.absolute().name}.{os.getpid()}.partial")
    old = partial.with_suffix(".old")
    try:
        shutil.rmtree(partial, ignore_errors=True)  # left by a killed process of the same number
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        check_new(target, always, sometimes)  # somebody may have put something there in the meantime
        if target.exists():
            os.replace(target, old)
        os.replace(partial, target)
    except OSError as error:
        if old.exists() and not target.exists():
            os.replace(old, target)
        raise NeuralEMError(f"{target}: cannot be written: {error.strerror or error}") from None
    finally:
        for folder in (partial, old):
            shutil.rmtree(folder, ignore_errors=True)


def refuse_links(folder: Path, names: Iterable[str]) -> None:
    """Refuses a folder in which one of these parts is a link: what is written there would lie somewhere else."""
    for name in names:
        if (folder / name).is_symlink():
            refuse(f"{folder / name}", "a folder of its own", "a link")


def check_reachable(path: Path) -> None:
    """Refuses a path that cannot be looked at, such as a loop of links; one that is not there yet is fine."""
    with told(path), contextlib.suppress(FileNotFoundError):
        os.stat(path)


def check_new(target: Path, always: Sequence[str], sometimes: Sequence[str]) -> None:
    """Refuses a folder with anything in it that is not of an earlier result."""
    check_reachable(target)
    with told(target):
        if not os.path.lexists(target):
            return
        if not target.is_dir():
            got = "a file" if target.exists() else "a link to nowhere"
            refuse(f"{target}", "the name of a folder to write", got)
        names = (*always, *sometimes) if all((target / name).exists() for name in always) else ()
        for held, folder in _held(target):
            if not any(fnmatchcase(held, name) or (folder and name.startswith(f"{held}/")) for name in names):
                what = "a new or empty folder" + (", or an earlier result with nothing else in it" if always else "")
                refuse(f"{target}", what, f"one that holds {held}")


def _held(target: Path) -> Iterator[tuple[str, bool]]:
    """The name of all there is in a folder and below, the nearest first, and whether it is a folder."""

    def fail(error: OSError) -> None:
        raise error

    for place, folders, files in os.walk(target, onerror=fail):
        for name in sorted((*folders, *files)):
            yield (Path(place) / name).relative_to(target).as_posix(), name in folders
