"""``nem segment``: a trained model on the user's own images and video."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from neural_em.cli import options
from neural_em.cli.options import flag, option
from neural_em.errors import NeuralEMError, printable, refuse


def segment(
    source: Annotated[Path, typer.Argument(metavar="INPUT", hidden=True)],
    out: Annotated[Path | None, option("Folder to write.", "segmented- and the clip's name")] = None,
    model: Annotated[
        str | None, option("A shipped model's name, a run folder or a weight file.", "by the clip's look")
    ] = None,
    components: Annotated[
        str | None, option("Number of components, K; auto: as many as there are objects.", "as trained")
    ] = None,
    masks: Annotated[Path | None, option("True groups, for scores: label images or an array.")] = None,
    background: Annotated[
        str, option("Ground to take away: auto, none, median, flat, or a picture of the empty scene.")
    ] = "auto",
    raw: Annotated[
        bool, flag("--raw", "Label the model's components; do not follow objects before the ground.")
    ] = False,
    every: Annotated[int, option("Look at every Nth frame only.")] = 1,
    steps: Annotated[int | None, option("EM steps on the first frame.", "the model's")] = None,
    starts: Annotated[
        int | None,
        option(
            "Random starts, run through the first frames; the best one is kept.", "8, or 2 where objects are followed"
        ),
    ] = None,
    separate: Annotated[
        bool, flag("--separate", "Treat every frame as an image of its own: all steps of all starts.")
    ] = False,
    fit: Annotated[
        str | None, option("How to fit frames: resize, crop, crop-resize or none.", "as trained, or resize")
    ] = None,
    channels: Annotated[str | None, option("Read frames as grey, binary or colour.", "the model's")] = None,
    threshold: Annotated[float | None, option("Binary frames are 1 above this value.", "as trained, or 0.5")] = None,
    invert: Annotated[bool, flag("--invert", "Invert the frames, for objects darker than their background.")] = False,
    movie: Annotated[str, option("Overlay video: mp4, gif or auto (MP4 if it can be written).")] = "auto",
    fps: Annotated[float | None, option("Frames per second of the video.", "the input's, else 10")] = None,
    size: Annotated[str | None, option("Of raw frames from standard input: HxW, or HxWx3 for colour.")] = None,
    labels: Annotated[str, option("Without --out, to standard output: json, png or npy.")] = "json",
    seed: options.Seed = 0,
    device: options.Device = "auto",
) -> None:
    """Find the objects in an image or a video of your own.

    INPUT is an image, a folder of images, a video, a GIF or an array. Label images, tracks, soft assignments,
    predictions, theta, an overlay video and a page to step through go into a folder. With - for INPUT,
    frames are read from standard input, JPEG pictures or raw ones of a --size; without --out their labels are written
    as they come.
    """
    from neural_em.report.live import write_live
    from neural_em.report.movie import check_movie
    from neural_em.report.segmentation import check_out
    from neural_em.runs.find import find_runs
    from neural_em.segment import SegmentConfig
    from neural_em.segment import segment as frames_of
    from neural_em.segment.choice import usual_model
    from neural_em.segment.truth import Watch, usual
    from neural_em.storage.pretrained import find_model
    from neural_em.training.device import choose

    clip = _clip(source, size, masks)
    if out is None and str(source) != "-":
        out = _usual_out(source)
    binary = invert or threshold is not None or channels in ("grey", "binary")
    name, why = usual_model(clip, binary) if model is None else (model, "")
    card = find_model(name)
    (run,) = find_runs([card.path]).runs
    if why:
        typer.echo(f"model: {name}: {why} (--model names another)", err=out is None)
    kinds = _reading(run, str(source), fit, channels, threshold, background)
    count, auto = _count(components, card)
    config = SegmentConfig(count, steps, starts, separate, seed, invert=invert, every=every, count=auto,
                           follow=not raw, **kinds)  # fmt: skip
    network = card.load(choose(device))
    live = out is None
    frames = frames_of(clip, network, config, masks, live)
    if live:
        typer.echo(f"background: {frames.choice}", err=True)
        write_live(sys.stdout.buffer, frames, labels)
        _tell_left(clip)
        return
    rate = (clip.fps / every if clip.fps else None) if fps is None else fps
    check_movie(movie, rate)
    check_out(cast(Path, out))
    typer.echo(f"background: {printable(frames.choice)}")
    if separate:
        starts, work = frames.stream.config.starts, f"{steps or network.config.steps} steps for every frame"
        several = "" if starts == 1 else f"{starts} starts of "
        typer.echo(f"separate: {several}{work}" + (several and " (fewer --starts are faster)"))
    trained_on = getattr(run.experiment.data, "path", None) if run.data_known else None
    watch = Watch(frames, usual(run, network, count, choose(device)), trained_on)
    about = {"source": str(source), "model": card.name, **dataclasses.asdict(frames.stream.config),
             "ground": frames.choice}  # fmt: skip
    total = None if clip.length is None else -(-clip.length // every)
    _write(cast(Path, out), frames, about, rate, movie, total, watch)
    _tell_left(clip)


def _usual_out(source: Path) -> Path:
    """Named after the clip; what another clip of that name gave is not replaced."""
    from neural_em.files import read_json

    out = Path(f"segmented-{source.resolve().stem}")
    before = out / "segmentation.json"
    if before.is_file():
        held = read_json(before, 1 << 26)
        if not isinstance(held, dict) or held.get("source") != str(source):
            raise NeuralEMError(f"{out} was not made from {source}: name a folder with --out")
    return out


def _write(out: Path, frames: Any, about: dict[str, Any], rate: float | None, movie: str, total: int | None,
           watch: Any) -> None:  # fmt: skip
    from neural_em.report.segmentation import write_segmentation

    name = Path(about["source"]).name
    with options.progress_bar() as bar:
        frames.progress = lambda done: bar(f"{name}: looking", done, total)
        written = write_segmentation(out, frames, about, rate, movie, lambda done: bar(name, done, total), watch)
    _tell(written)
    typer.echo(watch.line())
    for warning in written.summary["warnings"]:
        typer.echo(f"nem: {printable(warning)}", err=True)
    typer.echo(f"look at: {written.path / written.files['page']}")


def _tell_left(clip: Any) -> None:
    """What raw frames of another size than theirs usually leave."""
    if left := getattr(clip, "left", 0):
        typer.echo(f"nem: {left} bytes are left over after the last whole frame: is --size right?", err=True)


def _clip(source: Path, size: str | None, masks: Path | None) -> Any:
    from neural_em.data.sources import open_source
    from neural_em.segment.pipe import PipeSource, parse_size

    if str(source) == "-":
        return PipeSource(sys.stdin.buffer, None if size is None else parse_size(size))
    if size is not None:
        raise NeuralEMError("--size is for frames from standard input (-)")
    return open_source(source, leave_out=masks)


def _reading(run: Any, source: str, fit: str | None, channels: str | None, threshold: float | None,
             background: str) -> dict[str, Any]:  # fmt: skip
    """How to read frames: as asked, else as `nem evaluate` reads the user's data for this run."""
    from neural_em.data import FileConfig
    from neural_em.experiments.own_data import own_data

    own = own_data(run, source, None)
    trained = run.data_known and isinstance(run.experiment.data, FileConfig)
    # a model that was trained on files knows them as they were read; with a ground of its own it knows any
    as_read = background == "auto" and trained and not isinstance(run.experiment.model.prior, str)
    return {
        "fit": own.fit if fit is None else fit,
        "channels": own.channels if channels is None and trained else channels,
        "threshold": own.threshold if threshold is None else threshold,
        "background": run.experiment.data.background if as_read else background,
    }


