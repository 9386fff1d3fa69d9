"""``nem evaluate``: known answers come out, the paper's variations are one command each, mistakes are one line."""

from __future__ import annotations

import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from sklearn.metrics import adjusted_mutual_info_score

import neural_em
from neural_em.data import DataConfig, load_split
from neural_em.evaluation.evaluate import start_keys
from neural_em.experiments.evaluation import Evaluation
from neural_em.experiments.results import stored
from neural_em.experiments.runs import find_runs
from neural_em.model import ModelConfig
from neural_em.model.fast import accelerate
from neural_em.training import TrainingConfig, fit

Run = Callable[..., Any]


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(yaml.safe_dump(values), encoding="utf-8")


@pytest.mark.parametrize("frames", [1, 4])
def test_a_perfect_segmentation_scores_one(run_nem: Run, hand_made: Run, frames: int) -> None:
    run = hand_made(frames=frames)
    ended = run_nem("evaluate", run.folder, "--device", "cpu")
    assert ended.status == 0, ended.errors
    result = read(run.folder / "evaluations" / "test.json")
    assert (result["sequences"], result["steps"]) == (12, 3)
    for section in ("last_step", "mean_over_steps", "whole_sequence"):
        for score in ("ami_max", "ami_arithmetic", "ari", "iou"):
            assert result[section][score]["mean"] == pytest.approx(1, abs=1e-9), (section, score)
    # psi is sigmoid(10) or sigmoid(-10) on the 24 pixels of the objects, and next to nothing elsewhere
    assert result["last_step"]["upper_bound"]["mean"] == pytest.approx(24 * 4.54e-5, rel=0.01)
    assert "AMI (max)             1.000" in ended.out


def test_a_random_segmentation_scores_zero_within_error(run_nem: Run, hand_made: Run) -> None:
    run = hand_made(groups="random", count=400)
    assert run_nem("evaluate", run.folder, "--device", "cpu").status == 0
    result = read(run.folder / "evaluations" / "test.json")
    scores = result["per_sequence"]["ami_max"]
    error = statistics.stdev(scores) / len(scores) ** 0.5
    assert 0.001 < error < 0.01
    assert abs(result["last_step"]["ami_max"]["mean"]) < 4 * error


def test_other_objects_components_and_steps_are_what_is_scored(run_nem: Run, trained: Path) -> None:
    """The paper's generalisation tests; the score is checked with scikit-learn on the model's own unroll."""
    ended = run_nem("evaluate", trained / "seed-0", "--objects", 3, "--components", 4, "--steps", 6, "--device", "cpu")
    assert ended.status == 0, ended.errors
    assert "trained with 2 components, evaluated with 4" in ended.out
    result = read(trained / "seed-0" / "evaluations" / "test-objects3-components4-steps6.json")
    data = load_split(DataConfig("flying-shapes", 3, 7, 14, 16), "test", 0, size=12)
    frames, groups = data.batch(torch.arange(12))
    # the fast twin: where assignments are nearly even, the last bit decides
    model = accelerate(neural_em.load(trained / "seed-0" / "best.safetensors"))
    x_noisy, gamma = model.draw(frames, 4, start_keys(0, 0, torch.arange(12)))
    with torch.no_grad():
        out = model.unroll(frames, 4, x_noisy=x_noisy, gamma=gamma)
    label = out.gamma[-1, :, :, 0].argmax(dim=1)
    expected = []
    for n in range(12):
        on = groups[6, n] != 0
        if bool(on.any()):
            expected.append(adjusted_mutual_info_score(groups[6, n][on], label[n][on], average_method="max"))
    assert result["last_step"]["ami_max"]["mean"] == pytest.approx(statistics.mean(expected), abs=1e-5)
    assert result["curves"]["upper_bound"]["mean"] == pytest.approx(out.upper_bound.tolist(), rel=1e-4)
    assert result["settings"]["data"]["frames"] == 7


def test_static_digits_and_longer_sequences_are_one_command_each(run_nem: Run, trained: Path) -> None:
    for options, name, frames, steps in (
        (["--static", "--steps", "50"], "test-steps50-static", 1, 50),
        (["--steps", "50"], "test-steps50", 51, 50),
        (["--split", "training", "--size", "20"], "training-size20", 5, 4),
    ):
        assert run_nem("evaluate", trained / "seed-1", *options, "--device", "cpu").status == 0
        result = read(trained / "seed-1" / "evaluations" / f"{name}.json")
        assert result["settings"]["data"]["frames"] == frames
        assert result["steps"] == len(result["curves"]["ami_max"]["mean"]) == steps
    assert result["sequences"] == 20


