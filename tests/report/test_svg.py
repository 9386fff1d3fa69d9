"""Charts inside a page: well-formed, the page's colours, every line with its band and its last value."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from neural_em.report.plots import Line
from neural_em.report.svg import HEIGHT, WIDTH, line_chart

XLINK = "http://www.w3.org/1999/xlink"


def parsed(text):
    return ET.fromstring(text.replace("<svg ", f'<svg xmlns:xlink="{XLINK}" '))


def strokes(chart, colour):
    """The points of the lines that are drawn in a colour of the page."""
    paths = [path for path in chart.iter("path") if f"stroke: var(--{colour})" in path.get("style", "")]
    return [np.array(re.findall(r"[ML] (\S+) (\S+)", path.get("d")), float) for path in paths]


def test_a_line_is_where_its_points_are():
    chart = parsed(line_chart("AMI", [Line("run", [1, 2, 3, 4, 5], [0.0, 0.25, 0.5, 0.75, 1.0])], "step"))
    (points,) = strokes(chart, "line-0")
    assert np.diff(points[:, 0]) == pytest.approx(np.full(4, points[1, 0] - points[0, 0]), abs=1e-4)
    assert np.diff(points[:, 1]) == pytest.approx(np.full(4, points[1, 1] - points[0, 1]), abs=1e-4)
    assert points[0, 1] > points[-1, 1]  # up is up
    assert ((points >= 0) & (points <= (WIDTH, HEIGHT))).all()


def test_bands_lines_legend_and_mark():
    x, y = np.arange(1, 6), np.linspace(0, 1, 5)
    lines = [Line("a", x, y, y - 0.1, y + 0.1, colour=0), Line("b", x, y / 2, colour=8, dash=5)]
    chart = parsed(line_chart("AMI", lines, "step", mark=3))
    (band,) = chart.iter("use")
    assert "fill: var(--line-0)" in band.get("style")
    assert band.get(f"{{{XLINK}}}href") in [f"#{path.get('id')}" for path in chart.iter("path")]
    swatches = [path.get("class") for path in chart.iter("path") if path.get("class")]
    assert swatches == ["line c0 dash-0", "line c1 dash-1", "line dash-1"]
    assert ["".join(entry.itertext()).split() for entry in chart.iter("li")] == [
        ["a", "1"], ["b", "0.5"], ["trained", "for", "3", "steps"],
    ]  # fmt: skip
    texts = ["".join(text.itertext()) for text in chart.iter("text")]
    assert not any("trained" in text for text in texts)  # a curve would strike it through
    assert "step" in texts
    (line,), (other,) = strokes(chart, "line-0"), strokes(chart, "line-1")
    assert line[2, 0] == other[2, 0]
    marks = [points for points in strokes(chart, "soft") if len(points) == 2 and points[0, 0] == points[1, 0]]
    assert [points[0, 0] for points in marks] == pytest.approx([line[2, 0]])


@pytest.mark.parametrize("mark", [3, 9])
def test_a_mark_at_the_end_or_beyond_it_is_left_out(mark):
    assert "trained for" not in line_chart("AMI", [Line("a", [1, 2, 3], [0.1, 0.2, 0.3])], "step", mark=mark)


def test_points_that_are_no_numbers_are_left_out():
    text = line_chart("loss", [Line("a", [1, 2, 3], [1.0, np.nan, 2.0]), Line("b", [1], [1.5])], "epoch")
    assert "nan" not in text
    assert ["".join(entry.itertext()).split() for entry in parsed(text).iter("li")] == [["a", "2"], ["b", "1.5"]]
    assert line_chart("loss", [Line("a", [1, 2], [np.nan, np.nan])], "epoch") == ""


def test_every_colour_is_the_pages_own_and_nothing_is_named_or_loaded():
    text = line_chart("loss", [Line(str(n), [1, 2], [n, n], colour=n) for n in range(9)], "epoch")
    assert not re.search(r"#[0-9a-f]{6}[^0-9a-f]|http|url\(|<style|font-", text)
    assert {f"var(--line-{n})" in text for n in range(7)} == {True}


def test_text_is_escaped():
    text = line_chart('<b>"t"</b>', [Line("<script>x</script>", [1, 2], [1, 2])], "<i>")
    assert not re.search(r"<(b>|script|i>)", text.replace("<b>2</b>", ""))
    parsed(text)