def _count(components: str | None, card: Any) -> tuple[int, bool]:
    """How many components, and whether that is only more than enough."""
    from neural_em.segment.config import SPARE

    trained = card.components
    if components == "auto":
        # masks compete: with many more than in training one takes all
        return (trained if trained and card.config.distribution == "masked" else max(SPARE, trained or 0)), True
    if components is None:
        if trained is None:
            raise NeuralEMError("--components is needed: the model's file does not say how many it has")
        return trained, False
    if not components.lstrip("-").isdecimal():
        refuse("components", "a whole number or auto", repr(components))
    return int(components), False


def _tell(written: Any) -> None:
    from neural_em.segment.scene import told

    summary = cast(dict[str, Any], written.summary)
    counts = [f"{summary[name]} {name if summary[name] != 1 else name[:-1]}" for name in ("frames", "components")]
    typer.echo(f"{written.path}: {counts[0]} of {summary['height']} x {summary['width']} pixels, {counts[1]}")
    scores = summary.get("scores", {})
    if "mean_over_frames" in scores:
        mean, last = scores["mean_over_frames"], scores["last_scored_frame"]
        typer.echo(f"AMI {last['ami_max']:.3f} on the last scored frame, {mean['ami_max']:.3f} on average over "
                   f"{scores['scored_frames']} frames")  # fmt: skip
        if mean["covered"] < 0.995 and mean["ami_max_visible"] is not None:
            typer.echo(
                f"AMI {mean['ami_max_visible']:.3f} on the {mean['covered']:.0%} of their pixels that have a label"
            )
    objects = summary["objects"]
    if "mota" in objects:
        typer.echo(f"tracks: MOTA {objects['mota']:.3f}, IDF1 {objects['idf1']:.3f}")
    for line in told(summary["followed"]) if "followed" in summary else []:
        typer.echo(line)
