"""Objects that touch in every frame are told apart by how their outline changes; what keeps its shape stays one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import adjusted_mutual_info_score

from neural_em.segment import parts
from neural_em.segment.lobes import connected, lobed
from neural_em.segment.scene import Scene

Array = NDArray[Any]
SIDE, FRAMES = 64, 40


def drawn(t: int, distance: float, bar: float = 0, shift: float = 0, speed: float = 0.3, radius: float = 9) -> Array:
    """Masks (H,W) of two discs that turn around the middle, and of a bar between them, which is the first one's."""
    angle = speed * t
    rows, columns = np.mgrid[:SIDE, :SIDE] - np.array([SIDE / 2, SIDE / 2 + shift * (t - FRAMES / 2)])[:, None, None]
    along, across = columns * np.cos(angle) + rows * np.sin(angle), rows * np.cos(angle) - columns * np.sin(angle)
    masks = np.zeros((SIDE, SIDE), np.uint8)
    masks[(np.abs(along) < distance / 2) & (np.abs(across) < bar)] = 1
    for number, side in ((1, -1), (2, 1)):
        masks[(along - side * distance / 2) ** 2 + across**2 < radius**2] = number
    return masks


def ellipse(height: float, width: float) -> Array:
    """A mask (H,W), by its half axes."""
    rows, columns = np.mgrid[:SIDE, :SIDE] - SIDE / 2
    return ((rows / height) ** 2 + (columns / width) ** 2 < 1).astype(np.uint8)


def crossing(t: int) -> Array:
    """Masks (H,W) of three discs: the first two overlap, the third turns round at the edge and passes in front."""
    masks = np.zeros((SIDE, SIDE), np.uint8)
    discs = (
        (8.54, 45.02 + 0.206 * t, 48.91 - 0.495 * t),
        (6.68, 42.94 + 0.092 * t, 53.18 - 0.972 * t),
        (7.69, 56.41 - abs(4.21 - 0.421 * t), 8.98 + 0.97 * t),
    )
    for number, (radius, row, column) in enumerate(discs, start=1):
        rows, columns = np.mgrid[:SIDE, :SIDE] - np.array([row, column])[:, None, None]
        masks[rows**2 + columns**2 < radius**2] = number
    return masks


def found(frame: Callable[[int], Array]) -> tuple[Scene, list[Array]]:
    """What is followed of white figures on black, by a model of a single component, which tells nothing."""
    scene, clip = Scene(), [frame(t) for t in range(FRAMES)]
    for masks in clip:
        assert connected(masks > 0)[1] == 1  # they touch in every frame
        scene.add((masks > 0)[None].astype(np.float32), masks > 0, np.ones((1, SIDE, SIDE), np.float32))
    scene.finish()
    return scene, clip


def test_balls_that_circle_around_each_other_and_are_never_apart_are_two() -> None:
    """They come nearer and go away again, by half a radius, and touch all the time."""
    scene, clip = found(lambda t: drawn(t, 13 + 4.5 * np.sin(0.4 * t)))
    assert [(each["label"], each["frames"]) for each in scene.found] == [(1, FRAMES), (2, FRAMES)]
    true, labels = [], []
    for t, masks in enumerate(clip):
        own = masks == 3 - drawn(t, -13 - 4.5 * np.sin(0.4 * t))  # which of two is in front, nobody sees
        true.append(masks[own & (masks > 0)])
        labels.append(scene.labels(t)[own & (masks > 0)])
    # over all frames at once: each keeps its label
    assert adjusted_mutual_info_score(np.concatenate(true), np.concatenate(labels)) > 0.8


@pytest.mark.parametrize("shift", [0, 0.3])
@pytest.mark.parametrize("speed", [0, 0.12])
def test_a_dumbbell_is_one_object_whether_it_moves_turns_or_stands_still(shift: float, speed: float) -> None:
    scene, _ = found(lambda t: drawn(t, 26, 3, shift, speed))
    assert [(each["label"], each["frames"]) for each in scene.found] == [(1, FRAMES)]


def test_a_dumbbell_that_comes_nearer_is_one_object() -> None:
    scene, _ = found(lambda t: drawn(t, 14 + 0.3 * t, 2 + 0.3 / 7 * t, 0, 0.1, 5 + 0.75 / 7 * t))
    assert len(scene.found) == 1


def test_what_changes_its_shape_without_a_neck_is_one_object_and_not_followed_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(parts, "Pass")
    scene, _ = found(lambda t: ellipse(14 + 5 * np.sin(0.2 * t), 126 / (14 + 5 * np.sin(0.2 * t))))
    assert [(each["label"], each["frames"]) for each in scene.found] == [(1, FRAMES)]


def test_what_grows_without_a_neck_is_one_object() -> None:
    scene, _ = found(lambda t: ellipse(14 + 6 * np.sin(0.2 * t), 9))
    assert [(each["label"], each["frames"]) for each in scene.found] == [(1, FRAMES)]


def test_an_object_in_two_patches_does_not_grow_by_that() -> None:
    """It changes its shape and not its size, and a small part of it is apart."""
    frames = [ellipse(14 + 5 * np.sin(0.2 * t), 126 / (14 + 5 * np.sin(0.2 * t))) for t in range(FRAMES)]
    for labels in frames:
        labels[2:4, 2:4] = 1
    assert parts._loose([(t, labels, labels) for t, labels in enumerate(frames)]) == set()  # type: ignore[arg-type]
    for t, labels in enumerate(frames):
        labels[5 : 8 + t // 2, 2:14] = 1  # another part of it, which does grow
    assert parts._loose([(t, labels, labels) for t, labels in enumerate(frames)]) == {1}  # type: ignore[arg-type]


def test_two_that_come_out_from_behind_each_other_while_a_third_is_there_are_two() -> None:
    """While the pair is alone it has no neck, but it grows; when it has one, a third disc touches it."""
    scene, clip = Scene(), [crossing(t) for t in range(FRAMES)]
    for masks in clip:
        scene.add((masks > 0)[None].astype(np.float32), masks > 0, np.ones((1, SIDE, SIDE), np.float32))
    scene.finish()
    assert len(scene.found) == 3
    scores = [adjusted_mutual_info_score(masks[masks > 0], scene.labels(t)[masks > 0]) for t, masks in enumerate(clip)]
    assert np.mean(scores) > 0.7  # 0.8, and 0.5 where the pair is one


def test_a_patch_is_cut_at_a_narrow_neck_alone() -> None:
    """Discs of radius 9: the neck is 0.5 breadths wide at a distance of 15.6, and 0.8 at one of 10.8."""
    narrow, broad = drawn(0, 15.6) > 0, drawn(0, 10.8) > 0
    patches, count = lobed(narrow)
    assert count == 2
    assert np.array_equal(patches > 0, narrow)
    assert {tuple(np.unique(patches[:, :32])), tuple(np.unique(patches[:, 33:]))} == {(0, 1), (0, 2)}
    assert lobed(broad)[1] == 1
    assert lobed(np.zeros((9, 9), bool))[1] == 0
