"""What a provider tells an administrator of an organization: its limits and the ends of models, as facts for its key.

Sources: platform.claude.com/docs/en/manage-claude/rate-limits-api (a copy of 2026-09-26); developers.openai.com/api/reference:
models, and organization/projects/rate_limits (2026-11). ``input_tokens_per_minute_cache_aware`` is in clients of Anthropic's API
(2026) and not on its page: it is taken for input without cached reads, which the page calls ``input_tokens_per_minute``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import httpx2

from paceline import facts
from paceline.config.servers import address_at
from paceline.core.results import SettingsError, explaining
from paceline.pacing.durable import replacing
from paceline.providers.forms import dialect
from paceline.providers.registry import PROVIDERS, provider_named
from paceline.providers.roots import host_root, without_version
from paceline.responses.values import MAX_COUNT, as_number, decode

TIMEOUT_S: Final = 30.0
PAGES_MAX: Final = 100
"""The most pages of one list: a server may name another one after each."""

_MODEL: Final = re.compile(r"[\w.:@/+-]{1,200}")
"""The name of a model that a row may have; others (a ``*`` among them) would be patterns."""

LISTS: Final = ", "
"""What separates the lists in the source of a row."""

Row = dict[str, Any]


Told = Iterator[tuple[list[str], dict[str, Any]]]
"""Models, and what holds for each of them: ``{"requests/min": 4_000}``, ``{"until": "2026-12-11"}``."""


@dataclass(frozen=True, slots=True)
class Question:
    """A list that is asked for with GET.

    Attributes:
        provider: Whose.
        url: Its first page.
        key_env: The variable that has its key.
        headers: With the key.
        kind: The kind of its rows: limits, or lives of models.
        read: Reads the items.
    """

    provider: str
    url: str
    key_env: str
    headers: Mapping[str, str] = field(repr=False)
    kind: str
    read: Callable[[list[Any]], Told]


def questions(
    provider: str, environ: Mapping[str, str], *, base_url: str | None, project: str | None, workspace: str | None
) -> list[Question]:
    """What can be asked of ``provider`` with the keys in ``environ``; of two answers about one model, the first one holds.

    An administrator's key goes to the provider's own host, or to the ``base_url`` that the user has given.

    Raises:
        SettingsError: A key is missing, or an id is malformed.
    """
    of, in_project = "/v1/organizations", f"/v1/organization/projects/{_id(project)}/rate_limits"
    lists = {
        "anthropic": [
            ("ANTHROPIC_ADMIN_KEY", f"{of}/workspaces/{_id(workspace)}/rate_limits" if workspace else "", anthropic_limits),
            ("ANTHROPIC_ADMIN_KEY", f"{of}/rate_limits", anthropic_limits),
        ],
        "openai": [
            ("OPENAI_API_KEY", "/v1/models", openai_ends),
            ("OPENAI_ADMIN_KEY", in_project if project else "", openai_limits),
        ],
    }  # fmt: skip
    if provider not in lists:
        raise SettingsError(f"{provider}: no API for administrators is known: anthropic and openai have one")
    known = provider_named(provider)
    root = without_version((base_url or host_root(known) or "").rstrip("/"))
    asked = []
    for variable, path, read in lists[provider]:
        key = environ.get(variable, "").strip()
        if path and not (key and key.isascii() and key.isprintable()):
            raise SettingsError(f"no key to ask {provider} with: set the environment variable {variable}")
        if path:
            headers = address_at(known, root, key).headers_for(path)
            kind = facts.MODELS if read is openai_ends else facts.LIMITS
            asked.append(Question(provider, f"{root}{path}", variable, headers, kind, read))
    return asked


def _id(name: str | None) -> str:
    if name and re.fullmatch(r"[\w-]{1,200}", name) is None:
        raise SettingsError(f"{name!r} is no id of a project or a workspace")
    return name or ""


_ANTHROPIC, _OPENAI = (dialect(name)["limits_told"] for name in ("anthropic", "openai"))
_OF_ALL: Final = {"batch": ["message_batches"], "token_count": ["count_tokens"]}
"""The pool of each group that is about no model. Of the others (files, skills, web searches) nothing is paced."""


def anthropic_limits(items: list[Any]) -> Told:
    """Anthropic's groups; what a group limits beside a minute is left out."""
    for item in items:
        kind = item["group_type"]
        models = _names(item["models"]) if kind == "model_group" else _OF_ALL.get(kind, [])
        yield models, {_ANTHROPIC[one["type"]]: one["value"] for one in item["limits"] if one["type"] in _ANTHROPIC}


