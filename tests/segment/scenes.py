"""Small clips whose truth is known: balls that bounce about, on black or on a textured ground with a moving shadow."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

COLOURS = np.array([[0.9, 0.2, 0.2], [0.2, 0.8, 0.3], [0.25, 0.35, 0.95]])


def texture(height: int, width: int, seed: int = 0) -> NDArray[Any]:
    """A ground (H,W,3) in several colours."""
    smooth = ndimage.gaussian_filter(np.random.default_rng(seed).random((height, width, 3)), (2, 2, 0))
    return 0.35 + 0.3 * (smooth - smooth.min()) / np.ptp(smooth)


def balls(frames: int, height: int = 60, width: int = 80, colour: bool = False, seed: int = 0) -> tuple[Any, Any]:
    """Three shaded balls that bounce: frames (T,H,W) or (T,H,W,3) uint8, and their masks (T,H,W)."""
    rng = np.random.default_rng(seed)
    radius, angle = rng.uniform(6, 8, 3), rng.uniform(0, 2 * np.pi, 3)
    place = np.stack([rng.uniform(10, width - 10, 3), rng.uniform(10, height - 10, 3)], axis=1)
    speed = 1.5 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    y, x = np.mgrid[:height, :width]
    ground = texture(height, width, seed) if colour else np.zeros((height, width, 3))
    clip, masks = [], []
    for t in range(frames):
        shadow = np.exp(-(((x - t * width / frames) / 12) ** 2))
        frame, mask = ground * (1 - 0.35 * shadow[..., None]), np.zeros((height, width), np.uint8)
        for k in range(3):
            away = ((x - place[k, 0]) ** 2 + (y - place[k, 1]) ** 2) / radius[k] ** 2
            shade = 0.35 + 0.65 * np.sqrt(np.clip(1 - away, 0, 1))
            on, own = away < 1, COLOURS[k] if colour else np.ones(3)
            frame[on], mask[on] = (shade[..., None] * own)[on], k + 1
        clip.append(np.clip(frame + rng.normal(0, 0.02, frame.shape) * colour, 0, 1))
        masks.append(mask)
        place += speed
        for axis, side in ((0, width), (1, height)):
            speed[:, axis] = np.where(place[:, axis] < radius, abs(speed[:, axis]), speed[:, axis])
            speed[:, axis] = np.where(place[:, axis] > side - radius, -abs(speed[:, axis]), speed[:, axis])
    pixels = np.rint(np.stack(clip) * 255).astype(np.uint8)
    return (pixels if colour else pixels[..., 0]), np.stack(masks)
