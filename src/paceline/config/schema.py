"""The types of settings, as pydantic validates them, and the reading of one source.

Each message has the rejected value, shortened and without a password, and what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from reprlib import Repr
from typing import Annotated, Any, Final, Literal, cast, get_args, get_type_hints
from urllib.parse import urlsplit

from paceline import facts
from paceline.config.settings import FileSettings, plain_text
from paceline.config.sources import Place, Problems, SettingsSource, nested
from paceline.core.hints import did_you_mean, why_missing
from paceline.core.plan import Overage, WhenShut
from paceline.core.quota import CONCURRENCY as IN_FLIGHT
from paceline.core.quota import DAY_S, INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, TOKENS, Quota, Rule, parse_quotas
from paceline.core.results import SettingsError, StoreError, warn
from paceline.facts.form import PRICE
from paceline.pacing.allowances import check_budget
from paceline.pacing.joint import check_units, written
from paceline.pacing.settings import TIMEOUT_MAX_S, Setting, declared
from paceline.providers.registry import ALIASES, slip
from paceline.stores import as_store

try:
    from pydantic import (
        AfterValidator,
        BeforeValidator,
        ConfigDict,
        PlainValidator,
        TypeAdapter,
        ValidationError,
        WrapValidator,
        with_config,
    )
    from typing_extensions import TypedDict
except ImportError as error:
    raise SettingsError(why_missing(error, "reading settings from files and variables", "config")) from None

RUN_S: Final = 30 * 86_400.0
"""The longest time in which a request may be retried."""

LIMITS, JOINT, CONCURRENCY, LANES, BREAKER = "limits", "joint_limits", "concurrency", "lanes", "breaker"
UPSTREAMS, GROUPS, PRICES = "upstreams", "groups", "prices"
FACTS, NAMES = "providers", "models"
TARGETS_MAX: Final = 6
"""The places of one name: the first and five more, as many as litellm goes on to (``max_fallbacks``, 1.106)."""

TABLES: Final = (UPSTREAMS, GROUPS, PRICES)
"""Tables of tables."""

ANY: Final = "*"
"""The name for every model, or every provider, that has no entry."""

SHOWN_MAX: Final = 60
"""Characters of a rejected value in a message."""

SHORT: Final = Repr()
SHORT.maxlevel = 1  # aliases in YAML can multiply

Key = tuple[str, ...]
"""The name of a setting: ``("workers",)``, ``("limits", "openai/*")``, ``("retry", "backoff_s")``."""

Said = dict[Key, tuple[Any, str]]
"""Settings, each with its value and its origin."""


def shown(value: object) -> str:
    """The text of ``value`` for a message: shortened, and without the password of a URL."""
    text = value if isinstance(value, str) else SHORT.repr(value)
    text = re.sub(r"//[^/@\s'\"]*@", "//...@", text)
    text = repr(text) if isinstance(value, str) else text
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


class _Described(WrapValidator):
    """A validator that says in the JSON schema what it accepts."""

    def __init__(self, func: Any, **schema: Any) -> None:
        super().__init__(func)
        object.__setattr__(self, "schema", schema)

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {**handler(core), **self.schema}  # type: ignore[attr-defined]


def expected(
    what: str, accepts: Callable[[Any], bool] = lambda _: True, words: Sequence[str] = (), **schema: Any
) -> WrapValidator:
    """Give one message to all values that pydantic or ``accepts`` rejects, and to booleans in place of numbers.

    Args:
        what: What is right; the JSON schema has it as the description.
        accepts: Whether a value of the right type is right.
        words: The values, for suggestions.
        **schema: What else the JSON schema has.
    """

    def validate(value: Any, convert: Callable[[Any], Any]) -> Any:
        try:
            result = convert(value)
        except ValidationError:
            result = None
        boolean = isinstance(value, bool) and not isinstance(result, bool)
        if result is None or boolean or not accepts(result):
            raise ValueError(f"{shown(value)}: it must be {what}{did_you_mean(str(value), words)}")
        return result

    return _Described(validate, description=what, **schema)


def within(least: float, most: float, what: str = "a whole number") -> WrapValidator:
    """Accept numbers from ``least`` to ``most``; ``what`` names their kind or unit."""
    words = f"{what} from {least:,.15g} to {most:,.15g}"
    return expected(words, lambda number: bool(least <= number <= most), minimum=least, maximum=most)


def table(example: str) -> BeforeValidator:
    """Accept tables only."""

    def check(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError(f"write a table: {example}; it is {shown(value)}")  # noqa: TRY004
        return value

    return BeforeValidator(check)


def by_pattern(name: str, table: Mapping[str, Sequence[str]]) -> tuple[str, list[str]]:
    """The name in ``table`` whose ``*`` stands for a part of ``name``, and its targets with that part; both empty for none.

    Of several it is the one with the most text before its ``*``, then behind it. No two are equal there.
    """
    for pattern in sorted(table, key=lambda one: [-len(text) for text in one.split("*")]):
        before, star, behind = pattern.partition("*")
        if star and name.startswith(before) and name.endswith(behind) and len(name) >= len(before + behind):
            part = name[len(before) : len(name) - len(behind)]
            return pattern, [target.replace("*", part) for target in table[pattern]]
    return "", []


def parse_base_url(text: str) -> str:
    """The server's address without a slash at the end; a ``/v1`` stays, for paths that have no version of their own.

    Raises:
        ValueError: Not the address of an HTTP server, or with a password, a query or a fragment.
    """
    url = urlsplit(text.strip())
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment or "@" in url.netloc:
        raise ValueError("it must be an address like 'https://api.openai.com' or 'http://127.0.0.1:8080/v1'")
    return f"{url.scheme}://{url.netloc}{url.path}".rstrip("/")


def _store(value: Any) -> str:
    """A store's URL. No message shows ``value``, which may hold a password."""
    if not isinstance(value, str):
        raise ValueError("it must be a text like 'sqlite:PATH' or 'redis://HOST:PORT/DB'")  # noqa: TRY004
    try:
        as_store(value.strip())  # does not connect
    except StoreError as error:
        raise ValueError(str(error)) from None
    return value.strip()


