"""The shapes' generators against the facts: bitmaps, places, velocities, walls, overlaps, splits."""

import hashlib
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from neural_em import NeuralEMError
from neural_em.data import DataConfig, flying_shapes, static_shapes

# by hand: (row, first column, last column) of every run of lit pixels
SQUARE_RUNS = [(0, 0, 6), (1, 0, 6), *((r, c, c + 1) for r in (2, 3, 4) for c in (0, 5)), (5, 0, 6), (6, 0, 6)]
TRIANGLE_RUNS = [
    (0, 5, 6), (1, 4, 7), (2, 3, 8), (3, 2, 4), (3, 7, 9), (4, 1, 3), (4, 8, 10), (5, 0, 11), (6, 0, 11),
]  # fmt: skip

HASHES = {  # sha256 of frames and groups of the first 64 sequences, as bytes, made on a CPU
    ("static", "training"): "8f9997ad98427b804e3389cdbc8353fec490d508c41d16166e07a6479f4b9da0",
    ("static", "validation"): "6f4ca72bd0e0b1785adac95d30553203af46fb91cc80231f784b66f25c1e90c5",
    ("static", "test"): "284fe7be7492cbb39586bdf4f979107d33d096ea89f8075fa5133f755c0feb2f",
    ("flying", "training"): "62d4ec30bdb84211a6e429fba3ed4b35976dd7dd5144a463f789d02d51b59f37",
    ("flying", "validation"): "01fc1819b21a5db004810309acb82878f1aee6d39594fec89353a6f60299ec4d",
    ("flying", "test"): "336cceeb1f020df7d33c2e609bb89e060d40f59c67a08b0542054f7ce959e46f",
}
MAKERS = {"static": static_shapes, "flying": flying_shapes}


def picture(runs: list[tuple[int, int, int]], width: int) -> np.ndarray:
    image = np.zeros((7, width), np.uint8)
    for row, first, last in runs:
        image[row, first : last + 1] = 1
    return image


SHAPES = {
    "square": picture(SQUARE_RUNS, 7),
    "triangle": picture(TRIANGLE_RUNS, 12),
    "upside-down triangle": picture(TRIANGLE_RUNS, 12)[::-1],
}


def find(image: np.ndarray) -> tuple[str, int, int]:
    """Name and corner of the only shape in an image."""
    rows, columns = np.nonzero(image)
    top, left = int(rows.min()), int(columns.min())
    cut = image[top : rows.max() + 1, left : columns.max() + 1]
    names = [name for name, shape in SHAPES.items() if np.array_equal(cut, shape)]
    assert len(names) == 1, cut
    return names[0], top, left


def sha256(frames: torch.Tensor, groups: torch.Tensor) -> str:
    data = frames.to(torch.uint8).cpu().numpy().tobytes() + groups.cpu().numpy().tobytes()
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def single() -> list[list[tuple[str, int, int]]]:
    """Where the only shape of each of 6,000 sequences is in each of four frames."""
    frames, _ = flying_shapes(6000, objects=1, frames=4, dtype=torch.uint8)
    images = frames[:, :, 0].numpy()
    return [[find(images[t, n]) for t in range(4)] for n in range(images.shape[1])]


def test_shapes_and_layout() -> None:
    frames, groups = flying_shapes(5, objects=4, frames=7, height=30, width=33)
    assert frames.shape == (7, 5, 1, 30, 33)
    assert frames.dtype == torch.float32
    assert groups.shape == (7, 5, 30, 33)
    assert groups.dtype == torch.uint8
    assert set(frames.unique().tolist()) == {0.0, 1.0}
    assert set(groups.unique().tolist()) == {0, 1, 2, 3, 4}


def test_every_lone_shape_is_one_of_the_three_bitmaps(single: list[list[tuple[str, int, int]]]) -> None:
    assert {path[0][0] for path in single} == set(SHAPES)
    assert all(len({name for name, _, _ in path}) == 1 for path in single)


def test_shapes_are_equally_likely(single: list[list[tuple[str, int, int]]]) -> None:
    counts = [sum(path[0][0] == name for path in single) for name in SHAPES]
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("name", SHAPES)
def test_corners_are_uniform_over_all_places_that_fit(name: str, single: list[list[tuple[str, int, int]]]) -> None:
    height, width = SHAPES[name].shape
    counts = np.zeros((28 - height + 1, 28 - width + 1))
    for path in single:
        if path[0][0] == name:
            counts[path[0][1:]] += 1
    assert stats.chisquare(counts.ravel()).pvalue > 1e-3
    assert counts[0].sum() > 0
    assert counts[-1].sum() > 0
    assert counts[:, 0].sum() > 0
    assert counts[:, -1].sum() > 0


