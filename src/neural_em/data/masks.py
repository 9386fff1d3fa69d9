"""True groups for the user's own frames: label images of the same names, or an array."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neural_em.data import arrays, images
from neural_em.data.fitting import Labels
from neural_em.data.sources import Source
from neural_em.errors import NeuralEMError, refuse


class Masks(Protocol):
    """Labels of the frames of several clips."""

    def labels(self, clip: int, position: int) -> tuple[Labels, str] | None:
        """Labels (H,W) of a frame and their name, or ``None`` where the frame has none (then it is not scored)."""


def open_masks(path: Path, masks: Path | None, clips: Sequence[Source]) -> Masks | None:
    """The masks of the clips at ``path``; those in a ``.npz`` archive beside the frames need not be named."""
    if masks is None:
        within = path.suffix.lower() == ".npz" and not path.is_dir()
        array = arrays.find_array(path, "groups") if within else None
        return None if array is None else _ArrayMasks(str(path), array, clips)
    if masks.is_dir():
        return _ImageMasks(masks, clips)
    if masks.suffix.lower() in arrays.SUFFIXES:
        return _ArrayMasks(str(masks), arrays.open_array(masks, "groups"), clips)
    if masks.suffix.lower() not in images.SUFFIXES:
        refuse(str(masks), "a folder of label images, a label image or a NumPy array", repr(masks.suffix))
    if len(clips) != 1 or clips[0].stems() is None or len(clips[0].stems() or ()) != 1:
        raise NeuralEMError(f"{masks}: one label image is for one image, not for all of {path}")
    return _FileMasks([[masks]])


class _FileMasks:
    """A label image, or none, for every frame."""

    def __init__(self, paths: Sequence[Sequence[Path | None]]) -> None:
        self._paths = paths

    def labels(self, clip: int, position: int) -> tuple[Labels, str] | None:
        path = self._paths[clip][position]
        return None if path is None else (images.read_labels(path), str(path))


class _ImageMasks(_FileMasks):
    """A folder of label images of the frames' names, or of one such folder for each clip."""

    def __init__(self, folder: Path, clips: Sequence[Source]) -> None:
        single = len(clips) == 1 and not (folder / _folder_name(clips[0])).is_dir()
        folders = [folder] if single else [folder / _folder_name(clip) for clip in clips]
        if not single:
            _check_names(folder, {place.name for place in folders})
        super().__init__([_match(place, clip) for place, clip in zip(folders, clips, strict=True)])


def _folder_name(clip: Source) -> str:
    """What the folder with a clip's masks is called: as its frame folder, or as its file without suffix."""
    path = Path(clip.name)
    return path.name if path.is_dir() else path.stem


def _check_names(folder: Path, known: set[str]) -> None:
    for entry in images.visible(folder):
        if entry.is_dir() and entry.name not in known:
            raise NeuralEMError(f"{entry}: no clip has the name of this folder of masks")


def _match(folder: Path, clip: Source) -> list[Path | None]:
    """The label image of each frame; frames without one are not scored."""
    if not folder.is_dir():
        raise NeuralEMError(f"{folder}: no such folder; the masks of {clip.name} should be there")
    found = {path.stem: path for path in images.visible(folder) if path.suffix.lower() in images.SUFFIXES}
    stems = clip.stems()
    if stems is None:  # a video's frames have no names: their order counts
        if len(found) != clip.count():
            refuse(str(folder), f"{clip.count()} label images, one for each frame of {clip.name}", len(found))
        return list(found.values())
    orphans = [path for stem, path in found.items() if stem not in set(stems)]
    if orphans:
        raise NeuralEMError(f"{orphans[0]}: no image has the name of this mask")
    if not found:
        raise NeuralEMError(f"{folder}: no label images in this folder")
    return [found.get(stem) for stem in stems]


class _ArrayMasks:
    """Labels (T,H,W) for each clip, or (N,T,H,W) for all; images in a folder may be counted through instead."""

    def __init__(self, name: str, array: NDArray[Any], clips: Sequence[Source]) -> None:
        self._name, self._clips = name, arrays.as_label_clips(array, name)
        expected = [clip.count() for clip in clips]
        if [len(clip) for clip in self._clips] != expected:
            text = f"{len(expected)} of {expected[0]} frames" if len(set(expected)) == 1 else f"{expected} frames"
            refuse(name, f"labels for each frame ({text})", array.shape)

    def labels(self, clip: int, position: int) -> tuple[Labels, str]:
        values = np.asarray(self._clips[clip][position])
        name = f"{self._name}: frame {position}"
        return images.to_labels(values, name), name
