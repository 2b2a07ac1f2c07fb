"""Runs by the Batch APIs, against the emulator: nothing is paid twice and nothing stays unread, whatever goes wrong."""

import io
import json
import math
import random
import signal
import time
from array import array
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import AsyncMock, Mock

import openai
import pytest
from batch_helpers import FAST, Said, call, chat, chats, contents, finish, message, read_answers, run_job, write_lines
from batch_times import KEYS, QUICK, SOON
from crashing import CrashError, Crashing
from hypothesis import given
from hypothesis import strategies as st

from grids import some
from paceline.batch import offline
from paceline.batch import timing as timing_module
from paceline.batch.api import BrokenError, NoResultsError, NotYetError, RefusedError, Web
from paceline.batch.chunks import BatchKind, Chunk, ChunkItem, ProviderQueue, cut
from paceline.batch.endpoints import (
    AnthropicEndpoints,
    GeminiEndpoints,
    MistralEndpoints,
    OpenAIEndpoints,
    TogetherEndpoints,
    time_of,
)
from paceline.batch.forms import Form
from paceline.batch.index import Index
from paceline.batch.journal import BatchJournal
from paceline.batch.requests import BadLineError
from paceline.batch.results import OutputError
from paceline.batch.runner import Runner
from paceline.config.servers import address_of
from paceline.core.results import SettingsError
from paceline.providers.registry import provider_named
from waits import until


def lines_of(style, count):
    """Requests for a provider's Batch API."""
    if style == "anthropic":
        return [message(f"r {n}") for n in range(count)]
    if style == "gemini":
        return [contents(f"r {n}", text=f"question {n}") for n in range(count)]
    below = "/openai" if style == "azure" else ""
    return [chat(f"r{n}", text=f"question {n}") | {"url": f"{below}/v1/chat/completions"} for n in range(count)]


class StopsSoon(Said):
    """Interrupts a run when its two batches are seen."""

    every_s = 0.01

    def show(self, text, share):
        if "2 batches: 2 " in text:
            signal.raise_signal(signal.SIGINT)


class Run:
    """A run of one input against the emulator, which can be repeated."""

    def __init__(self, emulator, folder, lines, provider=None):
        self.emulator = emulator
        self.given = {"provider": provider} if provider else {}
        self.source = write_lines(folder / "in.jsonl", lines)
        self.output = folder / "in.results.jsonl"
        self.journal = folder / "in.results.jsonl.batches.jsonl"
        self.lines = lines
        self.said = Said()

    def start(self, *, mode="batch", most=4, environ=KEYS, **options):
        options = {"batch_lines": most if mode != "sync" else None, "mode": mode} | self.given | options
        return run_job(self.source, self.emulator.base_url, self.said, environ=environ, **options)

    def batches(self):
        return self.emulator.tally()["batches"]

    def client(self):
        return openai.OpenAI(base_url=f"{self.emulator.base_url}/v1", api_key="any", max_retries=0)

    def completes(self, **options):
        """A run answers each request, and nothing is paid twice or left unread."""
        assert self.start(**options)[0] == 0
        self.check()

    def check(self, *, paid=None, failed=0):
        """Every request has one line of output, was paid once at most, and no result is unread."""
        answers = read_answers(self.output)
        assert sorted(one["custom_id"] for one in answers) == sorted(one["custom_id"] for one in self.lines)
        assert sum(one["error"] is not None for one in answers) == failed
        found, tally = self.batches(), self.emulator.tally()
        assert found["custom_ids"]["most"] <= tally["answers"]["most"] <= 1, found
        assert found["unread"] == 0
        assert found["paid"] == (len(self.lines) - failed if paid is None else paid)
        return answers


pytestmark = pytest.mark.usefixtures("timing")


@pytest.fixture
def run(emulator, tmp_path):
    def make(lines=None, /, *, count=10, settings=None, style="", **batches):
        dialect = "together" if style == "together" else ""
        emulator.reset(**{"batches": QUICK | batches, "dialect": dialect} | (settings or {}))
        provider = None if style in ("", "openai", "anthropic") else style
        return Run(emulator, tmp_path, lines or lines_of(style, count), provider)

    return make


@pytest.fixture
def hasten(emulator, monkeypatch):
    """Let each call of a run move the provider's clock on by so many seconds, from when something is true."""

    def make(seconds, begins=lambda: True):
        send = Web._send

        async def sends(self, *args, **options):
            if begins():
                emulator.advance(seconds)
            return await send(self, *args, **options)

        monkeypatch.setattr(Web, "_send", sends)

    return make


def test_rows_that_cannot_be_sent_are_in_no_batch_and_the_others_have_their_files(run, tmp_path, monkeypatch):
    """The file of the third one is gone when its batch is written; it was there when the input was checked."""
    one, uploaded, upload = run(), [], OpenAIEndpoints.upload

    async def seen(self, chunk):
        uploaded.extend(chunk.content)
        return await upload(self, chunk)

    monkeypatch.setattr(OpenAIEndpoints, "upload", seen)
    for name in ("a.png", "c.png"):
        (tmp_path / name).write_bytes(b"\x89PNG\r\n\x1a\n..")
    one.source = tmp_path / "rows.csv"
    one.source.write_text("id,text,photo\na,What?,a.png\nb,,a.png\nc,What?,c.png\nd,What?,d.png\n")
    one.output = tmp_path / "rows.csv.results.jsonl"
    one.said.say = lambda text: (tmp_path / "c.png").unlink(missing_ok=True) if text.startswith("4 requests") else None
    code, report = one.start(form=Form("gpt-5", column="text", files=("photo",)))
    assert (code, report["ok"], report["errors"]) == (1, 1, {"invalid_row": 2, "file_gone": 1})
    answers = {one["custom_id"]: one["error"] and one["error"]["code"] for one in read_answers(one.output)}
    assert answers == {"a": None, "b": "invalid_row", "c": "file_gone", "d": "invalid_row"}
    assert one.batches()["paid"] == 1
    (line,) = uploaded
    assert b"data:image/png;base64,iVBORw0KGgouLg==" in line


def test_both_formats_have_the_output_of_every_run(run):
    lines = chats(10) + [message(f"c{n}") for n in range(5)] + [message("an id / with a space")]
    one = run(lines)
    code, report = one.start()
    assert (code, report["ok"], report["failed"], report["batches"], report["batches_in_progress"]) == (0, 16, 0, 5, 0)
    answers = {answer["custom_id"]: answer for answer in one.check()}
    assert answers["r1"]["response"]["body"]["choices"][0]["message"]["content"]
    assert answers["c1"]["response"]["body"]["content"][0]["text"]
    assert answers["an id / with a space"]["response"]["status_code"] == 200
    assert {answer["response"]["status_code"] for answer in answers.values()} == {200}
    assert report["input_tokens"] == one.batches()["input_tokens"]
    assert report["output_tokens"] == one.batches()["output_tokens"]
    assert one.emulator.tally()["admitted"] == 0
    with one.client() as client:
        batches = list(client.batches.list())
    assert len({batch.metadata["paceline_chunk"] for batch in batches}) == 3
    assert len({batch.metadata["paceline_run"] for batch in batches}) == 1
    assert one.start()[0] == 0  # nothing is left
    assert one.batches()["created"] == 5


