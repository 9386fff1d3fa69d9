"""Clips like a user's own, with their masks, and how well ``nem segment`` does on them without options.

    python tools/own_clips.py                 # the clips that the code was developed on
    python tools/own_clips.py --held-out      # those that were looked at once, at the end
    python tools/own_clips.py --fresh 16      # so many more of each kind, of seeds that nobody chose
    python tools/own_clips.py --only grey --keep clips
    python tools/own_clips.py --as jpeg       # compressed as cameras do it, or --as mp4

Three kinds: grey shaded balls on black; coloured balls on a textured ground under a moving shadow, with noise; digits
(MNIST's, in the folder of NEM_MNIST), letters and ellipses on black. The last column says how many frames have objects
that touch. Connected components get the true foreground; k-means gets it too, and the true number of objects.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import imageio.v2 as imageio
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score

from neural_em.data.mnist import load_images

Array = NDArray[Any]
COLOURS = np.array([[0.9, 0.2, 0.2], [0.2, 0.8, 0.3], [0.25, 0.35, 0.95], [0.9, 0.8, 0.2], [0.8, 0.3, 0.8]])


class Recipe(NamedTuple):
    """What a clip is made of."""

    kind: str  # grey, colour, figures (white) or tones (figures of several brightnesses)
    seed: int
    objects: int
    height: int = 240
    width: int = 320
    frames: int = 60
    radius: tuple[float, float] = (0.09, 0.14)  # in parts of the shorter side
    speed: tuple[float, float] = (2, 4)  # pixels a frame at 240 x 320

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.seed}"


DEVELOPMENT = (
    Recipe("grey", 11, 2), Recipe("grey", 12, 4), Recipe("grey", 13, 1), Recipe("grey", 14, 5, 200, 200),
    Recipe("grey", 3, 3, frames=100), Recipe("grey", 15, 3, 64, 64, speed=(4, 8)),
    Recipe("colour", 21, 2), Recipe("colour", 22, 4), Recipe("colour", 23, 3, 128, 192), Recipe("colour", 24, 5),
    Recipe("colour", 3, 3, frames=100), Recipe("colour", 25, 1),
    Recipe("figures", 31, 3), Recipe("figures", 32, 4, 128, 128), Recipe("figures", 33, 2, 64, 64),
    Recipe("tones", 34, 3), Recipe("tones", 35, 5, 200, 200), Recipe("tones", 36, 3, 96, 96, speed=(4, 7)),
)  # fmt: skip
HELD_OUT = (
    Recipe("grey", 101, 2, 180, 240), Recipe("grey", 102, 3), Recipe("grey", 103, 4, 256, 256), Recipe("grey", 104, 5),
    Recipe("colour", 111, 2, 180, 240), Recipe("colour", 112, 3), Recipe("colour", 113, 4, 200, 300),
    Recipe("colour", 114, 5), Recipe("figures", 121, 2, 100, 100), Recipe("figures", 122, 3, 64, 64),
    Recipe("tones", 123, 4), Recipe("tones", 124, 3, 128, 128), Recipe("tones", 125, 5, 160, 160),
)  # fmt: skip
SIZES = ((240, 320), (200, 200), (160, 240), (128, 128))


def fresh(count: int) -> list[Recipe]:
    """More clips of each kind: two to five objects, in frames of several sizes."""
    recipes = []
    for kind in ("grey", "colour", "figures", "tones"):
        random = np.random.default_rng(7)
        for seed in range(201, 201 + count):
            objects, size = int(random.integers(2, 6)), SIZES[int(random.integers(len(SIZES)))]
            recipes.append(Recipe(kind, seed, objects, *size))
    return recipes


def make(recipe: Recipe) -> tuple[Array, Array]:
    """Frames (T,H,W) or (T,H,W,3) uint8, and masks (T,H,W): 1..n, the object in front."""
    random = np.random.default_rng(recipe.seed)
    H, W, n = recipe.height, recipe.width, recipe.objects
    radius = random.uniform(*recipe.radius, n) * min(H, W)
    place = np.stack([random.uniform(radius, L - radius) for L in (H, W)], axis=1)
    angle = random.uniform(0, 2 * np.pi, n)
    speed = random.uniform(*recipe.speed, n) * min(H, W) / 240
    velocity = np.stack([np.sin(angle), np.cos(angle)], axis=1) * speed[:, None]
    ground = _ground(random, H, W) if recipe.kind == "colour" else np.zeros((H, W, 3))
    looks = [_look(recipe.kind, random, i) for i in range(n)]
    frames, masks = [], []
    for t in range(recipe.frames):
        frame, mask = ground.copy(), np.zeros((H, W), np.uint8)
        if recipe.kind == "colour":
            frame *= _shadow(H, W, t)
        for i in range(n):
            rows, columns = (np.mgrid[:H, :W] - place[i][:, None, None]) / radius[i]
            there, colour = looks[i](rows, columns)
            frame[there], mask[there] = colour[there], i + 1
        noise = random.normal(0, 0.02, frame.shape) if recipe.kind == "colour" else 0.0
        frames.append((np.clip(frame + noise, 0, 1) * 255).astype(np.uint8))
        masks.append(mask)
        place = place + velocity
        for axis, L in enumerate((H, W)):
            velocity[:, axis] = np.where(place[:, axis] < radius, np.abs(velocity[:, axis]), velocity[:, axis])
            velocity[:, axis] = np.where(place[:, axis] > L - radius, -np.abs(velocity[:, axis]), velocity[:, axis])
    clip = np.stack(frames)
    return clip if recipe.kind == "colour" else clip[..., 0], np.stack(masks)


def _ground(random: Any, H: int, W: int) -> Array:
    texture = ndimage.gaussian_filter(random.random((H, W, 3)), (3, 3, 0))
    texture = (texture - texture.min()) / np.ptp(texture)
    return np.asarray((0.35 + 0.3 * texture) * (0.8 + 0.4 * np.arange(W) / W)[None, :, None])


def _shadow(H: int, W: int, t: int) -> Array:
    rows, columns = np.mgrid[:H, :W]
    middle = W * (0.5 + 0.4 * np.sin(t / 25))
    dark = np.exp(-((((columns - middle) / (0.16 * W)) ** 2) + ((rows - H / 2) / (0.33 * H)) ** 2))
    return np.asarray(1 - 0.35 * dark[..., None])


def _look(kind: str, random: Any, i: int) -> Any:
    """A function of rows and columns, in radii from the centre: where the object is, and its colour there."""
    if kind in ("grey", "colour"):
        colour = COLOURS[i] if kind == "colour" else np.ones(3)

        def ball(rows: Array, columns: Array) -> tuple[Array, Array]:
            square = rows**2 + columns**2
            shade = np.clip(0.35 + 0.65 * np.sqrt(np.clip(1 - square, 0, 1)) - 0.15 * columns, 0.15, 1)
            return square < 1, shade[..., None] * colour

        return ball
    picture = _figure(random)
    tone = 1.0 if kind == "figures" else (0.45, 1.0, 0.7, 0.85, 0.55)[i]

    def figure(rows: Array, columns: Array) -> tuple[Array, Array]:
        cells = [np.clip(((each + 1) * 64).astype(int), 0, 127) for each in (rows, columns)]
        inside = (np.abs(rows) < 1) & (np.abs(columns) < 1)
        there = (picture[cells[0], cells[1]] > 0.5) & inside
        return there, np.full((*there.shape, 3), tone)

    return figure


def _figure(random: Any) -> Array:
    """A digit, a letter or an ellipse on 128 x 128 cells, cropped to its ink."""
    kind = random.integers(3)
    if kind == 0:
        image = Image.fromarray(load_images("t10k")[random.integers(10_000)])
    else:
        image = Image.new("L", (256, 256))
        pen = ImageDraw.Draw(image)
        if kind == 1:
            letter = "ABCDEFGHKLMNPRSTUVXZ"[random.integers(20)]
            pen.text((40, 10), letter, 255, ImageFont.load_default(200), stroke_width=6)
        else:
            half = random.uniform(0.4, 1) * 120
            pen.ellipse((128 - half, 8, 128 + half, 248), 255)
            image = image.rotate(float(random.uniform(0, 180)), Image.Resampling.BILINEAR)
    image = image.crop(image.getbbox())
    side = max(image.size)
    square = Image.new("L", (side, side))
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return np.asarray(square.resize((128, 128), Image.Resampling.BILINEAR)) / 255


def ami(masks: Array, labels: Array) -> float:
    """Of one frame, on the pixels of its objects, normalised by the larger entropy."""
    there = masks > 0
    return float(adjusted_mutual_info_score(masks[there], labels[there], average_method="max"))


def rivals(masks: Array) -> tuple[float, float]:
    """What connected components and k-means on coordinates score on a frame."""
    there = masks > 0
    parts = ndimage.label(there, np.ones((3, 3)))[0]
    points = np.argwhere(there)
    found = np.zeros_like(masks)
    found[there] = KMeans(len(np.unique(masks[there])), n_init=2, random_state=0).fit_predict(points)
    return ami(masks, parts), ami(masks, found)


def touching(masks: Array) -> bool:
    """Whether two objects of a frame touch."""
    parts, count = ndimage.label(masks > 0, np.ones((3, 3)))
    return any(len(np.unique(masks[parts == part])) > 1 for part in range(1, count + 1))


def save(frames: Array, path: Path, kind: str) -> Path:
    """A clip as an array, a folder of JPEG pictures or an MP4, as Pillow and imageio write them unasked."""
    if kind == "npy":
        np.save(path.with_suffix(".npy"), frames)
        return path.with_suffix(".npy")
    if kind == "mp4":
        with imageio.get_writer(path.with_suffix(".mp4"), fps=10, macro_block_size=2) as writer:
            for picture in frames:
                writer.append_data(picture)
        return path.with_suffix(".mp4")
    path.mkdir(exist_ok=True)
    for t, picture in enumerate(frames):
        Image.fromarray(picture).save(path / f"{t:03d}.jpg")
    return path


def score(recipe: Recipe, folder: Path, kind: str, options: list[str]) -> list[str]:
    """A row of the table."""
    frames, masks = make(recipe)
    truth, out = (folder / f"{recipe.name}{end}" for end in ("-masks.npy", "-out"))
    clip = save(frames, folder / recipe.name, kind)
    np.save(truth, masks)
    command = [sys.executable, "-m", "neural_em", "segment", str(clip), "--masks", str(truth), "--out", str(out)]
    subprocess.run([*command, *options], check=True, capture_output=True)
    summary = json.loads((out / "segmentation.json").read_text())
    table = np.genfromtxt(out / "scores.csv", delimiter=",", names=True, usecols=1)["ami_max"]
    some = [t for t in range(len(masks)) if masks[t].any()]
    touch = np.array([touching(masks[t]) for t in some])
    scores = np.array([(table[t], *rivals(masks[t])) for t in some])
    means = [scores.mean(axis=0), scores[touch].mean(axis=0) if touch.any() else np.full(3, np.nan)]
    numbers = ["-" if np.isnan(each) else f"{each:.2f}" for mean in means for each in mean]
    return [recipe.name, f"{recipe.height}x{recipe.width}", str(recipe.objects), summary["model"],
            *numbers, f"{touch.mean():.0%}"]  # fmt: skip


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description="How well nem segment does on clips like a user's own.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--held-out", action="store_true")
    which.add_argument("--fresh", type=int, default=0, metavar="N", help="N more clips of each kind instead")
    parser.add_argument("--only", default="", help="clips whose names begin so")
    parser.add_argument("--as", dest="kind", choices=["npy", "jpeg", "mp4"], default="npy", help="how they are stored")
    parser.add_argument("--keep", type=Path, help="folder for the clips and what is found")
    parser.add_argument("options", nargs="*", help="for nem segment, after --")
    chosen = parser.parse_args()
    head = ["clip", "size", "objects", "model", "AMI", "connected", "k-means", "AMI touching", "connected", "k-means",
            "touching"]  # fmt: skip
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        for recipe in fresh(chosen.fresh) or (HELD_OUT if chosen.held_out else DEVELOPMENT):
            if recipe.name.startswith(chosen.only):
                print(f"| {' | '.join(score(recipe, folder, chosen.kind, chosen.options))} |", flush=True)


if __name__ == "__main__":
    main()