def _quotas(value: Any) -> tuple[Quota, ...]:
    """One model's limits, from texts or a table of amounts."""
    if isinstance(value, tuple):  # parsed already, by the command line
        return value
    if isinstance(value, Mapping):
        amounts: Mapping[Any, Any] = _AMOUNTS.validate_python(value)
        if not amounts.keys() - {"day_zone"}:
            raise ValueError("it is empty: give rpm, tpm, ...")
        zone = amounts.get("day_zone", "")
        return tuple(amounts[name].restarting(zone) for name in value if name != "day_zone")
    if not isinstance(value, str | list) or not all(isinstance(quota, str) for quota in value):
        example = '["500 requests/min", "400k tokens/min"]'
        raise ValueError(f"{shown(value)}: write texts, e.g. {example}, or a table of rpm, tpm, ...")
    return parse_quotas(value)


def _limit(value: Any) -> Any:
    """One model's limits, or a table of models; a table of amounts has the name of one, or nothing but numbers."""
    if not isinstance(value, Mapping) or any(name in AmountsTable.__annotations__ for name in value):
        return _quotas(value)
    numbers = all(isinstance(part, int | float) for part in value.values())
    return _quotas(value) if numbers else _MODELS.validate_python(value)


def _starts(value: Any) -> tuple[Quota, ...]:
    """The quota of one backend's starts; none for ``off``."""
    if value in (None, False):
        return ()
    if not isinstance(value, Mapping):
        raise ValueError(f"{shown(value)}: write a table, e.g. max_starts = 7, time_window = 60; or off")  # noqa: TRY004
    its = _STARTS.validate_python(value)
    for name in ("max_starts", "time_window"):
        if name not in its:
            raise ValueError(f"it has no {name}: write e.g. max_starts = 7, time_window = 60")
    most, even, burst = its["max_starts"], its.get("mode") == "even", its.get("burst")
    if burst is not None and not (even and burst <= most):
        raise ValueError(f"burst is {burst}: it is for mode even, and at most max_starts")
    return (Quota("starts", most, its["time_window"], burst or 0.0, rule=Rule.EVEN if even else Rule.EXACT),)


