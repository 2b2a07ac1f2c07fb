import errno
import math
import socket
import ssl
from itertools import pairwise

import aiohttp
import pytest
from batch_helpers import FAST, Said, chat, read_answers, run_job, write_lines
from hypothesis import given
from hypothesis import strategies as st

from paceline.batch.address import proxy_for
from paceline.batch.progress import LineView, Live
from paceline.batch.reach import REPORT_EVERY_S, UNTRUSTED_MAX, Reach, origin, reason
from paceline.config.servers import ProviderAddress
from paceline.core.results import SettingsError
from paceline.emulator import Emulator
from paceline.providers.registry import provider_named

URL, OTHER = "http://host:1", "https://other"
DOWN = "cannot reach http://host:1: connection refused; trying again"
UP = "http://host:1 can be reached again"


def wrapped(*chain):
    """A connection's error as the client raises it: each one with the next one inside."""
    for outer, inner in pairwise(chain):
        outer.__context__ = inner
    return aiohttp.ClientConnectorError(None, chain[0])


UNTRUSTED = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] ...")
UNTRUSTED.verify_message = "certificate has expired"


class _DistrustedError(Exception):
    certificate_error = UNTRUSTED


REFUSED = wrapped(OSError("All connection attempts failed"), ConnectionRefusedError(111, "Connect call failed"))


@pytest.fixture
def said():
    return []


@pytest.fixture
def reach(said):
    return Reach(said.append, again=True)


def test_each_address_for_itself(reach, said):
    reach.failed(URL, REFUSED, 0.0, 1.0)
    reach.failed(OTHER, REFUSED, 0.0, 1.0)
    reach.answered(OTHER, 2.0, 3.0)
    reach.answered("http://host:2", 2.0, 3.0)
    assert said == [DOWN, DOWN.replace("http://host:1", "https://other"), "https://other can be reached again"]
    assert reach.at_end() == ["cannot reach http://host:1: connection refused"]


def test_says_nothing_of_an_address_that_answers_others(reach, said):
    reach.answered(URL, sent_s=0.0, now_s=5.0)
    reach.failed(URL, REFUSED, sent_s=4.0, now_s=6.0)
    assert (said, reach.at_end()) == ([], [])
    reach.failed(URL, REFUSED, sent_s=6.5, now_s=7.0)
    reach.answered(URL, sent_s=6.0, now_s=8.0)  # over a connection that was there before
    assert said == [DOWN]
    assert reach.at_end() == ["cannot reach http://host:1: connection refused"]


def test_says_it_again_when_it_lasts(reach, said):
    reach.failed(URL, REFUSED, 0.0, 1.0)
    reach.answered(URL, 2.0, 3.0)
    reach.failed(URL, REFUSED, 4.0, REPORT_EVERY_S)
    assert said == [DOWN, UP]
    reach.failed(URL, REFUSED, 5.0, REPORT_EVERY_S + 1.0)
    assert said == [DOWN, UP, DOWN]


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 40.0), st.floats(0.0, 40.0)), max_size=80))
def test_lines_are_few_and_alternate(steps):
    now_s, lines = 0.0, []
    reach = Reach(lambda text: lines.append((now_s, text)), again=True)
    for answered, passed_s, took_s in steps:
        now_s += passed_s
        if answered:
            reach.answered(URL, now_s - took_s, now_s)
        else:
            reach.failed(URL, REFUSED, now_s - took_s, now_s)
    assert [text for _, text in lines] == ([DOWN, UP] * len(lines))[: len(lines)]
    first = -math.inf
    for said_s, text in lines:
        if text == DOWN:
            assert said_s - first >= REPORT_EVERY_S
            first = said_s


def test_names_neither_paths_nor_keys(said):
    reach = Reach(said.append, again=False, proxy="http://me:secret@proxy:3128/")
    url = origin("https://me:secret@[::1]:8443/secret/v1?key=secret")
    reach.failed(url, REFUSED, 0.0, 1.0)
    words = "cannot reach https://[::1]:8443 through the proxy http://proxy:3128: connection refused"
    assert said == [words]
    assert reach.lose(url, REFUSED) == words
    assert reach.at_end() == [words]
    assert origin("https://api.openai.com/v1") == "https://api.openai.com"


