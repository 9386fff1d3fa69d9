"""Batches are the same however the sequences are held."""

from pathlib import Path

import pytest
import torch

from neural_em import NeuralEMError
from neural_em.data import DataConfig, flying_mnist, flying_shapes, load_split, static_shapes
from neural_em.data.dataset import MemoryDataset, StreamingDataset

SAMPLE = str(Path(__file__).parent / "mnist")
ORDER = torch.tensor([7, 0, 0, 59, 3])


def shapes(**fields: object) -> DataConfig:
    return DataConfig("flying-shapes", **{"frames": 5, "train_size": 60, **fields})  # type: ignore[arg-type]


def digits(**fields: object) -> DataConfig:
    return DataConfig("flying-mnist", **{"frames": 3, "train_size": 60, "mnist": SAMPLE, **fields})  # type: ignore[arg-type]


def test_a_batch_has_the_sequences_asked_for() -> None:
    data = load_split(shapes(objects=4), "training", seed=3)
    frames, groups = flying_shapes(60, objects=4, frames=5, seed=3)
    batch = data.batch(ORDER)
    assert isinstance(data, MemoryDataset)
    assert len(data) == 60
    assert data.shape == (5, 1, 28, 28)
    assert data.has_groups
    assert data.note == ""
    assert torch.equal(batch.frames, frames[:, ORDER])
    assert batch.groups is not None
    assert torch.equal(batch.groups, groups[:, ORDER])
    assert batch.frames.dtype == torch.float32
    assert batch.frames.is_contiguous()


def test_digits_come_back_exactly() -> None:
    batch = load_split(digits(), "training", seed=1).batch(ORDER)
    frames, groups = flying_mnist(60, frames=3, seed=1, mnist=SAMPLE)
    assert torch.equal(batch.frames, frames[:, ORDER])
    assert torch.equal(batch.groups, groups[:, ORDER])  # type: ignore[arg-type]


def test_data_is_held_in_the_smallest_exact_type() -> None:
    pixels = 60 * 5 * 28 * 28
    held = load_split(shapes(), "training", 0)
    assert isinstance(held, MemoryDataset)
    assert held.nbytes == 2 * pixels  # a byte for the frame, a byte for the group
    grey = load_split(digits(), "training", 0)
    assert isinstance(grey, MemoryDataset)
    assert grey.nbytes == 3 * 60 * 3 * 24 * 24


@pytest.mark.parametrize("config", [shapes(), digits(), digits(overlap="sum", objects=3)])
def test_data_too_large_for_memory_is_streamed_with_the_same_values(config: DataConfig) -> None:
    held, streamed = load_split(config, "training", 5), load_split(config, "training", 5, max_bytes=1000)
    assert isinstance(held, MemoryDataset)
    assert type(streamed) is StreamingDataset
    assert (len(streamed), streamed.shape, streamed.has_groups) == (len(held), held.shape, held.has_groups)
    for ours, theirs in zip(streamed.batch(ORDER), held.batch(ORDER), strict=True):
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours, theirs)
        assert ours.dtype == theirs.dtype


def test_fresh_data_never_ends() -> None:
    data = load_split(shapes(fresh=True), "training", seed=3)
    assert len(data) == 60
    batch = data.batch(torch.tensor([3, 1_000_000_000_000]))
    assert torch.equal(batch.frames[:, :1], flying_shapes(1, frames=5, seed=3, start=3)[0])
    assert torch.equal(batch.frames[:, 1:], flying_shapes(1, frames=5, seed=3, start=10**12)[0])


def test_only_training_is_fresh() -> None:
    assert isinstance(load_split(shapes(fresh=True, validation_size=8), "validation", 0), MemoryDataset)


def test_sizes() -> None:
    config = DataConfig("static-shapes", train_size=9, validation_size=8, test_size=7)
    assert [len(load_split(config, split, 0)) for split in ("training", "validation", "test")] == [9, 8, 7]
    assert len(load_split(config, "test", 0, size=3)) == 3
    frames = load_split(config, "test", 0, size=3).batch(torch.arange(3)).frames
    assert torch.equal(frames, static_shapes(3, split="test")[0])


def test_an_empty_batch() -> None:
    for limit in (None, 10):
        assert load_split(shapes(), "training", 0, max_bytes=limit).batch(torch.arange(0)).frames.shape == (
            5,
            0,
            1,
            28,
            28,
        )


@pytest.mark.parametrize("limit", [None, 10])
@pytest.mark.parametrize("wrong", [-1, 60])
def test_indices_outside_are_refused(limit: int | None, wrong: int) -> None:
    with pytest.raises(NeuralEMError, match="indices: expected numbers from 0 to 59"):
        load_split(shapes(), "training", 0, max_bytes=limit).batch(torch.tensor([0, wrong]))


def test_a_size_of_nothing_is_refused() -> None:
    with pytest.raises(NeuralEMError, match="size"):
        load_split(shapes(), "training", 0, size=0)


def test_what_a_reader_of_scores_must_know_is_noted() -> None:
    assert "same 20 digits" in load_split(digits(digits=20), "test", 0, size=2).note
    assert "one object" in load_split(shapes(objects=1), "test", 0, size=2).note


def test_frames_of_any_kind_can_be_held() -> None:
    frames = torch.rand(4, 2, 3, 5, 6)
    data = MemoryDataset(frames, None)
    assert not data.has_groups
    assert data.batch(torch.tensor([2, 1])).groups is None
    assert torch.equal(data.batch(torch.tensor([2, 1])).frames, frames[[2, 1]].transpose(0, 1))


def test_a_batch_is_a_copy() -> None:
    frames = torch.rand(4, 1, 1, 5, 6)
    data = MemoryDataset(frames, None)
    data.batch(torch.tensor([0])).frames.zero_()
    assert float(frames.min()) > 0


@pytest.mark.gpu
def test_a_batch_can_be_part_of_a_cuda_graph() -> None:
    config = digits()
    data, host = load_split(config, "training", 0, "cuda"), load_split(config, "training", 0)
    indices = torch.arange(4, device="cuda")
    data.batch(indices)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch = data.batch(indices)
    indices.copy_(torch.tensor([9, 1, 50, 2], device="cuda"))
    graph.replay()
    expected = host.batch(torch.tensor([9, 1, 50, 2]))
    assert torch.equal(batch.frames.cpu(), expected.frames)
    assert torch.equal(batch.groups.cpu(), expected.groups)  # type: ignore[union-attr, arg-type]


@pytest.mark.gpu
def test_streaming_on_a_gpu_gives_the_same() -> None:
    streamed = load_split(digits(fresh=True), "training", 0, "cuda").batch(ORDER)
    held = load_split(digits(), "training", 0).batch(ORDER)
    assert torch.equal(streamed.frames.cpu(), held.frames)
    assert torch.equal(streamed.groups.cpu(), held.groups)  # type: ignore[union-attr, arg-type]
