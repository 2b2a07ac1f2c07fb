"""Answers that the model has not finished: the record, the counts, the exit status and the table say the same of them."""

import asyncio
import re
import signal
import sys
from collections import Counter
from contextlib import closing, suppress
from itertools import product

import pydantic
import pytest
from batch_helpers import Said, chat, errors_in, message, read_answers, run_job, write_lines
from batch_times import KEYS
from crashing import CrashError, Crashing
from unkind_batches import Anthropic, OpenAI, Unkind

import paceline
from odd_server import JSON, OddServer
from paceline.batch.acceptance import Acceptance, maximum_of, require_schema
from paceline.batch.endpoints import AnthropicEndpoints, OpenAIEndpoints
from paceline.batch.notes import read_runs
from paceline.batch.results import ResultsFile, encode_answer
from paceline.batch.tables import RecordedAnswers
from paceline.batch.timing import StopError
from paceline.stores import open_store
from paceline.stores.notes import notes_beside

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
CUT = "The answer is th"


def body(content, reason="stop", **message):
    choices = [{"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": content, **message}}]
    return {"object": "chat.completion", "choices": choices, "usage": {"prompt_tokens": 9, "completion_tokens": 9}}


BODIES = {
    "fine": body('{"n": 5}'),
    "declined": body(None, refusal="I can't help with that."),
    "blocked": body("", "content_filter"),
    "cut_off": body(CUT, "length"),
    "empty": body(""),
    "invalid": body('{"n": "five"}'),
}


def asked_in(request):
    """The name of the body that a prompt asks for."""
    return request["messages"][0]["content"].split()[0]


def answering(*_, bodies=BODIES):
    return OddServer(lambda _, request: (200, JSON, bodies[asked_in(request)]))


@pytest.fixture
def source(tmp_path):
    return write_lines(tmp_path / "in.jsonl", [chat(name, text=name) for name in BODIES])


def run(source, server, said=None, *, workers=4, **options):
    acceptance = Acceptance(SCHEMA, options.pop("cut_off", None), frozenset(options.pop("again", ())))
    given = {"headroom_s": 0.0, "workers": workers, "acceptance": acceptance, **options}
    return run_job(source, server.base_url, said, environ=KEYS, **given)


def sent(server):
    return Counter(asked_in(request) for request in server.asked)


def output_of(source):
    return source.with_name("in.results.jsonl")


def records(source):
    return {one["custom_id"]: one for one in read_answers(output_of(source))}


def recorded(name):
    """The record of an older run, which has taken each body for an answer."""
    return encode_answer(name, {"status_code": 200, "request_id": None, "body": BODIES[name]}, None)


def test_a_run_and_the_same_run_again(source):
    with answering() as server:
        code, report = run(source, server)
        wanted = dict.fromkeys(BODIES.keys() - {"fine"}, 1)
        assert (code, report["ok"], report["failed"], report["errors"]) == (1, 1, 5, wanted)
        assert sent(server) == {"fine": 1, "declined": 1, "blocked": 1, "cut_off": 1, "empty": 2, "invalid": 2}
        found = records(source)
        assert errors_in(output_of(source)) == {name: None if name == "fine" else name for name in BODIES}
        assert all(one["response"]["body"] == BODIES[name] for name, one in found.items())  # nothing paid is lost
    with answering(bodies=BODIES | {"empty": BODIES["fine"]}) as server:
        code, report = run(source, server, said := Said())
        assert (code, report["ok"], report["failed"], report["skipped"]) == (1, 1, 4, 1)
        assert sent(server) == {"empty": 1, "invalid": 2}
    assert "1 answered before, 2 sent again because they failed before, 3 with a final error" in said.text
    assert "1 declined, 1 blocked, 1 invalid; --again declined,blocked,invalid sends them" in said.text
    assert "answers that are cut off: 1; --cut-off raise asks for them again with a larger maximum" in said.text
    with answering(bodies=dict.fromkeys(BODIES, BODIES["fine"])) as server:
        code, report = run(source, server, again=["declined", "blocked"])
        assert sent(server) == {"declined": 1, "blocked": 1}
        assert (code, report["failed"], report["errors"]) == (1, 2, {"cut_off": 1, "invalid": 1})
        assert run(source, server, again=["cut_off", "invalid"])[0] == 0
        assert run(source, server)[1]["skipped"] == len(BODIES)
    assert len(records(source)) == len(BODIES)


