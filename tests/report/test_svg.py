"""Charts: well-formed, points where they should be, ticks that are round."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from neural_em.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Line, line_chart, ticks


def parsed(text):
    return ET.fromstring(text)


def points(element):
    return [tuple(float(value) for value in pair.split(",")) for pair in element.get("points").split()]


@pytest.mark.parametrize(
    ("low", "high", "whole", "expected"),
    [
        (0, 1, False, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.13, 0.97, False, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (104, 430, False, [100, 200, 300, 400, 500]),
        (1, 20, True, [5, 10, 15, 20]),
        (1, 3, True, [1, 2, 3]),
        (5, 5, True, [5]),
        (-0.04, 0.04, False, [-0.04, -0.02, 0, 0.02, 0.04]),
    ],
)
def test_ticks_are_round_and_span_the_data(low, high, whole, expected):
    assert ticks(low, high, whole) == pytest.approx(expected)


def test_a_line_runs_from_corner_to_corner_of_the_plot():
    chart = parsed(line_chart("AMI", [Line("run", [1, 11], [0.0, 1.0])], "step"))
    (line,) = chart.iter("polyline")
    assert points(line) == [(LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, TOP)]


def test_bands_lines_legend_and_mark():
    x, y = np.arange(1, 6), np.linspace(0, 1, 5)
    lines = [Line("a", x, y, y - 0.1, y + 0.1, colour=0), Line("b", x, y / 2, colour=8, dash=5)]
    chart = parsed(line_chart("AMI", lines, "step", mark=3))
    assert [len(points(band)) for band in chart.iter("polygon")] == [10]
    assert [line.get("class") for line in chart.iter("polyline")] == ["line c0 dash-0", "line c1 dash-1"]
    assert ["".join(entry.itertext()).split() for entry in chart.iter("li")] == [["a", "1"], ["b", "0.5"]]
    (mark,) = [line for line in chart.iter("line") if line.get("class") == "mark"]
    assert float(mark.get("x1")) == pytest.approx((LEFT + WIDTH - RIGHT) / 2)
    for low, high in zip(points(next(chart.iter("polygon"))), points(next(chart.iter("polyline"))), strict=False):
        assert low[1] > high[1]  # the band's lower edge lies below the line on the screen
        assert 0 <= low[1] <= HEIGHT


def test_points_that_are_no_numbers_are_left_out():
    chart = parsed(line_chart("loss", [Line("a", [1, 2, 3], [1.0, np.nan, 2.0]), Line("b", [1], [1.5])], "epoch"))
    assert [len(points(line)) for line in chart.iter("polyline")] == [2]
    assert len(list(chart.iter("circle"))) == 1
    assert "nan" not in ET.tostring(chart, encoding="unicode")
    assert line_chart("loss", [Line("a", [1, 2], [np.nan, np.nan])], "epoch") == ""


def test_text_is_escaped():
    text = line_chart('<b>"t"</b>', [Line("<script>x</script>", [1, 2], [1, 2])], "<i>")
    assert not re.search(r"<(b>|script|i>)", text.replace("<b>2</b>", ""))
    parsed(text)
