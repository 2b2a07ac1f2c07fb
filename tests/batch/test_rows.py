"""`paceline.run`: rows from Python, by the engine of the command."""

import asyncio
import contextlib
import csv
import datetime as dt
import json
import sqlite3
import sys
import types

import pydantic
import pytest
from batch_helpers import FAST, call, completion, interrupt_when, read_answers
from batch_times import QUICK

import paceline
from odd_server import JSON, OddServer
from paceline.batch.forms import Form, lines_of, schema_at
from waits import join, started, until

ROWS = [{"id": n, "text": f"Question {n}?"} for n in range(5)]


def line_of(row, form):
    """The line of the request of a row."""
    (made,) = lines_of([row], form, "rows")[0]
    return json.loads(made.line)


def sent(emulator):
    return emulator.tally()["admitted"]


def test_rows_come_back_with_their_answers(ask):
    answered = ask(ROWS, prompt="text")
    assert [row["id"] for row in answered] == [0, 1, 2, 3, 4]
    assert all(row["answer"] and row["error"] is None for row in answered)
    assert "answer" not in ROWS[0]


def test_a_function_may_return_messages(ask):
    answered = ask(ROWS[:2], prompt=lambda row: [{"role": "user", "content": row["text"]}], into="reply", max_tokens=5)
    assert all(row["reply"] for row in answered)


def test_answers_cannot_have_the_column_of_the_errors(ask):
    with pytest.raises(paceline.SettingsError, match="'error' is the name of another new column"):
        ask(ROWS, prompt="text", into="error")


def test_a_folder_for_temporary_files_without_room_is_named(ask):
    resource = pytest.importorskip("resource", reason="Windows has no such limits")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(
            paceline.SettingsError, match=r"a temporary file in .* cannot be written: File too large; set"
        ):
            ask(ROWS, prompt="text")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_line_names_what_is_gone_after_the_run(ask, tmp_path, capsys):
    ask(ROWS, prompt="text", progress=True)
    assert "answers are in" not in capsys.readouterr().err
    ask(ROWS, prompt="text", progress=True, journal=tmp_path / "answers.jsonl")
    assert f"answers are in {tmp_path / 'answers.jsonl'}" in capsys.readouterr().err


def test_nothing(ask):
    assert ask([]) == []


def test_rows_of_a_database(ask):
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        query = "select 'One?' as text union all values (null)"
        with pytest.raises(paceline.SettingsError, match="row 1 is a tuple: give dicts"):
            ask(database.execute(query))
        database.row_factory = sqlite3.Row
        assert ask(database.execute(query).fetchall())[0]["answer"]


def test_an_answer_can_be_asked_about(ask):
    assert ask([{"answer": "Yes."}], prompt="Translate: {answer}")[0]["error"] is None


async def test_inside_of_a_loop(ask):
    assert all(row["answer"] for row in ask(ROWS, prompt="text"))


class TestAwaited:
    """`paceline.arun`."""

    @pytest.fixture
    def ask(self, ask, monkeypatch):
        monkeypatch.setattr(paceline, "run", paceline.arun)
        return ask

    async def test_the_loop_goes_on_meanwhile(self, ask):
        ticks = []

        async def tick():
            while True:
                ticks.append(0)
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        answered = await ask(ROWS, prompt="text")
        ticking.cancel()
        assert all(row["answer"] for row in answered)
        assert len(ticks) > 10

    async def test_errors_are_raised(self, ask):
        with pytest.raises(paceline.SettingsError, match="rows is a dict"):
            await ask({})

    @pytest.mark.parametrize("sending", [True, False])
    async def test_a_cancellation_stops_it(self, ask, emulator, tmp_path, sending):
        """Also before it has sent anything."""
        emulator.reset(latency_s=0.2, limits={"*": FAST})
        journal = tmp_path / "answers.jsonl"
        task = asyncio.create_task(ask([{"prompt": f"{n}?"} for n in range(50)], journal=journal, workers=2))
        await (asyncio.to_thread(until, lambda: sent(emulator) >= 4) if sending else asyncio.sleep(0))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        answered = journal.read_text().splitlines() if journal.exists() else []
        assert len(answered) == sent(emulator) < 50


