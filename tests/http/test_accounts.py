"""A process that uses several credentials of a provider: what one is told holds for that one alone."""

import asyncio
import base64
import json
import logging
import traceback
from contextlib import ExitStack

import httpx
import httpx2
import pytest
from chats import ANSWER, CHAT, counts
from http_ways import WAYS, chat_at

import paceline
from odd_server import JSON, OddServer
from paceline.pacing import accounts
from paceline.pacing.accounts import Accounts
from paceline.providers.registry import provider_named

POOR, RICH, OTHER = "sk-poor-77d1", "sk-rich-c20a", "sk-other-98f3"
NO_MONEY = {
    "error": {"type": "insufficient_quota", "code": "insufficient_quota", "message": "You exceeded your current quota"}
}


@pytest.fixture(scope="module")
def server():
    """A provider with two funded accounts and one without money."""

    def answer(number, _):
        return (429, JSON, NO_MONEY) if POOR in server.headers[number]["authorization"] else (200, JSON, ANSWER)

    with OddServer(answer) as server:
        yield server


SENDERS = {name: WAYS[name] for name in ("httpx", "httpx2", "requests", "urllib3", "aiohttp")}


@pytest.mark.parametrize("send", SENDERS.values(), ids=SENDERS)
def test_a_credential_without_money_stops_itself_alone(server, caplog, send):
    caplog.set_level(logging.DEBUG)
    limiter = paceline.Limiter({"openai/*": "100k requests/min"})
    with paceline.instrument(limiter, provider="openai"):
        found = [send(chat_at(server), CHAT, key=key)[0] for key in (POOR, RICH, POOR, RICH, OTHER)]
    assert found == [429, 200, 429, 200, 200]
    status = limiter.status()
    first, *others = status["pools"]
    assert first == "openai/gpt-5"  # a program with one key finds it where it always was
    assert len(others) == 2
    assert all(name.startswith("openai@") and len(name) == len("openai@123456/gpt-5") for name in others)
    assert not any(key in json.dumps(status, default=str) + caplog.text for key in (POOR, RICH, OTHER))


@pytest.mark.parametrize("send", SENDERS.values(), ids=SENDERS)
def test_a_key_in_the_query_is_a_credential(caplog, send):
    """As Gemini's clients without an SDK send it."""
    caplog.set_level(logging.DEBUG)

    def answer(number, _):
        return (429, JSON, NO_MONEY) if POOR in server.paths[number] else (200, JSON, ANSWER)

    limiter = paceline.Limiter({"gemini/*": "100k requests/min"})
    with OddServer(answer) as server, paceline.instrument(limiter, provider="gemini"):
        url = f"{server.base_url}/v1beta/openai/chat/completions?alt=json&key="
        found = [send(url + key, CHAT)[0] for key in (POOR, RICH, POOR, OTHER)]
        if send is SENDERS["aiohttp"]:
            found.append(send(url.partition("?")[0], CHAT, params={"key": POOR})[0])
    assert found[:4] == [429, 200, 429, 200]
    assert found[4:] in ([], [429])
    assert len(server.paths) == 3
    said = [record.getMessage() for record in caplog.records if record.name.startswith("paceline")]  # not the libraries
    assert not any(key in json.dumps(limiter.status(), default=str) + str(said) for key in (POOR, RICH, OTHER))


def test_a_key_in_the_query_is_something_else_at_other_providers(server):
    """As an id of the request: each would be an account with limits of its own."""
    limiter = paceline.Limiter({"openai/*": "100k requests/min"})
    with paceline.instrument(limiter, provider="openai"):
        for number in range(3):
            SENDERS["httpx"](f"{chat_at(server)}?key={number}", CHAT, key=RICH)
    assert [*limiter.status()["pools"]] == ["openai/gpt-5"]


