"""The gateway in front of emulated and odd servers, over real connections."""

import asyncio
import errno
import gc
import gzip
import json
import logging
import signal
import socket
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from attack_helpers import GOOD
from click.testing import CliRunner
from gateway_helpers import CHAT, chat, read_body, stub

from paceline.cli.app import app
from paceline.cli.serve import _greeting
from paceline.config import Config
from paceline.core.results import SettingsError
from paceline.gateway import errors, protocol, server
from paceline.gateway.access import AccessEntry
from paceline.gateway.connection import NoConnectionError, Server
from paceline.gateway.errors import on_error
from paceline.gateway.keys import KeyFile
from paceline.gateway.server import ProcessSettings
from paceline.gateway.siblings import Siblings
from paceline.http.describe import Metered
from paceline.limiter.limiter import Limiter
from paceline.telemetry.merged import merged
from waits import started, until

SSE = {"content-type": "text/event-stream"}
ANSWER = b'{"choices": [{"message": {"content": "Hi."}}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}'


class Odd:
    """A server that records requests, and answers in parts that the test lets go."""

    def __init__(self, parts=(GOOD,), headers=None, status=200, held=None):
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
        running = serve(odd := Odd(parts, SSE | {"x-request-id": "r1", "openai-processing-ms": "12"}))
        body = b'{"model": "gpt-5",  "stream": true, "messages": [{"role": "user", "content": "\xe2\x82\xac"}]}'
        headers = {"content-type": "application/json; x=y", "x-own": "1", "accept-encoding": "br, gzip;q=0.5"}
        answer = client.post(f"{running.url}{CHAT}?a=%2F&b=", content=body, headers=headers)
        assert answer.content == b"".join(parts)
        assert (answer.headers["x-request-id"], answer.headers["x-paceline-attempts"]) == ("r1", "1")
        method, path, query, seen, received = odd.seen[0]
        assert (method, path, query, received) == ("POST", b"/v1/chat/completions", b"a=%2F&b=", body)
        sent = {b"content-type": b"application/json; x=y", b"x-own": b"1", b"accept-encoding": b"gzip;q=0.5"}
        assert sent.items() <= seen.items()
        assert seen[b"host"].startswith(b"127.0.0.1:")
        assert seen[b"host"] != running.url.removeprefix("http://").encode()

    @pytest.mark.parametrize(("stream", "encoding"), [(False, None), (True, "gzip"), (False, "deflate")])
    def test_usage_is_charged(self, serve, client, stream, encoding):
        usage = b'{"id": "1", "object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 70, "completion_tokens": 10}}'
        body = b"data: " + usage + b"\n\ndata: [DONE]\n\n" if stream else usage
        sent = {None: bytes, "gzip": gzip.compress, "deflate": zlib.compress}[encoding](body)
        headers = (SSE if stream else {}) | ({"content-encoding": encoding} if encoding else {})
        running = serve(Odd([sent[:20], sent[20:]], headers), limits={"gpt-5": "100k requests/min, 10M tokens/min"})
        assert client.post(running.url + CHAT, json=chat(stream=stream)).content == body
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
        made = protocol.HttpProtocol.connection_made

        class Counted:
            def __init__(self, transport):
                self.transport = transport

            def write(self, data):
                written.append(bytes(data))
                self.transport.write(data)

            def __getattr__(self, name):
                return getattr(self.transport, name)

        monkeypatch.setattr(
            protocol.HttpProtocol, "connection_made", lambda self, transport: made(self, Counted(transport))
        )
        answer = client.post(serve(Odd(parts, headers)).url + CHAT, json=chat(stream=writes is None))
        assert answer.content == b"".join(parts)
        assert written[0].startswith(b"HTTP/1.1 200 OK\r\n")
        assert parts[0] in written[0]
        assert writes in (None, len(written))

    @pytest.mark.parametrize(
        ("method", "path", "said"),
        [
            ("POST", "/opnai/v1/chat/completions", "did you mean 'openai'?"),
            ("POST", "/api/chat", "begin the path with one of openai"),  # Ollama's
            ("GET", "/api/tags", "begin the path with one of openai"),
        ],
    )
    def test_an_unknown_server_is_named(self, serve, emulator, client, method, path, said):
        answer = client.request(method, serve(emulator.base_url, provider=None).url + path)
        assert (answer.status_code, said in answer.text) == (404, True)

    def test_a_lack_of_files_opens_no_breaker_and_is_named_once(self, serve, emulator, client, monkeypatch, caplog):
        running = serve(emulator.base_url, breaker={"failures": 1, "first_pause_s": 60})
        monkeypatch.setattr(errors, "_told", {})

        async def lacking(*_):
            raise NoConnectionError("no") from OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as patched:
            patched.setattr(Server, "connect", lacking)
            answers = [client.post(running.url + CHAT, json=chat()) for _ in range(10)]
            lack = {"exception": OSError(errno.EMFILE, "no")}
            running.loop.call_soon_threadsafe(on_error, running.loop, lack)
        told = {(one.status_code, one.headers["x-paceline"], one.headers["retry-after"]) for one in answers}
        assert told == {(503, "lack", "1")}
        assert "too many open files" in answers[0].json()["error"]["message"]
        assert client.post(running.url + CHAT, json=chat()).status_code == 200
        assert [one.levelname for one in caplog.records if "too many open files" in one.getMessage()] == ["WARNING"]
        assert "failures in a row" not in caplog.text

    @pytest.mark.parametrize("log", [None, "access.log"])
    @pytest.mark.parametrize("way", ["kept", "closed", "named", "passed", "lost", "broken"])
    def test_a_request_goes_without_a_garbage_collection(self, serve, client, tmp_path, log, way):
        """With its body: a whole collection is as good as never."""
        named, lost = way in ("named", "passed"), way in ("passed", "lost")
        odd = Odd([b"data: {}\n\n"], SSE | {"content-length": "99"}) if way == "broken" else Odd()
        given = {"models": {"smart": ["openai/gpt-5", "openai/gpt-4o"]}} if named else {}
        given |= {"access_log": log and tmp_path / log, "retry": {"max_attempts": 2, "faults": True}}
        running = serve("http://127.0.0.1:9" if lost else odd, **given)
        body = chat(model="smart" if named else "gpt-5", stream=way == "broken")
        gc.disable()
        try:
            with suppress(httpx2.RemoteProtocolError):  # it breaks off
                headers = {"connection": "close"} if way == "closed" else {}
                path = "/v1/chat/completions" if named else CHAT
                assert client.post(running.url + path, json=body, headers=headers).status_code == (502 if lost else 200)
            gone = {Metered, AccessEntry} | ({protocol.HttpProtocol} if way == "closed" else set())
            until(lambda: not any(type(one) in gone for one in gc.get_objects()))
        finally:
            gc.enable()


