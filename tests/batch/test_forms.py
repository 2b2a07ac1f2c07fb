"""Inputs in other forms than lines of requests."""

import csv
import gzip
import io
import json
import os
import sys
import tempfile
import zipfile
from functools import partial
from pathlib import Path

import pytest
from batch_helpers import call, chat, message, write_lines

from paceline.batch.caller import Call, Command
from paceline.batch.forms import Form, UnknownFormError, as_lines
from paceline.batch.requests import request_of
from paceline.core.results import SettingsError
from paceline.providers.roots import joined

FULL = Path("/dev/full")
TEXTS = ["Why is the sky blue?", 'Grüße, "Welt"\nund mehr', "三"]


def lines(content, name="input.jsonl", **form):
    """The lines of requests, and what was recognised."""
    content = content if isinstance(content, bytes) else content.encode()
    made = as_lines(io.BytesIO(content), name, Form(**form))
    with made.file:
        return [json.loads(line) for line in made.file], made.recognised


def rows(*values):
    return "".join(json.dumps(value) + "\n" for value in values)


def zipped(name):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr(name, "")
    return made.getvalue()


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
        (table().encode("utf-16-le"), "p.csv"),
        (table().encode("utf-16-be"), "p.csv"),
        (gzip.compress(table().encode()), "p.csv.gz"),
        (rows(*({"id": f"r{n}", "text": text} for n, text in enumerate(TEXTS))), "p.jsonl"),
        (rows(*({"id": f"r{n}", "text": text} for n, text in enumerate(TEXTS))).encode("utf-16-le"), "p.jsonl"),
        (json.dumps([{"id": f"r{n}", "text": text} for n, text in enumerate(TEXTS)], indent=1), "p.json"),
    ],
    ids=["csv", "none", "semicolons", "tsv", "mark", "utf-16", "le", "be", "gzip", "lines", "lines-le", "array"],
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


MESSAGES = [{"role": "user", "content": "Why?"}]


def test_another_row_at_the_same_place_is_another_request():
    first, second = (lines(rows({"prompt": text}), model="m")[0][0]["custom_id"] for text in ("a", "b"))
    assert first != second


def prompts_of(content, name, **form):
    """What each row asks of a model, in one message of a user."""
    messages = [line["body"]["messages"] for line in lines(content, name, model="m", **form)[0]]
    assert {one["role"] for (one,) in messages} == {"user"}
    return [one["content"] for (one,) in messages]


