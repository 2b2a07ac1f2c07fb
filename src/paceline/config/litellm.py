"""The configuration of a litellm proxy as settings, and what of it has no counterpart: as the table beside this file says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from paceline.config.schema import TARGETS_MAX, by_pattern, parse_base_url
from paceline.core.results import SettingsError
from paceline.providers.registry import PROVIDERS, base_of, is_provider, maker, provider_named
from paceline.providers.roots import host_root
from paceline.responses.values import table_beside

VARIABLE: Final = "os.environ/"
"""How a value in litellm's file names a variable."""

SIGNED: Final = {"bedrock": "AWS_BEARER_TOKEN_BEDROCK", "vertex": ""}
"""Providers whose usual credentials sign a request, so that no gateway can pass it on."""

BASES: Final = ("API_BASE", "BASE_URL")
"""The ends of names of variables with the address of a provider, as litellm and the clients of providers have them."""

TRANSLATED: Final = ("anthropic", "gemini", "cohere")
"""Providers with an API of their own beside OpenAI's."""


_TABLE: Final = table_beside(__file__, "litellm")
ELSEWHERE: Final[Mapping[str, str]] = _TABLE["elsewhere"]
LEFT_OUT: Final = {setting: why for why, settings in _TABLE["left_out"].items() for setting in settings}

LIMITS_OF_ALL: Final = "its limits are of all models together: write them to [joint_limits]"


@dataclass(slots=True)
class Converted:
    """The settings that a configuration of litellm becomes.

    Attributes:
        settings: As a file of paceline has them.
        lost: What differs or has no counterpart, each with its place, and the reason; no values of keys.
        deployments: How many deployments were read.
        variables: The variables of the keys that its servers need.
    """

    settings: dict[str, Any]
    lost: list[str] = field(default_factory=list)
    deployments: int = 0
    variables: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Deployment:
    place: str
    name: str
    provider: str
    model: str
    server: str
    limits: dict[str, float]
    weight: float | None
    order: float | None

    @property
    def target(self) -> str:
        return f"{self.server}/{self.model}"


class _LeftOutError(Exception):
    """The server of a deployment is in no table; the message says why."""


def convert(
    values: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
    lines: Mapping[tuple[str, ...], int] = MappingProxyType({}),
) -> Converted:
    """Convert a litellm proxy's ``config.yaml``.

    Args:
        values: What is in it.
        environ: Has the values, but for keys, that the file takes from variables.
        lines: The lines of its entries, as far as they are known.

    Raises:
        SettingsError: It has no ``model_list``, or a deployment without a model.
    """
    entries = values.get("model_list")
    if not isinstance(entries, list) or not entries:
        remedy = "it must be the config.yaml of a litellm proxy"
        if "include" in values:
            remedy = "convert the files that include names, and join the results"
        raise SettingsError(f"it has no model_list: {remedy}")
    conversion = _Conversion(values, environ or {})
    for number, entry in enumerate(entries, 1):
        line = lines.get(("model_list", str(number)))
        conversion.add(entry, f"line {line}" if line else f"model_list[{number}]")
    for kind in ("router_settings", "litellm_settings", "general_settings"):
        conversion.read(_table(values, kind), kind)
    conversion.read(values, "")
    settings = conversion.settings()
    return Converted(settings, conversion.lost(), len(entries), conversion.variables())


