"""Bouncing balls obey physics, start apart, stay inside, and are the same bits whatever batch they are made in."""

from __future__ import annotations

import pytest
import torch

from neural_em import NeuralEMError, randomness
from neural_em.data import DataConfig, bouncing_balls, load_split
from neural_em.data.balls import Balls, Tracks, collide, collisions, paint, simulate, throw

SIZE = 64
SPEED = 2.1


def thrown(count: int = 40, number: int = 6) -> Balls:
    """Light and heavy balls."""
    key = randomness.keys(3, torch.arange(count))
    heavy = randomness.integers(key, number, 2).to(torch.float64)
    scene, placed = throw(key, 5.12 + 1.28 * heavy, 1 + 5 * heavy, SIZE, SIZE, SPEED)
    assert placed.all()
    return scene


def pair(masses: list[float], velocities: list[list[float]]) -> Balls:
    """Two discs of radius 2 that touch along a row."""
    numbers = ([[2.0, 2.0]], [masses], [[[10.0, 10.0], [10.0, 13.5]]], [velocities])
    return Balls(*(torch.tensor(each, dtype=torch.float64) for each in numbers))


def momentum(scene: Balls) -> torch.Tensor:
    return (scene.mass.unsqueeze(-1) * scene.velocity).sum(dim=1)


def energy(scene: Balls) -> torch.Tensor:
    return (scene.mass * scene.velocity.square().sum(dim=-1)).sum(dim=1) / 2


def test_equal_balls_swap_their_velocities_along_the_normal() -> None:
    after, hit = collide(pair([1, 1], [[0.5, 1.0], [0.25, -2.0]]))
    assert after.velocity.tolist() == [[[0.5, -2.0], [0.25, 1.0]]]  # along the columns, where the normal is
    assert hit.tolist() == [[True, True]]


def test_a_light_ball_bounces_off_a_heavy_one() -> None:
    """(m1 - m2) / (m1 + m2) v and 2 m1 / (m1 + m2) v."""
    after, _ = collide(pair([1, 6], [[0.0, 7.0], [0.0, 0.0]]))
    torch.testing.assert_close(after.velocity[0, :, 1], torch.tensor([-5.0, 2.0], dtype=torch.float64))


def test_balls_that_fly_apart_are_left_alone() -> None:
    scene = pair([1, 6], [[0.0, -1.0], [0.0, 1.0]])
    after, hit = collide(scene)
    assert torch.equal(after.velocity, scene.velocity)
    assert not hit.any()


def test_every_collision_keeps_momentum_and_energy() -> None:
    scene, seen = thrown(), 0
    for _ in range(300):
        scene = scene._replace(position=scene.position + scene.velocity / 4)  # no walls: many at once, deep inside
        after, hit = collide(scene)
        torch.testing.assert_close(momentum(after), momentum(scene), rtol=0, atol=1e-12)
        torch.testing.assert_close(energy(after), energy(scene), rtol=1e-12, atol=0)
        assert bool((hit.any(dim=1) == (after.velocity != scene.velocity).flatten(1).any(dim=1)).all())
        seen += int(hit.any(dim=1).sum())
        scene = after._replace(position=after.position.remainder(SIZE))
    assert seen > 300


def test_balls_start_apart_inside_and_with_the_given_speed() -> None:
    scene = thrown()
    assert bool((scene.position >= scene.radius.unsqueeze(-1)).all())
    assert bool((scene.position <= SIZE - scene.radius.unsqueeze(-1)).all())
    assert float(gaps(scene.position[:, None], scene.radius).min()) > 0
    torch.testing.assert_close(
        scene.velocity.square().sum(dim=(1, 2)).sqrt(), torch.full((40,), SPEED, dtype=torch.float64)
    )
    direction = scene.velocity.flatten(1) / SPEED  # no axis is preferred: each square is 1/12 on average
    assert float(direction.square().mean(dim=0).sub(1 / 12).abs().max()) < 0.06