def _breaker(value: Any) -> Any:
    """On or off, or a table."""
    return _BREAKER[isinstance(value, Mapping)].validate_python(value)


def _facts(value: Any) -> Any:
    """Facts about providers, as ``paceline limits check`` takes them."""
    try:
        return facts.checked({"providers": value}, "")["providers"]
    except SettingsError as error:
        raise ValueError(str(error).removeprefix("providers.")) from None


def _zone(name: str) -> str:
    """The name of a time zone, for quotas of a day."""
    zone = name.lower() if name.lower() == "utc" else name
    Quota(REQUESTS, 1.0, DAY_S, rule=Rule.WINDOW, anchor=zone)  # an unknown zone raises here
    return zone


def _quota(unit: str, period_s: float) -> AfterValidator:
    rule = Rule.BUCKET if period_s else Rule.SLOTS
    return AfterValidator(lambda amount: Quota(unit, float(amount), period_s, rule=rule))


Name = Annotated[str, BeforeValidator(str)]  # a key of YAML can be a number
Pattern = Annotated[Name, AfterValidator(lambda name: written(name) and name)]
Text = Annotated[str, AfterValidator(str.strip), expected("a text", bool)]
Tier = Annotated[
    Text, BeforeValidator(lambda value: str(value) if type(value) is int else value, json_schema_input_type=str | int)
]
Truth = Annotated[bool, expected("true or false")]
Attempts = Annotated[int, within(1, 1_000)]
Slots = Annotated[int, within(1, 1_000_000)]
Rate = Annotated[float, within(1e-3, 1e12, "a number")]
Factor = Annotated[float, within(0.1, 10, "a factor")]
Hour = Annotated[float, within(0, 3_600, "seconds")]
Day = Annotated[float, within(0, 86_400, "seconds")]
Month = Annotated[float, within(0, RUN_S, "seconds")]
Timeout = Annotated[float, within(0, TIMEOUT_MAX_S, "seconds")]
Price = Annotated[float, within(0, 999_999, "a price in USD for a million tokens")]
Fee = Annotated[float, within(0, 999_999, "a fee in USD for a request")]
closed = with_config(ConfigDict(extra="forbid"))


@closed
class AmountsTable(TypedDict, total=False):
    """Limits of a model as numbers; each becomes a quota."""

    rps: Annotated[Rate, _quota(REQUESTS, 1.0)]
    rpm: Annotated[Rate, _quota(REQUESTS, 60.0)]
    rpd: Annotated[Rate, _quota(REQUESTS, 86_400.0)]
    tpm: Annotated[Rate, _quota(TOKENS, 60.0)]
    tpd: Annotated[Rate, _quota(TOKENS, 86_400.0)]
    itpm: Annotated[Rate, _quota(INPUT_TOKENS, 60.0)]
    otpm: Annotated[Rate, _quota(OUTPUT_TOKENS, 60.0)]
    concurrency: Annotated[Slots, _quota(IN_FLIGHT, 0.0)]
    day_zone: Annotated[Text, AfterValidator(_zone)]


Written = str | list[str] | AmountsTable
"""How quotas are written in a file."""

Limits = Annotated[
    dict[Name, Annotated[Any, PlainValidator(_limit, json_schema_input_type=Written | dict[str, Written])]],
    table('"gpt-6-luna" = ["500 requests/min", "400k tokens/min"]'),
]


class RetryTable(TypedDict, total=False):
    """Fields of :class:`~paceline.RetryPolicy`."""

    max_attempts: Attempts
    max_refused: Attempts
    max_elapsed_s: Month
    backoff_s: Day
    backoff_max_s: Day
    jitter: Annotated[float, within(0, 1, "a share")]
    max_retry_after_s: Month
    faults: Truth


@closed
class BreakerTable(TypedDict, total=False):
    """Fields of :class:`~paceline.BreakerPolicy`."""

    failures: Annotated[int, within(1, 1_000_000)]
    pause_s: Day
    first_pause_s: Day


class PlansTable(TypedDict, total=False):
    """Fields of :class:`~paceline.PlanPolicy`."""

    keep: Annotated[float, within(0, 0.99, "a share")]
    spread: Text
    stop_at: Annotated[float, within(0.01, 1, "a share")]
    overage: Annotated[Overage, expected("'go on' or 'wait'", words=get_args(Overage))]
    when_shut: Annotated[WhenShut, expected("'hold' or 'refuse'", words=get_args(WhenShut))]


