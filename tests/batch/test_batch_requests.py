import io
import json

import pytest
from batch_helpers import chat, contents, message, write_lines

from paceline import Limiter
from paceline.batch import requests
from paceline.batch.check import Checker, InputError, check
from paceline.batch.endpoints import GeminiEndpoints, OpenAIEndpoints
from paceline.batch.index import Index
from paceline.batch.requests import BadLineError, Source, decode, read_lines, request_of
from paceline.config import Config


def raw(value):
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def test_reads_both_formats():
    ours, theirs = request_of(1, chat("a")), request_of(2, message("b"))
    assert (ours.provider.name, ours.path, ours.model) == ("openai", "/v1/chat/completions", "gpt-5")
    assert (theirs.provider.name, theirs.path, theirs.model) == ("anthropic", "/v1/messages", "claude-sonnet-4-5")
    assert request_of(3, chat("c") | {"url": "/v1/messages"}).provider.name == "anthropic"
    assert request_of(4, chat("d"), "groq").provider.name == "groq"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"{", "not JSON"),
        (b"\xff{}", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"custom_id": "a", "body": {"temperature": NaN}}', "NaN"),
        (b"[1]", "not a JSON object"),
        (b'{"custom_id": "\\ud800"}', "not UTF-8"),
        (chat(""), "custom_id"),
        (chat(7.5), "custom_id is 7.5: it must be a string of 1 to 512 characters, or an integer"),
        (chat(True), "custom_id is True"),
        (chat(10**600), "1 to 512"),
        (chat("x" * 600), "1 to 512"),
        (chat("a") | {"method": "GET"}, "only 'POST'"),
        (chat("a") | {"url": "https://elsewhere/v1"}, "must be a path"),
        ({"custom_id": "a"}, "url is missing"),
        (chat("a") | {"body": "text"}, "body is missing or not a JSON object"),
        (message("a") | {"params": []}, "params is missing or not a JSON object"),
        (chat("a", model=None), "body.model is missing"),
        (chat("a", stream=True), "stream is true"),
        (chat("a", background=True), "body.background is true"),
        (contents("a") | {"url": "/v1beta/models/gemini-2.5-flash:streamGenerateContent"}, "model is missing"),
        (chat("a") | {"body": {"model": "gpt-5"}}, "body.messages is missing"),
        (chat("a") | {"url": "/v1/embeddings"}, "body.input is missing"),
        (message("a") | {"params": {"model": "claude-haiku-4-5", "messages": [1]}}, "max_tokens is missing"),
        (None, "longer than 256 MB"),
    ],
)
def test_says_what_is_wrong(value, words):
    with pytest.raises(BadLineError, match=words):
        request_of(1, decode(None if value is None else raw(value)))


