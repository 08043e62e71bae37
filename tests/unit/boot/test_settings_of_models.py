"""Whatever pydantic binds from a mapping, the settings bind from YAML, variables and arguments, or refuse by name.

The exceptions are the rows of a table in ``docs/reference/conversions.md``, and no others.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired
from uuid import UUID

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    SecretStr,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)
from typing_extensions import TypeAliasType, TypedDict

from rocketbox.boot.effective import explain, render_tree
from rocketbox.boot.json_schema import json_schema
from rocketbox.boot.reference import markdown_reference
from rocketbox.boot.root_settings import load_settings
from rocketbox.boot.units import DataSize, Duration
from rocketbox.errors import ConfigurationError
from tests.support.framework.json_schema_checker import accepts
from tests.support.framework.settings_models import load, refused

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "conversions.md"


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# --- kinds of models that services have ------------------------------------------------------------------------------


class FileStore(BaseModel):
    path: str
    depth: int = 1


class BucketStore(BaseModel):
    bucket: str
    region: str = "eu"


class OnDisk(BaseModel):
    kind: Literal["disk"] = "disk"
    path: str


class InBucket(BaseModel):
    kind: Literal["bucket", "cloud-bucket"]
    bucket: str
    size: int = 1


class Tree(BaseModel):
    name: str
    left: Tree | None = None
    below: list[Tree] = []
    named: dict[str, Tree] = {}


@dataclass
class Limits:
    low: int
    high: int = 10
    names: list[str] = dataclasses.field(default_factory=list)


class Window(TypedDict):
    opens: int
    closes: NotRequired[int]


class Night(TypedDict):
    lamp: int


class Names(RootModel[list[str]]):
    pass


class Rates(RootModel[dict[str, float]]):
    pass


class Either(RootModel[FileStore | BucketStore]):
    pass


class Renamed(BaseModel):
    host: str = Field(default="none", validation_alias=AliasChoices("host", "hostName", "machine"))
    port: int = Field(default=0, alias="portNumber")
    user: str = Field(default="nobody", validation_alias=AliasPath("login", "user"))
    pin: int = Field(default=0, validation_alias=AliasPath("login", "pin"))
    old: str = Field(default="", validation_alias=AliasChoices("new", AliasPath("former", "old")))


class Colour(enum.Enum):
    DEEP_RED = 1
    BLUE = 2


class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2


Json = TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | None")


class Point(NamedTuple):
    x: int
    y: int


class Desk(BaseModel):
    store: FileStore | BucketStore | None = None
    place: Annotated[OnDisk | InBucket, Field(discriminator="kind")] | None = None
    places: list[Annotated[OnDisk | InBucket, Field(discriminator="kind")]] = []
    tree: Tree | None = None
    limits: Limits | None = None
    window: Window | None = None
    names: Names = Names([])
    rates: Rates = Rates({})
    either: Either | None = None
    renamed: Renamed = Renamed()
    stores: list[FileStore | BucketStore] = []
    by_name: dict[str, FileStore | BucketStore] = {}
    pair: tuple[str, int] = ("", 0)
    hosts: str | list[str] = ""
    one_or_more: FileStore | list[FileStore] | None = None
    one_or_text: dict[str, FileStore | str] = {}
    hours: Window | Night | None = None
    colour: Colour = Colour.BLUE
    point: Point | None = None
    free: dict[str, Any] = {}
    json_: Json = None
    rights: Rights = Rights.READ
    level: Literal["low", None, 2] = "low"
    nothing: tuple[()] = ()
    pause: timedelta | int | str = 0


MODELS: dict[str, type[BaseModel]] = {"desk": Desk}


@pytest.mark.parametrize(
    "data",
    [
        {"store": {"path": "/a"}},
        {"store": {"bucket": "b"}},
        {"place": {"kind": "disk", "path": "/a"}},
        {"place": {"kind": "cloud-bucket", "bucket": "b", "size": 7}},
        {"tree": {"name": "a", "left": {"name": "b", "left": {"name": "c"}}, "below": [{"name": "d"}]}},
        {"tree": {"name": "a", "named": {"x": {"name": "b", "named": {"y": {"name": "c"}}}}}},
        {"limits": {"low": 3, "names": ["a"]}},
        {"window": {"opens": 8}},
        {"hours": {"lamp": 3}},
        {"names": ["UA", "LH"]},
        {"rates": {"eur": 1.5}},
        {"either": {"bucket": "b"}},
        {"renamed": {"machine": "m", "portNumber": 5}},
        {"renamed": {"hostName": "m", "login": {"user": "u", "pin": 7}}},
        {"renamed": {"former": {"old": "x"}}},
        {"stores": [{"path": "/a"}, {"bucket": "b"}]},
        {"by_name": {"a": {"path": "/a"}, "b": {"bucket": "b"}}},
        {"pair": ["1", 2]},
        {"hosts": "a,b"},
        {"hosts": ["a", "b"]},
        {"one_or_more": {"path": "a"}},
        {"one_or_more": [{"path": "a"}]},
        {"colour": 1},
        {"point": [1, 2]},
        {"free": {"a": {"b": [1, "2"]}}},
        {"json_": {"a": [1, "b", {"c": None, "d": [None]}]}},
        {"rights": 3},
        {"level": None},
        {"level": 2},
        {"nothing": []},
        {"pause": 3000},
    ],
    ids=lambda data: str(data)[1:60],
)
def test_a_model_is_bound_as_pydantic_binds_it_and_right_by_its_json_schema(data: dict[str, Any]) -> None:
    assert load(f"desk: {json.dumps(data)}\n", models=MODELS).get("desk") == Desk.model_validate(data)
    assert accepts(json_schema(MODELS), {"desk": data})


@pytest.mark.parametrize(
    ("variables", "data"),
    [
        ({"DESK_STORE_BUCKET": "b"}, {"store": {"bucket": "b"}}),
        ({"DESK_PLACE_KIND": "bucket", "DESK_PLACE_BUCKET": "b"}, {"place": {"kind": "bucket", "bucket": "b"}}),
        ({"DESK_TREE_NAME": "a", "DESK_TREE_LEFT_NAME": "b"}, {"tree": {"name": "a", "left": {"name": "b"}}}),
        ({"DESK_LIMITS_LOW": "3"}, {"limits": {"low": 3}}),
        ({"DESK_WINDOW_OPENS": "8"}, {"window": {"opens": 8}}),
        ({"DESK_NAMES": "UA, LH"}, {"names": ["UA", "LH"]}),
        ({"DESK_NAMES_0": "UA", "DESK_NAMES_1": "LH,AF"}, {"names": ["UA", "LH,AF"]}),
        ({"DESK_RATES_EUR": "1.5"}, {"rates": {"eur": 1.5}}),
        ({"DESK_RENAMED_MACHINE": "m"}, {"renamed": {"machine": "m"}}),
        ({"DESK_RENAMED_LOGIN_USER": "u"}, {"renamed": {"login": {"user": "u"}}}),
        ({"DESK_RENAMED_FORMER_OLD": "u"}, {"renamed": {"former": {"old": "u"}}}),
        ({"DESK_STORES_0_PATH": "/a", "DESK_STORES_1_BUCKET": "b"}, {"stores": [{"path": "/a"}, {"bucket": "b"}]}),
        ({"DESK_TREE_NAME": "a", "DESK_TREE_BELOW_0_NAME": "b"}, {"tree": {"name": "a", "below": [{"name": "b"}]}}),
        ({"DESK_ONE_OR_TEXT_A_PATH": "p", "DESK_ONE_OR_TEXT_B": "t"}, {"one_or_text": {"a": {"path": "p"}, "b": "t"}}),
        ({"DESK_PAIR": "1,2"}, {"pair": ["1", 2]}),
        ({"DESK_HOSTS": "a,b"}, {"hosts": "a,b"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_a_model_is_bound_from_variables_and_from_arguments(variables: dict[str, str], data: dict[str, Any]) -> None:
    assert load(environ=variables, models=MODELS).get("desk") == Desk.model_validate(data)


def test_sources_are_merged_inside_of_unions_and_of_models_that_contain_themselves() -> None:
    settings = load(
        "desk: {store: {bucket: a}, tree: {name: a, left: {name: b}}, renamed: {machine: m}}\n",
        {"DESK_STORE_REGION": "us", "DESK_TREE_LEFT_LEFT_NAME": "c"},
        models=MODELS,
        arguments=["--desk.renamed.host-name=h"],
    )
    desk = settings.get("desk")
    assert desk.store == BucketStore(bucket="a", region="us")
    assert desk.tree == Tree(name="a", left=Tree(name="b", left=Tree(name="c")))
    assert desk.renamed.host == "h"
    assert str(settings.origin("desk.store.region")) == "environment variable DESK_STORE_REGION"
    assert str(settings.origin("desk.tree.left.name")) == "rocketbox.yaml:1:57"
    assert settings.value("desk.tree.left.left.name") == "c"
    assert settings.value("desk.store.region") == "us"


def test_every_page_about_keys_knows_these_models() -> None:
    text = markdown_reference(MODELS)
    assert "| `desk.store.bucket` | text |" in text
    assert "| `desk.tree.left.<key>` | the keys of `desk.tree` |" in text
    assert "| `desk.limits.low` | a whole number | required |" in text
    assert "Limits(low" not in text
    schema = json_schema(MODELS)
    assert set(schema["properties"]["desk"]["properties"]["store"]["properties"]) == {
        "path",
        "depth",
        "bucket",
        "region",
    }
    assert '"$ref"' in json.dumps(schema["properties"]["desk"]["properties"]["tree"])
    text = "desk: {tree: {name: a, left: {name: b}}, limits: {low: 1}, names: [a], hours: {lamp: 3}}\n"
    settings = load(text, models=MODELS)
    assert settings.value("desk.hours.lamp") == 3
    tree = render_tree(settings)
    assert "      name: b " in tree
    assert "    high: 10 " in tree
    assert explain(settings, "desk.limits.high") == "desk.limits.high: 10\n  takes a whole number\n  10 by default"


# --- what is refused by name ------------------------------------------------------------------------------------------


def test_what_fits_no_member_of_a_union_is_one_finding_about_the_likeliest() -> None:
    (finding,) = refused("desk: {store: {bucket: [b]}}\n", models=MODELS)
    assert finding.startswith("desk.store.bucket takes text, and a list is written there\n")
    (finding,) = refused("desk: {stores: [{bucket: b, region: {a: b}}]}\n", models=MODELS)
    assert finding.startswith("desk.stores[0].region takes text, and keys are written below it\n")
    (finding,) = refused("desk: {store: {depth: 3}}\n", models=MODELS)
    assert finding.startswith("desk.store.path is required and not set\n    where: beside rocketbox.yaml:1:23\n")


def test_the_kind_of_a_discriminated_union_is_told_with_those_that_there_are() -> None:
    (finding,) = refused("desk: {place: {kind: tape, path: a}}\n", models=MODELS)
    assert finding == (
        "desk.place.kind is 'tape', and must be one of disk, bucket, cloud-bucket\n"
        "    where: rocketbox.yaml:1:22\n"
        "    fix:   write one of disk, bucket, cloud-bucket"
    )
    (finding,) = refused("desk: {places: [{path: a}]}\n", models=MODELS)
    assert finding == (
        "desk.places[0].kind is not set, and says which keys belong there\n"
        "    where: beside rocketbox.yaml:1:17\n"
        "    fix:   write desk.places[0].kind: one of disk, bucket, cloud-bucket"
    )
    (finding,) = refused("desk: {place: {kind: bucket, path: a}}\n", models=MODELS)
    assert finding.startswith("desk.place.bucket is required and not set\n")


class Known(BaseModel):
    low: int = 0


class KnownOrFree(BaseModel):
    either: Known | dict[str, int] = {}


class OneName(BaseModel):
    path: str = Field(alias="file-path")


class AnotherName(BaseModel):
    filePath: int  # noqa: N815 - as users may write it


class TwoNames(BaseModel):
    store: OneName | AnotherName | None = None


class FirstOfMany(BaseModel):
    first: str = Field(default="", validation_alias=AliasPath("many", 0))


class Through(BaseModel):
    many: dict[str, int] = {}
    first: int = Field(default=0, validation_alias=AliasPath("many", "first"))


class Shop(RootModel[list[str]]):
    pass


class Unfinished(BaseModel):
    later: NoSuchType | None = None  # type: ignore[name-defined]  # noqa: F821 - that is what is tested


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    low: int = 0


class Closing(BaseModel):
    inner: Closed


def test_an_unknown_key_is_one_finding_though_nothing_else_is_in_its_group() -> None:
    (finding,) = refused("shop: {inner: {lo: 3}}\n", models={"shop": Closing})
    assert finding.startswith("unknown key shop.inner.lo\n")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (KnownOrFree, "KnownOrFree of prefix shop has a value that is a group of known keys or of any keys"),
        (TwoNames, "TwoNames of prefix shop has a union of models that call one key by different names"),
        (Through, "Through of prefix shop has the key many and an AliasPath through it"),
        (FirstOfMany, "FirstOfMany of prefix shop has an AliasPath into a list for first"),
        (Shop, "the class Shop of prefix shop is no group of keys"),
        (Unfinished, "the class Unfinished of prefix shop has a type that is not known"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_model_that_cannot_be_told_apart_is_refused_by_name(model: type[BaseModel], words: str) -> None:
    (finding,) = refused(models={"shop": model})
    assert finding.startswith(words)
    assert "fix:" in finding


def test_base_settings_are_refused_for_they_read_the_environment_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    from pydantic_settings import BaseSettings

    class Till(BaseSettings):
        path: str = "here"

    (finding,) = refused(models={"till": Till})
    assert "Till of prefix till is a BaseSettings, which reads the whole environment by itself" in finding
    assert "write class" in finding


# --- any model --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A type, values of it as a mapping has them, and whether text can say them without a file."""

    hint: Any
    values: st.SearchStrategy[Any]
    text: bool = True


