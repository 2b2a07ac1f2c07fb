"""Clients whose own credentials are passed on: each has limits, stops and waits of its own, and none is written down."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx2
import pytest
from gateway_helpers import CHAT, Stub, bearer, chat, stub

from paceline import Limiter
from paceline.config import Config
from paceline.core.quota import NS
from paceline.core.results import Refusal, RefusalKind, SettingsError
from paceline.gateway import reading, refusals
from paceline.gateway.refusals import Refusals, RequestRefusals
from paceline.gateway.upstreams import Upstreams
from paceline.pacing import accounts

POOR, RICH, OTHER = "sk-poor-77d1", "sk-rich-c20a", "sk-other-98f3"
LOGIN, SECOND = "sk-ant-oat01-aa11", "sk-ant-oat01-bb22"
MESSAGES = "/anthropic/v1/messages"
WAIT_S = 10_800
PLANS = {
    key: {"anthropic-ratelimit-unified-5h-utilization": used, "anthropic-ratelimit-unified-5h-status": "allowed"}
    for key, used in ((LOGIN, "0.62"), (SECOND, "0.07"))
}


pytestmark = pytest.mark.usefixtures("no_keys")


class Provider(Stub):
    """Has funded accounts, one without money, and a plan that is used up (its login ends in ``up``)."""

    def __init__(self):
        self.asked = []

    def answer(self, path, headers, _body):
        who = headers.get("authorization", headers.get("x-api-key", "")).removeprefix("Bearer ")
        self.asked.append(who)
        status, more, content = self.judged(path, who)
        return content, status, more

    def judged(self, path, who):
        if who.startswith("sk-unknown"):
            error = {"type": "invalid_request_error", "code": "invalid_api_key", "message": "Incorrect API key"}
            return 401, {}, {"error": error}
        if who == POOR:
            error = {"type": "insufficient_quota", "code": "insufficient_quota", "message": "You exceeded your quota"}
            return 429, {"x-request-id": "req_7"}, {"error": error}
        if who.endswith("up"):
            more = {
                "retry-after": f"{WAIT_S}",
                "x-should-retry": "true",
                "anthropic-ratelimit-unified-status": "rejected",
                "anthropic-ratelimit-unified-representative-claim": "seven_day",
                "anthropic-ratelimit-unified-7d-utilization": "1.0",
            }
            error = {"type": "rate_limit_error", "message": "This request would exceed your account's rate limit."}
            return 429, more, {"type": "error", "error": error, "request_id": "req_1"}
        if who.endswith("slow"):
            error = {"type": "rate_limit_error"}
            return 429, {"retry-after": "20"}, {"type": "error", "error": error, "request_id": "req_2"}
        if "/messages" in path:
            usage = {"input_tokens": 9, "output_tokens": 1}
            more = PLANS.get(who, {})
            return 200, more, {"type": "message", "content": [{"type": "text", "text": "hi"}], "usage": usage}
        usage = {"prompt_tokens": 9, "completion_tokens": 1}
        return 200, {}, {"choices": [{"message": {"content": "hi"}}], "usage": usage}


@pytest.fixture
def provider():
    with stub(made := Provider()) as made.url:
        yield made


def ask(client, running, key, path=CHAT, model="gpt-5", **more):
    return client.post(running.url + path, json=chat(model=model), headers=bearer(key, **more))


def last_event(client, running, headers):
    """The last event of a stream that begins while it waits, and breaks off, as it does at an error: some SDKs do not read it there."""
    events, pool = [], running.limiter.pacer.pools.of_model("openai", "gpt-5")
    until_ns = pool.now_ns() + 60 * NS
    pool.pause(until_ns)
    with (
        client.stream("POST", running.url + CHAT, json=chat(stream=True), headers=headers) as answer,
        suppress(httpx2.RemoteProtocolError),
    ):
        pool.section.change(pool.pool.capacity.lift, until_ns)
        events.extend(line for line in answer.iter_lines() if line.startswith("data:"))
    assert answer.status_code == 200
    return events[-1]


def test_a_key_in_the_query_is_one_too(serve, provider, client):
    running = serve(provider.url)
    for key in (RICH, OTHER):
        path = f"/gemini/v1beta/models/gemini-2.5-pro:generateContent?key={key}"
        client.post(running.url + path, json={"contents": [{"parts": [{"text": "hi"}]}]})
    first, second = running.limiter.status()["pools"]
    assert first == "gemini/gemini-2.5-pro"
    assert second.startswith("gemini@")


@pytest.mark.parametrize("in_path", [False, True])
def test_the_bytes_of_an_upload_go_through_the_gateway(serve, client, keys, in_path):
    """@google/genai sends them to the path in the answer, at the gateway's host."""
    place = f"/{keys.add('exec')}/gemini" if in_path else "/gemini"
    server = Stub(
        lambda path, headers, _: (b"", 200, {"x-goog-upload-url": f"http://{headers['host']}{path}?upload_id=a"})
    )
    with stub(server) as url:
        address = f"{serve(url, key_in_path=in_path).url}{place}/upload/v1beta/files"
        led = client.post(address, headers={"x-goog-api-key": RICH}).headers["x-goog-upload-url"]
        assert led == f"{address}?upload_id=a"
        assert client.post(led, content=b"bytes").status_code == 200


