"""The OpenAPI document of the status API."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Final, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from paceline.pacing.answers import AnswerStatus
from paceline.pacing.plan_use import SessionStatus
from paceline.pacing.plans import PlanStatus
from paceline.pacing.status import PoolStatus, QuotaStatus, WaiterStatus

NUMBER: Final = {"type": "number"}
COUNT: Final = {"type": "integer", "minimum": 0}
TEXT: Final = {"type": "string"}
_OF: Final[dict[Any, dict[str, Any]]] = {str: TEXT, int: COUNT, float: NUMBER, NoneType: {"type": "null"}}
MAYBE_NUMBER: Final = {"type": ["number", "null"]}
MAYBE_TEXT: Final = {"type": ["string", "null"]}
MAYBE_COUNT: Final = {"type": ["integer", "null"]}
TRUTH: Final = {"type": "boolean"}


def _object(optional: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _table(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": of}


def _list(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of}


def _told(schema: dict[str, Any], about: str) -> dict[str, Any]:
    return {**schema, "description": about}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


ROWS: Final = {
    QuotaStatus: "Quota",
    WaiterStatus: "Waiter",
    PoolStatus: "Pool",
    SessionStatus: "Session",
    PlanStatus: "Plan",
    AnswerStatus: "Answers",
}
"""The parts of a status, whose fields and what is said of them are declared where they are made."""


def _declared(row: Any) -> dict[str, Any]:
    """The schema of a part of the status."""
    hints = get_type_hints(row, include_extras=True)
    optional = tuple(name for name, hint in hints.items() if get_origin(hint) is NotRequired)
    return _object(optional, **{name: _schema(hint) for name, hint in hints.items()})


def _schema(hint: Any) -> dict[str, Any]:
    """The schema of a field of this type."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _schema(args[0]) | (args[1] if isinstance(args[1], dict) else {"description": args[1]})
    if origin is NotRequired:
        return _schema(args[0])
    if origin in (Union, UnionType):
        return {"type": [_schema(one)["type"] for one in args]}
    if origin is list:
        return _list(_schema(args[0]))
    if origin is dict:
        return {"type": "object"} if args[1] is Any else _table(_schema(args[1]))
    if is_typeddict(hint):
        return _ref(ROWS[hint]) if hint in ROWS else _declared(hint)
    return _OF[hint]


FACTS: Final = _object(day=TEXT, age_days=MAYBE_COUNT, installed=TRUTH, places=_list(TEXT), remark=MAYBE_TEXT)
SCHEMAS: Final = {
    **{name: _declared(row) for row, name in ROWS.items()},
    "Plans": _object(plans=_list(_ref("Plan"))),
    "Unpaced": _object(provider=TEXT, host=TEXT, kind=TEXT, count=COUNT, remedy=TEXT),
    "Status": _object(
        ("plans", "answers", "unpaced", "facts", "keys", "teams", "ready", "runs"),
        pools=_table(_ref("Pool")),
        plans=_list(_ref("Plan")),
        answers=_list(_ref("Answers")),
        unpaced=_list(_ref("Unpaced")),
        facts=_told(FACTS, "The data set about providers, and your files that add to it."),
        keys=_told(_table(_table(NUMBER)), "Of a gateway: the usage of each client key since its start."),
        teams=_told(_table(_table(NUMBER)), "The same by team, if any key has one; `-`: the keys without."),
        ready=_told(TRUTH, "Of a gateway: whether `/readyz` answers 200."),
        runs=_told(_list({"type": "object"}), "Of `paceline run`: the requests that are done, and failed by name."),
    ),
    "Columns": _object(
        t=_list(NUMBER),
        waiting=_list(COUNT),
        in_flight=_list(COUNT),
        granted=_list(COUNT),
        refused=_list(COUNT),
        quotas=_told(_table(_list(MAYBE_NUMBER)), "The share of each quota that is left, 0 to 1."),
        speed=_told(
            _table(_list(MAYBE_NUMBER)),
            "The granted part of each quota per minute or less in the last minute, as a share of the limit.",
        ),
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
        "components": {"schemas": SCHEMAS, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
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