WORD = st.from_regex(r"[a-z]{1,6}", fullmatch=True)
PRINTED = st.text(st.sampled_from("aZ09 -_:#'\"\\é{}[]$!?&*%@|>"), max_size=8).filter(lambda text: "${" not in text)
NUMBER = st.integers(-(10**6), 10**6)
FRACTION = st.floats(allow_nan=False, allow_infinity=False, width=32)


def positive(number: int) -> int:
    if number < 0:
        raise ValueError("must be positive")
    return number


LEAVES = [
    Kind(int, NUMBER),
    Kind(float, FRACTION),
    Kind(bool, st.booleans()),
    Kind(str, PRINTED),
    Kind(Decimal, NUMBER.map(str)),
    Kind(date, st.dates().map(str)),
    Kind(UUID, st.uuids().map(str)),
    Kind(Literal["fast", "slow"], st.sampled_from(["fast", "slow"])),
    Kind(Literal[1, 2], st.sampled_from([1, 2])),
    Kind(Colour, st.sampled_from([1, 2])),
    Kind(SecretStr, PRINTED),
    Kind(Annotated[int, Field(ge=0, le=10)], st.integers(0, 10)),
    Kind(Annotated[int, AfterValidator(positive)], st.integers(0, 10)),
    Kind(int | None, st.one_of(NUMBER, st.none())),
    Kind(int | str, st.one_of(NUMBER, PRINTED), text=False),
    Kind(bool | float, st.one_of(st.booleans(), FRACTION)),
    Kind(Any, st.recursive(st.one_of(NUMBER, st.booleans()), lambda inner: st.lists(inner, max_size=2)), text=False),
]