def test_what_is_left_of_each_plan_is_shown(serve, provider, client, caplog):
    running = serve(provider.url)
    for key in (LOGIN, SECOND, LOGIN + "up"):
        ask(client, running, key, MESSAGES, "claude-sonnet-4-5", x_paceline_timeout="0")
    plans = client.get(f"{running.url}/api/v1/rate-limits/status").json()["plans"]
    windows = sorted((row["window"], row["used"], row["status"]) for row in plans)
    assert windows == [("5h", 0.07, "allowed"), ("5h", 0.62, "allowed"), ("7d", 1.0, "rejected")]
    of = {row["account"] for row in plans}
    assert of == {name.partition("/")[0] for name in running.limiter.status()["pools"]}
    assert "refused (rate: the plan's window 7d)" in caplog.text
    assert "sk-ant" not in caplog.text + json.dumps(plans)


@pytest.mark.long("starts a process")
def test_a_renewed_token_keeps_its_account_by_the_person_in_a_large_body(serve, provider, client, monkeypatch):
    monkeypatch.setattr(reading, "LARGE", 1_000)
    named = {"user_id": json.dumps({"account_uuid": "11111111-2222-3333-4444-555555555555"})}
    running = serve(provider.url)
    for key, session, text in ((LOGIN, "s1", "hi"), (SECOND, "s2", "hi " * 500), (LOGIN + "new", "s3", "hi")):
        body = {"model": "m", "max_tokens": 9, "metadata": named, "messages": [{"role": "user", "content": text}]}
        headers = bearer(key, x_claude_code_session_id=session)
        assert client.post(running.url + MESSAGES, json=body, headers=headers).status_code == 200
    assert len(running.limiter.status()["pools"]) == 1


def test_accounts_have_the_same_names_after_a_restart_and_stand_in_the_store_in_full(serve, provider, client, tmp_path):
    store, seen = f"sqlite:{tmp_path / 'store.db'}", []
    for order in ((RICH, OTHER), (OTHER, RICH)):
        running = serve(provider.url, store=store, limits={"openai/*": ["100 requests/hour"]})
        for key in order:
            assert ask(client, running, key).status_code == 200
        seen.append(sorted(running.limiter.status()["pools"]))
        running.stop()
    assert seen[0] == seen[1]
    assert all(name.startswith("openai@") for name in seen[0])
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("store.db*"))
    for name in seen[0]:
        account = name.partition("/")[0].encode()
        assert account in stored
        assert account + b"/" not in stored  # 24 bits are no identity


