"""A thousand credentials through one gateway in a process of its own: what it keeps of them is bounded, and no credential is written down.

In each round the logins are renewed, the clients have new sessions, and there are new keys that the provider doesn't know. The provider
repeats the credential in its answers, as real providers do in messages.
"""

import asyncio
import base64
import hashlib
import json
import logging
import re
import time
from collections import Counter
from pathlib import Path

import httpx2
import pytest
from attack_helpers import Process
from gateway_helpers import Stub, bearer, stub

from paceline.pacing.accounts import ACCOUNTS_MAX

MARK = "Zq7kVwQ"
"""In each credential, so that a search finds all of them."""

CLAUDE, CODEX, KEYS = 400, 100, 500
FLOOD, UNKNOWN = ACCOUNTS_MAX, 50
"""Unknown keys of the first round, and of each further one: from then on there are as many accounts as there ever will be."""

ROUNDS = 6
PAGES = ("/metrics", "/status", "/api/v1/plans", "/api/v1/usage", "/api/v1/rate-limits/history")
USED_UP = ("claude 0", "codex 0")
"""Those whose plan is used up. The next person of each is of the same organization."""


def segment(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def secret(who, count):
    return f"{MARK}{hashlib.sha256(f'{who} {count}'.encode()).hexdigest()[:40]}"


class Client:
    """A person or a program with one credential. Logins are renewed within a session, every second round."""

    def __init__(self, kind, number):
        self.kind, self.number, self.who = kind, number, f"{kind} {number}"

    def credential(self, number):
        if self.kind == "claude":
            return f"sk-ant-oat01-{secret(self.who, number // 2)}"
        if self.kind == "codex":
            claims = {"iss": "https://auth.openai.com", "sub": f"user-{self.number}", "https://api.openai.com/auth": {}}
            return f"{segment({'alg': 'RS256'})}.{segment(claims)}.{secret(self.who, number // 2)}"
        return f"sk-{self.kind.partition(' ')[0]}-{secret(self.who, 0)}"

    def request(self, number):
        """Path, headers and body in a round."""
        credential = self.credential(number)
        more = {"x_paceline_timeout": "2" if self.who in USED_UP else "60"}
        asked = {"max_tokens": 10, "messages": [{"role": "user", "content": f"a secret word: {MARK}"}]}
        if self.kind == "claude":
            uuid = f"11111111-2222-3333-4444-{self.number:012d}"
            session = f"{(number + 1) // 2:08d}-aaaa-bbbb-cccc-{self.number:012d}"
            more["x_claude_code_session_id"] = session
            if self.number % 2:
                asked["metadata"] = {"user_id": json.dumps({"account_uuid": uuid, "session_id": session})}
            return "/anthropic/v1/messages", bearer(credential, **more), asked | {"model": "claude-sonnet-4-5"}
        if self.kind == "codex":
            more |= {"chatgpt_account_id": f"organization-{self.number // 2}", "session_id": f"{self.number} {number}"}
            asked = {"model": "gpt-5", "input": f"a secret word: {MARK}"}
            return "/chatgpt/backend-api/codex/responses", bearer(credential, **more), asked
        return "/openai/v1/chat/completions", bearer(credential, **more), asked | {"model": "gpt-5"}


CLIENTS = [
    Client(kind, n) for kind, count in (("claude", CLAUDE), ("codex", CODEX), ("key", KEYS)) for n in range(count)
]


def plan(path, used):
    """The headers of an answer to a login: its windows. All are of one organization."""
    if "responses" in path:
        names = {"used-percent": f"{100 * used:.0f}", "window-minutes": "300", "reset-after-seconds": "9000"}
        return {f"x-codex-primary-{name}": value for name, value in names.items()}
    names = {"utilization": used, "reset": int(time.time()) + 9_000, "status": "rejected" if used == 1 else "allowed"}
    windows = {f"anthropic-ratelimit-unified-5h-{name}": f"{value}" for name, value in names.items()}
    return windows | {"anthropic-organization-id": "the same"}


class Provider(Stub):
    """Answers, fails, or refuses, and repeats the credential in what it says."""

    def __init__(self):
        self.number = 0
        self.used_up = {CLIENTS[n].credential(number) for n in (0, CLAUDE) for number in range(ROUNDS)}

    def answer(self, path, headers, _body):
        self.number += 1
        who = headers["authorization"].removeprefix("Bearer ")
        status, more, error = self.judged(path, who)
        usage = {"prompt_tokens": 9, "completion_tokens": 1, "input_tokens": 9, "output_tokens": 1}
        said = {"type": "message", "content": [{"type": "text", "text": "hi"}], "status": "completed", "output": []}
        said |= {"choices": [{"message": {"content": "hi"}}], "usage": usage}
        if error:
            said = {"type": "error", "error": {"type": error, "code": error, "message": f"of {who}"}}
        return said, status, more

    def judged(self, path, who):
        """Status, headers, and the kind of an error."""
        if who.startswith("sk-unknown"):
            return 401, {}, "invalid_api_key"
        if who in self.used_up:
            return 429, {"retry-after": "9000"} | plan(path, 1.0), "rate_limit_error"
        if self.number % 106 == 0:
            return 500, {}, "server_error"
        if self.number % 53 == 0:
            return 400, {}, "invalid_request_error"
        if self.number % 79 == 0:
            return 429, {"retry-after": "1"}, "rate_limit_error"
        return 200, {} if "chat" in path.rpartition("/v1/")[2] else plan(path, 0.4), ""


def credentials_in(folder):
    return [one.name for one in Path(folder).rglob("*") if one.is_file() and MARK.encode() in one.read_bytes()]


async def one_round(url, number):
    """One request of each client, and of some that are unknown; the answers by kind and status."""
    clients = [*CLIENTS, *(Client(f"unknown in {number}", n) for n in range(UNKNOWN if number else FLOOD))]
    todo, told = iter(clients), Counter()
    async with httpx2.AsyncClient(timeout=120, trust_env=False, verify=False) as client:

        async def work():
            for one in todo:
                path, headers, asked = one.request(number)
                answer = await client.post(url + path, json=asked, headers=headers)
                told[one.who if one.who in USED_UP else one.kind, answer.status_code] += 1
                found = set(re.findall(MARK + "[0-9a-f]{40}", answer.text))
                assert found <= {re.search(MARK + "[0-9a-f]{40}", one.credential(number))[0]}  # no other one's

        await asyncio.gather(*(work() for _ in range(8)))
    return told


@pytest.mark.soak
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of a process as Linux tells it")
def test_memory_is_flat_each_login_keeps_its_account_and_no_credential_is_written(tmp_path):
    provider = Provider()
    with stub(provider) as upstream:
        servers = "".join(f'{name} = {{ base_url = "{upstream}" }}\n' for name in ("anthropic", "chatgpt"))
        config = tmp_path / "paceline.toml"
        config.write_text(f'traffic_log = "{tmp_path}/traffic.log"\n[upstreams]\n{servers}')
        options = ["--config", config, "--store", f"sqlite:{tmp_path}/store.db"]
        options += ["--access-log", tmp_path / "access.log", "--log-level", "info", "--log-format", "json"]
        process = Process(*options, upstream=upstream, folder=tmp_path, OPENAI_API_KEY="")
        try:
            memory, accounts = [], []
            for number in range(ROUNDS):
                told = asyncio.run(one_round(process.url, number))
                # The other person of the organization is served, and the unknown ones are refused.
                assert {who for who, status in told if status == 429} >= set(USED_UP), told
                assert told["claude", 200] > 0.9 * (CLAUDE - 1), told
                assert told["codex", 200] > 0.9 * (CODEX - 1), told
                plans = httpx2.get(f"{process.url}/api/v1/plans", timeout=60).json()["plans"]
                accounts.append({row["account"] for row in plans})
                memory.append(process.memory() / 1e6)
            shown = [httpx2.get(process.url + path, timeout=60).text for path in PAGES]
        finally:
            process.stop()
    logging.getLogger("tests").warning("MB after each round: %s", memory)
    assert max(memory) - memory[1] < 4, memory  # an account takes about 40 kB, so the unknown ones of four rounds 8 MB
    assert not [path for path, text in zip(PAGES, shown, strict=True) if MARK in text]
    assert credentials_in(tmp_path) == []
    # What is shut gives its account to no other credential: each is shut by a refusal of its own.
    shut = {row["account"] for row in plans if row["state"] == "shut"}
    assert len(shut) == len(provider.used_up)
    assert len(accounts[-1] - shut) == CLAUDE + CODEX - len(USED_UP)
    assert accounts[0] < accounts[-1]  # in the first round some were not answered
