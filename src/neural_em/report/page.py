"""One self-contained HTML page about one or several runs: scores, players, curves and configuration."""

import base64
import hashlib
import html
import os
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from neural_em import config as configs
from neural_em.files import replacing
from neural_em.report.panels import SequenceReport
from neural_em.report.players import player
from neural_em.report.plots import LOSS, SCORE, AnyCurve, Metrics, learning_lines, step_lines, words
from neural_em.report.svg import COLOURS, line_chart
from neural_em.report.tables import MISSING, number

KEYS = """<p class="note keys"><kbd>←</kbd> <kbd>→</kbd> step, <kbd>space</kbd> plays and pauses, <kbd>Home</kbd>
<kbd>End</kbd> jump, in the player last used.</p>"""

PANELS = """<p class="note">In the assignment each pixel has the colour of the component that owns it, or a mixture
where several share it. Below is what each component predicts. True groups, where there are some, are never shown to the
model; what is black in them is not scored.</p>"""

SCORES = """<p class="note">AMI, ARI and matched IoU say how well the grouping agrees with the true one: 1 is perfect,
and 0 is chance for AMI and ARI.</p>"""

ROLLOUT = """After the steps with input the model goes on with its own predictions. Repeating the last frame is what it
would cost to expect that nothing moves; scores are of the assignment to the model's own prediction."""


@dataclass(frozen=True, eq=False)
class RunReport:
    """What a page shows of one run; everything but the name may be empty."""

    name: str  # what to call the run
    config: Mapping[str, Any] = field(default_factory=dict)  # its settings, nested as they are written
    metrics: Metrics = ()  # what training logged, one row an epoch
    # scores, nested; single values are shown, lists are not
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    curves: Mapping[str, AnyCurve] = field(default_factory=dict)  # scores per step with quartiles, by name
    # sequences to step through; those with one label stand side by side over all runs
    sequences: Sequence[SequenceReport] = ()
    training_steps: int | None = None  # how many steps the model was trained for, marked in the curves; or None
    rollout: Mapping[str, AnyCurve] = field(default_factory=dict)  # the same per step without input


def write_page(
    path: str | os.PathLike[str],
    runs: Sequence[RunReport],
    title: str = "Neural EM report",
    lead: str = "",
    plays: bool = False,
) -> Path:
    """Writes the page about runs, whose names differ. It loads nothing: style, script and pictures are inside.

    The ``lead`` stands below the title, a paragraph a line; by default the run's name, or how many there are. A page
    that ``plays`` begins by itself, unless the reader's system asks for less motion.
    """
    path = Path(path)
    with replacing(path, make_folder=True) as temporary:
        temporary.write_text(render_page(runs, title, lead, plays), encoding="utf-8")
    return path