def test_no_credential_is_written_or_shown(serve, provider, client, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    running = serve(
        provider.url,
        store=f"sqlite:{tmp_path / 'store.db'}",
        access_log=tmp_path / "access.log",
        traffic_log=str(tmp_path / "traffic.log"),
        limits={"openai/*": ["100 requests/hour"]},
    )
    keys = (RICH, POOR, "sk-unknown-5e", POOR)
    told = b"".join(ask(client, running, key).content for key in keys)
    told += ask(client, running, LOGIN + "up", MESSAGES, "claude-opus-4-5", x_paceline_timeout="0").content
    paths = ("/", "/status", "/metrics", *(f"/api/v1/{name}" for name in ("usage", "plans", "rate-limits/status")))
    shown = b"".join(client.get(running.url + path).content for path in paths)
    running.stop()
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    everything = told + shown + written + caplog.text.encode()
    assert b"openai@" in shown
    assert b"openai@" in written
    for key in (*keys, LOGIN):
        assert key.encode() not in everything
    salt = tmp_path / "accounts.salt"
    assert salt.stat().st_size == 64
    assert salt.read_bytes() not in told + shown + caplog.text.encode()


def test_a_flood_of_unknown_credentials(serve, provider, client, monkeypatch):
    monkeypatch.setattr(accounts, "ACCOUNTS_MAX", 20)
    running = serve(provider.url)
    assert [ask(client, running, key).status_code for key in (RICH, OTHER, POOR)] == [200, 200, 429]
    before = set(running.limiter.status()["pools"])
    with ThreadPoolExecutor(4) as threads:
        statuses = list(threads.map(lambda n: ask(client, running, f"sk-unknown-{n}").status_code, range(80)))
    assert set(statuses) == {401}
    after = running.limiter.status()["pools"]
    assert before <= set(after)
    assert len(after) <= 21
    assert len(running.dispatch._metering.models._used) <= 21
    assert [ask(client, running, key).status_code for key in (RICH, OTHER, POOR)] == [200, 200, 429]


def test_a_refusal_comes_as_the_provider_gave_it(serve, provider, client):
    running = serve(provider.url)
    for _ in range(3):
        answer = ask(client, running, LOGIN + "up", MESSAGES, "claude-opus-4-5", x_paceline_timeout="0")
        assert (answer.status_code, answer.json()) == (429, provider.judged(MESSAGES, "up")[2])
        assert answer.headers["anthropic-ratelimit-unified-status"] == "rejected"
        assert WAIT_S - 60 < int(answer.headers["retry-after"]) <= WAIT_S
        assert answer.headers["x-should-retry"] == "false"  # paceline has tried
    assert len(provider.asked) == 1
    for _ in range(2):  # no wait helps
        answer = ask(client, running, POOR)
        assert answer.json() == provider.judged(CHAT, POOR)[2]
        assert (answer.headers["x-request-id"], answer.headers["x-paceline"]) == ("req_7", "stopped")
    assert provider.asked.count(POOR) == 1


def test_a_refusal_is_told_to_the_credential_that_got_it(serve, provider, client):
    running = serve(provider.url)
    answers = [
        ask(client, running, key, MESSAGES, "claude-opus-4-5", x_claude_code_session_id="s1", x_paceline_timeout="2")
        for key in (LOGIN, LOGIN + "slow", SECOND)
    ]
    assert [answer.status_code for answer in answers] == [200, 429, 429]
    assert len(running.limiter.status()["pools"]) == 1  # the session is claimed, and so the account
    assert ["request_id" in answer.json() for answer in answers] == [False, True, False]


def test_of_the_gateways_own_key_it_tells_nothing(serve, provider, client, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", POOR)
    answer = ask(client, serve(provider.url), RICH)
    assert answer.json()["error"]["code"] == "paceline_stopped"
    assert "x-request-id" not in answer.headers


@pytest.mark.parametrize(
    ("status", "error", "hidden"),
    [
        (401, {"code": "invalid_api_key", "message": "Incorrect API key provided: sk-of-***1. Get one at x.com"}, True),
        (401, {}, True),
        (400, {"status": "INVALID_ARGUMENT", "message": "API key not valid. Please pass one: sk-of-***1"}, True),
        (403, {"status": "PERMISSION_DENIED", "message": "Your API key sk-of-***1 was reported as leaked."}, True),
        (403, {"code": "model_not_found", "message": "Project p does not have access to model sk-of-***1"}, False),
        (400, {"code": "invalid_value", "message": "The API has no field sk-of-***1"}, False),
    ],
)
def test_what_is_said_of_the_gateways_own_key_reaches_no_client(
    serve, provider, client, monkeypatch, kept, status, error, hidden
):
    monkeypatch.setenv("OPENAI_API_KEY", RICH)
    monkeypatch.setattr(provider, "judged", lambda *_: (status, {"x-owner": "sk-of-***1"}, {"error": error}))
    running = serve(provider.url)
    for method, path in (("POST", CHAT), ("GET", "/openai/v1/models")):
        answer = client.request(method, running.url + path, json=chat())
        assert answer.status_code == (401 if hidden else status)
        text = answer.text + str(answer.headers)
        assert ("openai refuses the gateway's own key" in text) == hidden
        assert ("sk-of-***1" in text) != hidden
    event = last_event(client, running, kept)
    assert ("paceline_upstream_key" in event, "sk-of-***1" in event) == (hidden, not hidden)
    causes = {row["cause"] for row in running.limiter.status()["answers"]}
    assert causes == {"key" if hidden or status == 403 else "request"}  # for metrics and alerts


def test_it_is_an_event_in_a_stream_that_has_begun(serve, provider, client, kept):
    running = serve(provider.url, limits={"openai/*": ["100 requests/hour"]})
    event = last_event(client, running, bearer(POOR) | kept)
    assert json.loads(event.removeprefix("data:")) == provider.judged(CHAT, POOR)[2]


def test_what_is_left_of_a_wait_is_counted_down(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(refusals.time, "monotonic", lambda: now[0])
    last, pool = Refusals(), Limiter().pacer.pools.scheduler("openai/gpt")
    refused, other, strange = (RequestRefusals(last, (pool,), key) for key in (b"a", b"a", b"b"))
    headers = [(b"x-codex-primary-reset-after-seconds", b"900"), (b"x-codex-primary-reset-at", b"17"), (b"date", b"x")]
    body = b'{"error": {"resets_in_seconds": 900, "resets_at": 17}}'
    refused.keep(429, headers, body, Refusal(RefusalKind.RATE, retry_after_s=900.0))
    now[0] += 300.5
    status, headers, body = other.instead("timeout", "5")
    assert (status, dict(headers)[b"retry-after"]) == (429, b"600")
    assert json.loads(body)["error"] == {"resets_in_seconds": 600, "resets_at": 17}
    assert dict(headers)[b"x-codex-primary-reset-after-seconds"] == b"600"
    assert dict(headers)[b"x-codex-primary-reset-at"] == b"17"
    now[0] += 600
    assert other.instead("timeout", "5") is None
    assert dict(other.instead("stopped", "5")[1])[b"retry-after"] == b"5"
    assert strange.instead("stopped", "5") is None
    strange.clear()
    assert other.instead("stopped", "5")
    other.clear()
    assert other.instead("stopped", "5") is None
    assert refused.instead("timeout", "5"), "its own"


def test_a_plan_is_a_member_of_no_group(serve, provider, client):
    table = {"provider": "anthropic", "base_url": provider.url}
    running = serve(provider.url, upstreams={"eu": table, "us": table}, groups={"both": {"members": ["eu", "us"]}})
    answer = ask(client, running, LOGIN, "/both/v1/messages", "claude-opus-4-5")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "paceline_plan")
    assert "send it to /eu" in answer.text
    assert provider.asked == []
    assert ask(client, running, RICH, "/both/v1/messages", "claude-opus-4-5").status_code == 200
    assert ask(client, running, LOGIN, "/eu/v1/messages", "claude-opus-4-5").status_code == 200


@pytest.mark.parametrize("variable", ["ANTHROPIC_API_KEY", "ANTHROPIC_API_KEY_FILE"])
def test_the_gateway_sends_no_login_of_its_own(provider, tmp_path, variable):
    file = tmp_path / "login"
    file.write_text(LOGIN)
    config = Config.load(environ={}, given={"upstreams": {"anthropic": {"base_url": provider.url}}})
    with pytest.raises(SettingsError, match="has a login to a plan, which only its own client may send") as caught:
        Upstreams(config, {variable: str(file) if variable.endswith("FILE") else LOGIN})
    assert LOGIN not in str(caught.value)