def test_fields_of_the_data_can_be_changed(run_nem: Run, trained: Path) -> None:
    """Shapes that move in one direction only; the two directions are two results."""
    scores = [read_usual(run_nem, trained)["last_step"]["ami_max"]["mean"]]
    for velocity in (-1, 1):
        before = set((trained / "seed-0" / "evaluations").glob("*.json"))
        change = f"data.velocities=[{velocity}]"
        assert run_nem("evaluate", trained / "seed-0", "--set", change, "--device", "cpu").status == 0
        (path,) = set((trained / "seed-0" / "evaluations").glob("*.json")) - before
        assert path.name.startswith("test-velocities_")
        result = read(path)
        assert result["settings"]["data"]["velocities"] == [velocity]
        scores.append(result["last_step"]["ami_max"]["mean"])
    assert len(set(scores)) == 3
    evaluation = Evaluation(changes=("data.velocities=[1]", "data.test_size=3"))
    assert evaluation.options() == "--set 'data.velocities=[1]' --set data.test_size=3"


def test_an_evaluation_from_before_a_field_was_added_still_counts(run_nem: Run, trained: Path) -> None:
    result = read_usual(run_nem, trained)
    del result["settings"]["data"]["overlap_above"]
    path = trained / "seed-0" / "evaluations" / "test.json"
    path.write_text(json.dumps(result))
    (run,) = find_runs([str(trained / "seed-0")]).runs
    assert stored(run, Evaluation()) is not None
    result["settings"]["data"]["velocities"] = [3]
    path.write_text(json.dumps(result))
    assert stored(run, Evaluation()) is None


def read_usual(run_nem: Run, trained: Path) -> dict[str, Any]:
    assert run_nem("evaluate", trained / "seed-0", "--device", "cpu").status == 0
    return read(trained / "seed-0" / "evaluations" / "test.json")


def test_seeds_give_mean_and_deviation(run_nem: Run, trained: Path) -> None:
    ended = run_nem("evaluate", trained, "--device", "cpu")
    assert ended.status == 0, ended.errors
    each = [read(trained / seed / "evaluations" / "test.json") for seed in ("seed-0", "seed-1")]
    total = read(trained / "evaluations" / "test.json")
    for section, name in (("last_step", "last step"), ("mean_over_steps", "mean over steps")):
        for score in ("ami_max", "upper_bound"):
            values = [result[section][score]["mean"] for result in each]
            found = total["sections"][name][score]
            assert found["mean"] == pytest.approx(statistics.mean(values))
            assert found["deviation"] == pytest.approx(statistics.stdev(values))
            assert found["count"] == 2
    assert "2 runs of 12 sequences" in ended.out
    assert "±" in ended.out
    with open(trained / "evaluations" / "test.csv", newline="") as file:
        rows = {(row["section"], row["score"]): row for row in csv.DictReader(file)}
    assert float(rows["last step", "ari"]["mean"]) == pytest.approx(total["sections"]["last step"]["ari"]["mean"])


def test_a_run_that_is_named_twice_counts_once(run_nem: Run, trained: Path) -> None:
    same = trained / ".." / "tiny" / "seed-0" / "best.safetensors"
    ended = run_nem("evaluate", trained, trained / "seed-1", same, "--device", "cpu")
    assert ended.status == 0, ended.errors
    assert "2 runs of 12 sequences" in ended.out
    assert ended.errors.count("the same weights as tiny/seed-") == 2
    ended = run_nem("report", trained / "seed-0", trained / "seed-0", "--device", "cpu")
    assert ended.errors == "left out: seed-0: the same weights as seed-0\n"


def test_runs_that_differ_are_not_averaged(run_nem: Run, trained: Path) -> None:
    edit(trained / "seed-1" / "config.yaml", lambda values: values["training"].update(learning_rate=0.5))
    ended = run_nem("evaluate", trained / "seed-0", trained / "seed-1", "--device", "cpu")
    assert ended.status == 0
    assert "no mean: the runs differ in training.learning_rate" in ended.out
    assert "±" not in ended.out


def test_how_runs_were_computed_does_not_matter(run_nem: Run, trained: Path) -> None:
    ways = {"precision": "tf32", "deterministic": True, "epochs": 9, "patience": 3}
    edit(trained / "seed-1" / "config.yaml", lambda values: values["training"].update(ways))
    ended = run_nem("evaluate", trained / "seed-0", trained / "seed-1", "--device", "cpu")
    assert ended.status == 0
    assert "2 runs of 12 sequences" in ended.out


def test_epochs_matter_where_a_schedule_is_made_for_them(run_nem: Run, trained: Path) -> None:
    for seed, epochs in (("seed-0", 2), ("seed-1", 9)):
        ways = {"schedule": "cosine", "epochs": epochs}
        edit(trained / seed / "config.yaml", lambda values, ways=ways: values["training"].update(ways))
    ended = run_nem("evaluate", trained / "seed-0", trained / "seed-1", "--device", "cpu")
    assert "no mean: the runs differ in training.epochs" in ended.out