class _Conversion:
    def __init__(self, values: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        self._values, self._environ = values, environ
        self._lost: dict[str, list[str]] = {}
        self._keys: dict[str, list[str]] = {}
        self._needed: dict[str, None] = {}
        self._upstreams: dict[str, dict[str, Any]] = {}
        self._deployments: list[_Deployment] = []
        self._patterns: dict[str, list[str]] = {}
        self._groups: dict[str, dict[str, Any]] = {}
        self._prices: dict[str, dict[str, float]] = {}

    # The settings of all models.

    def read(self, table: Mapping[str, Any], kind: str, place: str = "") -> None:
        """Read the settings of a table by their rows."""
        where = place or kind
        for name in table:
            setting = f"{kind}.{name}" if kind else str(name)
            if name not in _TABLE["read"].get(kind or "file", ()):
                self._lose(where, f"{name}: {LEFT_OUT.get(setting, 'it has no counterpart')}")

    def _amount(self, table: Mapping[str, Any], name: str, place: str, *, least: str = "of 0 or more") -> float | None:
        """The number in a setting; another value is lost."""
        value = self._value(table.get(name))
        try:
            amount = None if value is None or isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            amount = None
        if amount is not None and 0 <= amount < 1e12 and (amount or least != "above 0"):
            return amount
        if value is not None:
            self._lose(place, f"{name} is no number {least}")
        return None

    def _value(self, value: Any) -> Any:
        """A value that is no key, from the environment if the file says so and it is there."""
        if not isinstance(value, str) or not value.startswith(VARIABLE):
            return value
        return self._environ.get(value.removeprefix(VARIABLE), "").strip() or value

    # Deployments, and their servers.

    def add(self, entry: Any, place: str) -> None:
        """Read one deployment."""
        params = entry.get("litellm_params") if isinstance(entry, Mapping) else None
        if not isinstance(params, Mapping) or not isinstance(params.get("model"), str):
            raise SettingsError(f"{place}: it has no litellm_params.model")
        params = {**params, "model": self._value(params["model"])}
        name = str(entry.get("model_name") or params["model"])
        place = f"{place} ({name})"
        self.read(params, "litellm_params", place)
        self.read(entry, "model_list", place)
        info = _table(entry, "model_info")
        if params["model"] == "*":
            self._lose(
                place,
                'model *: write a name for each provider, e.g. "openai/*" = "openai/*" in [models] and openai = {} in [upstreams]',
            )
            return
        provider, model = _named(params)
        if not model:
            raise SettingsError(f"{place}: litellm_params.model has no model behind its provider")
        limits = self._limits({**entry, **params}, place)
        try:
            server = self._server(provider, self._addressed(provider, params), place)
        except _LeftOutError as error:
            server = ""
            self._lose(place, str(error))
        if "*" in name + model:
            self._add_pattern(name, f"{server}/{model}" if server else "", place, limits=bool(limits))
            return
        self._price({**info, **params}, f"{provider}/{model}", place)
        weight, order = (self._amount(params, part, place) for part in ("weight", "order"))
        self._deployments.append(_Deployment(place, name, provider, model, server, limits, weight, order))

    def _add_pattern(self, name: str, target: str, place: str, *, limits: bool) -> None:
        """Read a deployment for all models of a form."""
        if limits:
            self._lose(place, LIMITS_OF_ALL)
        if name.count("*") > 1 or target.count("*") > name.count("*"):
            why = "a name has one * at most, and what it stands for none without it: name each model in [models]"
            self._lose(place, why)
        elif target:
            self._patterns.setdefault(name, []).append(target)

    def _price(self, of: Mapping[str, Any], model: str, place: str) -> None:
        for theirs, ours in (("input_cost_per_token", "input"), ("output_cost_per_token", "output")):
            if (price := self._amount(of, theirs, place)) is not None:
                self._prices.setdefault(model, {})[ours] = round(price * 1e6, 6)

    def _addressed(self, provider: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The settings of a deployment, with the address and the key that the file has for all."""
        defaults = _table(_table(self._values, "router_settings"), "default_litellm_params")
        names = ("api_base", "base_url", "api_key", *ELSEWHERE)
        known = {name: defaults[name] for name in names if defaults.get(name)} | dict(params)
        if not (known.get("api_base") or known.get("base_url")):
            variables = _table(self._values, "environment_variables")
            named = (variables.get(f"{provider}_{end}".upper()) for end in BASES)
            known["api_base"] = next(filter(None, named), "")
        return known

    def _limits(self, entry: Mapping[str, Any], place: str) -> dict[str, float]:
        limits = {}
        for theirs, ours in (("rpm", "rpm"), ("tpm", "tpm"), ("max_parallel_requests", "concurrency")):
            if amount := self._amount(entry, theirs, place, least="above 0"):
                limits[ours] = amount
        return limits

    def _server(self, provider: str, params: Mapping[str, Any], place: str) -> str:
        """The name in ``[upstreams]`` of the server of a deployment.

        Raises:
            _LeftOutError: The gateway cannot serve it.
        """
        key, known = str(params.get("api_key") or ""), PROVIDERS.get(provider)
        if provider in SIGNED and not key:
            instead = f"; with a key in {SIGNED[provider]} it can" if SIGNED[provider] else ""
            why = f"requests are signed, so that paceline serve cannot pass them on{instead}; its limits apply"
            raise _LeftOutError(why)
        root = self._root(provider, params, place)
        if root == "" and (known is None or host_root(provider_named(provider)) is None):
            why = f"{provider} has no usual address: add an entry with its base_url to [upstreams]; its limits apply"
            raise _LeftOutError(why)
        if known is not None and urlsplit(root).hostname in known.hosts:
            root = ""
        if provider == "azure" and not urlsplit(root).path:
            # Requests go to Azure's API /openai/v1, as litellm's clients send no deployments in paths.
            root += "/openai"
        return self._entry(provider, root, self._variable(provider, root, key, place))

    def _variable(self, provider: str, root: str, key: str, place: str) -> str | None:
        """The variable of a key; ``None`` for the usual one of its provider, empty for no key.

        A key that the file has for an address of its own gets a variable of its own: the provider's must not go there.
        """
        known = PROVIDERS.get(provider)
        usual = known.key_env if known is not None else f"{_slug(provider)}_API_KEY".upper()
        variable = key.removeprefix(VARIABLE) if key.startswith(VARIABLE) else ""
        if root and _is_placeholder(key):
            self._lose(place, "api_key: it stands for no key, and none is needed")
            return ""
        if key and not variable:
            own = f"{_words(provider, root)}_API_KEY".upper() if root else usual
            keys = self._keys.setdefault(own, [])
            keys += [key] if key not in keys else []
            variable = own if keys[0] == key else f"{own}_{keys.index(key) + 1}"
            self._lose(place, f"api_key: a key is written in the file: put it into the variable {variable}")
        if key or not root:
            self._needed[variable or usual] = None
        return None if variable in ("", usual) else variable

    def _entry(self, provider: str, root: str, variable: str | None) -> str:
        """The name of a server, which is added to ``[upstreams]`` when it comes first."""
        settings = {"base_url": root or None, "key_env": variable}
        own = {"provider": provider} | {name: value for name, value in settings.items() if value is not None}
        for server, known in self._upstreams.items():
            if {"provider": server} | known == own:
                return server
        words = _words(provider, root, variable or "")
        server, number = words, 2
        while server in self._upstreams:
            server, number = f"{words}_{number}", number + 1
        if server == provider:
            del own["provider"]
        self._upstreams[server] = own
        return server

    def _root(self, provider: str, params: Mapping[str, Any], place: str) -> str:
        """The address of a deployment; empty for the provider's own.

        Raises:
            _LeftOutError: It is not known here. The key must not go to the provider's own host: nothing is written.
        """
        base, key = params.get("api_base") or params.get("base_url") or "", str(params.get("api_key") or "")
        found, root = str(self._value(base)), ""
        why = next((f"{name}: {said}" for name, said in ELSEWHERE.items() if params.get(name)), "")
        if not why and found.startswith(VARIABLE):
            variable = found.removeprefix(VARIABLE)
            why = f"api_base is in the variable {variable}: set it and convert again, or write the address"
        elif not why and found:
            try:
                root = parse_base_url(found)
            except ValueError as error:
                why = f"api_base: {error}"
        if why:
            variable = key.removeprefix(VARIABLE) if key.startswith(VARIABLE) else "..."
            entry = f'{{ provider = "{provider}", base_url = "https://...", key_env = "{variable}" }}'
            instead = f"add NAME = {entry} to [upstreams], and its name to [models]; its limits apply"
            raise _LeftOutError(f"{why}. Its server is left out: {instead}")
        if found != base:
            told = f"api_base: the address that {str(base).removeprefix(VARIABLE)} has now is written"
            self._lose(place, told)
        return root

    # What is of the whole file.

    def _budget(self) -> list[str]:
        """The budget; empty for none."""
        own = _table(self._values, "litellm_settings")
        most, period = self._amount(own, "max_budget", "litellm_settings"), own.get("budget_duration")
        if not most:
            return []
        found = re.fullmatch(r"([1-9]\d*)(mo|[smhd])", str(period))
        if period is None:
            why = "max_budget: without a budget_duration it never restarts: it is a budget for a hundred years"
            self._lose("litellm_settings", why)
            return [f"{most:g} usd/36500d window"]
        if found and (found[2] != "mo" or found[1] == "1"):
            return [f"{most:g} usd/{_period(*found.groups())}"]
        self._lose(
            "litellm_settings",
            f"max_budget, budget_duration: write a period in s, m, h, d or 1mo, e.g. budget = ['{most:g} usd/month']",
        )
        return []

    def _joint(self) -> dict[str, str]:
        """The limits of all models together."""
        kind = "general_settings"
        most = self._amount(_table(self._values, kind), "global_max_parallel_requests", kind, least="above 0")
        return {"*": f"{most:g} concurrency"} if most else {}

    def settings(self) -> dict[str, Any]:
        """All settings, in the order of a file."""
        budget = self._budget()
        models = self._models()
        grouped = {member for group in self._groups.values() for member in group["members"]}
        limits = self._all_limits(grouped)
        self._tell_shared(grouped)
        made = {
            "budget": budget,
            "joint_limits": self._joint(),
            "limits": limits,
            "prices": self._prices,
            "upstreams": self._upstreams,
            "groups": self._groups,
            "models": models,
        }
        return {name: value for name, value in made.items() if value}

    def _all_limits(self, grouped: set[str]) -> dict[str, dict[str, float]]:
        """The limits of each pool; a member of a group has pools of its own."""
        limits: dict[str, dict[str, float]] = {}
        added: set[tuple[str, str]] = set()
        for one in self._deployments:
            apart = one.server in grouped and one.server != one.provider
            name = f"{one.provider}@{one.server}/{one.model}" if apart else f"{one.provider}/{one.model}"
            before, twice = limits.get(name), (one.name, name) in added  # the same server twice in a group of litellm
            if not before:
                limits[name] = one.limits
            elif twice or (one.limits and before != one.limits):
                both = {
                    unit: [own[unit] for own in (before, one.limits) if unit in own] for unit in before | one.limits
                }
                limits[name] = {unit: sum(amounts) if twice else min(amounts) for unit, amounts in both.items()}
                added_up = "a second deployment of the same server and model: their limits are added"
                lower = f"{name} has other limits above: the lower ones apply, because they are one pool"
                self._lose(one.place, added_up if twice else lower)
            added.add((one.name, name))
        return {name: own for name, own in limits.items() if own}

    def _tell_shared(self, grouped: set[str]) -> None:
        for provider in PROVIDERS:
            of = [name for name, own in self._upstreams.items() if own.get("provider", name) == provider]
            alone = [name for name in of if name == provider or name not in grouped]
            if len(alone) > 1:
                why = 'they share the limits of their provider; as members of [groups], each has its own, such as "openai@NAME/MODEL"'
                self._lose(", ".join(alone), why)

    # The names of models, and where the requests for each go.

    def _models(self) -> dict[str, Any]:
        """The table of names."""
        names = dict.fromkeys(one.name for one in self._deployments)
        found = {name: self._targets(name) for name in names} | self._patterns
        found = {name: list(dict.fromkeys(targets)) for name, targets in found.items() if targets}
        for alias, meant in _table(_table(self._values, "router_settings"), "model_group_alias").items():
            name = meant.get("model") if isinstance(meant, Mapping) else meant
            if targets := [one for one in found.get(str(name), ()) if "*" not in one]:
                found[str(alias)] = targets
                if isinstance(meant, Mapping) and meant.get("hidden"):
                    self._lose("router_settings", f"model_group_alias: {alias}: GET /v1/models lists it, too")
            else:
                self._lose("router_settings", f"model_group_alias: {alias}: no server has the model that it names")
        self._tell_caught(found)
        return self._with_fallbacks(found)

    def _tell_caught(self, found: Mapping[str, list[str]]) -> None:
        """Name the deployments that are left out, and whose requests a pattern would send to another server."""
        for one in self._deployments:
            # litellm looks for a name before its patterns: without the name, the pattern gets its requests
            pattern, _ = by_pattern(one.name, found)
            if pattern and one.name not in found:
                to = ", ".join(found[pattern])
                why = f'its requests go to {to} now, by the name "{pattern}": write its name to [models]'
                self._lose(one.place, why)

    def _targets(self, name: str) -> list[str]:
        """Where the requests for one name go: to its group, if it has several servers."""
        those = [one for one in self._deployments if one.name == name and one.server]
        if len({one.server for one in those}) > 1:
            return [f"{self._group(name, those)}/{name}"]
        for one in [one for one in those if one.target != those[0].target]:
            self._lose(
                one.place,
                "a second model of one server gets the requests that the first cannot answer, and no share of the others",
            )
        return [one.target for one in those]

    def _group(self, name: str, those: list[_Deployment]) -> str:
        """The group of the servers that have one name, each with its own name of the model."""
        for one in those:
            models = self._upstreams[one.server].setdefault("models", {})
            if models.setdefault(name, one.model) != one.model:
                self._lose(one.place, f"{one.server} has {models[name]} for this name already: its requests go there")
        in_order = len({one.order for one in those}) > 1
        ordered = sorted(those, key=lambda one: (one.order is None, one.order or 0.0)) if in_order else those
        group: dict[str, Any] = {"members": list(dict.fromkeys(one.server for one in ordered))}
        if in_order:
            group["in_order"] = True
        if weights := {one.server: one.weight for one in those if one.weight}:
            group["weights"] = weights
        slug = _slug(name)
        while slug in self._upstreams or slug in self._groups or is_provider(slug):
            slug += "_group"
        self._groups[slug] = group
        return slug

    def _with_fallbacks(self, found: Mapping[str, list[str]]) -> dict[str, Any]:
        """The names, with the places of their fallbacks behind their own."""
        models: dict[str, Any] = {}
        listed, default = self._fallbacks()
        for name, own in found.items():
            others = listed.get(name, listed.get("*", default))
            targets = [*own, *(target for other in others for target in self._places(other, found))]
            targets = [one for one in dict.fromkeys(targets) if "*" in name or "*" not in one]
            if len(targets) > TARGETS_MAX:
                self._lose(name, f"a name has {TARGETS_MAX} places at most: the further fallbacks are left out")
            if targets:
                models[name] = targets[0] if len(targets) == 1 else targets[:TARGETS_MAX]
        for other in dict.fromkeys(other for others in (*listed.values(), default) for other in others):
            if not self._places(other, found):
                self._lose("fallbacks", f"{other}: no server has this model")
        for name in listed.keys() - found.keys() - {"*"}:
            self._lose("fallbacks", f"{name}: no server has this model, so that it has no fallbacks")
        return models

    def _fallbacks(self) -> tuple[dict[str, list[str]], list[str]]:
        """The fallbacks of each name, and the default ones."""
        listed: dict[str, list[str]] = {}
        default: list[str] = []
        for place in ("router_settings", "litellm_settings"):
            table = _table(self._values, place)
            for entry in _entries(table.get("fallbacks")):
                for name, others in entry.items() if isinstance(entry, Mapping) else ():
                    mine = listed.setdefault(str(name), [])
                    mine += [str(one) for one in _entries(others) if isinstance(one, str)]
                    if any(not isinstance(one, str) for one in _entries(others)):
                        why = f"fallbacks: {name}: a fallback with other parameters than its name is left out"
                        self._lose(place, why)
            default += [str(one) for one in _entries(table.get("default_fallbacks"))]
        return listed, default

    @staticmethod
    def _places(name: str, found: Mapping[str, list[str]]) -> list[str]:
        """The places of a name, which may be one that a pattern stands for."""
        return found[name] if name in found else by_pattern(name, found)[1]

    def variables(self) -> list[str]:
        """The variables of the keys that the servers need."""
        return list(filter(None, self._needed))

    def lost(self) -> list[str]:
        """What differs or has no counterpart: what is the same in several places once."""
        foreign = [name for name in TRANSLATED if any(one.provider == name for one in self._deployments)]
        if foreign:
            own = "translation: requests in OpenAI's form go to the endpoints for it of {}, which leave out some fields; nothing is translated"
            self._lose("", own.format(", ".join(foreign)))
        return [f"{', '.join(filter(None, places))}: {what}".removeprefix(": ") for what, places in self._lost.items()]

    def _lose(self, place: str, what: str) -> None:
        places = self._lost.setdefault(what, [])
        places += [place] if place not in places else []


def _named(params: Mapping[str, Any]) -> tuple[str, str]:
    """The provider and the model of a deployment."""
    prefix, slash, rest = params["model"].partition("/")
    if given := str(params.get("custom_llm_provider") or ""):
        prefix, slash, rest = given, "/", params["model"].removeprefix(f"{given}/")
    if slash:  # a prefix that is not known here is a provider of litellm's with OpenAI's API, or one that paceline does not serve
        return (base_of(provider_named(prefix).name) if is_provider(prefix) else _slug(prefix)), rest
    return maker(params["model"]) or "openai", params["model"]


def _is_placeholder(key: str) -> bool:
    """Whether a text in the place of a key is none."""
    words = re.sub(r"[^a-z0-9]", "", key.lower().removeprefix("sk-"))
    return not {words, words.removesuffix("key").removesuffix("api")}.isdisjoint(_TABLE["placeholders"])


def _words(provider: str, root: str, variable: str = "") -> str:
    """The name of a server, by its address, or by the variable of its key."""
    url = urlsplit(root)
    host = (url.hostname or "").partition(".")[0]
    at = str(url.port or "") if host.isdigit() else host
    mark = at if root else variable.lower().removesuffix("_api_key")
    return _slug(mark) if mark.startswith(provider) else _slug(f"{provider} {mark}")


def _period(number: str, unit: str) -> str:
    """The period of a budget: one that litellm begins anew at its end, as a window does."""
    if unit == "mo":
        return "month"
    return "day" if (number, unit) in (("1", "d"), ("24", "h")) else f"{number}{unit.replace('m', 'min')} window"


def _entries(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else ()


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values.get(name)
    return table if isinstance(table, Mapping) else {}


def _slug(text: str) -> str:
    """A name for a table of the settings and a path of the gateway."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "models"
