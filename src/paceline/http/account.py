"""Who pays for a request, by what it is sent with: each credential of a provider has limits, stops and caches of its own.

Of a credential only a keyed digest is kept (:mod:`paceline.pacing.accounts`).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote_plus

from paceline.core.queue import LaneName
from paceline.pacing.accounts import Payer
from paceline.pacing.pacer import PERSON, Pacer
from paceline.pacing.permit import holds_permit
from paceline.pacing.plan_use import UNNAMED, Client
from paceline.providers.base import Provider
from paceline.providers.forms import dialect
from paceline.providers.registry import CREDENTIALS, LOGIN, api_of, base_of, is_provider
from paceline.responses.values import as_mapping, as_text, decode

Header = Callable[[str], str]
"""Returns the value of a header of the request, by its name in lower case; empty for none."""

CHATGPT: Final = "chatgpt-account-id"

OF_THE_SERVER: Final = frozenset({"azure", "vertex", "vllm", "ollama"})
"""Providers whose resource, project or machine has the limits: a second credential there brings no more. So it is at a server of
an unknown provider, which is one of the user's own, as a rule."""

PASSING: Final = re.compile(rf"{LOGIN}|ya29\.|bedrock-api-key-|none|\S+ .*\b[Ss]ignature=")
"""Credentials that change with each hour or request, and do not show whose they are, unless they are a login: tokens of workloads at
Anthropic, Google's access tokens, Bedrock's short-term keys, the signatures of clouds (AWS, Oracle); and what stands for no key. All
of them are one account, unless a header names who pays. A name of its own (``bedrock@eu``) parts it from others."""

KEY_PARAMETER: Final = "key"
"""The part of a query in which Gemini's clients may send the key."""

_SESSION: Final = {"anthropic": "x-claude-code-session-id", "openai": "session-id", "chatgpt": "session-id"}
"""The header in which a client names its session (Claude Code 2.1.332, Codex 0.171; 2026-11)."""

_OF_CHATGPT: Final = "https://api.openai.com/auth"
"""The claim of ChatGPT's tokens with the plan and the account."""

TURN_MAX: Final = 8_192
"""The bytes of Codex's description of a turn that are read."""

_OF_SESSION: Final = re.compile(r'(?:session_id"\s*:\s*"|_session_)([0-9a-f-]{36})')
"""The session in ``metadata.user_id`` of versions of Claude Code without the header, in both forms."""

_UUID: Final = re.compile(r'(?:account_uuid"\s*:\s*"|_account_)([0-9a-f-]{36})')
"""The person in ``metadata.user_id`` of Claude Code: JSON (2.1.332), before that ``user_..._account_..._session_...``."""


NAME_MAX: Final = 40
"""The characters of a session's name that are kept."""

_UNNAMED: Final = re.compile(r"[^\w.-]+")
"""What no name has: it stands in a table, and in the name of a lane."""


def payer_of(
    pacer: Pacer, provider: Provider, header: Header, body: Mapping[str, Any], query: str = ""
) -> Payer | None:
    """Who pays for a request; ``None`` where it is the account of the provider's name.

    So it is where the user has named an account (``openai@eu``), where the caller has acquired its permit by hand, and where
    no credential is sent, or one that tells nothing.

    Args:
        pacer: The pacer.
        provider: The provider.
        header: Returns the headers of the request.
        body: The JSON value of its body.
        query: The query of its URL, as it is sent.
    """
    name = provider.name
    sent = _sent(name, header, query)
    if not sent or holds_permit():
        return None
    token = sent[0]
    login = is_login(name, token, header)
    if not login and PASSING.match(token):
        # Without the token, which changes. A header that names who pays still counts.
        sent = []
    if not (credential := _credential(name, sent, header)):
        return None
    payer = pacer.accounts.of(
        provider,
        credential,
        is_login=login,
        session=header(_SESSION[name]) if login else "",  # an API key is not renewed in the middle of a session
        person=lambda: _person(token, header, body if login else {}),
    )
    if not login:
        return payer
    client = _client(pacer, header, body)  # after the account, with which the key of its digits is made
    return payer._replace(client=client, lane=_lane(header, client))


def login_of(pacer: Pacer, provider: str, header: Header) -> str:
    """The account of the login that is sent with a request which costs nothing; empty if it has not been used for one that does."""
    sent = _sent(provider, header)
    account = pacer.accounts.known(provider, _credential(provider, sent, header)) if sent else None
    return account.name if account is not None and account.is_login else ""


def _sent(provider: str, header: Header, query: str = "") -> list[str]:
    """The credentials in a request; none where they are no account of their own."""
    headers = _key_headers(provider)
    found = [_bare(value) for one in headers if (value := header(one))]
    # At others than Gemini it may be anything: an id would make an account of each request.
    return [*found, key] if CREDENTIALS["gemini"] in headers and (key := key_in_query(query)) else found


def key_in_query(query: str) -> str:
    """The key in a query; empty for none."""
    found = [part.partition("=")[2] for part in query.split("&") if parameter_of(part) == KEY_PARAMETER]
    return unquote_plus(found[0]) if found else ""


def parameter_of(part: str) -> str:
    """The name of a part of a query."""
    return unquote_plus(part.partition("=")[0])


