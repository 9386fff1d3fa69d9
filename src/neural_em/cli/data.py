"""``nem data``: makes the paper's data sets as files, and pictures of them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from neural_em.cli import options
from neural_em.cli.options import assignments, flag, option
from neural_em.errors import NeuralEMError, refuse, unknown

_PREVIEWED = 4  # sequences


def data(
    kind: Annotated[str, typer.Argument(metavar="KIND", hidden=True)],
    out: Annotated[Path | None, option("HDF5 file to write, in the authors' layout.")] = None,
    preview: Annotated[Path | None, option("Picture to write, of a few training sequences.")] = None,
    objects: Annotated[
        int | None, option("Objects in a sequence.", "3 shapes, 2 digits, 4 balls, 1 to 4 sprites, 1 to 6 objects")
    ] = None,
    frames: Annotated[int | None, option("Frames of a sequence.", "21; static and tetrominoes 1, balls 51")] = None,
    height: Annotated[
        int | None, option("Height of a frame.", "28 for shapes, 24 for digits, 35 for tetrominoes, else 64")
    ] = None,
    width: Annotated[
        int | None, option("Width of a frame.", "28 for shapes, 24 for digits, 35 for tetrominoes, else 64")
    ] = None,
    train_size: Annotated[int, option("Training sequences.")] = 50_000,
    validation_size: Annotated[int, option("Validation sequences.")] = 10_000,
    test_size: Annotated[int, option("Test sequences.")] = 10_000,
    seed: Annotated[int, option("The same seed gives the same data on every machine.")] = 0,
    velocity: Annotated[
        list[int] | None,
        option("Velocity to draw from, in pixels per frame; may be repeated.", "-1, 0 and 1", metavar="<int>"),
    ] = None,
    overlap: Annotated[str | None, option("How overlapping objects combine: maximum, sum or hide.", "maximum")] = None,
    threshold: Annotated[float | None, option("A pixel belongs to a digit above this value.", "0.5")] = None,
    overlap_above: Annotated[
        float | None, option("Digits overlap where two are above this value.", "the threshold")
    ] = None,
    crop: Annotated[
        str | None, option("Crop digits to their ink: before they are halved, after, or none.", "before")
    ] = None,
    digits: Annotated[int | None, option("Number of training digits to draw from, the first ones.", "all")] = None,
    mnist: Annotated[Path | None, option("Folder of MNIST's IDX files.", "NEM_MNIST, the cache, a download")] = None,
    curtain: Annotated[bool, flag("--curtain", "Three large balls, some of them behind a black square.")] = False,
    overrides: Annotated[list[str] | None, assignments("Any other field of this kind, such as speed=3")] = None,
) -> None:
    """Make a data set with its true groups, as a file or a picture.

    KIND is static-shapes, flying-shapes, flying-mnist or bouncing-balls; in colour coloured-shapes,
    coloured-digits, tetrominoes, sprites or objects. --threshold, --overlap-above, --crop, --digits and --mnist are
    about digits, --curtain is about balls; --set ground=mixed and the like are about colour.
    """
    from neural_em import config as configs
    from neural_em.data import KINDS, DataConfig
    from neural_em.data.balls import CURTAIN
    from neural_em.files import writable

    generated = [name for name in KINDS if name != "file"]
    if kind not in generated:
        unknown("kind", kind, generated)
    if out is None and preview is None:
        refuse("nem data", "--out FILE.h5 or --preview FILE.png", "neither")
    given: dict[str, Any] = {
        "objects": objects, "frames": frames, "height": height, "width": width,
        "velocities": None if not velocity else tuple(velocity), "overlap": overlap, "threshold": threshold,
        "overlap_above": overlap_above, "crop": crop, "digits": digits, "mnist": options.text(mnist),
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    if curtain and kind != "bouncing-balls":
        raise NeuralEMError(f"--curtain is for bouncing-balls, not for {kind}")
    config = DataConfig(
        kind, **{**(CURTAIN if curtain else {}), **given},
        train_size=train_size, validation_size=validation_size, test_size=test_size,
    )  # fmt: skip
    if any(configs.field_of(each) == "kind" for each in overrides or []):
        raise NeuralEMError("--set kind: name the kind as the argument instead")
    config = configs.override(config, overrides or [])
    for path in (out, preview):  # both, before either is written
        if path is not None:
            writable(path)
    if preview is not None:
        _preview(config, seed, preview)
    if out is not None:
        _write(config, seed, out)


def _preview(config: Any, seed: int, path: Path) -> None:
    import torch

    from neural_em.data import load_split
    from neural_em.report.panels import write_preview

    sequences = load_split(config, "training", seed, size=_PREVIEWED).batch(torch.arange(_PREVIEWED))
    assert sequences.groups is not None
    write_preview(path, sequences.frames.numpy(), sequences.groups.numpy())
    typer.echo(f"{path}: {_PREVIEWED} sequences with their groups")


def _write(config: Any, seed: int, path: Path) -> None:
    from neural_em.data.hdf5 import export_hdf5

    with options.progress_bar() as bar:
        sizes = export_hdf5(path, config, seed, lambda done, total: bar(path.name, done, total))
    typer.echo(f"{path}: " + ", ".join(f"{size} {split}" for split, size in sizes.items()) + " sequences")
    if config.note():
        typer.echo(f"note: {config.note()}")
