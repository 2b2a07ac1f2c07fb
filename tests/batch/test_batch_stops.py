"""What cannot change by itself stops a run at any time, with the rest unsent."""

import ssl
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
import trustme
from batch_helpers import GOOD, GOOD_MESSAGE, chat, chats, contents, message, read_answers, run_job, write_lines

from odd_server import HTML, JSON, OddServer
from paceline.batch import gates, reach
from paceline.batch.gates import HANDFUL
from paceline.batch.progress import LineView
from paceline.core.results import SettingsError

pytestmark = pytest.mark.usefixtures("short_probes")

SOON = {"breaker": {"first_pause_s": 0.01, "pause_s": 0.01}, "retry": {"backoff_s": 0.01}}
KEYS = {"OPENAI_API_KEY": "k", "GEMINI_API_KEY": "a-gemini-key"}


def run(tmp_path, lines, base_url, **given):
    source = write_lines(tmp_path / "in.jsonl", lines)
    code, report = run_job(source, base_url, LineView(), **{"environ": KEYS} | given)
    return code, report, tmp_path / "in.results.jsonl"


def well(*_):
    return 200, JSON, GOOD


def in_group(servers, provider):
    """The settings of a group of these servers."""
    usual = {"provider": provider, "key_env": f"{provider.upper()}_API_KEY"}
    upstreams = {name: usual | {"base_url": url} for name, url in servers.items()}
    return {"upstreams": upstreams, "groups": {"g": {"members": list(servers)}}, "group": "g", "provider": provider}


def invalid(message, *details):
    """An error of Gemini."""
    return {"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": message, "details": details}}


REASON = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"}
INVALID = invalid("API key not valid. Please pass a valid API key.", REASON)
EXPIRED = invalid("API key expired. Please renew the API key.")


@pytest.mark.parametrize("mode", ["sync", "batch"])
@pytest.mark.parametrize(
    ("body", "detail"), [(INVALID, "API_KEY_INVALID"), ([INVALID], "API_KEY_INVALID"), (EXPIRED, "400")]
)
def test_an_invalid_key_of_gemini_is_a_refused_key(tmp_path, capsys, mode, body, detail):
    with OddServer(lambda *_: (400, JSON, body)) as server:
        lines, given = [contents(f"r{i}") for i in range(3)], {"provider": "gemini", "workers": 1}
        code, report, output = run(tmp_path, lines, server.base_url, mode=mode, **given)
        assert len(server.asked) == 1
    assert (code, report["ok"], report["failed"], output.read_bytes()) == (2, 0, 0, b"")
    err = capsys.readouterr().err
    place = "line 1: " if mode == "sync" else ""
    assert f"{place}gemini refused the key with a 400 ({detail}); set GEMINI_API_KEY to a key" in err
    assert "3 requests left" in err


@pytest.mark.parametrize("mode", ["sync", "batch"])
def test_a_port_that_does_not_speak_tls_ends_the_run(tmp_path, capsys, mode):
    with OddServer(well) as server:
        url = server.base_url.replace("http:", "https:")
        code, report, _ = run(tmp_path, chats(20), url, workers=5, mode=mode)
    assert (code, report["ok"], server.asked) == (2, 0, [])
    assert "this port does not speak TLS: try http://" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot be read: No such file"), (b"none", "no certificates in PEM")]
)
def test_a_file_of_certificates_that_cannot_be_read_is_said_before_the_output_is_touched(
    tmp_path, monkeypatch, content, words
):
    path = tmp_path / "authority.pem"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    with pytest.raises(SettingsError, match=f"SSL_CERT_FILE=.*authority.pem: {words}"):
        run(tmp_path, [chat("a")], "http://127.0.0.1:9")
    assert not (tmp_path / "in.results.jsonl").exists()


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_revoked_in_the_middle_ends_the_run(tmp_path, capsys, status):
    def answer(number, _):
        return (200, JSON, GOOD) if number < 20 else (status, JSON, {"error": {"code": "revoked", "message": "no"}})

    lines = chats(80)
    with OddServer(answer) as server:
        code, report, output = run(tmp_path, lines, server.base_url, workers=5)
        assert (code, report["ok"], report["failed"]) == (1, 20, 0)
        assert len(server.asked) <= 25
        assert f"openai refused the key with a {status}" in capsys.readouterr().err
        server.answer = well
        code, report, output = run(tmp_path, lines, server.base_url, workers=50)
    assert (code, report["ok"], report["skipped"]) == (0, 60, 20)
    assert len({one["custom_id"] for one in read_answers(output)}) == 80