@pytest.mark.parametrize(("mode", "warnings"), [("batch", 0), ("auto", 1)])
def test_limits_that_are_not_known_matter_to_no_batch(run, mode, warnings):
    one = run(count=4)
    one.given["limits"] = {}
    assert one.start(mode=mode)[0] == 0
    assert sum("no published limits" in line for line in one.said.lines) == warnings


def test_groq_has_openais_batches_below_its_own_path(run):
    lines = [chat(f"r{n}") | {"url": "/openai/v1/chat/completions"} for n in range(5)]
    one = run(lines)
    one.completes(most=2, provider="groq", environ={"GROQ_API_KEY": "gsk_0123456789"})


def test_azure_takes_a_batch_when_its_file_was_processed(run):
    one = run(count=10, style="azure", pending_s=0.1)
    code, report = one.start()
    assert (code, report["ok"], report["batches"]) == (0, 10, 3)
    one.check()
    found = one.batches()
    assert (found["files"], found["refused"]) == (3, {})
    assert report["attempts"] >= 3 * 5  # each: an upload, a look at the file, a creation, a look at the batch, results


def test_azure_is_asked_seldom(run, timing):
    timing(poll_first_s=0.001, poll_most_s=0.4)
    one = run(count=4, style="azure", turnaround_s=0.1)
    assert one.start()[1]["attempts"] <= 7  # three for the file, one creation, two looks, and the results
    one.check()


DEPLOYMENT = "/openai/deployments/mine/chat/completions"


@pytest.mark.parametrize(
    ("style", "url", "words"),
    [
        ("azure", DEPLOYMENT, f"line 1: url is '{DEPLOYMENT}': a batch needs a path like '/v1/chat/completions'"),
        ("gemini", "/v1/chat/completions", "a batch needs a path like '/v1beta/models/"),
    ],
)
def test_a_path_that_is_of_no_batch(run, style, url, words):
    one = run([chat("r0") | {"url": url}], style=style)
    with pytest.raises(BadLineError, match=words):
        one.start()
    assert one.batches()["created"] == 0


def test_azure_has_its_own_header_for_the_key():
    address = address_of(provider_named("azure"), "https://mine.openai.azure.com", KEYS)
    headers = address.headers_for("/openai/v1/chat/completions")
    assert headers["api-key"] == KEYS["AZURE_OPENAI_API_KEY"]
    assert "authorization" not in headers


def test_azures_batch_deployments_take_nothing_one_by_one(run):
    one = run(count=4, style="azure")
    with pytest.raises(SettingsError, match=r"--mode auto: azure takes no requests one by one .*: use --mode batch"):
        one.start(mode="auto", deadline_s=60.0)
    assert not one.journal.exists()


@pytest.mark.parametrize("style", ["openai", "anthropic", "mistral", "together", "gemini"])
def test_a_batch_of_another_input_with_the_same_ids_and_size_is_not_adopted(
    run, emulator, tmp_path, monkeypatch, style
):
    """The second run is killed, as it were, between its intent and its call."""
    one = run(count=4, style=style)
    assert one.start()[0] == 0
    (tmp_path / "other").mkdir()
    other = Run(emulator, tmp_path / "other", lines_of(style, 4), one.given.get("provider"))
    create, lost = offline.Flight.create, []

    async def killed(self, chunk, check):
        if lost:
            return await create(self, chunk, check)
        self.batches.journal.intend(chunk, self.ends[chunk.kind.provider].web.address.account)
        lost.append(chunk)
        raise offline.StopError(130, "killed")

    monkeypatch.setattr(offline.Flight, "create", killed)
    assert other.start()[0] == 130
    assert BatchJournal(str(other.output)).unfinished == 1
    assert other.start()[0] == 0
    assert one.batches()["created"] == 2
    assert BatchJournal(str(one.output)).known.isdisjoint(BatchJournal(str(other.output)).known)
    ids = [[one["custom_id"] for one in found] for found in (other.lines, read_answers(other.output))]
    assert ids[0] == sorted(ids[1])
    assert one.batches()["unread"] == 0


@pytest.mark.parametrize("style", ["openai", "anthropic", "together"])
def test_a_request_that_the_input_has_lost_comes_back_with_its_own_id(run, style):
    one = run(count=6, style=style, turnaround_s=1_000.0)
    one.said = StopsSoon()
    assert one.start(most=3)[0] == 130
    one.emulator.advance(2_000)
    one.said = Said()
    _, *left = one.source.read_text().splitlines(keepends=True)
    one.source.write_text("".join(reversed(left)))
    one.completes(most=3)


def test_mistrals_jobs_have_one_model_and_lines_without_it(run):
    lines = lines_of("mistral", 5) + [chat(f"s{n}", model="mistral-small-latest") for n in range(3)]
    one = run(lines, style="mistral", failed_requests=0.2)
    code, report = one.start()
    failed = report["failed"]
    assert (code, report["ok"]) == (failed > 0, 8 - failed)
    answers = {answer["custom_id"]: answer for answer in one.check(failed=failed)}
    done = [answer for name, answer in answers.items() if name.startswith("s") and answer["error"] is None]
    assert done
    assert {answer["response"]["body"]["model"] for answer in done} == {"mistral-small-latest"}
    one.emulator.reset(batches=QUICK)
    assert one.start()[1]["ok"] == failed


@pytest.mark.parametrize(
    ("style", "known", "code", "said"),
    [
        ("mistral", "mistral-small-latest", 1, "mistral refused a call of its Batch API with a 400: invalid_model: Invalid model: gpt-5"),
        ("", "gpt-6", 2, "the first batch of gpt-5 has failed; model_not_found: The provided model 'gpt-5'"),
    ],
)  # fmt: skip
def test_a_model_without_batches_stops_the_run(run, capsys, style, known, code, said):
    one = run(count=8, style=style, settings={"limits": {known: FAST}})
    got, report = one.start()
    assert (got, report["ok"]) == (code, 0)
    assert said in capsys.readouterr().err


def test_togethers_failed_requests_are_in_a_file_of_their_own_and_long_ids_come_back(run):
    lines = [chat("x" * 100, text="a"), chat("an id / with a space", text="b"), *lines_of("together", 10)]
    one = run(lines, style="together", failed_requests=1.0)
    code, report = one.start()
    assert (code, report["batches"], report["failed"]) == (1, 9, 12)
    one.check(failed=12)
    one.emulator.reset(batches=QUICK)
    assert one.start()[1]["ok"] == 12


def test_geminis_answers_are_those_of_requests_one_by_one(run):
    lines = lines_of("gemini", 5) + [contents(f"s{n}", model="gemini-2.5-pro") for n in range(3)]
    one = run(lines, style="gemini")
    assert one.start()[0] == 0
    by_batch = one.check()
    one.output.unlink()
    one.emulator.reset(batches=QUICK)
    assert one.start(mode="sync")[0] == 0
    one_by_one = read_answers(one.output)

    def shape(answers):
        told = {one["custom_id"]: (one["response"], one["error"]) for one in answers}
        return {
            name: (said["status_code"], said["body"]["modelVersion"], error) for name, (said, error) in told.items()
        }

    assert shape(by_batch) == shape(one_by_one)
    assert {model for _, model, _ in shape(by_batch).values()} == {"gemini-2.5-flash", "gemini-2.5-pro"}