class TestQueue:
    def test_requests_wait_and_none_is_refused(self, serve, emulator, client):
        emulator.reset(limits={"gpt-5": "300 requests/min"})
        running = serve(emulator.base_url, limits={"gpt-5": "300 requests/min burst 1"})

        def has_waited():
            answer = client.post(running.url + CHAT, json=chat())
            assert answer.status_code == 200
            return float(answer.headers["x-paceline-waited"]) > 0

        until(has_waited)  # the first one that follows within 0.2 s
        assert emulator.tally()["refused_total"] == 0

    def test_a_deadline_and_a_full_queue_get_an_honest_429(self, serve, emulator, client):
        running = serve(emulator.base_url, limits={"gpt-5": "1 requests/min"}, waiting_max=1)

        def refused(**headers):
            answer = client.post(running.url + CHAT, json=chat(), headers=headers)
            assert (answer.status_code, answer.headers["x-should-retry"]) == (429, "false")
            return int(answer.headers["retry-after"])

        assert client.post(running.url + CHAT, json=chat()).status_code == 200
        assert 50 <= refused(**{"x-paceline-timeout": "0.5"}) <= 61
        started(httpx2.post, running.url + CHAT, json=chat())
        until(lambda: running.pool()["waiting"] == 1)
        assert 100 <= refused() <= 121
        running.gateway.drain()

    def test_a_request_can_ask_for_its_place(self, serve, emulator, client):
        running = serve(emulator.base_url, limits={"gpt-5": "1 requests/min"})
        client.post(running.url + CHAT, json=chat())
        for name in ("first", "second"):
            headers = {"x-paceline-id": name, "x-paceline-name": f"agent {name}", "x-paceline-lane": "mine"}
            started(httpx2.post, running.url + CHAT, json=chat(), headers=headers)
            until(lambda name=name: running.dispatch.held.place(name))
        until(lambda: running.pool()["waiting"] == 2)
        assert running.pool()["lanes"] == {"mine": 2}
        place = client.get(running.url + "/api/v1/queue/second").json()
        assert (place["state"], place["ahead"], place["binds"]) == ("waiting", 1, "1 requests/min")
        assert 100 <= place["expected_wait_s"] <= 121
        assert [one["name"] for one in running.pool()["queue"]] == ["agent first", "agent second"]
        assert client.get(running.url + "/api/v1/queue/third").status_code == 404
        running.gateway.drain()

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

    def test_an_invalid_option_is_an_error(self, serve, emulator, client):
        running = serve(emulator.base_url)
        rows = [("timeout", value, "x-paceline-timeout") for value in ("-1", "soon", "nan", "1e99")]
        rows += [(name, "x" * 5_000, "must have 1 to") for name in ("lane", "name", "sticky")]
        for name, value, said in rows:
            answer = client.post(running.url + CHAT, json=chat(), headers={f"x-paceline-{name}": value})
            assert (answer.status_code, said in answer.json()["error"]["message"]) == (400, True), name