@pytest.mark.parametrize("status", [201, 206])
def test_an_answer_of_a_server_that_says_another_success_is_one(tmp_path, status):
    source = write_lines(tmp_path / "in.jsonl", [chat("fine", text="fine")])
    with OddServer(lambda _, request: (status, JSON, BODIES[asked_in(request)])) as server:
        assert [run(source, server)[0] for _ in range(2)] == [0, 0]
        assert len(server.asked) == 1
    assert records(source)["fine"]["response"]["status_code"] == status


def test_a_promise_of_an_answer_is_none(tmp_path):
    source = write_lines(tmp_path / "in.jsonl", [chat("fine", text="fine")])
    with OddServer(lambda *_: (202, JSON, {"id": "job-7", "status": "queued"})) as server:
        assert [run_job(source, server.base_url, environ=KEYS)[0] for _ in range(2)] == [1, 1]
        assert len(server.asked) == 2
    assert records(source)["fine"]["error"]["code"] == "http_202"


@pytest.mark.parametrize(
    ("most", "broken", "sent_each"),
    [(1, (), 1), (2, (), 2), (2, (1,), 2), (3, (1,), 3), (3, (2,), 3), (2, (2,), 2), (6, (), 2)],
)
def test_answers_that_are_none_are_attempts(source, most, broken, sent_each):
    """Each is paid for: those with the numbers in ``broken`` are cut, the others are answers without a text."""
    seen = Counter()

    def answer(_, request):
        name = asked_in(request)
        seen[name] += 1
        return (200, JSON, b'{"choi') if name == "empty" and seen[name] in broken else (200, JSON, BODIES[name])

    with OddServer(answer) as server:
        report = run(source, server, retry={"max_attempts": most, "backoff_s": 0.001}, workers=1)[1]
    assert (report["failed"], seen["empty"]) == (5, sent_each)


def test_an_older_output_is_judged_anew_and_not_paid_again(source):
    output, before = output_of(source), b"".join(map(recorded, BODIES))
    output.write_bytes(before)
    with answering() as server:
        code, report = run(source, server)
        assert (code, report["skipped"], report["failed"], server.asked) == (1, 1, 5, [])
        assert set(report["errors"]) == BODIES.keys() - {"fine"}
        assert output.read_bytes() == before
        run(source, server, again=["empty", "blocked"])
        assert sent(server) == {"empty": 2, "blocked": 1}


def test_the_note_of_a_run_has_its_errors_by_name(source, tmp_path):
    """So that its page and the status of its shards show them."""
    store = f"sqlite:{tmp_path / 'quotas.db'}"
    with answering() as server:
        report = run(source, server, store=store)[1]
    with closing(open_store(store)) as beside:
        (noted,), _ = read_runs(notes_beside(beside))
    assert (noted["errors"], noted["done"], noted["failed"]) == (report["errors"], len(BODIES), 5)


@pytest.mark.parametrize(("cut_off", "most"), [("raise", 80), (50, 50)])
def test_a_larger_maximum(source, cut_off, most):
    def answer(_, request):
        name = asked_in(request)
        return 200, JSON, BODIES["fine" if name == "cut_off" and request["max_tokens"] > 20 else name]

    with OddServer(answer) as server:
        report = run(source, server, cut_off=cut_off)[1]
        assert report["ok"] == 2
        assert [one["max_tokens"] for one in server.asked if asked_in(one) == "cut_off"] == [20, most]


