"""Makes a shipped model of a run: half-precision weights that carry their data, score, command and environment.

    python tools/ship_model.py RUN --name flying-shapes --about "one line"

The scores are those of one of the run's own evaluations, ``test`` unless named: ``nem evaluate RUN`` first.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from neural_em import load, save
from neural_em.runs.find import read_experiment
from neural_em.storage.pretrained import FOLDER


def main() -> None:
    """Writes the file into the package."""
    parser = argparse.ArgumentParser(description="Makes a shipped model of a run.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--about", required=True)
    parser.add_argument("--evaluation", default="test", help="its file in evaluations/, such as test-size2000")
    parser.add_argument("--command", help="what makes such a run, where the recorded command did more than that")
    options = parser.parse_args()
    experiment, *_ = read_experiment(options.run)
    evaluation = json.loads((options.run / "evaluations" / f"{options.evaluation}.json").read_text())
    last = max(options.run.glob("stage-*"), default=options.run)  # of a run in stages, where the weights are from
    start = json.loads((last / "environment.json").read_text())["starts"][0]
    summary = json.loads((options.run / "summary.json").read_text())
    settings = evaluation["settings"]
    if settings.get("rollout"):  # its frames come after those that the scores are of
        settings["data"]["frames"] -= settings["rollout"]
    words = start["command"][1:]
    if "--run" in words:  # where it was written does not matter
        del words[words.index("--run") : words.index("--run") + 2]
    notes = {
        "about": options.about,
        "command": options.command or " ".join(["nem", *words]),
        "components": experiment.training.components,
        "data": settings["data"],
        "scores": {
            "ami_last": evaluation["last_step"]["ami_max"]["mean"],
            "ami_mean": evaluation["mean_over_steps"]["ami_max"]["mean"],
            "ari_last": evaluation["last_step"]["ari"]["mean"],
            "sequences": evaluation["sequences"],
        },
        "epochs": summary["epochs"],
        "best_epoch": summary["best_epoch"],
        "stopped": summary["stopped"],
        "trained": {key: start[key] for key in ("time", "commit", "device", "precision") if key in start}
        | {"packages": start["packages"]},
        "evaluated": settings["made"],
    }
    FOLDER.mkdir(exist_ok=True)
    target = FOLDER / f"{options.name}.safetensors"
    save(load(options.run / "best.safetensors"), target, dtype=torch.float16, notes=notes)
    print(
        f"{target}: {target.stat().st_size / 2**20:.1f} MiB; {notes['command']}; AMI {notes['scores']['ami_last']:.3f}"
    )


if __name__ == "__main__":
    main()
