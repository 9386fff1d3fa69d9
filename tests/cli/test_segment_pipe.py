"""``nem segment -``: frames from standard input, labels as they come."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from tests.known import BARS


def pipe(tmp_path: Path, data: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "neural_em", "segment", "-", "--device", "cpu", *arguments]
    return subprocess.run(command, input=data, cwd=tmp_path, capture_output=True, check=False)


def test_frames_from_standard_input(tmp_path: Path, weights: str) -> None:
    raw = np.stack([np.kron(BARS, np.full((2, 2), 255)).astype(np.uint8)] * 5).tobytes()
    done = pipe(tmp_path, raw, "--size", "12x12", "--model", weights)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["frame"], line["count"]) for line in lines] == [(t, 2) for t in range(5)]
    assert sorted(each["box"] for each in lines[0]["objects"]) == [[0, 0, 12, 4], [0, 8, 12, 4]]
    done = pipe(tmp_path, raw, "--size", "12x12", "--model", weights, "--labels", "npy")
    held = io.BytesIO(done.stdout)
    for _ in range(5):
        assert np.array_equal(np.load(held) > 0, np.kron(BARS, np.ones((2, 2))) > 0)
    assert held.read() == b""
    done = pipe(tmp_path, b"no frames", "--model", weights)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[-1].startswith("nem: standard input: expected JPEG pictures")


def test_pictures_from_standard_input_into_a_folder(tmp_path: Path, weights: str) -> None:
    held = io.BytesIO()
    for _ in range(3):
        Image.fromarray(np.kron(BARS, np.full((8, 8), 255)).astype(np.uint8)).save(held, "jpeg")
    done = pipe(tmp_path, held.getvalue(), "--model", weights, "--out", "out")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "out" / "labels").iterdir())) == 3
    done = pipe(tmp_path, held.getvalue(), "--model", weights, "--labels", "png")
    assert done.stdout.count(b"\x89PNG") == 3


def test_bytes_that_are_left_over_are_said(tmp_path: Path, weights: str) -> None:
    """As frames of another size leave them, which would else only look odd."""
    raw = np.stack([np.kron(BARS, np.full((2, 2), 255)).astype(np.uint8)] * 5).tobytes()
    for place in ([], ["--out", "out"]):
        done = pipe(tmp_path, raw, "--size", "11x11", "--model", weights, *place)  # five of 144 bytes: 5 x 121 + 115
        assert done.returncode == 0, done.stderr
        left = "nem: 115 bytes are left over after the last whole frame: is --size right?"
        assert left in done.stderr.decode().splitlines()
        done = pipe(tmp_path, raw, "--size", "12x12", "--model", weights, *place)
        assert b"left over" not in done.stderr