def test_what_expires_at_gemini_is_sent_again(run, hasten):
    hasten(0.1)
    one = run(count=6, style="gemini", turnaround_s=4.0, expires_s=1.0)
    code, report = one.start()
    assert (code, report["failed"], report["batches"]) == (1, 6, 6)
    assert {answer["error"]["code"] for answer in read_answers(one.output)} == {"batch_expired"}


def test_a_batch_has_the_size_that_is_asked_for_or_a_part_of_the_input(run):
    one = run(count=10)
    assert one.start(most=3)[1]["batches"] == 4
    one = run(count=10)
    one.output.unlink()
    one.journal.unlink()
    assert one.start(most=None)[1]["batches"] == 1


STEPS = pytest.mark.long("a run for each step, or in real time")


@pytest.mark.parametrize("style", some(["openai", "anthropic", "azure", "mistral", "together", "gemini"], mark=STEPS))
def test_killed_at_every_step_and_run_again(run, monkeypatch, style):
    """One run for each step, killed at it; the next one pays nothing again and reads everything."""
    at, crashes = 0, 0
    while True:
        one = run(count=4, style=style, pending_s=0.01)
        for path in (one.output, one.journal):
            path.unlink(missing_ok=True)
        with monkeypatch.context() as patch:
            crashing = Crashing(patch, at)
            try:
                one.start(most=2)
            except CrashError:
                crashes += 1
            assert crashing.crashed == (crashes == at + 1)
        code, report = one.start(most=2)
        assert (code, report["failed"], report["batches_in_progress"]) == (0, 0, 0), at
        one.check()
        assert one.batches()["same"]["most"] == 1, at
        if not crashing.crashed:
            break
        at += 1
    assert crashes > 30


@pytest.mark.parametrize("style", ["openai", "azure", "mistral", "together", "gemini"])
def test_the_files_of_requests_are_deleted_in_the_end(run, style):
    """Also by a command that goes on with the batches."""
    one = run(count=8, style=style, turnaround_s=1_000.0)
    one.said = StopsSoon()
    assert one.start()[0] == 130
    one.emulator.advance(1_000)
    one.said = Said()
    one.completes()
    assert one.batches()["files"] == 2
    assert {file.purpose for file in one.client().files.list()} == {"batch_output"}


def test_a_full_queue_is_learned_and_waited_for(run):
    one = run(count=40, enqueued_tokens=120, release_s=0.1)
    one.completes(most=20)
    assert "gpt-5: the provider's queue takes 120 tokens" in one.said.lines
    assert one.batches()["states"]["failed"] >= 1


def test_the_providers_count_of_tokens_is_learned(run):
    """The estimate of these short prompts is more than a tenth too low."""
    one = run(count=100, enqueued_tokens=200)
    one.completes(most=20, batch_queue=200)
    assert one.batches()["states"] == {"completed": one.batches()["created"]}


@pytest.mark.parametrize(
    ("style", "count", "most", "rules"),
    [
        ("openai", 8, 4, {"enqueued_tokens": 30, "queue_full": "400"}),
        ("openai", 8, 4, {"enqueued_tokens": 30, "queue_full": "429"}),
        ("anthropic", 12, 4, {"queued_requests": 4}),
        ("gemini", 8, 2, {"enqueued_tokens": 40}),
        ("azure", 8, 4, {"enqueued_tokens": 30, "queue_full": "400"}),
    ],
)
def test_creations_are_refused_while_the_queue_is_full(run, hasten, style, count, most, rules):
    """No batch ends before the provider has refused one."""
    one = run(count=count, style=style, turnaround_s=1_000.0, **rules)
    hasten(1_000, begins=lambda: one.batches()["refused"].get("queue"))
    one.completes(most=most)
    assert one.batches()["refused"]["queue"] >= 1


@pytest.mark.parametrize("style", ["openai", "azure"])
def test_a_queue_that_is_full_by_mistake_is_tried_again(run, style):
    """Its file is not uploaded again."""
    one = run(count=20, enqueued_tokens=1_000_000, full_by_mistake=0.5, style=style)
    one.completes()
    found = one.batches()
    assert found["files"] < found["created"]


def test_a_batch_above_a_limit_that_no_refusal_states_is_halved_and_said(run):
    one = run(count=8, style="gemini", enqueued_tokens=40)
    one.completes(most=8)
    assert next(said for said in one.said.lines if "takes no batch of about" in said).endswith(": trying again")


def test_a_queue_that_takes_no_batch_is_not_waited_for_without_end(run, monkeypatch, capsys):
    one = run(count=8, style="gemini", enqueued_tokens=1)
    monkeypatch.setattr(offline, "FULL_ALL_S", 0.5)
    assert one.start(most=8)[0] == 1
    assert "the provider has taken no batch for" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("style", "error"),
    [("openai", "batch_expired"), ("anthropic", "batch_expired"), ("mistral", "batch_timeout_exceeded")],
)
def test_what_expires_is_sent_again_and_what_was_done_is_not(run, hasten, style, error):
    hasten(0.1)
    one = run(count=8, style=style, turnaround_s=1.9, expires_s=1.0)
    code, report = one.start(most=8)
    assert code == 1  # after three tries with half of the rest each, one is left
    assert report["errors"] == {error: 1}
    one.check(failed=1)
    assert one.batches()["created"] == 3
    one.emulator.reset(batches=QUICK)
    assert one.start()[1]["ok"] == 1


def test_a_batch_that_a_person_cancels_gives_its_results(run, monkeypatch, hasten):
    hasten(0.05)
    one = run(count=10, turnaround_s=1.0)
    look, done = OpenAIEndpoints.look, []

    async def cancels(self, chunk):
        seen = await look(self, chunk)
        if seen.done >= 3 and not done:
            done.append(await self.web.call("POST", f"/v1/batches/{chunk.batch}/cancel"))
            one.emulator.advance(0)
        return seen

    monkeypatch.setattr(OpenAIEndpoints, "look", cancels)
    one.completes(most=10)
    assert one.batches()["states"] == {"cancelled": 1, "completed": 1}
    assert 3 <= one.batches()["outcomes"]["canceled"] <= 7


@pytest.mark.parametrize(("style", "error"), [("openai", "server_error"), ("gemini", "INTERNAL")])
def test_single_requests_that_fail_are_sent_again_then_recorded_and_sent_by_the_next_run(run, style, error):
    one = run(count=8, style=style, failed_requests=1.0)
    code, report = one.start()
    assert (code, report["errors"], report["batches"]) == (1, {error: 8}, 6)  # each of the two three times
    one.check(failed=8)
    one.emulator.reset(batches=QUICK)
    code, again = one.start()
    assert (code, again["ok"], again["batches"]) == (0, 8, 2)
    one.check()


