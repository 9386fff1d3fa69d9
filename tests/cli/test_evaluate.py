"""``nem evaluate``: known answers come out, and the paper's variations are one command each."""

from __future__ import annotations

import csv
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import adjusted_mutual_info_score

import neural_em
from neural_em.data import DataConfig, load_split
from neural_em.evaluation.evaluate import start_keys
from neural_em.experiments.evaluation import Evaluation, stored
from neural_em.model import State
from neural_em.model.fast import accelerate
from neural_em.runs.find import find_runs
from tests.processes import ENVIRONMENT, SAFETY
from tests.run_files import edit, read

Run = Callable[..., Any]


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


@pytest.mark.parametrize(("frames", "steps"), [(1, 3), (6, 5)])
def test_a_run_and_its_weight_file_are_scored_on_the_same_steps(
    run_nem: Run, hand_made: Run, frames: int, steps: int
) -> None:
    """One a frame but the first, of images the model's own 3, however many steps training took."""
    run = hand_made(frames=frames)
    edit(run.folder / "config.yaml", lambda values: values["training"].update(steps=2))
    alone = run.weights.rename(run.folder.parent / "alone.safetensors")
    (run.folder / "best.safetensors").write_bytes(alone.read_bytes())
    for model in (run.folder, alone):
        ended = run_nem("evaluate", model, "--data", run.data, "--out", "scores", "--device", "cpu")
        assert ended.status == 0, ended.errors
        (found,) = Path("scores").glob("*.json")
        assert read(found)["steps"] == steps
        found.unlink()


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
    data = load_split(DataConfig("flying-shapes", objects=3, frames=7, height=14, width=16), "test", 0, size=12)
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


def test_a_rollout_is_written_and_shown_step_by_step(run_nem: Run, trained: Path) -> None:
    """Its numbers against the model's own rollout; what comes before it is what comes without it."""
    usual = read_usual(run_nem, trained)
    ended = run_nem("evaluate", trained / "seed-0", "--rollout", 3, "--device", "cpu")
    assert ended.status == 0, ended.errors
    assert ended.out.count("\n") == 1 + 1 + 9 + (1 + 3) + 1 + usual_notes(usual)
    path = trained / "seed-0" / "evaluations" / "test-rollout3.json"
    result = read(path)
    assert (result["settings"]["rollout"], result["settings"]["data"]["frames"]) == (3, 8)
    assert (result["curves"], result["per_sequence"]) == (usual["curves"], usual["per_sequence"])
    model = accelerate(neural_em.load(trained / "seed-0" / "best.safetensors"))
    frames, _ = load_split(
        DataConfig("flying-shapes", objects=2, frames=8, height=14, width=16), "test", 0, size=12
    ).batch(torch.arange(12))
    x_noisy, gamma = model.draw(frames, 2, keys := start_keys(0, 0, torch.arange(12)), steps=4)
    with torch.no_grad():
        out = model.unroll(frames, 2, steps=4, x_noisy=x_noisy, gamma=gamma)
    last = State(out.theta[-1], out.psi[-1], out.gamma[-1])
    errors = [float(step.info.upper_bound.mean()) for step in model.rollout(last, 3, keys, 4, frames[5:])]
    assert result["rollout"]["upper_bound"]["mean"] == pytest.approx(errors, rel=1e-4)
    with open(path.with_suffix(".csv"), newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["section"], row["score"]) == ("rollout", "upper_bound")]
    assert [(row["step"], float(row["mean"])) for row in rows] == [
        (str(r + 1), pytest.approx(error, rel=1e-4)) for r, error in enumerate(errors)
    ]
    ended = run_nem("evaluate", trained, "--rollout", 3, "--device", "cpu")
    total = read(trained / "evaluations" / "test-rollout3.json")
    assert total["rollout"]["repeated"][2]["mean"] == pytest.approx(result["rollout"]["repeated"]["mean"][2])
    with open(trained / "evaluations" / "test-rollout3.csv", newline="") as file:
        assert sum(row["section"] == "rollout" and row["score"] == "ari" for row in csv.DictReader(file)) == 3