class LaneTable(TypedDict, total=False):
    """Fields of :class:`~paceline.LaneSpec`."""

    limits: Annotated[Any, PlainValidator(_quotas, json_schema_input_type=Written)]
    weight: Annotated[float, within(1e-6, 1e6, "a number")]
    priority: Annotated[int, within(-1_000_000, 1_000_000)]


_PRICES: Final = dict.fromkeys(PRICE, Price) | {"request": Fee}
PriceTable: Final[Any] = cast("Any", TypedDict)("PriceTable", _PRICES, total=False)
PriceTable.__doc__ = "Prices of a model in US dollars for a million tokens."


class UpstreamTable(TypedDict, total=False):
    """A server of the gateway or of a group."""

    base_url: Annotated[Text, AfterValidator(parse_base_url)]
    provider: Text
    key_env: Annotated[str, AfterValidator(str.strip), expected("a text")]  # empty: it asks for no key
    key_file: Text
    models: Annotated[dict[Name, Text], table('"gpt-6-luna" = "my-deployment"')]


def _targets(value: Any) -> tuple[str, ...]:
    """Where the requests for one model go."""
    targets = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else ()
    if not targets or not all(isinstance(one, str) and one.strip() for one in targets):
        raise ValueError(
            f'{shown(value)}: write a list of servers with a model, e.g. ["openai/gpt-6-luna", "groq/llama"]'
        )
    return tuple(one.strip() for one in targets)


class GroupTable(TypedDict, total=False):
    """Several servers for the same requests; see :class:`paceline.Group`."""

    members: Annotated[list[Text], expected('a list of names in [upstreams], e.g. ["eu", "us"]', bool)]
    in_order: Truth
    weights: Annotated[dict[Name, Annotated[float, within(1e-6, 1e6, "a number")]], table("eu = 2")]
    sticky_s: Hour


@closed
class StartsTable(TypedDict, total=False):
    """A limit on the starts of the agents of a backend."""

    max_starts: Annotated[float, within(1, 1_000_000, "a number")]
    time_window: Annotated[float, within(0.001, RUN_S, "seconds")]
    mode: Annotated[Literal["window", "even"], expected("'window' or 'even'", words=("window", "even"))]
    burst: Annotated[float, within(1, 1_000_000, "a number")]


class SynonymsTable(TypedDict, total=False):
    """Names for settings in the files of another program; see :data:`SYNONYMS`."""

    acquire_timeout: Timeout
    token_estimate_buffer: Factor
    min_request_interval_ms: Annotated[float, within(0, 3_600_000, "milliseconds"), AfterValidator(lambda ms: ms / 1e3)]
    update_from_headers: Annotated[Truth, AfterValidator(lambda update: "up" if update else False)]


def _named(its: Any, example: str, name: Any = Name) -> Any:
    """A table of ``its`` by name."""
    return Annotated[dict[name, its], table(example)]


def _tables(kind: Any, name: str, example: str) -> Any:
    """Tables of one ``kind`` by name, such as ``name``."""
    return _named(Annotated[kind, table(example)], f"{name} = {{ {example} }}")


def _read_by(function: Callable[[Any], Any], form: Any) -> Any:
    """What ``function`` makes of a value; the JSON schema has its ``form``."""
    return Annotated[Any, PlainValidator(function, json_schema_input_type=form)]


