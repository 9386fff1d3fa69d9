"""Data in colour keep to their description, pixel by pixel, and are the same bits whatever batch they are made in."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from neural_em import NeuralEMError
from neural_em.data import DataConfig, generate, load_split
from neural_em.data.colour import ColourScenes
from neural_em.data.shapes import BITMAPS

MNIST = str(Path(__file__).parent / "mnist")
KINDS: dict[str, dict[str, Any]] = {
    "coloured-shapes": {"ground": "mixed", "objects": 2, "most_objects": 4, "frames": 5},
    "tetrominoes": {},
    "sprites": {"ground": "mixed", "frames": 4},
    "objects": {"frames": 4},
    "coloured-digits": {"mnist": MNIST, "ground": "colour", "frames": 3},
}


def scenes(kind: str, **fields: Any) -> ColourScenes:
    made = DataConfig(kind, **{**KINDS[kind], **fields}).scenes("training", 0)  # type: ignore[attr-defined]
    assert isinstance(made, ColourScenes)
    return made


def objects_seen(groups: torch.Tensor, number: int) -> torch.Tensor:
    """Pixels (N,number) of each object in the first frame."""
    return torch.stack([(groups[0] == k + 1).flatten(1).sum(dim=1) for k in range(number)], dim=1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_is_the_same_bits_whatever_batch_it_is_in(kind: str) -> None:
    frames, groups = generate(kind, 12, **KINDS[kind])
    assert frames.shape[2] == 3
    assert 0 <= float(frames.min()) < float(frames.max()) <= 1
    assert torch.equal((frames * 255).round() / 255, frames)  # whole levels
    again, again_groups = generate(kind, 1, start=7, **KINDS[kind])
    assert torch.equal(again[:, 0], frames[:, 7])
    assert torch.equal(again_groups[:, 0], groups[:, 7])
    held = load_split(DataConfig(kind, **KINDS[kind]), "training", 0, size=12)
    assert held.resident
    assert held.background
    batch = held.batch(torch.tensor([7, 3]))
    assert torch.equal(batch.frames, frames[:, [7, 3]])
    assert batch.groups is not None
    assert torch.equal(batch.groups, groups[:, [7, 3]])
    fresh = load_split(DataConfig(kind, fresh=True, **KINDS[kind]), "training", 0, size=4)
    assert torch.equal(fresh.batch(torch.tensor([11])).frames[:, 0], frames[:, 11])
    other, _ = generate(kind, 12, split="test", **KINDS[kind])
    assert not any(torch.equal(other[:, i], frames[:, j]) for i in range(12) for j in range(12))


def test_coloured_shapes_are_the_papers_bitmaps_which_fly_and_bounce() -> None:
    made = scenes("coloured-shapes", frames=40, ground="black", objects=3, most_objects=3, velocities=(-2, 1))
    indices = torch.arange(20)
    known = made.properties(indices)
    frames, groups = generate("coloured-shapes", 20, frames=40, velocities=(-2, 1))
    expected = torch.zeros_like(groups)
    for n in range(20):
        for k in range(3):
            bitmap = BITMAPS[int(known["shape"][0, n, k])]
            height, width = bitmap.shape
            corners = known["position"][:, n, k] - torch.tensor([height, width]) / 2
            assert torch.equal(corners, corners.round())
            steps = corners.diff(dim=0)
            for axis, room in enumerate((28 - height, 28 - width)):
                path = corners[:, axis]
                away = (path[:-1] > 1) & (path[:-1] < room - 1)  # where no wall is near, the velocity is one of two
                assert set(steps[away, axis].abs().tolist()) <= {1.0, 2.0}
                assert len(set(steps[away, axis].abs().tolist())) <= 1
                assert float(path.min()) >= 0
                assert float(path.max()) <= room
            for t, (row, column) in enumerate(corners.int().tolist()):
                place = expected[t, n, row : row + height, column : column + width]
                place[bitmap == 1] = k + 1  # later ones hide earlier ones
    assert torch.equal(groups, expected)
    colour = torch.cat([torch.zeros(20, 1, 3), known["colour"][0]], dim=1)  # black behind
    for n in range(20):
        assert torch.equal(frames[:, n], colour[n][groups[:, n].long()].permute(0, 3, 1, 2))


@pytest.mark.parametrize("ground", ["black", "grey", "colour", "gradient", "texture"])
def test_colours_differ_from_every_colour_of_the_ground(ground: str) -> None:
    frames, groups = generate("coloured-shapes", 200, frames=1, ground=ground)
    colour = scenes("coloured-shapes", ground=ground, objects=3, most_objects=3, frames=1).properties(torch.arange(200))
    for n in range(200):
        behind = frames[0, n][:, groups[0, n] == 0].T
        if ground in ("black", "grey", "colour"):
            assert len(behind.unique(dim=0)) == 1
        else:
            assert len(behind.unique(dim=0)) > 1
        if ground == "black":
            assert float(behind.max()) == 0
        if ground == "grey":
            assert len(behind[0].unique()) == 1
        apart = (colour["colour"][0, n][:, None] - behind).square().sum(dim=2)
        assert float(apart.min()) >= (
            0.25 if ground in ("black", "grey", "colour") else 0.24
        )  # compared at some places
    assert 0.2 < float(colour["colour"].mean()) < 0.8


def test_at_least_the_wanted_share_of_each_object_is_seen() -> None:
    """Each object alone, in a scene without the others, has its whole area."""
    for share in (0.25, 0.75, 1.0):
        fields: dict[str, Any] = {"objects": 4, "most_objects": 4, "frames": 1, "visible": share}
        made = scenes("sprites", **fields)
        drawn = made.drawn(torch.arange(60))
        seen = objects_seen(made.paint(drawn).groups.transpose(0, 1), 4)
        for k in range(4):
            alone = drawn.picture * (torch.arange(4) == k)
            area = objects_seen(made.paint(drawn._replace(picture=alone)).groups.transpose(0, 1), 4)[:, k]
            assert bool((area > 0).all())
            assert bool((seen[:, k] >= share * area).all())
            assert share == 1 or k == 3 or bool((seen[:, k] < area).any())  # but they do hide each other


def test_every_number_of_objects_is_equally_likely() -> None:
    """Of 1,200 sequences 300 each, with a deviation of 15; scenes that are drawn again keep their number."""
    made = scenes("sprites", objects=2, most_objects=5, frames=1, visible=0.6)
    numbers = (made.drawn(torch.arange(1200)).picture > 0).sum(dim=1)
    counts = torch.bincount(numbers, minlength=6)[2:]
    assert int(counts.sum()) == 1200
    assert bool(((counts - 300).abs() < 60).all())


def test_tetrominoes_are_four_tiles_in_one_of_six_colours_and_do_not_overlap() -> None:
    frames, groups = generate("tetrominoes", 300)
    assert frames.shape == (1, 300, 3, 35, 35)
    six = {(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1)}
    ways = set()
    for n in range(300):
        assert float(frames[0, n][:, groups[0, n] == 0].max()) == 0
        colours = set()
        for k in (1, 2, 3):
            where = (groups[0, n] == k).nonzero()
            assert len(where) == 100
            colours |= {tuple(int(level) for level in pixel) for pixel in frames[0, n][:, groups[0, n] == k].T.tolist()}
            corner = where.amin(dim=0)
            tiles = {tuple(tile) for tile in ((where - corner) // 5).tolist()}
            assert len(tiles) == 4
            ways.add(frozenset(tiles))
        assert len(colours) == 3
        assert colours <= six
    assert len(ways) == 19


def test_sprites_move_straight_at_any_speed_and_bounce() -> None:
    made = scenes("sprites", frames=30, speed=3.0, objects=2, most_objects=2)
    known = made.properties(torch.arange(100))
    position, radius = known["position"], known["size"] / 2  # (T,N,K,2)
    edge = radius[..., None] - 1 / 128  # half sizes are rounded down
    assert bool((position >= edge).all() & (position <= 64 - edge).all())
    moved = position.diff(dim=0)
    speed = moved.square().sum(dim=-1).sqrt()
    assert float(speed.max()) <= 3.02
    assert 0.9 < float(speed[0].mean()) < 2.1  # uniform from 0 to 3
    fractions = moved[0].frac().abs().flatten()
    assert float(((fractions > 0.05) & (fractions < 0.95)).float().mean()) > 0.6
    inside = ((position[:-1] > edge[:-1] + 3) & (position[:-1] < 61 - edge[:-1])).all(dim=-1)
    turned = moved[1:] - moved[:-1]
    assert float(turned[inside[:-1] & inside[1:]].abs().max()) < 0.02  # away from the walls: straight


def test_varied_motion_stands_curves_and_speeds_up() -> None:
    known = scenes("objects", frames=12, objects=4, most_objects=4).properties(torch.arange(200))
    moved = known["position"].diff(dim=0)  # (T,N,K,2)
    edge = known["size"][:-1, ..., None] / 2 + 4
    free = ((known["position"][:-1] > edge) & (known["position"][:-1] < 64 - edge)).all(dim=-1).all(dim=0)
    speed = moved.square().sum(dim=-1).sqrt()[:, free]
    still = (speed == 0).all(dim=0)
    change = (speed[-1] - speed[0]).abs() > 0.3
    straight = moved[1:, free] * moved[:-1, free].flip(-1)
    bends = (straight[..., 0] - straight[..., 1]).abs().amax(dim=0) > 0.2
    assert int(free.sum()) > 150
    for sort in (still, change, bends):
        assert 0.05 < float(sort.float().mean()) < 0.5


def test_objects_have_surfaces_grey_scenes_noise_and_every_family() -> None:
    known = scenes("objects").properties(torch.arange(300))
    assert set(known["shape"].unique().tolist()) >= {0, 3, 4, 5, 6, 7}
    assert 4 < float(known["size"].min()) < 7
    assert 30 < float(known["size"].max()) <= 32
    grey = (known["colour"][0].std(dim=-1) == 0).all(dim=1)
    assert 0.15 < float(grey.float().mean()) < 0.35
    clean, groups = generate("objects", 40, frames=2, noise=0.0, ground="colour", grey=0.0)
    noisy, same = generate("objects", 40, frames=2, noise=0.1, ground="colour", grey=0.0)
    assert torch.equal(groups, same)
    added = noisy - clean
    middle = added[(clean > 0.4) & (clean < 0.6)]
    assert abs(float(middle.mean())) < 0.005
    assert 0.04 < float(middle.std()) < 0.075  # uniform from 0 to 0.1: root of the mean square 0.058
    assert not torch.equal(added[0], added[1])
    levels = [len(clean[0, n][:, groups[0, n] == 1].T.unique(dim=0)) for n in range(40)]
    assert 3 < sum(each == 1 for each in levels) < 30  # flat; the others are shaded or textured


def test_a_family_can_be_kept_for_the_test() -> None:
    shapes = scenes("objects", shapes=("star", "letter")).properties(torch.arange(100))["shape"]
    assert set(shapes[0, :, 0].tolist()) == {4, 5}


def test_digits_are_of_one_colour_each_where_their_ink_is() -> None:
    frames, groups = generate("coloured-digits", 30, mnist=MNIST, frames=3, visible=1.0)
    for n in range(30):
        for k in (1, 2):
            where = groups[:, n] == k
            assert len(frames[:, n].movedim(1, 0)[:, where].T.unique(dim=0)) == 1
            assert 8 < int(where[0].sum()) < 120  # of 14 x 14


@pytest.mark.parametrize("kind", KINDS)
def test_properties_are_those_of_the_groups(kind: str) -> None:
    """The mean of an object's pixels is near its position where nothing hides it; its colour is the frame's."""
    fields = {**KINDS[kind], "ground": "black", "objects": 1, "most_objects": 1}
    if kind in ("sprites", "objects"):
        fields |= {"shapes": ("ellipse",), "surface": "flat", "noise": 0}
    data = load_split(DataConfig(kind, **fields), "validation", 1, size=20)
    frames, groups = data.batch(torch.arange(20))
    assert groups is not None
    known = data.properties(torch.arange(20))
    assert known["position"].shape == (len(frames), 20, 1, 2)
    for n in range(20):
        where = (groups[-1, n] == 1).nonzero() + 0.5
        middle = (where.amin(dim=0) + where.amax(dim=0)) / 2
        assert float((middle - known["position"][-1, n, 0]).abs().max()) <= 1
        pixel = frames[-1, n][:, groups[-1, n] == 1][:, 0]
        torch.testing.assert_close(pixel, known["colour"][-1, n, 0])


def test_older_kinds_know_their_objects_too() -> None:
    for kind in ("flying-shapes", "bouncing-balls"):
        data = load_split(DataConfig(kind, objects=1, frames=4), "training", 0, size=10)
        known, groups = data.properties(torch.arange(10)), data.batch(torch.arange(10)).groups
        assert groups is not None
        for n in range(10):
            where = groups[3, n].nonzero() + 0.5
            middle = (where.amin(dim=0) + where.amax(dim=0)) / 2
            assert float((middle - known["position"][3, n, 0]).abs().max()) <= 1
    assert load_split(DataConfig("flying-shapes", overlap="hide"), "training", 0, size=1).background
    assert not load_split(DataConfig("flying-shapes"), "training", 0, size=1).background


SUMS = {
    "coloured-shapes": "f127903c4814772a",
    "tetrominoes": "99964b93005b1acb",
    "sprites": "c56a46ebe14790cf",
    "objects": "a77c5558aff744f8",
    "coloured-digits": "a8004d280e1f502c",
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_on_every_machine(kind: str) -> None:
    """Sums of what was made when the kind was new: whoever trained on it can have it again."""
    frames, groups = generate(kind, 16, seed=5, split="test", **KINDS[kind])
    levels = (frames * 255).round().byte().numpy().tobytes()
    assert hashlib.sha256(levels + groups.numpy().tobytes()).hexdigest().startswith(SUMS[kind])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_on_a_gpu_and_inside_a_cuda_graph(kind: str) -> None:
    frames, groups = generate(kind, 50, seed=2, split="test", **KINDS[kind])
    data = load_split(DataConfig(kind, **KINDS[kind]), "test", 2, "cuda", size=50)
    indices = torch.arange(50, device="cuda")
    data.batch(indices)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch = data.batch(indices)
    indices.copy_(indices.flip(0))
    graph.replay()
    assert torch.equal(batch.frames.cpu(), frames.flip(1))
    assert batch.groups is not None
    assert torch.equal(batch.groups.cpu(), groups.flip(1))


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "ground": ("sprites", {"ground": "sky"}, "ground"),
    "family": ("objects", {"shapes": ["cube"]}, "shapes"),
    "no family": ("objects", {"shapes": []}, "shapes"),
    "a family twice": ("objects", {"shapes": ["ring", "ring"]}, "shapes"),
    "sizes": ("sprites", {"smallest": 0.5, "largest": 0.4}, "largest"),
    "too small": ("sprites", {"smallest": 0.01}, "smallest"),
    "not a number": ("sprites", {"speed": float("nan")}, "speed"),
    "most objects": ("coloured-shapes", {"objects": 3, "most_objects": 2}, "most_objects"),
    "far too many": ("coloured-shapes", {"objects": 1, "most_objects": 100}, "most_objects"),
    "visible": ("coloured-shapes", {"visible": 1.5}, "visible"),
    "frame": ("tetrominoes", {"height": 12}, "height x width"),
    "tetrominoes on colour": ("tetrominoes", {"ground": "colour"}, "ground"),
    "another kind's": ("tetrominoes", {"shapes": ["ring"]}, "shapes"),
    "noise": ("objects", {"noise": -0.1}, "noise"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(case: str) -> None:
    kind, fields, name = REFUSED[case]
    with pytest.raises(NeuralEMError, match=name) as caught:
        DataConfig(kind, **fields)
    assert "\n" not in str(caught.value)


def test_objects_without_room_to_be_seen_are_refused() -> None:
    with pytest.raises(NeuralEMError, match="few enough that 1 of each is seen in 28 x 28 pixels"):
        generate("coloured-shapes", 1, objects=8, visible=1.0, frames=1)