def render_page(runs: Sequence[RunReport], title: str = "Neural EM report", lead: str = "", plays: bool = False) -> str:
    """The page as text."""
    lead = lead or (runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared")
    made = {name: make(runs) for name, make in SECTIONS.items()}
    made = {name: body for name, body in made.items() if body}
    anchors = {name: name.lower().replace(" ", "-") for name in made}
    links = "".join(f'<a href="#{anchor}">{name}</a>' for name, anchor in anchors.items())
    body = "\n".join(f'<section id="{anchors[name]}"><h2>{name}</h2>\n{body}</section>' for name, body in made.items())
    return document(title, lead, body, f'<nav aria-label="Sections">{links}</nav>' if len(made) > 1 else "", plays)


def document(title: str, lead: str, body: str, navigation: str = "", plays: bool = False) -> str:
    """A whole page around a body of HTML; the title and the lines of the lead are text."""
    folder = resources.files("neural_em.report")
    template, style, script = ((folder / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    return string.Template(template).substitute(
        title=html.escape(title),
        lead="\n".join(f'<p class="lead">{html.escape(line)}</p>' for line in lead.splitlines()),
        plays=" data-plays" if plays else "",
        navigation=navigation,
        body=body,
        style=style,
        script=script,
        # only this very script may run, whatever else finds its way into the page
        script_hash=base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii"),
    )


def _scores(runs: Sequence[RunReport]) -> str:
    lists = (list, tuple, np.ndarray)
    tables = [{k: v for k, v in configs.flat(run.evaluation).items() if not isinstance(v, lists)} for run in runs]
    unknown = {key for key in tables[0] if all(table.get(key) is None for table in tables)} if tables else set()
    tables = [{key: value for key, value in table.items() if key not in unknown} for table in tables]
    note = SCORES if any("AMI" in words(key) for table in tables for key in table) else ""
    return note + _table(runs, tables, words, _rounded) if any(tables) else ""


def _sequences(runs: Sequence[RunReport]) -> str:
    count = sum(len(run.sequences) for run in runs)
    if not count:
        return ""
    parts = [PANELS, KEYS]
    if count > 1:
        checked = " checked" if len(runs) > 1 else ""
        parts.append(
            f'<label class="together"><input type="checkbox" id="together"{checked}> Step all players together</label>'
        )
    if len(runs) == 1:
        players = "\n".join(player(sequence, html.escape(sequence.label)) for sequence in runs[0].sequences)
        return "\n".join([*parts, f'<div class="players alone">\n{players}\n</div>'])
    for label in dict.fromkeys(sequence.label for run in runs for sequence in run.sequences):
        shown = [
            player(sequence, _named(index, run))
            for index, run in enumerate(runs)
            for sequence in run.sequences
            if sequence.label == label
        ]
        parts.append(f'<h3>{html.escape(label)}</h3>\n<div class="players">\n' + "\n".join(shown) + "\n</div>")
    return "\n".join(parts)


def _curves(runs: Sequence[RunReport]) -> str:
    marks = {run.training_steps for run in runs}
    mark = marks.pop() if len(marks) == 1 else None
    return _step_charts({run.name: run.curves for run in runs}, "EM step", mark)


def _rollouts(runs: Sequence[RunReport]) -> str:
    charts = _step_charts({run.name: run.rollout for run in runs}, "step without input")
    return charts and f'<p class="note">{ROLLOUT}</p>\n{charts}'


def _step_charts(runs: Mapping[str, Mapping[str, AnyCurve]], x_label: str, mark: int | None = None) -> str:
    names = dict.fromkeys(name for curves in runs.values() for name in curves)
    lines = {name: step_lines({run: curves.get(name) for run, curves in runs.items()}) for name in names}
    charts = _charts(line_chart(words(name), each, x_label, mark) for name, each in lines.items())
    note = '<p class="note">The line is the mean over the data, the band runs from the lower to the upper quartile.</p>'
    return charts and f"{note}\n{charts}"


def _learning(runs: Sequence[RunReport]) -> str:
    logged = {run.name: run.metrics for run in runs}
    kinds = {"Loss": LOSS, "Score": SCORE}
    return _charts(line_chart(title, learning_lines(logged, names), "epoch") for title, names in kinds.items())


def _charts(charts: Iterable[str]) -> str:
    drawn = "".join(charts)
    return drawn and f'<div class="charts">{drawn}</div>'


def _config(runs: Sequence[RunReport]) -> str:
    tables = [configs.flat(run.config) for run in runs]
    if not any(tables):
        return ""
    keys = list(dict.fromkeys(key for table in tables for key in table))
    differing = {key for key in keys if len({repr(table.get(key)) for table in tables}) > 1}
    whole = f"<details><summary>All settings</summary>{_table(runs, tables, marked=differing)}</details>"
    if len(runs) == 1:
        return whole
    few = [{key: value for key, value in table.items() if key in differing} for table in tables]
    head = _table(runs, few) if differing else '<p class="note">All runs have the same settings.</p>'
    return head + whole


SECTIONS: dict[str, Callable[[Sequence[RunReport]], str]] = {
    "Sequences": _sequences,
    "Scores": _scores,
    "Scores per step": _curves,
    "Rollout": _rollouts,
    "Learning curves": _learning,
    "Settings": _config,
}


def _table(
    runs: Sequence[RunReport],
    tables: Sequence[Mapping[str, Any]],
    label: Callable[[str], str] = str,
    text: Callable[[Any], str] = str,
    marked: set[str] | frozenset[str] = frozenset(),
) -> str:
    """One column a run, one row a name; the marked rows stand out."""
    head = "".join(f'<th scope="col">{_named(index, run)}</th>' for index, run in enumerate(runs))
    head = f"<thead><tr><td></td>{head}</tr></thead>" if len(runs) > 1 else ""
    rows = []
    for key in dict.fromkeys(key for table in tables for key in table):
        texts = [MISSING if table.get(key) is None else text(table[key]) for table in tables]
        cells = "".join(f"<td>{html.escape(one)}</td>" for one in texts)
        style = ' class="differs"' if key in marked else ""
        rows.append(f'<tr{style}><th scope="row">{html.escape(label(key))}</th>{cells}</tr>')
    table = f"<table>{head}<tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="table">{table}</div>'


def _named(index: int, run: RunReport) -> str:
    """The run's name, behind a dot in the colour that it has in the charts."""
    return f'<i class="dot c{index % COLOURS}"></i>{html.escape(run.name)}'


def _rounded(value: Any) -> str:
    if not isinstance(value, float | np.floating) or np.isnan(value):
        return number(value)
    size = float(value)
    return f"{size:.4g}" if abs(size) >= 1 else f"{round(size, 4) + 0.0:.4f}"  # plus zero: no minus zero