def openai_limits(items: list[Any]) -> Told:
    """The rate limits of a project of OpenAI."""
    for item in items:
        yield _names([item["model"]]), {name: item.get(field) for field, name in _OPENAI.items()}


def openai_ends(items: list[Any]) -> Told:
    """The days on which models end."""
    for item in items:
        if day := _day(item.get("shutdown_date")):
            yield _names([item["id"]]), {"until": day}


def _day(told: Any) -> str:
    """A day of a date or a time, which is text or seconds since 1970; empty for anything else."""
    try:
        if isinstance(told, str):
            return str(datetime.fromisoformat(told.strip()).date())
        return "" if isinstance(told, bool) else str(datetime.fromtimestamp(told, UTC).date())
    except (TypeError, ValueError, OverflowError, OSError):
        return ""


def _names(models: Any) -> list[str]:
    return [name for name in models if isinstance(name, str) and _MODEL.fullmatch(name)]


def told(asked: list[Question], today: date) -> dict[str, list[Row]]:
    """The rows that the provider's answers make, by kind.

    Raises:
        SettingsError: There is no answer, or it is no list, or its items have another form, or say nothing.
    """
    found: dict[str, list[Row]] = {}
    with httpx2.Client(timeout=TIMEOUT_S) as client:
        for kind in dict.fromkeys(one.kind for one in asked):
            models: dict[str, dict[str, Any]] = {}
            paths, count = [], 0
            for one in (one for one in asked if one.kind == kind):
                paths.append(path := httpx2.URL(one.url).path)
                try:
                    items = list(_items(client, one))
                    count += len(items)
                    for names, said in one.read(items):
                        for name in names:
                            models[name] = _sound(said) | models.get(name, {})
                except (AttributeError, KeyError, TypeError) as error:
                    raise SettingsError(
                        f"{one.provider}: an item of GET {path} has another form: {type(error).__name__} {error}"
                    ) from None
            found[kind] = list(_rows(models, f"GET {LISTS.join(paths)}", today))
            if not (found[kind] if kind == facts.LIMITS else count):
                what = f"none of its {count} items has a limit that can be used" if count else "it is empty"
                raise SettingsError(f"{asked[0].provider}: GET {LISTS.join(paths)}: {what}; nothing is changed")
    return found


def _sound(said: Mapping[str, Any]) -> dict[str, Any]:
    """What a row can state: a limit of nothing would stop all requests, which an answer does then."""
    return {name: value for name, value in said.items() if name == "until" or _is_limit(value)}


def _is_limit(value: Any) -> bool:
    number = as_number(value)
    return number is not None and 1 <= number <= MAX_COUNT


def _rows(models: Mapping[str, Mapping[str, Any]], source: str, today: date) -> Iterator[Row]:
    """A row for all models that the same holds for."""
    alike: dict[frozenset[tuple[str, Any]], list[str]] = {}
    for name, said in models.items():
        if said:
            alike.setdefault(frozenset(said.items()), []).append(name)
    for names in alike.values():
        said = models[names[0]]
        limits = ", ".join(f"{int(amount)} {name}" for name, amount in said.items() if name != "until")
        states = {facts.ORGANIZATION: limits, "complete": True} if limits else said
        yield {"match": names, **states, "source": source, "day": str(today), "confidence": "documented"}