def test_a_larger_maximum_is_sent_once(source):
    """What was cut off at the larger maximum too is not paid for a third time; a number above it is another thing."""
    with answering() as server:
        run(source, server)
    with answering() as server:
        run(source, server, cut_off="raise")
        assert [one["max_tokens"] for one in server.asked if asked_in(one) == "cut_off"] == [80]
    error = {"code": "cut_off", "message": "", "max_tokens": 80, "raised": True}
    assert records(source)["cut_off"]["error"] | {"message": ""} == error
    with answering() as server:
        run(source, server, cut_off="raise")
        run(source, server, cut_off=80)
        assert "cut_off" not in sent(server)
        run(source, server, cut_off=100)
        assert [one["max_tokens"] for one in server.asked if asked_in(one) == "cut_off"] == [100]


def test_a_larger_maximum_that_the_model_does_not_have(source):
    def answer(_, request):
        if request["max_tokens"] > 20:
            return 400, JSON, {"error": {"message": "max_tokens is too large", "code": "invalid_value"}}
        return 200, JSON, BODIES[asked_in(request)]

    with OddServer(answer) as server:
        assert run(source, server, cut_off="raise")[1]["errors"]["cut_off"] == 1
    record = records(source)["cut_off"]
    assert (record["response"]["body"], record["error"]["max_tokens"]) == (BODIES["cut_off"], 20)


def test_answers_that_are_cut_off_can_be_kept(ask, tmp_path, capsys):
    rows = [{"id": name, "prompt": name} for name in ("fine", "cut_off", "declined")]
    with answering() as server:
        options = {"base_url": server.base_url, "journal": tmp_path / "j"}
        told = [(row["answer"], row["error"] and row["error"].split(":")[0]) for row in ask(rows, **options)]
        assert told == [('{"n": 5}', None), (None, "cut_off"), (None, "declined")]
        assert ask(rows, **options)[1]["error"].endswith(f"(length); its text: {CUT}")
        kept = ask(rows, cut_off="keep", **options)
        assert [row["answer"] for row in kept] == ['{"n": 5}', CUT, None]
        assert [row["finish"] for row in kept] == ["complete", "cut_off", "declined"]
        assert (kept[1]["error"], len(server.asked)) == (None, 3)
        capsys.readouterr()
        again = ask(rows, again="declined,blocked", progress=True, **options)
        said = capsys.readouterr().err
        assert "answers that are cut off: 1; cut_off='raise' asks for them again" in said
        assert "the same call again sends the 1 failed request once more" in said
        assert (again[2]["error"][:8], len(server.asked)) == ("declined", 4)
        ask(rows, again=["cut_off", "declined"], **options)
        assert len(server.asked) == 6


@pytest.mark.parametrize(
    ("text", "value", "error"),
    [('{"n": 5}', {"n": 5}, None), ('{"n": 5', None, "cut_off"), ('{"n": "', None, "cut_off")],
)
def test_one_that_is_kept_has_the_form_that_was_asked_for(text, value, error):
    acceptance, response = Acceptance(SCHEMA, "keep"), {"status_code": 200, "body": body(text, "length")}
    found = acceptance.error_of(response, None)
    told = acceptance.told({"response": response, "error": found})
    assert (told.value, found and found["code"]) == (value, error)
    assert told.finish == "cut_off"
    assert told.text is None or told.text == text


class Second(pydantic.BaseModel):
    n: str

    @pydantic.field_validator("n")
    @classmethod
    def is_second(cls, words):
        return words.split()[1]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (Second, '{"n": "five"}'),
        ({"properties": {"n": {"type": "number", "multipleOf": 0.01}}}, '{"n": 1e400}'),
    ],
    ids=["a validator raises an IndexError", "an infinite number"],
)
def test_an_answer_that_cannot_be_checked_is_recorded(schema, text):
    acceptance, response = Acceptance(schema), {"status_code": 200, "body": body(text)}
    found = acceptance.error_of(response, None)
    assert found["code"] == "invalid"
    assert acceptance.told({"response": response, "error": found}).text == text


def test_most_of_the_first_answers_are_cut_off(tmp_path):
    source = write_lines(tmp_path / "in.jsonl", [chat(str(n), text="cut_off" if n % 4 else "fine") for n in range(60)])
    with answering() as server:
        run(source, server, said := Said())
        assert sum("most of the first 20 answers are cut off" in line for line in said.lines) == 1