def test_the_nine_velocities_are_equally_likely(single: list[list[tuple[str, int, int]]]) -> None:
    counts = np.zeros((3, 3))
    for path in single:
        height, width = SHAPES[path[0][0]].shape
        if 0 < path[0][1] < 28 - height and 0 < path[0][2] < 28 - width:  # off the walls the first step tells
            counts[path[1][1] - path[0][1] + 1, path[1][2] - path[0][2] + 1] += 1
    assert counts.sum() > 4000
    assert stats.chisquare(counts.ravel()).pvalue > 1e-3


def test_shapes_move_at_constant_speed_and_reflect_without_pausing() -> None:
    frames, _ = flying_shapes(150, objects=1, frames=60, dtype=torch.uint8)
    turns = 0
    for sequence in frames[:, :, 0].numpy().swapaxes(0, 1):
        path = [find(image) for image in sequence]
        height, width = SHAPES[path[0][0]].shape
        for axis, room in ((1, 28 - height), (2, 28 - width)):
            places = [step[axis] for step in path]
            steps = np.diff(places)
            assert len(set(np.abs(steps))) == 1
            for t in np.nonzero(steps[1:] != steps[:-1])[0]:
                assert places[t + 1] in (0, room)
                turns += 1
    assert turns > 100


def test_velocities_can_be_chosen() -> None:
    frames, _ = flying_shapes(100, objects=1, frames=2, velocities=(2, -3), dtype=torch.uint8)
    steps = set()
    for before, after in frames[:, :, 0].numpy().swapaxes(0, 1):
        (_, top, left), (_, below, right) = find(before), find(after)
        if 3 <= top <= 18 and 3 <= left <= 13:  # three pixels or more from every wall
            steps.add((below - top, right - left))
    assert steps == {(2, 2), (2, -3), (-3, 2), (-3, -3)}


def bounce(place: int, velocity: int, room: int) -> tuple[int, int]:
    """One frame further, for velocities of one pixel."""
    if not 0 <= place + velocity <= room:
        velocity = -velocity
    return place + velocity, velocity


def test_frames_are_unions_and_overlaps_are_not_scored() -> None:
    """Moves and paints five shapes by hand from where they start, counting how many cover each pixel."""
    scenes = DataConfig("flying-shapes", objects=5).scenes("training", 3)
    sprite, corner, velocity, _ = scenes.drawn(torch.arange(16))
    (_, painted), *_ = scenes.sequences(torch.arange(16))
    shapes = list(SHAPES.values())
    shared = 0
    for n in range(16):
        things = [[shapes[int(sprite[n, k])], corner[n, k].tolist(), velocity[n, k].tolist()] for k in range(5)]
        for t in range(21):
            cover, owner = np.zeros((28, 28), int), np.zeros((28, 28), int)
            for k, (shape, place, speed) in enumerate(things, 1):
                rows, columns = np.nonzero(shape)
                cover[rows + place[0], columns + place[1]] += 1
                owner[rows + place[0], columns + place[1]] = k
                for axis in (0, 1):
                    place[axis], speed[axis] = bounce(place[axis], speed[axis], 28 - shape.shape[axis])
            assert np.array_equal(painted.frames[n, t, 0].numpy(), cover > 0)
            assert np.array_equal(painted.groups[n, t].numpy(), np.where(cover == 1, owner, 0))
            assert np.array_equal(painted.overlaps[n, t].numpy(), cover > 1)
            shared += int((cover > 1).sum())
    assert shared > 1000


def test_static_shapes_are_the_first_frames_of_flying_shapes() -> None:
    static, flying = static_shapes(30, seed=2), flying_shapes(30, seed=2, frames=3)
    assert torch.equal(static[0][0], flying[0][0])
    assert torch.equal(static[1][0], flying[1][0])
    assert static[0].shape == (1, 30, 1, 28, 28)


@pytest.mark.parametrize("make", [static_shapes, flying_shapes])
def test_a_sequence_does_not_depend_on_the_chunk_it_is_made_in(make: object) -> None:
    whole = make(700, seed=9)  # type: ignore[operator]
    for start, num in ((0, 1), (5, 13), (99, 300), (699, 1)):
        part = make(num, seed=9, start=start)  # type: ignore[operator]
        assert torch.equal(part[0], whole[0][:, start : start + num])
        assert torch.equal(part[1], whole[1][:, start : start + num])


def test_seeds_and_splits_give_other_sequences() -> None:
    first = static_shapes(50)[0]
    assert not torch.equal(first, static_shapes(50, seed=1)[0])
    assert not torch.equal(first, static_shapes(50, split="test")[0])


def test_no_image_is_in_two_splits() -> None:
    """By chance alone, sets of this size would share several of the two-shape images."""
    rows = {}
    for seed, split in enumerate(("training", "validation", "test")):
        images = static_shapes(6000, objects=2, split=split, seed=seed, dtype=torch.uint8)[0]  # type: ignore[arg-type]
        rows[split] = {row.tobytes() for row in images.flatten(2)[0].numpy()}
    assert not rows["training"] & rows["validation"]
    assert not rows["training"] & rows["test"]
    assert not rows["validation"] & rows["test"]
    assert len(rows["training"] & {row.tobytes() for row in _training_again()}) > 0  # the sets are large enough to meet