def group_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(WORD, values, min_size=1, max_size=3)


def _of(generic: Any, *arguments: Any) -> Any:
    return generic[arguments if len(arguments) > 1 else arguments[0]]


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> Kind:
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        return draw(st.sampled_from(LEAVES))
    inner = draw(kinds(depth - 1))
    shape = draw(st.sampled_from("list tuple set dict model dataclass typeddict root union tagged nested".split()))
    if shape in ("model", "dataclass", "typeddict"):
        return draw(models(inner, shape))
    single = not isinstance(inner.hint, type) or not issubclass(inner.hint, BaseModel)
    tree = st.recursive(
        st.fixed_dictionaries({"name": WORD}),
        lambda below: st.fixed_dictionaries({"name": WORD, "left": below}),
        max_leaves=4,
    )
    stores: list[Any] = [{"path": "p", "depth": 3}, {"bucket": "b"}, {"bucket": "c", "region": "x"}]
    places: list[Any] = [{"kind": "disk", "path": "no"}, {"kind": "bucket", "bucket": "1", "size": 3}]
    return {
        "list": Kind(_of(list, inner.hint), st.lists(inner.values, max_size=3), text=False),
        "tuple": Kind(_of(tuple, str, inner.hint), st.tuples(WORD, inner.values).map(list), text=False),
        "set": Kind(set[int], st.lists(NUMBER, max_size=3)),
        "dict": Kind(_of(dict, str, inner.hint), group_of(inner.values), text=inner.text and not single),
        "root": Kind(_of(RootModel, inner.hint), inner.values, inner.text),
        "union": Kind(FileStore | BucketStore, st.sampled_from(stores)),
        "tagged": Kind(Annotated[OnDisk | InBucket, Field(discriminator="kind")], st.sampled_from(places)),
        "nested": Kind(Tree, tree),
    }[shape]


