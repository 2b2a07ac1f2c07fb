"""The start and the end of a gateway: the socket that it inherits and hands on, and when it is ready."""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import threading
from queue import SimpleQueue

import pytest
from attack_helpers import answers, connect, post, read, refused, talk
from gateway_helpers import CHAT, chat

from lost_signals import losing
from memory_store import MemoryStore
from paceline.core.quota import Quota
from paceline.core.results import SettingsError, StoreError
from paceline.gateway import app, handover
from paceline.gateway.handover import BEFORE, Succession, inherit, listen, tell_ready
from paceline.gateway.life import NEXT, Life, LifeEvent, LifeState
from paceline.gateway.signals import heed, note_early
from paceline.limiter.limiter import Limiter
from paceline.shared.ledger import SharedLedger
from waits import until

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows passes no socket and has no such signals")


class TestLife:
    def test_it_never_goes_back(self):
        order = list(LifeState)
        assert all(order.index(after) > order.index(state) for (state, _), after in NEXT.items() if after is not state)
        assert {NEXT[state, LifeEvent.HURRIED] for state in LifeState} == {LifeState.ENDING}

    def test_what_each_state_allows(self):
        assert [state for state in LifeState if state.ready] == [LifeState.SERVING]
        assert [state for state in LifeState if state.closed] == [LifeState.FINISHING, LifeState.ENDING]
        assert [state for state in LifeState if not state.patient] == [LifeState.ENDING]
        assert all(one in LifeState for one in NEXT.values())

    def test_a_leaving_gateway_answers_and_ends_its_connections(self, serve, emulator, client):
        running = serve(emulator.base_url)
        assert client.get(running.url + "/readyz").status_code == 200
        assert "connection" not in client.post(running.url + CHAT, json=chat()).headers
        running.gateway.life.change(LifeEvent.ASKED)
        leaving = client.get(running.url + "/readyz")
        assert (leaving.status_code, leaving.json()) == (503, {"status": "leaving"})
        assert client.get(running.url + "/healthz").json() == {"status": "ok"}
        last = client.post(running.url + CHAT, json=chat())
        assert (last.status_code, last.headers["connection"]) == (200, "close")


@posix
class TestInherit:
    @pytest.fixture
    def pass_on(self, monkeypatch):
        """An environment in which systemd passes a socket."""

        def passed(one, count=1, pid=None):
            number = os.dup(one.fileno())
            monkeypatch.setattr(handover, "FIRST_FD", number)
            return {"LISTEN_FDS": str(count), "LISTEN_PID": str(pid or os.getpid()), "LISTEN_FDNAMES": "x", "A": "b"}

        return passed

    def test_of_systemd(self, pass_on):
        with listen("127.0.0.1", 0) as mine:
            environ = pass_on(mine)
            found = inherit(environ)
            with found.listener as listener:
                assert listener.getsockname() == mine.getsockname()
                assert not listener.get_inheritable()
            assert (found.tell, found.supervised, found.first) == (None, False, True)
            assert environ == {"A": "b"}, "the children of this process have other files"

    def test_of_another_process_and_none(self, pass_on):
        with listen("127.0.0.1", 0) as mine:
            environ = pass_on(mine, pid=os.getppid())
            os.close(handover.FIRST_FD)
            assert inherit(environ) is None
        assert inherit({}) is None

    def test_a_wrong_one_is_refused(self, pass_on):
        with listen("127.0.0.1", 0) as mine:
            environ = pass_on(mine, count=2)
            os.close(handover.FIRST_FD)
            with pytest.raises(SettingsError, match="takes one socket"):
                inherit(environ)
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            with socket.socket(socket.AF_INET, kind) as mine, pytest.raises(SettingsError, match="ListenStream"):
                inherit(pass_on(mine))
        ours, theirs = os.pipe()
        os.close(theirs)
        with pytest.raises(SettingsError, match="is no socket"):
            inherit({BEFORE: f"{ours} {os.dup(ours)} 0 0"})

    def test_a_process_ends_with_the_one_above_it(self, monkeypatch):
        raised = SimpleQueue()
        monkeypatch.setattr(handover.signal, "raise_signal", raised.put)
        above, ours = socket.socketpair()
        with listen("127.0.0.1", 0) as mine, above:
            found = inherit({BEFORE: f"{os.dup(mine.fileno())} {ours.detach()} 1 1"})
            with found.listener:
                tell_ready(found)
                assert above.recv(100) == b"1"
        assert raised.get(timeout=30) == signal.SIGTERM

    def test_the_service_manager_is_told(self, tmp_path, monkeypatch):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(str(tmp_path / "notify"))
            monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
            tell_ready(None)
            assert manager.recv(100) == b"READY=1"