def _items(client: httpx2.Client, one: Question) -> Iterator[Any]:
    """The items of all pages: Anthropic names the next one, OpenAI the last item of this one."""
    params: dict[str, str] = {}
    for _ in range(PAGES_MAX):
        page = _page(client, one, params)
        yield from page["data"]
        if page.get("next_page"):
            params = {"page": str(page["next_page"])}
        elif page.get("has_more") and page.get("last_id"):
            params = {"after": str(page["last_id"])}
        else:
            return
    raise SettingsError(f"{one.provider}: GET {one.url} has more than {PAGES_MAX} pages")


def _page(client: httpx2.Client, one: Question, params: dict[str, str]) -> dict[str, Any]:
    try:
        answer = client.get(one.url, params=params, headers=dict(one.headers))
    except httpx2.TransportError as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SettingsError(f"no answer from {one.provider} to GET {one.url}: {reason}") from None
    if answer.status_code != 200:
        raise SettingsError(_refused(one, answer.status_code))
    page = decode(answer.content)
    if not isinstance(page, dict) or not isinstance(page.get("data"), list):
        raise SettingsError(
            f"{one.provider} did not answer GET {one.url} with a list (200): is it the address of its API?"
        )
    return page


def _refused(one: Question, status: int) -> str:
    """Why there is no list, and what to do."""
    path = httpx2.URL(one.url).path
    if status in (401, 403):
        why = "an administrator's key is needed, of an organization" if "ADMIN" in one.key_env else "is the key right?"
        return f"{one.provider} refused the key in {one.key_env} ({status}): {why}"
    if status == 404:
        named = next((f"--{word}" for word in ("project", "workspace") if f"/{word}s/" in path), "")
        what = f"the id in {named}" if named else "the address of its API"
        return f"{one.provider} has no {path} (404): look at {what}, and whether {one.key_env} has the key of that organization"
    what = {429: "it had too many requests: run this again in a minute"}.get(status, "run this again later")
    return f"{one.provider} did not answer GET {one.url} ({status}): {what if status >= 429 else 'is it the address of its API?'}"


def keep(
    provider: str, environ: Mapping[str, str], rows: Mapping[str, list[Row]], today: date
) -> tuple[Path, list[str]]:
    """Write the rows to the file for the key that requests of ``provider`` have, in place of earlier rows from the same lists.

    Returns:
        The file, and what is said of earlier rows that stay: a list that was not asked for now does not take them away.

    Raises:
        SettingsError: There is no such key, the rows are malformed or too many, or the file cannot be written.
    """
    variable = PROVIDERS[provider].key_env
    key = environ.get(variable, "").strip()
    if not key:
        raise SettingsError(f"set {variable}: the limits are kept for requests with the key in it")
    if (home := facts.folder()) is None:
        raise SettingsError(f"there is no home folder to keep the limits in: set {facts.VARIABLE}")
    file = home / facts.ORGANIZATIONS / facts.organization_file(provider, key)
    with explaining(f"{file}: cannot be written"):
        earlier = json.loads(file.read_text("utf-8"))["providers"].get(provider, {}) if file.exists() else {}
        kept = {
            kind: old for kind, old in earlier.items() if old and _lists(old) > _lists(rows.get(kind, []), kind in rows)
        }
        text = json.dumps({"day": str(today), "providers": {provider: {**rows, **kept}}}, indent=1)
        facts.of_organization(provider, text, f"{provider}'s answer")  # as each later command reads it
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(str(file)) as opened:
            opened.write(text.encode())
    facts.forget()
    return file, [
        f"{provider}: {old[0]['source']} was not asked for now: its {kind} of {old[0]['day']} stay."
        f" Name the same --project or --workspace to ask for them again, or delete {file}"
        for kind, old in kept.items()
    ]


def _lists(rows: list[Row], asked: bool = False) -> int:
    """How many lists the rows are of."""
    return len(rows[0]["source"].split(LISTS)) if rows else int(asked)