@st.composite
def models(draw: st.DrawFn, inner: Kind, shape: str = "model") -> Kind:
    others = draw(st.lists(st.sampled_from(LEAVES), max_size=2))
    fields = {f"f{number}{draw(WORD)}": kind for number, kind in enumerate([inner, *others])}
    values = st.fixed_dictionaries({name: kind.values for name, kind in fields.items()})
    text = all(kind.text for kind in fields.values())
    if shape == "dataclass":
        class_ = dataclasses.make_dataclass("Data", [(name, kind.hint) for name, kind in fields.items()])
        return Kind(class_, values, text)
    if shape == "typeddict":
        hints = {name: kind.hint for name, kind in fields.items()}
        return Kind(TypedDict("Typed", hints), values, text)  # type: ignore[operator]
    config = ConfigDict(extra=draw(st.sampled_from(["ignore", "forbid"])))
    declared: dict[str, Any] = {name: (kind.hint, ...) for name, kind in fields.items()}
    return Kind(create_model("Model", __config__=config, **declared), values, text)


@st.composite
def bound_models(draw: st.DrawFn) -> tuple[type[BaseModel], dict[str, Any], bool]:
    kind = draw(models(draw(kinds())))
    return kind.hint, draw(kind.values), kind.text


def says_nothing(value: Any) -> bool:
    """Whether a value has an empty group or a null in it, which say nothing in settings where a group belongs."""
    if isinstance(value, dict):
        return not value or any(says_nothing(each) for each in value.values())
    return isinstance(value, list) and any(each is None or says_nothing(each) for each in value)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bound_models())
