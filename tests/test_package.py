"""The package as a whole: what it says of itself, its command, and its pinned dependencies."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections import Counter
from importlib import metadata, resources
from pathlib import Path

import pytest
import yaml

import neural_em
from tests.processes import SAFETY

ROOT = Path(__file__).parent.parent
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path: Path) -> dict[str, str]:
    return {normal(name): version for name, version in PIN.findall(path.read_text(encoding="utf-8"))}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=SAFETY)


def test_one_version_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert metadata.version("neural-em") == neural_em.__version__ == citation["version"]
    assert f"## {neural_em.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_name_on_the_face_of_the_package_is_there() -> None:
    assert [name for name in neural_em.__all__ if not hasattr(neural_em, name)] == []


def test_all_files_are_installed() -> None:
    """Fails against a wheel that leaves them out, or a part of the code."""
    package = resources.files("neural_em")
    assert (package / "py.typed").is_file()
    source = ROOT / "src" / "neural_em"
    files = [path.relative_to(source) for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {".py", ".css", ".js", ".safetensors"} <= {path.suffix for path in files}
    assert [str(path) for path in files if not package.joinpath(*path.parts).is_file()] == []


@pytest.mark.parametrize("command", [("-m", "neural_em"), ("-c", "from neural_em.cli import main; main()")])
def test_the_command_tells_its_version(command: tuple[str, ...]) -> None:
    done = run(sys.executable, *command, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"nem {neural_em.__version__}\n", "")


def test_nem_is_installed_as_a_command() -> None:
    (entry,) = (e for e in metadata.entry_points(group="console_scripts") if e.name == "nem")
    assert callable(entry.load())


def test_optional_packages_are_not_imported_with_the_package() -> None:
    """A user without the extras, and everybody's start-up time."""
    optional = ["sklearn", "imageio", "tensorboard", "onnx", "onnxruntime", "onnxscript", "pooch", "matplotlib", "h5py"]
    code = f"import sys, neural_em, neural_em.cli; print([name for name in {optional} if name in sys.modules])"
    done = run(sys.executable, "-c", code)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_the_lock_holds_the_pinned_versions_with_hashes() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pinned = pins(ROOT / "constraints.txt")
    assert pinned.pop("torch") == "2.13.0"  # of which each machine takes its own build
    assert pins(ROOT / "requirements.lock") == pinned
    for block in PIN.split(lock)[3::3]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", block)


def test_every_direct_dependency_is_pinned_and_none_needs_torchvision() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"]]
    for group in [*extras.values(), *project["dependency-groups"].values()]:
        wanted += group
    names = {normal(re.split(r"[\[<>=~! ]", requirement)[0]) for requirement in wanted} - {"neural-em"}
    pinned = pins(ROOT / "constraints.txt")
    assert names <= pinned.keys()
    assert not {"torchvision", "torchaudio"} & pinned.keys()


def test_no_two_files_have_the_same_name() -> None:
    """So that a name says which file is meant; each part has its config, and commands are called as what they do."""
    package = Path(neural_em.__file__).parent
    paths = [path.relative_to(package) for path in package.rglob("*.py")]
    named = [path for path in paths if path.parts[0] != "cli" and path.parts[:2] != ("model", "fast")]
    counts = Counter(path.name for path in named if path.name not in ("__init__.py", "config.py"))
    assert counts["folder.py"] == 1
    assert [name for name, count in counts.items() if count > 1] == []
