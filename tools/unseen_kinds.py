"""What needs no learning makes of the sequences on which a shipped model meets kinds of objects that it never saw.

    python tools/unseen_kinds.py objects --out results/unseen-kinds/objects-baselines.json

AMI on the last frames. Both groupings are told which pixels are objects', and k-means how many objects a frame shows.
The sequences are those of ``nem evaluate MODEL`` with the same settings (docs/own-clips.md), counted by the objects
that they show at any time, as it does; surfaces and noise do not matter here.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neural_em import adjusted_mutual_info, randomness
from neural_em.data import load_split
from neural_em.evaluation.baselines import connected_components, k_means
from neural_em.experiments import build
from neural_em.runs import environment

SETTINGS = {
    "objects": ["data.shapes=[star,heart]"],
    "sprites": [
        "data.shapes=[polygon,star,letter,blob,ring]", "data.most_objects=6", "data.smallest=0.0833",
        "data.largest=0.5", "data.speed=4", "data.motion=varied", "data.grey=0.25",
    ],
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", choices=SETTINGS)
    parser.add_argument("--out", type=Path, help="a JSON file for the scores")
    parser.add_argument("--size", type=int, default=300, help="number of test sequences")
    options = parser.parse_args()
    settings = SETTINGS[options.model]
    groups = load_split(build(options.model, settings).data, "test", 0, size=options.size).batch(
        torch.arange(options.size)
    )[1]
    assert groups is not None  # the data are generated
    last, shown = groups[-1].long(), _count(groups.transpose(0, 1).flatten(1))
    there, now = (last > 0).float()[:, None], _count(last.flatten(1))
    keys = randomness.keys(0, torch.arange(options.size))
    means = torch.zeros_like(last)
    for number in range(1, int(now.max()) + 1):
        means[now == number] = k_means(there[now == number], number, keys[now == number])
    found = {"connected components": connected_components(there), "k-means, true number": means}
    result: dict[str, Any] = {"settings": settings, "made": environment.describe(torch.device("cpu"), "float32")}
    result["sequences"] = {number: int((shown == number).sum()) for number in range(1, int(shown.max()) + 1)}
    for name, assignment in found.items():
        scores = adjusted_mutual_info(last, assignment)
        parts = {number: scores[shown == number] for number in result["sequences"]}
        result[name] = {key: round(float(each.nanmean()), 4) for key, each in {"all": scores, **parts}.items()}
    text = json.dumps(result, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


def _count(labels: Tensor) -> Tensor:
    """How many objects each of the rows (N,P) of labels has."""
    return torch.tensor([len(row[row > 0].unique()) for row in labels])


if __name__ == "__main__":
    main()
