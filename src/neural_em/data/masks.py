"""True groups for the user's own frames: label images of the same names, or arrays."""

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

_LABELS = images.SUFFIXES | arrays.SUFFIXES


class Masks(Protocol):
    """Labels of the frames of several clips."""

    def labels(self, clip: int, position: int) -> tuple[Labels, str] | None:
        """Labels (H,W) of a frame and their name, or ``None`` where the frame has none (then it is not scored)."""


def open_masks(path: Path, masks: Path | None, clips: Sequence[Source]) -> Masks | None:
    """The masks of the clips at ``path``; those in a ``.npz`` archive beside the frames need not be named."""
    if masks is None:
        if not path.is_dir():
            return _beside(path, clips)
        each = [_beside(Path(clip.name), [clip]) for clip in clips]
        return _EachMasks(each) if any(each) else None
    if masks.is_dir():
        return _folder_masks(masks, clips)
    if masks.suffix.lower() in arrays.SUFFIXES:
        return _ArrayMasks(str(masks), arrays.open_array(masks, "groups"), clips)
    if masks.suffix.lower() not in images.SUFFIXES:
        refuse(str(masks), "a folder of label images, a label image or a NumPy array", repr(masks.suffix))
    if len(clips) != 1 or clips[0].stems() is None or len(clips[0].stems() or ()) != 1:
        raise NeuralEMError(f"{masks}: one label image is for one image, not for all of {path}")
    return _FileMasks([[masks]])


class _EachMasks:
    """Each clip's own masks, or none."""

    def __init__(self, masks: Sequence[Masks | None]) -> None:
        self._masks = masks

    def labels(self, clip: int, position: int) -> tuple[Labels, str] | None:
        own = self._masks[clip]
        return None if own is None else own.labels(0, position)


class _FileMasks:
    """A label image, or none, for every frame."""

    def __init__(self, paths: Sequence[Sequence[Path | None]]) -> None:
        self._paths = paths

    def labels(self, clip: int, position: int) -> tuple[Labels, str] | None:
        path = self._paths[clip][position]
        if path is None:
            return None
        if path.suffix.lower() not in arrays.SUFFIXES:
            return images.read_labels(path), str(path)
        values = arrays.open_array(path, "groups")
        if values.ndim != 2:
            refuse(str(path), "labels (H,W) of one frame", values.shape)
        return images.to_labels(values, str(path)), str(path)


def _beside(path: Path, clips: Sequence[Source]) -> Masks | None:
    """The groups in the archive that holds the frames."""
    if path.suffix.lower() != ".npz" or path.is_dir():
        return None
    array = arrays.find_array(path, "groups")
    return None if array is None else _ArrayMasks(str(path), array, clips)


def _folder_masks(folder: Path, clips: Sequence[Source]) -> Masks:
    """A folder or array for each clip, of its name; of one clip also the label images themselves."""
    places = [_place(folder, clip) for clip in clips]
    if len(clips) == 1 and places[0] is None:
        return _FileMasks([_match(folder, clips[0])])
    _check_names(folder, {_folder_name(clip) for clip in clips})
    each: list[Masks | None] = []
    for place, clip in zip(places, clips, strict=True):
        if place is None:
            refuse(str(folder / _folder_name(clip)), f"a folder or an array with the masks of {clip.name}", "none")
        array = None if place.is_dir() else arrays.open_array(place, "groups")
        each.append(_FileMasks([_match(place, clip)]) if array is None else _ArrayMasks(str(place), array, [clip]))
    return _EachMasks(each)


def _place(folder: Path, clip: Source) -> Path | None:
    """Where a folder of masks has those of a clip: in a folder of its name, or in an array."""
    name = _folder_name(clip)
    arrays_of = (folder / f"{name}{suffix}" for suffix in sorted(arrays.SUFFIXES))
    return folder / name if (folder / name).is_dir() else next((path for path in arrays_of if path.is_file()), None)


def _folder_name(clip: Source) -> str:
    """What the folder with a clip's masks is called: as its frame folder, or as its file without suffix."""
    path = Path(clip.name)
    return path.name if path.is_dir() else path.stem


def _check_names(folder: Path, known: set[str]) -> None:
    for entry in images.visible(folder):
        name = entry.name if entry.is_dir() else entry.stem
        if (entry.is_dir() or entry.suffix.lower() in arrays.SUFFIXES) and name not in known:
            raise NeuralEMError(f"{entry}: no clip has the name of these masks")


def _match(folder: Path, clip: Source) -> list[Path | None]:
    """The label image, or array, of each frame; frames without one are not scored."""
    found = {path.stem: path for path in images.visible(folder) if path.suffix.lower() in _LABELS}
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
