"""The data config fills in the paper's values and refuses what makes no sense."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neural_em import NeuralEMError, config
from neural_em.data import DataConfig, FileConfig


@pytest.mark.parametrize(
    ("kind", "objects", "frames", "side"),
    [("static-shapes", 3, 1, 28), ("flying-shapes", 3, 21, 28), ("flying-mnist", 2, 21, 24)],
)
def test_the_paper_s_values_are_the_defaults(kind: str, objects: int, frames: int, side: int) -> None:
    made = DataConfig(kind)
    assert (made.objects, *made.shape) == (objects, frames, 1, side, side)
    assert made.velocities == (-1, 0, 1)
    assert (made.train_size, made.validation_size, made.test_size) == (50_000, 1_000, 10_000)
    assert not made.fresh


def test_sizes_by_split() -> None:
    made = DataConfig(train_size=5, validation_size=6, test_size=7)
    assert [made.size(split) for split in ("training", "validation", "test")] == [5, 6, 7]
    with pytest.raises(NeuralEMError, match="split: expected one of training, validation, test, got 'all'"):
        made.size("all")  # generated data are endless
    assert DataConfig("file", path="x", train_size=5, validation_size=6, test_size=7).size("all") == 18


def test_files_leave_open_what_they_decide() -> None:
    made = DataConfig("file", path="frames.h5")
    assert (made.shape, made.frames, made.height, made.width) == (None, None, None, None)


def test_a_config_survives_yaml() -> None:
    made = DataConfig("flying-mnist", digits=20, velocities=(-2, 2), threshold=0.5, mnist="digits", fresh=True)
    assert config.from_dict(DataConfig, config.to_dict(made)) == made


def test_digits_are_cropped_but_in_files_from_before_they_were() -> None:
    """Such a file has no field for it; shapes have nothing to crop."""
    made = DataConfig("flying-mnist", digits=20)
    older = {name: value for name, value in config.to_dict(made).items() if name != "crop"}
    assert made.crop == "before"
    assert config.from_dict(DataConfig, older) == DataConfig("flying-mnist", digits=20, crop="none")
    assert config.from_dict(DataConfig, config.to_dict(made)) == made
    assert not hasattr(config.from_dict(DataConfig, {"kind": "static-shapes"}), "crop")
    assert config.override(DataConfig("flying-shapes"), ["kind=flying-mnist"]).crop == "before"


def test_numpy_numbers_will_do_and_can_be_written() -> None:
    given: Any = {"objects": np.int64(3), "velocities": np.arange(-2, 3), "train_size": np.int32(7)}
    above: Any = {"threshold": np.float32(0.5), "overlap_above": np.float64(0.25)}
    made = DataConfig("flying-mnist", **given, **above)
    expected = DataConfig("flying-mnist", objects=3, velocities=(-2, -1, 0, 1, 2), train_size=7, overlap_above=0.25)
    assert config.dump(made) == config.dump(expected)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "flying-shape"}, ["kind", "did you mean 'flying-shapes'"]),
        ({"objects": 0}, ["objects", "got 0"]),
        ({"objects": True}, ["objects", "True"]),
        ({"objects": 2.0}, ["objects", "2.0"]),
        ({"objects": 20}, ["objects", "at most 19"]),
        ({"kind": "flying-mnist", "objects": 12}, ["objects", "at most 11"]),
        ({"kind": "static-shapes", "frames": 2}, ["frames", "from 1 to 1", "got 2"]),
        ({"height": 5}, ["7 x 12", "5 x 28"]),
        ({"height": 10**9}, ["height", "4096"]),
        ({"train_size": 0}, ["train_size", "got 0"]),
        ({"validation_size": None}, ["validation_size", "None"]),
        ({"kind": "flying-mnist", "threshold": -0.1}, ["threshold", "-0.1"]),
        ({"threshold": 0.3}, ["threshold", "'flying-mnist'", "'flying-shapes'"]),
        ({"kind": "flying-mnist", "overlap_above": 0.6}, ["overlap_above", "to the threshold, 0.5", "0.6"]),
        ({"kind": "flying-mnist", "overlap_above": float("nan")}, ["overlap_above", "nan"]),
        ({"kind": "flying-mnist", "overlap_above": "0.1"}, ["overlap_above", "'0.1'"]),
        ({"overlap_above": 0.1}, ["overlap_above", "'flying-mnist'", "'flying-shapes'"]),
        ({"kind": "file", "path": "x.h5", "overlap_above": 0.1}, ["overlap_above", "'flying-mnist'", "'file'"]),
        ({"kind": "file", "path": "x.h5", "digits": 20}, ["digits", "'flying-mnist'", "'file'"]),
        ({"velocities": (0.5,)}, ["velocities", "0.5"]),
        ({"velocities": ()}, ["velocities", "()"]),
        ({"velocities": 1}, ["velocities", "a list of integers", "got 1"]),
        ({"velocities": (10**6,)}, ["velocities", "from -4096 to 4096"]),
        ({"kind": "flying-mnist", "overlap": "add"}, ["overlap", "maximum, sum, hide"]),
        ({"overlap": "sum"}, ["overlap", "maximum, hide", "'sum'"]),
        ({"kind": "static-shapes", "digits": 20}, ["digits", "'flying-mnist'"]),
        ({"kind": "flying-mnist", "crop": "yes"}, ["crop", "before, after, none", "'yes'"]),
        ({"crop": "none"}, ["crop", "'flying-mnist'", "'flying-shapes'"]),
        ({"path": "x.h5"}, ["path", "'file'"]),
        ({"channels": "grey"}, ["channels", "kind 'file'", "'flying-shapes'"]),
        ({"kind": "flying-mnist", "fit": "crop"}, ["fit", "kind 'file'", "'flying-mnist'"]),
        ({"kind": "static-shapes", "stride": 2}, ["stride", "kind 'file'", "'static-shapes'"]),
        ({"kind": "file", "path": "x", "objects": 3}, ["objects", "'flying-shapes'", "'file'"]),
        ({"kind": "file", "path": "x", "velocities": (0, 1)}, ["velocities", "'flying-shapes'", "'file'"]),
        ({"kind": "file"}, ["path"]),
        ({"kind": "file", "path": "x.h5", "fresh": True}, ["fresh", "generated", "'file'"]),
        ({"kind": "file", "path": "x", "fit": "resize"}, ["height and width"]),
        ({"kind": "file", "path": "x", "fit": "stretch"}, ["fit", "resize"]),
        ({"kind": "file", "path": "x", "channels": "gray"}, ["channels", "did you mean 'grey'"]),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, object], words: list[str]) -> None:
    with pytest.raises(NeuralEMError) as error:
        DataConfig(**fields)  # type: ignore[arg-type]
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_file_from_before_kinds_had_their_own_fields_is_read() -> None:
    """It names the fields of all kinds, as they usually are; another kind's field that was set is refused."""
    older = {
        "kind": "flying-shapes", "objects": 5, "frames": 21, "height": 28, "width": 28, "velocities": [-1, 0, 1],
        "overlap": "maximum", "threshold": 0.5, "overlap_above": None, "digits": None, "mnist": None, "path": None,
        "masks": None, "channels": "auto", "fit": "none", "stride": None, "train_size": 50000, "validation_size": 1000,
        "test_size": 10000, "fresh": False,
    }  # fmt: skip
    assert config.from_dict(DataConfig, older) == DataConfig("flying-shapes", objects=5)
    with pytest.raises(
        NeuralEMError, match="digits is for kind 'flying-mnist' or 'coloured-digits', not for 'flying-shapes'"
    ):
        config.from_dict(DataConfig, {**older, "digits": 20})
    files = {**older, "kind": "file", "objects": None, "path": "x", "frames": None, "height": None, "width": None}
    assert config.from_dict(DataConfig, files) == DataConfig("file", path="x")


def test_copies_are_of_the_same_kind() -> None:
    made = DataConfig("flying-mnist", objects=3, crop="after")
    assert copy.deepcopy(made) == made
    assert dataclasses.replace(made, objects=2) == DataConfig("flying-mnist", crop="after")


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(NeuralEMError, match="did you mean 'validation'"):
        DataConfig().size("valid")  # type: ignore[arg-type]


def test_a_kinds_own_class_is_for_that_kind() -> None:
    assert FileConfig("file", path=Path("x")) == DataConfig("file", path="x")
    with pytest.raises(NeuralEMError, match="kind: FileConfig is for 'file', not for 'flying-shapes'"):
        FileConfig(path="x")
    with pytest.raises(NeuralEMError, match="path: expected text, got 5"):
        DataConfig("file", path=5)
