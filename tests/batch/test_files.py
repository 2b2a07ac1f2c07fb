"""Images and PDF files by a column of paths."""

import base64
import io
import json

import anthropic.types
import openai.types.chat
import openai.types.responses
import pydantic
import pytest
from batch_helpers import call, completion, read_answers, write_lines
from google.genai import types as gemini

from odd_server import JSON, OddServer
from paceline.batch import files
from paceline.batch.forms import Form, as_lines, lines_of

CONTENT = {
    "a.png": b"\x89PNG\r\n\x1a\n....",
    "b.jpg": b"\xff\xd8\xff\xe0....",
    "c.gif": b"GIF89a..",
    "d.webp": b"RIFF\0\0\0\0WEBPVP8 ",
    "e.pdf": b"\n%PDF-1.7 ...",
    "f.heic": b"\0\0\0\x18ftypheic....",
    "g.txt": b"a text",
    "h.png": b"",
}
ENCODED = {name: base64.b64encode(content).decode() for name, content in CONTENT.items()}


def data_of(name, kind):
    return f"data:{kind};base64,{ENCODED[name]}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, content in CONTENT.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def body(row, model="gpt-5", **form):
    """The body of the request of a row, as it is sent."""
    (made,) = lines_of([row], Form(model, files=("photo",), **form), "rows")[0]
    line = json.loads(made.line)
    if "invalid" in line:
        raise ValueError(line["invalid"])
    return json.loads(files.filled(json.dumps(line.get("params") or line["body"]).encode()))


def test_chat_completions(folder):
    sent = body({"prompt": "What?", "photo": ["a.png", str(folder / "e.pdf")]})
    for one in sent["messages"]:
        pydantic.TypeAdapter(openai.types.chat.ChatCompletionUserMessageParam).validate_python(one)
    assert sent["messages"][0]["content"] == [
        {"type": "image_url", "image_url": {"url": data_of("a.png", "image/png")}},
        {"type": "file", "file": {"filename": "e.pdf", "file_data": data_of("e.pdf", "application/pdf")}},
        {"type": "text", "text": "What?"},
    ]


ASKED = '{"model": "gpt-5", "messages": [{"role": "user", "content": "What?"}]}'
ROW = {"custom_id": "a", "url": "/v1/chat/completions", "photo": "a.png", "body": ASKED}


@pytest.mark.parametrize("other", [{}, {"params": None}], ids=["bodies", "bodies and a column of parameters"])
def test_a_table_with_bodies_as_json(folder, other):
    (made,) = lines_of([ROW | other], Form(files=("photo",)), "rows")[0]
    (said,) = json.loads(made.line)["body"]["messages"]
    assert [part["type"] for part in said["content"]] == ["image_url", "text"]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"url": None}, "url is missing"),
        ({"url": 5}, "url is 5: it must be a path"),
        ({"body": '{"messages": [{"role": "user", "content": "What?"}]}'}, "body.model is missing"),
        ({"body": '{"model": 5, "messages": [{"role": "user", "content": "What?"}]}'}, "body.model is 5"),
        ({"body": '{"model": "gpt-5", "messages": [1]}'}, "no message of the user"),
    ],
)
def test_a_table_with_a_body_that_is_no_request(folder, other, why):
    good, bad = lines_of([ROW, ROW | {"custom_id": "b"} | other], Form(files=("photo",)), "rows")[0]
    assert "invalid" not in json.loads(good.line)
    assert why in json.loads(bad.line)["invalid"]
    assert bad.custom_id == "b"


@pytest.mark.parametrize("asked", ["What?", [{"role": "user", "content": "What?"}]])
def test_responses(folder, asked):
    sent = body({"model": "gpt-5", "input": asked, "photo": ["b.jpg", "e.pdf"]})
    pydantic.TypeAdapter(openai.types.responses.ResponseInputParam).validate_python(sent["input"])
    assert "photo" not in sent
    assert sent["input"][0]["content"] == [
        {"type": "input_image", "detail": "auto", "image_url": data_of("b.jpg", "image/jpeg")},
        {"type": "input_file", "filename": "e.pdf", "file_data": data_of("e.pdf", "application/pdf")},
        {"type": "input_text", "text": "What?"},
    ]


def test_anthropic(folder):
    sent = body({"prompt": "What?", "photo": ["c.gif", "e.pdf"]}, "claude-sonnet-4-5")
    pydantic.TypeAdapter(anthropic.types.MessageParam).validate_python(sent["messages"][0])
    image, document, text = sent["messages"][0]["content"]
    assert image["source"] == {"type": "base64", "media_type": "image/gif", "data": ENCODED["c.gif"]}
    assert (document["type"], document["source"]["media_type"]) == ("document", "application/pdf")
    assert text == {"type": "text", "text": "What?"}


def test_gemini(folder):
    sent = body({"prompt": "What?", "photo": ["f.heic", "e.pdf"]}, "gemini-2.5-flash")
    parts = gemini.Content.model_validate(sent["contents"][0]).parts
    assert [part.inline_data.mime_type for part in parts[:2]] == ["image/heic", "application/pdf"]
    assert parts[0].inline_data.data == CONTENT["f.heic"]
    assert parts[2].text == "What?"


def test_the_last_message_of_the_user_gets_them(folder):
    said = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user", "assistant")]
    contents = [one["content"] for one in body({"messages": said, "photo": "a.png"})["messages"]]
    assert [type(one) for one in contents] == [str, str, str, list, str]
    assert said[3]["content"] == "user"


