"""The labels of frames as they come, to a stream: one line of JSON, one PNG or one NumPy array a frame."""

import io
import json
from collections.abc import Iterable
from typing import BinaryIO

import numpy as np

from neural_em.errors import unknown
from neural_em.report.segmentation import label_image
from neural_em.segment import Segmented
from neural_em.segment.tracks import Tracker

FORMATS = ("json", "png", "npy")


def write_live(stream: BinaryIO, frames: Iterable[Segmented], kind: str = "json") -> int:
    """Writes the result of each frame that ``segment(..., live=True)`` yields as soon as it is there; counts them.

    As ``json`` the frame's objects, with box, area, centroid and velocity; as ``png`` or ``npy`` its labels.
    """
    if kind not in FORMATS:
        unknown("labels", kind, FORMATS)
    tracker, number = Tracker(), 0
    for number, frame in enumerate(frames, start=1):
        if kind == "json":
            objects = [place._asdict() for place in tracker.add(frame.labels)]
            for each in objects:
                del each["frame"]
            line = {"frame": number - 1, "count": len(objects), "loss": round(frame.step.loss, 4), "objects": objects}
            stream.write(json.dumps(line).encode() + b"\n")
        else:
            held = io.BytesIO()
            if kind == "png":
                label_image(frame.labels).save(held, "png")
            else:
                np.save(held, frame.labels)
            stream.write(held.getvalue())
        stream.flush()
    return number
