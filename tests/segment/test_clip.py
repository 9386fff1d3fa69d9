"""Segmenting a stream: what EM gives by hand, labels at the input's size, one frame held at a time."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

from neural_em import ModelConfig, NeuralEM, NeuralEMError, randomness
from neural_em.data import Source, flying_shapes, open_source
from neural_em.model import NoiseConfig
from neural_em.segment import SCORES, SegmentConfig, Stream, segment
from tests.known import BARS, GROUPS, known_model

ONE = SegmentConfig(2, starts=1)
RANDOM = NeuralEM(ModelConfig(height=8, width=9, theta_size=5, convolutions=(3,), hidden=7), seed=4)


def array(tmp_path: Path, frames: np.ndarray, name: str = "clip.npy") -> Path:
    np.save(tmp_path / name, frames)
    return tmp_path / name


def test_each_object_gets_a_label_and_what_lies_between_gets_none(tmp_path: Path) -> None:
    (only,) = segment(array(tmp_path, BARS), known_model(), ONE)
    upper, lower = only.labels[0, 0], only.labels[-1, 0]
    assert {int(upper), int(lower)} == {1, 2}
    assert np.array_equal(only.labels, np.select([GROUPS == 1, GROUPS == 2], [upper, lower], 0))
    assert only.scores is None


@pytest.mark.parametrize("fit", ["resize", "crop-resize", "crop"])
def test_labels_come_back_at_the_frames_own_size(tmp_path: Path, fit: str) -> None:
    """The bars twice as large, in a wider frame: stretched, or the middle cut out."""
    inner = BARS if fit == "crop" else np.kron(BARS, np.ones((2, 2)))
    frame = np.pad(inner, ((4, 4), (3, 3))) if fit == "crop" else np.pad(inner, ((0, 0), (4, 4)))
    if fit == "resize":
        frame = np.kron(BARS, np.ones((2, 3)))
    (only,) = segment(array(tmp_path, frame), known_model(), SegmentConfig(2, starts=1, fit=fit))
    assert only.labels.shape == frame.shape
    assert np.array_equal(only.labels > 0, frame > 0)
    upper, lower = only.labels[: len(frame) // 2], only.labels[len(frame) // 2 :]
    assert {upper.max(), lower.max()} == {1, 2}
    assert only.x.shape == (1, 6, 6)


def test_frames_may_differ_in_size_and_keep_their_names(tmp_path: Path) -> None:
    for name, factor in (("b9", 2), ("b10", 5)):
        Image.fromarray(np.kron(BARS, np.full((factor, factor), 255)).astype(np.uint8)).save(tmp_path / f"{name}.png")
    first, second = segment(tmp_path, known_model(), ONE)
    assert (first.name, second.name) == ("b9", "b10")
    assert (first.labels.shape, second.labels.shape) == ((12, 12), (30, 30))
    assert np.array_equal(np.kron(first.labels[::2, ::2], np.ones((5, 5))), second.labels)  # the same components


def test_a_component_stays_with_its_object(tmp_path: Path) -> None:
    maps = [frame.labels for frame in segment(array(tmp_path, np.stack([BARS] * 20)), known_model(), ONE)]
    assert len(maps) == 20
    assert all(np.array_equal(maps[0], labels) for labels in maps)


def test_separate_images_begin_anew(tmp_path: Path) -> None:
    clip = array(tmp_path, np.stack([BARS] * 20))
    tops = [frame.labels[0, 0] for frame in segment(clip, known_model(), SegmentConfig(2, starts=1, separate=True))]
    assert set(tops) == {1, 2}  # each from a random start of its own


def test_dark_objects_on_a_bright_ground(tmp_path: Path) -> None:
    clip = array(tmp_path, 1 - BARS)
    (only,) = segment(clip, known_model(), SegmentConfig(2, starts=1, invert=True))
    assert np.array_equal(only.labels > 0, BARS > 0)


def test_colour_frames_are_made_grey_for_a_grey_model_and_grey_ones_coloured(tmp_path: Path) -> None:
    pixels = np.repeat(np.uint8(BARS * 255)[..., None], 3, axis=2)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (grey,) = segment(tmp_path / "a.png", known_model(), ONE)
    assert grey.x.shape == (1, 6, 6)
    (colour,) = segment(array(tmp_path, BARS), known_model(channels=3), ONE)
    assert colour.x.shape == (3, 6, 6)
    assert np.array_equal(colour.labels > 0, BARS > 0)


def test_grey_is_kept_where_it_is_asked_for(tmp_path: Path) -> None:
    clip = array(tmp_path, BARS * 0.75)
    assert set(np.unique(next(segment(clip, known_model(), ONE)).x)) == {0, 1}
    kept = next(segment(clip, known_model(), SegmentConfig(2, starts=1, channels="grey"))).x
    assert set(np.unique(kept)) == {np.float32(0), np.float32(0.75)}


def test_a_ground_of_any_colour_has_no_label(tmp_path: Path) -> None:
    """A network whose components add nothing to the prior: it explains the ground as well as any of them."""
    size = {"channels": 3, "height": 8, "width": 9, "theta_size": 5, "convolutions": (), "hidden": 0}
    model = NeuralEM(ModelConfig(**size, distribution="gaussian", prior="median", noise=NoiseConfig("none")))
    model.requires_grad_(False)
    for parameter in model.m_step.decoder.parameters():
        parameter.zero_()
    frame = np.full((8, 9, 3), (200, 30, 90), np.uint8)
    (found,) = segment(array(tmp_path, frame), model, ONE)
    assert np.unique(found.labels).tolist() == [0]
    model.m_step.decoder.dense[-1].bias[:] = 0.2  # now each component says something that is not there
    (worse,) = segment(array(tmp_path, frame), model, ONE)
    assert np.unique(worse.labels).tolist() == [0]
    half = frame.copy()
    half[:3] += 51  # 0.2 brighter
    (split,) = segment(array(tmp_path, half), model, ONE)
    assert (split.labels[:3] > 0).all()
    assert (split.labels[3:] == 0).all()


@pytest.mark.parametrize("changes", [{}, {"distribution": "gaussian", "prior": "median", "e_step_deviation": 2.0}])
@pytest.mark.parametrize("noise", ["none", "bit-flips"])
def test_the_stream_is_the_unroll(noise: str, changes: dict[str, Any]) -> None:
    """`Stream` against one unroll over the first frame five times and then each frame once, noise and start given."""
    config = ModelConfig(height=8, width=14, theta_size=5, convolutions=(3,), hidden=7, noise=NoiseConfig(noise, 0.2))
    model = NeuralEM(dataclasses.replace(config, **changes), seed=1)
    frames = flying_shapes(1, objects=2, frames=6, height=8, width=14)[0]  # (6,1,1,8,14)
    stream = Stream(model, SegmentConfig(3, steps=5, starts=1, seed=8))
    steps = [stream.look(frame) for frame in frames[:, 0].numpy()]
    key = randomness.keys(8, 0x5354, 0, torch.tensor([0]))
    settle = frames[:1].expand(6, -1, -1, -1, -1)
    noisy, gamma = model.draw(settle, 3, key)
    for t in range(1, 6):
        later = randomness.keys(8, 0x4E4F, torch.tensor([t]))
        noisy = torch.cat([noisy, model.draw(frames[t - 1 : t], 3, later, steps=1)[0]])
    x = torch.cat([settle, frames[1:]])
    with torch.no_grad():
        out = model.unroll(x, 3, x_noisy=noisy, gamma=gamma)
    for t, step in enumerate(steps):
        torch.testing.assert_close(step.gamma, out.gamma[4 + t, 0, :, 0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(step.psi, out.psi[4 + t, 0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(step.theta, out.theta[4 + t, 0], atol=1e-5, rtol=1e-5)
        assert step.loss == pytest.approx(float(out.total[4 + t]), rel=1e-5)


def test_the_start_with_the_lowest_loss_goes_on() -> None:
    frame = flying_shapes(1, objects=1, frames=1, height=8, width=14)[0][0, 0].numpy()
    model = NeuralEM(ModelConfig(height=8, width=14, theta_size=5, convolutions=(3,), hidden=7), seed=2)
    losses = [Stream(model, SegmentConfig(3, steps=2, starts=starts)).look(frame).loss for starts in (1, 2, 4, 8)]
    for fewer, more in pairwise(losses):
        assert more <= fewer * (1 + 1e-5)  # the same start in another batch is rounded in another way
    assert losses[-1] < 0.999 * losses[0]


def test_the_same_seed_gives_the_same_and_another_does_not() -> None:
    frame = np.ones((1, 8, 9), np.float32)
    gammas = [Stream(RANDOM, SegmentConfig(3, starts=1, seed=seed)).look(frame).gamma for seed in (0, 0, 1)]
    assert torch.equal(gammas[0], gammas[1])
    assert not torch.equal(gammas[0], gammas[2])


def test_scores_against_scikit_learn(tmp_path: Path) -> None:
    """Random labels at the frames' own size; frames without a mask are not scored."""
    clip = array(tmp_path, np.random.default_rng(0).random((3, 16, 18)).astype(np.float32))
    groups = np.random.default_rng(1).integers(0, 4, (3, 16, 18))
    groups[1] = 0
    masks = array(tmp_path, groups, "masks.npy")
    found = list(segment(clip, RANDOM, SegmentConfig(3, channels="grey"), masks))
    for t in (0, 2):
        assignment = found[t].step.gamma.argmax(dim=0).numpy().repeat(2, axis=0).repeat(2, axis=1)
        scored = groups[t] > 0
        truth, labels, scores = groups[t][scored], assignment[scored], found[t].scores
        assert scores is not None
        assert scores["ami_max"] == pytest.approx(adjusted_mutual_info_score(truth, labels, average_method="max"))
        assert scores["ami_arithmetic"] == pytest.approx(adjusted_mutual_info_score(truth, labels))
        assert scores["ari"] == pytest.approx(adjusted_rand_score(truth, labels))
    assert found[1].scores is not None
    assert np.isnan(found[1].scores["ami_max"])


