"""Weight files that are cut, foreign, changed or hostile: the project's error, and nothing allocated on their word."""

import json
import os
import resource
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from neural_em import ModelConfig, NeuralEM, NeuralEMError, load, save
from tests.processes import ENVIRONMENT, SAFETY

SMALL = ModelConfig(height=5, width=6, theta_size=3, convolutions=(2,), hidden=4)


@pytest.fixture
def file(tmp_path):
    """A good weight file."""
    path = tmp_path / "model.safetensors"
    save(NeuralEM(SMALL, seed=1), path)
    return path


def split(path):
    """The header as a dictionary, and the bytes of the tensors: a safetensors file taken apart by hand."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join(path, header, data):
    """A file from its parts."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def with_config(path, config):
    """The file with another config in its header: a dictionary, or any text."""
    header, data = split(path)
    header["__metadata__"]["config"] = config if isinstance(config, str) else json.dumps(config)
    return join(path, header, data)


def refused(path, pattern="expected"):
    """That loading fails with the one-line error that names the file."""
    with pytest.raises(NeuralEMError, match=pattern) as error:
        load(path)
    message = str(error.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


def test_a_file_cut_anywhere_is_refused(file):
    data = file.read_bytes()
    header = 8 + struct.unpack("<Q", data[:8])[0]
    lengths = {0, 1, 7, 8, 9, header - 1, header, header + 1, len(data) - 1, *range(0, len(data), 97)}
    for length in sorted(lengths):
        file.write_bytes(data[:length])
        refused(file, "expected a whole weight file, got one that cannot be read")


def test_a_file_with_more_at_its_end_is_refused(file):
    file.write_bytes(file.read_bytes() + b"\0" * 4)
    refused(file)


def test_a_header_with_a_changed_byte_is_refused_or_still_means_a_model(file):
    """Whatever byte changes, the answer is a model or the project's error, never another one."""
    content, r = file.read_bytes(), np.random.default_rng(0)
    header = 8 + struct.unpack("<Q", content[:8])[0]
    messages = []
    for place in [*range(8), *r.integers(8, header, 500)]:
        changed = bytearray(content)
        changed[place] ^= r.integers(1, 256)
        file.write_bytes(changed)
        try:
            load(file)
        except NeuralEMError as error:
            messages.append(str(error))
    assert len(messages) > 400  # a byte of the notes or of a free option may change and mean a model still
    assert all(message.startswith(str(file)) and "\n" not in message for message in messages)


@pytest.mark.parametrize("content", [
    b"", b"PK\x03\x04 a zip", b"\x80\x04\x95 a pickle", b"\x89HDF\r\n\x1a\n", b"hello, this is text", bytes(4096),
    b"\xff" * 64, struct.pack("<Q", 2**62) + b"{}", struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 4) + b"null",
], ids=repr)  # fmt: skip
def test_foreign_content_is_refused(tmp_path, content):
    (tmp_path / "foreign").write_bytes(content)
    refused(tmp_path / "foreign", "expected .* weight file")


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"format": "neural-em-2"}, {"format": ""}])
def test_a_foreign_safetensors_file_is_refused(tmp_path, metadata):
    save_file({"weight": torch.zeros(3)}, tmp_path / "other.safetensors", metadata=metadata)
    expected = (metadata or {}).get("format")
    refused(tmp_path / "other.safetensors", rf"expected a weight file of format neural-em-1, got format {expected}$")


def test_a_pickle_is_refused_and_not_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)

    torch.save({"weights": Bomb()}, tmp_path / "bomb.pt")
    refused(tmp_path / "bomb.pt")
    assert not (tmp_path / "exploded").exists()


def test_what_is_no_file_is_refused(tmp_path):
    refused(tmp_path, "expected a weight file, got a folder or a device$")
    refused(tmp_path / "missing", "expected a weight file, got nothing there$")
    refused(tmp_path / "missing" / "deeper", "expected a weight file, got nothing there$")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "expected a weight file, got a folder or a device$")


@pytest.mark.parametrize(("change", "pattern"), [
    ({"theta_size": 0}, r"model\.theta_size: expected an integer from 1 to 65536, got 0"),
    ({"theta_size": 10**30}, r"model\.theta_size: expected"),
    ({"theta_size": "3"}, r"theta_size: expected an integer, got '3'"),
    ({"theta_size": 4}, r"weights .*: expected shape .*4.*, got shape .*3"),
    ({"m_step": "gradient"}, r"weights .*: expected "),
    ({"m_step": "nothing"}, r"m_step: expected one of recurrent, gradient"),
    ({"prior": float("nan")}, r"prior: expected a finite number"),
    ({"noise": {"kind": "bit-flips", "probability": 7}}, r"noise\.probability: expected"),
    ({"colour": 1}, r"unknown field: expected one of .*got 'colour'"),
    ({"convolutions": [2, 2]}, r"weights .*: expected "),
    ({"convolutions": [65536] * 13}, r"convolutions: expected at most 12"),
    ({"layer_norm": False}, r"weights .*: expected none of that name, got shape"),
    ({"hidden": 0}, r"weights .*: expected "),
    ({"loss_steps": "sometimes"}, r"loss_steps"),
], ids=str)  # fmt: skip
def test_a_config_that_does_not_fit_is_refused(file, change, pattern):
    config = json.loads(split(file)[0]["__metadata__"]["config"])
    refused(with_config(file, config | change), pattern)