def test_a_stop_before_the_second_attempt_loses_no_answer(source, monkeypatch):
    """The first answer was paid for; its request waits for a second attempt when the run is interrupted."""
    from paceline.batch.runner import Runner

    asked = Runner._ask
    stopped = []

    async def ask(self, request, metered, *tries):
        if asked_in(request.body) == "empty" and stopped:
            asyncio.get_running_loop().call_soon(self._on_signal)
            await asyncio.sleep(10)
        if asked_in(request.body) == "empty":
            stopped.append(request)
        return await asked(self, request, metered, *tries)

    monkeypatch.setattr(Runner, "_ask", ask)
    with answering() as server:
        run(source, server, workers=1)
    assert records(source)["empty"]["error"]["code"] == "empty"
    assert sent(server)["empty"] == 1


def test_an_error_of_a_filter_is_final(source):
    refused = {"error": {"code": "content_filter", "message": "The prompt was filtered"}}

    def answer(_, request):
        return (400, JSON, refused) if asked_in(request) == "blocked" else (200, JSON, BODIES["fine"])

    with OddServer(answer) as server:
        report = run(source, server)[1]
        assert (report["ok"], report["errors"]) == (5, {"blocked": 1})
        assert run(source, server)[1]["errors"] == {"blocked": 1}
        assert sent(server)["blocked"] == 1


BROKEN = {"error": {"type": "server_error", "message": "The server had an error"}}


@pytest.mark.usefixtures("timing")
@pytest.mark.parametrize(
    ("second", "errors"),
    [
        ((200, BODIES["fine"]), {}),
        ((200, BODIES["invalid"]), {"invalid": 1}),
        ((500, BROKEN), {"empty": 1}),
        ((400, BROKEN), {"empty": 1}),
    ],
)
def test_the_second_result_of_a_batch(tmp_path, monkeypatch, second, errors):
    """What was paid is not lost if there is no second answer; both are counted."""
    line, seen = OpenAI.line, Counter()

    def changed(server, custom_id, prompt):
        found = line(server, custom_id, prompt)
        seen[prompt] += 1
        status, body = second if seen[prompt] == 2 else (200, BODIES["empty" if prompt == "none" else "fine"])
        found["response"] |= {"status_code": status, "body": body}
        return found

    monkeypatch.setattr(OpenAI, "line", changed)
    source = write_lines(tmp_path / "in.jsonl", [chat(name, text=name) for name in ("a", "none", "b")])
    with OpenAI(Unkind()) as server:
        report = run(source, server, mode="batch")[1]
        assert (report["ok"], report["errors"]) == (3 - len(errors), errors)
        assert [len(batch.requests) for batch in server.batches] == [3, 1]
        assert report["input_tokens"] == 9 * (3 + (second[0] == 200))
    assert list(errors_in(output_of(source)).values()).count(None) == 3 - len(errors)
    assert len(read_answers(output_of(source))) == 3


@pytest.mark.usefixtures("timing")
def test_a_stop_before_the_second_result_of_a_batch(tmp_path, monkeypatch):
    """The first answer is in the output, and the next run reads the second one, which is paid for."""
    line, create = OpenAI.line, OpenAIEndpoints.create
    source = write_lines(tmp_path / "in.jsonl", [chat("none", text="none")])
    body = [BODIES["empty"], BODIES["fine"]]

    def changed(server, custom_id, prompt):
        found = line(server, custom_id, prompt)
        found["response"]["body"] = body.pop(0)
        return found

    async def stopped(self, *given):
        batch = await create(self, *given)
        if server.batches[-1] is not server.batches[0]:
            raise StopError(1, "stopped")
        return batch

    monkeypatch.setattr(OpenAI, "line", changed)
    with OpenAI(Unkind()) as server:
        monkeypatch.setattr(OpenAIEndpoints, "create", stopped)
        assert run(source, server, mode="batch")[1]["errors"] == {"empty": 1}
        monkeypatch.setattr(OpenAIEndpoints, "create", create)
        assert records(source)["none"]["error"]["code"] == "empty"
        assert run(source, server, mode="batch")[1]["ok"] == 1
        assert len(server.batches) == 2