def test_in_a_notebook(ask, monkeypatch):
    """One output, which changes; its last state is empty."""
    shown = []

    def display(data, *, raw, display_id=True):
        assert raw
        assert display_id
        shown.append(data)
        return types.SimpleNamespace(update=display)

    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    monkeypatch.setattr("paceline.batch.progress.InNotebook.every_s", 0.001)
    ask([{"prompt": f"{n}?"} for n in range(100)], progress=True, workers=2)
    assert len(shown) > 1
    assert "/100  " in shown[0]["text/plain"]
    assert shown[0]["text/html"].startswith('<progress value="0.')
    assert shown[-1] == {"text/plain": "", "text/html": ""}


def test_an_interrupt_inside_of_a_loop(ask, emulator, tmp_path, monkeypatch):
    """What was in flight is in the journal, and nothing more is sent. The loop of a notebook lets the cell be interrupted."""
    monkeypatch.setattr("paceline.batch.rows.in_a_loop", lambda: True)
    emulator.reset(latency_s=0.2, limits={"*": FAST})
    journal = tmp_path / "answers.jsonl"
    watch = started(interrupt_when, lambda: sent(emulator) >= 4)
    with pytest.raises(KeyboardInterrupt):
        ask([{"prompt": f"{n}?"} for n in range(50)], journal=journal, workers=2)
    join(watch)
    answered = [json.loads(line) for line in journal.read_text().splitlines()]
    assert len(answered) == sent(emulator) < 50


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ({"a": 1}, {}, "rows is a dict: give a table, a list of dicts"),
        (["a"], {}, "row 1 is a str: give dicts"),
        ([{"a": "b", "of": "c"}], {}, "it is a table in memory with the fields a, of: name the column of the prompts"),
        ([{"prompt": "a"}], {"model": None}, "name the model"),
        ([{"prompt": "a"}], {"wrokers": 2}, "wrokers: no such setting; did you mean 'workers'"),
        (
            [{"prompt": "a", "id": 1}] * 2,
            {"key": "id", "strict": True},
            "row 2: 'id', which identifies the rows, is the same as in row 1: name a column whose values differ with key=",
        ),
        (ROWS, {"prompt": 0}, "prompt is 0: give the name of a column as a text, e.g. '0'"),
        (ROWS, {"prompt": "text", "key": 1}, "key is 1: give the name of a column"),
        (ROWS, {"prompt": "text", "into": 5}, "into is 5: give the name of a column"),
        (ROWS, {"prompt": "txt"}, "and prompt= names 'txt'; did you mean 'text'?"),
        (ROWS, {}, "e.g. paceline.run(rows, ..., model='gpt-5', prompt='text')"),
    ],
)
def test_misuse(ask, rows, options, message):
    with pytest.raises(paceline.PacelineError) as caught:
        ask(rows, **options)
    assert message in str(caught.value)


def test_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    for name in [name for name in sys.modules if name.startswith("paceline.batch.")]:
        module = sys.modules[name]
        monkeypatch.setattr(sys.modules["paceline.batch"], name.rpartition(".")[2], module)  # as it was, at the end
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(vars(paceline), "run", raising=False)
    with pytest.raises(ImportError, match=r"paceline.run needs the extra .cli.: pip install 'paceline\[cli\]'"):
        paceline.run([])


class Reply(pydantic.BaseModel):
    number: int


SCHEMA = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}


@pytest.mark.parametrize(("given", "sent"), [(1.0, 1), (1.5, "1.5"), (dt.date(2026, 11, 27), "2026-11-27"), ("a", "a")])
def test_the_identity_of_a_row(given, sent):
    assert line_of({"id": given, "prompt": "a"}, Form("gpt-5"))["custom_id"] == sent