def test_a_perfect_grouping_scores_one_even_where_the_frame_was_cut(tmp_path: Path) -> None:
    frame, groups = np.pad(BARS, 2), np.pad(GROUPS, 2)
    groups[0] = 3  # outside of what the model sees: not scored
    config = SegmentConfig(2, starts=1, fit="crop")
    (only,) = segment(array(tmp_path, frame), known_model(), config, array(tmp_path, groups, "g.npy"))
    assert only.scores == dict.fromkeys(SCORES, 1)


def test_groups_beside_the_frames_need_not_be_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "both.npz", frames=np.stack([BARS] * 2), groups=np.stack([GROUPS] * 2))
    assert [frame.scores["ari"] for frame in segment(tmp_path / "both.npz", known_model(), ONE)] == [1, 1]  # type: ignore[index]


def test_masks_may_lie_inside_the_folder_of_frames(tmp_path: Path) -> None:
    (tmp_path / "frames" / "masks").mkdir(parents=True)
    for name in ("a", "b"):
        Image.fromarray(np.uint8(BARS * 255)).save(tmp_path / "frames" / f"{name}.png")
        Image.fromarray(GROUPS).save(tmp_path / "frames" / "masks" / f"{name}.png")
    found = list(segment(tmp_path / "frames", known_model(), ONE, tmp_path / "frames" / "masks"))
    assert [frame.scores and frame.scores["ari"] for frame in found] == [1, 1]