def test_no_credential_is_in_an_event_or_an_exception(server):
    events, told = [], []
    limiter = paceline.Limiter(events=events.append)
    with paceline.instrument(limiter, provider="openai"):
        for key in (RICH, POOR, POOR):
            headers = {"authorization": f"Bearer {key}"}
            told.append(httpx.post(chat_at(server), json=CHAT, headers=headers).text)
        with pytest.raises(httpx.TransportError) as unreachable:
            SENDERS["httpx"]("http://127.0.0.1:9/v1/chat/completions", CHAT, key=RICH)
    told.append("".join(traceback.format_exception(unreachable.value)))
    [pool] = (name for name in limiter.status()["pools"] if "@" in name)
    with pytest.raises(paceline.PoolStoppedError) as stopped:
        limiter.acquire(pool, tokens=0).wait()
    told += ["".join(traceback.format_exception(stopped.value)), repr(stopped.value)]
    assert events
    assert not any(key in "".join(told) + repr(events) + repr(vars(stopped.value)) for key in (POOR, RICH))


def test_a_name_of_the_users_own_stays(server):
    limiter = paceline.Limiter({"openai/*": "100k requests/min"})
    with ExitStack() as opened:
        for key in (RICH, OTHER):
            client = opened.enter_context(httpx2.Client(headers={"authorization": f"Bearer {key}"}))
            limiter.attach(client, provider="openai@work")
            assert client.post(chat_at(server), json=CHAT).status_code == 200
    assert list(limiter.status()["pools"]) == ["openai@work/gpt-5"]


def test_a_permit_by_hand_is_of_the_pool_that_it_names(server):
    limiter = paceline.Limiter({"openai/*": "100k requests/min"})
    with httpx2.Client() as client:
        limiter.attach(client, provider="openai")
        for key in (RICH, OTHER):
            with limiter.acquire("openai/gpt-5", tokens=0):
                client.post(chat_at(server), json=CHAT, headers={"authorization": f"Bearer {key}"})
    assert (counts(limiter)["granted"], len(limiter.status()["pools"])) == (2, 1)


def sent(limiter, provider, body=None, **headers):
    """The account of a request with these headers."""
    from paceline.http.account import payer_of

    named = {name.replace("_", "-"): value for name, value in headers.items()}
    payer = payer_of(limiter.pacer, provider_named(provider), lambda name: named.get(name, ""), body or {})
    return None if payer is None else payer.account.name


@pytest.fixture
def limiter():
    return paceline.Limiter()


WORKLOAD = {"authorization": "Bearer sk-ant-oat01-a", "user_agent": "Anthropic/Python 2.11.0"}


@pytest.mark.parametrize(
    ("provider", "one", "other"),
    [
        ("anthropic", {"x_api_key": "a"}, {"x_api_key": "b"}),
        ("anthropic", {"x_api_key": "a"}, {"authorization": "Bearer a2"}),
        ("gemini", {"x_goog_api_key": "a"}, {"x_goog_api_key": "b"}),
        ("bedrock", {"authorization": "Bearer ABSKa"}, {"authorization": "Bearer ABSKb"}),
        ("openai", {"authorization": "Bearer a"}, {"authorization": "Bearer a", "openai_project": "proj_2"}),
        ("huggingface", {"authorization": "Bearer a"}, {"authorization": "Bearer a", "x_hf_bill_to": "team"}),
        ("anthropic", WORKLOAD | {"anthropic_workspace_id": "a"}, WORKLOAD | {"anthropic_workspace_id": "b"}),
    ],
)
def test_who_pays_is_the_credential_and_what_it_names(provider, one, other, limiter):
    names = [sent(limiter, provider, **headers) for headers in (one, other, one, other)]
    assert names[0] == names[2] == provider
    assert names[1] == names[3] != provider