def test_any_model_is_bound_from_yaml_as_pydantic_binds_it_and_right_by_its_json_schema(
    case: tuple[type[BaseModel], dict[str, Any], bool],
) -> None:
    model, data, _ = case
    assume(not says_nothing(data))
    assert load(f"m: {json.dumps(data)}\n", models={"m": model}).get("m") == model.model_validate(data)
    assert accepts(json_schema({"m": model}), {"m": data})


def texts(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from texts(inner, (*path, name))
    elif isinstance(value, list):
        yield path, ",".join(map(str, value))
    elif value is not None:
        yield path, str(value).lower() if isinstance(value, bool) else str(value)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bound_models())
def test_any_model_is_bound_from_variables_and_arguments_as_from_a_mapping(
    case: tuple[type[BaseModel], dict[str, Any], bool],
) -> None:
    model, data, has_text = case
    assume(has_text and not says_nothing(data) and "null" not in json.dumps(data))
    written = dict(texts(data, ("m",)))
    expected = model.model_validate(data)
    variables = {"_".join(path).upper(): text for path, text in written.items()}
    assert load_settings({"m": model}, environ=variables).get("m") == expected
    arguments = [f"--{'.'.join(path)}={text}" for path, text in written.items()]
    assert load_settings({"m": model}, environ={}, arguments=arguments).get("m") == expected


WRONG = st.recursive(
    st.one_of(NUMBER, FRACTION, st.booleans(), PRINTED, st.just("no"), st.just("3s")),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(WORD, inner, min_size=1, max_size=2)),
    max_leaves=4,
)


def words(value: Any) -> Iterator[str]:
    """The texts in a value, whatever their types: settings read text by the type that it is for."""
    if isinstance(value, BaseModel):
        yield from words(value.model_dump(exclude_unset=True))
    elif isinstance(value, dict):
        yield from words(list(value.values()))
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from words(inner)
    elif not isinstance(value, date):  # which pydantic makes of numbers as well
        text = value.get_secret_value() if isinstance(value, SecretStr) else str(getattr(value, "value", value))
        for part in (text.lower(), *text.lower().split(",")):
            word = {"true": "1", "false": "0", "yes": "1", "no": "0"}.get(part.strip(), part.strip())
            try:
                yield str(float(word) + 0.0)  # of -0.0 too, which an int keeps as 0
            except ValueError:
                yield word


