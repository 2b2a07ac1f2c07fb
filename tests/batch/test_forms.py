"""Inputs in other forms than lines of requests."""

import csv
import gzip
import io
import json
import sys

import pytest
from batch_helpers import call, chat, message, read_answers, write_lines

from paceline.batch.forms import Form, UnknownFormError, as_lines
from paceline.batch.requests import request_of
from paceline.core.results import QuotaError
from paceline.providers.roots import joined

TEXTS = ["Why is the sky blue?", 'Grüße, "Welt"\nund mehr', "三"]


def lines(content, name="input.jsonl", **form):
    """The lines of requests, and what was recognised."""
    content = content if isinstance(content, bytes) else content.encode()
    file, recognised = as_lines(io.BytesIO(content), name, Form(**form))
    with file:
        return [json.loads(line) for line in file], recognised


def rows(*values):
    return "".join(json.dumps(value) + "\n" for value in values)


def table(separator=","):
    text = io.StringIO()
    csv.writer(text, delimiter=separator).writerows([["id", "text"], *([f"r{n}", one] for n, one in enumerate(TEXTS))])
    return text.getvalue()


EXPECTED = [chat(f"r{n}", text=text, max_completion_tokens=9) for n, text in enumerate(TEXTS)]
for one in EXPECTED:
    del one["body"]["max_tokens"]


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (table(), "p.csv"),
        (table(), "p"),
        (table(";"), "p.csv"),
        (table("\t"), "p.tsv"),
        ("\ufeff" + table(), "p.csv"),
        (table().encode("utf-16"), "p.csv"),
        (gzip.compress(table().encode()), "p.csv.gz"),
        (rows(*({"id": f"r{n}", "text": text} for n, text in enumerate(TEXTS))), "p.jsonl"),
        (json.dumps([{"id": f"r{n}", "text": text} for n, text in enumerate(TEXTS)], indent=1), "p.json"),
    ],
    ids=["csv", "none", "semicolons", "tsv", "mark", "utf-16", "gzip", "lines", "array"],
)
def test_each_form_gives_the_same_requests(content, name):
    found, recognised = lines(content, name, model="gpt-5", column="text", max_tokens=9)
    assert found == EXPECTED
    assert "'text' is the prompt of gpt-5, each identified by 'id'" in recognised


def test_whole_requests_stay_as_they_are():
    asked = [chat("a"), message("b")]
    assert lines(rows(*asked)) == (asked, "")
    assert lines(gzip.compress(rows(*asked).encode()), "x.jsonl.gz")[0] == asked
    assert lines(json.dumps(asked), "x.json") == (asked, "x.json: a JSON array, whole requests")


@pytest.mark.parametrize("row", [{"prompt": "Why?"}, {"messages": [{"role": "user", "content": "Why?"}]}, "Why?"])
def test_rows_of_prompts(row):
    (line,), _ = lines(json.dumps([row]), model="gpt-5")
    assert line["body"]["messages"] == [{"role": "user", "content": "Why?"}]
    assert line["custom_id"].startswith("row-1-")


def test_another_row_at_the_same_place_is_another_request():
    first, second = (lines(rows({"prompt": text}), model="m")[0][0]["custom_id"] for text in ("a", "b"))
    assert first != second


@pytest.mark.parametrize("name", ["url", "custom_id", "body"])
def test_a_row_may_have_the_fields_of_a_request(name):
    (line,), _ = lines(rows({name: "a", "text": "Why?"}), model="gpt-5", column="text")
    assert line["body"]["messages"] == [{"role": "user", "content": "Why?"}]


def test_a_table_of_mails():
    (line,), _ = lines("custom_id,body\na,Why?\n", "p.csv", model="gpt-5", column="body")
    assert line["body"]["messages"] == [{"role": "user", "content": "Why?"}]


def test_a_long_prompt_in_a_table():
    (line,), _ = lines("id,prompt\na," + "x" * 200_000 + "\n", "p.csv", model="gpt-5")
    assert len(line["body"]["messages"][0]["content"]) == 200_000


