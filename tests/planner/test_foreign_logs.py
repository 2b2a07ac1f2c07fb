"""Logs in the forms of other programs, what they do not tell, and messages that show no value of them."""

import gzip
import json

import pytest
from click.testing import CliRunner
from tests.planner import logs
from tests.planner.logs import END, LATER, SECRET, T_S, T, lines, read, written

from paceline.cli.app import app
from paceline.core.results import SettingsError
from paceline.planner.logs import FORMS, Logged
from paceline.planner.simulation import Request


@pytest.fixture
def read_text(tmp_path):
    """Read a log with this content."""
    return lambda content, name="log.json": read(written(tmp_path, content, name))


def suffix(form):
    return "log.csv" if "CSV" in form else "log.json"


class TestForms:
    @pytest.mark.parametrize("form", logs.ONE_EACH)
    def test_one_served_one_refused_one_failed(self, read_text, form):
        log = read_text(logs.ONE_EACH[form], suffix(form))
        served, *others = log.requests
        assert served == Logged(T_S, Request("openai/gpt-5", 12, 7, 7), 2)
        outcomes = sorted((one.start_s - T_S, one.refused, one.failed) for one in others)
        assert outcomes == [(30, False, True), (30, True, False)]

    @pytest.mark.parametrize("form", logs.USAGE)
    def test_rows_of_many_requests(self, read_text, form):
        log = read_text(logs.USAGE[form], suffix(form))
        assert [one.start_s - T_S for one in log.requests] == [7.5, 22.5, 37.5, 52.5, 90]  # evenly, and no batch
        assert {one.request.model for one in log.requests} == {"openai/gpt-5"}
        first = [one.request for one in log.requests[:4]]
        assert (sum(one.input_tokens for one in first), sum(one.output_tokens for one in first)) == (10, 6)
        assert log.requests[4].request == Request("openai/gpt-5", 5, 1, 1)
        assert "2 rows stand for 5 requests: the requests of a row are spread evenly over its 1 min" in log.notes[0]

    def test_a_row_of_billions_is_bounded(self, read_text, monkeypatch):
        monkeypatch.setattr("paceline.planner.logs.CALLS_MAX", 5)
        row = {"start_time": T_S, "end_time": T_S + 60, "model": "gpt-5"}
        log = read_text(json.dumps(row | {"num_model_requests": 10**11, "input_tokens": 10**11}))
        assert [one.request.input_tokens for one in log.requests] == [1] * 5
        assert "stand for 100,000,000,000 requests" in log.notes[0]

    @pytest.mark.parametrize(("pack", "name"), [
        (lambda text: gzip.compress(text.encode()), "log.json.gz"),
        (lambda text: text.encode("utf-16"), "log.json"),
        (lambda text: b"\xef\xbb\xbf" + text.encode(), "log.json"),
    ])  # fmt: skip
    def test_packed(self, read_text, pack, name):
        text = logs.ONE_EACH["a JSON array"]
        assert read_text(pack(text), name) == read_text(text, "plain.json")

    def test_the_table_has_each_form_once(self):
        assert len({form.name for form in FORMS}) == len(FORMS)

    def test_columns_of_the_documentation(self, read_text):
        log = read_text("timestamp,model,prompt_tokens,completion_tokens,max_tokens\n"
                           "2026-11-01T10:00:30Z,gpt-5,10,5,20\n2026-11-01T10:00:00+00:00,gpt-5,10,5,\n", "log.csv")  # fmt: skip
        assert [one.start_s - T_S for one in log.requests] == [0, 30]
        assert log.requests[1].request == Request("gpt-5", 10, 5, 20)

    @pytest.mark.parametrize(("model", "provider", "pool"), [
        ("gpt-5", "OPENAI", "openai/gpt-5"),
        ("gemini-2.5-flash", "google_ai_studio", "google_ai_studio/gemini-2.5-flash"),
        ("gemini-2.5-flash", "gcp.gemini", "gemini/gemini-2.5-flash"),
        ("openai/gpt-5", "openrouter", "openrouter/openai/gpt-5"),
        ("openrouter/openai/gpt-5", "openrouter", "openrouter/openai/gpt-5"),
    ])  # fmt: skip
    def test_models_have_their_provider(self, read_text, model, provider, pool):
        row = {"start": 1, "model": model, "provider": provider, "tokens": 3}
        assert read_text(json.dumps(row)).requests[0].request.model == pool

    @pytest.mark.parametrize(("error", "refused"), [
        ('RateLimitError()\n\nTraceback (most recent call last):\n  File "a.py", line 12, in call', True),
        ('ValueError()\n\nTraceback (most recent call last):\n  File "rate_limit.py", line 429, in call\n', False),
        ('Traceback (most recent call last):\n  File "a.py", line 12, in call\nopenai.RateLimitError: Error code: 429\n', True),
        ('Traceback (most recent call last):\n  File "a.py", line 503, in call\nValueError: no\n', False),
        ("Error: no way\n    at RateLimiter.call (/app/limiter.js:429:15)\n    at main", False),
        ("Error: 429 Too Many Requests\n    at main", True),
    ])  # fmt: skip
    def test_the_calls_that_led_to_an_error_are_not_its_words(self, read_text, error, refused):
        row = {**logs.LANGSMITH[3], "error": error}
        [found] = read_text(lines(row)).requests
        assert (found.refused, found.failed) == (refused, not refused)


