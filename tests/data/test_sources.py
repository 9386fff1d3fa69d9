"""Streams of frames from images, folders, GIFs, videos and arrays."""

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from neural_em import NeuralEMError
from neural_em.data import open_source
from neural_em.data.sources import open_clips

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (5, 12, 16), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (5, 12, 16, 3), dtype=np.uint8)


def save(folder: Path, frames: np.ndarray, suffix: str = ".png") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, frame in enumerate(frames):
        Image.fromarray(frame).save(folder / f"frame{number}{suffix}")
    return folder


def write_video(path: Path, frames: np.ndarray) -> Path:
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    writer = imageio_ffmpeg.write_frames(str(path), (frames.shape[2], frames.shape[1]), fps=10, macro_block_size=1)
    writer.send(None)
    for frame in frames:
        writer.send(np.ascontiguousarray(frame))
    writer.close()
    return path


def video_frames(count: int = 12) -> np.ndarray:
    """A bright square on dark grey that moves to the right, 32 x 48."""
    frames = np.full((count, 32, 48, 3), 30, np.uint8)
    for t in range(count):
        frames[t, 8:24, 2 * t : 2 * t + 16] = 220
    return frames


def test_an_image(tmp_path: Path) -> None:
    Image.fromarray(COLOUR[0]).save(tmp_path / "a.png")
    source = open_source(tmp_path / "a.png")
    assert (source.length, source.colour) == (1, True)
    (frame,) = source
    assert np.array_equal(frame, COLOUR[0])


def test_a_folder_in_natural_order(tmp_path: Path) -> None:
    frames = np.stack([np.full((4, 4), n, np.uint8) for n in range(12)])
    source = open_source(save(tmp_path, frames))
    assert (source.length, source.colour) == (12, False)
    assert [int(frame[0, 0, 0]) for frame in source] == list(range(12))
    assert source.frame_name(10).endswith("frame10.png")
    assert [int(frame[0, 0, 0]) for frame in source.take([3, 10])] == [3, 10]


def test_other_and_hidden_files_are_passed_over(tmp_path: Path) -> None:
    save(tmp_path, GREY)
    (tmp_path / ".hidden.png").write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("x")
    assert open_source(tmp_path).length == 5


def test_a_gif(tmp_path: Path) -> None:
    frames = [Image.fromarray(np.full((6, 8, 3), 50 * n, np.uint8)) for n in range(4)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:], duration=100)
    source = open_source(tmp_path / "a.gif")
    assert source.length == 4
    assert source.fps == 10
    assert [frame[0, 0].tolist() for frame in source] == [[50 * n] * 3 for n in range(4)]
    assert [frame[0, 0].tolist() for frame in source] == [[50 * n] * 3 for n in range(4)]  # and once more


def test_an_animated_png_is_a_clip(tmp_path: Path) -> None:
    frames = [Image.fromarray(frame) for frame in COLOUR]
    frames[0].save(tmp_path / "a.png", save_all=True, append_images=frames[1:])
    assert np.array_equal(np.stack(list(open_source(tmp_path / "a.png"))), COLOUR)


def test_a_video(tmp_path: Path) -> None:
    frames = video_frames()
    source = open_source(write_video(tmp_path / "a.mp4", frames))
    decoded = np.stack(list(source))
    assert decoded.shape == frames.shape
    assert np.abs(decoded.astype(int) - frames).mean() < 8  # it is compressed
    assert source.fps == 10
    assert source.count() == 12
    assert len(list(source.take([0, 11]))) == 2


def test_a_video_can_be_left_early(tmp_path: Path) -> None:
    source = open_source(write_video(tmp_path / "a.mp4", video_frames(30)))
    for _ in range(3):
        assert next(iter(source)).shape == (32, 48, 3)


def test_a_video_without_the_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.mp4").write_bytes(b"x")
    monkeypatch.setitem(__import__("sys").modules, "imageio_ffmpeg", None)
    with pytest.raises(NeuralEMError, match=r"a.mp4.*neural-em\[video\]"):
        open_source(tmp_path / "a.mp4")


