"""Embeddings of a table: rows share requests, and each has a vector, an error and a record of its own."""

import csv
import json
import math

import pytest
from batch_helpers import call, read_answers, write_lines

import paceline
from odd_server import JSON, OddServer
from paceline.batch import runner
from paceline.batch.forms import Form, lines_of
from paceline.batch.packs import Packer
from paceline.batch.requests import request_of
from paceline.http.describe import describe
from paceline.providers.embeddings import EMBEDDERS, embedder, embeds, vector_of
from waits import until

SMALL = "text-embedding-3-small"
REFUSED = {"error": {"message": "the input is invalid", "type": "invalid_request_error", "code": None}}


def texts_of(body):
    """The texts of a request of any API."""
    if "requests" in body or "content" in body:
        return [one["content"]["parts"][0]["text"] for one in body.get("requests", [body])]
    given = body.get("texts") or body["input"]
    return [given] if isinstance(given, str) else given


def vector(text):
    return [float(len(text)), 0.5]


def answer_of(body):
    """The answer of the API whose request it is."""
    made = [vector(text) for text in texts_of(body)]
    if "requests" in body:
        return {"embeddings": [{"values": one} for one in made]}
    if "content" in body:
        return {"embedding": {"values": made[0]}}
    if "texts" in body:
        return {"embeddings": {"float": made}, "meta": {"billed_units": {"input_tokens": 9}}}
    data = [{"object": "embedding", "index": n, "embedding": one} for n, one in enumerate(made)]
    return {"object": "list", "data": data[::-1], "usage": {"prompt_tokens": 9, "total_tokens": 9}}  # any order


def refusing(status):
    """What a server does that refuses a request with a bad text."""
    return lambda _, body: (status, JSON, REFUSED) if "bad" in texts_of(body) else (200, JSON, answer_of(body))


@pytest.fixture
def odd():
    """Answers with vectors, until a test lets it answer something else."""
    with OddServer(lambda _, body: (200, JSON, answer_of(body))) as one:
        yield one


@pytest.fixture
def ask(ask, monkeypatch):
    for name in ("GEMINI_API_KEY", "CO_API_KEY", "MISTRAL_API_KEY"):
        monkeypatch.setenv(name, "k" * 20)
    return lambda server, rows, **options: ask(rows, **{"base_url": server.base_url, "model": SMALL} | options)


def rows_of(count, bad=()):
    return [{"id": n, "prompt": "bad" if n in bad else "x" * (n % 7 + 1)} for n in range(count)]


def good(answered):
    return all(row["answer"] == vector(row["prompt"]) and row["error"] is None for row in answered)


def test_each_row_has_a_record_of_its_own(ask, emulator, tmp_path):
    journal = tmp_path / "vectors.jsonl"
    first = ask(emulator, rows_of(5), journal=journal)
    assert [len(row["answer"]) for row in first] == [1_536] * 5
    assert [answer["custom_id"] for answer in read_answers(journal)] == list(range(5))
    assert emulator.tally()["admitted"] == 1
    assert ask(emulator, rows_of(8), journal=journal)[:5] == first
    assert (len(read_answers(journal)), emulator.tally()["admitted"]) == (8, 2)


@pytest.mark.parametrize(
    ("model", "settings", "most", "paths"),
    [
        ("gemini-embedding-001", {}, 100, {"batchEmbedContents", "embedContent"}),
        ("embed-v4.0", {}, 96, {"embed"}),
        ("mistral-embed", {"provider": "mistral"}, 512, {"embeddings"}),
        ("bge-m3", {"provider": "openai"}, 32, {"embeddings"}),  # another server like it
        ("my-deployment", {"task": "embed"}, 32, {"embeddings"}),
    ],
)
def test_each_provider_has_its_form_and_its_bound(ask, odd, model, settings, most, paths):
    assert good(ask(odd, rows_of(most + 1), model=model, **settings))
    assert sorted(len(texts_of(body)) for body in odd.asked) == [1, most]
    assert {path.rpartition("/")[2].rpartition(":")[2] for path in odd.paths} == paths