FORMS: Final[dict[str, Any]] = {
    LIMITS: Limits,
    "defaults": Limits,
    "tier": Tier,
    "base_url": Annotated[Text, AfterValidator(parse_base_url)],
    "store": _read_by(_store, str),
    JOINT: _named(
        _read_by(lambda value: check_units(_quotas(value)), Written), '"openai/*" = "2500 requests/min"', Pattern
    ),
    CONCURRENCY: _named(Slots, "openai = 10"),
    LANES: _tables(LaneTable, "wrap", "weight = 4"),
    "starts": _named(_read_by(_starts, StartsTable | Literal[False]), "gemini = { max_starts = 7, time_window = 60 }"),
    "priorities": _named(Annotated[int, within(-1_000_000, 1_000_000)], '"coordinator*" = 10'),
    "retry": Annotated[RetryTable, table("max_attempts = 3")],
    "plans": Annotated[PlansTable, table("keep = 0.1")],
    BREAKER: _read_by(_breaker, bool | BreakerTable),
    "budget": _read_by(lambda value: check_budget(_quotas(value)), str | list[str]),
    PRICES: _tables(PriceTable, '"openai/my-model"', "input = 1.25, output = 10.0"),
    UPSTREAMS: _tables(UpstreamTable, "local", 'provider = "vllm", base_url = "http://127.0.0.1:8000"'),
    GROUPS: _tables(GroupTable, "gpt", 'members = ["eu", "us"]'),
    NAMES: _named(_read_by(_targets, str | list[str]), 'smart = ["openai/gpt-6-luna", "groq/openai/gpt-oss-120b"]'),
    "settings": Annotated[SynonymsTable, table("acquire_timeout = 300")],
    FACTS: _read_by(_facts, dict[str, Any]),
}
"""The settings whose form in a file differs from their type: tables, and settings with several spellings."""


def _form(kind: Any, its: Setting) -> Any:
    """How pydantic reads a setting of this type."""
    kinds = {kind, *get_args(kind)}
    if its.choices:
        words = tuple(one for one in its.choices if isinstance(one, str))
        kind = Literal[words]
        return Annotated[bool | kind if bool in kinds else kind, expected(its.expected, words=words)]
    if bool in kinds:
        return Truth
    if its.within:
        unit, least, most = its.within
        return Annotated[int if int in kinds else float, within(least, most, unit)]
    return Text


_HINTS: Final = get_type_hints(FileSettings)
_FORMS: Final = {name: _form(_HINTS[name], its) for name, its in declared(FileSettings).items()} | FORMS
SettingsTable: Final[Any] = closed(cast("Any", TypedDict)("SettingsTable", _FORMS, total=False))
"""All settings of a file."""

OVERRIDES: Final = ("rpm_override", "tpm_override")
"""Settings that a file must not have."""

SYNONYMS: Final = {
    "acquire_timeout": "acquire_timeout_s",
    "token_estimate_buffer": "estimate_factor",
    "min_request_interval_ms": "min_interval_s",
    "update_from_headers": "learn",
}
KEYS: Final[dict[str, Any]] = {
    "retry": RetryTable, "plans": PlansTable, BREAKER: BreakerTable, LANES: LaneTable, "settings": SynonymsTable, LIMITS: AmountsTable, JOINT: AmountsTable, "defaults": AmountsTable,
    "starts": StartsTable, UPSTREAMS: UpstreamTable, GROUPS: GroupTable, PRICES: PriceTable,
}  # fmt: skip
"""The tables with keys of their own."""

_SETTINGS: Final = TypeAdapter[Any](SettingsTable)
_STARTS: Final = TypeAdapter[Any](StartsTable)
_AMOUNTS: Final = TypeAdapter[Any](AmountsTable)
_MODELS: Final = TypeAdapter[Any](dict[Name, Annotated[Any, PlainValidator(_quotas)]])
_BREAKER: Final = TypeAdapter[Any](Truth), TypeAdapter[Any](BreakerTable)


def json_schema() -> dict[str, Any]:
    """The JSON schema of a file, for editors. It has the names, types and bounds of settings; ``paceline config`` checks more."""
    schema = _SETTINGS.json_schema()
    for name in OVERRIDES:
        del schema["properties"][name]
    for name, its in declared(FileSettings).items():
        if name in schema["properties"]:
            about = schema["properties"][name]
            about["description"] = f"{its.text} {about.get('description', '').capitalize()}".strip()
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "description": "Settings of paceline: a file paceline.toml or paceline.yaml.",
    }
    return cast("dict[str, Any]", _untitled(schema))


def _untitled(value: Any) -> Any:
    """A schema without the titles that repeat its names, and with plain text for the markup of docstrings."""
    if isinstance(value, list):
        return [_untitled(part) for part in value]
    if not isinstance(value, dict):
        return value
    plain = {name: _untitled(part) for name, part in value.items() if name != "title" or not isinstance(part, str)}
    if isinstance(text := plain.get("description"), str):
        plain["description"] = plain_text(text)
    return plain