@pytest.mark.parametrize("value", [None, float("nan")])
def test_a_row_without_its_identity(value):
    row = {"id": value, "prompt": "a"}
    assert line_of(row, Form("gpt-5"))["custom_id"].startswith("row-1-")
    assert line_of(row, Form("gpt-5", key="id"))["invalid"] == "'id', which identifies the rows, has no value"


class TestSchemas:
    """The answers in a form that is asked for."""

    @staticmethod
    def answering(texts):
        """A server that answers the number of a text with it."""

        def answer(_, body):
            return 200, JSON, completion(texts[int(body["messages"][0]["content"])])

        return OddServer(answer)

    @pytest.fixture
    def reply(self, ask):
        """Rows, answered with these texts."""

        def reply(*texts, schema):
            with self.answering(texts) as server:
                rows = [{"prompt": str(number)} for number in range(len(texts))]
                answered = ask(rows, base_url=server.base_url, schema=schema)
                assert server.asked[0]["response_format"]["json_schema"]["schema"]["required"] == ["number"]
                return answered

        return reply

    @pytest.mark.parametrize("schema", [Reply, SCHEMA])
    def test_answers_are_read_and_checked(self, reply, schema):
        good, wrong, none = reply('{"number": 5}', '{"number": "five"}', "five", schema=schema)
        assert (good["answer"], good["error"]) == ({"number": 5}, None)
        for row in (wrong, none):
            assert row["answer"] is None
            assert row["error"].startswith("invalid: the answer does not match the schema")
            assert "five" not in row["error"]
        assert [row["answer_text"] for row in (good, wrong, none)] == [None, '{"number": "five"}', "five"]

    @pytest.mark.parametrize(
        ("model", "place"),
        [
            ("claude-sonnet-4-5", ("params", "output_config", "format", "schema")),
            ("gemini-2.5-flash", ("body", "generationConfig", "responseJsonSchema")),
        ],
    )
    def test_each_provider_is_asked_in_its_own_way(self, model, place):
        found = line_of({"prompt": "a"}, Form(model, schema=SCHEMA))
        for name in place:
            found = found[name]
        assert found == SCHEMA

    def test_the_command(self, tmp_path):
        """The answers are asked for in the form of a file, and checked in a table."""
        source, schema, table = tmp_path / "rows.csv", tmp_path / "schema.json", tmp_path / "answers.csv"
        source.write_text("id,prompt\na,0\nb,1\n")
        schema.write_text(json.dumps(SCHEMA))
        with self.answering(['{"number": 5}', "five"]) as server:
            words = [source, "--model", "gpt-5", "--schema", schema, "-o", table]
            call(*words, base_url=server.base_url, environ={"OPENAI_API_KEY": "key"}, code=1)
            assert server.asked[0]["response_format"]["json_schema"]["schema"] == SCHEMA
        good, wrong = csv.DictReader(table.read_text("utf-8").splitlines())
        assert (json.loads(good["answer"]), good["error"]) == ({"number": 5}, "")
        assert (wrong["answer"], wrong["error"][:8], wrong["answer_text"]) == ("", "invalid:", "five")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "it cannot be read: No such file"),
            ("{", "it is not JSON: Expecting property name"),
            ('["a"]', "it must be an object, e.g."),
            ('{"foo": 1}', "it is no JSON schema: 'foo'"),
            ('{"type": "objekt"}', "it is no JSON schema: at $.type: "),
        ],
    )
    def test_a_file_that_is_no_schema(self, tmp_path, content, message):
        schema = tmp_path / "schema.json"
        if content is not None:
            schema.write_text(content)
        with pytest.raises(paceline.SettingsError) as caught:
            schema_at(str(schema))
        assert f"schema {schema}: {message}" in str(caught.value)

    def test_what_is_no_schema(self, ask):
        with pytest.raises(paceline.SettingsError, match="schema is a int: give a model of pydantic"):
            ask(ROWS, prompt="text", schema=5)


