"""HDF5 in the authors' layout: round trips, files made by hand, and files that are not what they should be."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from neural_em import NeuralEMError
from neural_em.data import DataConfig, load_hdf5, load_split
from neural_em.data.dataset import MemoryDataset, StreamingDataset
from neural_em.data.hdf5 import export_hdf5

SAMPLE = str(Path(__file__).parent / "mnist")
SIZES = {"train_size": 13, "validation_size": 4, "test_size": 3}
CONFIGS = {
    "static-shapes": DataConfig("static-shapes", **SIZES),  # type: ignore[arg-type]
    "flying-shapes": DataConfig("flying-shapes", objects=5, **SIZES),  # type: ignore[arg-type]
    "flying-mnist": DataConfig("flying-mnist", frames=4, overlap="sum", mnist=SAMPLE, **SIZES),  # type: ignore[arg-type]
}


def write(path: Path, features: Any, groups: Any = None, split: str = "training") -> Path:
    with h5py.File(path, "a") as file:
        file[f"{split}/features"] = features
        if groups is not None:
            file[f"{split}/groups"] = groups
    return path


def by_hand(path: Path, frames: int = 3, count: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """A file such as the authors wrote."""
    generator = np.random.default_rng(0)
    features = generator.integers(0, 2, (frames, count, 8, 9, 1)).astype(np.float32)
    groups = generator.integers(0, 4, (frames, count, 8, 9, 1)).astype(np.float32)
    for split in ("training", "validation", "test"):
        write(path, features, groups, split)
    return features, groups


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("split", ["training", "validation", "test"])
@pytest.mark.parametrize("max_bytes", [None, 1])
def test_a_round_trip_is_exact(kind: str, split: Any, max_bytes: int | None, tmp_path: Path) -> None:
    config = CONFIGS[kind]
    sizes = export_hdf5(tmp_path / "data.h5", config, seed=7)
    assert sizes == {"training": 13, "validation": 4, "test": 3}
    made = load_split(config, split, seed=7)
    read = load_split(DataConfig("file", path=str(tmp_path / "data.h5")), split, seed=0, max_bytes=max_bytes)
    assert type(read) is (StreamingDataset if max_bytes else MemoryDataset)
    assert len(read) == len(made)
    assert read.shape == made.shape
    indices = torch.randperm(len(made), generator=torch.Generator().manual_seed(0))
    for ours, theirs in zip(read.batch(indices), made.batch(indices), strict=True):
        assert ours is not None
        assert torch.equal(ours, theirs)  # type: ignore[arg-type]


def test_the_file_has_the_authors_layout(tmp_path: Path) -> None:
    export_hdf5(tmp_path / "data.h5", CONFIGS["flying-shapes"], seed=0)
    with h5py.File(tmp_path / "data.h5") as file:
        assert set(file) == {"training", "validation", "test"}
        for name in ("features", "groups", "overlaps"):
            assert file["training"][name].shape == (21, 13, 28, 28, 1)
            assert file["training"][name].dtype == np.float32
        features, groups, overlaps = (file["training"][name][:] for name in ("features", "groups", "overlaps"))
        assert "kind: flying-shapes" in file.attrs["config"]
    assert set(np.unique(features)) == {0, 1}
    assert set(np.unique(groups)) == {0, 1, 2, 3, 4, 5}
    assert np.array_equal(features > 0, (groups > 0) | (overlaps > 0))
    assert not ((groups > 0) & (overlaps > 0)).any()
    assert overlaps.sum() > 0


def test_the_file_does_not_tell_where_the_digits_lay(tmp_path: Path) -> None:
    export_hdf5(tmp_path / "data.h5", CONFIGS["flying-mnist"], seed=0)
    assert SAMPLE.encode() not in (tmp_path / "data.h5").read_bytes()


def test_digits_are_held_as_integers_again(tmp_path: Path) -> None:
    export_hdf5(tmp_path / "data.h5", CONFIGS["flying-mnist"], seed=0)
    data = load_hdf5(tmp_path / "data.h5", "training")
    assert isinstance(data, MemoryDataset)
    assert data.nbytes == 13 * 4 * 24 * 24 * 3


def test_progress_is_told(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    export_hdf5(tmp_path / "data.h5", CONFIGS["static-shapes"], 0, lambda done, total: steps.append((done, total)))
    assert steps[-1] == (20, 20)


@pytest.mark.parametrize("max_bytes", [None, 1])
def test_a_file_written_by_hand_loads(tmp_path: Path, max_bytes: int | None) -> None:
    features, groups = by_hand(tmp_path / "hand.h5")
    data = load_hdf5(tmp_path / "hand.h5", "validation", max_bytes=max_bytes)
    assert data.shape == (3, 1, 8, 9)
    batch = data.batch(torch.tensor([4, 1, 4]))
    assert np.array_equal(batch.frames.numpy(), features[:, [4, 1, 4]].transpose(0, 1, 4, 2, 3))
    assert batch.groups is not None
    assert np.array_equal(batch.groups.numpy(), groups[..., 0][:, [4, 1, 4]])


def test_only_so_many_sequences_and_frames(tmp_path: Path) -> None:
    features, _ = by_hand(tmp_path / "hand.h5")
    data = load_hdf5(tmp_path / "hand.h5", "training", size=2, frames=2)
    assert len(data) == 2
    assert np.array_equal(data.batch(torch.arange(2)).frames.numpy()[:, :, 0], features[:2, :2, :, :, 0])
    assert len(load_hdf5(tmp_path / "hand.h5", "training", size=100)) == 6


def test_static_files_keep_their_one_frame(tmp_path: Path) -> None:
    by_hand(tmp_path / "hand.h5", frames=1)
    assert load_hdf5(tmp_path / "hand.h5", "training", frames=21).shape == (1, 1, 8, 9)


def test_colours_and_any_value_come_back_exactly(tmp_path: Path) -> None:
    features = np.random.default_rng(1).random((2, 5, 8, 9, 3), np.float32)
    write(tmp_path / "c.h5", features)
    data = load_hdf5(tmp_path / "c.h5", "training")
    assert data.shape == (2, 3, 8, 9)
    assert not data.has_groups
    assert np.array_equal(data.batch(torch.arange(5)).frames.numpy(), features.transpose(0, 1, 4, 2, 3))


def test_a_late_sequence_may_need_a_larger_type(tmp_path: Path) -> None:
    """Zeros and ones first, then a grey value: nothing may be rounded."""
    features = np.zeros((1, 2000, 50, 50, 1), np.float32)
    features[0, -1, 0, 0, 0] = 0.3
    write(tmp_path / "late.h5", features)
    frames = load_hdf5(tmp_path / "late.h5", "training").batch(torch.tensor([1999])).frames
    assert float(frames[0, 0, 0, 0, 0]) == np.float32(0.3)


def _text(path: Path) -> None:
    path.write_text("this is no HDF5 file")


def _truncated(path: Path) -> None:
    by_hand(path, count=2000)
    path.write_bytes(path.read_bytes()[:40_000])


def _no_split(path: Path) -> None:
    write(path, np.zeros((1, 2, 3, 3, 1)), split="train")


def _no_features(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["training/images"] = np.zeros(3)


def _split_is_a_dataset(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["training"] = np.zeros(3)


def _text_features(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("training/features", (1, 2, 3, 3, 1), h5py.string_dtype())


def _external_link(path: Path) -> None:
    by_hand(path.with_name("other.h5"))
    with h5py.File(path, "w") as file:
        file["training"] = h5py.ExternalLink("other.h5", "/training")


def _external_storage(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("training/features", (1, 1, 3, 3, 1), "u1", external=[("/etc/hostname", 0, 9)])


def _huge_sequences(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("training/features", (10**6, 1, 10**5, 10**5, 1), "f4", chunks=(1, 1, 10, 10, 1))


def _soft_link_in_circles(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["training"] = h5py.SoftLink("/training")


def _damaged_chunk(path: Path) -> None:
    with h5py.File(path, "w") as file:
        data = np.random.default_rng(0).random((1, 50, 8, 9, 1), np.float32)
        dataset = file.create_dataset("training/features", data=data, chunks=(1, 50, 8, 9, 1), compression="gzip")
        place = dataset.id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[place + 100 : place + 300] = bytes(200)
    path.write_bytes(content)


def _values(features: Any, groups: Any = None) -> Callable[[Path], None]:
    return lambda path: write(path, features, groups) and None  # type: ignore[func-returns-value]


PLAIN = np.zeros((1, 2, 3, 3, 1), np.float32)
DAMAGED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "text": (_text, "HDF5"),
    "empty file": (lambda path: path.write_bytes(b""), "HDF5"),
    "truncated": (_truncated, "HDF5"),
    "a folder": (lambda path: path.mkdir(), "HDF5"),
    "absent": (lambda path: None, "cannot be read"),
    "other splits": (_no_split, "'training'"),
    "no features": (_no_features, "'features'"),
    "no group": (_split_is_a_dataset, "'training'"),
    "text inside": (_text_features, "numbers"),
    "link to another file": (_external_link, "link"),
    "data elsewhere": (_external_storage, "other files"),
    "circular link": (_soft_link_in_circles, "'training'"),
    "petabytes": (_huge_sequences, "bytes"),
    "damaged chunk": (_damaged_chunk, "training"),
    "three axes": (_values(np.zeros((2, 3, 3))), "(T, N, H, W, C)"),
    "no sequences": (_values(np.zeros((1, 0, 3, 3, 1))), "none of them 0"),
    "not a number": (_values(np.full_like(PLAIN, np.nan)), "from 0 to 1"),
    "too bright": (_values(PLAIN + 255), "from 0 to 1"),
    "negative": (_values(PLAIN - 1), "from 0 to 1"),
    "other groups' shape": (_values(PLAIN, np.zeros((1, 3, 3, 3, 1))), "groups"),
    "groups in halves": (_values(PLAIN, PLAIN + 0.5), "whole numbers"),
    "negative groups": (_values(PLAIN, PLAIN - 1), "whole numbers"),
    "groups beyond 255": (_values(PLAIN, PLAIN + 256), "whole numbers"),
    "groups that are no numbers": (_values(PLAIN, PLAIN + np.nan), "whole numbers"),
}


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("max_bytes", [None, 1])
def test_damaged_files_are_refused_by_name(name: str, max_bytes: int | None, tmp_path: Path) -> None:
    make, words = DAMAGED[name]
    path = tmp_path / "data.h5"
    make(path)
    with pytest.raises(NeuralEMError) as error:
        load_hdf5(path, "training", max_bytes=max_bytes).batch(torch.arange(2))
    assert str(path) in str(error.value)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_too_few_frames_are_refused(tmp_path: Path) -> None:
    by_hand(tmp_path / "hand.h5")
    with pytest.raises(NeuralEMError, match="at least 5 frames, got 3"):
        load_hdf5(tmp_path / "hand.h5", "training", frames=5)


def test_terabytes_of_declared_sequences_take_no_memory(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "wide.h5", "w") as file:
        file.create_dataset("training/features", (1, 10**10, 28, 28, 1), "f4", chunks=(1, 10, 28, 28, 1))
    data = load_split(DataConfig("file", path=str(tmp_path / "wide.h5")), "training", 0, max_bytes=10**6)
    assert len(data) == 50_000
    assert float(data.batch(torch.tensor([49_999])).frames.sum()) == 0


def test_nothing_is_left_of_a_file_that_could_not_be_finished(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise NeuralEMError("enough")

    with pytest.raises(NeuralEMError, match="enough"):
        export_hdf5(tmp_path / "data.h5", CONFIGS["static-shapes"], 0, stop)
    assert list(tmp_path.iterdir()) == []


def test_an_old_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    (tmp_path / "data.h5").write_text("old")
    with pytest.raises(RuntimeError):
        export_hdf5(tmp_path / "data.h5", CONFIGS["static-shapes"], 0, lambda *_: (_ for _ in ()).throw(RuntimeError()))
    assert (tmp_path / "data.h5").read_text() == "old"
    export_hdf5(tmp_path / "data.h5", CONFIGS["static-shapes"], 0)
    assert [path.name for path in tmp_path.iterdir()] == ["data.h5"]
    assert len(load_hdf5(tmp_path / "data.h5", "test")) == 3


@pytest.mark.parametrize("place", ["missing/data.h5", "."])
def test_places_that_cannot_be_written_are_refused(place: str, tmp_path: Path) -> None:
    with pytest.raises(NeuralEMError):
        export_hdf5(tmp_path / place, CONFIGS["static-shapes"], 0)
    assert list(tmp_path.iterdir()) == []


OPTIONS = [{"masks": "m"}, {"channels": "grey"}, {"stride": 2}, {"threshold": 0.4}, {"height": 99}, {"width": 99}]


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_options_for_other_files_are_refused(option: dict[str, Any], tmp_path: Path) -> None:
    by_hand(tmp_path / "hand.h5")
    _, _, height, width = load_split(DataConfig("file", path=str(tmp_path / "hand.h5")), "training", 0).shape
    load_split(DataConfig("file", path=str(tmp_path / "hand.h5"), height=height, width=width), "training", 0)
    with pytest.raises(NeuralEMError, match="HDF5"):
        load_split(DataConfig("file", path=str(tmp_path / "hand.h5"), **option), "training", 0)
