"""Configs, overrides and weight files damaged at random: each is taken, or refused by the one error in one line."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neural_em import ModelConfig, NeuralEM, config, load, save
from neural_em.errors import NeuralEMError
from neural_em.experiments import PRESETS, Experiment, build
from tests import hostile

MODEL = ModelConfig(height=5, width=6, theta_size=3, convolutions=(2,), hidden=4)
PLAIN = {name: config.to_dict(preset) for name, preset in PRESETS.items()}
FIELDS = sorted({name for plain in PLAIN.values() for name in config.flat(plain)})
ONE_FOLDER = {"suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}


def taken(call: Callable[[], Any]) -> Any:
    """What the call gives, or None where it is refused as it should be; any other exception fails the test."""
    try:
        return call()
    except NeuralEMError as error:
        if not str(error).isprintable() or not 0 < len(str(error)) < 20_000:
            pytest.fail(f"not one line: {error!r}")
        return None


def round_trip(experiment: Experiment, folder: Path) -> None:
    """What was taken can be written and read again, and is the same."""
    (folder / "again.yaml").write_text(config.dump(experiment), encoding="utf-8")
    assert config.read(Experiment, folder / "again.yaml") == experiment


@pytest.mark.slow
@settings(max_examples=500, **ONE_FOLDER)
@given(
    preset=st.sampled_from(sorted(PRESETS)),
    overrides=st.lists(
        st.one_of(
            st.builds("{}={}".format, st.sampled_from(FIELDS), hostile.texts),
            st.builds("{}={}".format, st.sampled_from(FIELDS), hostile.values),
            hostile.texts,
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_overrides(preset: str, overrides: list[str], tmp_path: Path) -> None:
    experiment = taken(lambda: build(preset, overrides))
    if experiment is not None:
        round_trip(experiment, tmp_path)


@pytest.mark.slow
@settings(max_examples=500, **ONE_FOLDER)
@given(values=st.sampled_from(sorted(PLAIN)).flatmap(lambda name: hostile.changed(PLAIN[name], changes=3)))
def test_configs(values: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    text = yaml.dump(values, Dumper=yaml.SafeDumper, allow_unicode=True)
    path.write_bytes(text.encode("utf-8", "surrogateescape" if "\udcff" in text else "strict"))
    experiment = taken(lambda: config.read(Experiment, path))
    if experiment is not None:
        round_trip(experiment, tmp_path)


@pytest.mark.slow
@settings(max_examples=500, **ONE_FOLDER)
@given(data=st.data())
def test_config_files_byte_by_byte(data: st.DataObject, tmp_path: Path) -> None:
    content = config.dump(PRESETS[data.draw(st.sampled_from(sorted(PRESETS)))]).encode()
    path = tmp_path / "config.yaml"
    path.write_bytes(data.draw(hostile.damaged(content, len(content))))
    experiment = taken(lambda: config.read(Experiment, path))
    if experiment is not None:
        round_trip(experiment, tmp_path)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A place for a weight file, and the content of a good one."""
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    save(NeuralEM(MODEL, seed=1), path, notes={"components": 2, "seed": 1})
    return path, path.read_bytes()


def header_end(content: bytes) -> int:
    return 8 + struct.unpack("<Q", content[:8])[0]


@pytest.mark.slow
@settings(max_examples=500)
@given(data=st.data())
def test_weight_files_byte_by_byte(data: st.DataObject, weights: tuple[Path, bytes]) -> None:
    path, content = weights
    path.write_bytes(data.draw(hostile.damaged(content, header_end(content))))
    model = taken(lambda: load(path))
    assert model is None or isinstance(model, NeuralEM)


@pytest.mark.slow
@settings(max_examples=500)
@given(data=st.data())
def test_weight_files_whose_header_tells_other_things(data: st.DataObject, weights: tuple[Path, bytes]) -> None:
    """Names, types, shapes, offsets, config and notes that are something else, in a header that is sound JSON."""
    path, content = weights
    end = header_end(content)
    header = json.loads(content[8:end])
    inner = {name: json.loads(header["__metadata__"][name]) for name in ("config", "notes")}
    if data.draw(st.booleans()):
        inner = data.draw(hostile.changed(inner))
        texts = {name: json.dumps(inner[name]) for name in inner}
        header["__metadata__"] = {"format": header["__metadata__"]["format"], **texts}
    else:
        header = data.draw(hostile.changed(header))
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[end:])
    model = taken(lambda: load(path))
    assert model is None or isinstance(model, NeuralEM)


def test_weight_files_cut_at_every_boundary(weights: tuple[Path, bytes]) -> None:
    """Each byte of the header's length, the header's ends, and each tensor's first and last byte: never a model."""
    path, content = weights
    end = header_end(content)
    offsets = [entry["data_offsets"] for name, entry in json.loads(content[8:end]).items() if name != "__metadata__"]
    borders = {*range(10), end, *(end + offset for pair in offsets for offset in pair)}
    lengths = sorted(length for border in borders for length in (border - 1, border, border + 1))
    lengths = [length for length in lengths if 0 <= length < len(content)]
    assert len(lengths) > 30
    for length in lengths:
        path.write_bytes(content[:length])
        with pytest.raises(NeuralEMError, match="expected a whole weight file, got one that cannot be read"):
            load(path)