def test_contents_of_a_table(folder):
    """Data sets have the content in their Parquet files."""
    for cell in (CONTENT["a.png"], {"bytes": CONTENT["a.png"], "path": None}, {"bytes": None, "path": "a.png"}):
        assert ENCODED["a.png"] in json.dumps(body({"prompt": "What?", "photo": cell}))


def test_urls():
    url = "https://images.example/a.png?size=1"
    assert body({"prompt": "?", "photo": url})["messages"][0]["content"][0]["image_url"] == {"url": url}
    sent = body({"prompt": "?", "photo": "https://x.example/e.pdf"}, "claude-sonnet-4-5")["messages"][0]["content"][0]
    assert sent == {"type": "document", "source": {"type": "url", "url": "https://x.example/e.pdf"}}
    sent = body({"model": "gpt-5", "input": "?", "photo": "https://x.example/e.pdf"})["input"][0]["content"][0]
    assert sent == {"type": "input_file", "file_url": "https://x.example/e.pdf"}


@pytest.mark.parametrize(
    ("cell", "model", "message"),
    [
        ("z.png", "gpt-5", "'photo' names 'z.png': there is no file "),
        (".", "gpt-5", "'photo' names '.': it is a folder"),
        ("g.txt", "gpt-5", "'photo': 'g.txt' is no image or PDF file that is known here: openai takes PNG, JPEG, GIF, WEBP, PDF"),
        ("h.png", "gpt-5", "'photo': 'h.png' is empty"),
        ("f.heic", "claude-sonnet-4-5", "'photo': 'f.heic' is image/heic: anthropic takes PNG"),
        ("c.gif", "gemini-2.5-flash", "'photo': 'c.gif' is image/gif: gemini takes PNG, JPEG, WEBP, HEIC, HEIF, PDF"),
        (b"text", "gpt-5", "'photo': its content is no image"),
        ("x" * 5_000, "gpt-5", "there is no file "),
        ("~nobody-of-this-name/a.png", "gpt-5", "there is no file "),
        ("a\0.png", "gpt-5", "there is no file "),
        (None, "gpt-5", "'photo' is None: it must be the path of an image or a PDF file"),
        ("", "gpt-5", "'photo' is '': it must be the path"),
        ({"a": 1}, "gpt-5", "'photo' is a dict: it must be the path"),
        ("https://x.example/a.png", "gemini-2.5-flash", "an URL, which is not sent to Gemini"),
        ("https://x.example/e.pdf", "gpt-5", "is the URL of a PDF file, which chat completions do not take"),
    ],
)  # fmt: skip
def test_what_is_no_file(folder, cell, model, message):
    with pytest.raises(ValueError) as caught:
        body({"prompt": "?", "photo": cell}, model)
    assert message in str(caught.value)


def test_a_missing_column_and_a_request_without_files(folder):
    with pytest.raises(ValueError, match="fields prompt, and --files names 'photo'"):
        body({"prompt": "?"})
    with pytest.raises(ValueError, match="goes to /v1/embeddings, which takes no files"):
        body({"model": "text-embedding-3-small", "input": "?", "photo": "a.png"}, None)
    with pytest.raises(ValueError, match="no message of the user"):
        body({"messages": [{"role": "system", "content": "?"}], "photo": "a.png"})


def test_the_size_of_a_request_is_bounded(folder, monkeypatch):
    monkeypatch.setitem(files.MOST_MB, "gemini", 0.00002)
    assert body({"prompt": "?", "photo": "a.png"}, "gemini-2.5-flash")
    with pytest.raises(ValueError, match=r"its files \(a.png, b.jpg\) are 0.0 MB in base64, and a request may have"):
        body({"prompt": "?", "photo": ["a.png", "b.jpg"]}, "gemini-2.5-flash")


def test_a_line_of_an_input_makes_nobody_read_a_file(folder):
    """A reference is known to this process alone."""
    reference = f"file-{'0' * 32}-{str(folder / 'a.png').encode().hex()};".encode()
    assert files.filled(reference) == reference


def test_paths_may_begin_at_the_table(folder, monkeypatch):
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    content = b"prompt,photo\nWhat?,a.png\n"
    with as_lines(io.BytesIO(content), str(folder / "rows.csv"), Form("gpt-5", files=("photo",))).file as file:
        assert ENCODED["a.png"].encode() in files.filled(file.read())


def reply(*_):
    return 200, JSON, completion("A river.")


def test_from_python(folder, ask):
    rows = [{"id": 1, "photo": "a.png"}, {"id": 2, "photo": "b.jpg"}]
    with OddServer(reply) as server:
        answered = ask(rows, prompt="What is this?", files="photo", base_url=server.base_url)
    assert [row["answer"] for row in answered] == ["A river."] * 2
    text = json.dumps(server.asked)
    assert ENCODED["a.png"] in text
    assert ENCODED["b.jpg"] in text
    assert text.count("What is this?") == 2


def test_a_file_that_is_gone_is_the_error_of_its_row(folder):
    """It was there when the input was checked."""

    def answer(number, sent):
        (folder / "b.jpg").unlink(missing_ok=True)
        return reply(number, sent)

    write_lines(folder / "rows.jsonl", [{"id": "1", "photo": "a.png"}, {"id": "2", "photo": "b.jpg"}])
    words = ["rows.jsonl", "--model", "gpt-5", "--template", "What?", "--files", "photo", "--workers", 1]
    with OddServer(answer) as server:
        call(*words, base_url=server.base_url, environ={"OPENAI_API_KEY": "key"}, code=1)
    error = read_answers(folder / "rows.results.jsonl")[1]["error"]
    assert error["code"] == "file_gone"
    assert "b.jpg cannot be read any more: " in error["message"]