def gaps(position: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
    """Between the edges of all pairs of balls."""
    K = radius.shape[1]
    distance = (position.unsqueeze(-2) - position.unsqueeze(-3)).square().sum(dim=-1).sqrt()
    gap = distance - (radius[:, None, :, None] + radius[:, None, None])
    return gap[:, :, ~torch.eye(K, dtype=torch.bool)]


def test_no_ball_leaves_the_frame_or_sinks_into_another() -> None:
    tracks = simulate(thrown(), 51, SIZE, SIZE)
    assert float(gaps(tracks.position.double(), tracks.radius.double()).min()) > -0.25  # of a pixel
    edge = tracks.radius[:, None, :, None]
    assert bool((tracks.position >= edge - 1e-4).all() & (tracks.position <= SIZE - edge + 1e-4).all())
    assert 0.02 < float(tracks.met[:, 1:].float().mean()) < 0.2
    assert not tracks.met[:, 0].any()


def test_a_lone_ball_is_reflected_by_the_walls() -> None:
    """Triangle wave: from 10, two pixels a frame, between 5 and 59."""
    scene = Balls(*(torch.tensor(each) for each in ([[5.0]], [[1.0]], [[[20.0, 10.0]]], [[[0.0, -2.0]]])))
    track = simulate(scene, 40, SIZE, SIZE).position[0, :, 0]
    path = torch.arange(40, dtype=torch.float32) * -2 + 5  # unfolded, from the wall at 5
    expected = 5 + (54 - (54 - path.remainder(108)).abs())
    torch.testing.assert_close(track[:, 1], expected)
    assert bool((track[:, 0] == 20).all())


def test_a_sequence_does_not_depend_on_its_batch() -> None:
    whole, scene = simulate(thrown(), 20, SIZE, SIZE), thrown()
    for rows in (slice(0, 7), slice(33, 34)):
        part = simulate(Balls(*(each[rows] for each in scene)), 20, SIZE, SIZE)
        assert all(torch.equal(ours, theirs[rows]) for ours, theirs in zip(part[:3], whole[:3], strict=True))


def test_discs_are_painted_by_the_centres_of_pixels() -> None:
    position = torch.tensor([[[[2.0, 2.0], [2.0, 4.0]]]])
    met = torch.zeros(1, 1, 2, dtype=torch.bool)
    frames, groups, overlaps = paint(Tracks(torch.tensor([[1.0, 1.6]]), position, met), 4, 6)
    assert overlaps[0, 0].tolist() == [[0] * 6, [0, 0, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0] * 6]
    assert frames[0, 0, 0].tolist() == [[0, 0, 0, 1, 1, 0], [0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 0]]
    assert groups[0, 0].tolist() == [[0, 0, 0, 2, 2, 0], [0, 1, 0, 2, 2, 2], [0, 1, 0, 2, 2, 2], [0, 0, 0, 2, 2, 0]]


def test_only_balls_that_met_are_in_the_mask_of_collisions() -> None:
    position = torch.tensor([[[[2.0, 2.0], [2.0, 6.0], [6.0, 4.0]]]])
    tracks = Tracks(torch.full((1, 3), 1.5), position, torch.tensor([[[True, False, True]]]))
    groups = paint(tracks, 8, 8).groups
    assert torch.equal(collisions(tracks, 8, 8), (groups == 1) | (groups == 3))


def test_a_frame_without_room_says_so() -> None:
    key = randomness.keys(0, torch.arange(3))
    radius = torch.full((3, 4), 3.0, dtype=torch.float64)
    assert not throw(key, radius, torch.ones_like(radius), 8, 8, 1.0)[1].any()


def test_a_curtain_hides_what_is_behind_it() -> None:
    fields = {"objects": 3, "radii": (7.68,), "masses": (1.0,), "speed": 3.2, "frames": 6}
    open_, groups = bouncing_balls(4, **fields)
    hidden, hidden_groups = bouncing_balls(4, curtain=28, **fields)
    assert bool((hidden <= open_).all() & (hidden_groups <= groups).all())  # the same balls
    for n in range(4):
        gone = (open_ - hidden)[:, n, 0].amax(dim=0).nonzero()  # of all frames: one place, at most 28 x 28
        assert len(gone) > 0
        assert int((gone.amax(dim=0) - gone.amin(dim=0)).max()) < 28


def test_the_number_of_balls_varies_where_it_may() -> None:
    _, groups = bouncing_balls(300, objects=6, most_objects=8, frames=1)
    counts = torch.bincount(groups.flatten(1).reshape(1, 300, -1)[0].amax(dim=1).long(), minlength=9)
    assert counts[6:].sum() == 300
    assert int(counts[6:].min()) > 60


@pytest.mark.parametrize("split", ["training", "validation"])
def test_a_data_set_paints_what_the_generator_paints(split: str) -> None:
    config = DataConfig("bouncing-balls", frames=4, train_size=9, validation_size=9)
    data = load_split(config, split, seed=5)
    frames, groups = bouncing_balls(9, 5, split, frames=4)
    rows = torch.tensor([3, 0, 8])
    batch = data.batch(rows)
    assert torch.equal(batch.frames, frames[:, rows])
    assert torch.equal(batch.groups, groups[:, rows])
    mask = data.collisions(rows)
    assert mask.shape == batch.groups.shape
    assert not mask[0].any()
    with pytest.raises(NeuralEMError, match="indices: expected numbers from 0 to 8"):
        data.batch(torch.tensor([9]))


def test_splits_and_seeds_differ() -> None:
    made = [bouncing_balls(3, seed, split, frames=1)[0] for seed, split in ((0, "training"), (0, "test"), (1, "test"))]
    assert not any(torch.equal(made[i], made[j]) for i in range(3) for j in range(i))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"radii": (3, 4), "masses": (1,)}, "masses: expected one for each of 2 radii, got 1"),
        ({"objects": 5, "most_objects": 4}, "most_objects=4 is below objects=5; set both"),
        ({"radii": (40,), "masses": (1,)}, "height and width: expected room for balls of radius 40"),
        ({"objects": 60}, "objects: expected at most 15"),
        ({"speed": -1}, "speed: expected a number from 0 to 100, got -1"),
        ({"curtain": 65}, "height and width: expected room"),
        (
            {"objects": 1, "radii": (30,), "masses": (1,), "speed": 70},
            "speed: expected at most 64 in 64 pixels",
        ),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(NeuralEMError, match=message):
        DataConfig("bouncing-balls", **fields)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("fields", [{}, {"objects": 6, "most_objects": 8}, {"objects": 3, "curtain": 28}], ids=str)
def test_the_same_bits_on_a_gpu(fields: dict[str, object]) -> None:
    here, there = (bouncing_balls(50, 2, "test", device, **fields) for device in ("cpu", "cuda"))
    assert all(torch.equal(ours, theirs.cpu()) for ours, theirs in zip(here, there, strict=True))