@pytest.mark.parametrize(
    ("provider", "headers"),
    [
        ("azure", {"api_key": "{}"}),
        ("anthropic", {"authorization": "Bearer sk-ant-oat01-{}", "user_agent": "AsyncAnthropic/Python 2.11.0"}),
        ("vertex", {"authorization": "Bearer ya29.{}"}),
        ("gemini", {"authorization": "Bearer ya29.{}"}),
        ("bedrock", {"authorization": "AWS4-HMAC-SHA256 Credential=ASIA{0}/bedrock/aws4_request, Signature={0}"}),
        ("bedrock", {"authorization": "Bearer bedrock-api-key-YmVkcm9ja{}"}),
        ("oci", {"authorization": 'Signature keyId="ocid1.tenancy/ocid1.user/aa:bb",signature="{}",version="1"'}),
        ("zai", {"authorization": "Bearer eyJhbGciOiJIUzI1NiJ9.eyJhcGlfa2V5IjogImlkIn0.{}"}),
        ("vllm", {"authorization": "Bearer {}"}),
        ("my-server", {"authorization": "Bearer {}"}),
        ("openai", {"x_other": "{}"}),
    ],
)
def test_what_changes_by_itself_or_does_not_count_is_no_account(provider, headers, limiter):
    for number in range(3):
        given = {name: value.format(number) for name, value in headers.items()}
        assert sent(limiter, provider, **given) in (None, provider)
    assert len(limiter.pacer.accounts) == 0


def jwt(sub, **more):
    claims = base64.urlsafe_b64encode(json.dumps({"iss": "i", "sub": sub, **more}).encode()).decode().rstrip("=")
    return f"Bearer eyJhbGciOiJub25lIn0.{claims}.{sub * 9}"


def person(number):
    text = json.dumps({"device_id": "d", "account_uuid": f"{number}" * 8 + "-1-1-1-1111", "session_id": "s"})
    return {"metadata": {"user_id": text.replace("-1-1-1-1111", "-1111-1111-1111-111111111111")}}


LOGINS = {
    "person": ("anthropic", lambda n: {"body": person(n), "anthropic_organization_id": "one"}),
    "old": ("anthropic", lambda n: {"body": {"metadata": {"user_id": f"user_ab_account_{n * 8}-1111-1111-1111-111111111111_session_x"}}}),
    "session": ("anthropic", lambda n: {"x_claude_code_session_id": f"s{n}"}),
    "chatgpt": ("openai", lambda n: {"session_id": f"s{n}", "chatgpt_account_id": "team"}),
}  # fmt: skip


@pytest.mark.parametrize(("provider", "claims"), LOGINS.values(), ids=LOGINS)
def test_a_renewed_token_keeps_its_account_and_two_people_have_two(provider, claims, limiter):

    def name(token, number):
        credential = f"Bearer sk-ant-oat01-{token}" if provider == "anthropic" else f"Bearer eyJ{token}"
        return sent(limiter, provider, authorization=credential, **claims(str(number)))

    one, two = name("a", 1), name("b", 2)
    assert one.startswith(f"{provider}@")  # a login is never the account without a name
    assert two not in (one, provider)
    assert name("a2", 1) == one == name("a", 1) == name("a2", 1)
    assert name("b2", 2) == two


def test_the_user_in_a_json_web_token_is_known_again(limiter):
    seats = [sent(limiter, "openai", authorization=jwt(who), chatgpt_account_id="team") for who in "ab"]
    assert len({*seats}) == 2
    assert sent(limiter, "openai", authorization=jwt("a") + "new", chatgpt_account_id="team") == seats[0]


@pytest.mark.parametrize("claims", [{"api_key": {"id": 1}}, {"api_key": True}, {"sub": ["a"]}])
def test_a_claim_that_is_no_text_names_nobody(claims, limiter):
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    assert len({sent(limiter, "openai", authorization=f"Bearer eyJ.{part}.{one}") for one in "ab"}) == 2


def test_a_token_of_a_gateway_is_a_key_and_chatgpts_a_login(limiter):
    assert sent(limiter, "openai", authorization=jwt("a")) == "openai"
    assert sent(limiter, "openai", authorization=jwt("a") + "renewed") == "openai"
    login = sent(limiter, "openai", authorization=jwt("a", **{"https://api.openai.com/auth": {}}))
    assert login in limiter.limits.untabled


def test_an_api_key_is_not_joined_by_what_its_client_claims(limiter):
    names = {sent(limiter, "anthropic", x_api_key=key, x_claude_code_session_id="s", body=person(1)) for key in "abc"}
    assert len(names) == 3