@pytest.mark.usefixtures("timing")
@pytest.mark.parametrize("api", [OpenAI, Anthropic])
def test_the_results_of_batches(tmp_path, monkeypatch, api):
    """They are judged as answers one by one, and asked for once more in another batch, and in the next run, where these are."""
    line, ends = api.line, OpenAIEndpoints if api is OpenAI else AnthropicEndpoints
    encode = ends.encode
    stops = {"declined": "refusal", "cut_off": "max_tokens", "blocked": "refusal"}

    def changed(server, custom_id, prompt):
        found, name = line(server, custom_id, prompt), prompt.split()[0]
        if api is OpenAI:
            found["response"]["body"] = BODIES[name]
        else:
            parts = [{"type": "text", "text": {"fine": '{"n": 5}', "empty": "", "cut_off": CUT}.get(name, "five")}]
            found["result"]["message"] |= {"content": parts, "stop_reason": stops.get(name, "end_turn")}
        return found

    monkeypatch.setattr(api, "line", changed)
    asked = chat if api is OpenAI else message
    names = product(BODIES, range(3))
    source = write_lines(tmp_path / "in.jsonl", [asked(f"{name}-{n}", text=f"{name} {n}") for name, n in names])
    with api(Unkind()) as server:
        code, report = run(source, server, mode="batch")
        wanted = dict.fromkeys(BODIES.keys() - {"fine"}, 3)
        if api is Anthropic:
            wanted = {"declined": 6, "cut_off": 3, "empty": 3, "invalid": 3}
        assert (code, report["ok"], report["errors"]) == (1, 3, wanted)
        code, report = run(source, server, mode="batch")
        assert (code, report["skipped"], report["errors"], report["batches"]) == (1, 3, wanted, 2)
        assert [len(batch.requests) for batch in server.batches] == [18, 6, 6, 6]  # empty and invalid
        assert run(source, server, mode="batch")[1]["errors"] == wanted
        assert len(server.batches) == 4
        most = []
        monkeypatch.setattr(ends, "encode", lambda self, one: most.append(one.body["max_tokens"]) or encode(self, one))
        raised = {"mode": "batch", "cut_off": "raise"}
        assert run(source, server, again=["invalid"], **raised)[1]["errors"] == wanted
        assert Counter(most) == {20: 6, 80: 3}
        assert run(source, server, **raised)[1]["errors"] == wanted
        run(source, server, restart=True, **raised)
        assert Counter(most) == {20: 6 + 18 + 6, 80: 3 + 3}


@pytest.fixture
def cutting(tmp_path, monkeypatch):
    """A server all of whose batches end with answers that are cut off, and the input of a run there."""
    line = OpenAI.line

    def cut(*args):
        found = line(*args)
        found["response"]["body"] = BODIES["cut_off"]
        return found

    monkeypatch.setattr(OpenAI, "line", cut)
    with OpenAI(Unkind()) as server:
        yield server, write_lines(tmp_path / "in.jsonl", [chat(f"r{n}", text=f"question {n}") for n in range(2)])


@pytest.mark.usefixtures("timing")
@pytest.mark.sample(4)
@pytest.mark.parametrize("at", range(0, 60, 2))
def test_a_kill_between_two_batches_pays_for_no_third(cutting, monkeypatch, at):
    server, source = cutting
    for step in (at, 7):
        with monkeypatch.context() as patch, suppress(CrashError):
            Crashing(patch, step)
            run(source, server, mode="batch", cut_off="raise")
    run(source, server, mode="batch", cut_off="raise")
    assert {one["error"]["max_tokens"] for one in records(source).values()} == {80}
    assert [len(batch.requests) for batch in server.batches] == [2, 2]


@pytest.mark.usefixtures("timing")
def test_a_batch_of_an_earlier_process_that_is_read_before_a_new_one_is_created_has_its_maxima(cutting, monkeypatch):
    server, source = cutting
    lines = [chat(f"r{n}", text=f"question {n}") for n in range(6)]
    write_lines(source, lines[5:])
    with monkeypatch.context() as patch, suppress(CrashError):
        Crashing(patch, 12)
        run(source, server, mode="batch")
    assert len(server.batches) == 1
    server.unkind.work = 0
    write_lines(source, lines)
    run(source, server, mode="batch", batch_lines=1)
    assert [one["error"].get("max_tokens") for one in records(source).values()] == [20] * 6


