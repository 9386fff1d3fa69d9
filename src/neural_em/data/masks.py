"""True groups for the user's own frames: label images of the same names, or arrays."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neural_em.data import arrays, images
from neural_em.data.fitting import Labels
from neural_em.data.sources import Source
from neural_em.errors import NeuralEMError, refuse

_LABELS = images.SUFFIXES | arrays.SUFFIXES
_Find = Callable[[int], tuple[Labels, str] | None]  # the labels of a clip's frame and their name, by its position


class Masks:
    """Labels of the frames of several clips."""

    def __init__(self, clips: Sequence[_Find | None]) -> None:
        self._clips = clips

    def labels(self, clip: int, position: int, size: tuple[int, ...]) -> Labels | None:
        """Labels (H,W) of a frame of that size, or ``None`` where the frame has none (then it is not scored)."""
        find = self._clips[clip]
        found = None if find is None else find(position)
        if found is None:
            return None
        labels, name = found
        if labels.shape != size:
            refuse(name, f"{size[0]} x {size[1]} pixels like its frame", " x ".join(map(str, labels.shape)))
        return labels


def open_masks(path: Path, masks: Path | None, clips: Sequence[Source]) -> Masks | None:
    """The masks of the clips at ``path``; those in a ``.npz`` archive beside the frames need not be named."""
    if masks is None:
        parts = [(Path(clip.name), [clip]) for clip in clips] if path.is_dir() else [(path, clips)]
        beside = [find for archive, those in parts for find in _beside(archive, those)]
        return Masks(beside) if any(beside) else None
    if masks.is_dir():
        return Masks(_in_folder(masks, clips))
    if masks.suffix.lower() in arrays.SUFFIXES:
        return Masks(_in_array(masks, arrays.open_array(masks, "groups"), clips))
    if masks.suffix.lower() not in images.SUFFIXES:
        refuse(str(masks), "a folder of label images, a label image or a NumPy array", repr(masks.suffix))
    if len(clips) != 1 or len(clips[0].stems() or ()) != 1:
        raise NeuralEMError(f"{masks}: one label image is for one image, not for all of {path}")
    return Masks([partial(_from_file, [masks])])


def _beside(path: Path, clips: Sequence[Source]) -> Sequence[_Find | None]:
    """The groups in the archive that holds the frames, or none."""
    archive = path.suffix.lower() == ".npz" and not path.is_dir()
    array = arrays.find_array(path, "groups") if archive else None
    return [None] * len(clips) if array is None else _in_array(path, array, clips)


def _in_folder(folder: Path, clips: Sequence[Source]) -> list[_Find]:
    """A folder or array for each clip, of its name; of one clip also the label images themselves."""
    names = [path.name if path.is_dir() else path.stem for path in (Path(clip.name) for clip in clips)]
    places = [_place(folder, name) for name in names]
    if len(clips) == 1 and places[0] is None:
        return [partial(_from_file, _match(folder, clips[0]))]
    for entry in images.visible(folder):
        name = entry.name if entry.is_dir() else entry.stem
        if (entry.is_dir() or entry.suffix.lower() in arrays.SUFFIXES) and name not in names:
            raise NeuralEMError(f"{entry}: no clip has the name of these masks")
    each: list[_Find] = []
    for name, place, clip in zip(names, places, clips, strict=True):
        if place is None:
            refuse(str(folder / name), f"a folder or an array with the masks of {clip.name}", "none")
        if place.is_dir():
            each.append(partial(_from_file, _match(place, clip)))
        else:
            each += _in_array(place, arrays.open_array(place, "groups"), [clip])
    return each


def _place(folder: Path, name: str) -> Path | None:
    """Where a folder of masks has those of a clip: in a folder of its name, or in an array."""
    arrays_of = (folder / f"{name}{suffix}" for suffix in sorted(arrays.SUFFIXES))
    return folder / name if (folder / name).is_dir() else next((path for path in arrays_of if path.is_file()), None)


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


def _from_file(paths: Sequence[Path | None], position: int) -> tuple[Labels, str] | None:
    """The labels in a frame's own label image or array."""
    path = paths[position]
    if path is None:
        return None
    if path.suffix.lower() not in arrays.SUFFIXES:
        return images.read_labels(path), str(path)
    values = arrays.open_array(path, "groups")
    if values.ndim != 2:
        refuse(str(path), "labels (H,W) of one frame", values.shape)
    return images.to_labels(values, str(path)), str(path)


def _in_array(path: Path, array: NDArray[Any], clips: Sequence[Source]) -> list[_Find]:
    """Labels (T,H,W) for each clip, or (N,T,H,W) for all; images in a folder may be counted through instead."""
    labels, expected = arrays.as_label_clips(array, str(path)), [clip.count() for clip in clips]
    if [len(clip) for clip in labels] != expected:
        text = f"{len(expected)} of {expected[0]} frames" if len(set(expected)) == 1 else f"{expected} frames"
        refuse(str(path), f"labels for each frame ({text})", array.shape)

    def find(clip: NDArray[Any], position: int) -> tuple[Labels, str]:
        name = f"{path}: frame {position}"
        return images.to_labels(np.asarray(clip[position]), name), name

    return [partial(find, clip) for clip in labels]
