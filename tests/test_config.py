"""Strict configs: what is accepted, what is refused and how, and that nothing but the project's error escapes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from neural_em import config
from neural_em.errors import NeuralEMError
from neural_em.presets import preset


@dataclasses.dataclass(frozen=True)
class Optimiser:
    learning_rate: float = 0.001
    name: Literal["adam", "sgd"] = "adam"
    level: Literal[1, 2] = 1


@dataclasses.dataclass(frozen=True)
class Experiment:
    components: int = 3
    static: bool = False
    title: str = "a run"
    noise: float | None = None
    sizes: tuple[int, ...] = (1, 2)
    weights: tuple[float, ...] | Literal["last", "every"] = "last"
    optimiser: Optimiser = Optimiser()


@dataclasses.dataclass(frozen=True)
class Required:
    components: int


# --- what is accepted ------------------------------------------------------------------------------------------------


def test_fields_that_are_not_given_keep_their_defaults() -> None:
    assert config.from_dict(Experiment, {}) == Experiment()
    given = config.from_dict(Experiment, {"components": 5, "optimiser": {"name": "sgd"}})
    assert given == Experiment(components=5, optimiser=Optimiser(name="sgd"))


def test_to_dict_gives_plain_values() -> None:
    assert config.to_dict(Experiment(weights=(0.5, 1.0))) == {
        "components": 3,
        "static": False,
        "title": "a run",
        "noise": None,
        "sizes": [1, 2],
        "weights": [0.5, 1.0],
        "optimiser": {"learning_rate": 0.001, "name": "adam", "level": 1},
    }


@pytest.mark.parametrize(("value", "number"), [("1e-3", 0.001), (1, 1.0), ("5", 5.0), (0.25, 0.25), ("-2.5E+1", -25.0)])
def test_numbers_may_come_as_yaml_leaves_them(value: Any, number: float) -> None:
    rate = config.from_dict(Optimiser, {"learning_rate": value}).learning_rate
    assert rate == number
    assert type(rate) is float


def test_override_reads_yaml_values_at_dotted_names_and_leaves_the_rest() -> None:
    before = Experiment(title="kept")
    after = config.override(before, ["optimiser.learning_rate=5e-4", "sizes=[4, 5]", "noise=null", "static = true"])
    assert after == Experiment(title="kept", sizes=(4, 5), static=True, optimiser=Optimiser(learning_rate=0.0005))
    assert before == Experiment(title="kept")


def test_the_last_of_two_overrides_counts_and_values_may_hold_an_equals_sign() -> None:
    assert config.override(Experiment(), ["title=a", "title=b=c"]).title == "b=c"


def test_a_file_round_trip_is_exact(tmp_path: Path) -> None:
    wanted = Experiment(
        noise=0.1, weights=(0.25, 1e-9), title="ünïcode: [not a list]", optimiser=Optimiser(1e-3, "sgd", 2)
    )
    (tmp_path / "config.yaml").write_text(config.dump(wanted), encoding="utf-8")
    assert config.read(Experiment, tmp_path / "config.yaml") == wanted


FINITE = st.floats(allow_nan=False, allow_infinity=False)
ANY_CONFIG = st.builds(
    Experiment,
    components=st.integers(),
    static=st.booleans(),
    title=st.text(),
    noise=st.none() | FINITE,
    sizes=st.lists(st.integers(), max_size=4).map(tuple),
    weights=st.sampled_from(["last", "every"]) | st.lists(FINITE, max_size=4).map(tuple),
    optimiser=st.builds(Optimiser, FINITE, st.sampled_from(["adam", "sgd"])),
)


@given(ANY_CONFIG)
def test_every_config_survives_dictionaries_and_yaml(wanted: Experiment) -> None:
    assert config.from_dict(Experiment, config.to_dict(wanted)) == wanted
    assert config.from_dict(Experiment, yaml.safe_load(config.dump(wanted))) == wanted


# --- what is refused, and how ----------------------------------------------------------------------------------------

REFUSED = [
    ({"components": "3"}, "components: expected an integer, got '3'"),
    ({"components": 3.0}, "components: expected an integer, got 3.0"),
    ({"components": True}, "components: expected an integer, got True"),
    ({"static": 1}, "static: expected true or false, got 1"),
    ({"static": "yes"}, "static: expected true or false, got 'yes'"),
    ({"title": 3}, "title: expected text, got 3"),
    ({"title": None}, "title: expected text, got None"),
    ({"noise": "much"}, "noise: expected a number, got 'much'"),
    ({"noise": float("nan")}, "noise: expected a finite number, got nan"),
    ({"noise": "inf"}, "noise: expected a finite number, got 'inf'"),
    ({"noise": True}, "noise: expected a number, got True"),
    ({"sizes": 3}, "sizes: expected a list, got 3"),
    ({"sizes": [1, "b"]}, "sizes[1]: expected an integer, got 'b'"),
    ({"optimiser": 3}, "optimiser: expected a mapping of fields, got 3"),
    ({"optimiser": {"name": "adm"}}, "optimiser.name: expected one of adam, sgd, got 'adm'; did you mean 'adam'?"),
    ({"optimiser": {"level": True}}, "optimiser.level: expected one of 1, 2, got True"),
    ({"optimiser": {"level": 1.0}}, "optimiser.level: expected one of 1, 2, got 1.0"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(NeuralEMError) as caught:
        config.from_dict(Experiment, values)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("values", "where", "wrong", "suggestion"),
    [
        ({"component": 3}, "Experiment", "'component'", "components"),
        ({"optimiser": {"learnin_rate": 3}}, "optimiser", "'learnin_rate'", "learning_rate"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_right_one(
    values: dict[str, Any], where: str, wrong: str, suggestion: str
) -> None:
    with pytest.raises(NeuralEMError) as caught:
        config.from_dict(Experiment, values)
    message = str(caught.value)
    assert message.startswith(f"{where}: unknown field: expected one of ")
    assert message.endswith(f"got {wrong}; did you mean {suggestion!r}?")


def test_a_union_tells_what_each_form_wanted() -> None:
    with pytest.raises(NeuralEMError) as caught:
        config.from_dict(Experiment, {"weights": "first"})
    assert "weights: no form fits" in str(caught.value)
    assert "expected a list" in str(caught.value)
    assert "expected one of last, every" in str(caught.value)


def test_a_missing_required_field_is_named() -> None:
    with pytest.raises(NeuralEMError, match="components"):
        config.from_dict(Required, {})


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("components", "override: expected name=value, got 'components'"),
        ("components=[", "components: expected a value in YAML notation, got '['"),
        ("components=many", "components: expected an integer, got 'many'"),
        ("components.size=1", "components: expected a group of fields, got a single value"),
        ("optimiser.rate=1", "optimiser: unknown field: expected one of learning_rate, name, level, got 'rate'"),
        ("nothing.rate=1", "Experiment: unknown field: expected one of"),
        ("=1", "Experiment: unknown field: expected one of"),
        (".=1", "Experiment: unknown field: expected one of"),
    ],
)
def test_wrong_overrides_are_refused(assignment: str, message: str) -> None:
    with pytest.raises(NeuralEMError) as caught:
        config.override(Experiment(), [assignment])
    assert str(caught.value).startswith(message)


# --- whatever comes, only the project's error escapes ----------------------------------------------------------------

FIELDS = ["components", "static", "title", "noise", "sizes", "weights", "optimiser"]


def refused(call: Any, *arguments: Any) -> str:
    with pytest.raises(NeuralEMError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 2000
    return message


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"- 1\n- 2\n", b"components: [", b"a: b: c"])
def test_files_that_are_no_config_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    assert refused(config.read, Experiment, path).startswith(f"{path}: ")


def test_a_missing_file_a_folder_and_a_huge_file_are_refused(tmp_path: Path) -> None:
    assert "none.yaml" in refused(config.read, Experiment, tmp_path / "none.yaml")
    assert str(tmp_path) in refused(config.read, Experiment, tmp_path)
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(config.MAX_BYTES + 1)
    assert "at most 1048576 bytes" in refused(config.read, Experiment, tmp_path / "huge.yaml")


def succeeds_or_refuses(call: Any, *arguments: Any) -> Any:
    """The result, or None where the project's error came; anything else fails the test."""
    message = ""
    try:
        return call(*arguments)
    except NeuralEMError as error:
        message = str(error)
    assert message
    assert "\n" not in message
    return None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.integers() | st.none(), inner),
    max_leaves=12,
)
NAMES = st.sampled_from([*FIELDS, "learning_rate", "name", "level"]) | st.text(max_size=12)


