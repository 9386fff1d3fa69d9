"""Figures: the pixels of a known assignment read back from the file, and as many panels as there should be."""

import re

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from neural_em.errors import NeuralEMError
from neural_em.report.colours import palette
from neural_em.report.figures import pixel_figure, save_figure, sequence_figure, static_figure


def read(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def occurrences(picture, panel):
    """How often the panel, pixel for pixel, lies in the picture (a scan by rows, then by columns)."""
    high, wide, _ = panel.shape
    windows = np.lib.stride_tricks.sliding_window_view(picture, (1, wide, 3))[:, :, 0, 0]  # rows that could start it
    count = 0
    for y, x in np.argwhere((windows == panel[0]).all(axis=(-2, -1))):
        count += np.array_equal(picture[y : y + high, x : x + wide], panel)
    return count


def enlarged(small, factor):
    return np.kron(small, np.ones((factor, factor, 1), np.uint8))


def test_sequence_figure_shows_the_exact_colours_of_a_hard_assignment(squares, tmp_path):
    sequence = squares(steps=3, components=3)
    save_figure(sequence_figure(sequence, magnification=5), tmp_path / "sequence.png")
    picture = read(tmp_path / "sequence.png")
    colours = palette(3)
    labels = np.argmax(sequence.gamma, axis=1)
    for t in range(3):
        assert occurrences(picture, enlarged(colours[labels[t]], 5)) == 1
        assert occurrences(picture, enlarged(np.uint8(255) * (labels[t] > 0)[..., None].repeat(3, -1), 5)) == 1
        for k in (1, 2):
            prediction = (labels[t] == k)[..., None] * colours[k]
            assert occurrences(picture, enlarged(prediction.astype(np.uint8), 5)) == 1


def test_sequence_figure_has_a_panel_a_step_for_assignment_components_and_input(squares, tmp_path):
    sequence = squares(steps=4, components=3)
    save_figure(sequence_figure(sequence, steps=[1, 2, 4], magnification=4), tmp_path / "sequence.png")
    picture = read(tmp_path / "sequence.png")
    regions = ndimage.find_objects(ndimage.label((picture != 255).any(axis=-1))[0])
    side = (12 * 4 + 8, 15 * 4 + 8)  # with the frame around it
    sizes = [(rows.stop - rows.start, columns.stop - columns.start) for rows, columns in regions]
    # the input is white in places, but never on its frame
    assert sizes.count(side) == 3 * (1 + 3 + 1)


def test_rollout_figure_sets_the_steps_without_input_apart(rolled_out, tmp_path):
    figure = sequence_figure(rolled_out, steps=[2, 3, 4, 5], magnification=4, kind="rollout")
    save_figure(figure, tmp_path / "rollout.png")
    picture = read(tmp_path / "rollout.png")
    names = [text.get_text() for text in figure.texts]
    assert names == ["2", "3", "+1", "+2", "input", "what happened", "prediction", "assignment", "step"]
    for strip in (*rolled_out.frames_rgb().values(), rolled_out.assignment_rgb()):
        assert [occurrences(picture, enlarged(strip[t], 4)) for t in range(5)] == [0, 1, 1, 1, 1]
    regions = ndimage.find_objects(ndimage.label((picture != 255).any(axis=-1))[0])
    lefts = sorted({c.start for r, c in regions if (r.stop - r.start, c.stop - c.start) == (12 * 4 + 8, 15 * 4 + 8)})
    gaps = np.diff(lefts) - (15 * 4 + 8)
    assert gaps[0] == gaps[2] < gaps[1]


def test_colour_sequences_are_drawn_in_their_own_colours(squares, tmp_path):
    sequence = squares(steps=2, components=2, channels=3)
    save_figure(sequence_figure(sequence, magnification=3), tmp_path / "colour.png")
    picture = read(tmp_path / "colour.png")
    expected = enlarged((np.moveaxis(sequence.psi[1, 1], 0, -1) * 255).astype(np.uint8), 3)
    assert occurrences(picture, expected) == 2  # the prediction and the input are the same picture here


def test_static_figure_shows_input_every_step_and_the_truth(squares, tmp_path):
    sequences = [squares(steps=3, components=3), squares(steps=3, components=3, soft=0.3)]
    figure = static_figure(sequences, ["first", "second"], magnification=4)
    save_figure(figure, tmp_path / "static.png")
    picture = read(tmp_path / "static.png")
    regions = ndimage.find_objects(ndimage.label((picture != 255).any(axis=-1))[0])
    side = (12 * 4 + 2, 15 * 4 + 2)
    sizes = [(rows.stop - rows.start, columns.stop - columns.start) for rows, columns in regions]
    assert sizes.count(side) == 2 * (1 + 3 + 1)
    for t in range(3):
        assert occurrences(picture, enlarged(palette(3)[np.argmax(sequences[0].gamma[t], axis=0)], 4)) == 1
    texts = [text.get_text() for text in figure.texts]
    assert [text for text in texts if text] == ["input", "step 1", "2", "3", "truth", "first", "second"]


def test_no_text_leaves_the_figure(squares):
    figure = sequence_figure(squares(steps=12, components=12, width=40))
    figure.canvas.draw()
    whole = figure.bbox
    for text in figure.texts:
        box = text.get_window_extent()
        assert box.x0 >= whole.x0
        assert box.x1 <= whole.x1
        assert box.y0 >= whole.y0
        assert box.y1 <= whole.y1


def test_one_pixel_of_the_picture_is_one_pixel_of_the_file_at_any_size(tmp_path):
    rng = np.random.default_rng(5)
    for size in [(29, 58), (57, 115), (113, 201), (1, 1), (337, 7)]:
        picture = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        save_figure(pixel_figure(picture), tmp_path / "exact.png")
        assert np.array_equal(read(tmp_path / "exact.png"), picture)


def test_pdf_holds_the_picture_at_full_size_and_is_the_same_each_time(squares, tmp_path):
    sequence = squares(steps=2, components=3)
    for name in ("a.pdf", "b.pdf"):
        save_figure(sequence_figure(sequence, magnification=5), tmp_path / name)
    data = (tmp_path / "a.pdf").read_bytes()
    assert data == (tmp_path / "b.pdf").read_bytes()
    assert data.startswith(b"%PDF")
    (match,) = re.finditer(rb"/Subtype /Image.*?stream\r?\n", data, re.S)
    header = data[data.rindex(b"obj", 0, match.end()) : match.end()]
    width, height = (int(re.search(rb"/%s (\d+)" % key, header)[1]) for key in (b"Width", b"Height"))
    assert b"/Interpolate true" not in header
    assert (width, height) == tuple(
        round(side * 200) for side in sequence_figure(sequence, magnification=5).get_size_inches()
    )


def test_bad_calls_are_refused_and_leave_nothing_behind(squares, tmp_path):
    sequence = squares()
    with pytest.raises(NeuralEMError, match=r"format of a figure: expected one of png, pdf, got 'jpeg'"):
        save_figure(sequence_figure(sequence), tmp_path / "x.jpeg")
    with pytest.raises(NeuralEMError, match=r"steps: expected numbers from 1 to 4, got \[5\]"):
        sequence_figure(sequence, steps=[5])
    with pytest.raises(NeuralEMError, match=r"steps: expected numbers from 1 to 4, got \[0\]"):
        static_figure([sequence], ["one"], steps=[0])
    (tmp_path / "file").write_text("")
    with pytest.raises(NeuralEMError, match="cannot be written"):
        save_figure(sequence_figure(sequence), tmp_path / "file" / "x.png")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