def usual_notes(result: dict[str, Any]) -> int:
    return (result["unscored_images"] > 0) + bool(result["note"])


def test_a_probe_is_written_and_shown(run_nem: Run, hand_made: Run, trained: Path, refused: Run) -> None:
    ended = run_nem("evaluate", trained / "seed-0", "--probe", "--size", 30, "--device", "cpu")
    assert ended.status == 0, ended.errors
    found = read(trained / "seed-0" / "evaluations" / "test-size30-probe.json")["probe"]
    assert found["position"]["score"] == "R²"
    assert found["position"]["linear"] <= 1
    assert "read from theta" in ended.out
    assert "position, R²" in ended.out
    assert Evaluation(probe=True).options() == "--probe"
    assert "probe: these data do not tell" in refused("evaluate", hand_made().folder, "--probe", "--device", "cpu")


def test_a_rollout_of_ones_own_data_needs_its_frames(run_nem: Run, hand_made: Run, refused: Run) -> None:
    run = hand_made()  # 4 frames
    ended = run_nem("evaluate", run.folder, "--rollout", 2, "--device", "cpu")
    assert ended.status == 0, ended.errors
    result = read(run.folder / "evaluations" / "test-rollout2.json")
    assert (result["steps"], len(result["rollout"]["ami_max"]["mean"])) == (1, 2)
    assert result["rollout"]["ami_max"]["mean"] == pytest.approx([1, 1], abs=1e-9)
    assert "expected at least 5 frames, got 4" in refused(
        "evaluate", run.folder, "--rollout", 2, "--steps", 2, "--device", "cpu"
    )
    assert "rollout=3: " in refused("evaluate", run.folder, "--rollout", 3, "--device", "cpu")
    assert "rollout: expected an integer from 0" in refused("evaluate", run.folder, "--rollout", -1)


def test_evaluations_with_and_without_a_rollout_are_not_confused(run_nem: Run, trained: Path) -> None:
    result = read_usual(run_nem, trained)
    (run,) = find_runs([str(trained / "seed-0")]).runs
    ahead, folder = Evaluation(rollout=3), trained / "seed-0" / "evaluations"
    assert stored(run, ahead) is None
    (folder / "test-rollout3.json").write_text(json.dumps(result))
    assert stored(run, ahead) is None
    del result["rollout"], result["settings"]["rollout"]  # as it was written before there were rollouts
    (folder / "test.json").write_text(json.dumps(result))
    assert stored(run, Evaluation()) is not None
    assert ahead.options() == "--rollout 3"


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


def test_many_changes_have_a_file_of_their_own(run_nem: Run, trained: Path) -> None:
    """However many: a file's name has its limits, and an evaluation is not to be lost at its end."""
    fields = ["velocities=[0]", "overlap=hide", "overlap=sum", "overlap=maximum", "train_size=11", "test_size=4"]
    many = [word for _ in range(2) for field in fields for word in ("--set", f"data.{field}")]
    for last in ("velocities=[0]", "velocities=[1]"):
        done = run_nem("evaluate", trained / "seed-0", "--size", 3, *many, "--set", f"data.{last}", "--device", "cpu")
        assert done.status == 0, done.errors
    assert len(list((trained / "seed-0" / "evaluations").glob("test-size3-*.json"))) == 2


def test_an_evaluation_from_before_a_field_was_added_still_counts(run_nem: Run, trained: Path) -> None:
    result = read_usual(run_nem, trained)
    del result["settings"]["data"]["overlap"]
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
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True,
                          check=False, timeout=SAFETY)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("seed-0: 3 sequences, 4 steps, 2 components, 1 start\n")
    assert done.stdout.rstrip().endswith("test-size3.json")