def test_the_csv_files_hold_what_the_json_does(run_nem: Run, trained: Path) -> None:
    assert run_nem("evaluate", trained / "seed-0", "--out", "here", "--starts", 2, "--device", "cpu").status == 0
    assert not (trained / "seed-0" / "evaluations").exists()
    result = read(Path("here") / "test-starts2.json")
    with open("here/test-starts2.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    curve = [float(row["mean"]) for row in rows if (row["section"], row["score"]) == ("step", "ami_max")]
    assert curve == pytest.approx(result["curves"]["ami_max"]["mean"])
    assert any(row["section"] == "start with the lowest loss" for row in rows)
    with open("here/test-starts2-sequences.csv", newline="") as file:
        single = list(csv.DictReader(file))
    assert [float(row["total"]) for row in single] == pytest.approx(result["per_sequence"]["total"])


def test_without_masks_there_are_losses_only(run_nem: Run, hand_made: Run) -> None:
    run = hand_made(groups="none")
    ended = run_nem("evaluate", run.folder, "--device", "cpu")
    assert ended.status == 0
    assert "no true groups: losses and confidence only" in ended.out
    result = read(run.folder / "evaluations" / "test.json")
    assert "ami_max" not in result["last_step"]
    assert result["last_step"]["confidence"]["mean"] > 0.5


def test_a_weight_file_wants_to_know_its_data(run_nem: Run, refused: Run, hand_made: Run, tmp_path: Path) -> None:
    run = hand_made()
    alone = tmp_path / "alone.safetensors"
    shutil.copy(run.weights, alone)
    assert "expected --preset or --data" in refused("evaluate", alone)
    assert "frames of (C,H,W) (1, 6, 6)" in refused("evaluate", alone, "--preset", "flying-shapes", "--size", 2)
    ended = run_nem("evaluate", alone, "--data", run.data, "--device", "cpu")
    assert ended.status == 0, ended.errors
    assert "AMI (max)             1.000" in ended.out
    assert "written nowhere" in ended.out
    # where training left it, it knows
    assert run_nem("evaluate", run.weights, "--device", "cpu").status == 0


def test_a_run_from_python_wants_to_know_its_data(run_nem: Run, refused: Run, hand_made: Run, tmp_path: Path) -> None:
    known = hand_made()
    model = neural_em.NeuralEM(ModelConfig(height=6, width=6, theta_size=3, convolutions=(), hidden=0))
    settings = TrainingConfig(components=2, epochs=1, batch_size=4, tensorboard=False)
    fit(model, torch.rand(4, 8, 1, 6, 6).round(), settings, run=tmp_path / "python")
    assert "expected --preset or --data" in refused("evaluate", "python")
    ended = run_nem("evaluate", "python", "--data", known.data, "--device", "cpu")
    assert ended.status == 0, ended.errors
    assert ended.out.startswith("python: 12 sequences, 3 steps, 2 components")


def test_more_steps_than_a_file_has_frames(refused: Run, hand_made: Run) -> None:
    run = hand_made(frames=4)
    assert "frames" in refused("evaluate", run.folder, "--steps", 9, "--device", "cpu")


def test_an_unfinished_run_says_so(run_nem: Run, trained: Path) -> None:
    summary = read(trained / "seed-0" / "summary.json") | {"finished": False, "stopped": "max-minutes"}
    (trained / "seed-0" / "summary.json").write_text(json.dumps(summary))
    ended = run_nem("evaluate", trained / "seed-0", "--device", "cpu")
    assert ended.status == 0
    assert "training is not finished: max-minutes after 2 epochs" in ended.out


def test_a_run_without_weights_is_refused_and_left_out(run_nem: Run, refused: Run, trained: Path) -> None:
    (trained / "seed-1" / "best.safetensors").unlink()
    (trained / "seed-1" / "summary.json").write_text(json.dumps({"finished": False, "problem": "loss: got nan"}))
    line = refused("evaluate", trained / "seed-1")
    assert "best.safetensors" in line
    assert "loss: got nan" in line
    ended = run_nem("evaluate", trained, "--device", "cpu")
    assert ended.status == 0
    assert "tiny/seed-0" not in ended.errors
    assert "left out:" in ended.errors
    (trained / "seed-0" / "best.safetensors").unlink()
    assert "seed-0" in refused("evaluate", trained)


def test_staged_runs_are_used_as_far_as_they_are(run_nem: Run, trained: Path, tmp_path: Path) -> None:
    staged = tmp_path / "staged"
    shutil.copytree(trained / "seed-0", staged / "stage-1")
    shutil.copy(trained / "seed-0" / "config.yaml", staged)
    stages = [["data.objects=3"], ["data.objects=4"]]
    edit(staged / "config.yaml", lambda values: values.update(stages=stages))
    ended = run_nem("evaluate", staged, "--device", "cpu")
    assert ended.status == 0, ended.errors
    assert "only stage-1 of 2 has begun" in ended.out
    assert read(staged / "evaluations" / "test.json")["settings"]["data"]["objects"] == 4  # the last stage's


def test_a_config_of_another_version(run_nem: Run, refused: Run, trained: Path) -> None:
    folder = trained / "seed-0"

    def forget(values: dict[str, Any]) -> None:
        del values["training"]["patience"], values["data"]["fresh"], values["model"]["steps"]

    edit(folder / "config.yaml", forget)  # from before these fields were there
    assert run_nem("evaluate", folder, "--device", "cpu").status == 0
    edit(folder / "config.yaml", lambda values: values["data"].update(gravity=9.81))
    made = read(folder / "environment.json")
    made["starts"][-1]["neural_em"] = "7.0"
    (folder / "environment.json").write_text(json.dumps(made))
    line = refused("evaluate", folder)
    assert "config.yaml: data: unknown field" in line
    assert "'gravity'" in line
    assert f"version 7.0, this is {neural_em.__version__}" in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--split", "tset"], "split: expected one of training, validation, test, got 'tset'; did you mean 'test'?"),
        (["--objects", "0"], "objects: expected an integer from 1 to 127, got 0"),
        (["--components", "-1"], "components: expected an integer from 1 to 1024, got -1"),
        (["--components", "1000000000"], "components: expected an integer from 1 to 1024, got 1000000000"),
        (["--size", "1000000000000"], "size: expected an integer from 1 to 100000000"),
        (["--steps", "1000000000"], "steps: expected an integer from 1 to 100000"),
        (["--starts", "1000000"], "starts: expected an integer from 1 to 1000"),
        (["--size", "many"], "invalid value for '--size'"),
        (["--sise", "3"], "no such option: --sise"),
        (["--weights", "worst"], "weights: expected one of best, last"),
        (["--masks", "masks.npy"], "masks: expected the data they belong to"),
        (["--data", "nothing.h5"], "nothing.h5"),
        (["--device", "abacus"], "device: expected auto, cpu, cuda or cuda:N, got 'abacus'"),
        (["--set", "training.epochs=3"], "set: expected fields of data that are generated, data.NAME=VALUE"),
        (["--set", "data.kind=file"], "set: expected fields of data that are generated, data.NAME=VALUE"),
        (["--set", "data.objects=3"], "set: expected --objects instead, got 'data.objects=3'"),
        (["--set", "data.threshold=0.4", "--data", "x.h5"], "set: expected fields of data that are generated"),
        (["--set", "data.gravity=3"], "data: unknown field: expected one of kind, objects"),
        (["--set", "data.height=20"], "data: expected frames of (C,H,W) (1, 14, 16)"),
        (["--preset", "flying-shape"], "did you mean 'flying-shapes'?"),
    ],
)
def test_mistakes_are_answered_in_one_line(refused: Run, trained: Path, options: list[str], words: str) -> None:
    assert words in refused("evaluate", trained / "seed-0", *options)
    assert not (trained / "seed-0" / "evaluations").exists()


