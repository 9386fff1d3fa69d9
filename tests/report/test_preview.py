"""The preview shows each frame and, under it, its groups in the palette's colours."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from neural_em import NeuralEMError
from neural_em.report.colours import palette
from neural_em.report.panels import draw_preview, write_preview

FRAMES = np.zeros((2, 1, 1, 4, 5), np.float32)
FRAMES[0, 0, 0, 1, 1:4] = 1
FRAMES[1, 0, 0, 2, 2] = 0.5
GROUPS = np.zeros((2, 1, 4, 5), np.uint8)
GROUPS[0, 0, 1, 1], GROUPS[0, 0, 1, 2] = 1, 2  # the third lit pixel belongs to both: not scored


def test_pixels_are_where_and_what_they_should_be() -> None:
    picture = draw_preview(FRAMES, GROUPS, zoom=1)
    assert picture.shape == (2 + 6 + 6, 2 + 7 + 7, 3)  # two rows of 4 + 2 and two columns of 5 + 2, and the edge
    assert picture[2 + 1, 2 + 1].tolist() == [255] * 3
    assert picture[2 + 2, 9 + 2].tolist() == [128] * 3
    assert np.array_equal(picture[8 + 1, 2 + 1], palette(2)[0])
    assert np.array_equal(picture[8 + 1, 2 + 2], palette(2)[1])
    assert picture[8 + 1, 2 + 3].tolist() == [255] * 3
    assert picture[8, 2].tolist() == [0, 0, 0]


def test_zoom_repeats_pixels() -> None:
    assert np.array_equal(draw_preview(FRAMES, GROUPS, 3)[::3, ::3], draw_preview(FRAMES, GROUPS, 1))


def test_without_groups_there_is_one_row() -> None:
    assert draw_preview(FRAMES, None, 1).shape == (8, 16, 3)


def test_colours_and_long_sequences() -> None:
    picture = draw_preview(np.zeros((100, 2, 3, 4, 5), np.float32), None, 1)
    assert picture.shape == (2 + 2 * 6, 2 + 8 * 7, 3)


def test_more_groups_than_colours() -> None:
    groups = np.arange(1, 121, dtype=np.uint8).reshape(1, 1, 10, 12)
    picture = draw_preview(np.ones((1, 1, 1, 10, 12), np.float32), groups, 1)
    assert np.array_equal(picture[14, 2], palette(1)[0])
    assert np.array_equal(picture[14 + 5, 2 + 4], palette(1)[0])  # the 65th: the colours begin again


def test_the_file(tmp_path: Path) -> None:
    write_preview(tmp_path / "a.png", FRAMES, GROUPS)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "a.png")), draw_preview(FRAMES, GROUPS))


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NeuralEMError, match="channels"):
        draw_preview(np.zeros((1, 1, 2, 4, 4)), None)
    with pytest.raises(NeuralEMError, match=r"a\.xyz"):
        write_preview(tmp_path / "a.xyz", FRAMES, GROUPS)
    assert list(tmp_path.iterdir()) == []
