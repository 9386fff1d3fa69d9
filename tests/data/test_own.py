"""The user's own frames as a data set: windows, splits, channels and sizes."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from neural_em import NeuralEMError
from neural_em.data.dataset import MemoryDataset, StreamingDataset
from neural_em.data.sources import ArraySource
from tests.data.own_frames import counted, everything, load, numbers, refused_by_name, save

RNG = np.random.default_rng(0)


def test_a_folder_of_images_is_static_data(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (8, 6, 7), dtype=np.uint8)
    data = load(save(tmp_path / "images", images))
    assert data.shape == (1, 1, 6, 7)
    assert not data.has_groups
    assert np.array_equal(everything(data)[0][0, :, 0], images / np.float32(255))


def test_sequences_are_dealt_out_in_tens(tmp_path: Path) -> None:
    save(tmp_path / "images", counted(30))
    dealt = {
        split: [number for (number,) in numbers(everything(load(tmp_path / "images", split))[0])]
        for split in ("training", "validation", "test")
    }
    assert dealt["validation"] == [8, 18, 28]
    assert dealt["test"] == [9, 19, 29]
    assert sorted(dealt["training"] + dealt["validation"] + dealt["test"]) == list(range(30))


OVERLAPPING = [([60], 10, 2), ([200], 10, 1), ([207], 10, 3), ([33, 64, 12], 4, 3), ([30], 10, 1), ([9] * 12, 5, 1)]


@pytest.mark.parametrize(("lengths", "frames", "stride"), OVERLAPPING)
def test_windows_of_different_splits_share_no_frame(
    lengths: list[int], frames: int, stride: int, tmp_path: Path
) -> None:
    (tmp_path / "clips").mkdir()
    for number, each in enumerate(np.split(counted(sum(lengths)), np.cumsum(lengths)[:-1])):
        np.save(tmp_path / "clips" / f"{number}.npy", each)
    seen = []
    for split in ("training", "validation", "test"):
        data = load(tmp_path / "clips", split, frames=frames, stride=stride)
        windows = numbers(everything(data)[0])
        assert data.note == ""
        assert all(window == list(range(window[0], window[0] + frames)) for window in windows)
        assert windows
        seen.append({number for window in windows for number in window})
    assert sum(map(len, seen)) == len(set.union(*seen))
    assert len(seen[0]) >= max(map(len, seen[1:]))


def test_overlapping_windows_begin_anew_in_every_stretch(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", counted(33))
    firsts = {
        split: [window[0] for window in numbers(everything(load(tmp_path / "a.npy", split, frames=5, stride=2))[0])]
        for split in ("training", "validation", "test")
    }
    # six stretches of 5 frames: four for training, one for validation, one and the 3 that are left for test
    assert firsts == {"training": [0, 2, 4, 6, 8, 10, 12, 14], "validation": [20], "test": [25, 27]}


def test_a_clip_too_short_to_be_divided_is_in_every_split_and_a_note_says_so(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", counted(29))
    data = load(tmp_path / "a.npy", "test", frames=10, stride=1)
    assert len(data) == 20
    assert "share no frame" in data.note


def test_few_sequences_are_in_every_split_and_a_note_says_so(tmp_path: Path) -> None:
    save(tmp_path / "images", counted(9))
    for split in ("training", "validation", "test"):
        data = load(tmp_path / "images", split)
        assert len(data) == 9
        assert "fewer than 10" in data.note


def test_folders_named_after_the_splits_are_used_as_they_are(tmp_path: Path) -> None:
    for number, split in enumerate(("training", "validation", "test"), 2):
        save(tmp_path / "images" / split, counted(number))
    assert [len(load(tmp_path / "images", split)) for split in ("training", "validation", "test")] == [2, 3, 4]
    assert load(tmp_path / "images", "test").note == ""


def test_the_length_of_the_training_sequences_is_everyone_s(tmp_path: Path) -> None:
    for place, length in {"training/a": 6, "training/b": 7, "validation/c": 6, "test/d": 8, "test/e": 12}.items():
        save(tmp_path / "clips" / place, counted(length))
    loaded = [load(tmp_path / "clips", split) for split in ("training", "validation", "test")]
    assert [(len(data), data.shape[0]) for data in loaded] == [(2, 6), (1, 6), (3, 6)]
    save(tmp_path / "clips" / "test" / "f", counted(4))
    with pytest.raises(NeuralEMError, match=r"f: expected at least 6 frames, the length of a sequence, got 4"):
        load(tmp_path / "clips", "test")
    assert load(tmp_path / "clips", "test", frames=4).shape[0] == 4


def test_the_channels_and_the_size_of_the_training_frames_are_everyone_s(tmp_path: Path) -> None:
    save(tmp_path / "images" / "training", np.zeros((2, 4, 5, 3), np.uint8))
    save(tmp_path / "images" / "validation", counted(2))
    save(tmp_path / "images" / "test", counted(2, 6, 6))
    assert load(tmp_path / "images", "validation").shape == (1, 3, 4, 5)
    with pytest.raises(NeuralEMError, match="expected 4 x 5 pixels"):
        load(tmp_path / "images", "test")


def test_one_frame_folder_is_a_clip(tmp_path: Path) -> None:
    save(tmp_path / "clips" / "a", counted(6))
    assert load(tmp_path / "clips").shape[0] == 6
    assert load(tmp_path / "clips" / "a").shape[0] == 1


def test_a_long_clip_becomes_windows(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", counted(50) + 100)
    data = load(tmp_path / "a.npy")
    assert data.shape[0] == 21
    assert numbers(everything(data)[0]) == [list(range(100, 121)), list(range(121, 142))]
    data = load(tmp_path / "a.npy", frames=4, stride=2, train_size=3)
    assert numbers(everything(data)[0]) == [[100, 101, 102, 103], [102, 103, 104, 105], [104, 105, 106, 107]]


def test_frames_of_a_folder_become_windows_if_asked(tmp_path: Path) -> None:
    save(tmp_path / "frames", counted(12))
    assert numbers(everything(load(tmp_path / "frames", frames=5))[0]) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_frame_folders_are_clips(tmp_path: Path) -> None:
    save(tmp_path / "clips" / "b", counted(7) + 100)
    save(tmp_path / "clips" / "a", counted(6))
    assert numbers(everything(load(tmp_path / "clips"))[0]) == [list(range(6)), list(range(100, 106))]
    assert numbers(everything(load(tmp_path / "clips", frames=3))[0])[:2] == [[0, 1, 2], [3, 4, 5]]


def test_an_array_of_sequences(tmp_path: Path) -> None:
    array = RNG.random((11, 4, 6, 7)).astype(np.float32)
    np.save(tmp_path / "a.npy", array)
    frames, _ = everything(load(tmp_path / "a.npy", "test"))
    assert np.array_equal(frames[:, 0, 0], array[9])


def test_a_gif_and_a_video(tmp_path: Path) -> None:
    pictures = [Image.fromarray(np.full((16, 16, 3), 20 * n, np.uint8)) for n in range(6)]
    pictures[0].save(tmp_path / "a.gif", save_all=True, append_images=pictures[1:])
    assert load(tmp_path / "a.gif").shape == (6, 3, 16, 16)
    assert numbers(everything(load(tmp_path / "a.gif", channels="grey", frames=2))[0]) == [[0, 20], [40, 60], [80, 100]]
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    writer = imageio_ffmpeg.write_frames(str(tmp_path / "a.mp4"), (16, 16), macro_block_size=1)
    writer.send(None)
    for picture in pictures:
        writer.send(np.asarray(picture).copy())
    writer.close()
    frames, _ = everything(load(tmp_path / "a.mp4", channels="grey"))
    assert np.abs(np.array(numbers(frames)[0]) - 20 * np.arange(6)).max() <= 3


def test_grey_colour_and_binary(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (3, 6, 7, 3), dtype=np.uint8)
    save(tmp_path / "images", images)
    assert load(tmp_path / "images").shape == (1, 3, 6, 7)
    assert load(tmp_path / "images", channels="grey").shape == (1, 1, 6, 7)
    frames, _ = everything(load(tmp_path / "images", channels="binary", threshold=0.4))
    luma = images.astype(float) @ [0.299, 0.587, 0.114] / 255
    sure = np.abs(luma - 0.4) > 0.01
    assert np.array_equal((luma > 0.4)[sure], frames[0, :, 0][sure] == 1)
    assert set(np.unique(frames)) == {0, 1}


def test_one_coloured_image_makes_all_coloured(tmp_path: Path) -> None:
    save(tmp_path / "images", counted(2))
    save(tmp_path / "images", np.zeros((1, 4, 5, 3), np.uint8), ["z"])
    assert load(tmp_path / "images").shape == (1, 3, 4, 5)


def test_bytes_are_held_as_bytes(tmp_path: Path) -> None:
    save(tmp_path / "images", counted(4))
    assert load(tmp_path / "images").nbytes == 4 * 20


def test_deep_and_shallow_images_mix(tmp_path: Path) -> None:
    save(tmp_path / "images", counted(2))
    Image.fromarray(np.full((4, 5), 40000, np.uint16)).save(tmp_path / "images" / "last.png")
    frames, _ = everything(load(tmp_path / "images"))
    assert np.array_equal(frames[0, :, 0, 0, 0], np.array([0, 1 / 255, 40000 / 65535], np.float32))


def test_the_pages_of_a_deep_tiff_keep_their_values(tmp_path: Path) -> None:
    values = np.array([0, 20000, 65535], np.uint16)
    pages = [Image.fromarray(np.full((4, 5), value, np.uint16)) for value in values]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    data = load(tmp_path / "a.tif")
    assert data.shape == (3, 1, 4, 5)
    assert np.array_equal(everything(data)[0][:, 0, 0, 0, 0], values / np.float32(65535))


def test_a_frame_deeper_than_its_file_said_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", counted(3) / 255)
    monkeypatch.setattr(ArraySource, "deep", property(lambda _: False, lambda *_: None), raising=False)
    with pytest.raises(NeuralEMError, match=r"a\.npy: frame 0: expected 8 bits a pixel.*got float"):
        load(tmp_path / "a.npy")


def test_many_clips_are_read_in_reasonable_time(tmp_path: Path) -> None:
    """Twice as many take twice the work, counted in lines of Python."""

    def lines(clips: int) -> int:
        count = 0

        def see(frame: Any, event: str, argument: Any) -> Any:
            nonlocal count
            count += event == "line"  # and each turn of a loop in one line
            return see

        np.save(tmp_path / f"{clips}.npy", np.zeros((clips, 2, 3, 4), np.uint8))
        before = sys.gettrace()
        sys.settrace(see)
        try:
            assert len(load(tmp_path / f"{clips}.npy")) == clips * 8 // 10
        finally:
            sys.settrace(before)
        return count

    lines(10)  # what is done once
    assert 500 < lines(500) < 2.1 * lines(250)


def test_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "images", counted(3))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full, raising=False)
    with pytest.raises(NeuralEMError, match=r"no room for 60 bytes.*No space left"):
        load(tmp_path / "images", max_bytes=10)


def test_sizes_may_differ_if_they_are_fitted(tmp_path: Path) -> None:
    save(tmp_path / "images", np.zeros((1, 6, 7), np.uint8), ["a"])
    save(tmp_path / "images", np.zeros((1, 9, 8), np.uint8), ["b"])
    for fit in ("resize", "crop", "crop-resize"):
        assert load(tmp_path / "images", fit=fit, height=5, width=4).shape == (1, 1, 5, 4)
    with pytest.raises(NeuralEMError, match=r"b\.png: expected 6 x 7 .* got 9 x 8"):
        load(tmp_path / "images")


def test_data_too_large_for_memory_lies_on_the_disk(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (20, 6, 7), dtype=np.uint8)
    save(tmp_path / "images", images)
    save(tmp_path / "masks", images // 64)
    held, read = (load(tmp_path / "images", masks=str(tmp_path / "masks"), max_bytes=limit) for limit in (None, 10))
    assert isinstance(held, MemoryDataset)
    assert type(read) is StreamingDataset
    for ours, theirs in zip(everything(read), everything(held), strict=True):
        assert np.array_equal(ours, theirs)  # type: ignore[arg-type]
    assert len(list(tmp_path.iterdir())) == 2


def _other_sizes(folder: Path) -> dict[str, Any]:
    save(folder / "images", counted(2))
    save(folder / "images", np.zeros((1, 9, 9), np.uint8), ["z"])
    return {"names": "z.png"}


def _short_clip(folder: Path) -> dict[str, Any]:
    save(folder / "images" / "a", counted(5))
    save(folder / "images" / "b", counted(3))
    return {"frames": 4, "names": str(Path("images") / "b")}


def _damaged_late(folder: Path) -> dict[str, Any]:
    save(folder / "images", counted(3))
    path = folder / "images" / "frame2.png"
    path.write_bytes(path.read_bytes()[:40])
    return {"names": "frame2.png"}


def _empty(folder: Path) -> dict[str, Any]:
    (folder / "images").mkdir()
    return {"names": "images"}


def _number(folder: Path) -> dict[str, Any]:
    (folder / "images").mkdir()
    np.save(folder / "images" / "a.npy", np.float32(0.5))
    return {"names": "a.npy: expected frames of shape"}


CASES = [_other_sizes, _short_clip, _damaged_late, _empty, _number]


@pytest.mark.parametrize("case", CASES, ids=[case.__name__.strip("_") for case in CASES])
def test_what_does_not_fit_together_is_refused_by_name(case: Any, tmp_path: Path) -> None:
    refused_by_name(tmp_path / "images", **case(tmp_path))
