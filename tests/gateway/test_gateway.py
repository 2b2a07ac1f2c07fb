"""The gateway in front of emulated and odd servers, over real connections."""

import asyncio
import errno
import gzip
import json
import logging
import signal
import socket
import threading
import zlib

import aiohttp
import httpx2
import pytest
from click.testing import CliRunner
from gateway_helpers import chat, read_body, stub

from paceline.cli.app import app
from paceline.cli.serve import _greeting
from paceline.config import Config
from paceline.core.results import SettingsError
from paceline.gateway import errors, server, stamps
from paceline.gateway.client import NoConnectionError, _Server
from paceline.gateway.errors import on_error
from paceline.gateway.keys import KeyFile
from paceline.gateway.life import LifeEvent
from paceline.gateway.server import ProcessSettings
from paceline.gateway.siblings import Siblings
from paceline.limiter.limiter import Limiter
from paceline.telemetry.merged import merged
from waits import join, soon, until

CHAT = "/openai/v1/chat/completions"
SSE = {"content-type": "text/event-stream"}
ANSWER = b'{"choices": [{"message": {"content": "Hi."}}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}'


class Odd:
    """A server that records requests, and answers in parts that the test lets go."""

    def __init__(
        self, parts=(b'{"usage": {"prompt_tokens": 1, "completion_tokens": 1}}',), headers=None, status=200, held=None
    ):
        self.parts, self.status = parts, status
        self.headers = {"content-type": "application/json"} if headers is None else headers
        self.seen, self.go, self.gone = [], threading.Event(), 0
        self.held = held  # the part before which it waits for `go`
        if held is None:
            self.held = 0
            self.go.set()

    async def __call__(self, scope, receive, send):
        body = await read_body(receive)
        self.seen.append((scope["method"], scope["raw_path"], scope["query_string"], dict(scope["headers"]), body))
        headers = [(name.encode(), value.encode()) for name, value in self.headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        leave = asyncio.ensure_future(receive())
        for number, part in enumerate(self.parts):
            while number >= self.held and not self.go.is_set():
                await asyncio.sleep(0.005)
                if leave.done():
                    self.gone += 1
                    return
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        leave.cancel()


class TestPassing:
    def test_requests_and_answers_pass_unchanged(self, serve, client):
        parts = [b"data: {\xe2", b"\x82", b"\xac}\r\n\r\n: note\n\n", b"data: [DONE]\n\n"]
        odd = Odd(parts, SSE | {"x-request-id": "r1", "openai-processing-ms": "12"})
        with stub(odd) as url:
            running = serve(url)
            body = b'{"model": "gpt-5",  "stream": true, "messages": [{"role": "user", "content": "\xe2\x82\xac"}]}'
            headers = {"content-type": "application/json; x=y", "x-own": "1", "accept-encoding": "br, gzip;q=0.5"}
            answer = client.post(f"{running.url}{CHAT}?a=%2F&b=", content=body, headers=headers)
        assert answer.content == b"".join(parts)
        assert answer.headers["x-request-id"] == "r1"
        assert answer.headers["x-paceline-attempts"] == "1"
        method, path, query, seen, received = odd.seen[0]
        assert (method, path, query, received) == ("POST", b"/v1/chat/completions", b"a=%2F&b=", body)
        assert seen[b"content-type"] == b"application/json; x=y"
        assert seen[b"x-own"] == b"1"
        assert seen[b"accept-encoding"] == b"gzip;q=0.5"
        assert seen[b"host"] == url.removeprefix("http://").encode()

    @pytest.mark.parametrize("path", ["/v1/models", "/openai/v1/models", "/anthropic/v1/messages/batches"])
    def test_what_costs_nothing_passes_too(self, serve, client, path):
        with stub(odd := Odd()) as url:
            assert client.get(serve(url).url + path).status_code == 200
        assert odd.seen[0][1].startswith(b"/v1/m")

    @pytest.mark.parametrize("encoding", [None, "gzip", "deflate"])
    @pytest.mark.parametrize("stream", [False, True])
    def test_usage_is_charged(self, serve, client, stream, encoding):
        usage = b'{"id": "1", "object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 70, "completion_tokens": 10}}'
        body = b"data: " + usage + b"\n\ndata: [DONE]\n\n" if stream else usage
        sent = {None: bytes, "gzip": gzip.compress, "deflate": zlib.compress}[encoding](body)
        headers = (SSE if stream else {}) | ({"content-encoding": encoding} if encoding else {})
        with stub(Odd([sent[:20], sent[20:]], headers)) as url:
            running = serve(url, limits={"gpt-5": "100k requests/min, 10M tokens/min"})
            answer = client.post(running.url + CHAT, json=chat(stream=stream))
        assert answer.content == body
        assert {quota["unit"]: quota["spent"] for quota in running.pool()["quotas"]} == {"requests": 1, "tokens": 80}

    @pytest.mark.parametrize(
        ("parts", "headers", "writes"),
        [
            ([ANSWER], {"content-length": str(len(ANSWER))}, 1),
            ([ANSWER[:9], ANSWER[9:]], {}, 1),
            ([b"data: 1\n\n", b"data: [DONE]\n\n"], SSE, None),
        ],
        ids=["length", "chunked", "stream"],
    )
    def test_what_is_there_of_an_answer_leaves_in_one_write(self, serve, client, monkeypatch, parts, headers, writes):
        written = []
        made = server._Protocol.connection_made

        class Counted:
            def __init__(self, transport):
                self.transport = transport

            def write(self, data):
                written.append(bytes(data))
                self.transport.write(data)

            def __getattr__(self, name):
                return getattr(self.transport, name)

        monkeypatch.setattr(server._Protocol, "connection_made", lambda self, transport: made(self, Counted(transport)))
        with stub(Odd(parts, headers)) as url:
            answer = client.post(serve(url).url + CHAT, json=chat(stream=writes is None))
        assert answer.content == b"".join(parts)
        assert written[0].startswith(b"HTTP/1.1 200 OK\r\n")
        assert parts[0] in written[0]
        assert writes in (None, len(written))

    def test_answers_come_as_they_are_sent(self, serve):
        odd = Odd([b"data: 1\n\n", b"data: [DONE]\n\n"], SSE, held=1)

        async def main(url):
            async with (
                aiohttp.ClientSession() as session,
                session.post(url + CHAT, json=chat(stream=True)) as response,
            ):
                first = await response.content.readany()
                assert first == b"data: 1\n\n"
                odd.go.set()
                assert await response.content.read() == b"data: [DONE]\n\n"

        with stub(odd) as url:
            asyncio.run(main(serve(url).url))

    def test_an_unknown_server_is_named(self, serve, emulator, client):
        running = serve(emulator.base_url, provider=None)
        answer = client.post(running.url + "/opnai/v1/chat/completions", json=chat())
        assert answer.status_code == 404
        assert "did you mean 'openai'?" in answer.json()["error"]["message"]

    def test_a_lack_of_files_opens_no_breaker_and_is_named_once(self, serve, emulator, client, monkeypatch, caplog):
        running = serve(emulator.base_url, breaker={"failures": 1, "first_pause_s": 60})
        monkeypatch.setattr(errors, "_told_s", {})

        async def lacking(*_):
            raise NoConnectionError("no") from OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as patched:
            patched.setattr(_Server, "connect", lacking)
            answers = [client.post(running.url + CHAT, json=chat()) for _ in range(10)]
            running.server.servers[0].get_loop().call_soon_threadsafe(
                on_error, running.server.servers[0].get_loop(), {"exception": OSError(errno.EMFILE, "no")}
            )
        assert {(one.status_code, one.headers["x-paceline"], one.headers["retry-after"]) for one in answers} == {
            (503, "lack", "1")
        }
        assert "too many open files" in answers[0].json()["error"]["message"]
        assert client.post(running.url + CHAT, json=chat()).status_code == 200
        assert [one.levelname for one in caplog.records if "too many open files" in one.getMessage()] == ["WARNING"]
        assert "failures in a row" not in caplog.text

    def test_a_server_that_cannot_be_reached_is_a_502(self, serve, client):
        answer = client.post(serve("http://127.0.0.1:9").url + CHAT, json=chat())
        assert answer.status_code == 502
        assert "cannot be reached" in answer.json()["error"]["message"]


class TestQueue:
    def test_requests_wait_and_none_is_refused(self, serve, emulator):
        emulator.reset(limits={"gpt-5": "1200 requests/min"})
        running = serve(emulator.base_url, limits={"gpt-5": "1200 requests/min burst 20"})

        async def main():
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

                async def one():
                    async with session.post(running.url + CHAT, json=chat()) as response:
                        return response.status, float(response.headers["x-paceline-waited"])

                return await asyncio.gather(*[one() for _ in range(40)])

        done = asyncio.run(main())
        assert {status for status, _ in done} == {200}
        assert max(waited for _, waited in done) > 0.3
        assert emulator.tally()["refused_total"] == 0

    def test_a_deadline_gets_an_honest_429(self, serve, emulator, client):
        running = serve(emulator.base_url, limits={"gpt-5": "1 requests/min"})
        assert client.post(running.url + CHAT, json=chat()).status_code == 200
        answer = client.post(running.url + CHAT, json=chat(), headers={"x-paceline-timeout": "0.5"})
        assert answer.status_code == 429
        assert 50 <= int(answer.headers["retry-after"]) <= 61
        assert answer.headers["x-should-retry"] == "false"

    def test_a_full_queue_gets_an_honest_429(self, serve, emulator, client):
        running = serve(emulator.base_url, limits={"gpt-5": "1 requests/min"}, waiting_max=1)
        client.post(running.url + CHAT, json=chat())
        waits = threading.Thread(target=httpx2.post, args=(running.url + CHAT,), kwargs={"json": chat()}, daemon=True)
        waits.start()
        until(lambda: running.pool()["waiting"] == 1)
        answer = client.post(running.url + CHAT, json=chat())
        assert answer.status_code == 429
        assert 100 <= int(answer.headers["retry-after"]) <= 121
        running.gateway.drain()

    def test_a_client_that_goes_away_leaves_the_queue(self, serve, emulator):
        running = serve(emulator.base_url, limits={"gpt-5": "1 requests/min"})

        async def main():
            timeout = aiohttp.ClientTimeout(total=None)
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
                await (await session.post(running.url + CHAT, json=chat())).read()
                tasks = [asyncio.create_task(session.post(running.url + CHAT, json=chat())._coro) for _ in range(50)]
                await soon(lambda: running.pool()["waiting"] == 50)
                for task in tasks:
                    task.cancel()

        asyncio.run(main())
        until(lambda: running.pool()["waiting"] == 0)
        until(lambda: running.dispatch._bodies.held == 0)

    def test_a_client_that_goes_away_ends_the_call(self, serve):
        odd = Odd([b"data: 1\n\n", b"data: 2\n\n"], SSE, held=1)

        async def main(url):
            async with aiohttp.ClientSession() as session:
                response = await session.post(url + CHAT, json=chat(stream=True))
                assert await response.content.readany() == b"data: 1\n\n"
                response.close()

        with stub(odd) as url:
            running = serve(url)
            asyncio.run(main(running.url))
            until(lambda: odd.gone == 1)
            until(lambda: running.pool()["in_flight"] == 0)
            assert running.pool()["counts"] == {"granted": 1, "settled": 1}

    def test_a_request_can_ask_for_its_place(self, serve, emulator, client):
        running = serve(emulator.base_url, limits={"gpt-5": "1 requests/min"})
        client.post(running.url + CHAT, json=chat())
        for name in ("first", "second"):
            headers = {"x-paceline-id": name, "x-paceline-name": f"agent {name}"}
            threading.Thread(
                target=httpx2.post, args=(running.url + CHAT,), kwargs={"json": chat(), "headers": headers}, daemon=True
            ).start()
            until(lambda name=name: name in running.dispatch._waiting)
        until(lambda: running.pool()["waiting"] == 2)
        place = client.get(running.url + "/api/v1/queue/second").json()
        assert (place["state"], place["ahead"], place["binds"]) == ("waiting", 1, "1 requests/min")
        assert 100 <= place["expected_wait_s"] <= 121
        assert [one["name"] for one in running.pool()["queue"]] == ["agent first", "agent second"]
        assert client.get(running.url + "/api/v1/queue/third").status_code == 404
        running.gateway.drain()

    def test_a_stream_is_kept_alive_while_it_waits(self, serve, emulator, client, kept):
        running = serve(emulator.base_url, limits={"gpt-5": "200 requests/min burst 1"})
        client.post(running.url + CHAT, json=chat())
        answer = client.post(running.url + CHAT, json=chat(stream=True), headers=kept)
        comments = [line for line in answer.text.splitlines() if line.startswith(":")]
        assert answer.status_code == 200
        assert set(comments) == {": waiting"}
        assert answer.text.endswith("data: [DONE]\n\n")

    @pytest.mark.parametrize(
        ("path", "event"), [(CHAT, "data: {"), ("/anthropic/v1/messages", "event: error\ndata: {")]
    )
    def test_an_error_after_that_is_an_event(self, serve, emulator, client, kept, path, event):
        running = serve(emulator.base_url, limits={"*": "60 requests/min burst 1"})
        client.post(running.url + path, json=chat())
        emulator.reset(valid_key="sk-right")
        with client.stream("POST", running.url + path, json=chat(stream=True), headers=kept) as answer:
            assert answer.status_code == 200
            received = []
            with pytest.raises(httpx2.RemoteProtocolError):  # it breaks off: some SDKs read no error in a stream
                received.extend(answer.iter_text())
        assert "error" in json.loads("".join(received).split(event[:-1])[1])

    @pytest.mark.parametrize("value", ["-1", "soon", "nan", "1e99"])
    def test_an_invalid_option_is_an_error(self, serve, emulator, client, value):
        running = serve(emulator.base_url)
        answer = client.post(running.url + CHAT, json=chat(), headers={"x-paceline-timeout": value})
        assert answer.status_code == 400
        assert "x-paceline-timeout" in answer.json()["error"]["message"]


class TestStop:
    def test_what_is_in_flight_ends_and_what_waits_is_handed_back(self, serve):
        odd = Odd()
        with stub(odd) as url:
            running = serve(url, limits={"gpt-5": "1 requests/min"})
            odd.go.clear()
            answers = []

            def ask():
                answers.append(httpx2.post(running.url + CHAT, json=chat(), timeout=30))

            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads:
                thread.start()
            until(lambda: running.gateway.limiter.status()["pools"]["openai/gpt-5"]["waiting"] == 3 and odd.seen)
            running.server.should_exit = True
            until(lambda: len(answers) == 3)
            assert {answer.status_code for answer in answers} == {503}
            assert {answer.headers["retry-after"] for answer in answers} == {"1"}
            odd.go.set()
            for thread in threads:
                join(thread)
            assert answers[-1].status_code == 200
            running.stop()

    def test_health(self, serve, emulator, client):
        running = serve(emulator.base_url)
        assert client.get(running.url + "/healthz").json() == {"status": "ok"}
        assert client.get(running.url + "/readyz").status_code == 200
        running.gateway.life.change(LifeEvent.ASKED)
        assert client.get(running.url + "/healthz").status_code == 200
        assert client.get(running.url + "/readyz").status_code == 503


class TestKeys:
    def test_off_loopback_they_are_needed(self, serve, emulator):
        with pytest.raises(SettingsError, match=r"clients need keys, and .* has none"):
            serve(emulator.base_url, host="0.0.0.0")

    def test_they_replace_those_of_providers(self, serve, keys, client, monkeypatch):
        key = keys.add("alice")
        with stub(odd := Odd()) as url:
            running = serve(url)
            monkeypatch.delenv("ANTHROPIC_API_KEY")
            without = serve(url)
            litellm = [{"x-litellm-api-key": value} for value in (key, f"Bearer {key}")]
            for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}, {"api-key": key}, *litellm):
                assert client.post(running.url + CHAT, json=chat(), headers=headers).status_code == 200
            path = "/gemini/v1beta/models/gemini-2.5-flash:generateContent"
            assert client.post(f"{running.url}{path}?alt=sse&key={key}", json={"contents": []}).status_code == 200
            for headers in ({}, {"authorization": "Bearer pk-wrong"}):
                answer = client.post(running.url + CHAT, json=chat(), headers=headers)
                assert answer.status_code == 401
            assert (
                client.post(f"{without.url}/anthropic/v1/messages", json=chat(), headers={"x-api-key": key}).status_code
                == 503
            )
            monkeypatch.delenv("OPENAI_API_KEY")
            open_to_all = serve(url, keys=keys.file.with_name("none.json"))
            mine = {"authorization": "Bearer sk-mine", "x-litellm-api-key": "sk-old"}
            assert client.post(open_to_all.url + CHAT, json=chat(), headers=mine).status_code == 200
        for _, _, query, headers, _ in odd.seen:
            assert b"x-litellm-api-key" not in headers
            assert key.encode() not in query
            assert not any(key.encode() in value for value in headers.values())
        assert odd.seen[0][3][b"authorization"] == b"Bearer sk-of-openai"
        assert b"x-api-key" not in odd.seen[1][3]
        assert odd.seen[5][2:4] == (b"alt=sse", odd.seen[5][3])
        assert odd.seen[5][3][b"x-goog-api-key"] == b"sk-of-gemini"
        assert odd.seen[6][3][b"authorization"] == b"Bearer sk-mine"

    def test_the_command_says_what_a_first_key_changes_and_refuses_unknown_units(self, tmp_path):
        def add(*arguments):
            done = CliRunner().invoke(app, ["keys", "add", *arguments, "--keys", str(tmp_path / "keys.json")])
            return done.exit_code, done.stdout, done.stderr

        code, shown, said = add("zed", "--limit", "5 dollars/day")
        assert (code, shown) == (2, "")
        assert "its unit must be one of requests, tokens" in said
        code, shown, said = add("alice", "--limit", "5 usd/day")
        assert (code, len(shown.split())) == (0, 1)
        assert "every client of a gateway with this file now needs a key" in said
        assert add("bob")[::2] == (0, "")

    def test_without_a_key_of_a_provider_the_start_says_so(self, keys, tmp_path):
        config = Config.load(environ={}, given={"provider": "openai"})
        settings = ProcessSettings(config=config, keys=tmp_path / "keys.json", host="127.0.0.1")
        assert "the clients' keys are passed on" in "\n".join(_greeting("", settings, settings.check({})))
        keys.add("alice")
        assert "every request is refused; set OPENAI_API_KEY" in "\n".join(_greeting("", settings, settings.check({})))

    @pytest.mark.parametrize(
        ("provider", "variable"),
        [
            (None, "OPENAI_BASE_URL=http://gw/openai/v1"),
            ("openai", "OPENAI_BASE_URL=http://gw/v1"),
            ("anthropic", "ANTHROPIC_BASE_URL=http://gw"),
        ],
    )
    def test_the_start_names_the_variable_of_the_provider_s_sdk(self, provider, variable, tmp_path):
        config = Config.load(environ={}, given={"provider": provider} if provider else {})
        settings = ProcessSettings(config=config, keys=tmp_path / "keys.json", host="127.0.0.1")
        said = list(_greeting("http://gw", settings, settings.check({})))
        assert f"in place of the provider's address: {variable}" in said

    @pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
    def test_the_start_names_an_address_that_clients_can_ask(self, host, tmp_path):
        settings = ProcessSettings(config=Config.load(environ={}), keys=tmp_path / "keys.json", host="127.0.0.1")
        first, second, *_ = _greeting(f"https://{host}:25101", settings, settings.check({}))
        own = f"https://{socket.gethostname()}:25101"
        assert first == f"paceline gateway at https://{host}:25101  (page: {own}/)"
        assert second == f"in place of the provider's address: OPENAI_BASE_URL={own}/openai/v1"

    def test_several_workers_do_not_start_without_a_store(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        done = CliRunner().invoke(app, ["serve", "--provider", "openai", "--workers", "2", "--store", "memory:"])
        assert (done.exit_code, done.stdout) == (2, "")
        assert "2 workers must share one" in done.stderr

    @pytest.mark.parametrize(
        ("limits", "arguments", "durable"),
        [
            ((), [], False),
            (("60 requests/min",), [], False),
            (("10 usd/day",), [], True),
            (("10 usd/day",), ["--store", "memory:"], False),
        ],
    )
    def test_a_budget_has_a_store_by_default(self, keys, limits, arguments, durable, monkeypatch, tmp_path):
        keys.add("alice", limits=limits)
        started = []

        def serve(settings, listener, *_):
            started.append(settings)
            listener.close()

        monkeypatch.setattr("paceline.gateway.server.serve", serve)
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        command = ["serve", "--provider", "openai", "--port", "0", "--keys", str(keys.file), *arguments]
        assert CliRunner().invoke(app, command).exit_code == 0
        store = (
            f"sqlite:{tmp_path / 'state' / 'paceline' / 'gateway.db'}"
            if durable
            else arguments[1]
            if arguments
            else None
        )
        assert started[0].store == store

    def test_what_a_key_has_spent_survives_a_restart(self, serve, keys, client, tmp_path, monkeypatch):
        store = f"sqlite:{tmp_path / 'gateway.db'}"
        headers = {"authorization": f"Bearer {keys.add('alice', limits=('0.0005 usd/day',))}"}
        usage = {"prompt_tokens": 1_000, "completion_tokens": 1}
        body = json.dumps({"choices": [{"message": {"content": "Hi."}}], "usage": usage}).encode()
        with stub(Odd([body])) as url:
            for status, patience_s in ((200, 60.0), (429, 0.2)):
                monkeypatch.setattr("paceline.pacing.allowances.PATIENCE_S", patience_s)
                running = serve(url, store=store, limits={"*": "100k requests/min"})
                assert client.post(running.url + CHAT, json=chat(), headers=headers).status_code == status
                until(lambda running=running: running.pool("budget/alice")["quotas"][0]["remaining"] < 0)
                running.stop()

    def test_a_revoked_one_ends_within_a_second(self, serve, keys, emulator, client):
        key = keys.add("alice")
        running = serve(emulator.base_url)

        def ask():
            return client.post(running.url + CHAT, json=chat(), headers={"x-api-key": key}).status_code

        assert ask() == 200
        keys.revoke("alice")
        until(lambda: ask() == 401)

    def test_a_rotated_one_has_two_secrets_for_a_time(self, keys, monkeypatch):
        now_s = [1_000_000.0]
        monkeypatch.setattr("paceline.gateway.keys.time.time", lambda: now_s[0])
        other, first = keys.add("bob"), keys.add("alice", weight=2.0, limits=("10 usd/day",))
        second = keys.rotate("alice", 3_600)
        read = KeyFile(keys.file)
        assert read.find(first) is read.find(second) is not None
        assert (read.find(second).weight, read.find(second).limits, len(read)) == (2.0, ("10 usd/day",), 2)
        now_s[0] += 3_600
        assert [read.find(one) is not None for one in (first, second, other)] == [False, True, True]
        third = keys.rotate("alice", 0)
        assert [keys.find(one) is not None for one in (first, second, third)] == [False, False, True]
        keys.revoke("alice")
        assert [one.name for one in keys.all()] == ["bob"]
        with pytest.raises(SettingsError, match="no key named 'alice'; known: bob"):
            keys.rotate("alice", 0)

    def test_a_changed_one_keeps_its_secret_and_what_it_has_used(self, serve, keys, emulator, client, tmp_path):
        key = keys.add("alice", limits=("1 requests/day",))
        running = serve(emulator.base_url, store=f"sqlite:{tmp_path / 'quotas.db'}")

        def ask():
            headers = {"x-api-key": key, "x-paceline-timeout": "0.5"}
            return client.post(running.url + CHAT, json=chat(), headers=headers).status_code

        assert [ask(), ask()] == [200, 429]
        self.change(keys, "--limit", "2 requests/day", "--weight", "3")
        until(lambda: ask() == 200)
        assert ask() == 429
        assert KeyFile(keys.file).find(key).weight == 3

    def test_what_is_not_named_stays(self, keys):
        key = keys.add("alice", weight=2.0, priority=1, models=("a",), limits=("1 usd/day",), may_read=True)
        self.change(keys, "--priority", "0", "--limit", "none", "--may-not-read")
        now = KeyFile(keys.file).find(key)
        assert (now.weight, now.priority, now.models, now.limits, now.may_read) == (2.0, 0, ("a",), (), False)
        self.change(keys, "--model", "all", "--endpoint", "/v1/files*")
        assert KeyFile(keys.file).find(key).may_use("GET", "/v1/files/x")
        assert "do not hold at unmetered endpoints" in self.change(keys, "--limit", "1 usd/day", code=2)
        assert "name at least one option" in self.change(keys, code=2)
        assert KeyFile(keys.file).find(key).limits == ()

    def change(self, keys, *options, code=0):
        done = CliRunner().invoke(app, ["keys", "change", "alice", *options, "--keys", str(keys.file)])
        assert done.exit_code == code
        return done.stderr

    def test_a_file_that_is_gone_is_logged(self, keys, caplog):
        key = keys.add("alice")
        running = KeyFile(keys.file)
        keys.file.unlink()
        running.look(0.0)
        running.look(stamps.LOOK_S)
        assert running.find(key) is None
        assert caplog.text.count("is gone: no client has a valid key") == 1

    def test_the_command_rotates(self, keys):
        keys.add("alice")
        done = CliRunner().invoke(app, ["keys", "rotate", "alice", "--keys", str(keys.file)])
        assert KeyFile(keys.file).find(done.stdout.strip()).name == "alice"
        done = CliRunner().invoke(app, ["keys", "list", "--keys", str(keys.file)])
        assert "until 20" in done.stdout

    def test_the_page_ends_with_the_gateway(self, serve, emulator, client):
        log = logging.getLogger("paceline")
        before = list(log.handlers)
        running = serve(emulator.base_url)
        assert client.get(running.url + "/history").status_code == 200
        assert len(log.handlers) == len(before) + 1
        running.stop()
        assert log.handlers == before

    def test_models_and_the_page(self, serve, keys, emulator, client):
        key, reader = keys.add("alice", models=("gpt-5-*",)), keys.add("bob", may_read=True)
        running = serve(emulator.base_url)
        assert client.post(running.url + CHAT, json=chat(), headers={"x-api-key": key}).status_code == 403
        allowed = chat(model="gpt-5-mini")
        assert client.post(running.url + CHAT, json=allowed, headers={"x-api-key": key}).status_code == 200
        assert client.get(running.url + "/status", headers={"x-api-key": key}).status_code == 403
        assert client.get(running.url + "/status", headers={"x-api-key": reader}).status_code == 200
        assert client.get(running.url + "/status").status_code == 401


def test_several_processes_tell_their_status_as_one(serve, emulator, client, tmp_path):
    folder, store = tmp_path / "s", f"sqlite:{tmp_path / 'quotas.db'}"
    folder.mkdir()
    limits = {"gpt-5": "600 requests/min"}
    running = serve(emulator.base_url, limits=limits, store=store, folder=folder)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        (folder / "1.json").write_text(json.dumps([closed.getsockname()[1], "x"]))  # of a process that was killed
    (folder / "3.json").touch()  # of one that starts
    other = Limiter({"openai/gpt-5": "600 requests/min"}, store=store)
    (folder / "x").mkdir()
    sibling = Siblings(
        other, {"place": {"there": {"state": "waiting"}}.get, "resume": {"x": {"x": "no money left"}}.get}, folder / "x"
    )
    file = next((folder / "x").glob("*.json")).rename(folder / "2.json")
    for _ in range(3):
        other.acquire("openai/gpt-5").wait().settle()
        assert client.post(running.url + CHAT, json=chat()).status_code == 200
    status = client.get(running.url + "/status").json()["pools"]["openai/gpt-5"]
    assert status["counts"] == {"granted": 6, "settled": 6}
    assert client.get(running.url + "/api/v1/queue/there").json() == {"state": "waiting"}
    assert not (folder / "1.json").exists()
    port, _ = json.loads(file.read_text())
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"guessed there\n")
        assert stranger.recv(100) == b""
    sibling.close()
    other.close()


