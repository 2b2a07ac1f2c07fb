"""The OpenAPI document of the status API."""

from __future__ import annotations

from typing import Any, Final

NUMBER: Final = {"type": "number"}
COUNT: Final = {"type": "integer", "minimum": 0}
TEXT: Final = {"type": "string"}
MAYBE_NUMBER: Final = {"type": ["number", "null"]}
MAYBE_TEXT: Final = {"type": ["string", "null"]}


def _object(optional: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _table(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": of}


def _list(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


SCHEMAS: Final = {
    "Quota": _object(
        quota={**TEXT, "description": "Its notation, e.g. `500 requests/min`."},
        unit=TEXT,
        limit=NUMBER,
        usable={**NUMBER, "description": "The used share of the provider's limit."},
        remaining={**NUMBER, "description": "What is left now."},
        reset_s={**MAYBE_NUMBER, "description": "Seconds until it is full without further requests."},
        resets_at={**MAYBE_TEXT, "description": "When a window restarts, in UTC."},
        period_s=NUMBER,
        burst=NUMBER,
        rule={"enum": ["bucket", "window", "sliding", "exact", "even", "slots", "measured"]},
        learned={"type": "object"},
        spent=NUMBER,
        refused={**NUMBER, "description": "The part of `spent` that is of refused attempts."},
        source={**TEXT, "description": "`given`, `published`, `assumed` or `learned`, with the table."},
        stated_ago_s={**MAYBE_NUMBER, "description": "Seconds since the headers of an answer last stated it."},
    ),
    "Waiter": _object(
        name=MAYBE_TEXT,
        lane=TEXT,
        waited_s=NUMBER,
        expected_wait_s=MAYBE_NUMBER,
        cost=_table(NUMBER),
        cached_tokens={**COUNT, "description": "The tokens of its prompt that the provider has in its cache."},
        lost_in_s={
            **MAYBE_NUMBER,
            "description": "When the cache loses them, if they are at least half of the prompt.",
        },
    ),
    "Pool": _object(
        ("store",),
        quotas=_list(_ref("Quota")),
        waiting=COUNT,
        lanes={**_table(COUNT), "description": "The number of waiting requests by lane."},
        lanes_waited_s={**_table(NUMBER), "description": "The wait so far of the first request of each lane."},
        queue={**_list(_ref("Waiter")), "maxItems": 50},
        eta_s={**MAYBE_NUMBER, "description": "Seconds until the last request that waits now is granted."},
        in_flight=COUNT,
        binds={**MAYBE_TEXT, "description": "What the next request waits for."},
        cool_down_s=NUMBER,
        paused={**MAYBE_TEXT, "description": "Why it pauses, if it does."},
        stopped=MAYBE_TEXT,
        by_chance={**MAYBE_NUMBER, "description": "The share of the attempts that the provider refuses at any rate."},
        counts=_table(COUNT),
        finishes={
            **_table(COUNT),
            "description": "Responses by their end: complete, cut_off, declined, ...",
        },
        wait_s=_object(mean=NUMBER, longest=NUMBER),
        waits=_table(_object(counts=_list(COUNT), sum_s=NUMBER)),
        estimates=_table(_object(estimated=NUMBER, actual=NUMBER, ratio=MAYBE_NUMBER)),
        cache={
            "type": ["object", "null"],
            "description": "The provider's prompt cache, as responses report it.",
        },
        metrics=_table({"type": ["number", "string", "null"]}),
        store={"type": "object"},
    ),
    "Session": _object(
        program={**TEXT, "description": "`claude` or `codex`; empty if it is unknown."},
        session={**TEXT, "description": "Digits that stand for the session; empty for sessions that are added up."},
        own={**MAYBE_NUMBER, "description": "The share of the window that it has used, without its subagents."},
        subagents=COUNT,
        subagents_own=MAYBE_NUMBER,
    ),
    "Plan": _object(
        account={**TEXT, "description": "Its provider, with the digits of its account."},
        window={**TEXT, "description": "By its length and family, e.g. `5h` or `codex 7d`."},
        used={**MAYBE_NUMBER, "description": "The share of it that is used, 0 to 1."},
        ends_s={**MAYBE_NUMBER, "description": "Seconds until it ends."},
        ends_at={**MAYBE_TEXT, "description": "When it ends, in UTC."},
        status={**MAYBE_TEXT, "description": "In the provider's words: `allowed`, `rejected`."},
        length_s=MAYBE_NUMBER,
        scope={**MAYBE_TEXT, "description": "What it is about, if not all of the account."},
        stated_ago_s=NUMBER,
        state={**TEXT, "description": "`open`, `held`, `shut`, `probing` or `opening`."},
        test_s={**MAYBE_NUMBER, "description": "Seconds until a waiting request goes."},
        waiting={**COUNT, "description": "The requests that wait for it."},
        own={**MAYBE_NUMBER, "description": "The share of it that went through this process."},
        requests_left={
            "type": ["integer", "null"],
            "description": "How many similar requests are left, if that is known.",
        },
        sessions={**_list(_ref("Session")), "description": "Who has used `own`, as the clients claim."},
    ),
    "Plans": _object(plans=_list(_ref("Plan"))),
    "Answers": _object(
        upstream={**TEXT, "description": "The address of the server."},
        pool=TEXT,
        status={**COUNT, "description": "The status of the answers; 0: there was none."},
        cause={**TEXT, "description": "`answered`, a kind of refusal, `request`, `unreachable`, `key`, ..."},
        count=COUNT,
        last_ago_s=NUMBER,
        remedy={**MAYBE_TEXT, "description": "What to do, until the server gives another response."},
    ),
    "Unpaced": _object(provider=TEXT, host=TEXT, kind=TEXT, count=COUNT, remedy=TEXT),
    "Status": _object(
        ("plans", "answers", "unpaced", "facts", "keys", "teams", "ready", "runs"),
        pools=_table(_ref("Pool")),
        plans=_list(_ref("Plan")),
        answers=_list(_ref("Answers")),
        unpaced=_list(_ref("Unpaced")),
        facts={
            **_object(
                day=TEXT,
                age_days={"type": ["integer", "null"]},
                installed={"type": "boolean"},
                places=_list(TEXT),
                remark=MAYBE_TEXT,
            ),
            "description": "The data set about providers, and your files that add to it.",
        },
        keys={**_table(_table(NUMBER)), "description": "Of a gateway: the usage of each client key since its start."},
        teams={**_table(_table(NUMBER)), "description": "The same by team, if any key has one; `-`: the keys without."},
        ready={"type": "boolean", "description": "Of a gateway: whether `/readyz` answers 200."},
        runs={
            **_list({"type": "object"}),
            "description": "Of `paceline run`: the requests that are done, and failed by name.",
        },
    ),
    "Columns": _object(
        t=_list(NUMBER),
        waiting=_list(COUNT),
        in_flight=_list(COUNT),
        granted=_list(COUNT),
        refused=_list(COUNT),
        quotas={**_table(_list(MAYBE_NUMBER)), "description": "The share of each quota that is left, 0 to 1."},
        speed={
            **_table(_list(MAYBE_NUMBER)),
            "description": "The granted part of each quota per minute or less in the last minute, as a share of the limit.",
        },
    ),
    "History": _object(
        time=NUMBER,
        step_s=NUMBER,
        keep_s=NUMBER,
        pools=_table(_ref("Columns")),
        events=_list(_object(t=NUMBER, level=TEXT, text=TEXT)),
    ),
    "Error": _object(error=TEXT),
}
"""The documents that the API answers with."""


def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    from importlib.metadata import version

    pool = {"name": "pool", "in": "path", "required": True, "schema": TEXT, "description": "E.g. `openai/gpt-6-luna`."}
    since = {
        "name": "since",
        "in": "query",
        "schema": NUMBER,
        "description": "Only newer samples: a time in seconds since 1970.",
    }
    paths = {
        "/api/v1/rate-limits/status": _get("All pools, and what was not paced.", "Status"),
        "/api/v1/rate-limits/status/{pool}": _get("One pool.", "Pool", pool),
        "/api/v1/plans": _get("The windows of plans.", "Plans"),
        "/status": _get("The same as /api/v1/rate-limits/status.", "Status"),
        "/status/{pool}": _get("One pool.", "Pool", pool),
        "/history": _get("The last ten minutes, and recent events.", "History", since),
        "/metrics": {"get": {"summary": "Prometheus metrics.", "responses": {"200": {"description": "Text."}}}},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "paceline status", "version": version("paceline")},
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _get(summary: str, schema: str, *parameters: dict[str, Any]) -> dict[str, Any]:
    def content(name: str) -> dict[str, Any]:
        return {"application/json": {"schema": _ref(name)}}

    responses = {
        "200": {"description": "The present state.", "content": content(schema)},
        "401": {"description": "A key is needed.", "content": content("Error")},
        "404": {"description": "There is no such pool.", "content": content("Error")},
    }
    return {"get": {"summary": summary, "parameters": list(parameters), "responses": responses}}