def read(source: SettingsSource, problems: Problems, *, overrides: bool = False) -> Said:
    """Validate each entry of ``source`` by itself: a wrong one hides no other.

    Args:
        source: Settings from one place.
        problems: Receives what is wrong.
        overrides: Whether ``source`` may have :data:`OVERRIDES`.

    Returns:
        The entries that are right.
    """
    said: Said = {}
    paths: dict[Key, Place] = {}
    names = [name for name in SettingsTable.__annotations__ if overrides or name not in OVERRIDES]
    for name, value in source.values.items():
        if name not in names:
            problems.add(source.place((name,)), _unknown(name, names))
            continue
        for entry, part in leaves(value, (name,), 3 if name in (LANES, *TABLES) else 2):
            if part == {} and len(entry) == 1:
                continue
            for path, valid in _entry(source, entry, part, problems):
                key = _key(path)
                if key in said:
                    problems.add(source.place(path), f"the same as {source.place(paths[key])}: keep one")
                said[key], paths[key] = (valid, source.origin(path)), path
    return said


def _entry(source: SettingsSource, entry: Place, part: Any, problems: Problems) -> Sequence[tuple[Place, Any]]:
    """The values of one entry; none if it is wrong."""
    name = entry[0]
    try:
        values = list(leaves(_SETTINGS.validate_python(nested(entry, part))))
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            path = tuple(str(part) for part in fault["loc"] if part != "[key]")
            known = fault["type"] == "value_error"
            message = fault["ctx"]["error"] if known else _unknown(path[-1], KEYS[name].__annotations__)
            problems.add(source.place(path), message)
        return ()
    _check_provider(source, values[0][0])
    if name in (LIMITS, "defaults") and len(entry) == 3 and entry[2][:1].isdigit() and entry[1][-1:].isdigit():
        text = f'write "{entry[1]}.{entry[2]}" in quotes: a dot separates the names of tables'
        problems.add(source.place(entry), text)
        return ()
    return values


def leaves(value: Any, path: Place = (), depth: int = 9) -> Iterator[tuple[Place, Any]]:
    """The entries of nested tables, down to ``depth`` names, each with its path."""
    if isinstance(value, Mapping) and value and len(path) < depth:
        for name, part in value.items():
            yield from leaves(part, (*path, name), depth)
    else:
        yield path, value


def _unknown(name: str, known: Iterable[str]) -> str:
    return f"no such setting{did_you_mean(name, known) or '; known: ' + ', '.join(known)}"


def _key(path: Place) -> Key:
    """The name of the setting at ``path``, which can have several spellings."""
    match path:
        case ("limits" | "defaults", name):
            provider, slash, model = name.strip().partition("/")
            own = f"{ALIASES.get(provider.lower(), provider)}/{model}" if slash else provider
            return LIMITS, ANY if name == "default" else own
        case ("limits" | "defaults", provider, model):
            return LIMITS, f"{_provider(provider)}/{ANY if model == 'default' else model}"
        case ("starts", backend):
            return LIMITS, f"starts/{backend.strip()}"
        case ("joint_limits", name):
            return JOINT, written(name)
        case ("concurrency", provider):
            return CONCURRENCY, _provider(provider)
        case ("settings", name):
            return (SYNONYMS[name],)
        case ("retry", "max_attempts"):  # also a setting of its own, for a run
            return ("max_attempts",)
    return path


def _provider(name: str) -> str:
    clean = name.strip().lower()
    return ANY if clean == "default" else ALIASES.get(clean, clean)


def _check_provider(source: SettingsSource, path: Place) -> None:
    """Warn if ``path`` has a provider that is unknown but has nearly the name of a known one."""
    if path[0] in (CONCURRENCY, JOINT) or (path[0] in (LIMITS, "defaults") and len(path) == 3):
        provider = path[1].partition("/")[0].strip().lower()
        if provider != "default" and (hint := slip(provider)):
            warn(f"{source.place(path[:2])}: {hint}")