def test_a_request_has_the_tokens_that_its_model_takes(ask, odd):
    rows = [{"prompt": "word " * 2_000} for _ in range(8)]
    assert good(ask(odd, rows, model="mistral-embed", provider="mistral"))
    assert sorted(len(texts_of(body)) for body in odd.asked) == [4, 4]  # of 16,384 tokens


def test_a_request_fits_into_the_quotas():
    limiter = paceline.Limiter({f"openai/{SMALL}": "100 requests/min, 1k tokens/min"})

    def asked(request):
        return describe(limiter.pacer, request.provider, request.path, request.content())

    form = Form(SMALL, column="prompt", provider="openai")
    lines = lines_of([{"prompt": "word " * 100} for _ in range(20)], form, "rows")[0]
    requests = [request_of(number, json.loads(made.line), "openai") for number, made in enumerate(lines, 1)]
    found = list(Packer(asked).packed((one, asked(one)) for one in requests))
    assert [row for request, _ in found for row in request.rows] == requests
    assert max(metered.cost()["tokens"] for _, metered in found) <= 1_000
    assert len(found) == 2


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_row_that_is_refused_takes_no_other_with_it(ask, status, tmp_path, odd):
    count, journal = 64, tmp_path / "vectors.jsonl"
    odd.answer = refusing(status)
    answered = ask(odd, rows_of(count, bad={40}), journal=journal)
    assert len(odd.asked) <= 2 * math.log2(count) + 1
    assert good(answered[:40] + answered[41:])
    assert answered[40]["answer"] is None
    assert "the input is invalid" in answered[40]["error"]
    before = len(odd.asked)
    ask(odd, rows_of(count), journal=journal)  # mended
    assert [texts_of(body) for body in odd.asked[before:]] == [["x" * 6]]


def test_halves_are_sent_side_by_side(ask, odd):
    """Workers that had nothing to do take them."""
    inside, most = set(), []

    def answer(number, body):
        inside.add(number)
        most.append(len(inside))
        texts = texts_of(body)
        if len(texts) < 16 and len(most) < 60:
            until(lambda: len(inside) > 1 or len(odd.asked) > 3)
        inside.discard(number)
        return (400, JSON, REFUSED) if len(texts) > 1 else (200, JSON, answer_of(body))

    odd.answer = answer
    assert good(ask(odd, rows_of(16)))
    assert max(most) > 1
    assert len(odd.asked) == 31  # the bound: twice the rows


def test_few_rows_are_in_memory(ask, monkeypatch, odd):
    """However many workers there are: a request is made when there is room for its rows."""
    made, packed = [], Packer.packed

    def watched(self, source):
        for found in packed(self, source):
            made.append(len(odd.asked))
            yield found

    monkeypatch.setattr(Packer, "packed", watched)
    monkeypatch.setattr(runner, "ROWS_MAX", 64)
    assert good(ask(odd, rows_of(5 * 32), model="bge-m3", provider="openai"))
    assert len(made) == 5
    assert made[2] > 0


@pytest.mark.parametrize(
    ("data", "errors"),
    [
        ([{"index": 0, "embedding": [0.5]}, {"index": 1, "embedding": []}], [None, "empty"]),
        ([{"index": 1, "embedding": [0.5]}], ["empty", None]),
        ([{"index": 0, "embedding": [0.5]}, {"index": 1, "embedding": None}], [None, "empty"]),
        ([{"index": 0, "embedding": "zczMPQ=="}, {"index": 1}], ["empty", "empty"]),
        ([{"embedding": [0.5]}], ["invalid", "invalid"]),
        ([{"index": 0, "embedding": [0.5]}, {"index": 0, "embedding": [0.5]}], ["invalid", "invalid"]),
        ([{"index": 0, "embedding": [0.5]}, {"index": 1, "embedding": [0.5]}, {"index": 2, "embedding": [0.5]}], ["invalid"] * 2),
        ([{"index": 0, "embedding": [0.5, None]}, {"index": 1, "embedding": [0.5]}], ["invalid", None]),
        ([], ["empty", "empty"]),
        ("none", ["invalid", "invalid"]),
    ],
)  # fmt: skip
def test_what_is_no_vector_is_an_error(ask, data, errors, tmp_path):
    journal, bad = tmp_path / "vectors.jsonl", [] if "empty" in errors else [None]

    def answer(_, body):
        again = [{"index": 0, "embedding": bad}]
        return 200, JSON, {"object": "list", "data": data if len(texts_of(body)) > 1 else again}

    with OddServer(answer) as server:
        answered = ask(server, rows_of(2), journal=journal)
    assert [row["error"] and row["error"].partition(":")[0] for row in answered] == errors
    assert [row["answer"] for row in answered] == [None if error else [0.5] for error in errors]
    with OddServer(lambda _, body: (200, JSON, answer_of(body))) as server:
        ask(server, rows_of(2), journal=journal)
    assert sum(len(texts_of(body)) for body in server.asked) == sum(error is not None for error in errors)