def test_lines_of_text():
    found, _ = lines("One?\n\nTwo?\n", "p.txt", model="gpt-5")
    assert [line["body"]["messages"][0]["content"] for line in found] == ["One?", "Two?"]


def test_messages_in_a_table_are_json():
    said = json.dumps(MESSAGES).replace('"', '""')
    (line,), _ = lines(f'id,messages\na,"{said}"\n', "p.csv", model="gpt-5")
    assert line["body"]["messages"] == MESSAGES
    with pytest.raises(QuotaError, match="row 1: 'messages' is a text that is no JSON array of messages: write"):
        lines("id,messages\na,Why?\n", "p.csv", model="gpt-5")


@pytest.mark.parametrize("row", [{"q": {"text": "Why?"}, "a": {"text": "b"}}, {"q": [{"text": "Why?"}], "a": "b"}])
def test_one_row_that_is_named_is_a_row(row):
    """A file with one object could be one that has rows."""
    field = "q[text]" if isinstance(row["q"], dict) else "q[0][text]"
    (line,), _ = lines(rows(row), model="m", template=f"{{{field}}}")
    assert line["body"]["messages"] == MESSAGES


def test_a_template():
    (line,), _ = lines(rows({"text": "{a}", "language": "French"}), model="m", template="Into {language}: {text}")
    assert line["body"]["messages"][0]["content"] == "Into French: {a}"


def test_each_provider_has_its_own_requests():
    (claude,), _ = lines(rows({"prompt": "Why?"}), model="claude-sonnet-4-5")
    assert claude["params"]["max_tokens"] == 4_096
    (gemini,), _ = lines(rows({"prompt": "Why?"}), model="gemini-2.5-flash", max_tokens=9)
    assert gemini["url"] == "/v1beta/models/gemini-2.5-flash:generateContent"
    assert gemini["body"]["generationConfig"] == {"maxOutputTokens": 9}
    (other,), _ = lines(rows({"prompt": "Why?"}), model="llama", max_tokens=9)
    assert other["body"]["max_tokens"] == 9


def test_the_model_of_each_row():
    found, _ = lines(rows({"prompt": "a", "model": "gpt-5"}, {"prompt": "a", "model": "claude-sonnet-4-5"}))
    assert ["body" in line for line in found] == [True, False]


def test_bodies_of_requests():
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": "Why?"}]}
    found, recognised = lines(
        rows(
            body | {"metadata": {"row_id": 1}},
            {"model": "claude-sonnet-4-5", "max_tokens": 5, "messages": body["messages"]},
        )
    )
    assert [(line["url"], line["custom_id"][:6]) for line in found] == [
        ("/v1/chat/completions", "row-1-"),
        ("/v1/messages", "row-2-"),
    ]
    assert found[0]["body"] == body
    assert "bodies of requests" in recognised
    (embedding,), _ = lines(rows({"model": "text-embedding-3-small", "input": "a"}))
    assert embedding["url"] == "/v1/embeddings"
    (response,), _ = lines(rows({"model": "gpt-5", "input": "a", "id": 7}))
    assert (response["url"], response["custom_id"]) == ("/v1/responses", 7)


MESSAGES = [{"role": "user", "content": "Why?"}]
ASKED = {"model": "gpt-5", "messages": MESSAGES}
CONTENTS = [{"role": "user", "parts": [{"text": "Why?"}]}]
ENDS = {"chat": "/v1/chat/completions", "claude": "/v1/messages", "gemini": ":generateContent"}
PARAMS = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": MESSAGES}


