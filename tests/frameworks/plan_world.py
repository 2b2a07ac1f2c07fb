"""Claude Code, Codex and others from npm with logins that were invented, and a server for them whose plans have short windows.

Nothing of it leaves this machine: a proxy that is not there stands in the way of every other host.
"""

import asyncio
import base64
import json
import math
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from gateway_world import answer_to, stream_of
from loop_server import LoopServer, head_of

HOMES = Path(__file__).resolve().parents[2] / ".venv-frameworks" / "agent_clients"
PACKAGES = {
    "claude": "@anthropic-ai/claude-code", "codex": "@openai/codex", "opencode": "opencode-ai", "gemini": "@google/gemini-cli",
}  # fmt: skip
VERSIONS = {"claude": "2.1.332", "codex": "0.171.0", "opencode": "1.18.33", "gemini": "0.61.0"}
INSTALL_S = 300

NOTES = {
    "ping": b'event: ping\ndata: {"type": "ping"}\n\n',
    "keepalive": b'event: keepalive\ndata: {"type": "keepalive", "sequence_number": 0}\n\n',
    "comment": b": waiting\n\n",
    "blank": b"\n",
}
PACELINE = [str(Path(sys.executable).with_name("paceline"))]


class NotInstalledError(Exception):
    """A client cannot be installed."""


