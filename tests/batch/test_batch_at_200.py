"""Refusals, errors and pages with status 200, in a run: a record says that a request is answered only for a result."""

from collections import Counter

import pytest
from batch_helpers import GOOD, Said, chat, ids_in, read_answers, run_job, write_lines

from odd_server import JSON, OddServer
from paceline.batch.api import Result, _honest
from paceline.batch.results import encode_answer

pytestmark = pytest.mark.usefixtures("short_probes")

REFUSED = {"error": {"code": 429, "message": "Rate limit exceeded"}}
KEYS = {"OPENAI_API_KEY": "k"}
SHORT = {"backoff_s": 0.01}
SOON = JSON | {"retry-after-ms": "5"}


def run(source, server, view=None, **given):
    return run_job(source, server.base_url, view, environ=KEYS, **{"headroom_s": 0.0, "retry": SHORT} | given)


def texts_of(source):
    return {one["custom_id"]: one["error"] for one in read_answers(source.with_name("in.results.jsonl"))}


@pytest.mark.parametrize("most", [1, 2, 3])
def test_one_that_stays_unreadable_has_as_many_attempts_as_are_set_also_the_first_one(tmp_path, most):
    asked = Counter()

    def answer(_, body):
        asked[body["user"]] += 1
        return 200, JSON, {"choices": []} if body["user"] in ("r0", "r3") else GOOD

    source = write_lines(tmp_path / "in.jsonl", [chat(f"r{n}", user=f"r{n}") for n in range(5)])
    with OddServer(answer) as server:
        code, report = run(source, server, workers=1, retry=SHORT | {"max_attempts": most})
    assert (code, report["ok"], report["failed"]) == (1, 3, 2)
    assert asked == {"r0": most, "r1": 1, "r2": 1, "r3": most, "r4": 1}


@pytest.mark.parametrize(
    "body", [REFUSED, REFUSED | {"choices": []}, {"choices": []}, {"error": {"code": 400, "message": "no"}}]
)
def test_what_is_left_without_a_result_is_an_error(tmp_path, body):
    source = write_lines(tmp_path / "in.jsonl", [chat("a", custom=True), chat("b", custom=False)])
    with OddServer(lambda _, asked: (200, SOON, body if asked["custom"] else GOOD)) as server:
        code, report = run(source, server, retry=SHORT | {"max_attempts": 1})
    assert (code, report["ok"], report["failed"]) == (1, 1, 1)
    errors = texts_of(source)
    assert errors["b"] is None
    assert errors["a"]["code"]


def test_repair_finds_the_others_in_an_old_output_and_sends_them_again(tmp_path):
    source = write_lines(tmp_path / "in.jsonl", [chat(name) for name in "abcd"])
    output = tmp_path / "in.results.jsonl"
    bodies = {"a": GOOD, "b": REFUSED, "c": {"choices": []}, "d": {"error": {"code": 429}, **GOOD}}
    for name, body in bodies.items():
        with output.open("ab") as file:
            file.write(encode_answer(name, {"status_code": 200, "request_id": None, "body": body}, None))
    before, said = output.read_bytes(), Said()
    with OddServer(lambda *_: (200, JSON, GOOD)) as server:
        code, report = run(source, server, said)
        assert (code, report["skipped"], report["failed"]) == (1, 2, 2)
        assert output.read_bytes() == before
        words = "2 lines of the output have status 200 and no result, or are of requests whose result was not read"
        assert f"warning: {words}" in said.lines[1]
        code, report = run(source, server, said := Said(), repair=True)
        assert (code, report["ok"], report["skipped"]) == (0, 2, 2)
        assert len(server.asked) == 2
    assert set(texts_of(source)) == set("abcd")
    [aside] = set(tmp_path.iterdir()) - {source, output}
    assert ids_in(aside) == ["b", "c"]


def test_results_of_batches():
    def answer(body):
        return Result("a", {"status_code": 200, "request_id": None, "body": body}, None)

    assert _honest(answer(GOOD)) == answer(GOOD)
    assert _honest(answer(REFUSED)).error == {"code": "429", "message": "Rate limit exceeded"}
    limited = answer({"base_resp": {"status_code": 1002, "status_msg": "rate limit"}})
    assert _honest(limited).error["message"] == "rate limit"
    assert _honest(answer({"choices": []})).error["code"] == "no_result"