def _credential(provider: str, sent: list[str], header: Header) -> str:
    """What tells who pays: a credential, and the headers that name the account or the project."""
    named = dialect(provider).get("pays", ())
    return "\n".join((*sent, *(f"{one}: {value}" for one in named if (value := header(one)))))


def _client(pacer: Pacer, header: Header, body: Mapping[str, Any]) -> Client:
    """The session and the subagent that a request claims to be of, which are shown: by the name that its user gives it, or by digits."""
    digits, given = pacer.accounts.digits, _UNNAMED.sub("_", header("x-paceline-name")[:NAME_MAX])
    if found := header("x-claude-code-session-id"):
        return Client("claude", given or digits(found), digits(header("x-claude-code-agent-id")))
    if found := header("session-id"):
        return Client("codex", given or digits(found), digits(_subagent(header)))
    named = _OF_SESSION.search(telling(body)["metadata"]["user_id"])
    return Client("claude", given or digits(named[1])) if named else UNNAMED


def _subagent(header: Header) -> str:
    """The subagent of Codex that sends a request; empty for none."""
    turn = as_mapping(decode(header("x-codex-turn-metadata").encode()[:TURN_MAX]))
    name = as_text(turn.get("agent_name"))
    return "" if name in ("", "/root") else header("thread-id") or name


def sends_login(provider: str, header: Header) -> bool:
    """Whether a request has the login to a plan, where it goes to ``provider`` or to an account of it."""
    name = base_of(provider)
    sent = _sent(name, header)
    return bool(sent) and is_login(name, sent[0], header)


_TERMINAL: Final = re.compile(r"^claude-cli/.{1,80}[ ,(]cli\)?$|^codex[-_](?:tui|cli_rs)/")
"""The ``user-agent`` of Claude Code in a terminal, which ends in ``sdk-cli`` for ``claude -p``; and of Codex, where ``codex exec`` has
``codex_exec/`` (2.1.332 and 0.171, run 2026-11). WEAK: of Codex in a terminal the requests before its first turn were seen, and ``codex_cli_rs`` is what older
versions send (openai/codex ``default_client.rs``)."""


def _lane(header: Header, client: Client) -> LaneName | None:
    """The lane of a person who waits for the answer, as far as a request shows it: a terminal sends it, and no subagent there.

    Else the lane of the session: one with many subagents is one of several that share the plan. ``None``: no session is named.
    """
    if not (client.agent or header("x-claude-code-agent-id")) and _TERMINAL.match(header("user-agent")):
        return PERSON
    return (f"session {client.session}", None, None) if client.session else None


def telling(body: Mapping[str, Any]) -> dict[str, Any]:
    """What of a body tells whose it is."""
    return {"metadata": {"user_id": as_text(as_mapping(body.get("metadata")).get("user_id"))[:1_000]}}


_SDK: Final = re.compile(r"\w*Anthropic/")
"""The ``user-agent`` of Anthropic's SDKs."""


def is_login(provider: str, credential: str, header: Header) -> bool:
    """Whether a credential is a login to a plan: it has windows, and no tier of the API.

    Anthropic's tokens of OAuth show it by their beginning, but where its SDK sends them: they are of a workload then
    (platform.claude.com/docs/en/manage-claude/wif-reference, anthropic 2.11). Codex names the account of ChatGPT in a header, and its token in a claim
    (clients run, 2026-11). Other JSON web tokens are keys of gateways.
    """
    if provider == "anthropic":
        return credential.startswith(LOGIN) and not _SDK.match(header("user-agent"))
    if provider == "chatgpt":  # which takes nothing else
        return True
    return provider == "openai" and (bool(header(CHATGPT)) or _OF_CHATGPT in _claims(credential))


@lru_cache(maxsize=256)
def _key_headers(provider: str) -> tuple[str, ...]:
    """The headers with the credential; none where it is no account of its own."""
    if "@" in provider or provider in OF_THE_SERVER or not is_provider(provider):
        return ()
    own = CREDENTIALS.get(api_of(provider))
    return ("authorization",) if own is None else ("authorization", own)


def _bare(value: str) -> str:
    """A credential without its scheme."""
    scheme, _, rest = value.partition(" ")
    return rest.strip() if scheme.lower() in ("bearer", "basic") else value.strip()


def _person(credential: str, header: Header, body: Mapping[str, Any]) -> str:
    """The person that a request claims to be of; empty for none. Seats of one organization are several persons."""
    claims = _claims(credential)
    # Z.ai's clients sign a token for each request, which names their key.
    if named := as_text(claims.get("sub")) or as_text(claims.get("api_key")):
        return "\n".join([as_text(claims.get("iss")), named, header(CHATGPT)])
    found = _UUID.search(telling(body)["metadata"]["user_id"])
    return found[1] if found else ""


def _claims(credential: str) -> Mapping[str, Any]:
    """What a JSON web token says of itself, unchecked; nothing for another credential."""
    parts = credential.split(".") if credential.startswith("eyJ") else []
    if len(parts) != 3:
        return {}
    try:  # tokens leave out the padding
        return as_mapping(decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))))
    except ValueError:
        return {}