@pytest.mark.parametrize(
    ("content", "name", "form", "end"),
    [
        (rows({"custom_id": "a", "body": ASKED}), "p.jsonl", {}, "chat"),
        (rows({"custom_id": "a", "body": {"messages": MESSAGES}}), "p.jsonl", {"model": "gpt-5"}, "chat"),
        (rows({"recordId": "a", "modelInput": {"anthropic_version": "b", "max_tokens": 9, "messages": MESSAGES}}), "p.jsonl", {"model": "claude-sonnet-4-5"}, "claude"),
        (rows({"request": {"contents": CONTENTS}}), "p.jsonl", {"model": "gemini-2.5-flash"}, "gemini"),
        (rows({"prompt": "Why?"}), "p.jsonl", {"model": "gemini-2.5-flash"}, "gemini"),
        (json.dumps({"requests": [{"custom_id": "a", "params": PARAMS}]}), "p.json", {}, "claude"),
        (json.dumps({"requests": [{"custom_id": "a", "params": PARAMS}]}, indent=1), "p.json", {}, "claude"),
        (json.dumps({"version": 1, "data": [{"text": "Why?"}]}), "p.json", {"model": "gpt-5", "column": "text"}, "chat"),
        (json.dumps({"text": "Why?"}, indent=1) * 2, "p.json", {"model": "gpt-5", "column": "text"}, "chat"),
        ('custom_id,method,url,body\na,POST,/v1/chat/completions,"' + json.dumps(ASKED).replace('"', '""') + '"\n', "p.csv", {}, "chat"),
        ("id\ttext\r\na\tWhy?\r\n".encode("utf-16"), "p.txt", {"model": "gpt-5", "column": "text"}, "chat"),
        (",text\n0,Why?\n", "p.csv", {"model": "gpt-5", "column": "text"}, "chat"),
        (rows({"question": "Why?", "answer": "b"}), "p.jsonl", {"model": "gpt-5", "column": "question"}, "chat"),
        (rows({"input": MESSAGES, "ideal": "b"}), "p.jsonl", {"model": "gpt-5", "column": "input"}, "chat"),
        (json.dumps([{"instruction": "Why", "input": "?", "output": "b"}]), "p.json", {"model": "gpt-5", "template": "{instruction}{input}"}, "chat"),
    ],
    ids=[
        "together", "mistral", "bedrock", "vertex", "gemini", "anthropic", "anthropic indented", "held", "over lines", "bigquery", "excel", "pandas", "question",
        "evals", "alpaca",
    ],
)  # fmt: skip
def test_forms_of_public_files(content, name, form, end):
    """Each line is a request that can be sent."""
    found, _ = lines(content, name, **form)
    for line in found:
        request = request_of(1, line)
        assert request.path.endswith(ENDS[end])
        assert "Why?" in json.dumps(request.body)
        assert "anthropic_version" not in request.body


def test_an_arrow_file():
    pa = pytest.importorskip("pyarrow")
    content, rows = io.BytesIO(), pa.table({"id": ["a"], "text": ["Why?"]})
    with pa.ipc.new_file(content, rows.schema) as file:
        file.write_table(rows)
    (line,), recognised = lines(content.getvalue(), "p.feather", model="gpt-5", column="text")
    assert line["custom_id"] == "a"
    assert "Arrow, 'text' is the prompt" in recognised


def test_the_batches_of_gemini():
    row = {"key": "k", "request": {"model": "models/gemini-2.5-flash", "contents": [{"parts": [{"text": "a"}]}]}}
    (line,), _ = lines(rows(row))
    assert (line["custom_id"], line["url"]) == ("k", "/v1beta/models/gemini-2.5-flash:generateContent")
    assert line["body"] == {"contents": [{"parts": [{"text": "a"}]}]}