class StopsFull(Said):
    """Interrupts a run when a batch was read whose answers are asked for once more, and fills all disks."""

    def __init__(self, patch):
        super().__init__()
        self.patch = patch

    def say(self, text):
        super().say(text)
        if "asked for once more" in text:
            self.patch.setattr(ResultsFile, "write_kept", lambda _: False)
            self.patch.setattr(ResultsFile, "_save", lambda _: None)
            signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("timing")
def test_first_answers_that_fit_nowhere_at_the_end_are_read_again(cutting, monkeypatch):
    server, source = cutting
    with monkeypatch.context() as patch:
        code, report = run(source, server, StopsFull(patch), mode="batch", cut_off="raise")
    assert (code, report["batches_in_progress"], len(server.batches)) == (130, 1, 1)
    run(source, server, mode="batch", cut_off="raise")
    assert [one["error"]["max_tokens"] for one in records(source).values()] == [80, 80]
    assert len(server.batches) == 2


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "objekt"}, "at $.type: "),
        ({"type": "object", "properties": {"n": {"type": "int"}}}, "at $.properties.n.type: "),
        ({"name": "a", "schema": {}}, "'name', 'schema': write"),  # what allows every answer
        ({}, "it is empty: write"),
    ],
)
def test_a_schema_that_is_none_ends_the_run_before_it_begins(schema, why):
    with pytest.raises(paceline.SettingsError) as caught:
        paceline.run([{"prompt": "a"}], model="gpt-5", schema=schema)
    assert str(caught.value).startswith(f"schema: it is no JSON schema: {why}")


def test_no_value_of_a_schema_breaks_its_check():
    with pytest.raises(paceline.SettingsError, match=r"at \$\.\$schema: 5 is no address"):
        require_schema(SCHEMA | {"$schema": 5})
    draft_4 = {"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"n": {"$ref": 5}}}
    require_schema(draft_4)


@pytest.mark.parametrize("missing", ["jsonschema", "referencing"])
def test_a_schema_needs_the_package_that_checks_answers(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(paceline.SettingsError, match=r"jsonschema, 4\.18 or later: pip install -U jsonschema"):
        require_schema(SCHEMA)
    Acceptance(Second)  # a model of pydantic checks them itself


PARTS = {
    "$id": "https://example.org/a",
    "$defs": {
        "a/b": {"type": "integer"},
        "c": {"$anchor": "c"},
        "d": {"$id": "d", "type": "integer", "items": {"$ref": "#/$defs/x"}, "$defs": {"x": {}}},
    },
}
OLDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "definitions": {
        "a": {"$id": "#a", "type": "integer"},
        "b": {"$id": "https://example.org/b#", "definitions": {"c": {"$id": "c", "type": "integer"}}},
    },
}
OLDEST = {
    "$schema": "http://json-schema.org/draft-04/schema#",
    "id": "https://example.org/o",
    "definitions": {"a": {"id": "#a", "type": "integer"}},
}


NEWEST = [
    "#/$defs/a~1b",
    "#/$defs",
    "#",
    "#c",
    "d",
    "https://example.org/d",
    "https://json-schema.org/draft/2020-12/schema",
]


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        *[(PARTS, name) for name in NEWEST],
        *[(OLDER, name) for name in ("#a", "https://example.org/b", "https://example.org/c")],
        *[(OLDEST, name) for name in ("#a", "https://example.org/o#/definitions/a")],
    ],
)
def test_a_schema_may_refer_to_its_parts(parts, name):
    require_schema(parts | {"properties": {"n": {"$ref": name}}, "enum": [{"$ref": "#/none"}]})


