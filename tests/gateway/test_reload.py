"""What a gateway reads again while it serves, and what a next process reads."""

import logging
import os
import runpy
import signal
import socket
import ssl
import sys
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import trustme
from attack_helpers import answers, post, talk
from click.testing import CliRunner
from gateway_helpers import CHAT, chat, running_gateway
from test_restart import posix

from paceline.cli.app import app
from paceline.config import Config
from paceline.config.servers import server
from paceline.core.results import SettingsError
from paceline.gateway import stamps
from paceline.gateway.certificate import Certificate
from paceline.gateway.life import LifeEvent
from paceline.gateway.server import ProcessSettings
from paceline.gateway.supervisor import SettingsFile, Supervisor
from paceline.gateway.upstreams import Secret
from waits import until

HEALTHCHECK = Path(__file__).parents[2] / "examples" / "gateway" / "healthcheck.py"


class TestKeysOfProviders:
    def server(self, environ, **table):
        config = Config.load(environ={}, given={"upstreams": {"openai": {"base_url": "http://127.0.0.1", **table}}})
        return server(config, "openai", environ)

    def test_where_a_key_is(self, tmp_path):
        file = tmp_path / "key"
        file.write_text("\ufeffsk-of-file\n", "utf-8")
        by_setting = self.server({"OPENAI_API_KEY": "sk-other"}, key_file=str(file))
        by_variable = self.server({"OPENAI_API_KEY_FILE": str(file)})
        by_own_variable = self.server({"MINE_FILE": str(file)}, key_env="MINE")
        for one in (by_setting, by_variable, by_own_variable):
            assert (one.key, one.key_file) == ("sk-of-file", file)
            assert "sk-of" not in repr(one)
        assert self.server({"OPENAI_API_KEY": "sk-1"}).key_file is None

    @pytest.mark.parametrize("content", [b"", b" \n", b"two\nlines", b"\xff"])
    def test_a_file_without_a_key_is_refused(self, tmp_path, content):
        (tmp_path / "key").write_bytes(content)
        with pytest.raises(SettingsError, match=r"key: |invalid key in .*key: ") as caught:
            self.server({}, key_file=str(tmp_path / "key"))
        assert "lines" not in str(caught.value)

    def test_what_contradicts_is_refused(self, tmp_path):
        for environ, table, said in (
            ({"A": "b"}, {"key_env": "A", "key_file": "b"}, "key_env and key_file are both set"),
            (
                {"OPENAI_API_KEY": "a", "OPENAI_API_KEY_FILE": "b"},
                {},
                "OPENAI_API_KEY and OPENAI_API_KEY_FILE are both set",
            ),
            ({}, {"key_file": str(tmp_path / "none")}, "none: cannot be read: "),
            ({}, {"key_env": "A"}, "variable A is not set, nor A_FILE"),
        ):
            with pytest.raises(SettingsError, match=said):
                self.server(environ, **table)

    def test_a_key_that_cannot_be_read_leaves_the_one_before(self, tmp_path, at_once, caplog):
        file = tmp_path / "key"
        file.write_text("sk-1")
        secret = Secret("sk-1", file)
        assert secret.key() == "sk-1"
        with caplog.at_level(logging.WARNING):
            file.write_text("sk-one and\nmore")
            assert [secret.key(), secret.key()] == ["sk-1", "sk-1"]
            assert caplog.text.count("the earlier key stays in use") == 1
            file.unlink()
            assert secret.key() == "sk-1"
            file.write_text("sk-2")
            assert secret.key() == "sk-2"
        assert "has another key, which is sent from now on" in caplog.text
        assert "sk-" not in caplog.text

    @pytest.mark.skipif(
        sys.platform == "win32", reason="Kubernetes replaces links, and Windows replaces no link to a folder"
    )
    def test_a_link_that_leads_elsewhere_is_a_change(self, tmp_path):
        """Kubernetes replaces a link to the folder of a secret."""
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "key").write_text(f"sk-{name}")
        (tmp_path / "data").symlink_to(tmp_path / "a")
        before = stamps.stamp(tmp_path / "data" / "key")
        (tmp_path / "next").symlink_to(tmp_path / "b")
        (tmp_path / "next").replace(tmp_path / "data")
        assert stamps.stamp(tmp_path / "data" / "key") != before
        assert stamps.stamp(tmp_path / "none") is None

    def test_the_next_attempt_has_the_new_key(self, serve, emulator, client, tmp_path, at_once, monkeypatch, caplog):
        file = tmp_path / "key"
        file.write_text("sk-old")
        monkeypatch.delenv("OPENAI_API_KEY")
        emulator.reset(limits={"*": "100k requests/min"}, latency_s=0.0, valid_key="sk-old", start_level=1.0)
        table = {"openai": {"base_url": emulator.base_url, "key_file": str(file)}}
        running = serve(emulator.base_url, upstreams=table)
        assert client.post(running.url + CHAT, json=chat()).status_code == 200
        emulator.reset(limits={"*": "100k requests/min"}, latency_s=0.0, valid_key="sk-new", start_level=1.0)
        assert [client.post(running.url + CHAT, json=chat()).status_code for _ in range(2)] == [401, 401]
        assert caplog.text.count(f"openai refuses the key of {file} (401)") == 1
        file.write_text("sk-new")
        assert client.post(running.url + CHAT, json=chat()).status_code == 200

    def test_a_server_that_wants_a_key_and_has_none_is_named(self, serve, emulator, client, caplog):
        emulator.reset(limits={"*": "100k requests/min"}, latency_s=0.0, valid_key="sk-own", start_level=1.0)
        running = serve(emulator.base_url, upstreams={"openai": {"base_url": emulator.base_url, "key_env": ""}})
        assert client.post(running.url + CHAT, json=chat()).status_code == 401
        assert "openai wants a key (401), and has none in the settings" in caplog.text