def test_lines_that_the_validation_refuses_are_recorded_and_the_others_sent(run, monkeypatch):
    encode = OpenAIEndpoints.encode

    def broken(self, request):
        return b"{" if request.custom_id in ("r3", "r7") else encode(self, request)

    monkeypatch.setattr(OpenAIEndpoints, "encode", broken)
    one = run(count=10)
    code, report = one.start(most=10)
    assert (code, report["errors"]) == (1, {"invalid_json_line": 2})
    answers = {answer["custom_id"]: answer["error"] for answer in one.check(failed=2)}
    assert answers["r3"] == {"code": "invalid_json_line", "message": "This line is not parseable as valid JSON."}


def test_a_batch_that_was_deleted_may_be_paid_and_is_sent_again_on_demand(run, monkeypatch, timing):
    one = run([message(f"c{n}") for n in range(4)])
    look = AnthropicEndpoints.look
    gone = []

    async def deletes(self, chunk):
        if not gone:
            gone.append(chunk.batch)
            chunk.batch = "msgbatch_" + "f" * 24
        return await look(self, chunk)

    monkeypatch.setattr(AnthropicEndpoints, "look", deletes)
    timing(lost_s=0.3)
    code, report = one.start()
    assert (code, report["errors"]) == (1, {"result_unread": 4})
    assert gone[0] not in read_answers(one.output)[0]["error"]["message"]
    assert "msgbatch_ffff" in read_answers(one.output)[0]["error"]["message"]
    assert one.start()[0] == 1
    assert one.batches()["created"] == 1
    assert one.start(repair=True)[0] == 0
    assert len(read_answers(one.output)) == 4
    assert one.batches()["created"] == 2


@pytest.mark.parametrize(("style", "place"), [("openai", "/batches/batch_"), ("azure", "/files/")])
def test_what_is_not_there_yet_is_asked_for_again(run, monkeypatch, style, place):
    one = run(count=4, style=style, pending_s=0.01)
    call, asked = Web.call, []

    async def late(self, method, path, **options):
        if method == "GET" and place in path and len(asked) < 2:
            asked.append(path)
            raise RefusedError(404, "", "Not found")
        return await call(self, method, path, **options)

    monkeypatch.setattr(Web, "call", late)
    one.completes()
    assert (len(asked), one.batches()["created"], one.batches()["files"]) == (2, 1, 1)


ODD = ({}, {"id": None}, {"data": [None]}, {"data": 7, "operations": [{"metadata": "text"}], "metadata": "text"})


@pytest.mark.parametrize("style", ["openai", "anthropic", "azure", "mistral", "together", "gemini"])
def test_answers_of_another_form_are_asked_for_again_and_said(run, monkeypatch, timing, style):
    """After an odd answer to a creation there is a batch, or none."""
    dice, ask = random.Random(style), Web.answer
    odd = []

    async def answer(self, method, path, **options):
        value, headers = await ask(self, method, path, **options)
        if dice.random() > 0.4 or "pageSize" in path:  # a list of Gemini without batches is an empty object
            return value, headers
        odd.append(path)
        return ([None] if isinstance(value, list) else dice.choice(ODD)), headers

    monkeypatch.setattr(Web, "answer", answer)
    timing(quiet_s=0.0)
    one = run(count=24, style=style)
    one.completes(most=3)
    assert len(odd) > 5
    assert any("trying again" in text for text in one.said.lines)
    assert one.batches()["same"]["most"] == 1


def test_results_that_are_gone_at_gemini_are_given_up(run, monkeypatch, timing):
    async def gone(*_):
        raise RefusedError(403, "", "You do not have permission to access it, or it may not exist.")

    monkeypatch.setattr(Web, "fetch", gone)
    timing(lost_s=0.03)
    one = run(count=4, style="gemini")
    code, report = one.start()
    assert (code, report["errors"], report["batches_in_progress"]) == (1, {"result_unread": 4}, 0)
    assert one.batches()["created"] == 1


@pytest.mark.parametrize(("style", "variable"), [("openai", "OPENAI_API_KEY"), ("azure", "AZURE_OPENAI_API_KEY")])
def test_a_refused_key_stops_the_run_and_is_in_no_message(run, capsys, style, variable):
    one = run(style=style, settings={"valid_key": "sk-another"})
    assert one.start()[0] == 2
    err = capsys.readouterr().err
    assert f"{style} refused the key with a 401" in err
    assert f"set {variable}" in err
    assert KEYS[variable] not in err + one.journal.read_text() + one.said.text
    one.emulator.reset(valid_key=None)
    assert one.start()[0] == 0


def test_a_run_without_batches_does_not_pay_for_what_is_in_one(run, capsys):
    one = run(count=8, turnaround_s=1_000.0)

    one.said = StopsSoon()
    code, report = one.start()
    assert (code, report["interrupted"], report["batches_in_progress"]) == (130, True, 2)
    assert "8 requests left: the provider continues with 2 batches" in capsys.readouterr().err
    one.said = Said()
    with pytest.raises(OutputError, match="the output lacks the results of 2 batches of an earlier run"):
        one.start(mode="sync")
    with pytest.raises(OutputError, match="the output lacks the results of"):
        one.start(mode="sync", environ={})
    one.emulator.advance(1_000)
    one.completes()
    assert one.start(mode="sync")[1]["skipped"] == 8


@pytest.mark.parametrize("is_noted", [True, False], ids=["created", "intended"])
@pytest.mark.parametrize("style", ["openai", "anthropic", "together"])
def test_another_key_goes_on_with_the_batches_that_it_shows(run, monkeypatch, capsys, style, is_noted):
    one = run(count=8, style=style, turnaround_s=1_000.0)
    one.said = StopsSoon()
    assert one.start()[0] == 130
    if not is_noted:  # it was killed before it knew which batches they are
        lines = one.journal.read_bytes().splitlines(keepends=True)
        one.journal.write_bytes(b"".join(line for line in lines if b'"event": "batch"' not in line))
    one.said, others = Said(), {name: f"{key}-2" for name, key in KEYS.items()}
    with monkeypatch.context() as patch:
        for status in (404, 403, 400):
            patch.setattr(Web, "call", AsyncMock(side_effect=RefusedError(status, "", "no such batch")))
            assert one.start(environ=others)[0] == 2
            assert "with another key or address" in capsys.readouterr().err
    one.emulator.advance(1_000)
    one.completes(environ=others)
    assert one.batches()["created"] == 2


def test_a_restart_leaves_the_journal_beside(run, capsys):
    one = run(count=4)
    assert one.start()[0] == 0
    assert one.start(restart=True)[1]["ok"] == 4
    assert one.journal.with_name(one.journal.name + ".bak").exists()
    assert one.batches()["custom_ids"]["most"] == 2  # as it was asked for
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("mode", ["sync", "batch"])
def test_a_budget_that_counts_no_batch_is_said(run, mode):
    one = run(count=4)
    assert one.start(mode=mode, budget="5 usd/day")[0] == 0
    assert sum("budget doesn't include the cost of batches" in line for line in one.said.lines) == (mode == "batch")


