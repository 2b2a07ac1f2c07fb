"""What a configuration may say: every setting's name and reader, and the walk through what a source says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

from paceline.config.readers import (
    AMOUNTS,
    Reader,
    amount,
    base_url,
    is_amounts,
    lost,
    milliseconds,
    number,
    quotas,
    shown,
    store,
    text,
    tier,
    truth,
    whole,
)
from paceline.config.sources import Faults, Place, Source, warn
from paceline.pacing.pacer import TIMEOUT_MAX_S
from paceline.providers.registry import ALIASES, PROVIDERS, suggest
from paceline.shared.leases import LEASE_MAX_S

WORKERS_MAX = 20_000
RUN_S = 30 * 86_400.0
"""The longest that a request may be tried."""

LIMITS, CONCURRENCY, LANES, BREAKER = "limits", "concurrency", "lanes", "breaker"
ANY = "*"
"""The name of every model, or of every provider, that has no entry of its own."""

PLAIN: Final[dict[str, Reader]] = {
    "provider": text,
    "tier": tier,
    "base_url": base_url,
    "workers": whole(1, WORKERS_MAX),
    "max_attempts": whole(1, 1_000),
    "timeout_s": number(0.001, 86_400.0, "seconds"),
    "headroom_s": number(0.0, 3_600.0, "seconds"),
    "ttl_s": number(1.0, TIMEOUT_MAX_S, "seconds"),
    "waiting_max": whole(1, 100_000_000),
    "acquire_timeout_s": number(0.0, TIMEOUT_MAX_S, "seconds"),
    "estimate_factor": number(0.1, 10.0, "a factor"),
    "min_interval_s": number(0.0, 3_600.0, "seconds"),
    "learn": truth,
    "store": store,
    "lost": lost,
    "lease_s": number(0.0, LEASE_MAX_S, "seconds"),
}
OVERRIDES: Final[dict[str, Reader]] = {
    "rpm_override": number(1e-3, 1e12, "a number"),
    "tpm_override": number(1e-3, 1e12, "a number"),
}
"""For the command line, the code and the environment; a file has ``limits``."""

TABLES: Final[dict[str, dict[str, Reader]]] = {
    "retry": {
        "max_attempts": PLAIN["max_attempts"],
        "max_elapsed_s": number(0.0, RUN_S, "seconds"),
        "backoff_s": number(0.0, 86_400.0, "seconds"),
        "backoff_max_s": number(0.0, 86_400.0, "seconds"),
        "jitter": number(0.0, 1.0, "a share"),
        "max_retry_after_s": number(0.0, RUN_S, "seconds"),
        "faults": truth,
    },
    BREAKER: {"failures": whole(1, 1_000_000), "pause_s": number(0.0, 86_400.0, "seconds")},
}
SYNONYMS: Final[dict[str, tuple[str, Reader]]] = {
    "acquire_timeout": ("acquire_timeout_s", PLAIN["acquire_timeout_s"]),
    "token_estimate_buffer": ("estimate_factor", PLAIN["estimate_factor"]),
    "min_request_interval_ms": ("min_interval_s", milliseconds(3_600.0)),
    "update_from_headers": ("learn", truth),
}
"""What may stand under ``settings``, and which setting it is."""

LANE: Final[dict[str, Reader]] = {
    "weight": number(1e-6, 1e6, "a number"),
    "priority": whole(-1_000_000, 1_000_000),
}
NAMES: Final = [LIMITS, *PLAIN, CONCURRENCY, LANES, *TABLES, "defaults", "settings"]

Key = tuple[str, ...]
"""A setting by its one name: ``("workers",)``, ``("limits", "openai/*")``, ``("retry", "backoff_s")``."""

Said = dict[Key, tuple[Any, str]]
"""A setting's value, and where it was said."""


def read(source: Source, faults: Faults, extra: dict[str, Reader] | None = None) -> Said:
    """What ``source`` says that can be meant; what cannot goes to ``faults``. ``extra``: settings of this source alone."""
    return _Walk(source, faults).top(PLAIN | (extra or {}))