class Endless(Source):
    """More frames than could ever be held, which remembers how far it was read."""

    def __init__(self) -> None:
        self.name, self.length, self.colour, self.read = "endless", None, False, 0

    def __iter__(self) -> Iterator[np.ndarray]:
        while True:
            self.read += 1
            yield np.uint8(BARS * 255)[..., None]


def test_frames_are_read_when_they_are_needed() -> None:
    """One at a time from a single start; where several race, twenty at most are read ahead."""
    for starts, ahead, live in ((1, 0, False), (3, 19, False), (3, 0, True)):
        source = Endless()
        config = SegmentConfig(2, starts=starts, background="none")
        frames = segment(source, known_model(), config, live=live)
        assert source.read == 0
        for count in range(1, 50):
            next(frames)
            assert source.read == max(count, 1 + ahead)


def test_mask_pixels_that_the_threshold_made_black_are_told_apart(tmp_path: Path) -> None:
    """The bars' groups go on where the frame is black: no component is right or wrong there."""
    groups = np.where(np.arange(6)[:, None] < 3, 1, 2) * np.ones((1, 6), np.uint8)
    (only,) = segment(array(tmp_path, BARS), known_model(), ONE, array(tmp_path, groups.astype(np.uint8), "g.npy"))
    assert only.scores is not None
    assert (only.scores["ami_max_visible"], only.scores["ari_visible"]) == (1, 1)
    assert only.scores["covered"] == pytest.approx(24 / 36)
    assert only.scores["ami_max"] < 1