def test_only_providers_with_known_batches_and_outputs_that_can_be_resumed(run, tmp_path):
    one = run()
    with pytest.raises(OutputError, match="a run in batches needs a file"):
        one.start(output="-")
    with pytest.raises(SettingsError, match="no Batch API of fireworks is known here: use --mode sync"):
        one.start(provider="fireworks", environ={"FIREWORKS_API_KEY": "any"})


@pytest.mark.long("starts several processes")
@pytest.mark.parametrize(
    ("seed", "style"),
    [
        (0, "openai"), (6, "gemini"),
        *(pytest.param(*of, marks=pytest.mark.soak) for of in enumerate(["openai", "openai", "azure", "mistral", "together"], 1)),
    ],
)  # fmt: skip
def test_processes_killed_again_and_again(run, command, seed, style):
    """Real processes and real kills, after random steps, with lost answers and mistaken refusals."""
    odd = {"lost_answers": 0.2, "full_by_mistake": 0.2, "enqueued_tokens": 2_000, "turnaround_spread": 3}
    one = run(count=60, style=style, pending_s=0.1, turnaround_s=0.3, **odd)
    setup = f"import paceline.batch.offline as o; o.TIMING = o.Timing(**{SOON | {'settle_s': 0.3}})"
    args = [one.source, "--mode", "batch", "--batch-lines", "10", "--provider", style]
    dice, kills = random.Random(seed), 0

    def steps():
        return sum(path.read_bytes().count(b"\n") for path in (one.output, one.journal) if path.exists())

    for _ in range(5):  # of 80 steps
        enough = steps() + dice.randint(1, 12)
        process = command(*args, base_url=one.emulator.base_url, environ=KEYS, setup=setup)
        until(lambda process=process, enough=enough: process.poll() is not None or steps() >= enough)
        kills += process.poll() is None
        process.kill()
        process.communicate()
    assert kills > 1
    finish(command(*args, base_url=one.emulator.base_url, environ=KEYS, setup=setup), 0)
    one.check()


def test_options_of_the_command(run):
    one = run(count=4)
    given = {"base_url": one.emulator.base_url, "environ": KEYS}
    args = [one.source, "--mode", "batch", "--batch-lines", "2", "--batch-queue", "100000", "--json"]
    out, err = call(*args, **given)
    assert json.loads(out)["batches"] == 2
    assert "4 requests: 4 answered, 0 failed" in err
    for wrong, text in (
        (["--mode", "auto"], "need each other: --mode auto --deadline 6h"),
        (["--deadline", "6h"], "need each other"),
        (["--mode", "auto", "--deadline", "soon"], "'soon': write it like '6h', '90min'"),
        (["--mode", "batch", "--page", "0"], "--page shows the quotas of requests that are sent one by one"),
        (["--batch-lines", "2"], "--batch-lines and --batch-queue need --mode batch"),
    ):
        assert text in call(one.source, *wrong, code=2, **given)[1]
    call(one.source, "--mode", "auto", "--deadline", "6h", **given)


# --- a deadline ------------------------------------------------------------------------------------------------------


class TestDeadline:
    HURRY: ClassVar = {"cancel_s": 0.4, "last_s": 0.4, "poll_most_s": 0.05}

    @pytest.fixture(autouse=True)
    def hurry(self, timing):
        timing(**self.HURRY)

    def test_batches_that_end_in_time_do_everything(self, run):
        one = run(count=20)
        code, report = one.start(mode="auto", most=5, deadline_s=30.0)
        assert (code, report["batches"], report["ok"]) == (0, 4, 20)
        assert one.emulator.tally()["admitted"] == 0
        one.check()
        assert "in batches; if they have not ended 0.8 s before the deadline, one by one" in one.said.lines

    @pytest.mark.parametrize("style", ["openai", "anthropic", "mistral", "together", "gemini"])
    def test_batches_that_do_not_are_left_and_the_rest_is_sent_one_by_one(self, run, monkeypatch, style):
        one = run(count=15, style=style, turnaround_s=1_000.0, cancel_s=0.1)
        moved = []

        def due(*_):
            if one.batches()["states"].get("in_progress") == 3 and not moved:
                moved.append(one.emulator.advance(300))  # each has answered some requests
            return bool(moved)

        monkeypatch.setattr(offline.Deadline, "due", due)
        code, report = one.start(mode="auto", most=5, deadline_s=600.0)
        assert (code, report["ok"], report["batches"]) == (0, 15, 3)
        found, tally = one.batches(), one.emulator.tally()
        assert found["states"] == {"cancelled": 3}
        assert 0 < found["paid"] < 15
        assert tally["admitted"] == 15 - found["paid"] == report["attempts"]
        one.check(paid=found["paid"])
        assert BatchJournal(str(one.output)).unfinished == 0

    def test_a_slow_cancel_delays_its_own_requests_only(self, run, monkeypatch):
        one = run(count=20, turnaround_s=1_000.0, cancel_s=0.8)
        monkeypatch.setattr(offline.Deadline, "due", lambda *_: one.batches()["states"].get("in_progress") == 4)
        code, report = one.start(mode="auto", most=5, deadline_s=600.0)
        assert (code, report["ok"], report["batches"]) == (0, 20, 4)
        assert one.batches()["states"] == {"cancelled": 4}
        one.check(paid=0)

    def test_a_stopped_run_keeps_its_deadline(self, run):
        one = run(count=8, turnaround_s=1_000.0)
        one.said = StopsSoon()
        assert one.start(mode="auto", deadline_s=900.0)[0] == 130
        assert one.start(mode="auto", deadline_s=600.0)[0] == 130  # another deadline begins anew
        first = BatchJournal(str(one.output)).deadline
        assert first[0] == 600
        assert 500 < first[1] - time.time() <= 600
        assert one.start(mode="auto", deadline_s=600.0)[0] == 130
        assert BatchJournal(str(one.output)).deadline == first
        with one.journal.open("a") as file:  # ten minutes later
            file.write(json.dumps({"event": "deadline", "seconds": 600.0, "end_s": first[1] - 600}) + "\n")
        one.said = Said()
        code, report = one.start(mode="auto", deadline_s=600.0)
        assert (code, report["ok"]) == (0, 8)
        words = "the deadline of the unfinished run applies: 0.0 s are left"
        assert words in one.said.lines
        assert one.batches()["states"] == {"cancelled": 2}
        one.check(paid=0)
        assert BatchJournal(str(one.output)).deadline is None  # the run has ended: the next one has its own

    def test_a_deadline_without_time_for_batches_is_said(self, run):
        one = run(count=4)
        assert one.start(mode="auto", deadline_s=0.001)[0] == 0
        assert any("the deadline leaves no time for batches" in line for line in one.said.lines)
        one.check(paid=one.batches()["paid"])

    @pytest.mark.parametrize(
        "given",
        [
            {"limits": {"*": "6 requests/min"}},
            {"joint_limits": {"openai": "6 requests/min"}},
            {"lanes": {"default": {"limits": ["6 requests/min"]}}},
            {"min_interval_s": 10},
        ],
        ids=["of the model", "joint", "of the lane", "spacing"],
    )
    def test_a_bet_is_called_one(self, run, given):
        one = run(count=8)
        one.given = given
        seconds = offline.TIMING.cancel_s + offline.TIMING.last_s + 1.0
        assert one.start(mode="auto", deadline_s=seconds)[0] == 0
        words = "the deadline may be missed: to cancel the batches and send all requests one by one"
        assert any(line.startswith(words) for line in one.said.lines)
        one.check(paid=one.batches()["paid"])

    @pytest.mark.parametrize("at", some(range(0, 60, 6), 0, 18, 36, 54, mark=STEPS))
    def test_killed_before_the_requests_are_sent_one_by_one(self, run, monkeypatch, at):
        """A request in flight when a run is killed may be paid again; those in batches are not."""
        one = run(count=8, turnaround_s=1.0, cancel_s=0.05)
        with monkeypatch.context() as patch:
            crashing = Crashing(patch, at)
            patch.setattr(Runner, "run", lambda *_: (_ for _ in ()).throw(CrashError))
            try:
                one.start(mode="auto", most=4, deadline_s=1.0)
            except CrashError:
                crashing.crashed = True
        assert crashing.crashed
        if BatchJournal(str(one.output)).unfinished:
            with pytest.raises(OutputError, match="the output lacks the results of"):
                one.start(mode="sync")
        assert one.start(mode="auto", most=4, deadline_s=1.0)[0] == 0
        one.check(paid=one.batches()["paid"])
        assert BatchJournal(str(one.output)).unfinished == 0


