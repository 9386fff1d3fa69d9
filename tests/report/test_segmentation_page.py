"""The page of a segmentation: what it says and shows of a clip whose objects are known."""

import base64
import html
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from neural_em.report.colours import palette
from neural_em.report.segmentation_page import MOST_FRAMES, Thumbnails, write_page

SIZE = (30, 40)


def folder_of(path: Path, labels: np.ndarray, **about: object) -> Path:
    """A segmentation folder with these labels (T,30,40); the model saw 6 x 8 pixels and has three components."""
    count = len(labels)
    (path / "labels").mkdir(parents=True)
    for number, each in enumerate(labels):
        Image.fromarray(each.astype(np.uint8)).save(path / "labels" / f"frame-{number:05d}.png")
    gamma = np.full((count, 3, 6, 8), 1 / 3, np.float32)
    frames = np.zeros((count, 1, 6, 8), np.float32)
    np.savez(path / "segmentation.npz", frames=frames, gamma=gamma, psi=gamma[:, :, None])
    size = {"frames": count, "height": SIZE[0], "width": SIZE[1]}
    summary = {**size, "source": "/x/my <clip>.mp4", "model": "flying-shapes", "components": 3, "fps": 25, **about}
    (path / "segmentation.json").write_text(json.dumps(summary))
    return path


def texts(page: str) -> list[str]:
    found = re.search(r'data-texts="([^"]*)"', page)
    assert found
    read: list[str] = json.loads(html.unescape(found[1]))
    return read


def pictures(page: str, name: str, count: int) -> np.ndarray:
    """The panel's pictures (T,180,240,3), cut out of its sprite."""
    found = re.search(rf'aria-label="{name}" width="240" height="180".*?data-columns="(\d+)".*?base64,([^"]*)"', page)
    assert found, name
    sprite = np.asarray(Image.open(io.BytesIO(base64.b64decode(found[2]))).convert("RGB")).astype(int)
    cut = [divmod(number, int(found[1])) for number in range(count)]
    return np.stack([sprite[row * 180 :, column * 240 :][:180, :240] for row, column in cut])


def test_it_counts_the_labels_of_each_frame_and_colours_them(tmp_path: Path) -> None:
    labels = np.zeros((3, *SIZE), int)
    labels[0, :, 20:] = 2
    labels[1, :10], labels[1, 20:] = 1, 3
    clip = Thumbnails()
    for _ in labels:
        clip.add(np.full((*SIZE, 1), 100, np.uint8))
    page = write_page(folder_of(tmp_path / "out", labels), clip).read_text()
    assert texts(page) == ["1 object", "2 objects", "0 objects"]
    assert "<h1>my &lt;clip&gt;.mp4</h1>" in page
    assert "3 frames of 30 x 40 pixels, 3 components, model flying-shapes" in page
    assert 'data-delay="40"' in page  # 25 frames a second
    plain, over = pictures(page, "clip", 3), pictures(page, "found objects", 3)
    assert np.abs(plain - 100).max() < 8
    assert np.abs(over[0, 90, 60] - 100).max() < 8  # no object there
    assert np.abs(over[0, 90, 180] - (0.45 * 100 + 0.55 * palette(2)[1])).max() < 12
    assert 'aria-label="tracks"' not in page


def test_a_single_picture_has_nothing_to_step_through(tmp_path: Path) -> None:
    row = {"frame": 0, "object": 1, "x": 2, "y": 2, "width": 3, "height": 3, "area": 9}
    page = write_page(folder_of(tmp_path / "out", np.ones((1, *SIZE), int)), tracks=[row]).read_text()
    large = re.findall(r'aria-label="([^"]*)" width="\d+" height="\d+" class="photo"', page)
    assert large == ["found objects", "boxes", "picture"]
    assert "plays and pauses" not in page


def test_tracks_are_drawn_where_the_object_was(tmp_path: Path) -> None:
    size = {"width": 6, "height": 6, "area": 36}
    rows = [{"frame": t, "object": 1, "x": 5 + 10 * t, "y": 15, **size} for t in range(3)]
    page = write_page(folder_of(tmp_path / "out", np.zeros((4, *SIZE), int)), None, rows).read_text()
    assert texts(page) == ["1 object", "1 object", "1 object", "0 objects"]
    shown = pictures(page, "tracks", 4).sum(axis=-1) > 100
    line = shown[:, 88:93].any(axis=1)  # y = 15 is row 90: six screen pixels for each pixel
    assert line[:, 60].tolist() == [False, True, True, True]  # x = 10 is on the way from 5 to 15
    assert not line[:, 200:].any()
    assert shown[0, 70:76, 30].any()  # the upper side of the box around x = 5, from y = 12
    assert not shown[3, 60:80].any()  # no box where the object is not


def test_of_a_long_clip_some_frames_are_shown_and_held(tmp_path: Path) -> None:
    clip, count = Thumbnails(), 2 * MOST_FRAMES + 1
    for number in range(count):
        clip.add(np.full((*SIZE, 1), number % 256, np.uint8))
        assert len(clip.pictures) <= MOST_FRAMES
    assert list(clip.pictures) == list(range(0, count, 4))
    page = write_page(folder_of(tmp_path / "out", np.zeros((count, *SIZE), int)), clip).read_text()
    assert "One of every 4 frames is shown" in page
    assert f'data-steps="{len(clip.pictures)}"' in page


@pytest.mark.parametrize("tracked", [False, True])
def test_one_image_has_a_page_too(tmp_path: Path, tracked: bool) -> None:
    rows = [{"frame": 0, "object": 70, "x": 5, "y": 5, "width": 2, "height": 2, "area": 4}] if tracked else []
    page = write_page(folder_of(tmp_path / "out", np.ones((1, *SIZE), int)), None, rows).read_text()
    assert texts(page) == ["1 object"]
    assert "1 frame of" in page


def test_warnings_come_first(tmp_path: Path) -> None:
    """Whoever is given the page reads them, as text."""
    said = ["this model does not know this clip <em>", "the model sees nothing in 3 of 9 frames"]
    page = write_page(folder_of(tmp_path / "out", np.zeros((2, *SIZE), int), warnings=said)).read_text()
    places = [page.index(f'<p class="warning">{html.escape(each)}</p>') for each in said]
    assert places == sorted(places)
    assert places[-1] < page.index('class="players"')
    assert "<em>" not in page
    assert 'class="warning"' not in write_page(folder_of(tmp_path / "fine", np.zeros((2, *SIZE), int))).read_text()