@pytest.mark.parametrize(
    ("content", "name", "form", "message"),
    [
        (table(), "p.csv", {}, "a table with the fields id, text: name the column of the prompts and the model, e.g. paceline run p.csv --model gpt-5 --column text"),
        (table(), "p.csv", {"model": "m", "column": "txt"}, "name a column that it has (it has no 'txt'), e.g."),
        (rows({"prompt": "secret"}), "p.jsonl", {}, "with the fields prompt: name the model, e.g. paceline run p.jsonl --model gpt-5"),
        ("", "p.csv", {}, "p.csv: there is nothing in it"),
        (rows({"key": "k", "request": {"contents": []}}), "p.jsonl", {}, "its requests name no model: give one"),
    ],
)  # fmt: skip
def test_a_form_that_is_not_known_is_one_error_with_a_command(content, name, form, message):
    with pytest.raises(UnknownFormError) as caught:
        lines(content, name, **form)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "name", "form", "message"),
    [
        ("id,text\na,b,c\n", "p.csv", {"column": "text"}, "p.csv: it cannot be read: line 2 has not as many fields"),
        (rows({"prompt": "a"}, {"x": "a"}), "p.jsonl", {}, "p.jsonl: row 2 has no 'prompt'"),
        (rows({"prompt": 5}), "p.jsonl", {}, "row 1: its prompt is a int: it must be a text, or a list of messages"),
        (rows({"a": 1}), "p.jsonl", {"template": "{b}"}, "row 1 has no 'b'"),
        (
            rows({"a": None}),
            "p.jsonl",
            {"template": "{a}"},
            "row 1: 'a', which the template names, has no value (None)",
        ),
        ('[{"a": NaN}]', "p.json", {"template": "{a}"}, "row 1: 'a', which the template names, has no value (nan)"),
        (rows({"a": "b"}), "p.jsonl", {"template": "{a} {"}, "the template '{a} {' cannot be read: Single '{'"),
        (rows({"a": "b"}), "p.jsonl", {"template": "{a.b}"}, "a brace of the text is written twice"),
        (rows({"prompt": ["a"]}), "p.jsonl", {}, "row 1: its prompt is a list of str: it must be a text, or a list of"),
        ("[1]", "p.json", {}, "a row is a int: it must be an object, or a text"),
        (gzip.compress(b"id,text\n" * 99)[:30], "p.csv.gz", {}, "p.csv.gz: it cannot be read: "),
        (
            b"id,text\n\xff\xfe\xfd,a\n",
            "p.csv",
            {"column": "text"},
            "not UTF-8: convert it, e.g. iconv -f WINDOWS-1252 -t UTF-8 p.csv",
        ),
        (b"PK\x03\x04....", "p.xlsx", {}, "p.xlsx: it is an Excel or a zip file, which is not read: save it as CSV"),
        (
            rows({"prompt": [{"from": "human", "value": "a"}]}),
            "p.jsonl",
            {},
            "has the fields from, value: it must have role",
        ),
        (
            rows({"custom_id": "a", "body": {"x": 1}}),
            "p.jsonl",
            {},
            "its body has none of the fields messages, contents, input",
        ),
        (rows(chat("a")), "p.jsonl", {}, "its lines are whole requests: leave out --model"),
        (json.dumps([chat("a")]), "p.json", {}, "its lines are whole requests: leave out --model"),
        (rows(ASKED), "p.jsonl", {"max_tokens": 9}, "it has bodies of requests: leave out --max-tokens and --schema"),
        (
            rows({"key": "a", "request": {"contents": CONTENTS}}),
            "p.jsonl",
            {"schema": {"type": "object"}},
            "it has bodies of",
        ),
    ],
    ids=[
        "fields",
        "column",
        "prompt",
        "template",
        "none",
        "nan",
        "brace",
        "attribute",
        "texts",
        "item",
        "gzip",
        "utf-8",
        "excel",
        "sharegpt",
        "body",
        "requests",
        "array of requests",
        "bodies",
        "gemini",
    ],
)
def test_damage_is_named_with_its_place(content, name, form, message):
    with pytest.raises(QuotaError) as caught:
        lines(content, name, model="m", **form)
    assert message in str(caught.value)