def written(authority, folder, parts=("cert", "key")):
    """Write a certificate, its key, or both, as an administrator's program does: one after the other."""
    made = authority.issue_cert("localhost")
    if "cert" in parts:
        (folder / "cert.pem").write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
    if "key" in parts:
        (folder / "key.pem").write_bytes(made.private_key_pem.bytes())


def shakes_hands(url, authority):
    """Whether a new connection to the gateway shows a certificate of ``authority``."""
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    with socket.create_connection(("127.0.0.1", urlsplit(url).port), 10) as connection:
        try:
            with trusted.wrap_socket(connection, server_hostname="localhost"):
                return True
        except ssl.SSLError:
            return False


class TestCertificate:
    @pytest.fixture
    def settings(self, tmp_path):
        """Settings with a certificate in a file."""
        return ProcessSettings(
            config=Config.load(environ={}),
            keys=tmp_path / "keys.json",
            host="127.0.0.1",
            certificate=tmp_path / "cert.pem",
            private_key=tmp_path / "key.pem",
        )

    def test_new_connections_have_the_new_one_and_old_ones_go_on(self, tmp_path, settings, monkeypatch, caplog):
        monkeypatch.setattr(stamps, "LOOK_S", 0.0)
        old, new = trustme.CA(), trustme.CA()
        written(old, tmp_path)
        with running_gateway(settings) as running, caplog.at_level(logging.WARNING):
            assert (shakes_hands(running.url, old), shakes_hands(running.url, new)) == (True, False)
            trusted = ssl.create_default_context()
            old.configure_trust(trusted)
            with (
                socket.create_connection(("127.0.0.1", urlsplit(running.url).port), 10) as connection,
                trusted.wrap_socket(connection, server_hostname="localhost") as kept,
            ):
                written(new, tmp_path, ("key",))
                assert (shakes_hands(running.url, old), shakes_hands(running.url, old)) == (True, True)
                assert caplog.text.count("the earlier certificate stays in use") == 1
                written(new, tmp_path)
                assert (shakes_hands(running.url, old), shakes_hands(running.url, new)) == (False, True)
                kept.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
                assert kept.recv(15) == b"HTTP/1.1 200 OK"
            assert caplog.text.count("has changed, and is used for new connections") == 1

    def test_a_command_trusts_the_certificate_that_is_named(self, tmp_path, settings, monkeypatch):
        authority = trustme.CA()
        written(authority, tmp_path)
        authority.cert_pem.write_to_path(tmp_path / "authority.pem")
        with running_gateway(settings) as running:
            url = running.url.replace("127.0.0.1", "localhost").replace("http:", "https:")
            said = CliRunner().invoke(app, ["usage", url], prog_name="paceline").output
            assert "its certificate is not trusted" in said
            monkeypatch.setenv("SSL_CERT_FILE", said.rpartition("SSL_CERT_FILE=")[2].strip())
            monkeypatch.chdir(tmp_path)
            for command in ("usage", "status"):
                done = CliRunner().invoke(app, [command, url], prog_name="paceline")
                assert (done.exit_code, "certificate" in done.stderr) == (0, False)
        monkeypatch.setenv("SSL_CERT_FILE", "none.pem")
        done = CliRunner().invoke(app, ["usage", url], prog_name="paceline")
        assert "SSL_CERT_FILE=none.pem: cannot be read: No such file" in done.output

    @pytest.mark.parametrize("tls", [True, False])
    def test_the_healthcheck_of_the_container(self, tmp_path, settings, tls):
        written(trustme.CA(), tmp_path)
        ready = runpy.run_path(str(HEALTHCHECK))["ready"]
        with running_gateway(settings if tls else replace(settings, certificate=None, private_key=None)) as running:
            port = urlsplit(running.url).port
            assert ready(port)
            running.gateway.life.change(LifeEvent.ASKED)  # SIGTERM, and --drain
            assert not ready(port)
        assert not ready(port)

    def test_what_cannot_be_used_is_refused_at_the_start(self, tmp_path):
        (tmp_path / "cert.pem").write_text("none")
        with pytest.raises(SettingsError, match=r"--tls-cert .*must have the certificate"):
            Certificate(tmp_path / "cert.pem", None).check()
        with pytest.raises(SettingsError, match="No such file"):
            Certificate(tmp_path / "none.pem", None).check()