def test_when_the_batches_are_left():
    now, lasts = [0.0], timing_module.Timing(cancel_s=600, last_s=60)
    deadline = timing_module.Deadline(3_600, lambda count: count / 10, lasts, clock=lambda: now[0])
    assert deadline.needs(8_000) == 1_660
    assert not deadline.due(8_000)
    now[0] = 1_939
    assert not deadline.due(8_000)
    now[0] = 1_940
    assert deadline.due(8_000)
    assert not deadline.due(7_000)  # what is done in the batches needs not be sent
    bet = timing_module.Deadline(3_600, lambda count: count / 10, lasts, clock=lambda: now[0] - 1_940)
    assert not bet.due(80_000)  # not even if it left them at once
    assert bet.bet
    now[0] += 2_939
    assert not bet.due(80_000)
    now[0] += 1
    assert bet.due(80_000)
    saved = timing_module.Deadline(3_600, lambda count: count / 10, lasts, clock=lambda: 0.0)
    assert not saved.due(80_000)
    assert not saved.due(8_000)
    assert not saved.bet
    assert saved.due(80_000)


# --- parts -----------------------------------------------------------------------------------------------------------

KIND = BatchKind("openai", "/v1/chat/completions", "gpt-5")


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 50), st.integers(0, 30), st.integers(1, 5)), max_size=60),
    st.integers(1, 10), st.integers(1, 20), st.integers(1, 100), st.integers(1, 60),
)  # fmt: skip
def test_cutting_keeps_every_request_once_and_the_limits(given_items, most_lines, most_inputs, most_bytes, most_tokens):
    items = [
        ChunkItem(KIND._replace(model=model), line, f"r{line}", b"x" * size, tokens, inputs)
        for line, (model, size, tokens, inputs) in enumerate(given_items, 1)
    ]
    most = {
        "most_lines": most_lines,
        "most_inputs": most_inputs,
        "most_bytes": lambda _: most_bytes,
        "most_tokens": lambda _: most_tokens,
    }
    chunks = list(cut(iter(items), **most))
    assert sorted(line for chunk in chunks for line in chunk.lines) == [item.line for item in items]
    for chunk in chunks:
        assert len(chunk.lines) == len(chunk.custom_ids) == len(chunk.content) <= most_lines
        assert len(chunk.lines) == 1 or (chunk.size <= most_bytes and chunk.tokens <= most_tokens)
        assert len(chunk.lines) == 1 or sum(items[line - 1].inputs for line in chunk.lines) <= most_inputs
        assert list(chunk.lines) == sorted(chunk.lines)
        assert {items[line - 1].kind for line in chunk.lines} == {chunk.kind}


def test_the_texts_of_a_batch_are_bounded(run, monkeypatch):
    """Each of them counts, also where a request has several."""
    monkeypatch.setattr(OpenAIEndpoints, "LINES_MAX", 8)
    body = {"model": "text-embedding-3-small", "input": ["one", "two", "three"]}
    lines = [{"custom_id": f"r{n}", "method": "POST", "url": "/v1/embeddings", "body": body} for n in range(5)]
    one = run(lines)
    one.completes(most=5)
    assert one.batches()["created"] == 3


def test_open_batches_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr("paceline.batch.chunks.OPEN_BYTES", 100)
    items = [ChunkItem(KIND._replace(model=str(n % 5)), n, "r", b"x" * 30, 1) for n in range(1, 30)]
    chunks = list(
        cut(iter(items), most_lines=100, most_inputs=100, most_bytes=lambda _: 1_000, most_tokens=lambda _: 1e9)
    )
    assert len(chunks) > 5
    assert sum(len(chunk.lines) for chunk in chunks) == 29


def test_a_queue_learns_its_limit_and_waits_longer_each_time():
    queue = ProviderQueue()
    assert queue.fits(1e9, 0.0)
    queue.held["a"] = 10
    queue.refused(
        10, "Enqueued token limit reached for m in organization o. Limit: 2,000 enqueued tokens.", 0.0, 60, 600
    )
    assert (queue.limit, queue.most, queue.most_of_one) == (2_000, 1_000, 250)
    queue.learn(10, 10)
    assert (queue.limit, queue.most, queue.most_of_one) == (2_000, 1_800, 450)
    assert not queue.fits(1, 59)
    assert queue.fits(1_790, 60)
    assert not queue.fits(1_791, 60)
    for now_s, until_s in ((59, 60), (60, 180), (61, 180), (180, 420), (420, 900), (900, 1_500), (1_500, 2_100)):
        queue.refused(10, "full", now_s, 60, 600)
        assert queue.full_until_s == until_s
    assert queue.limit == 2_000
    queue.held.clear()
    assert queue.fits(5_000, 2_100)  # a request that is larger than the queue is the provider's to refuse
    queue.accepted()
    assert queue.fits(1, 0)  # it has left its room
    queue.refused(10, "full", 0.0, 60, 600)
    assert queue.full_until_s == 60
    queue.learn(100, 150)
    assert queue.most == pytest.approx(1_200)
    queue.learn(1, 1_000)
    assert queue.ratio == 5
    queue.learn(0, 10)
    assert queue.ratio == 5