def test_a_missing_package_is_named(monkeypatch):
    for module in ("pyarrow.parquet", "pyarrow.ipc", "compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(QuotaError, match="it is a Parquet file: pip install pyarrow"):
        lines(b"PAR1...", "p.parquet", model="m", column="text")
    with pytest.raises(QuotaError, match="it is an Arrow file: pip install pyarrow"):
        lines(b"ARROW1...", "p.feather", model="m", column="text")
    with pytest.raises(QuotaError, match="compressed by zstd"):
        lines(b"\x28\xb5\x2f\xfd...", "p.csv.zst", model="m", column="text")


def test_column_and_template_exclude_each_other():
    with pytest.raises(QuotaError, match="exclude each other"):
        Form(column="a", template="b")


def test_the_command(tmp_path, emulator):
    """A table is answered, and the same command again sends only what is missing."""
    source = tmp_path / "prompts.csv"
    source.write_text(table(), encoding="utf-8")
    words = [source, "--model", "gpt-5", "--column", "text"]
    _, said = call(*words, base_url=emulator.base_url)
    assert "a table, 'text' is the prompt of gpt-5" in said
    answers = read_answers(tmp_path / "prompts.csv.results.jsonl")
    assert {answer["custom_id"] for answer in answers} == {"r0", "r1", "r2"}
    _, said = call(*words, base_url=emulator.base_url)
    assert "nothing is left to send: requests are known by their ids alone, and --restart sends them again" in said
    source.write_text(table() + "r3,more\n", encoding="utf-8")
    _, said = call(*words, base_url=emulator.base_url)
    assert "4 requests, 3 answered before" in said
    assert "nothing is left" not in said


def test_the_command_says_once_what_is_missing(tmp_path, emulator):
    write_lines(tmp_path / "p.jsonl", [{"prompt": "a"}] * 100)
    _, said = call(tmp_path / "p.jsonl", base_url=emulator.base_url, code=2)
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("root", "path", "url"),
    [
        ("https://a.example", "/v1/chat/completions", "https://a.example/v1/chat/completions"),
        ("https://a.example/openai", "/v1/chat/completions", "https://a.example/openai/v1/chat/completions"),
        ("https://a.example/api/paas/v4", "/v1/chat/completions", "https://a.example/api/paas/v4/chat/completions"),
        ("https://a.example/api/paas/v4", "/api/paas/v4/chat/completions", "https://a.example/api/paas/v4/chat/completions"),
        ("https://a.example/v1beta/openai", "/v1/chat/completions", "https://a.example/v1beta/openai/chat/completions"),
        ("https://a.example/v1beta", "/v1beta/models/m:generateContent", "https://a.example/v1beta/models/m:generateContent"),
        ("https://a.example/api/v3", "/chat/completions", "https://a.example/api/v3/chat/completions"),
        ("https://a.example", "/chat/completions", "https://a.example/chat/completions"),
        ("https://a.example/v1", "/chat/completions", "https://a.example/v1/chat/completions"),
        ("https://a.example/v1", "/v1/chat/completions", "https://a.example/v1/chat/completions"),
        ("https://a.example/openai/v1", "/embeddings", "https://a.example/openai/v1/embeddings"),
        ("https://a.example/openai/v1", "/v1/embeddings", "https://a.example/openai/v1/embeddings"),
        ("https://a.example/openai/v1", "/openai/v1/embeddings", "https://a.example/openai/v1/embeddings"),
        ("https://a.example/v1", "/v1beta/models/m:generateContent", "https://a.example/v1beta/models/m:generateContent"),
        ("https://a.example/v1", "/upload/v1beta/files", "https://a.example/upload/v1beta/files"),
        ("https://api.openai.com/v1", "/chat/completions", "https://api.openai.com/v1/chat/completions"),
        ("https://api.openai.com", "/chat/completions", "https://api.openai.com/v1/chat/completions"),
        ("https://api.openai.com", "/v1/chat/completions", "https://api.openai.com/v1/chat/completions"),
    ],
)  # fmt: skip
def test_one_rule_joins_an_address_and_a_path(root, path, url):
    assert joined(root, path) == url


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/chat/completions", "/openai/v1/chat/completions"])
def test_azure_has_one_path_for_each_form_of_it(path):
    assert request_of(1, chat("a") | {"url": path}, "azure").path == "/openai/v1/chat/completions"
    assert request_of(1, chat("a") | {"url": path}).path == path


def test_a_path_of_azure_with_a_deployment_stays():
    path = "/openai/deployments/d/chat/completions?api-version=2024-10-21"
    assert request_of(1, chat("a") | {"url": path}, "azure").path == path