@pytest.mark.parametrize(
    "name",
    [
        *["#/$defs/none", "#none", "none", "#/$defs/x", "https://example.org/a#/$defs/none"],
        *["https://example.com/a", "https://example.com/a#/$defs/c"],
    ],
)
def test_a_schema_with_a_reference_to_nothing_ends_the_run_before_it_begins(name):
    found = rf"schema: it has nothing at '{re.escape(name)}', which a \$ref names, and nothing is fetched"
    with pytest.raises(paceline.SettingsError, match=found):
        require_schema(PARTS | {"properties": {"n": {"$ref": name}}, "type": "object"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"again": "refused"}, "again: 'refused' is no name"),
        ({"cut_off": "leave"}, "cut_off is 'leave': write 'keep', 'raise', or the maximum of tokens"),
        ({"cut_off": 0}, "cut_off is 0"),
    ],
)
def test_settings_that_are_none(given, message):
    with pytest.raises(paceline.SettingsError, match=message):
        paceline.run([{"prompt": "a"}], model="gpt-5", **given)


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        ({"max_completion_tokens": 5}, {"max_completion_tokens": 20}),
        ({"generationConfig": {"maxOutputTokens": 5, "k": 1}}, {"generationConfig": {"maxOutputTokens": 20, "k": 1}}),
        ({"inferenceConfig": {"maxTokens": 5}}, {"inferenceConfig": {"maxTokens": 20}}),
        (
            {"generation_config": {"max_output_tokens": 5}},
            {"generation_config": {"max_output_tokens": 20}},
        ),  # of interactions, too
        ({"completion_args": {"max_tokens": 5}}, {"completion_args": {"max_tokens": 20}}),
        (
            {"max_tokens": 4, "fallbacks": [{"model": "m", "max_tokens": 5}]},
            {"max_tokens": 16, "fallbacks": [{"model": "m", "max_tokens": 20}]},
        ),
        ({"messages": []}, None),
    ],
)
def test_where_the_maximum_is(asked, most):
    assert Acceptance(cut_off="raise").raised(asked) == most
    assert maximum_of(asked) == (0 if most is None else 4 if "fallbacks" in asked else 5)


def test_a_number_between_two_maximums_raises_the_smaller_one():
    asked = {"max_tokens": 100, "fallbacks": [{"model": "m", "max_tokens": 5_000}]}
    error = {"code": "cut_off", "message": "", "max_tokens": maximum_of(asked)}
    acceptance, cut = Acceptance(cut_off=1_000), {"status_code": 200, "body": BODIES["cut_off"]}
    assert acceptance.recorded(cut, error).again
    error["max_tokens"] = maximum_of(acceptance.raised(asked))
    assert not acceptance.recorded(cut, error).again


def test_a_run_that_goes_on_after_a_stop_is_no_second_run(source):
    """Its answers are not the last ones: the next run asks again."""
    with answering() as server:
        run(source, server)
    output = output_of(source)
    lines = [line for line in output.read_bytes().splitlines(keepends=True) if b'"custom_id": "fine"' not in line]
    output.write_bytes(b"".join(lines))
    for wanted in ({"fine": 1, "empty": 2, "invalid": 2}, {"empty": 2, "invalid": 2}, {}):
        with answering() as server:
            run(source, server)
            assert sent(server) == wanted


def test_a_second_run_without_a_better_answer_is_the_last():
    """Also of a row that had no answer of its own, as one of the vectors of a request."""
    for body in (None, BODIES["empty"]):
        response = None if body is None else {"status_code": 200, "body": body}
        for repeated in ({}, {"repeated": True}):
            error = {"code": "empty", "message": "the answer has no text"} | repeated
            assert Acceptance().recorded(response, error).again is not bool(repeated)
            assert Acceptance(again=frozenset({"empty"})).recorded(response, error).again


def test_a_record_of_an_error_is_no_answer_in_a_table(tmp_path):
    """A body with status 200 and no result, as older outputs have it."""
    path = tmp_path / "out"
    response = {"status_code": 200, "request_id": None, "body": {"error": {"message": "no"}}}
    path.write_bytes(encode_answer("a", response, None))
    with closing(RecordedAnswers(path, Acceptance())) as answers:
        assert answers.of("a")[:3] == (None, "no_result: the answer has status 200 and no result", None)