@pytest.mark.parametrize(
    ("content", "name", "form", "prompts"),
    [
        *((rows({field: "a", "text": "Why?"}), "p.jsonl", {"column": "text"}, ["Why?"]) for field in ("url", "custom_id", "body")),
        ("id,prompt\na," + "x" * 200_000 + "\n", "p.csv", {}, ["x" * 200_000]),
        ("One?\n\nTwo?\n", "p.txt", {}, ["One?", "Two?"]),
        *((rows(*TEXTS), name, {}, TEXTS) for name in ("p.jsonl", "-")),
        (gzip.compress(rows(*TEXTS).encode()), "p.ndjson.gz", {}, TEXTS),
        ('id,messages\na,"' + json.dumps(MESSAGES).replace('"', '""') + '"\n', "p.csv", {}, ["Why?"]),
        # a file with one object could be one that has rows
        (rows({"q": {"text": "Why?"}, "a": {"text": "b"}}), "p.jsonl", {"template": "{q[text]}"}, ["Why?"]),
        (rows({"q": [{"text": "Why?"}], "a": "b"}), "p.jsonl", {"template": "{q[0][text]}"}, ["Why?"]),
        (json.dumps([{"messages": MESSAGES}]), "p", {}, ["Why?"]),
        (rows({"text": "{a}", "language": "French"}), "p.jsonl", {"template": "Into {language}: {text}"}, ["Into French: {a}"]),
        ("[INST] One?\n{x}?\n", "p.txt", {}, ["[INST] One?", "{x}?"]),
        ("{x}?\n[1, 2?\n", "p.txt", {}, ["{x}?", "[1, 2?"]),
        ('[id],prompt\n1,"[a"\n', "p.csv", {}, ["[a"]),
    ],
    ids=[
        "url", "custom_id", "body", "long", "text", "texts of json", "texts on standard input", "compressed texts", "messages",
        "one row", "one row with a list", "messages in an array", "template", "bracket", "brace", "bracket in a table",
    ],
)  # fmt: skip
def test_the_prompts_of(content, name, form, prompts):
    assert prompts_of(content, name, **form) == prompts


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
    other = {"model": "claude-sonnet-4-5", "max_tokens": 5, "messages": body["messages"]}
    found, recognised = lines(rows(body | {"metadata": {"row_id": 1}}, other))
    assert [line["url"] for line in found] == ["/v1/chat/completions", "/v1/messages"]
    assert [line["custom_id"][:6] for line in found] == ["row-1-", "row-2-"]
    assert found[0]["body"] == body
    assert "bodies of requests" in recognised
    (embedding,), _ = lines(rows({"model": "text-embedding-3-small", "input": "a"}))
    assert embedding["url"] == "/v1/embeddings"
    (response,), _ = lines(rows({"model": "gpt-5", "input": "a", "id": 7}))
    assert (response["url"], response["custom_id"]) == ("/v1/responses", 7)


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
        (json.dumps({"requests": [{"custom_id": "a", "params": PARAMS}]}), "p.json", {}, "claude"),
        (json.dumps({"requests": [{"custom_id": "a", "params": PARAMS}]}, indent=1), "p.json", {}, "claude"),
        (json.dumps({"version": 1, "data": [{"text": "Why?"}]}), "p.json", {"model": "gpt-5", "column": "text"}, "chat"),
        (json.dumps({"text": "Why?"}, indent=1) * 2, "p.json", {"model": "gpt-5", "column": "text"}, "chat"),
        ('custom_id,method,url,body\na,POST,/v1/chat/completions,"' + json.dumps(ASKED).replace('"', '""') + '"\n', "p.csv", {}, "chat"),
        ("id\ttext\r\na\tWhy?\r\n".encode("utf-16"), "p.txt", {"model": "gpt-5", "column": "text"}, "chat"),
        (",text\n0,Why?\n", "p.csv", {"model": "gpt-5", "column": "text"}, "chat"),
    ],
    ids=[
        "together", "mistral", "bedrock", "vertex", "anthropic", "anthropic indented", "held", "over lines", "bigquery", "excel", "pandas",
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


@pytest.mark.parametrize(
    "model",
    ["whisper-1", "gpt-4o-mini-tts", "gpt-4o-transcribe", "dall-e-3", "gpt-image-1", "omni-moderation-latest", "sora-2",
     "cohere/rerank-v3.5", "imagen-4.0-generate-001", "gpt-realtime", "mistral-moderation-latest"],
)  # fmt: skip
def test_a_model_of_another_kind_gets_no_prompts(model):
    """Each row would be refused, or paid for nothing."""
    content = rows({"prompt": "Why?"})
    with pytest.raises(SettingsError, match=r"doesn't answer prompts: .*--task is 'chat'"):
        lines(content, "p.jsonl", model=model)
    assert len(lines(content, "p.jsonl", model=model, task="chat")[0]) == 1
    both = rows({"prompt": "Why?", "model": "gpt-5"}, {"prompt": "Why?", "model": model})
    assert "doesn't answer prompts" in lines(both, "p.jsonl", model=None)[0][1]["invalid"]


@pytest.mark.parametrize(
    "model",
    [
        "gpt-5",
        "gpt-audio",
        "gemini-2.5-flash-image",
        "llama-guard-4",
        "voxtral-small",
        "deepseek-ocr",
        "veona-1",
        "ft:gpt-4.1-mini-2025-04-14:acme:moderation:Ab1",
        "ft:gpt-4.1:acme:rerank:Ab1",
        "content-moderation",
        "transcribed",
    ],
)
def test_one_that_only_sounds_like_it_gets_them(model):
    assert len(lines(rows({"prompt": "Why?"}), "p.jsonl", model=model)[0]) == 1


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
        (table(), "p.csv", {}, "a table with the fields id, text: name the column of the prompts and the model, e.g. paceline run p.csv --model gpt-6-luna --column text"),
        (table(), "p.csv", {"model": "m", "column": "txt"}, "with the fields id, text, and --column names 'txt'; did you mean 'text'?"),
        ("id,Text ,note\na,b,c\n", "p.csv", {"model": "m", "column": "text"}, "and --column names 'text'; did you mean 'Text '?"),
        (rows({"prompt": "secret"}), "p.jsonl", {}, "with the fields prompt: name the model, e.g. paceline run p.jsonl --model gpt-6-luna"),
        ("", "p.csv", {}, "p.csv: there is nothing in it"),
        (rows({"key": "k", "request": {"contents": []}}), "p.jsonl", {}, "its requests name no model: give one"),
    ],
)  # fmt: skip
def test_a_form_that_is_not_known_is_one_error_with_a_command(content, name, form, message):
    with pytest.raises(UnknownFormError) as caught:
        lines(content, name, **form)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