@posix
class TestSuccession:
    @pytest.fixture
    def succeed(self, monkeypatch, caplog):
        """The log lines of a succession to a process with this code, and the signals to this one."""

        def begun(code):
            signals = []
            monkeypatch.setattr(sys, "orig_argv", ["python", "-c", code])
            kill, me = os.kill, os.getpid()
            monkeypatch.setattr(
                os, "kill", lambda pid, number: signals.append(number) if pid == me else kill(pid, number)
            )
            with caplog.at_level(logging.WARNING), listen("127.0.0.1", 0) as listener:
                succession = Succession(listener)
                succession.begin()
                until(lambda: "succession" not in [thread.name for thread in threading.enumerate()])
                if signals:
                    process = succession._serving.process
                    process.wait(60)
                    succession.begin()
                    assert f"process {process.pid} serves already: send the signal to it" in caplog.text
                assert not listener.get_inheritable()
            return signals, caplog.text

        return begun

    def test_a_process_that_serves(self, succeed):
        signals, text = succeed(f"import os; os.write(int(os.environ['{BEFORE}'].split()[1]), b'1')")
        assert signals == [signal.SIGTERM]
        assert "serves in the place of this one" in text

    def test_one_that_ends_before(self, succeed):
        signals, text = succeed("raise SystemExit(2)")
        assert signals == []
        assert "this process continues" in text

    @pytest.mark.long("starts several processes")
    @pytest.mark.parametrize("workers", [1, 2])
    def test_no_request_fails(self, process, own_upstream, tmp_path, workers):
        def ended():
            assert answers(talk(one.url, post())) == [200]
            return one.process.poll() is not None

        store = f"sqlite:{tmp_path / 'quotas.db'}"
        one = process("--workers", workers, "--store", store, upstream=own_upstream.url)
        until(lambda: answers(talk(one.url, post())) == [200])  # it heeds signals from then on
        one.signal(signal.SIGUSR2)
        until(ended)
        assert one.wait() == 0
        assert answers(talk(one.url, post())) == [200]
        one.end_next()

    @pytest.mark.long("starts a process")
    def test_a_client_that_was_not_told_of_the_end_is_answered(self, process, own_upstream, tmp_path):
        one = process("--drain", 0, "--store", f"sqlite:{tmp_path / 'quotas.db'}", upstream=own_upstream.url)
        with connect(one.url) as kept:
            kept.sendall(post())
            assert answers(read(kept, 1)) == [200]
            one.signal(signal.SIGTERM)
            until(lambda: refused(one.url))
            kept.sendall(post())
            last = read(kept)
            assert (answers(last), b"\r\nconnection: close\r\n" in last) == ([200], True)
        assert one.wait() == 0


