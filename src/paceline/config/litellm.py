"""The configuration of a litellm proxy as settings, and what of it has no counterpart.

The names are taken from litellm's documentation of ``config.yaml`` and of ``Router`` (docs.litellm.ai, 2026-11).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from paceline.config.schema import parse_base_url
from paceline.core.results import QuotaError
from paceline.providers.registry import PROVIDERS, base_of, is_provider, maker, provider_named
from paceline.providers.roots import host_root

VARIABLE: Final = "os.environ/"
"""How a value in litellm's file names a variable."""

SIGNED: Final = {"bedrock": "AWS_BEARER_TOKEN_BEDROCK", "vertex": ""}
"""Providers whose usual credentials sign a request, so that no gateway can pass it on."""

ELSEWHERE: Final = {
    "litellm_credential_name": "its address and its key are in credential_list",
    "use_litellm_proxy": "its requests go to another proxy",
}
"""Settings by which the address of a deployment is in another place."""

BASES: Final = ("API_BASE", "BASE_URL")
"""The ends of names of variables with the address of a provider, as litellm and the clients of providers have them."""

REASONS: Final = {
    "litellm_params.api_version": "the path of a request has it; Azure's /openai/v1 needs none",
    "litellm_params.timeout": "a client has its own; x-paceline-timeout bounds the wait in the queue",
    "litellm_params.stream_timeout": "a client states its own",
    "litellm_params.max_budget": "a budget is of the whole gateway, of a lane or of a client key: docs/budgets.md",
    "litellm_params.budget_duration": "see max_budget",
    "litellm_params.input_cost_per_token": "prices are in [prices], in USD for a million tokens",
    "litellm_params.output_cost_per_token": "prices are in [prices], in USD for a million tokens",
    "router_settings.routing_strategy": "a group sends each request to the member where it can go soonest",
    "router_settings.routing_strategy_args": "see routing_strategy",
    "router_settings.fallbacks": "no request is sent to another model; in a group, what one member cannot answer goes to the others",
    "router_settings.context_window_fallbacks": "no request is sent to another model",
    "router_settings.content_policy_fallbacks": "no request is sent to another model",
    "router_settings.default_fallbacks": "no request is sent to another model",
    "router_settings.enable_pre_call_checks": "a request larger than its quota can ever hold fails before it is sent, always",
    "router_settings.retry_after": "the pause is the provider's own; retry.backoff_s is the first one where none is stated",
    "router_settings.retry_policy": "retry has one number of attempts for all errors",
    "router_settings.redis_password": "a password belongs into the variable PACELINE_STORE, with the whole URL of the store",
    "litellm_settings.fallbacks": "no request is sent to another model; in a group, what one member cannot answer goes to the others",
    "litellm_settings.context_window_fallbacks": "no request is sent to another model",
    "litellm_settings.success_callback": "traffic_log, the metrics and the listener of events are in docs/status.md and docs/events.md",
    "litellm_settings.failure_callback": "see success_callback",
    "litellm_settings.callbacks": "see success_callback",
    "litellm_settings.cache": "answers are not cached; the prompt caches of the providers are used: docs/agents.md",
    "litellm_settings.cache_params": "see cache",
    "litellm_settings.drop_params": "requests pass unchanged, but for the name of the model",
    "litellm_settings.max_budget": "a budget has a period: with a budget_duration it is converted, else write budget = ['100 usd/month']",
    "litellm_settings.budget_duration": "a period in s, m, h or d beside a max_budget is converted, another one is not",
    "general_settings.master_key": "clients have keys of their own: paceline keys",
    "general_settings.database_url": "client keys are in a file (`paceline keys`), quotas and the sums of usage in the store: docs/stores.md",
    "general_settings.alerting": "metrics for alerts are in docs/status.md",
    "include": "its files are not read: convert each of them",
    "model_info": "models are not described; prices are in [prices], in USD for a million tokens",
    "environment_variables": "set them in the environment: the file has no keys",
}
"""Why a setting is left out, and what there is in its place; others have no counterpart at all."""


LIMITS_OF_ALL: Final = "; its limits are of all models together: write them to [joint_limits]"

