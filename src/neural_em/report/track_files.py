"""The tracks of a segmented clip as files: a table, and JSON after COCO's conventions; frame by frame."""

import csv
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neural_em.segment import Segmented
from neural_em.segment.tracks import Place, Tracker, TrackScores, run_lengths

TABLE, COCO = "tracks.csv", "tracks.json"
COLUMNS = ("frame", "name", "object", "label", "x", "y", "width", "height", "area", "centroid_x", "centroid_y",
           "velocity_x", "velocity_y")  # fmt: skip


class TrackWriter:
    """Takes the frames one by one. COCO's annotations wait in a file of their own until all images are known."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.counts = folder, list[int]()
        self._tracker, self._scores, self._scored = Tracker(), TrackScores(), False
        self._images: list[dict[str, Any]] = []
        self._annotations, self._seen = 0, 0
        self._table = open(folder / TABLE, "w", encoding="utf-8", newline="")  # noqa: SIM115 (open as long as frames come)
        self._rows = csv.writer(self._table, lineterminator="\n")
        self._rows.writerow(COLUMNS)
        self._waiting = tempfile.TemporaryFile("w+", encoding="utf-8", dir=folder)  # noqa: SIM115

    def add(self, frame: Segmented) -> None:
        """The next frame."""
        places = self._tracker.add(frame.labels)
        height, width = frame.labels.shape
        image = {"id": len(self._images), "file_name": frame.name, "height": height, "width": width}
        self._images.append({**image, "objects": len(places)})
        self.counts.append(len(places))
        for place in places:
            numbers = [f"{each:.2f}" for each in (*place.centroid, *place.velocity)]
            self._rows.writerow([place.frame, frame.name, place.object, place.label, *place.box, place.area, *numbers])
            self._annotate(frame, place)
            self._seen = max(self._seen, place.object)
        if frame.groups is not None:
            self._scored = True
            self._scores.add(frame.groups, frame.labels, places)

    def _annotate(self, frame: Segmented, place: Place) -> None:
        self._annotations += 1
        row = {
            "id": self._annotations, "image_id": place.frame, "category_id": 1, "track_id": place.object,
            "bbox": list(place.box), "area": place.area, "iscrowd": 0,
            "segmentation": run_lengths(frame.labels == place.label),
        }  # fmt: skip
        self._waiting.write(json.dumps(row, separators=(",", ":")) + "\n")

    def close(self) -> dict[str, Any]:
        """Ends the files; gives the number of objects, through all frames and in each, and the scores of tracks."""
        self._table.close()
        head = {"images": self._images, "categories": [{"id": 1, "name": "object"}]}
        self._waiting.seek(0)
        with open(self.folder / COCO, "w", encoding="utf-8") as file:
            file.write(json.dumps(head)[:-1] + ', "annotations": [\n')
            for number, row in enumerate(self._waiting):
                file.write((",\n" if number else "") + row.rstrip("\n"))
            file.write("\n]}\n")
        self._waiting.close()
        frames = max(1, len(self.counts))
        found: dict[str, Any] = {"tracks": self._seen, "mean": round(sum(self.counts) / frames, 4)}
        found["most"] = max(self.counts, default=0)
        return {**found, **(self._scores.scores() if self._scored else {})}


def centres(folder: Path) -> Iterator[dict[str, float]]:
    """The rows of a folder's table of tracks, each with its label and the centre, the size and the area of its box."""
    with open(folder / TABLE, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            place = {name: float(row[name]) for name in ("x", "y", "width", "height", "area")}
            middle = {"x": place["x"] + place["width"] / 2, "y": place["y"] + place["height"] / 2}
            yield {**place, **middle, **{name: int(row[name]) for name in ("frame", "object", "label")}}
