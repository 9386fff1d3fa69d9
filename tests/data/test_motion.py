"""Motion between walls, against positions counted by hand and a walker that turns around at the walls."""

import pytest
import torch

from neural_em.data.motion import reflect


def walk(position: int, velocity: int, room: int, frames: int) -> list[int]:
    """Moves pixel by pixel and turns around whenever a wall is in the way."""
    path = [position]
    direction = 1 if velocity > 0 else -1
    for _ in range(frames - 1):
        for _ in range(abs(velocity)):
            if not 0 <= position + direction <= room:
                direction = -direction
            position += direction if room else 0
        path.append(position)
    return path


def one(position: int, velocity: int, room: int, frames: int) -> list[int]:
    return reflect(torch.tensor(position), torch.tensor(velocity), torch.tensor(room), frames).tolist()


def test_the_near_wall_is_touched_for_one_frame() -> None:
    assert one(2, -1, 16, 5) == [2, 1, 0, 1, 2]


def test_the_far_wall_is_touched_for_one_frame() -> None:
    assert one(14, 1, 16, 5) == [14, 15, 16, 15, 14]


def test_what_stands_still_stays() -> None:
    assert one(5, 0, 16, 4) == [5, 5, 5, 5]


def test_without_room_nothing_moves() -> None:
    assert one(0, 1, 0, 4) == [0, 0, 0, 0]


@pytest.mark.parametrize("room", [1, 2, 16, 21])
@pytest.mark.parametrize("velocity", [-5, -2, -1, 0, 1, 3, 50])
def test_every_start_moves_as_the_walker_does(room: int, velocity: int) -> None:
    for start in range(room + 1):
        assert one(start, velocity, room, 60) == walk(start, velocity, room, 60)


def test_any_shape_broadcasts_over_time() -> None:
    start = torch.tensor([[0, 3], [5, 1]])
    path = reflect(start, torch.ones_like(start), torch.full_like(start, 5), 3)
    assert path.tolist() == [[[0, 1, 2], [3, 4, 5]], [[5, 4, 3], [1, 2, 3]]]