class TestInBatches:
    """By the Batch APIs: the same frame at half the price, and nothing paid twice after a stop."""

    @pytest.fixture
    def ask(self, ask, emulator, timing):
        emulator.reset(batches=QUICK)
        return lambda **options: ask(ROWS, **{"prompt": "text"} | options)

    @pytest.mark.parametrize(
        "settings", [{"mode": "batch"}, {"mode": "auto", "deadline": "6h"}, {"mode": "auto", "deadline": 21_600}]
    )
    def test_the_frame_is_the_same(self, ask, emulator, tmp_path, settings):
        answered = ask(journal=tmp_path / "answers.jsonl", **settings)
        assert [row["id"] for row in answered] == [0, 1, 2, 3, 4]
        assert all(row["answer"] and row["error"] is None for row in answered)
        tally = emulator.tally()
        assert (tally["admitted"], tally["batches"]["paid"]) == (0, 5)
        assert ask(journal=tmp_path / "answers.jsonl", mode="sync") == answered
        assert emulator.tally()["admitted"] == 0

    def test_batches_are_found_again_after_an_interrupt(self, ask, emulator, tmp_path):
        emulator.reset(batches=QUICK | {"turnaround_s": 1_000.0})
        stopper = started(interrupt_when, lambda: emulator.tally()["batches"]["created"])
        with pytest.raises(KeyboardInterrupt):
            ask(output=tmp_path / "out.csv", mode="batch")
        join(stopper)
        emulator.advance(2_000)
        assert all(row["answer"] for row in ask(output=tmp_path / "out.csv", mode="batch"))
        batches = emulator.tally()["batches"]
        assert (batches["paid"], batches["custom_ids"]["most"], batches["unread"]) == (5, 1, 0)
        assert (tmp_path / "out.csv").exists()

    def test_embeddings_in_batches(self, ask, emulator, tmp_path):
        answered = ask(journal=tmp_path / "vectors.jsonl", mode="batch", model="text-embedding-3-small")
        assert [len(row["answer"]) for row in answered] == [1_536] * 5
        assert emulator.tally()["batches"]["paid"] == 5

    def test_a_journal_is_begun_anew_or_mended_on_demand(self, ask, emulator, tmp_path):
        journal = tmp_path / "answers.jsonl"
        ask(journal=journal)
        assert all(row["answer"] for row in ask(journal=journal, restart=True))
        assert (emulator.tally()["admitted"], len(read_answers(journal))) == (10, 5)
        lines = journal.read_text().splitlines(keepends=True)
        journal.write_text("".join([*lines[:2], "not an answer\n", *lines[3:]]))
        with pytest.raises(paceline.PacelineError, match="not an answer of paceline run"):
            ask(journal=journal)
        assert all(row["answer"] for row in ask(journal=journal, repair=True))
        assert emulator.tally()["admitted"] == 11

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"mode": "batch"}, r'mode="batch" needs journal="FILE" or output="FILE"'),
            ({"mode": "auto", "deadline": "6h"}, r'mode="auto" needs journal='),
            ({"mode": "auto", "journal": "j"}, r'mode="auto" and deadline need each other'),
            ({"deadline": "6h"}, r'mode="auto" and deadline need each other'),
            ({"mode": "auto", "deadline": "soon", "journal": "j"}, "deadline: 'soon': write it like '6h'"),
            ({"mode": "auto", "deadline": -1, "journal": "j"}, "deadline is -1"),
            ({"mode": "half"}, "mode is 'half': it must be one of sync, batch, auto"),
        ],
    )
    def test_what_does_not_go_together(self, ask, emulator, settings, words):
        with pytest.raises(paceline.SettingsError, match=words):
            ask(**settings)
        assert emulator.tally()["admitted"] == 0

    def test_gemini_embeds_nothing_in_batches(self, ask, tmp_path, monkeypatch):
        monkeypatch.setenv("GEMINI_API_KEY", "k" * 20)
        with pytest.raises(paceline.PacelineError, match="a batch needs a path like"):
            ask(journal=tmp_path / "v.jsonl", mode="batch", model="gemini-embedding-001")