def test_every_other_frame(tmp_path: Path) -> None:
    frames = np.stack([BARS] * 7)
    groups = np.stack([GROUPS] * 7)
    groups[1::2] = 0  # would not be scored
    config = SegmentConfig(2, starts=1, every=2)
    found = list(segment(array(tmp_path, frames), known_model(), config, array(tmp_path, groups, "g.npy")))
    assert [frame.name for frame in found] == [f"frame-{t:05d}" for t in (0, 2, 4, 6)]
    assert [frame.scores and frame.scores["ari"] for frame in found] == [1] * 4


def test_another_number_of_components_than_in_training(tmp_path: Path) -> None:
    (only,) = segment(array(tmp_path, BARS), known_model(), SegmentConfig(5))
    assert only.step.gamma.shape == (5, 6, 6)
    assert torch.allclose(only.step.gamma.sum(dim=0), torch.ones(()))
    assert only.labels.max() <= 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"components": 0}, "components: expected an integer from 1 to 64, got 0"),
        ({"components": 65}, "components: expected an integer from 1 to 64, got 65"),
        ({"starts": 0}, "starts: expected an integer from 1 to 1000, got 0"),
        ({"steps": 0}, "steps: expected an integer >= 1, got 0"),
        ({"threshold": 1.5}, "threshold: expected a number from 0 to 1, got 1.5"),
        ({"fit": "stretch"}, "fit: expected one of none, resize, crop, crop-resize, got 'stretch'"),
        ({"channels": "gray"}, "channels: expected one of grey, binary, colour, got 'gray'; did you mean 'grey'?"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(NeuralEMError) as error:
        SegmentConfig(**{"components": 2, **options})  # type: ignore[arg-type]
    assert str(error.value) == message


def test_numpy_numbers_will_do_and_can_be_written() -> None:
    config = SegmentConfig(np.int64(2), np.int64(3), np.int64(4), threshold=np.float32(0.5))
    assert json.loads(json.dumps(dataclasses.asdict(config))) == dataclasses.asdict(SegmentConfig(2, 3, 4))


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    clip = array(tmp_path, BARS)
    with pytest.raises(NeuralEMError, match="channels: expected grey or binary, as the model sees, got colour"):
        segment(clip, known_model(), SegmentConfig(2, channels="colour"))
    with pytest.raises(NeuralEMError, match="channels: expected colour, got binary"):
        segment(clip, known_model(channels=3), SegmentConfig(2, channels="binary"))
    with pytest.raises(NeuralEMError, match="model: expected one that sees 1 or 3 channels, got 2"):
        segment(clip, known_model(channels=2), ONE)
    with pytest.raises(NeuralEMError, match="expected 6 x 6 pixels like its frame, got 3 x 3"):
        list(segment(clip, known_model(), ONE, array(tmp_path, np.ones((3, 3), np.uint8), "m.npy")))
    with pytest.raises(NeuralEMError, match="expected one clip"):
        segment(array(tmp_path, np.zeros((2, 4, 6, 6))), known_model(), ONE)
    with pytest.raises(NeuralEMError, match="6 x 6 pixels"):
        list(segment(array(tmp_path, np.zeros((7, 7))), known_model(), SegmentConfig(2, fit="none")))


def test_an_opened_source_will_do(tmp_path: Path) -> None:
    assert len(list(segment(open_source(array(tmp_path, np.stack([BARS] * 3))), known_model(), ONE))) == 3


@pytest.mark.gpu
def test_a_gpu_finds_the_same() -> None:
    frames = flying_shapes(1, objects=2, frames=6, height=8, width=14)[0][:, 0].numpy()
    model = NeuralEM(ModelConfig(height=8, width=14, theta_size=5, convolutions=(3,), hidden=7), seed=1)
    there = NeuralEM(model.config, seed=1).cuda()
    streams = [Stream(each, SegmentConfig(3, steps=4, starts=3)) for each in (model, there)]
    for frame in frames:
        here, found = (stream.look(frame) for stream in streams)
        torch.testing.assert_close(found.gamma.cpu(), here.gamma, atol=1e-2, rtol=1e-2)  # convolutions in TF32
        assert found.loss == pytest.approx(here.loss, rel=1e-2)


@pytest.mark.gpu
def test_a_clip_on_a_gpu(tmp_path: Path) -> None:
    maps = [frame.labels for frame in segment(array(tmp_path, np.stack([BARS] * 5)), known_model().cuda(), ONE)]
    assert all(np.array_equal(labels > 0, BARS > 0) for labels in maps)