PAGE = b"<html><title>Sign in</title>"
WRONG = {
    "a page with 200": (200, HTML, PAGE),
    "a page with 404": (404, HTML, PAGE),
    "a redirect": (302, {"location": "http://portal/"}, b""),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_answers_in_a_row_end_a_run_that_was_served(tmp_path, capsys, monkeypatch, wrong):
    monkeypatch.setattr(gates, "PAGE_S", 0.0)
    lines = chats(90)
    with OddServer(lambda number, _: (200, JSON, GOOD) if number < 30 else wrong) as server:
        code, report, output = run(tmp_path, lines, server.base_url, workers=20, **SOON)
        assert (code, report["ok"]) == (1, 30)
        assert len(server.asked) < 80
        assert len(read_answers(output)) - 30 == report["failed"]
        assert (report["failed"] == 0) == (wrong[0] == 200)
        err = capsys.readouterr().err
        assert "10 answers in a row for gpt-5 from" in err
        assert f"were not from its API, the last one with status {wrong[0]}" in err
        server.answer = well
        code, report, output = run(tmp_path, lines, server.base_url)
    assert (code, report["skipped"], report["ok"]) == (0, 30, 60)
    assert len({one["custom_id"] for one in read_answers(output)}) == 90


def test_pages_do_not_end_a_run_before_they_have_lasted(tmp_path, monkeypatch):
    monkeypatch.setattr(gates, "PAGE_S", 3_600.0)
    first = WRONG["a page with 200"]
    with OddServer(lambda number, _: first if 30 <= number < 50 else (200, JSON, GOOD)) as server:
        code, report, _ = run(tmp_path, chats(100), server.base_url, workers=20, **SOON)
    assert (code, report["ok"]) == (0, 100)


@pytest.mark.parametrize("between", [(200, JSON, GOOD), (400, JSON, {"error": {"message": "no"}})])
def test_a_right_answer_between_them_begins_anew(tmp_path, between):
    wrong = WRONG["a page with 404"]
    with OddServer(lambda number, _: between if number % 10 == 0 else wrong) as server:
        code, report, _ = run(tmp_path, chats(60), server.base_url, workers=1)
    assert (code, report["attempts"], report["failed"] + report["ok"]) == (1, 60, 60)


def test_answers_without_content_are_no_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(gates, "PAGE_S", 0.0)
    with OddServer(lambda number, _: (200, JSON, GOOD if number < 5 else {"choices": []})) as server:
        code, report, _ = run(tmp_path, chats(40), server.base_url, max_attempts=1, breaker=False)
    assert (code, report["ok"], report["failed"]) == (1, 5, 35)


def test_a_member_that_gives_pages_does_not_end_the_group(tmp_path, monkeypatch):
    monkeypatch.setattr(gates, "PAGE_S", 0.0)
    page = WRONG["a page with 200"]
    with OddServer(lambda number, _: (200, JSON, GOOD) if number < 5 else page) as bad, OddServer(well) as good:
        given = in_group({"a": bad.base_url, "b": good.base_url}, "openai")
        code, report, _ = run(tmp_path, chats(100), None, workers=40, **given)
        assert len(bad.asked) > HANDFUL
    assert (code, report["ok"]) == (0, 100)


class Tls(OddServer):
    """With a certificate for ``name``."""

    def __init__(self, answer, authority, name, **options):
        super().__init__(answer)
        self.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(name, **options).configure_cert(self.tls)
        self.base_url = f"https://localhost:{self.server_port}"

    def get_request(self):
        connection, address = super().get_request()
        return self.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address


AUTHORITY = trustme.CA()
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
CERTIFICATES = {
    "unknown": (trustme.CA(), "localhost", {}, "unable to get local issuer certificate"),
    "of another host": (AUTHORITY, "other.example", {}, "Hostname mismatch"),
    "expired": (AUTHORITY, "localhost", {"not_before": LONG_AGO, "not_after": LONG_AGO + timedelta(1)}, "expired"),
}


@pytest.fixture
def trusted(monkeypatch):
    def context():
        found = ssl.create_default_context()
        AUTHORITY.configure_trust(found)
        return found

    monkeypatch.setattr(httpx2, "create_ssl_context", context)


@pytest.mark.usefixtures("trusted")
class TestCertificates:
    @pytest.mark.sample(5)
    @pytest.mark.parametrize(("mode", "most", "rest"), [("sync", 10, "sends the rest"), ("batch", 1, "continues")])
    @pytest.mark.parametrize(("authority", "name", "options", "words"), CERTIFICATES.values(), ids=CERTIFICATES)
    def test_one_that_is_not_trusted_ends_the_run(
        self, tmp_path, capsys, authority, name, options, words, mode, most, rest
    ):
        with Tls(well, authority, name, **options) as server:
            code, report, _ = run(tmp_path, chats(20), server.base_url, workers=10, mode=mode)
            assert (code, report["ok"], report["failed"], server.asked) == (2, 0, 0, [])
            assert 1 <= report["attempts"] <= most
        err = capsys.readouterr().err
        assert f"stopped: cannot reach {server.base_url}: its certificate is not trusted: " in err
        assert words in err
        assert "SSL_CERT_FILE" in err
        assert "trying again" not in err
        assert f"20 requests left: the same command again {rest}" in err
        if mode == "sync":  # the server has no batches
            with Tls(well, AUTHORITY, "localhost") as server:
                code, report, _ = run(tmp_path, chats(20), server.base_url)
            assert (code, report["ok"]) == (0, 20)

    def test_one_that_expires_in_the_middle_ends_the_run(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr(reach, "UNTRUSTED_MAX", 2)  # a second each

        def answer(number, _):
            if number == 20:
                AUTHORITY.issue_cert("other.example").configure_cert(server.tls)
            return 200, JSON | {"connection": "close"}, GOOD

        with Tls(answer, AUTHORITY, "localhost") as server:
            code, report, _ = run(tmp_path, chats(300), server.base_url, workers=30, max_attempts=50, **SOON)
        assert (code, report["failed"]) == (1, 0)
        assert 20 <= report["ok"] < 100
        assert "stopped: cannot reach" in capsys.readouterr().err

    def test_the_requests_of_another_address_go_on(self, tmp_path, capsys):
        lines = chats(20) + [message(f"m{i}") for i in range(20)]
        with Tls(well, trustme.CA(), "localhost") as bad, OddServer(lambda *_: (200, JSON, GOOD_MESSAGE)) as good:
            places = {"OPENAI_BASE_URL": bad.base_url, "ANTHROPIC_BASE_URL": good.base_url}
            environ = KEYS | {"ANTHROPIC_API_KEY": "k"} | places
            code, report, _ = run(tmp_path, lines, None, environ=environ, workers=40)
        assert (code, report["ok"], report["failed"]) == (1, 20, 0)
        assert "stopped: cannot reach" in capsys.readouterr().err

    @pytest.mark.parametrize("away", [False, True])
    def test_in_a_group_the_others_answer(self, tmp_path, capsys, away):
        other = trustme.CA() if away else AUTHORITY
        with Tls(well, trustme.CA(), "localhost") as bad, Tls(well, other, "localhost") as good:
            given = in_group({"a": bad.base_url, "b": good.base_url}, "openai")
            code, report, _ = run(tmp_path, chats(40), None, workers=4, **given)
        assert (code, report["ok"], report["failed"]) == ((2, 0, 0) if away else (0, 40, 0))
        assert ("stopped: cannot reach" in capsys.readouterr().err) == away