def test_a_queue_that_is_full_without_this_runs_batches_gets_smaller_ones():
    queue = ProviderQueue()
    for n, (amount, largest) in enumerate([(800, math.inf), (800, 400), (400, 200)]):
        queue.refused(amount, "full", 600.0 * n, 60, 600)
        assert queue.most_of_one == largest
    assert queue.full_since_s == 0
    queue.held["a"] = 200
    queue.refused(200, "full", 1_800.0, 60, 600)
    assert queue.most_of_one == 200
    queue.accepted()
    assert queue.most_of_one == 400


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("The number of enqueued tokens has surpassed the configured limit of 30K for the deployment 'x'.", 30_000),
        (
            "The number of enqueued tokens has surpassed the configured limit of 50000K for the deployment 'x'.",
            50_000_000,
        ),
        ("Quota exceeded for metric: generate_content_requests, limit: 200", None),
    ],
)
def test_a_queues_limit_is_read_in_azures_words_and_no_other_limit_is(text, limit):
    queue = ProviderQueue()
    queue.refused(10, text, 0.0, 60, 600)
    assert queue.limit == limit


def intended(journal, *ids):
    """A batch of these requests, which is in the journal."""
    chunk = Chunk(KIND, array("Q", range(1, len(ids) + 1)), custom_ids=list(ids), content=[one.encode() for one in ids])
    journal.intend(chunk, "here")
    return chunk


def test_a_journal_is_cut_where_a_crash_has_torn_it(tmp_path):
    output = str(tmp_path / "out")
    journal = BatchJournal(output)
    journal.open()
    first, second = intended(journal, "a", "b"), intended(journal, "c")
    journal.created(first, "batch_1")
    journal.created(second, "batch_2")
    journal.ended(second, "completed")
    journal.close()
    whole = (tmp_path / "out.batches.jsonl").read_bytes()
    index = Index()
    for line, custom_id in enumerate("abc", 1):
        index.add(custom_id, line)
    ends = {at for at, byte in enumerate(whole, 1) if byte == ord("\n")}
    for size in range(len(whole) + 1):
        if size % 9 and not ends & {size - 1, size, size + 1}:  # within a line each place is like the next
            continue
        (tmp_path / "out.batches.jsonl").write_bytes(whole[:size])
        journal = BatchJournal(output)
        steps = whole[:size].count(b"\n")
        assert journal.unfinished == {0: 0, 1: 0, 2: 1, 3: 2, 4: 2, 5: 2, 6: 1}[steps]
        chunks = list(journal.chunks(index))
        assert [(list(chunk.lines), chunk.batch) for chunk in chunks[:1]] == (
            [([1, 2], "batch_1" if steps >= 4 else "")] if steps >= 2 else []
        )
        journal.open()
        intended(journal, "d")
        journal.close()
        assert BatchJournal(output).unfinished == journal.unfinished


class Pages:
    """A provider's list, page by page; the last one comes again and again."""

    ahead_s = 0.0

    def __init__(self, *pages):
        self.pages, self.calls = list(pages), []

    async def call(self, method, path):
        self.calls.append(path)
        return self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]


def listed(name, chunk="", **fields):
    mark = {"paceline_run": "run", "paceline_chunk": chunk}
    about = {"created_at": 4e9, "metadata": mark, "processing_status": "ended", "request_counts": {}}
    return {"id": name} | about | fields


@pytest.mark.parametrize(
    ("api", "pages"),
    [
        (OpenAIEndpoints, [{"data": [listed("a")], "has_more": True}]),
        (OpenAIEndpoints, [{"data": [listed("a")], "has_more": True}, {"data": [], "has_more": True}]),
        (AnthropicEndpoints, [{"data": [], "has_more": True}]),
        (AnthropicEndpoints, [{"data": [listed("a", created_at="2096-10-02T07:06:40Z")], "has_more": True}]),
    ],
)
async def test_a_list_that_does_not_go_on_does_not_show_that_there_is_no_batch(api, pages):
    web = Pages(*pages)
    with pytest.raises(BrokenError, match="does not go on"):
        await api(web, run="run").find(chunk_of(), set(), Index())
    assert len(web.calls) <= 2


@pytest.mark.parametrize(
    ("api", "first", "found"),
    [
        (OpenAIEndpoints, [listed("a", created_at=None)], "b"),
        (MistralEndpoints, [listed("a")], "b"),  # which states no total
        (OpenAIEndpoints, [listed("a", created_at=1), listed("c")], "b"),
        (OpenAIEndpoints, [listed("c"), listed("a", created_at=1)], None),
    ],
)
async def test_a_list_is_read_to_its_end_or_to_a_page_that_ends_with_an_old_batch(api, first, found):
    more, end = ({}, [{"data": []}]) if api is MistralEndpoints else ({"has_more": True}, [])
    web = Pages({"data": first} | more, {"data": [listed("b", "1-a")]}, *end)
    assert await api(web, run="run").find(chunk_of(), set(), Index()) == found
    assert found or len(web.calls) == 1


@pytest.mark.parametrize(
    ("api", "page", "first", "then"),
    [
        (OpenAIEndpoints, {"data": [listed("a")], "has_more": True}, "/v1/batches?limit=100", "&after=a"),
        (MistralEndpoints, {"data": [listed("a")]}, "/v1/batch/jobs?page_size=100", "&page=1"),
        (
            AnthropicEndpoints,
            {"data": [listed("a", created_at="2096-10-02T07:06:40Z")], "has_more": True},
            "/v1/messages/batches?limit=100",
            "&after_id=a",
        ),
        (GeminiEndpoints, {"operations": [], "nextPageToken": "t"}, "/v1beta/batches?pageSize=100", "&pageToken=t"),
    ],
)
async def test_what_the_next_page_of_a_list_is_called(api, page, first, then):
    web, chunk = Pages(page, {"data": []}), chunk_of()
    if api is GeminiEndpoints:
        chunk.kind = BatchKind("gemini", "/v1beta/models/gemini:generateContent", "gemini")
    await api(web, run="run")._list(chunk)
    assert web.calls == [first, first + then]


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="Windows has one time zone for all processes")
def test_a_time_without_a_zone_is_of_utc(monkeypatch):
    with monkeypatch.context() as here:
        here.setenv("TZ", "America/New_York")
        time.tzset()
        times = {str(time_of(f"2026-10-02T07:06:40{zone}")) for zone in ("", "Z", "+00:00")}
    time.tzset()
    assert times == {"1790924800.0"}


def refusing(status):
    """A provider that refuses each call."""
    refuse = AsyncMock(side_effect=RefusedError(status, "", "no"))
    return SimpleNamespace(call=refuse, fetch=refuse)


async def test_a_batch_whose_end_is_refused_has_ended_unless_there_are_too_many_calls():
    await OpenAIEndpoints(refusing(409)).cancel(chunk_of())
    with pytest.raises(BrokenError, match="too many calls"):
        await OpenAIEndpoints(refusing(429)).cancel(chunk_of())


@pytest.mark.parametrize(("status", "error"), [(404, NoResultsError), (401, RefusedError)])
async def test_results_that_are_refused_are_missing_or_nobodys(status, error):
    with pytest.raises(error, match="no"):
        await OpenAIEndpoints(refusing(status)).results("place", io.BytesIO(), {})


def chunk_of():
    return Chunk(BatchKind("openai", "/v1/chat/completions", "gpt-5"), array("Q", [1]), 1.0, "1-a", "here", time.time())


