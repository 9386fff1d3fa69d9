"""Finding, reading and refusing MNIST's files."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from neural_em import NeuralEMError
from neural_em.data import mnist

SAMPLE = Path(__file__).parent / "mnist"
NAME = "train-images-idx3-ubyte"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test may reach a mirror, or the files of whoever runs it."""
    monkeypatch.setattr(mnist, "_MIRRORS", ("http://127.0.0.1:9/", "http://127.0.0.1:9/again/"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("NEM_MNIST", raising=False)


def idx(count: int = 2, height: int = 28, width: int = 28, magic: int = 0x803, pixels: bytes | None = None) -> bytes:
    data = bytes(count * height * width) if pixels is None else pixels
    return struct.pack(">4I", magic, count, height, width) + data


def test_gzipped_and_plain_files_read_alike(tmp_path: Path) -> None:
    content = gzip.decompress((SAMPLE / f"{NAME}.gz").read_bytes())
    (tmp_path / NAME).write_bytes(content)
    packed, plain = mnist.load_images("train", SAMPLE), mnist.load_images("train", tmp_path)
    assert packed.shape == (60, 28, 28)
    assert np.array_equal(packed, plain)
    assert packed.tobytes() == content[16:]


def test_the_two_parts_differ() -> None:
    assert not np.array_equal(mnist.load_images("train", SAMPLE), mnist.load_images("t10k", SAMPLE))


def test_the_environment_names_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEM_MNIST", str(SAMPLE))
    assert len(mnist.load_images("train")) == 60


def test_the_cache_is_used(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "nem" / "mnist"
    folder.mkdir(parents=True)
    (folder / NAME).write_bytes(idx(3))
    assert mnist.load_images("train").shape == (3, 28, 28)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(idx(3))
    assert len(mnist.load_images("train", tmp_path)) == 3
    (tmp_path / NAME).write_bytes(idx(4))
    assert len(mnist.load_images("train", tmp_path)) == 4


def test_without_a_network_one_error_says_which_files_go_where(tmp_path: Path) -> None:
    with pytest.raises(NeuralEMError) as error:
        mnist.load_images("train")
    message = str(error.value)
    assert "\n" not in message
    for word in (f"{NAME}.gz", "t10k-images-idx3-ubyte.gz", str(tmp_path / "cache" / "nem" / "mnist"), "NEM_MNIST"):
        assert word in message


def test_a_download_is_checked_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A mirror on this machine: first with the wrong bytes, then with bytes of the expected sum."""
    import hashlib

    (tmp_path / "mirror").mkdir()
    served = tmp_path / "mirror" / f"{NAME}.gz"
    served.write_bytes(gzip.compress(idx(5)))
    with _serving(tmp_path / "mirror") as address:
        monkeypatch.setattr(mnist, "_MIRRORS", (address,))
        with pytest.raises(NeuralEMError, match="cannot be downloaded"):
            mnist.load_images("train")
        assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
        monkeypatch.setitem(mnist._SHA256, served.name, hashlib.sha256(served.read_bytes()).hexdigest())
        assert mnist.load_images("train").shape == (5, 28, 28)
    assert (tmp_path / "cache" / "nem" / "mnist" / served.name).read_bytes() == served.read_bytes()


def _serving(folder: Path):  # type: ignore[no-untyped-def]
    import contextlib
    import functools
    import http.server
    import threading

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    @contextlib.contextmanager
    def serve():  # type: ignore[no-untyped-def]
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            server.server_close()

    return serve()


def packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


DAMAGED = {
    "empty": (b"", ["16 bytes", "0 bytes"]),
    "half a header": (idx()[:10], ["16 bytes", "10 bytes"]),
    "labels": (idx(magic=0x801), ["0x00000803", "0x00000801"]),
    "other sizes": (idx(height=32), ["28 x 28", "32 x 28"]),
    "no images": (idx(count=0), ["0 of 28 x 28"]),
    "a byte short": (idx()[:-1], ["1568 bytes"]),
    "a byte long": (idx() + b"x", ["1568 bytes", "more"]),
    "terabytes": (idx(count=2**32 - 1, pixels=b""), ["at most 1073741824 bytes", "4294967295 images"]),
    "most of a gigabyte": (idx(count=10**6, pixels=b""), ["cannot hold"]),
    "gzip cut off": (packed(idx())[:-20], ["IDX"]),
    "gzip without a body": (packed(idx())[:14], ["IDX"]),
    "gzip of terabytes": (packed(idx(count=2**32 - 1, pixels=b"")), ["at most 1073741824 bytes"]),
    "gzip of most of a gigabyte": (packed(idx(count=10**6, pixels=b"")), ["cannot hold"]),
    "gzip of too little": (packed(idx(count=20, pixels=b"abc")), ["15680 bytes", "3 bytes"]),
    "gzip of too much": (packed(idx() + b"x"), ["1568 bytes", "more"]),
    "not gzip": (b"\x1f\x8bnot gzip at all", ["IDX"]),
    "gzip overwritten": (packed(idx())[:14] + bytes(4) + packed(idx())[18:], ["IDX"]),
}


@pytest.mark.parametrize(("content", "words"), DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_files_are_refused_by_name(content: bytes, words: list[str], tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(NeuralEMError) as error:
        mnist.load_images("train", tmp_path)
    message = str(error.value)
    assert str(tmp_path / NAME) in message
    assert "\n" not in message
    assert all(word in message for word in words)


@pytest.mark.parametrize("folder", ["absent", "empty", "file"])
def test_a_folder_without_the_files_is_refused(folder: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NeuralEMError, match=folder):
        mnist.load_images("train", tmp_path / folder)