@pytest.mark.parametrize(
    "url",
    [
        "https://ada:{}@elsewhere/v1/chat/completions", "https://elsewhere/v1?api_key={}",
        "/v1beta/models/gemini-2.5-flash:streamGenerateContent?key={}", "/v1beta/models/gemini-2.5-flash:generateContent?alt=json&key={}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("encode", [OpenAIEndpoints, GeminiEndpoints])
def test_a_key_in_the_url_of_a_line_is_in_no_message(url, encode):
    key = "AIzaSy0123456789abcdef"
    with pytest.raises(BadLineError, match="url is") as found:
        encode(None).encode(request_of(1, contents("a") | {"url": url.format(key)}, "gemini"))
    assert key not in str(found.value)
    assert "***" in str(found.value)


def test_the_model_in_the_path_is_enough_and_holds():
    read = request_of(1, contents("a"), "gemini")
    assert (read.provider.name, read.model) == ("gemini", "gemini-2.5-flash")
    both = contents("a") | {"body": contents("a")["body"] | {"model": "models/gemini-2.5-pro"}}
    assert request_of(1, both, "gemini").model == "gemini-2.5-flash"
    azures = chat("a", model=None) | {"url": "/openai/deployments/mine/chat/completions"}
    assert request_of(1, azures, "azure").model == "mine"
    for url, words in (
        ("/v1beta/models/gemini-2.5-flash:streamGenerateContent", "streamed answers are not supported"),
        ("/v1beta/models/:generateContent", "model is missing"),
    ):
        with pytest.raises(BadLineError, match=words):
            request_of(1, contents("a") | {"url": url}, "gemini")
    with pytest.raises(BadLineError, match="contents is missing"):
        request_of(1, contents("a") | {"body": {}}, "gemini")


def test_lines_are_bounded_and_counted(monkeypatch):
    monkeypatch.setattr(requests, "LINE_MAX", 10)
    file = io.BytesIO(b"\xef\xbb\xbfone\n\n  \n" + b"x" * 50 + b"\nfour\n0123456789\nlast")
    assert list(read_lines(file)) == [(1, b"one\n"), (4, None), (5, b"four\n"), (6, b"0123456789\n"), (7, b"last")]


def checked(tmp_path, lines, **given):
    limiter = Limiter(**Config.load(environ={}, given=given).arguments("openai"))
    index = Index()
    with write_lines(tmp_path / "in.jsonl", lines).open("rb") as file:
        return check(Source(file), Checker(limiter, index)), index


class Growing(io.BytesIO):
    """An input whose writer goes on as soon as its end has been read."""

    def __init__(self, lines, cut):
        super().__init__(lines[:cut])
        self._rest = lines[cut:]

    def readline(self, size=-1):
        line = super().readline(size)
        if not line.endswith(b"\n"):
            at, rest, self._rest = self.tell(), self._rest, b""
            self.seek(0, io.SEEK_END)
            self.write(rest)
            self.seek(at)
        return line


THREE = b"".join(raw(chat(name)) + b"\n" for name in "abc")


@pytest.mark.parametrize("cut", range(1, len(THREE), 29))
def test_an_input_that_grows_while_it_is_checked_ends_before_its_unfinished_line(cut):
    whole = THREE[:cut].count(b"\n") + (THREE[cut : cut + 1] == b"\n")
    plan = check(Source(Growing(THREE, cut)), Checker(Limiter(**Config().arguments("openai")), Index()))
    assert (plan.requests, plan.last_line) == (whole, whole)
    assert plan.end <= cut
    lines = list(read_lines(Growing(THREE, cut)))
    assert b"".join(line for _, line in lines) == THREE[:cut]
    assert [number for number, _ in lines] == list(range(1, len(lines) + 1))


def test_a_last_line_that_stays_unfinished_is_an_error():
    with pytest.raises(InputError, match="line 3: not JSON"):
        check(Source(io.BytesIO(THREE[:-60])), Checker(Limiter(**Config().arguments("openai")), Index()))


def test_plan_adds_up(tmp_path):
    lines = [chat("a"), chat("b", model="gpt-5-2025-08-07"), message("c")]
    plan, index = checked(tmp_path, lines, limits={"*": "500 requests/min,400k tokens/min"})
    assert plan.requests == 3
    counts = {name: share.requests for name, share in plan.shares.items()}
    assert counts == {"openai/gpt-5": 2, "anthropic/claude-sonnet-4x": 1}
    assert plan.shares["openai/gpt-5"].cost["output_tokens"] == 40
    assert list(plan.providers) == ["openai", "anthropic"]
    assert not plan.warnings
    assert [index.line_of(name) for name in "abcd"] == [1, 2, 3, None]


def test_every_problem_has_its_line(tmp_path):
    lines = [chat("a"), chat("b") | {"url": "/v1/images"}, chat("a"), chat("c", max_tokens=2_000), chat("d"), chat("a")]
    with pytest.raises(InputError) as error:
        checked(tmp_path, lines, limits={"*": "5 requests/min,1k tokens/min"})
    said = str(error.value).splitlines()
    wrong = [f"line {number}" for number in (2, 3, 4, 6)]
    assert [line.partition(":")[0] for line in said] == [*wrong, "nothing has been sent"]
    assert "'/v1/images'" in said[0]
    assert said[1].endswith("custom_id is already in line 1: it must be unique")
    assert "2,0" in said[2]
    assert "gpt-5 is 1,000 at once" in said[2]


def test_many_problems_are_counted(tmp_path):
    with pytest.raises(InputError) as error:
        checked(tmp_path, [chat("same") for _ in range(50)])
    said = str(error.value).splitlines()
    assert len(said) == 22
    assert said[-2] == "and 29 more"


@pytest.mark.long("a file of many lines")
def test_duplicates_far_apart(tmp_path):
    names = [f"id{i}" for i in range(25_000)]
    with pytest.raises(InputError, match="line 25001: custom_id is already in line 17:"):
        checked(tmp_path, [chat(name) for name in [*names, "id16"]], limits={"*": "500 requests/min"})


def test_unknown_models_are_warned_of_once(tmp_path):
    lines = [chat("a", model="house-model"), chat("b", model="house-model"), chat("c")]
    plan, _ = checked(tmp_path, lines)
    assert len(plan.warnings) == 1
    assert "'house-model'" in plan.warnings[0]
    assert "--limit 'house-model=" in plan.warnings[0]
    given, _ = checked(tmp_path, lines, limits={"house-model": "10 requests/min"})
    assert not given.warnings
