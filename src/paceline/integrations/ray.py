"""Ray Data: a dataset of requests becomes a dataset of answers, at the pace of one quota that all actors share.

    answers = paced_requests(
        ray.data.read_text("requests.jsonl").map(read_line),
        limits={"openai/gpt-6-luna": ["30k requests/min", "30M tokens/min"]},
        journal="reviews-1",
    )
    answers.write_parquet("answers")

Tested with ray 2.60. See docs/ray.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from hashlib import sha256
from typing import Any, Final, NamedTuple

from paceline.batch.address import account_of
from paceline.batch.check import Checker
from paceline.batch.client import RunClient
from paceline.batch.index import Index
from paceline.batch.requests import FORMATS, MESSAGES, BadLineError, RunRequest, decode, request_of
from paceline.batch.results import encode_json
from paceline.batch.summary import Calls
from paceline.config import Config
from paceline.config.servers import ProviderAddress, address_of, provider_of
from paceline.core.quota import REQUESTS
from paceline.core.results import SettingsError, StoreError
from paceline.data.journal import SharedJournal
from paceline.data.mapping import Map
from paceline.data.places import check_name, open_place
from paceline.integrations import package
from paceline.limiter.limiter import Limiter
from paceline.providers.base import Provider
from paceline.providers.registry import provider_named
from paceline.stores import NO_STORE, Prefixed, open_store

__all__ = ["ANSWER", "paced_requests", "read_line"]

log = logging.getLogger("paceline.ray")

REQUIREMENT: Final = "ray[data]>=2.60"

ROWS_PER_ACTOR: Final = 500
"""Rows in flight in one actor, as in a run: at 912 us of CPU for each, an actor is far from busy with answers of 2 s."""

ROWS_MAX: Final = 1_000
"""Rows in a block. Each block is one task, which is done when its slowest row is."""

LATENCY_S: Final = 10.0

KEEP_S: Final = 7 * 86_400.0

CLOSE_S: Final = 2.0
"""How long an actor that ends waits for its connections."""

_KEY_REFUSED: Final = 401
_LINE = "arguments of paced_requests"


class AnswerColumns(NamedTuple):
    """The columns :data:`ANSWER` of one row."""

    status_code: int | None = None
    request_id: str | None = None
    response: str | None = None
    error_code: str | None = None
    error_message: str | None = None


ANSWER: Final = AnswerColumns._fields
"""The columns that are added; ``response`` is the body of the answer, as JSON."""


class FailedError(Exception):
    """A request has no answer that the journal keeps; ``answer`` says why."""

    def __init__(self, answer: AnswerColumns) -> None:
        super().__init__(answer.error_message)
        self.answer = answer


def read_line(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a request in a line of ``paceline run``, for ``ray.data.read_text(...).map(read_line)``.

    Its body stays JSON text: as a column of structs every body would get the fields of all others.

    Returns:
        ``custom_id``, ``url`` and ``body``. Of a line that is not JSON ``body`` is ``None``, so that the row gets an error.
    """
    try:
        value = decode(row["text"].encode())
    except BadLineError as error:
        return {"custom_id": None, "url": f"({error})", "body": None}
    named = "params" in value and "body" not in value
    body = value["params"] if named else value.get("body")
    custom_id = value.get("custom_id")
    return {
        "custom_id": custom_id if isinstance(custom_id, str) else None,
        "url": MESSAGES if named else str(value.get("url")),
        "body": json.dumps(body),
    }


