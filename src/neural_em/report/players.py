"""A sequence as a player inside a page: one PNG sprite for each panel, stepped through by the page's script."""

import base64
import html
import io
import json
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from neural_em.report.attention import attention_rgb, table_rgb
from neural_em.report.colours import Pixels, as_components, colour_groups, distinct, palette
from neural_em.report.panels import SequenceReport, magnification_for, sprite

DELAY = 200  # milliseconds of a step while playing
ATTENTION = 192  # pixels of the longer side of pictures with lines, which cannot be drawn pixel by pixel
ICONS = {
    "back": '<svg viewBox="0 0 16 16" aria-hidden="true"><path d="M3 3h2v10H3zM13 3v10L6 8z"/></svg>',
    "play": '<svg class="start" viewBox="0 0 16 16" aria-hidden="true"><path d="M4 2.5v11L13.5 8z"/></svg>'
    '<svg class="pause" viewBox="0 0 16 16" aria-hidden="true"><path d="M3.5 3h3v10h-3zM9.5 3h3v10h-3z"/></svg>',
    "next": '<svg viewBox="0 0 16 16" aria-hidden="true"><path d="M11 3h2v10h-2zM3 3l7 5-7 5z"/></svg>',
}


def player(
    sequence: SequenceReport, heading: str, photos: Mapping[str, Pixels] | None = None, texts: Sequence[str] = (),
    delay: int = DELAY,
) -> str:  # fmt: skip
    """The HTML of one player under a heading, which is HTML already; ``texts``, one a step, stand beside it.

    ``photos`` are larger pictures (T,H,W,3) of the same frames, by name, which come first and need not be exact.
    ``delay`` is milliseconds of a step while playing.
    """
    large = "".join(_panel(name, strip, photo=True) for name, strip in (photos or {}).items())
    large = large and f'<div class="panels photos">{large}</div>'
    panels = [_panel(name, strip) for name, strip in sequence.frames_rgb().items()]
    panels.append(_panel("assignment", sequence.assignment_rgb()))
    if sequence.groups is not None:
        panels.append(_panel("true groups", colour_groups(as_components(sequence.groups, sequence.gamma))))
    if sequence.attention is not None:
        lines = attention_rgb(sequence, magnification_for(max(sequence.frames.shape[2:]), ATTENTION))
        panels += [_panel("attention", lines), _panel("attention, as a table", table_rgb(sequence, *lines.shape[1:3]))]
    shown = zip(sequence.component_rgb().items(), palette(sequence.components), strict=True)
    components = [_panel(name, strip, f"#{colour.tobytes().hex()}") for (name, strip), colour in shown]
    score = "" if sequence.score is None else f"{html.escape(sequence.score_name)}: {sequence.score:.3f}"
    name = html.escape(f"sequence: {sequence.label}")
    kind = "player card clip" if photos else "player card"
    told = f' data-texts="{html.escape(json.dumps(list(texts)))}"' if texts else ""
    buttons = _button("back", "previous step") + _button("play", "play") + _button("next", "next step")
    return (
        f'<article class="{kind}" role="group" tabindex="0" data-steps="{sequence.steps}" '
        f'data-rollout="{sequence.rollout}" data-delay="{delay}"{told} aria-label="{name}">'
        f'<header><h4>{heading}</h4><span class="score">{score}</span></header>'
        f"{large}"
        f'<div class="panels">{"".join(panels)}</div><div class="panels">{"".join(components)}</div>'
        f'<div class="controls">{buttons}'
        f'<input type="range" min="1" max="{sequence.steps}" value="{sequence.steps}" aria-label="step">'
        f"<output>{sequence.steps} / {sequence.steps}</output></div></article>"
    )


def encoded(rgb: Pixels, kind: str = "png") -> bytes:
    """The picture (H,W,3) as JPEG, or as the smallest exact PNG: with a palette where 256 colours suffice."""
    image, buffer = Image.fromarray(rgb), io.BytesIO()
    if kind == "png":
        colours, index = distinct(rgb)
        if len(colours) <= 256:
            image = Image.fromarray(index.astype(np.uint8), "P")
            image.putpalette(colours.tobytes())
    image.save(buffer, kind, optimize=kind == "png", quality=80)
    return buffer.getvalue()


def _panel(name: str, strip: Pixels, colour: str | None = None, photo: bool = False) -> str:
    _, height, width, _ = strip.shape
    picture, columns = sprite(strip)
    kind = "jpeg" if photo else "png"
    data = encoded(picture, kind)
    border = f' style="border-color: {colour}"' if colour else ' class="photo"' if photo else ""
    return (
        f'<figure class="panel"><canvas role="img" aria-label="{name}" width="{width}" height="{height}"{border} '
        f'data-columns="{columns}" data-sprite="data:image/{kind};base64,{base64.b64encode(data).decode()}"></canvas>'
        f"<figcaption>{name}</figcaption></figure>"
    )


def _button(kind: str, label: str) -> str:
    return f'<button type="button" class="{kind}" aria-label="{label}">{ICONS[kind]}</button>'
