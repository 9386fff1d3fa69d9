"""The page: self-contained, escaped, and with the exact pixels inside."""

import base64
import dataclasses
import hashlib
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from neural_em.errors import NeuralEMError
from neural_em.report.colours import palette
from neural_em.report.page import RunReport, render_page, write_page
from neural_em.report.players import encoded
from neural_em.report.plots import StepCurve

HOSTILE = "</script><script>alert('$title')</script>\"'<img src=x onerror=alert(1)>"
VOID = {"meta", "link", "input", "img", "br", "hr"}


class Outline(HTMLParser):
    """Collects the elements and checks that they are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag, css=None):
        return [a for t, a in self.elements if t == tag and (css is None or css in a.get("class", "").split())]


def report(squares, name="run", components=3, **changes):
    sequences = [squares(steps=4, components=components, label=label) for label in ("best", "worst")]
    rows = [{"epoch": e, "train_loss": 9.0 / e, "validation_loss": 10.0 / e, "ami_last": 1 - 1 / e} for e in (1, 2, 3)]
    curve = StepCurve(*np.random.default_rng(0).random((3, 4)))
    run = RunReport(
        name,
        {"seed": 1, "model": {"components": components, "layers": [1, 2]}},
        rows,
        {"ami": {"last": 0.97654321}, "curve": [1, 2]},
        {"AMI": curve},
        sequences,
        4,
    )
    return dataclasses.replace(run, **changes)


def test_the_page_has_every_section_and_a_player_for_every_sequence(squares):
    page = Outline(render_page([report(squares, "a"), report(squares, "b", components=5)]))
    headings = [text for tag, text in page.texts if tag == "h2"]
    assert headings == ["Sequences", "Scores", "Scores per step", "Learning curves", "Settings"]
    assert len(page.all("article", "player")) == 4
    assert len(page.all("canvas")) == 2 * (3 + 3) + 2 * (3 + 5)  # input, assignment, truth, components
    assert len(page.all("figure", "chart")) == 3
    anchors = {a["href"] for a in page.all("a")}
    assert {f"#{section['id']}" for section in page.all("section")} <= anchors


def test_a_rollout_has_a_player_that_knows_it_and_charts_of_its_own(squares, rolled_out):
    curve = StepCurve(*np.random.default_rng(1).random((3, 2)))
    run = report(squares, sequences=[rolled_out], rollout={"next-step error": curve, "last frame repeated": curve})
    page = Outline(render_page([run]))
    (player,) = page.all("article", "player")
    assert (player["data-steps"], player["data-rollout"]) == ("5", "2")
    shown = [canvas["aria-label"] for canvas in page.all("canvas")]
    assert shown[:5] == ["input", "what happened", "prediction", "assignment", "true groups"]
    assert "Rollout" in [text for tag, text in page.texts if tag == "h2"]
    assert len(page.all("figure", "chart")) == 3 + 2
    plain = Outline(render_page([report(squares)]))
    assert {player["data-rollout"] for player in plain.all("article", "player")} == {"0"}


def test_sprites_hold_the_exact_colours_of_every_step(squares):
    run = report(squares)
    page = Outline(render_page([run]))
    sequence = run.sequences[0]
    canvas = next(c for c in page.all("canvas") if c["aria-label"] == "assignment")
    data = base64.b64decode(canvas["data-sprite"].removeprefix("data:image/png;base64,"))
    picture = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert (canvas["width"], canvas["height"], canvas["data-columns"]) == ("15", "12", "4")
    labels = np.argmax(sequence.gamma, axis=1)
    for t in range(4):
        assert np.array_equal(picture[:, t * 15 : (t + 1) * 15], palette(3)[labels[t]])
    borders = [c["style"] for c in page.all("canvas") if c["aria-label"].startswith("component")][:3]
    assert borders == [f"border-color: #{colour.tobytes().hex()}" for colour in palette(3)]


def test_png_is_exact_below_and_above_256_colours():
    rng = np.random.default_rng(2)
    for picture in (rng.integers(0, 256, (40, 40, 3), dtype=np.uint8), np.zeros((3, 2, 3), np.uint8)):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(encoded(picture))).convert("RGB")), picture)


def test_nothing_is_loaded_from_outside(squares):
    text = render_page([report(squares)])
    page = Outline(text)
    for _, attributes in page.elements:
        for name in ("src", "href", "data-sprite", "action", "srcset"):
            assert re.match(r"data:|#", attributes.get(name, "#"))
    assert "http:" not in text
    assert "https:" not in text
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|WebSocket", text)


def test_only_the_pages_own_script_may_run(squares):
    text = render_page([report(squares)])
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [a["content"] for a in Outline(text).all("meta") if "http-equiv" in a]
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy


def test_hostile_text_stays_text(squares):
    sequences = [dataclasses.replace(squares(label=HOSTILE), score_name=HOSTILE)]
    run = RunReport(
        HOSTILE,
        {HOSTILE: HOSTILE, "nested": {HOSTILE: [HOSTILE]}},
        [{"epoch": 1, f"loss {HOSTILE}": 2.0}, {"epoch": 2, f"loss {HOSTILE}": 1.0}],
        {HOSTILE: HOSTILE},
        {HOSTILE: StepCurve([0.5, 0.6], [0.4, 0.5], [0.6, 0.7])},
        sequences,
    )
    other = dataclasses.replace(run, name="other")
    for runs in ([run], [run, other]):
        text = render_page(runs, title=HOSTILE, lead=HOSTILE)
        page = Outline(text)
        assert len(page.all("script")) == 1
        assert page.all("img") == []
        assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
        assert "".join(text for tag, text in page.texts if tag == "h1") == HOSTILE
        cells = "".join(text for tag, text in page.texts if tag == "td")
        assert HOSTILE in cells


def test_settings_that_differ_are_shown_first_and_marked(squares):
    page = Outline(render_page([report(squares, "a"), report(squares, "b", components=5)]))
    rows = [text for tag, text in page.texts if tag == "th"]
    first = rows.index("model.components")
    assert rows.index("seed") > first  # equal settings come only in the whole table
    assert len(page.all("tr", "differs")) == 1


def test_scores_are_rounded_and_missing_ones_are_dashes(squares):
    runs = [report(squares, "a"), report(squares, "b", evaluation={"bce": float("nan")})]
    cells = [text for tag, text in Outline(render_page(runs)).texts if tag == "td"]
    assert cells[:4] == ["0.9765", "–", "–", "–"]


def test_a_run_with_nothing_but_a_name_gives_a_page():
    page = Outline(render_page([RunReport("empty")]))
    assert page.all("section") == []
    assert "empty" in [text for tag, text in page.texts if tag == "p"]


def test_the_same_runs_give_the_same_file_and_errors_leave_none(squares, tmp_path):
    first = write_page(tmp_path / "deep" / "a.html", [report(squares)])
    second = write_page(tmp_path / "deep" / "b.html", [report(squares)])
    assert first.read_bytes() == second.read_bytes()
    (tmp_path / "file").write_text("")
    with pytest.raises(NeuralEMError, match="cannot be written"):
        write_page(tmp_path / "file" / "c.html", [RunReport("a")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "file"]