def test_rows_without_a_vector_are_sent_once_more(ask, odd):
    def answer(number, body):
        made = answer_of(body)
        made["data"] = [one | {"embedding": one["embedding"] if number else []} for one in made["data"]]
        return 200, JSON, made

    odd.answer = answer
    assert good(ask(odd, rows_of(4)))
    assert len(odd.asked) == 2


def test_what_is_wrong_with_a_row_stays_if_the_second_attempt_fails(ask, odd):
    def answer(number, body):
        made = answer_of(body)
        made["data"] = [one | {"embedding": one["embedding"] if one["index"] else []} for one in made["data"]]
        return (200, JSON, made) if not number else (500, JSON, REFUSED)

    odd.answer = answer
    first, *others = ask(odd, rows_of(4), max_attempts=2, retry={"backoff_s": 0.001})
    assert (first["answer"], first["error"].partition(":")[0]) == (None, "empty")
    assert good(others)
    assert [len(texts_of(body)) for body in odd.asked] == [4, 1]


def test_one_row_has_one_vector(ask, odd):
    data = [{"index": n, "embedding": [0.5]} for n in range(2)]
    odd.answer = lambda *_: (200, JSON, {"object": "list", "data": data})
    (row,) = ask(odd, rows_of(1))
    assert row["answer"] is None
    assert row["error"] == "invalid: the vectors of the answer are not as many as the texts (1)"


def test_an_outage_is_no_reason_to_cut(ask, odd):
    odd.answer = lambda *_: (500, JSON, REFUSED)
    answered = ask(odd, rows_of(8), max_attempts=2, retry={"backoff_s": 0.001})
    assert len(odd.asked) == 2
    assert all(row["answer"] is None and row["error"] for row in answered)


def test_the_command(emulator, tmp_path):
    source, output = tmp_path / "rows.csv", tmp_path / "out.csv"
    source.write_text("id,text\n1,One\n2,Two\n")
    words = source, "--model", SMALL, "--column", "text", "--json"
    out, _ = call(*words, "-o", output, base_url=emulator.base_url)
    assert (json.loads(out)["ok"], json.loads(out)["attempts"]) == (2, 1)
    with output.open() as file:
        assert [len(json.loads(row["answer"])) for row in csv.DictReader(file)] == [1_536, 1_536]
    call(*words, "-o", tmp_path / "chat.csv", "--task", "chat", base_url=emulator.base_url)
    assert emulator.tally()["admitted"] == 3


def test_requests_of_a_file_are_sent_as_they_are(emulator, tmp_path):
    texts = enumerate([["a", "b"], "c"])
    lines = [{"custom_id": str(n), "url": "/v1/embeddings", "body": {"model": SMALL, "input": one}} for n, one in texts]
    call(write_lines(tmp_path / "in.jsonl", lines), base_url=emulator.base_url)
    answers = sorted(read_answers(tmp_path / "in.results.jsonl"), key=lambda answer: answer["custom_id"])
    assert [len(answer["response"]["body"]["data"]) for answer in answers] == [2, 1]
    assert emulator.tally()["admitted"] == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schema": {"type": "object"}}, "schema= and files=; if it gives answers, task= is 'chat'"),
        ({"max_tokens": 5}, "leave out max_tokens=, schema= and files="),
        ({"prompt": lambda _: [{"role": "user", "content": "x"}], "strict": True}, "row 1: .*its text is a list"),
        ({"prompt": "{prompt:.0}", "strict": True}, "row 1: .*its text is empty"),
        ({"task": "rank"}, "task is 'rank': it must be one of embed, chat"),
    ],
)
def test_what_cannot_be_embedded(ask, emulator, options, words):
    with pytest.raises(paceline.PacelineError, match=words):
        ask(emulator, rows_of(2), **options)
    assert emulator.tally()["admitted"] == 0