def stop(limiter, name, model="claude-opus-4-5"):
    """The provider asks an account to wait for hours."""
    scheduler = limiter.pacer.pools.of_model(name, model)
    scheduler.pause(scheduler.now_ns() + 3_600 * 10**9)


def test_a_claim_gives_no_part_in_the_refusal_of_another(limiter):
    login = {"x_claude_code_session_id": "s"}
    shut = sent(limiter, "anthropic", authorization="Bearer sk-ant-oat01-a", **login)
    stop(limiter, shut)
    other = sent(limiter, "anthropic", authorization="Bearer sk-ant-oat01-b", **login)
    assert other != shut
    # And one that was joined while it was open is parted from it when a refusal of the other one shuts it.
    joined = sent(limiter, "anthropic", authorization="Bearer sk-ant-oat01-c", **login)
    assert joined == other
    key = list(limiter.pacer.accounts._by_name[other].credentials)
    limiter.pacer.accounts._by_name[other].refused = key[1]
    stop(limiter, other)
    assert sent(limiter, "anthropic", authorization="Bearer sk-ant-oat01-c", **login) == other  # its own refusal
    assert sent(limiter, "anthropic", authorization="Bearer sk-ant-oat01-b", **login) not in (shut, other)


def test_a_login_has_no_tier(recwarn):
    limiter = paceline.Limiter(provider="anthropic", tier=1)
    login = sent(limiter, "anthropic", authorization="Bearer sk-ant-oat01-a")
    assert limiter.limits.model(login, "claude-sonnet-4-5").is_unstated
    assert not limiter.limits.model("anthropic", "claude-sonnet-4-5").is_unstated
    own = paceline.Limiter({"anthropic/*": "7 requests/min"})
    login = sent(own, "anthropic", authorization="Bearer sk-ant-oat01-a")
    assert [str(quota) for quota in own.limits.model(login, "claude-sonnet-4-5").quotas] == ["7 requests/min"]
    assert not recwarn


async def test_a_flood_of_unknown_credentials_pushes_out_no_known_one(monkeypatch):
    monkeypatch.setattr(accounts, "ACCOUNTS_MAX", 20)
    limiter = paceline.Limiter({"openai/*": "60 requests/min"})
    found, provider = limiter.pacer.accounts, provider_named("openai")

    def of(key):
        payer = found.of(provider, key, is_login=False, session="", person=str)
        return payer.account, limiter.pacer.pools.of_model(payer.account.name, "gpt-5")

    of("the first one has no name")
    kept = {key: of(key) for key in ("served", "waits", "shut")}
    kept["served"][0].served = True
    kept["shut"][1].pause(kept["shut"][1].now_ns() + 10**12)
    waiting = [asyncio.ensure_future(limiter.acquire(kept["waits"][1].pool.name)) for _ in range(99)]
    await asyncio.sleep(0)
    for number in range(500):
        _, pool = of(f"unknown {number}")
        limiter.try_acquire(pool.pool.name).settle()  # it is answered with a 401
        assert len(found) <= 20
    assert all(of(key) == before for key, before in kept.items())
    assert len(limiter.pacer.pools.in_use) <= 21
    for one in waiting:
        one.cancel()
    for account in list(found._by_name.values()):
        account.served = True
    with pytest.raises(paceline.QuotaError, match="credentials were used recently"):
        [setattr(of(f"good {number}")[0], "served", True) for number in range(20)]
    monkeypatch.setattr(accounts, "IDLE_S", -1.0)
    assert of("one too many")[0] not in [account for account, _ in kept.values()]


def test_two_digests_that_begin_alike_are_two_accounts(monkeypatch):
    monkeypatch.setattr(
        Accounts, "_digest", lambda _, *parts: bytes.fromhex("7f3a91") + "".join(parts).encode()[-3:].rjust(13)
    )
    limiter = paceline.Limiter()
    names = [sent(limiter, "openai", authorization=f"Bearer {key}") for key in ("x", "aaa", "bbb", "aaa")]
    assert names[0] == "openai"
    assert names[1] == names[3] == "openai@7f3a91"
    assert names[2].startswith("openai@7f3a912")