ARRAYS: dict[str, tuple[np.ndarray, np.ndarray]] = {  # and what it must be as (T,H,W,C)
    "image": (GREY[0], GREY[:1, :, :, None]),
    "colour image": (COLOUR[0], COLOUR[:1]),
    "video": (GREY, GREY[..., None]),
    "colour video": (COLOUR, COLOUR),
    "channels first": (COLOUR.transpose(0, 3, 1, 2), COLOUR),
    "one sequence": (GREY[None, ..., None], GREY[..., None]),
    "one sequence, channels first": (COLOUR.transpose(0, 3, 1, 2)[None], COLOUR),
    "another order in memory": (np.asfortranarray(GREY), GREY[..., None]),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_arrays(name: str, suffix: str, tmp_path: Path) -> None:
    array, expected = ARRAYS[name]
    path = tmp_path / f"a{suffix}"
    if suffix == ".npy":
        np.save(path, array)
    else:
        np.savez_compressed(path, frames=array)
    frames = np.stack(list(open_source(path)))
    assert frames.dtype == np.uint8
    assert np.array_equal(frames, expected)


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
@pytest.mark.parametrize("shape", [(2, 6, 5, 4), (6, 5, 4)])
def test_what_is_transparent_in_an_array_lies_on_black(shape: tuple[int, ...], kind: Any, tmp_path: Path) -> None:
    """Opaque, half transparent, and not to be seen at all, whatever colour is there."""
    values = np.full(shape, 200, np.float64)
    values[..., 3] = 255
    values[..., 0, 3], values[..., 1, 3] = 0, 127.5
    np.save(tmp_path / "a.npy", (values / 255).astype(kind) if kind == np.float32 else np.floor(values).astype(kind))
    source = open_source(tmp_path / "a.npy")
    frames = np.stack(list(source))
    assert source.colour
    assert frames.shape == (2 if len(shape) == 4 else 1, 6, 5, 3)
    assert frames.dtype == kind
    scale = 1 / 255 if kind == np.float32 else 1
    assert np.allclose(
        frames[:, :, :, 0], np.array([0, 100, 200, 200, 200])[:, None][None, None, :, 0] * scale, atol=scale
    )


@pytest.mark.parametrize(("free", "fits"), [(12 * 16 * 5, True), (12 * 16 * 5 - 1, False)])
def test_an_archive_is_unpacked_only_if_it_fits_into_memory(
    free: int, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused by what its header says, before a byte of it is unpacked."""
    monkeypatch.setattr("neural_em.data.arrays.memory_budget", lambda device: free)
    np.savez_compressed(tmp_path / "a.npz", frames=GREY)
    if fits:
        assert np.array_equal(np.stack(list(open_source(tmp_path / "a.npz"))), GREY[..., None])
        return
    monkeypatch.setattr(np.lib.format, "read_array", lambda *a, **o: pytest.fail("it was unpacked"))
    with pytest.raises(
        NeuralEMError, match=r"a\.npz: frames\.npy: expected an array that fits into memory .* 960 bytes"
    ):
        open_source(tmp_path / "a.npz")


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64, np.float32, np.float64])
def test_zeros_and_ones_are_black_and_white_in_any_type(kind: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", (GREY > 100).astype(kind))
    frames = np.stack(list(open_source(tmp_path / "a.npy")))
    white = 1 if frames.dtype == np.float32 else 255
    assert np.array_equal(frames[..., 0], (GREY > 100) * white)


def test_several_clips(tmp_path: Path) -> None:
    for name in ("b", "a"):
        save(tmp_path / name, GREY)
    np.save(tmp_path / "c.npy", GREY)
    clips = open_clips(tmp_path)
    assert [Path(clip.name).name for clip in clips] == ["a", "b", "c.npy"]
    with pytest.raises(NeuralEMError, match="3 clips"):
        open_source(tmp_path)


def test_links_in_circles_end(tmp_path: Path) -> None:
    save(tmp_path / "clips" / "a", GREY)
    (tmp_path / "clips" / "a" / "loop").symlink_to(tmp_path / "clips")
    assert [clip.length for clip in open_clips(tmp_path / "clips")] == [5]
    (tmp_path / "clips" / "again").symlink_to(tmp_path / "clips")
    with pytest.raises(NeuralEMError, match="again"):
        open_clips(tmp_path / "clips")


class Evil:
    def __reduce__(self) -> tuple[Any, Any]:
        return os.mkdir, ("evil-was-here",)


def _object_array(path: Path) -> None:
    np.save(path, np.array([Evil()], dtype=object), allow_pickle=True)


def _npy_of_terabytes(path: Path) -> None:
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**6)})


def _npz_of_terabytes(path: Path) -> None:
    import zipfile

    _npy_of_terabytes(path.with_name("inner"))
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(path.with_name("inner"), "frames.npy")
    path.with_name("inner").unlink()


def _cut(path: Path, make: Any, keep: float) -> None:
    make(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])


def _gif(path: Path) -> None:
    frames = [Image.fromarray(frame) for frame in COLOUR]
    frames[0].save(path, save_all=True, append_images=frames[1:])


def _bomb(path: Path) -> None:
    Image.new("1", (12_000, 10_000)).save(path, compress_level=1)


DAMAGED: dict[str, tuple[str, Any]] = {
    "absent": ("a.png", lambda path: None),
    "no suffix": ("a", lambda path: path.write_bytes(b"x")),
    "other suffix": ("a.txt", lambda path: path.write_bytes(b"x")),
    "empty folder": ("a", lambda path: path.mkdir()),
    "folder without pictures": ("a", lambda path: (path.mkdir(), (path / "notes.txt").write_text("x"))),
    "frame folder without pictures": ("a", lambda path: (path / "clip").mkdir(parents=True)),
    "pictures and clips": ("a", lambda path: (save(path, GREY), save(path / "clip", GREY))),
    "empty image": ("a.png", lambda path: path.write_bytes(b"")),
    "text as an image": ("a.png", lambda path: path.write_text("no picture")),
    "cut image": ("a.png", lambda path: _cut(path, lambda p: Image.fromarray(COLOUR[0]).save(p), 0.5)),
    "cut jpeg": ("a.jpg", lambda path: _cut(path, lambda p: Image.fromarray(COLOUR[0]).save(p), 0.3)),
    "image of 120 megapixels": ("a.png", _bomb),
    "cut gif": ("a.gif", lambda path: _cut(path, _gif, 0.4)),
    "text as a gif": ("a.gif", lambda path: path.write_text("GIF89a but not really")),
    "text as a video": ("a.mp4", lambda path: path.write_text("no video")),
    "empty video": ("a.mp4", lambda path: path.write_bytes(b"")),
    "cut video": ("a.mp4", lambda path: _cut(path, lambda p: write_video(p, video_frames()), 0.5)),
    "objects": ("a.npy", _object_array),
    "cut array": ("a.npy", lambda path: _cut(path, lambda p: np.save(p, GREY), 0.5)),
    "cut header": ("a.npy", lambda path: path.write_bytes(b"\x93NUMPY\x01\x00")),
    "array of terabytes": ("a.npy", _npy_of_terabytes),
    "archive of terabytes": ("a.npz", _npz_of_terabytes),
    "text as an archive": ("a.npz", lambda path: path.write_text("no archive")),
    "archive of other names": ("a.npz", lambda path: np.savez(path, a=GREY, b=GREY)),
    "empty array": ("a.npy", lambda path: np.save(path, np.zeros((0, 3, 3)))),
    "text array": ("a.npy", lambda path: np.save(path, np.array(["a", "b"]))),
    "no axes": ("a.npy", lambda path: np.save(path, np.float32(0.5))),
    "no axes in an archive": ("a.npz", lambda path: np.savez(path, frames=np.uint8(1))),
    "no axes in a folder": ("a", lambda path: (path.mkdir(), np.save(path / "b.npy", np.float32(0.5)))),
    "one axis": ("a.npy", lambda path: np.save(path, np.zeros(9))),
    "six axes": ("a.npy", lambda path: np.save(path, np.zeros((2,) * 6))),
    "not a number": ("a.npy", lambda path: np.save(path, np.full((4, 5, 6), np.nan))),
    "too bright": ("a.npy", lambda path: np.save(path, np.full((4, 5, 6), 1.5))),
    "beyond 255": ("a.npy", lambda path: np.save(path, np.full((4, 5, 6), 256))),
    "negative": ("a.npy", lambda path: np.save(path, np.full((4, 5, 6), -1))),
    "complex": ("a.npy", lambda path: np.save(path, np.full((4, 5, 6), 1j))),
    "named pipe": ("a.png", lambda path: os.mkfifo(path)),
    "named pipe in a folder": ("a", lambda path: (path.mkdir(), os.mkfifo(path / "b.png"))),
    "device": ("a.npy", lambda path: path.symlink_to("/dev/zero")),
    "broken link": ("a.png", lambda path: path.symlink_to("nowhere")),
    "link to itself": ("a.png", lambda path: path.symlink_to(path)),
    "broken link in a folder": ("a", lambda path: (path.mkdir(), (path / "b.png").symlink_to("nowhere"))),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_cannot_be_read_is_refused_by_name(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, make = DAMAGED[case]
    monkeypatch.chdir(tmp_path)
    make(tmp_path / name)
    with pytest.raises(NeuralEMError) as error:
        for _ in open_source(tmp_path / name):
            pass
    assert str(tmp_path / name) in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "evil-was-here").exists()


def test_a_name_with_a_null_is_refused() -> None:
    with pytest.raises(NeuralEMError):
        open_source("a\0b.png")


def test_a_file_that_is_really_a_playlist_fetches_nothing(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    (tmp_path / "a.mp4").write_text("#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/x.ts\n#EXT-X-ENDLIST\n")
    with pytest.raises(NeuralEMError, match=r"a\.mp4"):
        list(open_source(tmp_path / "a.mp4"))


def test_every_start_of_ffmpeg_is_kept_from_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is inside the file: what it names is opened only if it is a file, in whichever version of ffmpeg."""
    path = write_video(tmp_path / "a.mp4", video_frames(3))
    started: list[list[str]] = []
    start = subprocess.Popen

    def watch(command: list[str], *arguments: Any, **options: Any) -> Any:
        started.append(list(map(str, command)))
        return start(command, *arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", watch)
    source = open_source(path)
    assert source.count() == len(list(source)) == 3
    reading = [command[: command.index("-i") + 2] for command in started if str(path) in command]
    assert len(reading) == 3  # to look at it, to count, to read
    for command in reading:
        assert command.index("-i") + 1 == command.index(str(path))
        allowed = command[command.index("-protocol_whitelist") + 1]
        assert set(allowed.split(",")) <= {"file", "pipe"}
