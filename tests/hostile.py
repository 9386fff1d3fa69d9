"""Hypothesis strategies of what strangers and slips of the finger put in the place of something good."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

# what breaks programs: limits, other kinds, other notations, other places, commands for a terminal
TEXTS = (
    "", " ", "0", "-1", "1", "2", "3.5", "-0.0", "1e-400", "1e400", "nan", "-inf", "true", "null", "~", "[]", "{}",
    "[1, 2]", "0x1f", "1_000", "٣", "9" * 30, "-" + "9" * 30, "9" * 5000, "1e3", "!!int x", "2000-13-45", "12:61:61",
    "!!python/object/apply:os.system [ls]", "&a [*a]", "*a", "{a: {b: c}}", "- x", "a: b", "'", '"', "#", "%", "|",
    "--", "-", "--debug", "--help", "-x", "=", "a=b", ".", "..", "../..", "/", "/dev/null", "/dev/zero", "~nobody/x",
    "a\0b", "a\nb", "\x1b[2J", "\u202e", "\udcff", "ü" * 300, "x" * 5000, "$(touch x)", "`touch x`", "; touch x",
    "${HOME}", "%s%n", "{0}",
)  # fmt: skip
texts = st.one_of(st.sampled_from(TEXTS), st.text(max_size=12))
numbers = st.one_of(
    st.integers(-3, 3), st.sampled_from([2**31, 2**63 - 1, 2**63, -(2**63), 10**30]),
    st.floats(allow_nan=True, allow_infinity=True),
)  # fmt: skip
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def changed(draw: st.DrawFn, original: Any, changes: int = 2) -> Any:
    """A copy of nested dictionaries and lists in which a few parts, at any depth, are something else or gone."""
    copy = json.loads(json.dumps(original))
    for _ in range(draw(st.integers(1, changes))):
        place = copy
        while isinstance(place, dict | list) and place:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and place[key] and draw(st.integers(0, 3)):
                place = place[key]
                continue
            if draw(st.booleans()):
                place[key] = draw(values)
            else:
                del place[key]
            break
    return copy


@st.composite
def damaged(draw: st.DrawFn, content: bytes, header: int) -> bytes:
    """A file cut off somewhere, with something after its end, or with a few bytes changed, mostly in its header."""
    how = draw(st.integers(0, 9))
    if how == 0:
        return content[: draw(st.integers(0, len(content) - 1))]
    if how == 1:
        return content + draw(st.binary(min_size=1, max_size=9))
    copy = bytearray(content)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4, 16]))):
        within = header if draw(st.integers(0, 3)) else len(content)
        place = draw(st.integers(0, min(within, len(content)) - 1))
        copy[place] = (
            draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])) if draw(st.booleans()) else draw(st.integers(0, 255))
        )
    return bytes(copy)
