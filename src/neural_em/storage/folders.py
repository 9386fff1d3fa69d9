"""Folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from neural_em.errors import NeuralEMError, refuse


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str], mark: str | None = None) -> Iterator[Path]:
    """A temporary folder beside ``path`` that takes its place at the end, or goes on an error.

    Args:
        path: the folder; it must not exist, or be empty.
        mark: a file by which an earlier result is known; a folder with it is replaced.
    """
    target = Path(path)
    _check(target, mark)
    partial = target.absolute().with_name(f".{target.absolute().name}.{os.getpid()}.partial")
    old = partial.with_suffix(".old")
    try:
        shutil.rmtree(partial, ignore_errors=True)  # left by a killed process of the same number
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
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


def _check(target: Path, mark: str | None) -> None:
    try:
        if not target.exists():
            return
        if not target.is_dir():
            refuse(f"{target}", "the name of a folder to write", "a file")
        names = sorted(entry.name for entry in target.iterdir())
    except (OSError, ValueError) as error:
        raise NeuralEMError(f"{target}: cannot be written: {getattr(error, 'strerror', None) or error}") from None
    if names and (mark is None or mark not in names):
        what = "a new or empty folder" + ("" if mark is None else ", or an earlier result to replace")
        refuse(f"{target}", what, f"one that holds {names[0]}")
