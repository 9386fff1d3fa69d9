"""Tracks: places and velocities by hand, identities through crossings and gaps, MOTA and IDF1 by hand."""

from __future__ import annotations

import numpy as np
import pytest

from neural_em.segment.tracks import GAP, Tracker, TrackScores, run_lengths


def frame(*boxes: tuple[int, int, int], side: int = 4, width: int = 60) -> np.ndarray:
    """Labels with a square for each (label, x, y)."""
    labels = np.zeros((20, width), np.uint8)
    for label, x, y in boxes:
        labels[y : y + side, x : x + side] = label
    return labels


def test_places_and_velocities() -> None:
    tracker = Tracker()
    (first,) = tracker.add(frame((3, 10, 5)))
    assert (first.frame, first.object, first.label, first.box, first.area) == (0, 1, 3, (10, 5, 4, 4), 16)
    assert first.centroid == (11.5, 6.5)
    assert first.velocity == (0, 0)
    (second,) = tracker.add(frame((3, 12, 4)))
    assert second.velocity == (2, -1)


@pytest.mark.parametrize("bounce", [False, True])
def test_components_keep_their_objects_where_they_meet(bounce: bool) -> None:
    """Two objects pass each other, or touch and turn back, which their velocities alone would not tell."""
    tracker = Tracker()
    numbers = []
    for t in range(16):
        x = 3 * t if not bounce or t < 8 else 3 * (15 - t)
        places = tracker.add(frame((1, 2 + x, 2), (2, 48 - x, 2 if bounce else 7)))
        numbers.append({place.label: place.object for place in places})
    assert all(each == numbers[0] for each in numbers)


def test_an_object_that_comes_back_where_it_was_going_is_the_same_under_any_label() -> None:
    tracker = Tracker()
    for t in range(6):
        (place,) = tracker.add(frame((1, 2 * t, 5)))
    for _ in range(5):
        assert tracker.add(frame()) == []
    (back,) = tracker.add(frame((4, 22, 5)))  # where it would be after 11 steps of 2
    assert back.object == place.object
    assert back.velocity == (2, 0)


def test_after_a_long_time_or_far_away_it_is_another() -> None:
    tracker = Tracker()
    tracker.add(frame((1, 2, 5)))
    (far,) = tracker.add(frame((1, 50, 5)))  # the component has gone over to another object
    assert far.object == 2
    for _ in range(GAP + 1):
        tracker.add(frame())
    assert tracker.add(frame((1, 50, 5)))[0].object == 3


def test_run_lengths_are_coco_s() -> None:
    mask = np.array([[0, 1], [1, 1]], bool)
    assert run_lengths(mask) == {"size": [2, 2], "counts": [1, 3]}
    assert run_lengths(~mask) == {"size": [2, 2], "counts": [0, 1, 3]}
    assert run_lengths(np.zeros((2, 3), bool)) == {"size": [2, 3], "counts": [6]}


def scored(truth: list[np.ndarray], labels: list[np.ndarray]) -> dict[str, float]:
    tracker, scores = Tracker(), TrackScores()
    for groups, found in zip(truth, labels, strict=True):
        scores.add(groups, found, tracker.add(found))
    return scores.scores()


def test_scores_of_tracks_by_hand() -> None:
    """Two objects in four frames. The second is missed once, and once there is something where nothing is."""
    truth = [frame((1, 5, 2), (2, 30, 12)) for _ in range(4)]
    assert scored(truth, truth) == {"mota": 1, "idf1": 1, "identity_switches": 0}
    labels = [frame((1, 5, 2), (2, 30, 12)), frame((1, 5, 2)), frame((1, 5, 2), (2, 30, 12), (3, 50, 2)), truth[3]]
    # 8 true places, 8 found, 7 of them right: 1 missed, 1 wrong, no switch; 7 of one identity
    assert scored(truth, labels) == {"mota": 1 - 2 / 8, "idf1": 2 * 7 / 16, "identity_switches": 0}


def test_a_switch_of_identities_by_hand() -> None:
    """Both objects are always found, but after two of four frames as each other."""
    truth = [frame((1, 5, 2), (2, 30, 12)) for _ in range(4)]
    scores = TrackScores()
    for t, groups in enumerate(truth):
        places = Tracker().add(groups)
        places = [place._replace(object=place.label if t < 2 else 3 - place.label) for place in places]
        scores.add(groups, groups, places)
    # two switches among eight places; each identity is right in two of its four frames
    assert scores.scores() == {"mota": 1 - 2 / 8, "idf1": 0.5, "identity_switches": 2}


def test_pixels_that_are_not_scored_are_no_mistake() -> None:
    truth, found = frame((1, 5, 2)), frame((1, 5, 2))
    found[2:6, 9:20] = 1  # more of the same label where the masks say nothing
    assert scored([truth], [found])["mota"] == 1


@pytest.mark.parametrize("labels", [[frame()], []])
def test_nothing_to_score(labels: list[np.ndarray]) -> None:
    assert scored([frame()] * len(labels), labels) == {}


def test_one_that_comes_out_from_behind_another_leaves_its_number_alone() -> None:
    """The large one stays where it is; the small one may be new when it comes back, but not the large one."""
    tracker = Tracker()
    for t in range(14):
        labels = np.zeros((96, 128), np.uint8)
        labels[34:62, 50:78] = 1
        if t < 5:
            labels[44:52, 10 + 3 * t : 18 + 3 * t] = 2
        if t >= 12:
            labels[40:48, 70:78] = 2
        places = {place.label: place.object for place in tracker.add(labels)}
        assert places[1] == 1