class _Walk:
    def __init__(self, source: Source, faults: Faults) -> None:
        self._source, self._faults = source, faults
        self._said: Said = {}
        self._paths: dict[Key, Place] = {}

    def top(self, plain: Mapping[str, Reader]) -> Said:
        for name, value in self._source.values.items():
            path = (name,)
            if name in plain:
                self._leaf(path, path, plain[name], value)
            elif name in TABLES:
                self._settings(path, TABLES[name], value)
            elif name in (LIMITS, "defaults"):
                self._limits(path, value)
            elif name == CONCURRENCY:
                for provider, most in self._table(path, value, "openai = 10"):
                    here = (*path, provider)
                    self._leaf(here, (name, self._whose(here)), whole(1, 1_000_000), most)
            elif name == LANES:
                for lane, spec in self._table(path, value, "wrap = { weight = 4 }"):
                    for key, part in self._table((*path, lane), spec, "weight = 4"):
                        self._known((*path, lane, key), (name, lane, key), LANE, part)
            elif name == "settings":
                for key, part in self._table(path, value, "acquire_timeout = 300"):
                    if key in SYNONYMS:
                        setting, reader = SYNONYMS[key]
                        self._leaf((*path, key), (setting,), reader, part)
                    else:
                        self._unknown((*path, key), SYNONYMS)
            else:
                self._unknown(path, [LIMITS, *plain, *NAMES])
        return self._said

    def _settings(self, path: Place, known: Mapping[str, Reader], value: Any) -> None:
        if path == (BREAKER,) and not isinstance(value, Mapping):
            self._leaf(path, path, truth, value)
            return
        for key, part in self._table(path, value, f"{next(iter(known))} = 3"):
            # One setting with two names: a run's own, and the one beside its like.
            meant = ("max_attempts",) if key == "max_attempts" else (*path, key)
            self._known((*path, key), meant, known, part)

    def _limits(self, path: Place, value: Any) -> None:
        for name, said in self._table(path, value, '"gpt-5" = ["500 requests/min", "400k tokens/min"]'):
            here = (*path, name)
            if not isinstance(said, Mapping) or is_amounts(said):
                self._quotas(here, _model(name), said)
                continue
            provider = self._whose(here)
            for model, quota in self._table(here, said, "gpt-5 = { rpm = 500, tpm = 500_000 }"):
                self._quotas((*here, model), f"{provider}/{ANY if model == 'default' else model}", quota)

    def _quotas(self, path: Place, name: str, said: Any) -> None:
        key = (LIMITS, name)
        if not isinstance(said, Mapping):
            self._leaf(path, key, quotas, said)
            return
        parts = []
        for unit, limit in self._table(path, said, "rpm = 500"):
            if unit not in AMOUNTS:
                self._unknown((*path, unit), AMOUNTS)
                continue
            part = self._value((*path, unit), amount(unit), limit)
            if part is not None:
                parts.append(part)
        if parts:
            self._put(path, key, tuple(parts))
        elif not said:
            self._faults.add(self._source.place(path), "it says nothing: give rpm, tpm, ...")

    def _whose(self, path: Place) -> str:
        """The own name of the provider at the end of ``path``; ``default`` is everybody's."""
        provider = path[-1]
        clean = provider.strip().lower()
        if clean in ("default", ANY):
            return ANY
        near = get_close_matches(clean, [*PROVIDERS, *ALIASES], 1, 0.85)
        if near and near[0] != clean:  # anybody may have a provider of their own
            hint = f"provider {provider!r} is taken for one of your own; did you mean {near[0]!r}?"
            warn(f"{self._source.place(path)}: {hint}")
        return ALIASES.get(clean, clean)

    def _table(self, path: Place, value: Any, example: str) -> Iterable[tuple[str, Any]]:
        if not isinstance(value, Mapping):
            self._faults.add(self._source.place(path), f"write a table: {example}; it is {shown(value)}")
            return ()
        return [(str(name), part) for name, part in value.items()]

    def _known(self, path: Place, key: Key, readers: Mapping[str, Reader], value: Any) -> None:
        if path[-1] in readers:
            self._leaf(path, key, readers[path[-1]], value)
        else:
            self._unknown(path, readers)

    def _leaf(self, path: Place, key: Key, reader: Reader, value: Any) -> None:
        read = self._value(path, reader, value)
        if read is not None:
            self._put(path, key, read)

    def _value(self, path: Place, reader: Reader, value: Any) -> Any:
        try:
            return reader(value)
        except ValueError as error:  # QuotaError is one
            self._faults.add(self._source.place(path), error)
            return None

    def _put(self, path: Place, key: Key, value: Any) -> None:
        if key in self._said:
            other = self._source.place(self._paths[key])
            self._faults.add(self._source.place(path), f"the same as {other}: keep one")
        self._said[key], self._paths[key] = (value, self._source.origin(path)), path

    def _unknown(self, path: Place, known: Iterable[str]) -> None:
        near = suggest(path[-1], known) or f"; known: {', '.join(dict.fromkeys(known))}"
        self._faults.add(self._source.place(path), f"no such setting{near}")


def _model(name: str) -> str:
    """The name of a limit: ``gpt-5``, ``openai/gpt-5``, ``openai/*``, ``*``, or a pool of your own."""
    provider, slash, model = name.strip().partition("/")
    if slash:
        return f"{ALIASES.get(provider.lower(), provider)}/{model}"
    return ANY if name == "default" else name.strip()
