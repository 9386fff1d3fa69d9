"""Objects in front of a known ground: drawn discs, whose truth is known, and tiny labels, worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import adjusted_mutual_info_score

from neural_em.segment import SegmentConfig, segment
from neural_em.segment.lobes import connected
from neural_em.segment.objects import Follower, chosen
from neural_em.segment.scene import Scene, filled, told
from tests.known import known_model
from tests.segment.scenes import texture

SIDE, RADIUS = 64, 7
Place = tuple[float, float]
Array = NDArray[Any]


def discs(places: list[Place]) -> Array:
    """Masks (H,W) of discs around places (row, column); the last is in front."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    masks = np.zeros((SIDE, SIDE), np.uint8)
    for number, (row, column) in enumerate(places, start=1):
        masks[(rows - row) ** 2 + (columns - column) ** 2 < RADIUS**2] = number
    return masks


def followed(clip: list[Array], assigned: Callable[[Array], Array], tones: tuple[float, ...] = (1, 1)) -> Scene:
    """A clip of masks as white discs on black, with components (K,H,W) that are a function of the masks."""
    scene = Scene()
    for masks in clip:
        frame = np.array([0, *tones], np.float32)[masks][None]
        scene.add(frame, masks > 0, assigned(masks).astype(np.float32))
    scene.finish()
    return scene


def one_component(masks: Array) -> Array:
    return np.ones((1, SIDE, SIDE))


def by_disc(masks: Array) -> Array:
    """A model that knows the discs: one component each."""
    return np.stack([masks != 2, masks == 2])


def halves(masks: Array) -> Array:
    """A model that tears what it sees: the left half is one component's, the right half another's."""
    columns = np.argwhere(masks)[:, 1]
    left = np.arange(SIDE) < (columns.mean() if len(columns) else 0)
    return np.stack([np.broadcast_to(left, masks.shape), np.broadcast_to(~left, masks.shape)])


def passing(t: int) -> list[Place]:
    """Two discs that fly past each other and touch on the way."""
    return [(26, 10 + 1.5 * t), (36, 54 - 1.5 * t)]


@pytest.mark.parametrize("begin", [0, 12])
def test_discs_that_touch_for_some_frames_stay_two(begin: int) -> None:
    """Even where the clip begins while they touch, and though the model has a single component."""
    clip = [discs(passing(t)) for t in range(begin, 30)]
    scene = followed(clip, one_component)
    assert [each["label"] for each in scene.found] == [1, 2]
    touched, true, found = 0, [], []
    for i, masks in enumerate(clip):
        labels = scene.labels(i)
        assert np.array_equal(labels > 0, masks > 0)
        both = masks != (3 - discs(passing(begin + i)[::-1])) % 3  # which of two white discs is in front, nobody sees
        true.append(masks[(masks > 0) & ~both])
        found.append(labels[(masks > 0) & ~both])
        touched += bool(both.any())
        assert adjusted_mutual_info_score(true[-1], found[-1]) > 0.8
    assert touched > 5
    # over all frames at once: each has one label from beginning to end
    assert adjusted_mutual_info_score(np.concatenate(true), np.concatenate(found)) > 0.9


def test_the_label_stays_with_the_brightness() -> None:
    """Discs that bounce off each other and those that fly past each other differ only in who is who."""
    clip = [discs([(32, 32 - abs(20 - t) - 3), (32, 32 + abs(20 - t) + 3)]) for t in range(40)]
    scene = followed(clip, one_component, tones=(0.4, 1))
    for i, masks in enumerate(clip):
        there = masks > 0
        assert adjusted_mutual_info_score(masks[there], scene.labels(i)[there]) > 0.8
    assert scene.labels(0)[clip[0] == 1][0] == scene.labels(39)[clip[39] == 1][0]