def paced_requests(
    ds: Any,
    *,
    limits: Mapping[str, Any],
    journal: str,
    store: str | None = None,
    id_column: str = "custom_id",
    actors: int | None = None,
    in_flight: int | None = None,
    rows_per_block: int = 50,
    latency_s: float = LATENCY_S,
    keep_s: float = KEEP_S,
    num_cpus: float = 0.5,
    ray_remote_args: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """Send the request in each row of ``ds``; return a dataset with the same rows and the columns :data:`ANSWER`.

    A row has an id, ``url`` and ``body`` (or ``params``, in Anthropic's format); the body is JSON text or a struct. Fields of a
    struct that are null are not sent. A request that fails is a row with ``error_code`` and ``error_message``; no request
    ends the job. Rows keep their order within a block.

    The keys (``OPENAI_API_KEY``, ...) and, unless ``store`` is given, the URL of the store (``PACELINE_STORE``) are read from
    the environment of the actors.

    Args:
        ds: The dataset, a ``ray.data.Dataset``.
        limits: The quotas by model, as for :class:`paceline.Limiter`: of all actors together.
        journal: A name for the job: paceline stores answers under this name next to the quotas, and sends answered
            requests only once. Or ``sqlite:PATH``, a file for the actors of one machine.
        store: Where the actors share the quotas: a URL without a password, because Ray stores arguments of actors.
        id_column: The column with the ids, which should be unique.
        actors: The number of actors; by default as many as the limits and ``latency_s`` need, with one CPU of the
            cluster left for other tasks.
        in_flight: The most rows that wait for a permit or an answer, in all actors; by default 500 per actor.
        rows_per_block: Rows in a task, from 1 to 1 000. 20 to 100 are a good size.
        latency_s: The usual time from a request to its answer, which gives the number of actors.
        keep_s: How long the journal keeps an answer.
        num_cpus: CPUs that Ray reserves for an actor.
        ray_remote_args: Further arguments for the actors, e.g. ``{"runtime_env": ...}``.
        **settings: Settings as for ``paceline run``: ``provider``, ``tier``, ``base_url``, ``max_attempts``, ``timeout_s``, ...

    Raises:
        SettingsError: An argument is invalid.
        StoreError: The URL of the store is invalid, or has a password.
        ImportError: Ray is not installed.
    """
    data = package("ray.data", REQUIREMENT)
    # A killed actor must not keep a share of the quota; and without the journal nothing is sent anyway.
    given = {"on_store_failure": "fail_closed", **settings, "limits": dict(limits)}
    config = Config.load(None, {}, given, _LINE)
    for name, value, least in (("actors", actors, 1), ("in_flight", in_flight, 1), ("keep_s", keep_s, 1)):
        if value is not None and not least <= value < math.inf:
            raise SettingsError(f"{name} is {value!r}: it must be {least} or more")
    if not 1 <= rows_per_block <= ROWS_MAX:
        raise SettingsError(f"rows_per_block is {rows_per_block!r}: it must be from 1 to {ROWS_MAX:,}")
    if not 0 < latency_s < math.inf:
        raise SettingsError(f"latency_s is {latency_s!r}: it must be above 0")
    check_name(journal)
    if store is not None:
        _check_store(store)
    size = actors or _bounded(actors_for(config, latency_s), num_cpus)
    each = math.ceil((in_flight or size * ROWS_PER_ACTOR) / size)
    columns = set(ds.schema(fetch_if_missing=False).names if ds.schema(fetch_if_missing=False) else ())
    _check_columns(columns)
    return ds.repartition(target_num_rows_per_block=rows_per_block).map_batches(
        Actor,
        fn_constructor_kwargs={
            "settings": given,
            "store": store,
            "journal": journal,
            "keep_s": keep_s,
            "id_column": id_column,
            "in_flight": each,
        },
        batch_format="pyarrow",
        batch_size=None,
        compute=data.ActorPoolStrategy(size=size, max_concurrent_calls_per_actor=math.ceil(each / rows_per_block) + 1),
        num_cpus=num_cpus,
        udf_modifying_row_count=False,
        **dict(ray_remote_args or {}),
    )


def actors_for(config: Config, latency_s: float) -> int:
    """How many actors hold the requests that are in flight at once under the limits of ``config``."""
    rates = [
        min((quota.rate for quota in quotas if quota.unit == REQUESTS and quota.period_s), default=0.0)
        for quotas in config.limits.values()
    ]
    return max(1, math.ceil(sum(rates) * latency_s / ROWS_PER_ACTOR))


def _bounded(actors: int, num_cpus: float) -> int:
    """``actors``, or as many as leave a CPU of the cluster for other tasks: without one, Ray would not end."""
    ray = package("ray", REQUIREMENT)
    if not num_cpus or not ray.is_initialized():
        return actors
    most: int = max(1, math.floor((ray.cluster_resources().get("CPU", 1.0) - 1.0) / num_cpus))
    if actors > most:
        log.warning(
            "%d actors for the limits, and the cluster has CPUs for %d: give num_cpus, actors or in_flight",
            actors,
            most,
        )
    return min(actors, most)


def _check_store(url: str) -> None:
    """Refuse a store that cannot be an argument of the actors.

    Raises:
        StoreError: The URL is invalid, or has a password.
    """
    if "@" in url or "password=" in url:
        raise StoreError(
            "store has a password, and Ray keeps the arguments of actors: leave store out, and set PACELINE_STORE in the"
            " environment of the cluster's machines"
        )
    if url == NO_STORE:
        raise StoreError(
            "store is memory:, and the actors must share one: write 'redis://HOST:PORT/DB' or 'sqlite:PATH'"
        )
    open_store(url)  # an error now, and not in the actors


def _check_columns(columns: set[str]) -> None:
    """Refuse rows that have one of the columns that are added.

    Raises:
        SettingsError: They have.
    """
    if taken := sorted(columns & set(ANSWER)):
        raise SettingsError(
            f"the dataset has the columns {', '.join(taken)}, which the answers use: rename or drop them"
        )


class Actor:
    """Sends the requests of blocks, in one process; the limiter is made here, so that nothing of it is ever pickled.

    Args:
        settings: As for :meth:`paceline.config.Config.load`.
        store: The store's URL; ``None`` for ``PACELINE_STORE``.
        journal: See :func:`~paceline.data.places.open_place`.
        keep_s: How long the journal keeps an answer.
        id_column: The column with the ids.
        in_flight: How many rows wait for a permit or for an answer at most.

    Raises:
        PacelineError: There is no store or no key, or the journal cannot be opened.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        store: str | None,
        journal: str,
        keep_s: float,
        id_column: str,
        in_flight: int,
    ) -> None:
        config = Config.load(None, os.environ, settings, _LINE)
        if config.group is not None:
            raise SettingsError(
                "group: the actors send to one server for each provider: give the base_url of a gateway with groups"
            )
        url = store or config.store
        if url is None:
            raise StoreError(
                "the actors have no store: set PACELINE_STORE in the environment of the cluster's machines, or give store"
            )
        self._config, self._id_column = config, id_column
        self._provider = provider_of(config)
        self._addresses = self._known_addresses()
        accounts = Prefixed(
            open_store(url), lambda pool: account_of(pool, self._addresses, config.base_url, os.environ)
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._refused: dict[tuple[str, str], str] = {}  # why the key is refused, by provider and model
        self._rows = asyncio.Semaphore(in_flight)
        with ExitStack() as opened:
            self._limiter = opened.enter_context(
                closing(Limiter(**config.arguments(self._provider) | {"store": accounts}))
            )
            self._checker = Checker(self._limiter, opened.enter_context(closing(Index())))
            self._client = RunClient(self._limiter, self._addresses, config.timeout_s, log.warning, Calls())
            self._journal = opened.enter_context(closing(SharedJournal(open_place(journal, url, keep_s), journal)))
            self._opened = opened.pop_all()

    def _known_addresses(self) -> dict[str, ProviderAddress]:
        """By provider that rows may use: the one that is set, or each provider of the two formats that has a key.

        Raises:
            SettingsError: There is no key.
        """
        if self._provider is not None:
            return {self._provider: self._address(provider_named(self._provider))}
        providers = [provider_named(name) for name in dict.fromkeys(reversed(FORMATS.values()))]
        found = dict[str, ProviderAddress]()
        for provider in providers:
            with suppress(SettingsError):
                found[provider.name] = self._address(provider)
        if not found:
            names = " or ".join(provider.key_env for provider in providers)
            raise SettingsError(f"the actors have no key: set {names} in the environment of the cluster's machines")
        return found

    def _address(self, provider: Provider) -> ProviderAddress:
        return address_of(provider, self._config.base_url, os.environ)

    async def __call__(self, table: Any) -> Any:
        """The block ``table`` with the answers to its rows, in the same order."""
        _check_columns(set(table.column_names))
        return with_answers(table, await self._answers(self._requests(table)))

    async def _answers(self, requests: Sequence[RunRequest | AnswerColumns]) -> list[AnswerColumns]:
        """The answer to each row: from the journal, or from the provider, and then in the journal.

        Raises:
            StoreError: The journal cannot be used.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()  # Ray has one for all blocks of an actor
            self._client.open()
        asked = {key_of(one): one for one in requests if isinstance(one, RunRequest)}
        answers: dict[str, AnswerColumns] = {}
        calls = Map[RunRequest, list[Any]](self._answer, asked.values(), self._journal, key_of, None, progress=False)
        async for done in calls:
            if done.error is None:
                answer = AnswerColumns(*(done.value or ()))
            elif isinstance(done.error, FailedError):
                answer = done.error.answer
            else:  # one row must not end the job
                log.error("a request failed in an unexpected way", exc_info=done.error)
                answer = AnswerColumns(error_code="paceline_failed", error_message=type(done.error).__name__)
            answers[key_of(done.item)] = answer
        return [one if isinstance(one, AnswerColumns) else answers[key_of(one)] for one in requests]

    def _requests(self, table: Any) -> list[RunRequest | AnswerColumns]:
        """The request in each row, or the answer that says why there is none."""
        names = {"custom_id": self._id_column, **{name: name for name in ("method", "url", "body", "params")}}
        columns = {field: table.column(name).to_pylist() for field, name in names.items() if name in table.column_names}
        return [self._request({field: values[at] for field, values in columns.items()}) for at in range(table.num_rows)]

    def _request(self, row: dict[str, Any]) -> RunRequest | AnswerColumns:
        try:
            value = {field: _plain(part) for field, part in row.items() if part is not None}
            if isinstance(value.get("custom_id"), int):
                value["custom_id"] = str(value["custom_id"])
            for field in ("body", "params"):
                if isinstance(value.get(field), str | bytes):
                    text = value[field]
                    value[field] = decode(text if isinstance(text, bytes) else text.encode())
            request = request_of(0, value, self._provider)
            json.dumps(request.body)
            if request.provider.name not in self._addresses:
                self._address(request.provider)  # raises: it has no key
        except (BadLineError, SettingsError, TypeError, UnicodeError) as error:
            return AnswerColumns(error_code="bad_line", error_message=str(error))
        return request

    async def _answer(self, request: RunRequest) -> list[Any]:
        """The first three of :data:`ANSWER`, for the journal.

        Raises:
            FailedError: There is no answer that would be kept.
        """
        async with self._rows:
            answer = await self._ask(request)
        if answer.error_code is not None:
            raise FailedError(answer)
        return list(answer[:3])

    async def _ask(self, request: RunRequest) -> AnswerColumns:
        kind = request.provider.name, request.model
        if kind in self._refused:
            return AnswerColumns(error_code="key_refused", error_message=self._refused[kind])
        try:
            outcome = await self._client.ask(request, self._checker.describe(request))
        except BadLineError as error:
            return AnswerColumns(error_code="bad_line", error_message=str(error))
        if outcome is None:
            return AnswerColumns(error_code="not_sent", error_message=self._client.why_not(request))
        failure, response = outcome.error or {}, outcome.response or {}
        if outcome.ends == "key" and outcome.answer is not None and outcome.answer.status == _KEY_REFUSED:
            self._refused[kind] = failure["message"]
        body = encode_json(response["body"]).decode() if response else None
        status = outcome.answer.status if outcome.answer is not None else None
        return AnswerColumns(status, response.get("request_id"), body, failure.get("code"), failure.get("message"))

    def close(self) -> None:
        """Close the connections, and report to the store what is still to be reported."""
        if self._loop is not None and self._loop.is_running():
            closed = asyncio.run_coroutine_threadsafe(self._client.close(), self._loop)
            if asyncio._get_running_loop() is not self._loop:  # noqa: SLF001  (it would wait for itself)
                with suppress(TimeoutError):
                    closed.result(CLOSE_S)
        self._opened.close()

    def __del__(self) -> None:
        """Ray drops the object when the actor ends in good order."""
        if hasattr(self, "_opened"):  # made to the end
            self.close()


def key_of(request: RunRequest) -> str:
    """The journal's key of a request: its id, and a hash, so that a changed request gets an answer of its own."""
    asked = sha256(f"{request.provider.name} {request.path} ".encode() + request.content()).hexdigest()
    return f"{request.custom_id}/{asked[:32]}"


def with_answers(table: Any, answers: Sequence[AnswerColumns]) -> Any:
    """``table`` with the columns :data:`ANSWER`, of the same types in every block."""
    arrow = package("pyarrow", "pyarrow")
    text = arrow.large_string()  # a block of large answers can exceed the 2 GB of a string column
    for at, name in enumerate(ANSWER):
        values = [answer[at] for answer in answers]
        table = table.append_column(name, arrow.array(values, arrow.int64() if name == ANSWER[0] else text))
    return table


def _plain(value: Any) -> Any:
    """``value`` without the fields that are null: a column of structs has the fields of all its rows."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.tolist() if hasattr(value, "tolist") else value
