"""``nem segment``: a trained model on the user's own images and video."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from neural_em.cli import options
from neural_em.errors import NeuralEMError

_USUAL = "flying-shapes"


def segment(
    source: Annotated[Path, typer.Argument(metavar="INPUT", hidden=True)],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    model: Annotated[str, typer.Option(help="A shipped model's name, a run folder or a weight file.")] = _USUAL,
    components: options.Components = None,
    masks: Annotated[Path | None, typer.Option(help="True groups, for scores: label images or an array.")] = None,
    steps: Annotated[int | None, typer.Option(help="EM steps on the first frame.", show_default="the model's")] = None,
    starts: Annotated[int, typer.Option(help="Random starts on the first frame; the best one is kept.")] = 5,
    separate: Annotated[bool, typer.Option("--separate", help="Treat every frame as an image of its own.")] = False,
    fit: Annotated[str, typer.Option(help="How to fit frames: resize, crop, crop-resize or none.")] = "resize",
    channels: Annotated[
        str | None, typer.Option(help="Read frames as grey, binary or colour.", show_default="the model's")
    ] = None,
    threshold: Annotated[float, typer.Option(help="Binary frames are 1 above this value.")] = 0.5,
    invert: Annotated[
        bool, typer.Option("--invert", help="Invert the frames, for objects darker than their background.")
    ] = False,
    movie: Annotated[str, typer.Option(help="Overlay video: mp4, gif or auto (MP4 if it can be written).")] = "auto",
    fps: Annotated[
        float | None, typer.Option(help="Frames per second of the video.", show_default="the input's, else 10")
    ] = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
) -> None:
    """Find the objects in an image or a video of your own.

    INPUT is an image, a folder of images, a video, a GIF or an array. Label images, soft assignments, predictions,
    theta, an overlay video and a page to step through go into the folder of --out.
    """
    from neural_em.data.sources import open_source
    from neural_em.report.segmentation import write_segmentation
    from neural_em.segment import SegmentConfig
    from neural_em.segment import segment as frames_of
    from neural_em.storage.pretrained import find_model
    from neural_em.training.device import choose

    card = find_model(model)
    count = card.components if components is None else components
    if count is None:
        raise NeuralEMError("--components is needed: the model's file does not say how many it has")
    kinds: Any = {"fit": fit, "channels": channels}
    config = SegmentConfig(count, steps, starts, separate, seed, threshold=threshold, invert=invert, **kinds)
    clip = open_source(source, leave_out=masks)
    frames = frames_of(clip, card.load(choose(device)), config, masks)
    about = {"source": str(source), "model": card.name, **dataclasses.asdict(config)}
    rate = (clip.fps or None) if fps is None else fps
    with options.progress_bar() as bar:
        written = write_segmentation(
            out, frames, about, rate, movie, lambda done: bar(source.name, done, clip.length)
        )  # fmt: skip
    _tell(written)


def _tell(written: Any) -> None:
    summary = cast(dict[str, Any], written.summary)
    counts = [f"{summary[name]} {name if summary[name] != 1 else name[:-1]}" for name in ("frames", "components")]
    typer.echo(f"{written.path}: {counts[0]} of {summary['height']} x {summary['width']} pixels, {counts[1]}")
    scores = summary.get("scores", {})
    if "mean_over_frames" in scores:
        mean, last = scores["mean_over_frames"], scores["last_scored_frame"]
        typer.echo(f"AMI {last['ami_max']:.3f} on the last scored frame, {mean['ami_max']:.3f} on average over "
                   f"{scores['scored_frames']} frames")  # fmt: skip
    typer.echo(f"look at: {written.path / written.files['page']}")