TEXTS = ["", "{", "null", "[]", "3", '"text"', "[" * 100_000, '{"theta_size": ' + "9" * 10_000 + "}"]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:12])
def test_a_config_that_is_none_is_refused(file, text):
    refused(with_config(file, text))


def test_a_missing_config_is_refused(file):
    header, data = split(file)
    del header["__metadata__"]["config"]
    refused(join(file, header, data))


@pytest.mark.parametrize("notes", ["[1]", "{", "3"])
def test_wrong_notes_are_refused(file, notes):
    header, data = split(file)
    header["__metadata__"]["notes"] = notes
    refused(join(file, header, data))


HUGE = [
    {"theta_size": 65536, "hidden": 65536},
    {"channels": 65536, "height": 4096, "width": 1},
    {"height": 16384, "width": 16384, "convolutions": [], "hidden": 65536},
    {"height": 16384, "width": 16384, "convolutions": [65536] * 12, "hidden": 65536, "theta_size": 65536},
    {"channels": 65536, "height": 65536, "width": 65536, "convolutions": [], "hidden": 65536},
    {"m_step": "gradient", "height": 16384, "width": 16384, "theta_size": 65536, "convolutions": [], "hidden": 65536},
    {"loss_steps": [1.0] * 200_000, "theta_size": 65536},
]
LIMITED = """
import resource, sys
from neural_em import NeuralEMError, load

def count(frame, event, argument):
    global calls
    calls += event == "call"

free = 256 << 20
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + free, used + free))
for path in sys.argv[1:]:
    calls = 0
    sys.setprofile(count)
    try:
        load(path)
        print("loaded")
    except NeuralEMError:
        sys.setprofile(None)
        print(f"refused {calls}")
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory in use is read from /proc")
def test_sizes_that_a_file_only_claims_are_never_allocated(tmp_path):
    """In a process that may take 256 MiB more, each file that claims up to exabytes is refused with little work."""
    paths = []
    for i, change in enumerate(HUGE):
        path = tmp_path / f"{i}.safetensors"
        save(NeuralEM(SMALL), path)
        config = json.loads(split(path)[0]["__metadata__"]["config"])
        paths.append(str(with_config(path, config | change)))
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *paths], capture_output=True, text=True, env=ENVIRONMENT, timeout=SAFETY
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [line.split() for line in done.stdout.splitlines()]
    assert [answer[0] for answer in answers] == ["refused"] * len(HUGE)
    for path, (_, calls) in zip(paths, answers, strict=True):  # the work is that of the file, not of what it claims
        assert int(calls) < 10_000 + 5 * Path(path).stat().st_size


def test_tensors_that_a_file_only_claims_are_never_allocated(file):
    header, data = split(file)
    name = next(name for name in header if name != "__metadata__")
    header[name] = {"dtype": "F32", "shape": [2**20, 2**20], "data_offsets": [0, 2**42]}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(join(file, header, data))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_weights_that_are_not_finite_are_refused(tmp_path, value, dtype):
    tensors = {name: tensor.to(dtype) for name, tensor in NeuralEM(SMALL).state_dict().items()}
    save(NeuralEM(SMALL), tmp_path / "good")
    metadata = split(tmp_path / "good")[0]["__metadata__"]
    name = "m_step.recurrence.weight"
    tensors[name][1, 2] = value
    save_file(tensors, tmp_path / "bad", metadata=metadata)
    refused(tmp_path / "bad", rf"weights {name}: expected finite weights, got not-a-number or infinity")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.complex64])
def test_weights_of_another_kind_are_refused(file, tmp_path, dtype):
    tensors = {name: tensor.to(dtype) for name, tensor in NeuralEM(SMALL).state_dict().items()}
    save_file(tensors, tmp_path / "bad", metadata=split(file)[0]["__metadata__"])
    refused(tmp_path / "bad", r"expected floating point weights, got torch\.")


def test_weights_of_two_types_are_refused(file, tmp_path):
    tensors = NeuralEM(SMALL).state_dict()
    tensors["m_step.recurrence.weight"] = tensors["m_step.recurrence.weight"].double()
    save_file(tensors, tmp_path / "bad", metadata=split(file)[0]["__metadata__"])
    refused(tmp_path / "bad", r"expected one type for all, got \['torch\.float32', 'torch\.float64'\]")