def settled(load: Callable[[], Any]) -> Any:
    """What loading ends with: a model, or the findings."""
    try:
        return load()
    except ConfigurationError as error:
        return error.findings
    except ValidationError:
        return None


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bound_models(), st.data())
def test_what_pydantic_does_not_take_is_refused_or_bound_to_the_very_text_that_was_written(
    case: tuple[type[BaseModel], dict[str, Any], bool], more: st.DataObject
) -> None:
    model, data, _ = case
    field = more.draw(st.sampled_from(sorted(data)))
    data = {**data, field: more.draw(WRONG)}
    assume(not says_nothing(data))
    bound = settled(lambda: load(f"m: {json.dumps(data)}\n", models={"m": model}).get("m"))
    if isinstance(bound, tuple):
        assert all("m." in finding.what and finding.fix for finding in bound)
        return
    expected = settled(lambda: model.model_validate(data))
    written = {*words(data[field])}
    if "" in written:  # empty text is None for what may be None: see the table of conversions
        written.add("none")
    assert bound == expected or {*words(getattr(bound, field))} <= written


# --- the table of conversions -----------------------------------------------------------------------------------------


class Till(BaseModel):
    text: str = ""
    number: int = 7
    either: int | str = 0
    names: list[str] = []
    colour: Colour = Colour.BLUE
    pause: timedelta = timedelta(0)
    wait: Duration = timedelta(0)
    size: DataSize = 0
    store: FileStore | None = FileStore(path="default")
    maybe: int | None = 7
    host_name: str = ""
    levels: dict[str, int] = {}
    doubled: str = ""
    anything: Any = None

    @field_validator("doubled", mode="before")
    @classmethod
    def _twice(cls, value: Any) -> Any:
        return value * 2


CONVERSIONS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "raw text": [("text: 0123", {"text": "0123"}), ("text: no", {"text": "no"}), ("text: 12:30", {"text": "12:30"})],
    "text of numbers and truth": [("number: '5'", {"number": 5}), ("either: 5", {"either": 5})],
    "lists from text": [("names: 'a, b'", {"names": ["a", "b"]})],
    "entries of lists": [],
    "names": [("colour: deep-red", {"colour": Colour.DEEP_RED}), ("colour: 1", {"colour": Colour.DEEP_RED})],
    "times": [
        ("pause: 3000", {"pause": timedelta(seconds=3)}),
        ("wait: 1m30s", {"wait": timedelta(seconds=90)}),
        ("pause: PT3S", {"pause": timedelta(seconds=3)}),
    ],
    "sizes": [("size: 4MB", {"size": 4 << 20})],
    "empty headings": [("store:", {}), ("store: {}", {})],
    "empty text": [("maybe: ''", {"maybe": None})],
    "null": [("number: ~", {})],
    "spellings of keys": [(f"{key}: x", {"host_name": "x"}) for key in ("hostName", "host_name", "host-name")],
    "keys with dots": [
        ("levels: {a.b: 1}", {"levels": {"a.b": 1}}),
        ("store.path: x", {"store": {"path": "x", "depth": 1}}),
    ],
    "unknown keys": [("nobody: 3", {})],
    "validators before pydantic's": [("doubled: 12", {"doubled": "1212"})],
    "any value": [("anything: [1, x, true]", {"anything": [1, "x", True]})],
}


def test_the_table_of_conversions_is_the_list_of_exceptions() -> None:
    section = PAGE.read_text().partition("| Conversion |")[2].partition("```")[0]
    assert re.findall(r"^\| ([\w' ]+) \|", section, re.MULTILINE) == list(CONVERSIONS)


@pytest.mark.parametrize(("text", "data"), [case for cases in CONVERSIONS.values() for case in cases])
def test_a_conversion_is_as_the_table_says(text: str, data: dict[str, Any]) -> None:
    expected = Till.model_construct(**{**Till().model_dump(round_trip=True), **data})
    bound = load(f"till:\n  {text}\n", models={"till": Till}).get("till")
    assert bound.model_dump() == {**Till().model_dump(), **expected.model_dump(include=set(data), warnings=False)}


def test_a_validator_that_comes_before_pydantics_may_make_a_group_of_text() -> None:
    class Address(BaseModel):
        host: str
        port: int

        @model_validator(mode="before")
        @classmethod
        def _of_text(cls, value: Any) -> Any:
            if isinstance(value, str):
                host, _, port = value.partition(":")
                return {"host": host, "port": port}
            return {**value, "port": value.get("port", value.get("old-port"))}

    class Mail(BaseModel):
        server: Address

    for text in ("server: a:25", "server: {host: a, port: 25}", "server: {host: a, old-port: 25}"):
        assert load(f"mail: {{{text}}}\n", models={"mail": Mail}).get("mail").server == Address(host="a", port=25)
    assert load(environ={"MAIL_SERVER": "a:25"}, models={"mail": Mail}).get("mail").server.port == 25