def program(name, version=""):
    """The path of a client, which npm installs unless it is there."""
    version = version or VERSIONS[name]
    home = HOMES / f"{name}-{version}"
    path = home / "node_modules" / ".bin" / name
    if not path.exists():
        if shutil.which("npm") is None:
            raise NotInstalledError(
                "npm is missing: install Node.js (https://nodejs.org), or leave this environment out"
            )
        home.mkdir(parents=True, exist_ok=True)
        (home / "package.json").write_text('{"private": true}')
        options = ["--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
        command = ["npm", "install", *options, f"{PACKAGES[name]}@{version}"]
        done = subprocess.run(command, cwd=home, check=False, capture_output=True, text=True, timeout=INSTALL_S)
        if done.returncode or not path.exists():
            raise NotInstalledError(f"npm cannot install {PACKAGES[name]} {version}: {done.stderr}")
    return str(path)


@cache
def login(account):
    """The credential of an account, as its client sends it: a token of OAuth, or a JSON web token."""
    if account.startswith("claude"):
        return f"sk-ant-oat01-{account}"
    auth = {"chatgpt_plan_type": "plus", "chatgpt_account_id": account, "chatgpt_user_id": account}
    claims = {"sub": account, "exp": int(time.time()) + 864_000, "https://api.openai.com/auth": auth}
    parts = [
        base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in ({"alg": "none"}, claims)
    ]
    return ".".join([*parts, "c2ln"])


def environ(folder, account):
    """The environment of a client that has a login to an account, with a home of its own."""
    home = Path(folder) / account
    home.mkdir(parents=True, exist_ok=True)
    kept = ("PATH", "LANG", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    env |= {"HOME": str(home), **nowhere, **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")}
    if account.startswith("claude"):
        quiet = dict.fromkeys(
            ("DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"), "1"
        )
        return env | quiet | {"CLAUDE_CODE_OAUTH_TOKEN": login(account), "CLAUDE_CONFIG_DIR": str(home / "claude")}
    if not account.startswith("codex"):  # they have a key
        settings = home / ".gemini" / "settings.json"
        settings.parent.mkdir(exist_ok=True)
        settings.write_text(json.dumps({"security": {"auth": {"selectedType": "gemini-api-key"}}}))
        return env | {"GEMINI_API_KEY": "key", "GEMINI_CLI_TRUST_WORKSPACE": "true"}
    codex = home / "codex"
    codex.mkdir(exist_ok=True)
    tokens = {"id_token": login(account), "access_token": login(account), "refresh_token": "r", "account_id": account}
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    (codex / "auth.json").write_text(json.dumps({"OPENAI_API_KEY": None, "tokens": tokens, "last_refresh": stamp}))
    return env | {"CODEX_HOME": str(codex)}


def arguments(name, prompt="say hello", *, path=""):
    """The arguments with which a client makes one turn and ends."""
    words = {
        "claude": ["-p"],
        "gemini": ["-m", "gemini-3.1-pro-preview", "-p"],
        "codex": ["exec", "--skip-git-repo-check"],
        "opencode": ["run"],
    }[name]
    return [path or program(name), *words, prompt]


@dataclass
class Asked:
    """One request to a server of this file."""

    at_s: float
    method: str
    path: str
    headers: dict
    body: dict
    status: int = 0
    closed_s: float = math.nan

    @property
    def account(self):
        """The account whose login it has; the credential is compared, never read."""
        return self.headers.get("authorization", "").removeprefix("Bearer ")


class Server(LoopServer):
    """Answers a request by the coroutine ``answer(asked, reader, writer)``.

    Attributes:
        asked: The requests, the first one first.
    """

    def __init__(self):
        self.asked, self.began_s = [], time.monotonic()

    async def one(self, reader, writer):
        method, target, pairs = await head_of(reader)
        headers = {name.lower(): value for name, value in pairs}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        body = json.loads(raw) if raw[:1] == b"{" else {}
        one = Asked(time.monotonic() - self.began_s, method, urlsplit(target).path, headers, body)
        self.asked.append(one)
        try:
            return await self.answer(one, reader, writer)
        finally:
            one.closed_s = time.monotonic() - self.began_s

    async def answer(self, asked, reader, writer):
        """Answer; returns whether the connection goes on."""
        raise NotImplementedError

    @property
    def turns(self):
        """The requests for a turn of a model."""
        return [one for one in self.asked if is_turn(one)]


def is_turn(asked):
    """Whether a request asks a model for an answer."""
    return asked.method == "POST" and asked.path.endswith(("/messages", "/responses", "enerateContent"))


def streams(asked):
    """Whether it asks for a stream."""
    return bool(asked.body.get("stream")) or asked.path.endswith(":streamGenerateContent")


async def respond(writer, asked, status, headers, body):
    """Send a whole answer."""
    asked.status = status
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = {} if "content-type" in headers else {"content-type": "application/json"}
    lines = [f"{name}: {value}" for name, value in {**kind, **headers, "content-length": len(data)}.items()]
    writer.write(f"HTTP/1.1 {status} OK\r\n".encode() + "\r\n".join([*lines, "", ""]).encode())
    writer.write(b"" if asked.method == "HEAD" else data)
    await writer.drain()
    return True


def answer_of(asked):
    """The answer of a model to a turn, as a stream or a value, and its content type."""
    body = {name: value for name, value in asked.body.items() if name != "tools"}  # a client would run them
    answer = answer_to(asked.path, body)
    if isinstance(answer, dict):
        return answer, "application/json"
    return b"".join(stream_of(answer)), "text/event-stream"


@dataclass
class Window:
    """The window of one account's plan: it begins with the first request after the last end."""

    ends_s: float = 0.0
    used: int = 0
    number: int = 0


@dataclass
class Plans(Server):
    """Plans whose windows hold ``amount`` requests and last ``length_s``, with the headers and refusals of Claude and of Codex.

    Attributes:
        amounts: The amount of an account, where it is another one.
        windows: By credential.
    """

    amount: int = 2
    length_s: float = 60.0
    answer_s: float = 0.2
    amounts: dict = field(default_factory=dict)
    windows: dict = field(default_factory=dict)

    def __post_init__(self):
        super().__init__()

    async def answer(self, asked, reader, writer):
        """See :class:`Server`."""
        if not is_turn(asked):
            return await respond(writer, asked, 200, {}, {"models": []} if asked.path.endswith("/models") else {})
        now_s, window = time.time(), self.windows.setdefault(asked.account, Window())
        amount = self.amounts.get(asked.account, self.amount)
        if now_s >= window.ends_s:
            window.ends_s, window.used, window.number = now_s + self.length_s, 0, window.number + 1
        ok = window.used < amount
        window.used += ok
        left_s, used = window.ends_s - now_s, window.used / amount if amount else 1.0
        make = claude_refusal if asked.path.endswith("/messages") else codex_refusal
        headers, refusal = make(window.ends_s, left_s, used, ok=ok)
        if not ok:
            return await respond(writer, asked, 429, headers, refusal)
        await asyncio.sleep(self.answer_s)
        body, kind = answer_of(asked)
        return await respond(writer, asked, 200, headers | {"content-type": kind}, body)

    def served(self, account=""):
        """How many turns were answered."""
        return sum(one.status == 200 for one in self.turns if not account or one.account == login(account))


def claude_refusal(ends_s, left_s, used, *, ok):
    """What Claude's API says of a window (a refusal of 2026-08-02, published by a user)."""
    name, status = "anthropic-ratelimit-unified", "allowed" if ok else "rejected"
    headers = {
        f"{name}-status": status,
        f"{name}-reset": math.ceil(ends_s),
        f"{name}-representative-claim": "five_hour",
        f"{name}-5h-status": status,
        f"{name}-5h-utilization": f"{used:.2f}",
        f"{name}-5h-reset": math.ceil(ends_s),
    }
    if not ok:
        headers |= {"retry-after": math.ceil(left_s), "x-should-retry": "true"}
    message = "This request would exceed your account's rate limit. Please try again later."
    return headers, {"type": "error", "error": {"type": "rate_limit_error", "message": message}, "request_id": "req_1"}


def codex_refusal(ends_s, left_s, used, *, ok):
    """What ChatGPT's API says of a window (openai/codex, 2026)."""
    del ok
    headers = {
        "x-codex-primary-used-percent": f"{100 * used:.0f}",
        "x-codex-primary-window-minutes": 300,
        "x-codex-primary-reset-at": math.ceil(ends_s),
        "x-codex-primary-reset-after-seconds": math.ceil(left_s),
        "x-codex-plan-type": "plus",
    }
    error = {"type": "usage_limit_reached", "message": "The usage limit has been reached", "plan_type": "plus"}
    return headers, {"error": error | {"resets_at": math.ceil(ends_s), "resets_in_seconds": math.ceil(left_s)}}