SOUND = {"prompt": "Why?"}


@pytest.mark.parametrize(
    ("content", "name", "form", "message"),
    [
        ("id,text\na,b\nb\n", "p.csv", {"column": "text"}, "it has 1 fields, and the table has 2 columns"),
        ("id,text\na,b\nb,c,d\n", "p.csv", {"column": "text"}, "has 3 fields, and the table has 2 columns: put a value with ',' in it into quotes"),
        ("id,text\na,b\nb, \n", "p.csv", {"column": "text"}, "'text', which is the prompt, has no value"),
        ("id,text\na,b\nb,\n", "p.csv", {"template": "Say {text}"}, "'text', which the template names, has no value"),
        (rows(SOUND, {"x": "a"}), "p.jsonl", {}, "it has no 'prompt': its fields are x"),
        (rows(SOUND, {"prompt": 5}), "p.jsonl", {}, "its prompt is a int: it must be a text, or a list of messages"),
        (rows(SOUND, {"prompt": ["a"]}), "p.jsonl", {}, "its prompt is a list of str: it must be a text, or a list of"),
        (rows(SOUND, {"prompt": []}), "p.jsonl", {}, "its prompt is a list without a message"),
        (rows(SOUND, {"prompt": [{"from": "human", "value": "a"}]}), "p.jsonl", {}, "has the fields from, value: it must have role"),
        (rows(SOUND) + '{"prompt":\n', "p.jsonl", {}, "it is not JSON: Expecting value"),
        (rows(SOUND) + f'{{"n": {"9" * 5_000}}}\n', "p.jsonl", {}, "it is not JSON: Exceeds the limit"),
        (rows(SOUND) + "5\n", "p.jsonl", {}, "it is a int: it must be an object, or a text"),
        ('["Why?", 5]', "p.json", {}, "it is a int: it must be an object, or a text"),
        (rows(SOUND, {"prompt": None}), "p.jsonl", {"template": "{prompt}"}, "'prompt', which the template names, has no value"),
        ('[{"a": 1}, {"a": NaN}]', "p.json", {"template": "{a}"}, "'a', which the template names, has no value"),
        (rows({"a": ["b"]}, {"a": []}), "p.jsonl", {"template": "{a[0]}"}, "the template does not fit: list index out of range"),
        (rows({"a": 1.5}, {"a": "n/a"}), "p.jsonl", {"template": "{a:.1f}"}, "the template does not fit: Unknown format code"),
        (rows({"a": 1}, {"a": "b"}), "p.jsonl", {"template": "{a.real}"}, "a brace of the text is written twice"),
        (rows(SOUND | {"id": "a"}, SOUND | {"id": "a"}), "p.jsonl", {"key": "id"}, "'id', which identifies the rows, is the same as in row 1"),
        (rows(SOUND | {"id": "a"}, SOUND | {"id": "b" * 513}), "p.jsonl", {"key": "id"}, "has 513 characters: it may have 512"),
        (rows(SOUND | {"id": "a"}, SOUND | {"id": "\ud800"}), "p.jsonl", {"key": "id"}, "'id', which identifies the rows, is no valid text"),
        (rows(SOUND | {"model": "m"}, SOUND | {"model": None}), "p.jsonl", {"model": None}, "'model' has no value"),
        (rows({"messages": MESSAGES}, {"messages": "Why?"}), "p.jsonl", {}, "'messages' is a text that is no JSON array of messages: write"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_sent_says_why(content, name, form, message):
    """The others are requests. Each line has an id."""
    (first, second), _ = lines(content, name, **{"model": "m"} | form)
    assert "body" in first
    assert message in second["invalid"]
    assert second["custom_id"] not in ("", first["custom_id"])


@pytest.mark.parametrize(
    ("content", "name", "form", "message"),
    [
        (rows({"a": 1}), "p.jsonl", {"template": "{b}"}, "with the fields a, and --template names 'b'"),
        (rows({"a": "b"}), "p.jsonl", {"column": "a", "template": "{a}"}, "--column and --template exclude each other"),
        (rows({"a": "b"}), "p.jsonl", {"template": "{a} {"}, "the template '{a} {' cannot be read: Single '{'"),
        (rows({"a": "b"}), "p.jsonl", {"template": "{a} {}"}, "has braces without the name of a column"),
        ("[1]", "p.json", {}, "it is a int: it must be an object, or a text"),
        ("id,text,text\na,b,c\n", "p.csv", {"column": "text"}, "p.csv: two columns have the same name (text)"),
        (gzip.compress(b"id,text\n" * 99, mtime=0)[:30], "p.csv.gz", {}, "p.csv.gz: it cannot be read: "),
        (b"id,text\n\xff\xfe\xfd,a\n", "p.csv", {"column": "text"}, "not UTF-8: convert it, e.g. iconv -f WINDOWS-1252 -t UTF-8 p.csv"),
        (zipped("a.csv"), "p.zip", {}, "p.zip: it is a zip file, which is not read: extract it first"),
        (rows(chat("a")), "p.jsonl", {}, "its lines are whole requests: leave out --model"),
        (json.dumps([chat("a")]), "p.json", {}, "its lines are whole requests: leave out --model"),
        (rows(ASKED), "p.jsonl", {"max_tokens": 9}, "it has bodies of requests: leave out --max-tokens and --schema"),
        (rows({"key": "a", "request": {"contents": CONTENTS}}), "p.jsonl", {"schema": {"type": "object"}}, "it has bodies of"),
    ],
)  # fmt: skip
def test_damage_is_named_with_its_place(content, name, form, message):
    with pytest.raises(SettingsError) as caught:
        lines(content, name, model="m", **form)
    assert message in str(caught.value)


@pytest.fixture
def full(monkeypatch):
    """A folder for temporary files without room; what is said of it."""
    if not FULL.exists():
        pytest.skip("it is a device of Linux")
    place = tempfile.gettempdir()
    monkeypatch.setattr(tempfile, "TemporaryFile", partial(FULL.open, "r+b", buffering=0))
    return f"a temporary file in {place} cannot be written: No space left on device; set TMPDIR to a folder with room"


@pytest.mark.parametrize(
    ("content", "name"), [(table(), "p.csv"), (gzip.compress(rows(chat("a")).encode()), "p.jsonl.gz")]
)
def test_no_room_for_a_temporary_file_is_no_fault_of_the_input(content, name, full):
    with pytest.raises(SettingsError) as caught:
        lines(content, name, model="m", column="text")
    assert str(caught.value) == full


def test_no_room_for_the_copy_of_a_pipe_is_said(full, tmp_path):
    reader, writer = os.pipe()
    os.write(writer, table().encode())
    os.close(writer)
    _, said = call(f"/dev/fd/{reader}", "-o", tmp_path / "out.jsonl", base_url="http://127.0.0.1:1", code=2)
    os.close(reader)
    assert said == f"paceline run: {full}\n"


def test_the_first_line_may_be_the_broken_one():
    found, _ = lines('{"prompt":\n{"prompt": "Why?", "score": NaN}\n"Why?"\n', model="m")
    assert ["invalid" in line for line in found] == [True, False, False]


def test_requests_of_a_program_are_recognised():
    made = as_lines(io.BytesIO(rows({"custom_id": "a", "body": {"x": 1}}).encode()), "p.jsonl", Form("m"))
    with made.file:
        assert made.strict
        assert "its body has none of the fields messages, contents, input" in json.loads(made.file.read())["invalid"]


def test_ids_that_a_supposed_column_does_not_have():
    """The first row of an id has it; the others are known by number and content."""
    found, recognised = lines("id,prompt\na,One\na,Two\n,Three\nb,Four\n", "p.csv", model="m")
    assert [line["custom_id"][:6] for line in found] == ["a", "row-2-", "row-3-", "b"]
    words = "2 by number and content, because their 'id' is empty or repeated; --key names another column"
    assert f"({words})" in recognised


@pytest.mark.parametrize("name", ["text", "id"])
def test_a_single_column_is_the_prompt(name):
    content = f"{name}\nOne?\nOne?\n"
    assert prompts_of(content, "p.csv") == ["One?", "One?"]
    assert len({line["custom_id"] for line in lines(content, "p.csv", model="m")[0]}) == 2


SKY, SEA = "Why is the sky blue?", "Why, then, is the sea blue?"


@pytest.mark.parametrize(
    ("content", "form", "prompts"),
    [
        (f"{SKY}\n", {}, [SKY]),
        (f"{SKY}\n\n{SEA}\n", {}, [SKY, SEA]),
        ("Hello, how are you?\nWell, fine.\n", {}, ["Hello, how are you?", "Well, fine."]),
        ("Berlin,Paris\nRome,Madrid\n", {"lines": True}, ["Berlin,Paris", "Rome,Madrid"]),
        ("[a\n{b\n", {"lines": True}, ["[a", "{b"]),
        ("sky\nsea\n", {"template": "Why is the {prompt} blue?"}, [SKY, "Why is the sea blue?"]),
        (f"Text\n{SKY}\n", {}, [SKY]),
        (f"id,prompt\n1,{SKY}\n", {}, [SKY]),
        (f"id\tof\n1\t{SKY}\n", {"column": "of"}, [SKY]),
        (f"{SKY}\n{SKY}\n", {"header": False}, [SKY, SKY]),
        (f'"{SKY}"\n', {"header": False}, [SKY]),
        (json.dumps([SKY]), {}, [SKY]),
        (json.dumps([SKY], indent=1), {}, [SKY]),
        (f"[INST] {SKY} [/INST]\n[INST] {SEA} [/INST]\n", {}, [f"[INST] {SKY} [/INST]", f"[INST] {SEA} [/INST]"]),
        ('[1] Who?\n["a", "b"]: which?\n', {}, ["[1] Who?", '["a", "b"]: which?']),
        ('["a", "b"]: which?\n', {}, ['["a", "b"]: which?']),
        ('{x} is what?\n{"a": 1} is what?\n', {}, ["{x} is what?", '{"a": 1} is what?']),
        ("{{x}\n", {}, ["{{x}"]),
        ('"Why?" he asked.\n"How?"\n', {}, ['"Why?" he asked.', '"How?"']),
    ],
)  # fmt: skip
def test_plain_lines_without_a_name_are_prompts(content, form, prompts):
    """On standard input, for example. What may be a table is one."""
    for name in ("-", "/dev/fd/63", "prompts", "prompts.md", "prompts.v2"):
        assert prompts_of(content, name, **form) == prompts


@pytest.mark.parametrize(
    "content", ['[{"prompt": "a"}, {"pro', '["a" "b"]', '[\n{"prompt": "a"}\n', "[\n", '{"a": 1', '{\n"prompt": "a'],
)  # fmt: skip
def test_damaged_json_is_no_prompt(content):
    words = "it cannot be read: .*; if each line is a prompt, paceline run - --model m --lines"
    with pytest.raises(SettingsError, match=words):
        lines(content, "-", model="m", caller=Command(("-", "--model", "m")))


@pytest.mark.parametrize("content", ["question,answer\nWhy?,b\n", "Berlin,Paris\nRome,Madrid\n", "a\tb\n1\t2\n"])
def test_what_may_be_a_table_is_asked_about(content):
    words = ("-", "--model", "m", "--tier", "2")
    with pytest.raises(UnknownFormError) as caught:
        lines(content, "-", model="m", caller=Command(words))
    column = content.partition(",")[0].partition("\t")[0]
    for way in (f"--column {column}", "--column column1 --no-header", "--lines"):
        assert f"paceline run - --model m --tier 2 {way}" in str(caught.value)


@pytest.mark.parametrize("name", ["p.csv", "p.tsv", "p.csv.gz"])
@pytest.mark.parametrize(
    "first",
    [SKY, "Name the longest river in Spain", "Say hi to all people in the hall.", "什么是雨\uff1f", "什么是雨。"],
)
def test_a_header_that_may_be_a_prompt_is_asked_about(first, name):
    """Taken for a header, it would not be answered, and nothing would tell."""
    content = f"{first}\n{SKY}\n"
    words = "if its first line is no header, .*--column column1 --no-header"
    with pytest.raises(UnknownFormError, match=words) as told:
        lines(content, name, model="m", caller=Command((name, "--model", "m")))
    assert first not in str(told.value)
    assert len(lines(content, name, model="m", header=False)[0]) == 2
    assert len(lines(content, name, model="m", column=first)[0]) == 1


def test_a_hint_has_the_options_that_were_given():
    words = ("p.csv", "--column=txt", "--limit", "*=5 requests/min", "--store", "redis://:secret@host/0")
    given = "--column text --limit '*=5 requests/min' --store 'redis://***@host/0' --model gpt-5"
    again = Command(words).again("p.csv", column="text", key=None, model="gpt-5")
    assert again == f"paceline run p.csv {given}"
    assert Call().again("rows", column="text", key=None) == "paceline.run(rows, ..., prompt='text')"


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"PAR1...", "p.parquet", "it is a Parquet file: pip install pyarrow"),
        (b"ARROW1...", "p.feather", "it is an Arrow file: pip install pyarrow"),
        (zipped("xl/workbook.xml"), "p.xlsx", "p.xlsx: an Excel file needs pandas and openpyxl: pip install pandas openpyxl"),
        (b"\xd0\xcf\x11\xe0...", "p.xls", "needs pandas and xlrd"),
        (b"\x28\xb5\x2f\xfd...", "p.csv.zst", "compressed by zstd"),
    ],
    ids=["parquet", "arrow", "excel", "old excel", "zstd"],
)  # fmt: skip
def test_a_missing_package_is_named(monkeypatch, content, name, message):
    for module in ("pandas", "pyarrow.parquet", "pyarrow.ipc", "compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SettingsError, match=message):
        lines(content, name, model="m", column="text")


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
        ("https://a.example/openai/v1", "/v1/embeddings", "https://a.example/openai/v1/embeddings"),
        ("https://a.example/openai/v1", "/openai/v1/embeddings", "https://a.example/openai/v1/embeddings"),
        ("https://a.example/v1", "/v1beta/models/m:generateContent", "https://a.example/v1beta/models/m:generateContent"),
        ("https://a.example/v1", "/upload/v1beta/files", "https://a.example/upload/v1beta/files"),
    ],
)  # fmt: skip
def test_one_rule_joins_an_address_and_a_path(root, path, url):
    assert joined(root, path) == url


@pytest.mark.parametrize(
    ("path", "at_azure"),
    [
        *((f"{begin}/chat/completions", "/openai/v1/chat/completions") for begin in ("", "/v1", "/openai/v1")),
        ("/openai/deployments/d/chat/completions?api-version=2024-10-21",) * 2,
    ],
)
def test_azure_has_one_path_for_each_form_of_it(path, at_azure):
    assert request_of(1, chat("a") | {"url": path}, "azure").path == at_azure
    assert request_of(1, chat("a") | {"url": path}).path == path