def test_the_picture_tells_who_is_in_front() -> None:
    """A bright disc flies over a dark one: each pixel belongs to the disc of its own brightness."""
    clip = [discs([(32, 10 + 1.5 * t), (34, 54 - 1.5 * t)]) for t in range(30)]
    scene = followed(clip, one_component, tones=(0.4, 1))
    scores = [adjusted_mutual_info_score(masks[masks > 0], scene.labels(i)[masks > 0]) for i, masks in enumerate(clip)]
    assert min(scores) > 0.85


def test_a_disc_that_the_model_tears_is_one_object() -> None:
    scene = followed([discs([(32, 10 + t)]) for t in range(30)], halves)
    assert [(each["label"], each["components"], each["frames"]) for each in scene.found] == [(1, [1, 2], 30)]
    assert scene.summary()["merged"] == [[1, 2]]
    assert told(scene.summary()) == [
        "1 object followed through the clip (--raw labels components instead)",
        "components 1 and 2 are never apart: taken for one object",
    ]


def test_discs_that_are_never_apart_are_merged_and_that_is_said() -> None:
    scene = followed([discs([(28, 10 + t), (38, 14 + t)]) for t in range(30)], by_disc)
    assert len(scene.found) == 1
    assert scene.summary()["merged"] == [[1, 2]]


def test_discs_that_roll_around_each_other_are_two_if_the_model_knows_them() -> None:
    turn = np.linspace(0, 2 * np.pi, 30)
    clip = [discs([(32 + 6 * np.sin(a), 32 + 6 * np.cos(a)), (32 - 6 * np.sin(a), 32 - 6 * np.cos(a))]) for a in turn]
    scene = followed(clip, by_disc)
    assert [each["components"] for each in scene.found] == [[1], [2]]
    assert scene.summary()["merged"] == []
    assert all(np.array_equal(scene.labels(i), clip[i]) for i in range(30))


def test_a_component_that_holds_two_objects_is_told() -> None:
    scene = followed([discs([(10 + t, 12), (50 - t, 50)]) for t in range(30)], one_component)
    assert scene.summary()["shared"] == {"1": [1, 2]}
    assert told(scene.summary())[-1] == "component 1 is on objects 1 and 2: told apart by how they move"


def test_parts_that_keep_their_distance_are_one_object() -> None:
    scene = followed([discs([(22, 10 + t), (38, 12 + t)]) for t in range(30)], one_component)
    assert [(each["label"], each["patches"]) for each in scene.found] == [(1, 2)]
    assert set(np.unique(scene.labels(10))) == {0, 1}


def test_an_object_that_comes_late_and_one_that_leaves_share_a_label() -> None:
    clip = [discs([(20, 10)]) if t < 12 else discs([(-99, -99), (50, 50)]) if t > 30 else discs([]) for t in range(44)]
    scene = followed(clip, one_component)
    assert [(each["label"], each["first"], each["last"]) for each in scene.found] == [(1, 0, 11), (1, 31, 43)]


def test_nothing_at_all() -> None:
    scene = followed([discs([])] * 9, one_component)
    assert scene.found == []
    assert not scene.labels(4).any()
    assert told(scene.summary())[0].startswith("0 objects")


def test_both_directions_are_put_together() -> None:
    """One patch that only the second tells apart; one in which the first one's object was alone more recently."""
    one = np.array([[1, 1, 0, 2, 2]])
    other = np.array([[3, 1, 0, 4, 4]])
    assert chosen((one, {1: 0, 2: 0}), (other, {1: 5, 3: 5, 4: 5})).tolist() == [[3, 1, 0, 4, 4]]
    assert chosen((one, {1: 0, 2: 3}), (one + 4 * (one > 0), {5: 1, 6: 0})).tolist() == [[1, 1, 0, 6, 6]]


def test_pixels_without_a_label_go_to_the_nearest_object() -> None:
    assert filled(np.array([[0, 1, 0, 0, 0, 0, 2]])).tolist() == [[1, 1, 1, 1, 2, 2, 2]]
    assert filled(np.zeros((2, 2), np.uint8)).tolist() == [[1, 1], [1, 1]]