@posix
class TestSignalsWhileItStarts:
    @pytest.fixture
    def starting(self, process, tmp_path, monkeypatch):
        """A process in whose start a signal comes."""

        def start(*signal_at, arguments=()):
            (tmp_path / "sitecustomize.py").write_text(losing(*signal_at))
            monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
            return process(*arguments, upstream="http://127.0.0.1:9")

        return start

    @pytest.mark.long("starts a process")
    def test_one_that_ends_it(self, starting):
        assert starting("SIGTERM").wait() == 0

    @pytest.mark.long("starts several processes")
    @pytest.mark.parametrize(
        ("name", "at", "workers"), [("SIGHUP", "click", 1), ("SIGUSR2", "uvicorn", 1), ("SIGHUP", "uvicorn", 2)]
    )
    def test_one_that_asks_for_the_next_process(self, starting, tmp_path, name, at, workers):
        store = f"sqlite:{tmp_path / 'quotas.db'}"
        one = starting(name, at, arguments=("--workers", workers, "--store", store))
        assert one.wait(60) == 0
        one.end_next()

    def test_it_is_heeded_once(self, monkeypatch):
        handlers, calls = {}, []
        monkeypatch.setattr(signal, "signal", handlers.__setitem__)
        monkeypatch.setattr(signal, "getsignal", lambda _: lambda *_: None)

        async def served():
            heed(Life(shares=False), 0.0, lambda: calls.append("next"))
            await asyncio.sleep(0)

        note_early()
        asyncio.run(served())
        assert calls == []
        note_early()
        for number in (signal.SIGHUP, signal.SIGUSR2):
            handlers[number](number, None)
        asyncio.run(served())
        assert calls == ["next"]
        asyncio.run(served())
        assert calls == ["next"]


class Away(MemoryStore):
    """A store that answers when it is told to."""

    here = False

    def exchange(self, pool, message):
        self.ping()
        return super().exchange(pool, message)

    def ping(self):
        if not self.here:
            raise StoreError("away")


class Plain:
    """A store with only the methods that one must have."""

    url = "away:"

    def __init__(self):
        self.pools = []

    def exchange(self, pool, message):
        self.pools.append(pool)
        return SharedLedger().apply(0, message)

    def after_fork(self):
        pass

    def close(self):
        pass


def made(folder):
    """Whether a folder could be made: on Windows a file that was deleted keeps its name while a process has it open."""
    try:
        folder.mkdir()
    except OSError:
        return False
    return True


class TestStore:
    def test_a_gateway_without_its_store_is_not_ready(self, serve, emulator, client, tmp_path, monkeypatch, caplog):
        monkeypatch.setattr(app, "RETRY_S", 0.05)
        (tmp_path / "folder").touch()
        running = serve(emulator.base_url, store=f"sqlite:{tmp_path / 'folder' / 'quotas.db'}")
        assert client.get(running.url + "/readyz").json() == {"status": "the store does not answer"}
        assert "paceline_ready 0.0" in client.get(running.url + "/metrics").text.splitlines()
        until(lambda: caplog.messages)
        assert client.get(running.url + "/healthz").status_code == 200
        answer = client.post(running.url + CHAT, json=chat())
        assert (answer.status_code, answer.headers["x-paceline"]) == (503, "store")
        assert (answer.headers["retry-after"], answer.headers["x-should-retry"]) == ("1", "true")
        assert json.loads(answer.text)["error"]["type"] == "api_error"
        (tmp_path / "folder").unlink()
        until(lambda: made(tmp_path / "folder"))
        until(lambda: client.get(running.url + "/readyz").status_code == 200)
        assert "paceline_ready 1.0" in client.get(running.url + "/metrics").text.splitlines()
        asked = [line for line in caplog.messages if line.startswith("sqlite:") and "pool" not in line]
        assert [line.endswith(": the store answers again") for line in asked] == [False, True]
        until(lambda: client.post(running.url + CHAT, json=chat()).status_code == 200)

    @pytest.mark.parametrize(
        ("mode", "never", "lost"),
        [("fail_safe", False, True), ("fail_closed", False, False), ("fail_open", True, True)],
    )
    def test_what_each_mode_needs(self, mode, never, lost):
        store = Away()
        with Limiter({"jobs": Quota("requests", 10)}, store=store, on_store_failure=mode) as limiter:
            can_grant = limiter.pacer.pools.worker.can_grant
            assert can_grant() is never
            store.here = True
            assert can_grant()
            assert limiter.try_acquire("jobs")
            store.here = False
            assert can_grant() is lost

    def test_a_store_that_has_no_ping_is_sent_a_message(self):
        store = Plain()
        with Limiter({"jobs": Quota("requests", 10)}, store=store, on_store_failure="fail_closed") as limiter:
            assert limiter.pacer.pools.worker.can_grant()
        assert store.pools == ["ping"]