_WAITS: Final = "timeout, request_timeout: timeout_s bounds the wait in the queue, and not the answer"


@dataclass(slots=True)
class Converted:
    """The settings that a configuration of litellm becomes.

    Attributes:
        settings: As a file of paceline has them.
        lost: What has no counterpart, each with its place, and the reason; no values of keys.
        deployments: How many deployments were read.
    """

    settings: dict[str, Any]
    lost: list[str] = field(default_factory=list)
    deployments: int = 0


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


def convert(values: Mapping[str, Any]) -> Converted:
    """Convert a litellm proxy's ``config.yaml``.

    Raises:
        QuotaError: It has no ``model_list``, or a deployment without a model.
    """
    entries = values.get("model_list")
    if not isinstance(entries, list) or not entries:
        raise QuotaError("it has no model_list: it must be the config.yaml of a litellm proxy")
    conversion = _Conversion(
        _table(_table(values, "router_settings"), "default_litellm_params"), _table(values, "environment_variables")
    )
    for number, entry in enumerate(entries, 1):
        conversion.add(entry, f"model_list[{number}]")
    conversion.route(_table(values, "router_settings"))
    conversion.further(values)
    settings = conversion.settings()
    return Converted(settings, conversion.lost(), len(entries))


class _Conversion:
    def __init__(self, defaults: Mapping[str, Any], variables: Mapping[str, Any]) -> None:
        self._defaults, self._variables = defaults, variables
        self._lost: dict[str, list[str]] = {}
        self._keys: dict[str, list[str]] = {}
        self._servers: dict[tuple[str, str, str], str] = {}
        self._upstreams: dict[str, dict[str, Any]] = {}
        self._deployments: list[_Deployment] = []
        self._top: dict[str, Any] = {}

    def add(self, entry: Any, place: str) -> None:
        """Read one deployment."""
        params = entry.get("litellm_params") if isinstance(entry, Mapping) else None
        if not isinstance(params, Mapping) or not isinstance(params.get("model"), str):
            raise QuotaError(f"{place}: it has no litellm_params.model")
        name = str(entry.get("model_name") or params["model"])
        place = f"{place} ({name})"
        provider, model = _named(params)
        if not model:
            raise QuotaError(f"{place}: litellm_params.model has no model behind its provider")
        limits = self._limits({**entry, **params}, place)
        if params["model"] == "*":
            self._lose(
                place,
                "model *: of all providers: add an entry for each one to [upstreams], e.g. openai = {}, which serves all of its models",
            )
            return
        server = self._server(provider, self._addressed(provider, params), place)
        if "*" in name + model:
            self._lose(place, f"{_wildcard(model, server)}{LIMITS_OF_ALL if limits else ''}")
            return
        weight, order = (self._amount(params, part, place) for part in ("weight", "order"))
        self._deployments.append(_Deployment(place, name, provider, model, server, limits, weight, order))
        known = {"model", "custom_llm_provider", "api_key", "api_base", "base_url", "rpm", "tpm", "max_parallel_requests", "weight", "order", *ELSEWHERE}  # fmt: skip
        self._left_out(params, place, "litellm_params", known)
        self._left_out(entry, place, "", {"model_name", "litellm_params", "rpm", "tpm"})

    def _addressed(self, provider: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The settings of a deployment, with the address and the key that the file has for all."""
        names = ("api_base", "base_url", "api_key", *ELSEWHERE)
        known = {name: self._defaults[name] for name in names if self._defaults.get(name)} | dict(params)
        if not (known.get("api_base") or known.get("base_url")):
            named = (self._variables.get(f"{provider}_{end}".upper()) for end in BASES)
            known["api_base"] = next(filter(None, named), "")
        return known

    def _limits(self, entry: Mapping[str, Any], place: str) -> dict[str, float]:
        limits = {}
        for theirs, ours in (("rpm", "rpm"), ("tpm", "tpm"), ("max_parallel_requests", "concurrency")):
            if amount := self._amount(entry, theirs, place, least="above 0"):
                limits[ours] = amount
        return limits

    def _amount(self, table: Mapping[str, Any], name: str, place: str, *, least: str = "of 0 or more") -> float | None:
        """The number in a setting; another value is lost."""
        value = table.get(name)
        try:
            amount = None if value is None or isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            amount = None
        if amount is not None and 0 <= amount < 1e12 and (amount or least != "above 0"):
            return amount
        if value is not None:
            self._lose(place, f"{name} is no number {least}")
        return None

    def _server(self, provider: str, params: Mapping[str, Any], place: str) -> str:
        """The name in ``[upstreams]`` of the server of a deployment; empty for one that the gateway cannot serve."""
        key = str(params.get("api_key") or "")
        if provider in SIGNED and not key:
            instead = f"; with a key in {SIGNED[provider]} it can" if SIGNED[provider] else ""
            self._lose(
                place, f"requests are signed, so that paceline serve cannot pass them on{instead}; its limits hold"
            )
            return ""
        root = self._root(provider, params, place)
        if root is None:
            return ""
        known = PROVIDERS.get(provider)
        if not root and (known is None or host_root(provider_named(provider)) is None):
            self._lose(
                place,
                f"{provider} has no usual address: add an entry with its base_url to [upstreams]; its limits hold",
            )
            return ""
        if known is not None and urlsplit(root).hostname in known.hosts:
            root = ""
        if provider == "azure" and not urlsplit(root).path:
            root += (
                "/openai"  # requests go to Azure's API /openai/v1, as litellm's clients send no deployments in paths
            )
        variable = key.removeprefix(VARIABLE) if key.startswith(VARIABLE) else ""
        usual = known.key_env if known is not None else f"{_slug(provider)}_API_KEY".upper()
        if key and not variable:
            keys = self._keys.setdefault(provider, [])
            keys += [key] if key not in keys else []
            variable = usual if keys[0] == key else f"{usual}_{keys.index(key) + 1}"
            self._lose(place, f"api_key: a key is written in the file: put it into the variable {variable}")
        if variable == usual:
            variable = ""
        identity = (provider, root, variable)
        if identity not in self._servers:
            url = urlsplit(root)
            host = (url.hostname or "").partition(".")[0]
            mark = (
                (str(url.port or "") if host.isdigit() else host) if root else variable.lower().removesuffix("_api_key")
            )
            words = _slug(mark) if mark.startswith(provider) else _slug(f"{provider} {mark}")
            server, number = words, 2
            while server in self._upstreams:
                server, number = f"{words}_{number}", number + 1
            self._servers[identity] = server
            settings = {"provider": provider if server != provider else "", "base_url": root, "key_env": variable}
            self._upstreams[server] = {key: value for key, value in settings.items() if value}
        return self._servers[identity]

    def _root(self, provider: str, params: Mapping[str, Any], place: str) -> str | None:
        """The address of a deployment; empty for the provider's own, and ``None`` for one that is not known here.

        The key of a service that is not known must not go to the provider's own host: then nothing is written.
        """
        base, key = str(params.get("api_base") or params.get("base_url") or ""), str(params.get("api_key") or "")
        why = ""
        if name := next((name for name in ELSEWHERE if params.get(name)), ""):
            why = f"{name}: {ELSEWHERE[name]}"
        elif base.startswith(VARIABLE):
            why = f"api_base is in the variable {base.removeprefix(VARIABLE)}: write the address"
        elif base:
            try:
                return parse_base_url(base)
            except ValueError as error:
                why = f"api_base: {error}"
        if not why:
            return ""
        variable = key.removeprefix(VARIABLE) if key.startswith(VARIABLE) else "..."
        entry = f'{{ provider = "{provider}", base_url = "https://...", key_env = "{variable}" }}'
        self._lose(place, f"{why}. Its server is left out: add NAME = {entry} to [upstreams]; its limits hold")
        return None

    def route(self, router: Mapping[str, Any]) -> None:
        """Read the settings of the router."""
        aliases = router.get("model_group_alias")
        for alias, meant in aliases.items() if isinstance(aliases, Mapping) else ():
            name = meant.get("model") if isinstance(meant, Mapping) else meant
            for one in [one for one in self._deployments if one.name == name and one.server]:
                self._upstreams[one.server].setdefault("models", {})[str(alias)] = one.model
        retries, fails, pause_s, timeout_s = (
            self._amount(router, name, "router_settings")
            for name in ("num_retries", "allowed_fails", "cooldown_time", "timeout")
        )
        if retries is not None:
            self._top.setdefault("retry", {})["max_attempts"] = int(retries) + 1
        breaker = {
            "failures": int(fails) + 1 if fails is not None else None,
            "pause_s": pause_s,
            "first_pause_s": pause_s,
        }
        if breaker := {name: value for name, value in breaker.items() if value is not None}:
            self._top["breaker"] = breaker
            self._lose(
                "router_settings",
                "allowed_fails, cooldown_time: the breaker counts failures in a row at a host, litellm the failures of a minute at a deployment",
            )
        if timeout_s:
            self._top["timeout_s"] = timeout_s
            self._lose("router_settings", _WAITS)
        parts = {name: str(router[name]) for name in ("redis_url", "redis_host", "redis_port") if router.get(name)}
        if parts and not router.get("redis_password"):
            url = parts.get("redis_url") or f"redis://{parts.get('redis_host', '')}:{parts.get('redis_port', '6379')}"
            if re.fullmatch(r"rediss?://[\w.-]+(:\d+)?(/\d*)?", url):
                self._top["store"] = url
            else:  # a variable, or a password, or what is no address
                self._lose("router_settings", f"{', '.join(parts)}: set PACELINE_STORE to the URL of the Redis server")
        known = {"model_group_alias", "num_retries", "allowed_fails", "cooldown_time", "timeout", "redis_host", "redis_port", "redis_url"}  # fmt: skip
        self._left_out(router, "router_settings", "router_settings", known)

    def further(self, values: Mapping[str, Any]) -> None:
        """Read what is not of the router."""
        settings, general = _table(values, "litellm_settings"), _table(values, "general_settings")
        retries, timeout_s, budget = (
            self._amount(settings, name, "litellm_settings")
            for name in ("num_retries", "request_timeout", "max_budget")
        )
        if retries is not None:
            self._top.setdefault("retry", {}).setdefault("max_attempts", int(retries) + 1)
        if timeout_s:
            self._top.setdefault("timeout_s", timeout_s)
            self._lose("litellm_settings", _WAITS)
        known = {"num_retries", "request_timeout"}
        period = str(settings.get("budget_duration", ""))
        if budget and re.fullmatch(r"[1-9]\d*[smhd]", period):
            known |= {"max_budget", "budget_duration"}
            self._top["budget"] = [f"{budget:g} usd/{period.replace('m', 'min')}"]
        self._left_out(settings, "litellm_settings", "litellm_settings", known)
        most = self._amount(general, "global_max_parallel_requests", "general_settings")
        if most:
            self._top["joint_limits"] = {"*": f"{most:g} concurrency"}
        self._left_out(general, "general_settings", "general_settings", {"global_max_parallel_requests"})
        self._left_out(values, "", "", {"model_list", "router_settings", "litellm_settings", "general_settings"})

    def settings(self) -> dict[str, Any]:
        """All settings, in the order of a file."""
        groups = dict(self._groups())
        grouped = {member for group in groups.values() for member in group["members"]}
        limits: dict[str, dict[str, float]] = {}
        added: set[tuple[str, str]] = set()
        for one in self._deployments:
            pool = (
                f"{one.provider}@{one.server}" if one.server in grouped and one.server != one.provider else one.provider
            )
            name = f"{pool}/{one.model}"
            before = limits.get(name)
            if before is None or not before:
                limits[name] = one.limits
            elif (one.name, name) in added:  # the same server twice in a group of litellm
                limits[name] = {
                    unit: before.get(unit, 0.0) + one.limits.get(unit, 0.0) for unit in {**before, **one.limits}
                }
                self._lose(one.place, "a second deployment of the same server and model: their limits are added")
            elif one.limits and before != one.limits:
                limits[name] = {
                    unit: min(before.get(unit, amount), amount) for unit, amount in {**before, **one.limits}.items()
                }
                self._lose(one.place, f"{name} has other limits above: the lower ones hold, because they are one pool")
            added.add((one.name, name))
        for provider in PROVIDERS:
            alone = [
                name
                for name, own in self._upstreams.items()
                if own.get("provider", name) == provider and (name == provider or name not in grouped)
            ]
            if len(alone) > 1:
                self._lose(
                    ", ".join(alone),
                    "they share the limits of their provider, unless they are in a group and have names of their own: docs/groups.md",
                )
        stated = {name: own for name, own in limits.items() if own}
        top = dict(self._top)
        tables = {"limits": stated, "upstreams": self._upstreams, "groups": groups}
        return {**top, **{name: table for name, table in tables.items() if table}}

    def _groups(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The groups, one for each name with several servers; and each server's names of models."""
        names = dict.fromkeys(one.name for one in self._deployments)
        for name in names:
            those = [one for one in self._deployments if one.name == name and one.server]
            for one in those:
                models = self._upstreams[one.server].setdefault("models", {})
                if models.setdefault(name, one.model) != one.model:
                    self._lose(
                        one.place, f"{one.server} has {models[name]} for this name already: its requests go there"
                    )
            members = list(dict.fromkeys(one.server for one in those))
            if len(members) < 2:
                continue
            group: dict[str, Any] = {"members": members}
            if len({one.order for one in those}) > 1:
                group["members"] = list(dict.fromkeys(
                    one.server for one in sorted(those, key=lambda one: (one.order is None, one.order or 0.0))
                ))  # fmt: skip
                group["in_order"] = True
            if weights := {one.server: one.weight for one in those if one.weight}:
                group["weights"] = weights
            slug = _slug(name)
            yield (f"{slug}_group" if slug in self._upstreams or is_provider(slug) else slug), group
        for server in self._upstreams.values():
            models = {name: model for name, model in server.pop("models", {}).items() if name != model}
            if models:
                server["models"] = models

    def lost(self) -> list[str]:
        """What has no counterpart: what is the same in several places once."""
        foreign = [
            name for name in ("anthropic", "gemini", "cohere") if any(one.provider == name for one in self._deployments)
        ]
        if foreign:
            own = "translation: litellm takes requests in OpenAI's form for each model; here those for {} have the form of their own API"
            self._lose("", own.format(", ".join(foreign)))
        self._lose(
            "", "one address for all models: here the path names the server or the group, http://HOST:PORT/NAME/v1/..."
        )
        return [f"{', '.join(filter(None, places))}: {what}".removeprefix(": ") for what, places in self._lost.items()]

    def _lose(self, place: str, what: str) -> None:
        self._lost.setdefault(what, []).append(place)

    def _left_out(self, table: Mapping[str, Any], place: str, kind: str, known: set[str]) -> None:
        for name in table:
            if name not in known:
                reason = REASONS.get(f"{kind}.{name}" if kind else str(name), "it has no counterpart")
                self._lose(place, f"{name}: {reason}")


def _named(params: Mapping[str, Any]) -> tuple[str, str]:
    """The provider and the model of a deployment."""
    prefix, slash, rest = params["model"].partition("/")
    if params.get("custom_llm_provider"):
        prefix, slash, rest = (
            str(params["custom_llm_provider"]),
            "/",
            params["model"].removeprefix(f"{params['custom_llm_provider']}/"),
        )
    if slash:  # a prefix that is not known here is a provider of litellm's with OpenAI's API, or one that paceline does not serve
        return (base_of(provider_named(prefix).name) if is_provider(prefix) else _slug(prefix)), rest
    return maker(params["model"]) or "openai", params["model"]


def _wildcard(model: str, server: str) -> str:
    """Why a pattern of names is lost, and what to write."""
    if not server:
        return "a pattern of models needs none here: a server in [upstreams] serves all of its models"
    if "*" in model:
        return f"a pattern of models: {server} in [upstreams] serves all of its models by the provider's own names"
    return f"a pattern of names: name each one, e.g. {server}.models = {{ NAME = {json.dumps(model)} }} in [upstreams]"


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values.get(name)
    return table if isinstance(table, Mapping) else {}


def _slug(text: str) -> str:
    """A name for a table of the settings and a path of the gateway."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "models"
