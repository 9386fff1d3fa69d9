"""True groups of the user's own frames: label images and arrays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.own_frames import counted, everything, load, refused_by_name, save

RNG = np.random.default_rng(0)


def test_masks_of_the_same_names(tmp_path: Path) -> None:
    images, masks = counted(4), RNG.integers(0, 4, (4, 4, 5), dtype=np.uint8)
    save(tmp_path / "images", images)
    save(tmp_path / "masks", masks)
    (tmp_path / "masks" / "frame2.png").unlink()
    data = load(tmp_path / "images", masks=str(tmp_path / "masks"))
    assert data.has_groups
    _, groups = everything(data)
    assert groups is not None
    assert np.array_equal(groups[0, [0, 1, 3]], masks[[0, 1, 3]])
    assert not groups[0, 2].any()  # a frame without a mask is not scored


def test_masks_inside_the_folder_of_images(tmp_path: Path) -> None:
    save(tmp_path / "images", counted(4))
    save(tmp_path / "images" / "masks", counted(4))
    _, groups = everything(load(tmp_path / "images", masks=str(tmp_path / "images" / "masks")))
    assert groups is not None
    assert groups[0, :, 0, 0].tolist() == [0, 1, 2, 3]


def test_masks_with_a_palette_are_read_by_index(tmp_path: Path) -> None:
    save(tmp_path / "images", counted(1))
    mask = Image.fromarray(np.arange(20, dtype=np.uint8).reshape(4, 5))
    mask.putpalette(bytes(range(255, -1, -1)) * 3)
    (tmp_path / "masks").mkdir()
    mask.save(tmp_path / "masks" / "frame0.png")
    _, groups = everything(load(tmp_path / "images", masks=str(tmp_path / "masks")))
    assert groups is not None
    assert groups[0, 0].ravel().tolist() == list(range(20))


@pytest.mark.parametrize("names", [("a", "b"), ("s0.1", "s0.2")])
def test_masks_of_frame_folders(tmp_path: Path, names: tuple[str, str]) -> None:
    for number, name in enumerate(names):
        save(tmp_path / "clips" / name, counted(3))
        save(tmp_path / "masks" / name, counted(3) + 10 * number)
    _, groups = everything(load(tmp_path / "clips", masks=str(tmp_path / "masks")))
    assert groups is not None
    assert groups[:, :, 0, 0].T.tolist() == [[0, 1, 2], [10, 11, 12]]


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_masks_of_clip_files_lie_in_folders_of_their_names(names: list[str], tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    for number, name in enumerate(names):
        np.save(tmp_path / "clips" / f"{name}.npy", counted(3))
        save(tmp_path / "masks" / name, counted(3) + 10 * number)
    _, groups = everything(load(tmp_path / "clips", masks=str(tmp_path / "masks")))
    assert groups is not None
    assert groups[:, :, 0, 0].T.tolist() == [[0, 1, 2], [10, 11, 12]][: len(names)]


@pytest.mark.parametrize("shape", [(6, 4, 5), (1, 6, 4, 5), (1, 6, 4, 5, 1)])
def test_masks_as_an_array(shape: tuple[int, ...], tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", counted(6))
    np.save(tmp_path / "m.npy", (counted(6) % 3).reshape(shape))
    _, groups = everything(load(tmp_path / "a.npy", frames=3, masks=str(tmp_path / "m.npy")))
    assert groups is not None
    assert groups[:, :, 0, 0].T.tolist() == [[0, 1, 2], [0, 1, 2]]


def test_masks_beside_the_frames_in_an_archive(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", frames=counted(3), groups=counted(3))
    data = load(tmp_path / "a.npz")
    assert data.has_groups
    assert everything(data)[1][:, 0, 0, 0].tolist() == [0, 1, 2]  # type: ignore[index]


def test_a_folder_of_archives_keeps_their_groups(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", frames=counted(3), groups=counted(3))
    np.savez(tmp_path / "b.npz", frames=counted(3), groups=counted(3) + 10)
    np.savez(tmp_path / "c.npz", frames=counted(3))  # has none, and is not scored
    data = load(tmp_path)
    assert data.has_groups
    assert everything(data)[1][:, :, 0, 0].T.tolist() == [[0, 1, 2], [10, 11, 12], [0, 0, 0]]  # type: ignore[index]
    (tmp_path / "a.npz").unlink()
    (tmp_path / "b.npz").unlink()
    assert not load(tmp_path).has_groups


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
@pytest.mark.parametrize("frame_folders", [False, True])
def test_a_folder_of_arrays_has_the_masks_of_clips(names: list[str], frame_folders: bool, tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    (tmp_path / "masks").mkdir()
    for number, name in enumerate(names):
        if frame_folders:
            save(tmp_path / "clips" / name, counted(3))
        else:
            np.save(tmp_path / "clips" / f"{name}.npy", counted(3))
        np.save(tmp_path / "masks" / f"{name}.npy", counted(3) + 10 * number)
    _, groups = everything(load(tmp_path / "clips", masks=str(tmp_path / "masks")))
    assert groups is not None
    assert groups[:, :, 0, 0].T.tolist() == [[0, 1, 2], [10, 11, 12]][: len(names)]


def test_an_array_for_each_frame(tmp_path: Path) -> None:
    save(tmp_path / "images", counted(3))
    (tmp_path / "masks").mkdir()
    for number in (0, 2):
        np.save(tmp_path / "masks" / f"frame{number}.npy", np.full((4, 5), number + 1))
    _, groups = everything(load(tmp_path / "images", frames=3, masks=str(tmp_path / "masks")))
    assert groups is not None
    assert groups[:, :, 0, 0].T.tolist() == [[1, 0, 3]]


def test_the_mask_of_one_image(tmp_path: Path) -> None:
    save(tmp_path, counted(2), ["image", "mask"])
    _, groups = everything(load(tmp_path / "image.png", masks=str(tmp_path / "mask.png")))
    assert groups is not None
    assert (groups == 1).all()


def test_masks_are_fitted_with_their_frames(tmp_path: Path) -> None:
    image = np.zeros((8, 8), np.uint8)
    image[2:6, 2:6] = 255
    save(tmp_path / "images", image[None])
    save(tmp_path / "masks", (image > 0).astype(np.uint8)[None] * 7)
    frames, groups = everything(load(tmp_path / "images", masks=str(tmp_path / "masks"), fit="crop", height=4, width=4))
    assert groups is not None
    assert (frames == 1).all()
    assert (groups == 7).all()


def _orphan(folder: Path) -> dict[str, Any]:
    save(folder / "images", counted(2))
    save(folder / "masks", counted(3))
    return {"masks": str(folder / "masks"), "names": "frame2.png"}


def _orphan_clip(folder: Path) -> dict[str, Any]:
    for name in ("a", "b"):
        save(folder / "images" / name, counted(2))
    for name in ("a", "b", "c"):
        save(folder / "masks" / name, counted(2))
    return {"masks": str(folder / "masks"), "names": str(Path("masks") / "c")}


def _no_masks_of_a_clip(folder: Path) -> dict[str, Any]:
    for name in ("a", "b"):
        save(folder / "images" / name, counted(2))
    save(folder / "masks" / "a", counted(2))
    return {"masks": str(folder / "masks"), "names": str(Path("masks") / "b")}


def _mask_of_another_size(folder: Path) -> dict[str, Any]:
    save(folder / "images", counted(2))
    save(folder / "masks", counted(2, 5, 5))
    return {"masks": str(folder / "masks"), "names": "masks/frame0.png"}


def _coloured_mask(folder: Path) -> dict[str, Any]:
    save(folder / "images", counted(1))
    save(folder / "masks", np.zeros((1, 4, 5, 3), np.uint8))
    return {"masks": str(folder / "masks"), "names": "masks/frame0.png"}


def _transparent_mask(folder: Path) -> dict[str, Any]:
    save(folder / "images", counted(1))
    (folder / "masks").mkdir()
    Image.new("LA", (5, 4)).save(folder / "masks" / "frame0.png")
    return {"masks": str(folder / "masks"), "names": "got mode LA"}


def _mask_of_fractions(folder: Path) -> dict[str, Any]:
    save(folder / "images", counted(1))
    (folder / "masks").mkdir()
    Image.fromarray(np.ones((4, 5), np.float32)).save(folder / "masks" / "frame0.tif")
    return {"masks": str(folder / "masks"), "names": "got mode F"}


def _deep_mask(folder: Path) -> dict[str, Any]:
    save(folder / "images", counted(1))
    save(folder / "masks", np.full((1, 4, 5), 300, np.uint16))
    return {"masks": str(folder / "masks"), "names": "(255 groups are the most), got 300 to 300"}


def _empty_masks(folder: Path) -> dict[str, Any]:
    save(folder / "images", counted(1))
    (folder / "masks").mkdir()
    return {"masks": str(folder / "masks"), "names": "masks"}


def _absent_masks(folder: Path) -> dict[str, Any]:
    save(folder / "images", counted(1))
    return {"masks": str(folder / "masks"), "names": "masks"}


def _short_masks(folder: Path) -> dict[str, Any]:
    save(folder / "images", counted(3))
    np.save(folder / "m.npy", counted(2))
    return {"masks": str(folder / "m.npy"), "names": "m.npy"}


def _masks_in_halves(folder: Path) -> dict[str, Any]:
    save(folder / "images", counted(2))
    np.save(folder / "m.npy", counted(2) + 0.5)
    return {"masks": str(folder / "m.npy"), "names": "m.npy"}


def _array_of_another_clip(folder: Path) -> dict[str, Any]:
    for name in ("a", "b"):
        save(folder / "images" / name, counted(2))
    (folder / "masks").mkdir()
    for name in ("a", "b", "c"):
        np.save(folder / "masks" / f"{name}.npy", counted(2))
    return {"masks": str(folder / "masks"), "names": str(Path("masks") / "c.npy")}


def _clip_for_a_frame(folder: Path) -> dict[str, Any]:
    save(folder / "images", counted(2))
    (folder / "masks").mkdir()
    np.save(folder / "masks" / "frame0.npy", counted(2))
    return {"masks": str(folder / "masks"), "names": "frame0.npy"}


CASES = [
    _array_of_another_clip, _clip_for_a_frame,
    _orphan, _orphan_clip, _no_masks_of_a_clip, _mask_of_another_size, _coloured_mask, _transparent_mask,
    _mask_of_fractions, _deep_mask, _empty_masks, _absent_masks, _short_masks, _masks_in_halves,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case.__name__.strip("_") for case in CASES])
def test_what_does_not_fit_together_is_refused_by_name(case: Any, tmp_path: Path) -> None:
    refused_by_name(tmp_path / "images", **case(tmp_path))
