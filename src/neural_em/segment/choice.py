"""The shipped model for a clip, where none is named."""

from itertools import islice

import numpy as np

from neural_em.data.fitting import Fitting, unit
from neural_em.data.sources import Source

SILHOUETTES, OBJECTS = "flying-shapes", "sprites"
ADAPTABLE = 12  # frames of a clip that a model can be adapted to, at least
_SIDE = 28  # pixels of the silhouettes' frames
_LOOKED_AT = 20  # frames in which something has to be seen


def usual_model(clip: Source, grey: bool = False) -> tuple[str, str]:
    """The name of a model for a clip, and why: silhouettes on a coarse grid have one of their own.

    ``grey``: the user has said how to make frames grey, or black and white.
    """
    if grey:
        return SILHOUETTES, "frames without colour, as asked"
    if getattr(clip, "once", False):  # these frames cannot be looked at twice
        return (OBJECTS, "frames in colour") if clip.colour else (SILHOUETTES, "grey frames as they come")
    coarse = Fitting(_SIDE, _SIDE, "binary", "resize")
    for i, frame in enumerate(islice(clip, _LOOKED_AT)):
        values = unit(frame).mean(axis=2)
        white = values > 0.5
        if np.minimum(values, 1 - values).mean() > 0.01 or white.mean() > 0.5:
            break  # shades, or dark objects
        if white.any():
            back = coarse.restore(coarse.frame(frame, clip.frame_name(i))[0], white.shape) > 0
            if (back & white).sum() >= 0.95 * (back | white).sum():
                return SILHOUETTES, f"white figures on black, drawn on {_SIDE} x {_SIDE} pixels or fewer"
            break
    return OBJECTS, "simple objects, grey or in colour"