@pytest.mark.parametrize("ages", [(None, 5.0, 0.5), (9.0, 0.5, None)], ids=["unused here", "used here once"])
def test_what_is_left_is_what_the_store_has_said_last(ages):
    def status(age_s):
        pool = Limiter({"jobs": "5 requests/min"}).status()["pools"]["jobs"]
        pool["quotas"][0]["remaining"] = age_s
        told = {"state": "new"} if age_s is None else {"state": "joined", "replied_ago_s": age_s}
        return {"pools": {"jobs": pool | {"store": told}}}

    assert merged([*map(status, ages)])["pools"]["jobs"]["quotas"][0]["remaining"] == 0.5


def test_the_status_of_two_processes_as_one():
    def status(waits, granted, mean, binds):
        limiter = Limiter({"jobs": "5 requests/min"})
        pool = limiter.status()["pools"]["jobs"]
        pool |= {
            "waiting": waits,
            "lanes": {"a": waits},
            "lanes_waited_s": {"a": mean},
            "binds": binds,
            "counts": {"granted": granted},
        }
        pool |= {"wait_s": {"mean": mean, "longest": 2 * mean}}
        pool |= {"waits": {"a": {"counts": [granted, 1], "sum_s": mean}}}
        row = {"provider": "openai", "host": "h", "kind": "k", "count": waits, "remedy": "r"}
        plan = {"account": "anthropic", "window": "5h", "used": mean / 10, "stated_ago_s": mean}
        return {"pools": {"jobs": pool}, "plans": [plan], "unpaced": [row]}

    both = merged([status(2, 10, 1.0, None), status(3, 30, 5.0, "5 requests/min")])
    pool = both["pools"]["jobs"]
    assert (pool["waiting"], pool["lanes"], pool["binds"]) == (5, {"a": 5}, "5 requests/min")
    assert pool["lanes_waited_s"] == {"a": 5.0}
    assert (pool["counts"], pool["wait_s"]) == ({"granted": 40}, {"mean": 4.0, "longest": 10.0})
    assert pool["waits"] == {"a": {"counts": [40, 2], "sum_s": 6.0}}
    assert [row["count"] for row in both["unpaced"]] == [5]
    assert [row["used"] for row in both["plans"]] == [0.1]
    assert merged([status(2, 10, 1.0, None)])["pools"]["jobs"]["waiting"] == 2