def test_answers_over_older_connections_show_no_trust(reach, said):
    reach.connected(URL, 0.0)
    reach.answered(URL, 0.0, 1.0)
    for number in range(UNTRUSTED_MAX):
        assert not reach.distrusts(URL)
        reach.failed(URL, _DistrustedError(), 2.0 + number, 2.9 + number)
        reach.answered(URL, 2.1 + number, 2.8 + number)
        reach.answered(URL, 2.95 + number, 2.96 + number)
    assert reach.distrusts(URL)
    assert said == [DOWN.replace("connection refused", "its certificate is not trusted: certificate has expired")]
    reach.connected(URL, 99.0)
    assert not reach.distrusts(URL)
    reach.answered(URL, 99.0, 99.1)
    assert said[1:] == [UP]


NO_TLS = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")
NO_TLS.reason = "WRONG_VERSION_NUMBER"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (REFUSED, "connection refused"),
        (wrapped(OSError("two"), ExceptionGroup("both", [ConnectionRefusedError(111, "no")])), "connection refused"),
        (wrapped(socket.gaierror(socket.EAI_NONAME, "Name or service not known")), "no such host"),
        (wrapped(socket.gaierror(socket.EAI_AGAIN, "Try later")), "its name cannot be resolved: Try later"),
        (wrapped(UNTRUSTED), "its certificate is not trusted: certificate has expired"),
        (wrapped(NO_TLS), "this port does not speak TLS: try http://"),
        (aiohttp.ConnectionTimeoutError(), "connection timed out"),
        (aiohttp.ClientHttpProxyError(None, (), status=407, message="Proxy\x1b[2J Login"), "407 Proxy[2J Login"),
        (wrapped(OSError("x" * 1_000)), "x" * 200),
        (wrapped(OSError()), "OSError"),
        (wrapped(ConnectionResetError(22, "Network name deleted")), "connection reset by peer"),  # as on Windows
        (wrapped(OSError(errno.EPIPE, "x")), "broken pipe"),
    ],
)
def test_reasons(error, words):
    assert reason(error) == words


@pytest.fixture
def closed():
    """A port of this machine where nothing listens, and nobody else will."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder


def run(tmp_path, closed, view, *, requests=1, path="", **given):
    source = write_lines(tmp_path / "in.jsonl", [chat(f"r{i}", text="a-secret") for i in range(requests)])
    code, report = run_job(source, f"http://127.0.0.1:{closed.getsockname()[1]}{path}/v1", view, **given)
    return code, report, read_answers(tmp_path / "in.results.jsonl")


@pytest.mark.parametrize("make", [LineView, Live])
def test_a_closed_port_is_named_once_and_in_every_record(tmp_path, closed, make, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    given = {"path": "/a-secret", "requests": 2, "max_attempts": 2, "retry": {"backoff_s": 0.0}}
    code, report, answers = run(tmp_path, closed, make(), **given)
    words = f"cannot reach http://127.0.0.1:{closed.getsockname()[1]}: connection refused"
    err = capsys.readouterr().err
    lines = [line for line in err.splitlines() if "cannot reach" in line]
    assert lines == [f"{words}; trying again", words]
    assert "a-secret" not in err
    assert [a["error"] for a in answers] == [{"code": "connection_error", "message": words}] * 2
    assert (code, report["attempts"], report["errors"]) == (1, 4, {"connection_error": 2})


def test_says_when_it_is_back(tmp_path, closed):
    server = Emulator(limits={"*": FAST}, port=closed.getsockname()[1])

    class Starts(Said):
        """Starts the server as soon as it is missed."""

        def say(self, text):
            super().say(text)
            if "cannot reach" in text:
                closed.close()
                server.start()

    view = Starts()
    try:
        code, report, _ = run(tmp_path, closed, view, requests=3, max_attempts=2, retry={"backoff_s": 0.0})
    finally:
        server.stop()
    address = server.base_url
    first, *lines = [line for line in view.lines if address in line]
    assert first == f"requests of openai go to {address}"
    assert lines == [f"cannot reach {address}: connection refused; trying again", f"{address} can be reached again"]
    assert (code, report["ok"]) == (0, 3)


ADDRESSES = {"openai": ProviderAddress("http://host:1", {}, "", provider_named("openai"))}


@pytest.mark.parametrize("proxy", ["http://me:secret@proxy:99999", "socks5://me:secret@proxy:1", "http://"])
def test_a_proxy_that_cannot_be_used_is_an_error_without_its_password(monkeypatch, proxy):
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(SettingsError, match="http_proxy is not the address of an HTTP proxy") as raised:
        proxy_for(ADDRESSES)
    assert "secret" not in str(raised.value)


def test_a_proxy_without_a_scheme(monkeypatch):
    monkeypatch.setenv("http_proxy", "me:secret@proxy:3128")
    assert proxy_for(ADDRESSES) == "http://me:secret@proxy:3128"