class TestSettingsFile:
    def test_a_change_is_seen_once_the_file_rests(self, tmp_path):
        file = tmp_path / "paceline.toml"
        file.write_text('limits = { "gpt-5" = "100 requests/min" }')
        settings = SettingsFile(file, lambda: Config.load(file, environ={}))
        assert not settings.look()
        file.write_text('usable = 0.5\nlimits = { "gpt-5" = "many" }')
        assert not settings.look(), "it may be written still"
        with pytest.raises(SettingsError, match="limits: gpt-5: "):
            settings.look()
        assert not settings.look(), "it is said once"
        file.write_text('usable = 0.5\nlimits = { "gpt-5" = "200 requests/min", "gpt-4o" = "1 requests/s" }')
        assert (settings.look(), settings.look()) == (False, True)
        file.write_text(file.read_text() + "\n# a comment")
        assert [settings.look(), settings.look()] == [False, False]
        file.unlink()
        assert not settings.look()
        with pytest.raises(SettingsError, match="cannot be read"):
            settings.look()


class Child:
    """What a supervisor starts, in the hands of a test."""

    def __init__(self, *, first):
        self.first, self.pid, self.signals = first, id(self), []
        self._serves, self._codes = SimpleQueue(), SimpleQueue()
        self.process = SimpleNamespace(pid=self.pid, wait=self._codes.get)

    def serves(self):
        return self._serves.get()

    def begins(self, serves=True):
        self._serves.put(serves)
        if not serves:
            self._codes.put(2)

    def ends(self, code=0):
        self._codes.put(code)

    def signal(self, number):
        self.signals.append(number)
        self._serves.put(False)
        self._codes.put(-number)