class TestStop:
    def test_what_is_in_flight_ends_and_what_waits_is_handed_back(self, serve):
        running = serve(odd := Odd(), limits={"gpt-5": "1 requests/min"})
        odd.go.clear()
        with ThreadPoolExecutor(4) as threads:
            asked = [threads.submit(httpx2.post, running.url + CHAT, json=chat(), timeout=30) for _ in range(4)]
            until(lambda: running.pool()["waiting"] == 3 and odd.seen)
            running.server.should_exit = True
            until(lambda: sum(one.done() for one in asked) == 3)
            odd.go.set()
            answers = [one.result() for one in asked]
        told = sorted((answer.status_code, answer.headers.get("retry-after")) for answer in answers)
        assert told == [(200, None), *[(503, "1")] * 3]
        running.stop()


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

            def ask(running, headers, path=CHAT):
                return client.post(running.url + path, json=chat() | {"contents": []}, headers=headers).status_code

            litellm = [{"x-litellm-api-key": value} for value in (key, f"Bearer {key}")]
            for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}, {"api-key": key}, *litellm):
                assert ask(running, headers) == 200
            assert ask(running, {}, f"/gemini/v1beta/models/gemini-2.5-flash:generateContent?alt=sse&key={key}") == 200
            assert [ask(running, headers) for headers in ({}, {"authorization": "Bearer pk-wrong"})] == [401, 401]
            assert ask(without, {"x-api-key": key}, "/anthropic/v1/messages") == 503
            monkeypatch.delenv("OPENAI_API_KEY")
            open_to_all = serve(url, keys=keys.file.with_name("none.json"))
            assert ask(open_to_all, {"authorization": "Bearer sk-mine", "x-litellm-api-key": "sk-old"}) == 200
        for _, _, query, headers, _ in odd.seen:
            assert b"x-litellm-api-key" not in headers
            assert key not in f"{query} {headers}"
        seen = [headers for _, _, _, headers, _ in odd.seen]
        assert seen[0][b"authorization"] == b"Bearer sk-of-openai"
        assert b"x-api-key" not in seen[1]
        assert (odd.seen[5][2], seen[5][b"x-goog-api-key"]) == (b"alt=sse", b"sk-of-gemini")
        assert seen[6][b"authorization"] == b"Bearer sk-mine"

    def test_the_command_says_what_a_first_key_changes_and_refuses_unknown_units(self, tmp_path):
        def add(*arguments):
            done = CliRunner().invoke(app, ["keys", "add", *arguments, "--keys", str(tmp_path / "keys.json")])
            return done.exit_code, done.stdout, done.stderr

        code, shown, said = add("zed", "--limit", "5 dollars/day")
        assert (code, shown) == (2, "")
        assert "its unit must be one of requests, tokens" in said
        code, shown, said = add("alice", "--limit", "5 usd/day")
        assert (code, len(shown.split())) == (0, 1)
        assert f"every client of a gateway with {tmp_path / 'keys.json'} now needs a key" in said
        assert add("bob")[::2] == (0, "")

    def greeting(self, url, tmp_path, **given):
        config = Config.load(environ={}, given=given)
        settings = ProcessSettings(config=config, keys=tmp_path / "keys.json", host="127.0.0.1")
        return list(_greeting(url, settings, settings.check({})))

    def test_without_a_key_of_a_provider_the_start_says_so(self, keys, tmp_path):
        assert "the clients' keys are passed on" in "\n".join(self.greeting("", tmp_path, provider="openai"))
        keys.add("alice")
        said = "\n".join(self.greeting("", tmp_path, provider="openai"))
        assert "every request is refused; set OPENAI_API_KEY" in said

    @pytest.mark.parametrize(
        ("provider", "variable"),
        [
            (None, "OPENAI_BASE_URL=http://gw/openai/v1"),
            ("openai", "OPENAI_BASE_URL=http://gw/v1"),
            ("anthropic", "ANTHROPIC_BASE_URL=http://gw"),
        ],
    )
    def test_the_start_names_the_variable_of_the_provider_s_sdk(self, provider, variable, tmp_path):
        said = self.greeting("http://gw", tmp_path, **({"provider": provider} if provider else {}))
        assert f"instead of the provider's address: {variable}" in said

    @pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
    def test_the_start_names_an_address_that_clients_can_ask(self, host, tmp_path):
        first, second, *_ = self.greeting(f"https://{host}:25101", tmp_path)
        own = f"https://{socket.gethostname()}:25101"
        assert first == f"paceline gateway at https://{host}:25101  (page: {own}/)"
        assert second == f"instead of the provider's address: OPENAI_BASE_URL={own}/openai/v1"

    def test_several_workers_do_not_start_without_a_store(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        done = CliRunner().invoke(app, ["serve", "--provider", "openai", "--workers", "2", "--store", "memory:"])
        assert (done.exit_code, done.stdout) == (2, "")
        assert "2 workers must share one" in done.stderr

    @pytest.mark.parametrize(
        ("limits", "arguments", "store"),
        [
            ((), [], None),
            (("60 requests/min",), [], None),
            (("10 usd/day",), [], f"sqlite:{Path('{}', 'paceline', 'gateway.db')}"),
            (("10 usd/day",), ["--store", "memory:"], "memory:"),
        ],
    )
    def test_a_budget_has_a_store_by_default(self, keys, limits, arguments, store, monkeypatch, tmp_path):
        keys.add("alice", limits=limits)
        started = []

        def serve(settings, listener, *_):
            started.append(settings)
            listener.close()

        monkeypatch.setattr("paceline.gateway.server.serve", serve)
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        command = ["serve", "--provider", "openai", "--port", "0", "--keys", str(keys.file), *arguments]
        assert CliRunner().invoke(app, command).exit_code == 0
        assert started[0].store == (store and store.format(tmp_path))

    def test_a_rotated_one_has_two_secrets_for_a_time(self, keys, monkeypatch, caplog, at_once):
        now_s = [1_000_000.0]
        monkeypatch.setattr("paceline.gateway.keys.time.time", lambda: now_s[0])
        other, first = keys.add("bob"), keys.add("alice", weight=2.0, limits=("10 usd/day",))
        second = keys.rotate("alice", 3_600)
        assert "until 1970" in CliRunner().invoke(app, ["keys", "list", "--keys", str(keys.file)]).stdout
        read = KeyFile(keys.file)
        assert read.find(first) is read.find(second) is not None
        assert (read.find(second).weight, read.find(second).limits, len(read)) == (2.0, ("10 usd/day",), 2)
        now_s[0] += 3_600
        assert [read.find(one) is not None for one in (first, second, other)] == [False, True, True]
        done = CliRunner().invoke(app, ["keys", "rotate", "alice", "--overlap-hours", "0", "--keys", str(keys.file)])
        third = done.stdout.strip()
        assert [KeyFile(keys.file).find(one) is not None for one in (first, second, third)] == [False, False, True]
        keys.revoke("alice")
        assert [one.name for one in keys.all()] == ["bob"]
        with pytest.raises(SettingsError, match="no key named 'alice'; known: bob"):
            keys.rotate("alice", 0)
        keys.file.unlink()
        for _ in range(2):
            read.look()
        assert read.find(other) is None
        assert caplog.text.count("is gone: no client has a valid key") == 1

    @pytest.mark.parametrize("damaged", ["{", "[]", '{"keys": [3]}', '{"keys": [{"users": 3}]}'])
    def test_those_before_stay_valid_while_the_file_is_damaged(self, keys, caplog, at_once, damaged):
        first = keys.add("alice")
        read, whole = KeyFile(keys.file), keys.file.read_text("utf-8")
        keys.file.write_text(damaged, "utf-8")
        for _ in range(2):
            read.look()
        assert read.find(first).name == "alice"
        assert caplog.text.count("this is no file of keys") == 1
        keys.file.write_text(whole.replace("alice", "carol"), "utf-8")
        read.look()
        assert read.find(first).name == "carol"

    def test_a_changed_one_keeps_its_secret_and_what_it_has_used(
        self, serve, keys, emulator, client, tmp_path, at_once
    ):
        key = keys.add("alice", limits=("1 requests/day",))
        running = serve(emulator.base_url, store=f"sqlite:{tmp_path / 'quotas.db'}")

        def ask():
            headers = {"x-api-key": key, "x-paceline-timeout": "0.5"}
            return client.post(running.url + CHAT, json=chat(), headers=headers).status_code

        assert [ask(), ask()] == [200, 429]
        self.change(keys, "--limit", "2 requests/day", "--weight", "3")
        assert [ask(), ask()] == [200, 429]
        assert KeyFile(keys.file).find(key).weight == 3
        keys.revoke("alice")
        assert ask() == 401

    @pytest.mark.parametrize("limits", ["2 requests/day", "2 requests/hour", "none"])
    @pytest.mark.parametrize("store", [None, "sqlite"])
    def test_changed_limits_let_requests_go_that_wait(
        self, serve, keys, emulator, client, at_once, tmp_path, limits, store
    ):
        headers = {"x-api-key": keys.add("alice", limits=("1 requests/day",))}
        running = serve(emulator.base_url, store=store and f"sqlite:{tmp_path / 'quotas.db'}")
        assert client.post(running.url + CHAT, json=chat(), headers=headers).status_code == 200
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(client.post, running.url + CHAT, json=chat(), headers=headers)
            until(lambda: running.pool("lane/alice")["waiting"] == 1)
            began_s = time.monotonic()
            self.change(keys, "--limit", limits)
            least_s = time.monotonic() - began_s
            answer = waits.result()
        assert answer.status_code == 200
        assert float(answer.headers["x-paceline-waited"]) >= least_s - 0.001

    def test_what_is_not_named_stays(self, keys):
        key = keys.add("alice", weight=2.0, priority=1, models=("a",), limits=("1 usd/day",), may_read=True)
        self.change(keys, "--priority", "0", "--limit", "none", "--may-not-read")
        now = KeyFile(keys.file).find(key)
        assert (now.weight, now.priority, now.models, now.limits, now.may_read) == (2.0, 0, ("a",), (), False)
        self.change(keys, "--model", "all", "--endpoint", "/v1/files*")
        assert KeyFile(keys.file).find(key).may_use("GET", "/v1/files/x")
        assert "don't apply at unmetered endpoints" in self.change(keys, "--limit", "1 usd/day", code=2)
        assert "name at least one option" in self.change(keys, code=2)
        assert KeyFile(keys.file).find(key).limits == ()

    def change(self, keys, *options, code=0):
        done = CliRunner().invoke(app, ["keys", "change", "alice", *options, "--keys", str(keys.file)])
        assert done.exit_code == code
        return done.stderr

    def test_the_page_ends_with_the_gateway(self, serve, emulator, client):
        log = logging.getLogger("paceline")
        before = list(log.handlers)
        running = serve(emulator.base_url)
        assert client.get(running.url + "/history").status_code == 200
        assert len(log.handlers) == len(before) + 1
        running.stop()
        assert log.handlers == before


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
    answers = {"place": {"there": {"state": "waiting"}}.get, "resume": {"x": {"x": "no money left"}}.get}
    sibling = Siblings(other, answers, folder / "x")
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


def test_a_process_that_cannot_answer_once_answers_again(tmp_path):
    limiter, troubles = Limiter({"jobs": "5 requests/min"}), [RuntimeError("a fault")]

    def place(words):
        if troubles:
            raise troubles.pop()
        return {"state": words}

    sibling = Siblings(limiter, {"place": place}, tmp_path)
    port, secret = json.loads(next(tmp_path.glob("*.json")).read_text())
    told = []
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", port), 10) as asked:
            asked.sendall(f"{secret} place waiting\n".encode())
            told.append(asked.recv(100))
    assert told == [b"", b'{"state": "waiting"}']
    sibling.close()
    limiter.close()


def status_of(**pool):
    return {"pools": {"jobs": Limiter({"jobs": "5 requests/min"}).status()["pools"]["jobs"] | pool}}


@pytest.mark.parametrize("ages", [(None, 5.0, 0.5), (9.0, 0.5, None)], ids=["unused here", "used here once"])
def test_what_is_left_is_what_the_store_has_said_last(ages):
    def status(age_s):
        told = {"state": "new"} if age_s is None else {"state": "joined", "replied_ago_s": age_s}
        one = status_of(store=told)
        one["pools"]["jobs"]["quotas"][0]["remaining"] = age_s
        return one

    assert merged([*map(status, ages)])["pools"]["jobs"]["quotas"][0]["remaining"] == 0.5


def test_the_status_of_two_processes_as_one():
    def status(waits, granted, mean, binds):
        row = {"provider": "openai", "host": "h", "kind": "k", "count": waits, "remedy": "r"}
        plan = {"account": "anthropic", "window": "5h", "used": mean / 10, "stated_ago_s": mean}
        waited = {"lanes_waited_s": {"a": mean}, "wait_s": {"mean": mean, "longest": 2 * mean}}
        waited |= {"waits": {"a": {"counts": [granted, 1], "sum_s": mean}}}
        one = status_of(waiting=waits, lanes={"a": waits}, binds=binds, counts={"granted": granted}, **waited)
        return one | {"plans": [plan], "unpaced": [row]}

    both = merged([status(2, 10, 1.0, None), status(3, 30, 5.0, "5 requests/min")])
    pool = both["pools"]["jobs"]
    assert (pool["waiting"], pool["lanes"], pool["binds"]) == (5, {"a": 5}, "5 requests/min")
    assert pool["lanes_waited_s"] == {"a": 5.0}
    assert (pool["counts"], pool["wait_s"]) == ({"granted": 40}, {"mean": 4.0, "longest": 10.0})
    assert pool["waits"] == {"a": {"counts": [40, 2], "sum_s": 6.0}}
    assert ([row["count"] for row in both["unpaced"]], [row["used"] for row in both["plans"]]) == ([5], [0.1])
    assert merged([status(2, 10, 1.0, None)])["pools"]["jobs"]["waiting"] == 2


def test_of_two_processes_the_one_without_its_store_tells_of_it():
    states = {"state": "new"}, {"state": "joined"}, {"state": "lost", "reason": "no answer"}
    new, joined, lost = (status_of(store=state) for state in states)
    assert merged([new, joined])["pools"]["jobs"]["store"] == {"state": "joined"}
    assert merged([joined, lost, new])["pools"]["jobs"]["store"]["state"] == "lost"


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