def test_a_row_without_a_text_is_its_own_error(ask, odd):
    answered = ask(odd, [{"prompt": one} for one in ("One", None, ["Two"], "Three")])
    assert [texts_of(body) for body in odd.asked] == [["One", "Three"]]
    assert [row["answer"] for row in answered] == [vector("One"), None, None, vector("Three")]
    errors = "'prompt', which is the prompt, has no value", f"{SMALL} makes vectors of texts, and its text is a list"
    assert [row["error"] for row in answered] == [None, *(f"invalid_row: {error}" for error in errors), None]


def test_arrow_has_lists_of_a_fixed_size(ask, tmp_path, odd):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    wanted = pa.list_(pa.float32(), 2)

    odd.answer = refusing(400)
    made = ask(odd, pa.table({"prompt": ["a", "bad", "abc"]}), output=tmp_path / "out.parquet")
    assert made.schema.field("answer").type == wanted
    assert made["answer"].to_pylist() == [[1.0, 0.5], None, [3.0, 0.5]]
    found = parquet.read_table(tmp_path / "out.parquet")
    assert (found.schema.field("answer").type, found["answer"].to_pylist()) == (wanted, made["answer"].to_pylist())


@pytest.mark.parametrize(
    ("model", "is_one"),
    [
        ("text-embedding-3-large", True), ("gemini-embedding-001", True), ("embed-multilingual-v3.0", True), ("voyage-4-lite", True),
        ("jina-embeddings-v4", True), ("codestral-embed", True), ("BAAI/bge-large-en-v1.5", True), ("nvidia/nv-embedqa-e5-v5", True),
        ("intfloat/multilingual-e5-large-instruct", True), ("nomic-embed-text", True), ("amazon.titan-embed-text-v2:0", True),
        ("BAAI/bge-reranker-v2-m3", False), ("rerank-v4.0-pro", False), ("gpt-5", False), ("claude-sonnet-4-5", False),
        ("gemini-2.5-flash", False), ("command-a-03-2025", False), ("omni-moderation-latest", False), ("whisper-1", False),
        ("ft:gpt-4.1-mini-2025-04-14:acme:embed-judge:Ab1", False), ("openai/ft:gpt-4.1:acme:bge-x:Ab1", False),
    ],
)  # fmt: skip
def test_which_models_make_vectors(model, is_one):
    assert embeds(model) == is_one


@pytest.mark.parametrize("name", sorted(EMBEDDERS))
def test_a_request_of_one_and_of_several(name):
    how = EMBEDDERS[name]
    path, body = how.api.alone("some/model", "a", how.more)
    assert texts_of(body) == ["a"]
    many, whole = how.api.together(path, [body, how.api.alone("some/model", "bc", how.more)[1]])
    assert texts_of(whole) == ["a", "bc"]
    assert [vector_of(one) for one in how.api.apart(answer_of(whole), 2)] == [[1.0, 0.5], [2.0, 0.5]]
    assert vector_of(answer_of(body)) == [1.0, 0.5]
    assert how.more.items() <= whole.items()
    assert many.startswith("/v")


@pytest.mark.parametrize(
    "body",
    [{"object": "list", "data": []}, {"embeddings": []}, {"embeddings": {"float": []}}, {"data": [{"embedding": []}]}],
)
def test_an_answer_without_a_vector(body):
    assert vector_of(body) == []


@pytest.mark.parametrize(
    "body", [{"choices": []}, {"data": [{"b64_json": "x"}]}, {"data": [{"embedding": [1.0]}] * 2}, [], "x"]
)
def test_an_answer_of_something_else(body):
    assert vector_of(body) is None


def test_a_model_belongs_to_its_provider():
    assert embedder("", SMALL) == embedder("openai", SMALL) == EMBEDDERS["openai"]
    assert embedder("cohere@eu", "embed-v4.0") == EMBEDDERS["cohere"]
    assert embedder("openai", "nomic-embed-text") == embedder("ollama", "nomic-embed-text")