async def test_a_batch_of_together_that_has_ended_is_done_by_its_progress():
    """Or a deadline leaves it while its results are read. A share is no count of results: those that are not there may be paid."""
    web = Web(None, None, lambda raw: raw, 1.0, None)
    web.call = AsyncMock(side_effect=[{"id": "b", "status": one, "progress": 100} for one in ("COMPLETED", "EXPIRED")])
    seen = [await TogetherEndpoints(web).look(chunk_of()) for _ in range(2)]
    assert [(one.done, one.stated) for one in seen] == [(1, 1), (1, 0)]


@pytest.mark.parametrize(("mode", "module"), [("batch", "offline"), ("sync", "client")])
def test_the_handlers_of_signals_stay_where_nothing_can_be_opened(run, monkeypatch, mode, module):
    one, before = run(count=1), signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(f"paceline.batch.{module}.session", Mock(side_effect=OSError("of certificates")))
    with pytest.raises(OSError, match="of certificates"):
        one.start(mode=mode)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_text_of_the_calls_shows_no_password():
    """A traceback with the values of variables may print it."""
    assert "secret" not in repr(Web(None, None, lambda raw: raw, 1.0, "http://me:secret@proxy.example"))


def test_results_that_cannot_be_read_are_not_sent_again(tmp_path):
    ends = OpenAIEndpoints(Web(None, None, lambda raw: raw, 1.0, None))
    path = tmp_path / "results"
    cut = b'{"custom_id": "a \\"1\\"", "response": {"status_code": 200, "body": '
    path.write_bytes(cut + b'\n\nnothing\n{"custom_id": "b", "response": 5}\n')
    with path.open("rb") as file:
        found = list(ends._read(file, {}))
    assert [one.custom_id for one in found] == ['a "1"', "b"]
    assert {(one.error["code"], one.again) for one in found} == {("result_unread", False)}


def _http(status, **error):
    return {"custom_id": "a", "response": {"status_code": status, "body": {"error": error}}, "error": None}


def _failed(kind=OpenAIEndpoints, /, **error):
    if kind is AnthropicEndpoints:
        return {"custom_id": "a", "result": {"type": "errored", "error": {"type": "error", "error": error}}}
    return {("key" if kind is GeminiEndpoints else "custom_id"): "a", "response": None, "error": error}


@pytest.mark.parametrize(
    ("api", "value", "again"),
    [
        *(
            (OpenAIEndpoints, value, again)
            for again, values in {
                True: [
                    _failed(code="batch_expired"), _failed(code="batch_cancelled"), _failed(code="request_timeout"),
                    _failed(code="job_aborted"), _failed(message="The batch was canceled"), _failed(code=503),
                    _failed(code="server_error"), {"custom_id": "a", "response": None, "error": None}, _http(429, code="rate_limit_exceeded"),
                    _http(429), _http(500, type="server_error"), _http(502), _http(408), _http(499), _http(0),
                    _http(200, type="overloaded_error", message="Overloaded"),
                    {"custom_id": "a", "response": {"status_code": 503, "body": "<html>"}, "error": {"code": "x", "message": "y"}},
                ],
                False: [
                    _failed(code="invalid_prompt"), _failed(code="invalid_model", message="timed out is no model"), _http(400, code="batch_expired"),
                    _http(400, code="rate_limit_exceeded"), _http(401), _http(403), _http(404), _http(413), _http(501),
                    _http(429, code="insufficient_quota"), _http(200, message="cancelled"), _failed(message="Invalid model specified"),
                ],
            }.items() for value in values
        ),
        *(
            (AnthropicEndpoints, _failed(AnthropicEndpoints, type=kind), again)
            for kind, again in {
                "overloaded_error": True, "rate_limit_error": True, "api_error": True, "timeout_error": True,
                "invalid_request_error": False, "billing_error": False, "not_found_error": False, "request_too_large": False,
            }.items()
        ),
        (AnthropicEndpoints, {"custom_id": "a", "result": {"type": "errored", "error": {"type": "overloaded_error"}}}, True),
        (AnthropicEndpoints, {"custom_id": "a", "result": {"type": "canceled"}}, True),
        (AnthropicEndpoints, {"custom_id": "a", "result": {"type": "expired"}}, True),
        *(
            (GeminiEndpoints, _failed(GeminiEndpoints, **error), again)
            for again, errors in {
                True: [{"code": 8}, {"code": 429, "status": "RESOURCE_EXHAUSTED"}, {"code": 13}, {"code": 14}, {"code": 1}, {"code": 4}, {"code": 500}],
                False: [{"code": 3}, {"code": 400}, {"code": 7}, {"code": 9}, {"code": 12}],
            }.items() for error in errors
        ),
        (MistralEndpoints, _http(429, message="Requests rate limit exceeded"), True),
        (MistralEndpoints, _http(422), False),
        (TogetherEndpoints, {"custom_id": "a", "error": {"code": "rate_limit_exceeded", "message": "x"}}, True),
        (TogetherEndpoints, {"custom_id": "a", "error": {"code": "invalid_model", "message": "x"}}, False),
    ],
)  # fmt: skip
def test_which_results_are_sent_again(api, value, again):
    ends = api(Web(None, None, lambda raw: raw, 1.0, None))
    found = [*ends._read(io.BytesIO(json.dumps(value).encode() + b"\n"), {})]
    assert [(one.custom_id, one.again) for one in found] == [("a", again)]
    assert found[0].error is not None


def test_an_answer_that_leaves_a_question_open_ends_an_outage(monkeypatch):
    now, kind = [0.0], chunk_of().kind
    monkeypatch.setattr(timing_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    outage = timing_module.Outage(Said(), offline.Timing(lost_s=10.0))
    for now[0], error in ((8.0, BrokenError), (30.0, NotYetError), (35.0, BrokenError), (39.0, BrokenError)):
        outage.note(error("of a call"), kind, "nothing is known")
    now[0] = 41.0
    with pytest.raises(timing_module.StopError, match="nothing is known: of a call"):
        outage.note(BrokenError("of a call"), kind, "nothing is known")


@pytest.mark.parametrize(
    ("content", "number"),
    [
        (b"hello\n", 1), (b'{"event": "batch", "chunk": "x", "batch": "y"}\n', 1), (b"[]\n", 1),
        (("intent", "intenu"), 2), (("batch_2", "batch_1"), 5),
    ],
)  # fmt: skip
def test_a_journal_of_something_else_is_not_touched(tmp_path, content, number):
    """Also if it is one that was changed."""
    journal, path = BatchJournal(str(tmp_path / "out")), tmp_path / "out.batches.jsonl"
    journal.open()
    for ids, batch in (("a", "batch_1"), ("b", "batch_2")):
        journal.created(intended(journal, ids), batch)
    journal.close()
    content = content if isinstance(content, bytes) else path.read_text().replace(*content).encode()
    path.write_bytes(content)
    with pytest.raises(OutputError, match=f"line {number}: not a line of a journal of batches"):
        BatchJournal(str(tmp_path / "out"))
    assert path.read_bytes() == content