class TestNotes:
    def test_what_a_log_does_not_tell(self, read_text):
        rows = lines(
            {"start": 1, "model": "m", "input_tokens": 3, "seconds": 1},
            {"start": 2, "model": "m", "input_tokens": 3, "output_tokens": 1},
        )
        assert read_text(rows).notes == [
            "the log does not say which requests were refused",
            "1 of the 2 requests that were served say no output tokens: their output counts as 0",
            "1 of the 2 requests that were served say no duration: the median of the others is taken",
        ]

    def test_spans_without_usage_count_as_requests(self, read_text):
        log = read_text(json.dumps(logs.otlp(logs.span(T_S, 2, **logs.NAMED))))
        assert log.requests[0].request == Request("openai/gpt-5", max_output_tokens=0)
        assert log.notes == ["1 of the 1 requests that were served say no tokens: they count as requests alone"]

    @pytest.mark.parametrize(
        ("log", "fields"),
        [
            (json.loads(logs.USAGE["OpenAI's usage, its API"]), {"has_more": True}),
            ({"runs": logs.LANGSMITH}, {"cursors": {"next": "c"}}),
            ({"data": logs.LANGFUSE}, {"meta": {"cursor": "c"}}),
            ({"data": logs.LANGFUSE}, {"meta": {"page": 1, "totalPages": 2}}),
        ],
    )
    def test_a_page_that_others_follow(self, read_text, log, fields):
        page, last = json.dumps(log | fields), json.dumps(log | dict.fromkeys(fields))
        told = [any("others follow" in note for note in read_text(text).notes) for text in (page, page + last, last)]
        assert told == [True, False, False]

    def test_the_command_says_them(self, tmp_path):
        file = written(tmp_path, logs.USAGE["OpenAI's usage, CSV"], "log.csv")
        command = ["replay", str(file), "--limit", "gpt-5=500 requests/min"]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        assert "usage of OpenAI: 5 in 82 s" in done.stderr
        assert "2 rows stand for 5 requests" in done.stderr
        said = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["log"]
        assert (said["form"], said["requests"], len(said["notes"])) == ("usage of OpenAI", 5, 2)


WRONG = {
    "": "there are no requests",
    "start,model,tokens\n": "there are no requests",
    "start,input_tokens\n1,2\n": "first record has the fields start, input_tokens: unknown log format. Write JSON lines or CSV",
    f"{SECRET}\n{SECRET}\n": "the fields 1, which look like no names",
    f"a,b,c\n{SECRET},1,2\n": "the fields a, b, c: ",
    f"sk-ant-abcd-1234567890,{SECRET} that is very long,1\n1,2,3\n": "the fields 3, which look like no names",
    json.dumps([{"messages": SECRET, "model": "m"}]): "the fields messages, model: ",
    json.dumps({SECRET: 1, "deep": {"start": 1}}): "the fields deep, 1 more: ",
    f"start,model,tokens\n{SECRET},gpt-5,3\n": f"row 1: start is a text of {len(SECRET)} characters: it must be a time like",
    "start,model,tokens\n1,gpt-5,-3\n": "row 1: tokens is -3: it must be a number",
    f"start,model,tokens\n1,gpt-5,3\n1,gpt-5,{SECRET}\n": "row 2: tokens is a text of",
    lines({"start": 1, "model": {"prompt": SECRET}, "tokens": 3}): "model is a dict: it must be the name of a model",
    lines({"start": 1, "model": "m", "tokens": 3}) + "{oops " + SECRET: "line 2 is not JSON: ",
    '{"start": 1%s, "model": "m", "tokens": 3}' % ("0" * 400): "start is a text of 401 characters",
    '{"a":' * 100_000: "nested too deeply",
    "[" * 100_000: "nested too deeply",
    "{" + SECRET: "it cannot be read: Expecting property name",
    '[{"a": ' + json.dumps(SECRET): "it cannot be read: ",
    '{"resourceSpans": null}': "no OTLP export of spans: TypeError",
    json.dumps(logs.otlp({"attributes": [{"key": "gen_ai.request.model", "value": {"stringValue": "m"}}], "startTimeUnixNano": SECRET})):
        "startTimeUnixNano is a text of",
    json.dumps(logs.otlp(logs.span(1, 1, http__method="GET"))): "it has spans of OpenTelemetry, and there are no requests in it",
    json.dumps([{"id": 1, "timestamp": T, "sessionId": None, "userId": SECRET}]): "traces of Langfuse, which cannot be replayed: ",
    json.dumps({"data": [{"start_time": 1, "results": [{"amount": {"value": 1}, "line_item": None}]}]}): "costs of OpenAI, which cannot",
    json.dumps({"data": [{"starting_at": T, "results": [{"uncached_input_tokens": 1, "model": "m"}]}]}): "no number of requests",
    json.dumps({"start_time": T_S, "end_time": T_S, "num_model_requests": 2, "model": "gpt-5"}): "have no end after their start",
    json.dumps({"start_time": T_S, "num_model_requests": 2, "model": None}): "model is missing",
    json.dumps([{"startTime": T, "endTime": END, "call_type": "x", "model": "m", "prompt_tokens": [SECRET]}]): "prompt_tokens is a list",
    lines({"run_type": "llm", "start_time": LATER, "extra": SECRET}): "it has runs of LangSmith, and there are no requests in it",
}  # fmt: skip
"""Logs that cannot be read, and what is said of them."""


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_a_wrong_log_says_what_would_be_right_and_shows_no_value(tmp_path, text):
    file = written(tmp_path, text, "log.csv")
    with pytest.raises(SettingsError) as caught:
        read(file)
    assert WRONG[text] in str(caught.value)
    assert str(file) in str(caught.value)
    assert "secret" not in str(caught.value).replace(str(file), "")
    assert "abcd" not in str(caught.value)