def test_of_two_processes_the_one_without_its_store_tells_of_it():
    def status(**store):
        return {"pools": {"jobs": Limiter({"jobs": "5 requests/min"}).status()["pools"]["jobs"] | {"store": store}}}

    new, joined, lost = status(state="new"), status(state="joined"), status(state="lost", reason="no answer")
    assert merged([new, joined])["pools"]["jobs"]["store"] == {"state": "joined"}
    assert merged([joined, lost, new])["pools"]["jobs"]["store"]["state"] == "lost"


def test_a_joint_limit_holds_all_models_of_the_gateway(serve, emulator, client):
    given = {"limits": {"*": "6000 requests/min"}, "joint_limits": {"openai": "3 requests/min"}}
    gateway = serve(emulator.base_url, **given)
    headers = {"x-paceline-timeout": "5"}
    answers = [
        client.post(gateway.url + CHAT, json=chat(model=model), headers=headers)
        for model in ("gpt-5", "gpt-5-mini", "o3", "gpt-5")
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert "3 requests/min of joint/openai/* would allow it in about" in answers[-1].json()["error"]["message"]
    assert int(answers[-1].headers["retry-after"]) > 5
    assert client.get(gateway.url + "/status").json()["pools"]["joint/openai/*"]["quotas"][0]["spent"] == 3
    assert emulator.tally()["admitted"] == 3


def test_each_worker_has_an_id_of_its_own_for_opentelemetry():
    environ, seen = {server.RESOURCE: "team=a,service.instance.id=given,zone=b"}, []
    for _ in range(2):
        server.name_instance(environ)
        *others, own = environ[server.RESOURCE].split(",")
        assert others == ["team=a", "zone=b"]
        seen.append(own)
    assert len({*seen, "service.instance.id=given"}) == 3
    alone = {}
    server.name_instance(alone)
    assert alone[server.RESOURCE].startswith(server.INSTANCE)


def test_a_path_of_ollama_at_the_root_is_told_where_to_begin(serve, emulator, client):
    running = serve(emulator.base_url, provider=None)
    for method, path in (("POST", "/api/chat"), ("GET", "/api/tags")):
        said = client.request(method, running.url + path)
        assert (said.status_code, "begin the path with one of openai" in said.text) == (404, True)
