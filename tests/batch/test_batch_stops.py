"""What cannot change by itself stops a run at any time, with the rest unsent."""

import pytest
from batch_helpers import chat, contents, read_answers, write_lines

from odd_server import JSON, OddServer
from paceline.batch.job import Job
from paceline.batch.progress import Plain
from paceline.config import Config

GOOD = {"choices": [{"message": {"content": "two"}}], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}
FAST = {"*": "60k requests/min"}
KEYS = {"OPENAI_API_KEY": "k", "GEMINI_API_KEY": "a-gemini-key"}


def run(tmp_path, lines, base_url, mode="sync", **given):
    source = write_lines(tmp_path / "in.jsonl", lines)
    config = Config.load(environ={}, given={"base_url": base_url, "limits": FAST, **given})
    code, report = Job(str(source), None, config, environ=KEYS, mode=mode).run(Plain())
    return code, report, tmp_path / "in.results.jsonl"


INVALID = {
    "error": {
        "code": 400,
        "status": "INVALID_ARGUMENT",
        "message": "API key not valid. Please pass a valid API key.",
        "details": [
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "API_KEY_INVALID",
                "domain": "googleapis.com",
            }
        ],
    }
}
EXPIRED = {
    "error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "API key expired. Please renew the API key."}
}


@pytest.mark.parametrize("mode", ["sync", "batch"])
@pytest.mark.parametrize(
    ("body", "detail"), [(INVALID, "API_KEY_INVALID"), ([INVALID], "API_KEY_INVALID"), (EXPIRED, "400")]
)
def test_an_invalid_key_of_gemini_is_a_refused_key(tmp_path, capsys, mode, body, detail):
    with OddServer(lambda *_: (400, JSON, body)) as server:
        code, report, output = run(
            tmp_path, [contents(f"r{i}") for i in range(3)], server.base_url, mode, provider="gemini", workers=1
        )
        assert len(server.asked) == 1
    assert (code, report["ok"], report["failed"], output.read_bytes()) == (2, 0, 0, b"")
    err = capsys.readouterr().err
    assert f"gemini refused the key with a 400 ({detail}); set GEMINI_API_KEY to a key" in err
    assert "3 requests left" in err


def test_another_400_is_a_fault_of_its_request(tmp_path):
    body = {"error": INVALID["error"] | {"message": "Invalid value at 'contents'", "details": []}}
    with OddServer(lambda *_: (400, JSON, body)) as server:
        code, report, _ = run(tmp_path, [contents("a"), contents("b")], server.base_url, provider="gemini")
    assert (code, report["failed"]) == (1, 2)


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_revoked_in_the_middle_ends_the_run(tmp_path, capsys, status):
    def answer(number, _):
        return (200, JSON, GOOD) if number < 20 else (status, JSON, {"error": {"code": "revoked", "message": "no"}})

    lines = [chat(f"r{i}") for i in range(200)]
    with OddServer(answer) as server:
        code, report, output = run(tmp_path, lines, server.base_url, workers=5)
        assert (code, report["ok"], report["failed"]) == (2, 20, 0)
        assert len(server.asked) <= 25
        assert f"openai refused the key with a {status}" in capsys.readouterr().err
        server.answer = lambda *_: (200, JSON, GOOD)
        code, report, output = run(tmp_path, lines, server.base_url, workers=50)
    assert (code, report["ok"], report["skipped"]) == (0, 180, 20)
    assert len({one["custom_id"] for one in read_answers(output)}) == 200


def test_a_member_of_a_group_whose_gemini_key_is_invalid_costs_no_request(tmp_path):
    def served(_, __):
        return 200, JSON, {"candidates": [{"content": {"parts": [{"text": "two"}]}}], "usageMetadata": {}}

    source = write_lines(tmp_path / "in.jsonl", [contents(f"r{i}") for i in range(40)])
    with OddServer(lambda *_: (400, JSON, INVALID)) as bad, OddServer(served) as good:
        servers = {"a": bad.base_url, "b": good.base_url}
        given = {
            "upstreams": {name: {"provider": "gemini", "base_url": url, "key_env": "GEMINI_API_KEY"} for name, url in servers.items()},
            "groups": {"g": {"members": ["a", "b"]}}, "group": "g", "provider": "gemini", "workers": 4, "limits": FAST,
        }  # fmt: skip
        code, report = Job(str(source), None, Config.load(environ={}, given=given), environ=KEYS).run(Plain())
        assert bad.asked
    assert (code, report["ok"]) == (0, 40)