@settings(max_examples=400)
@given(JSON | st.dictionaries(NAMES, JSON | st.dictionaries(NAMES, JSON, max_size=3), max_size=4))
def test_from_dict_succeeds_or_refuses(values: Any) -> None:
    built = succeeds_or_refuses(config.from_dict, Experiment, values)
    assert built is None or config.from_dict(Experiment, config.to_dict(built)) == built


DOTTED = st.lists(NAMES, min_size=1, max_size=3).map(".".join)
MARKS = st.sampled_from("ab01.-+_e:[]{}&*!|>%@#'\",? \n\tx~<=")
YAML_TEXT = st.text(alphabet=MARKS, max_size=16) | st.text(max_size=16)
YAML_FILE = YAML_TEXT | st.tuples(NAMES, YAML_TEXT).map(": ".join)


@settings(max_examples=600)
@given(st.lists(st.tuples(DOTTED, YAML_TEXT).map("=".join) | st.text(max_size=20), max_size=3))
def test_override_succeeds_or_refuses(assignments: list[str]) -> None:
    succeeds_or_refuses(config.override, Experiment(), assignments)


@settings(max_examples=300)
@given(st.binary(max_size=60) | YAML_FILE.map(str.encode))
def test_read_succeeds_or_refuses(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    path.write_bytes(content)
    succeeds_or_refuses(config.read, Experiment, path)


@dataclasses.dataclass(frozen=True)
class Note:
    """A record of something, with notes of its own."""

    text: str = ""
    count: int | None = None
    share: float = 0.0
    words: tuple[str, ...] = ()
    parts: dict[str, Note] = dataclasses.field(default_factory=dict)


def test_a_record_leaves_out_what_is_unknown() -> None:
    values = {"text": "a\nb", "colour": "red", "parts": {"x": {"count": 3, "size": 1}}}
    assert config.from_dict(Note, values, leave_out="unknown") == Note("a\\nb", parts={"x": Note(count=3)})
    with pytest.raises(NeuralEMError, match="unknown field"):
        config.from_dict(Note, values)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("text", 3, "text: expected text, got 3"),
        ("count", -1, "count: expected a count, got -1"),
        ("count", 10**30, "count: expected a count"),
        ("share", 1e40, "share: expected a finite number"),
        ("words", "abc", "words: expected a list, got 'abc'"),
        ("parts", [1], r"parts: expected a mapping, got \[1\]"),
    ],
)
def test_a_record_refuses_what_does_not_fit_or_leaves_it_out(name: str, value: object, message: str) -> None:
    with pytest.raises(NeuralEMError, match=message):
        config.from_dict(Note, {"text": "kept", name: value}, leave_out="unknown")
    found = config.from_dict(Note, {"share": 0.5, "count": 2, "text": "kept", name: value}, leave_out="unfit")
    assert found == dataclasses.replace(Note("kept", 2, 0.5), **{name: getattr(Note(), name)})


def test_a_record_keeps_the_parts_that_fit() -> None:
    values = {"words": ["a", 1, "b"], "parts": {"x": {"text": "x"}, "y": 5}}
    assert config.from_dict(Note, values, leave_out="unfit") == Note(words=("a", "b"), parts={"x": Note("x")})
    assert config.from_dict(Note, config.to_dict(Note(parts={"x": Note("x")}))) == Note(parts={"x": Note("x")})


def test_names_of_fields() -> None:
    assert config.flat({"a": {"b": 1, "c": [1, 2]}, "d": None}) == {"a.b": 1, "a.c": [1, 2], "d": None}
    assert config.flat(Note("x"))["text"] == "x"
    assert config.field_of(" a.b = 3") == "a.b"
    assert config.without([["a=1", "b.c=2"], ["b.c=3"]], ["b.c"]) == (("a=1",), ())


def test_what_may_change_is_said_by_each_part() -> None:
    experiment = preset("flying-shapes")
    assert "training.epochs" in config.changeable(experiment)
    assert "training.learning_rate" not in config.changeable(experiment)
    falling = config.override(experiment, ["training.schedule=cosine"])
    assert config.changeable(experiment) - config.changeable(falling) == {"training.epochs"}