def test_a_still_clip_and_one_without_a_ground_have_components_for_labels(tmp_path: Path) -> None:
    scene = texture(48, 48)
    moving = np.stack([np.roll(scene, 3 * t, axis=1) for t in range(12)])
    for frames in (np.stack([scene] * 12), moving):
        np.save(tmp_path / "clip.npy", frames)
        clip = segment(tmp_path / "clip.npy", known_model(), SegmentConfig(2, starts=1))
        assert clip.scene is None
        assert clip.choice.startswith("none")
        assert len(list(clip)) == 12


def test_objects_are_followed_unless_the_user_says_no(tmp_path: Path) -> None:
    masks = np.stack([discs(passing(t)) for t in range(30)])
    np.save(tmp_path / "clip.npy", (masks > 0) * 0.6)
    np.save(tmp_path / "masks.npy", masks)
    clip, again = (segment(tmp_path / "clip.npy", known_model(), SegmentConfig(2, starts=1, follow=follow, every=2),
                           tmp_path / "masks.npy") for follow in (True, False))  # fmt: skip
    seen: list[int] = []
    clip.progress = seen.append
    frames = list(clip)
    assert seen == list(range(1, 16))
    assert [frame.name for frame in frames[:2]] == ["frame-00000", "frame-00002"]
    assert again.scene is None
    assert clip.scene is not None
    assert frames[0].scores is not None
    assert frames[0].scores["ami_max"] == pytest.approx(1)
    assert frames[0].step.gamma.shape == next(again).step.gamma.shape


def test_what_falls_into_three_is_three() -> None:
    """A plate as one object; once it has been in three parts for some frames, each is an object of its own."""
    assert _labels_after([[(10, 40)]] * 3 + [[(10, 26), (28, 33), (35, 40)]] * 5) == 3


def test_three_parts_for_two_frames_are_still_one_object() -> None:
    """However many parts there are, only frames count."""
    assert _labels_after([[(10, 40)]] * 3 + [[(10, 20), (21, 30), (31, 40)]] * 2) == 1


def _labels_after(frames: list[list[tuple[int, int]]]) -> int:
    """How many labels a plate has at last whose parts, first and last column, are these in each frame."""
    follower, gamma = Follower(), np.full((2, SIDE, SIDE), 0.5, np.float32)
    for parts in frames:
        there = np.zeros((SIDE, SIDE), bool)
        for first, last in parts:
            there[10:40, first:last] = True
        labels, _ = follower.add(there[None].astype(np.float32), connected(there)[0], gamma)
        assert (labels > 0).tolist() == there.tolist()
    return len(np.unique(labels[there]))


def test_a_part_and_something_new_in_the_same_frame() -> None:
    """A bar breaks in two; where its parts become objects, another one enters. All three are told apart."""
    follower, gamma = Follower(), np.full((2, SIDE, SIDE), 0.5, np.float32)
    for t in range(8):
        there = np.zeros((SIDE, SIDE), bool)
        there[5:15, 5:45] = True
        there[5:15, 24:27] &= t < 3
        there[40:52, 20:32] = t >= 5
        labels, _ = follower.add(there[None].astype(np.float32), connected(there)[0], gamma)
    assert len({int(labels[10, 10]), int(labels[10, 35]), int(labels[45, 25])} - {0}) == 3


def test_more_objects_than_labels_are_counted() -> None:
    """Of 70 squares 64 have labels, and the others are not passed over in silence."""
    frame = np.zeros((60, 120), bool)
    for i in range(70):
        row, column = divmod(i, 14)
        frame[12 * row + 2 : 12 * row + 9, 8 * column + 1 : 8 * column + 6] = True
    scene = Scene()
    for _ in range(4):
        scene.add(frame[None].astype(np.float32), frame, np.ones((1, 60, 120), np.float32))
    scene.finish()
    assert len(np.unique(scene.labels(0))) == 65
    assert told(scene.summary())[-1] == "6 more objects have no label: 64 at a time is the most"