def _training_again() -> np.ndarray:
    return static_shapes(6000, objects=2, seed=7, dtype=torch.uint8)[0].flatten(2)[0].numpy()


@pytest.mark.parametrize("split", ["training", "validation", "test"])
def test_three_shapes_are_uniform_in_every_split(split: str) -> None:
    scenes = DataConfig("static-shapes").scenes(split, 0)
    sprite, corner, velocity, _ = scenes.drawn(torch.arange(4000))
    assert stats.chisquare(np.bincount(sprite.flatten().numpy())).pvalue > 1e-3
    squares = corner[sprite == 0].numpy()
    assert stats.chisquare(np.bincount(squares[:, 0] * 22 + squares[:, 1], minlength=484)).pvalue > 1e-3
    nine = (velocity[..., 0] + 1) * 3 + velocity[..., 1] + 1
    assert stats.chisquare(np.bincount(nine.flatten().numpy(), minlength=9)).pvalue > 1e-3


@pytest.mark.parametrize(("kind", "split"), HASHES)
def test_sequences_are_those_committed(kind: str, split: str) -> None:
    assert sha256(*MAKERS[kind](64, split=split)) == HASHES[kind, split]  # type: ignore[operator]


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "split"), HASHES)
def test_a_gpu_makes_the_committed_sequences(kind: str, split: str) -> None:
    assert sha256(*MAKERS[kind](64, split=split, device="cuda")) == HASHES[kind, split]  # type: ignore[operator]


@pytest.mark.gpu
def test_a_gpu_makes_what_a_cpu_makes() -> None:
    for objects, height, width in ((1, 28, 28), (5, 28, 28), (9, 40, 61)):
        options = {"objects": objects, "height": height, "width": width, "seed": 3, "start": 10**9}
        for ours, theirs in zip(
            flying_shapes(300, **options, device="cuda"), flying_shapes(300, **options), strict=True
        ):  # type: ignore[arg-type]
            assert torch.equal(ours.cpu(), theirs)


def test_no_sequences() -> None:
    frames, groups = flying_shapes(0)
    assert frames.shape == (21, 0, 1, 28, 28)
    assert groups.shape == (21, 0, 28, 28)


def test_large_frames() -> None:
    frames, _ = flying_shapes(2, objects=127, frames=2, height=500, width=700, dtype=torch.uint8)
    assert 1000 < int(frames[0, 0].sum()) <= 127 * 48


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"objects": 0}, ["objects", "1"]),
        ({"objects": 20}, ["objects", "19", "20"]),
        ({"height": 6}, ["height", "7 x 12", "6 x 28"]),
        ({"width": 11}, ["width", "28 x 11"]),
        ({"frames": 0}, ["frames"]),
        ({"split": "train"}, ["split", "training"]),
        ({"velocities": ()}, ["velocities"]),
        ({"num": -1}, ["num"]),
        ({"start": -1}, ["start"]),
    ],
)
def test_what_cannot_be_made_is_refused(options: dict[str, object], words: list[str]) -> None:
    with pytest.raises(NeuralEMError) as error:
        flying_shapes(**{"num": 400, **options})  # type: ignore[arg-type]
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


MEMORY = """
    import re, torch
    from neural_em.data import flying_shapes
    peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
    torch.set_num_threads(1)
    flying_shapes(32)
    before = peak()
    frames, groups = flying_shapes({num}, dtype=torch.uint8)
    print((peak() - before) / (frames.nbytes + groups.nbytes))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak of a process")
def test_it_needs_less_than_twice_the_memory_of_its_result() -> None:
    code = textwrap.dedent(MEMORY).format(num=3000)  # a result of 99 MB
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < float(done.stdout) < 2


def test_a_later_shape_hides_an_earlier_one() -> None:
    """Every lit pixel belongs to the last shape that covers it; the frames are the same union."""
    kinds = ("maximum", "hide")
    union, hidden = (DataConfig("flying-shapes", objects=5, overlap=each).scenes("test", 2) for each in kinds)
    rows = torch.arange(40)
    (_, one), *_ = union.sequences(rows)
    (_, other), *_ = hidden.sequences(rows)
    assert torch.equal(one.frames, other.frames)
    assert torch.equal(one.overlaps, other.overlaps)
    assert bool(other.overlaps.any())
    assert torch.equal(other.groups > 0, other.frames[:, :, 0] > 0)
    alone = one.groups > 0
    assert torch.equal(one.groups[alone], other.groups[alone])
    sprite, corner, *_ = hidden.drawn(rows)
    shapes = list(SHAPES.values())
    for n in range(10):
        top = np.zeros((28, 28), int)
        for k in range(5):
            y, x = corner[n, k].tolist()
            shape = np.array(shapes[int(sprite[n, k])])
            top[y : y + shape.shape[0], x : x + shape.shape[1]][shape > 0] = k + 1
        assert np.array_equal(other.groups[n, 0].numpy(), top)