class TestSupervisor:
    @pytest.fixture
    def supervised(self, monkeypatch):
        """A supervisor, what it has started, and a function that lets it do what is due."""
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        children = []

        def start(_listener, *, supervised, first):
            assert supervised
            children.append(Child(first=first))
            return children[-1]

        supervisor = Supervisor(None, None, start)
        supervisor._serving = supervisor._follow(supervisor._start(first=True))

        def step(count=1):
            for _ in range(count):
                try:
                    event = supervisor._events.get(30)
                except Empty:  # an event that was read before has ended the wait
                    event = supervisor._events.get(30)
                event()

        yield supervisor, children, step
        for child in children:
            child.begins(False)  # its thread ends

    @pytest.fixture
    def replacing(self, supervised):
        """The same, where the first child serves and the next one starts."""
        supervisor, children, step = supervised
        children[0].begins()
        step()
        supervisor._replace()
        return supervised

    def test_one_serves_after_the_other(self, replacing, caplog):
        supervisor, children, step = replacing
        supervisor._replace()
        assert [child.first for child in children] == [True, False]
        assert children[0].signals == []
        children[1].begins()
        step()
        assert children[0].signals == [signal.SIGTERM]
        step()  # it has ended
        assert supervisor._alive == {children[1]}
        assert not supervisor._ends

    def test_one_that_cannot_serve_changes_nothing(self, replacing, caplog):
        supervisor, children, step = replacing
        children[1].begins(False)
        step()
        assert "this process continues" in caplog.text
        assert (children[0].signals, supervisor._next, supervisor._ends) == ([], None, False)
        supervisor._replace()
        assert len(children) == 3

    def test_it_ends_with_the_one_that_serves(self, replacing):
        supervisor, children, step = replacing
        children[0].ends(3)
        step(2)
        assert (supervisor._code, supervisor._alive) == (3, set())
        assert children[1].signals == [signal.SIGTERM]

    def test_a_signal_ends_all(self, replacing, caplog):
        supervisor, children, step = replacing
        supervisor._end(signal.SIGINT)
        step(2)
        assert [child.signals[0] for child in children] == [signal.SIGINT] * 2
        assert (supervisor._alive, supervisor._code) == (set(), 128 + signal.SIGINT)
        assert "this process continues" not in caplog.text
        supervisor._replace()
        assert len(children) == 2

    def test_one_that_has_lost_the_signal_while_it_started_gets_it_again(self, supervised, monkeypatch):
        supervisor, children, step = supervised
        monkeypatch.setattr(children[0], "signal", children[0].signals.append)
        supervisor._end(signal.SIGTERM)
        children[0].begins()
        step()
        assert children[0].signals == [signal.SIGTERM] * 2
        children[0].ends()
        step()
        assert supervisor._alive == set()

    @pytest.mark.long("starts several processes")
    @pytest.mark.parametrize("watch", [True, pytest.param(False, marks=posix)])
    def test_settings_are_read_again_or_not_at_all(self, process, own_upstream, tmp_path, client, watch):
        """With ``--watch`` as they change, and without as a signal says so; no request fails meanwhile."""
        file = tmp_path / "paceline.toml"
        one = None

        def write(limit):
            file.write_text(f'limits = {{ "gpt-5" = "{limit}" }}')
            if one is not None and not watch:
                one.signal(signal.SIGHUP)

        def limit():
            return client.get(f"{one.url}/status").json()["pools"]["openai/gpt-5"]["quotas"][0]["limit"]

        def replaced():
            assert answers(talk(one.url, post())) == [200]
            return "serves in the place of" in one.log()

        write("100 requests/min")
        one = process("--config", file, *["--watch"] * watch, upstream=own_upstream.url)
        until(lambda: answers(talk(one.url, post())) == [200])
        write("many")
        until(lambda: ("the earlier settings stay in effect: " if watch else "this process continues") in one.log())
        assert "paceline.toml: limits: gpt-5: " in one.log()
        assert (one.process.poll(), limit()) == (None, 100)
        write("200 requests/min")
        until(replaced)
        until(lambda: answers(talk(one.url, post())) == [200] and limit() == 200)
        if watch:
            one.signal(signal.SIGTERM)
        else:
            one.end_next()
        assert one.wait(60) == 0 or sys.platform == "win32"  # where it is no signal

    def test_it_needs_a_file(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for arguments in ((), ("--demo", "--config", os.devnull)):
            done = CliRunner().invoke(app, ["serve", "--watch", "--port", "0", *arguments])
            assert done.exit_code == 2
            assert "--watch" in done.output
