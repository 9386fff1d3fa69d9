"""The table that tells the network's part in grouping from the motion's."""

from __future__ import annotations

from pathlib import Path

from neural_em.reproduce import GROUPS, TRAININGS, Reproduction
from neural_em.reproduce.results_page import cells, render
from tests.reproduce.made import evaluated, record, row, trained


def test_the_four_trainings_differ_in_network_and_motion_alone() -> None:
    for quick in (False, True):
        found = {training.name: training.experiment() for training in Reproduction.chosen(["motion"], quick)}
        assert list(found) == list(GROUPS["motion"])
        for name, experiment in found.items():
            assert (experiment.model.convolutions == ()) is ("dense" in name)
            assert (set(experiment.data.velocities) == {0}) is ("still" in name)
            assert (experiment.data.objects, experiment.training.components) == (3, 5)
    command = TRAININGS["flying-shapes-3-5-dense-still"].command(Path("runs"), 3)
    assert "--set 'model.convolutions=[]' --set model.hidden=0" in command
    assert "--set 'data.velocities=[0]'" in command


def test_its_rows() -> None:
    """Mean and deviation of two seeds, worked out by hand; what was not scored stays open."""
    runs = [trained(epochs=epochs, evaluations={"standing": evaluated(ami)}) for epochs, ami in ((10, 0.5), (12, 0.7))]
    records = {"flying-shapes-3-5-still": record("flying-shapes-3-5-still", *runs)}
    page = render(cells({}), records, Path("runs"))
    page = page[page.index("## Motion or network") : page.index("## Runs")]
    assert row(page, "| convolutional |", "standing shapes") == [
        "convolutional", "standing shapes", "–", "0.600 ± 0.141", "–", "2", "10 to 12"
    ]  # fmt: skip
    assert row(page, "| dense ", "moving shapes")[2:] == ["–", "–", "–", "0", "–"]
    of_the_paper = {"flying-shapes-3-5": record("flying-shapes-3-5", trained(evaluations={"test": evaluated(0.9)}))}
    assert "## Motion or network" not in render(cells(of_the_paper), of_the_paper, Path("runs"))