def test_what_is_no_run_is_refused(refused: Run, hand_made: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("hello")
    assert "config.yaml" in refused("evaluate", "empty")
    assert "text.txt" in refused("evaluate", "text.txt")
    assert "'nothing'" in refused("evaluate", "nothing")
    assert "objects: expected data that are generated" in refused("evaluate", hand_made().folder, "--objects", 2)


def test_a_broken_weight_file_is_one_line(refused: Run, trained: Path) -> None:
    (trained / "seed-0" / "best.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00broken")
    assert "best.safetensors" in refused("evaluate", trained / "seed-0", "--device", "cpu")


@pytest.mark.gpu
def test_a_gpu_gives_the_same_losses(run_nem: Run, trained: Path) -> None:
    found = {}
    for device in ("cpu", "cuda"):
        assert run_nem("evaluate", trained, "--components", 3, "--device", device).status == 0
        found[device] = read(trained / "seed-0" / "evaluations" / "test-components3.json")["curves"]["upper_bound"]
    assert found["cuda"]["mean"] == pytest.approx(found["cpu"]["mean"], rel=2e-3)
    assert run_nem("figure", trained, "--kind", "sequence", "--kind", "static", "--device", "cuda").status == 0
    assert run_nem("report", trained, "--device", "cuda").status == 0


def test_the_real_process(trained: Path) -> None:
    command = [sys.executable, "-m", "neural_em", "evaluate", str(trained / "seed-0"), "--size", "3", "--device", "cpu"]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
                          check=False, timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("seed-0: 3 sequences, 4 steps, 2 components, 1 start\n")
    assert done.stdout.rstrip().endswith("test-size3.json")
