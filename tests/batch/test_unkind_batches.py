"""Nothing paid is misread: batches at servers that were written from the documentation, on their bad days."""

import asyncio
import errno
import io
import json
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import aiohttp
import pytest
import unkind_batches
from batch_helpers import Said, chat, message, read_answers, run_job, write_lines
from batch_times import KEYS
from crashing import CrashError, Crashing
from unkind_batches import Anthropic, OddError, OpenAI, Server, StoredError, Unkind

from paceline.batch import offline
from paceline.batch.api import BrokenError
from paceline.batch.endpoints import AnthropicEndpoints, OpenAIEndpoints
from paceline.batch.journal import BatchJournal

PATIENT = {"quiet_s": 0.0, "lost_s": 60.0}
ENDS = {OpenAI: OpenAIEndpoints, Anthropic: AnthropicEndpoints}
APIS = pytest.mark.parametrize("api", [OpenAI, Anthropic])


@pytest.fixture(autouse=True)
def patient(timing):
    timing(**PATIENT)


class Input:
    """An input of one program, whose prompts are in no other one."""

    def __init__(self, server, folder, name="one", count=12, ids="r{}"):
        folder.mkdir(exist_ok=True)
        self.server, self.prompts, self.said = server, {ids.format(n): f"{name} {n}" for n in range(count)}, Said()
        self.source, self.output = folder / f"{name}.jsonl", folder / f"{name}.results.jsonl"
        write_lines(self.source, [self._line(*one) for one in self.prompts.items()])

    def _line(self, custom_id, prompt):
        return (message if self.server.style == "anthropic" else chat)(custom_id, text=prompt)

    def run(self, most=4, **options):
        options = {"mode": "batch", "batch_lines": most} | options
        return run_job(self.source, self.server.base_url, self.said, environ=KEYS, **options)[0]

    def completes(self, most=4, *, batches=None, **options):
        """A run answers each request, and the provider's books agree with it."""
        assert self.run(most, **options) == 0
        assert self.wrong() == []
        # Two refusals without a limit may be a full queue: then a batch is halved, and there are more.
        assert self.server.busy >= 2 or batches in (None, len(self.server.batches))

    def wrong(self, *, late=False):
        """What the provider's books and the output contradict each other in; with ``late``, requests may be paid twice."""
        records = read_answers(self.output) if self.output.exists() else []
        lines = Counter(record["custom_id"] for record in records)
        found = [f"{name} has {count} lines" for name, count in lines.items() if count > 1 or name not in self.prompts]
        found += [f"{name} has no line" for name in self.prompts if name not in lines]
        found += [f"{p} paid {n} times" for p, n in self.server.paid.items() if n > 1 and not late]
        for record in records:
            name, error, prompt = record["custom_id"], record["error"], self.prompts.get(record["custom_id"])
            if error is None and self.server.text(record) != f"about {prompt}":
                found.append(f"{name} has the answer {self.server.text(record)!r}")
            elif error is not None and self.server.paid[prompt]:
                found.append(f"{name} is paid and {error['code']}")
        own = set(self.prompts.values())
        paid = [batch for batch in self.server.batches if batch.ended and not batch.cancelled]
        unread = [(prompt, batch.id) for batch in paid for prompt in {p for _, p in batch.requests} & own - batch.read]
        return found + [f"{prompt} of {name} is paid and not read" for prompt, name in unread]


@pytest.fixture
def start(tmp_path):
    """Start a server on a bad day; the input of a run there."""
    with ExitStack() as ends:
        yield lambda api, unkind=None, **given: Input(ends.enter_context(api(unkind or Unkind())), tmp_path, **given)


def kill_after_intent(one, monkeypatch, number):
    """Kill a run when its journal says, for the ``number``-th time, that a batch will be created."""
    intend, intended = BatchJournal.intend, []

    def killed(self, *args):
        intended.append(intend(self, *args))
        if len(intended) == number:
            raise CrashError
        return intended[-1]

    with monkeypatch.context() as patch:
        patch.setattr(BatchJournal, "intend", killed)
        with pytest.raises(CrashError):
            one.run()


TAKEN = (400, 403, 404, 409, 413, 422, 425, 429, 451)
"""Statuses of a creation that took effect all the same."""


@pytest.mark.sample(9)
@APIS
@pytest.mark.parametrize(
    "unkind",
    [
        *(Unkind(work=0, refusals={0: (status, True), 2: (status, True)}) for status in TAKEN),  # it has ended when it is looked for
        *(Unkind(work=4, refusals={0: (status, True)}) for status in TAKEN),  # it is in progress, while the others wait
        Unkind(refusals={0: (409, False), 1: (425, False), 3: (429, False)}),  # at the wrong moment
        Unkind(pending=3), Unkind(counting=3, pending=2), Unkind(cuts=2), Unkind(twice=True, foreign=True), Unkind(nulls=True, lost=(0, 2)),
        Unkind(lost=(0, 1, 2)), Unkind(refused=3, seed=1), Unkind(refused=4, cuts=1, pending=1, lost=(1,), seed=2),
    ],
    ids=lambda one: ",".join(f"{k}={v}" for k, v in vars(one).items() if v != vars(Unkind())[k]),
)  # fmt: skip
def test_a_bad_day_costs_nothing(start, api, unkind):
    one = start(api, unkind)
    one.completes(batches=3)


@pytest.mark.sample(4)
@APIS
@pytest.mark.parametrize("unkind", [{"late": 1}, {"lag": 1}, {"late": 2}, {"lag": 2, "pending": 2}], ids=str)
def test_a_creation_that_takes_effect_late_is_read(start, api, unkind):
    """The list of batches has it after the wait for it: at the end of the run, or when the same command is run again."""
    one = start(api, Unkind(lost=(0,), **unkind), count=4)
    assert one.run() == 0
    for _ in range(6):
        assert one.run() == 0
    assert one.wrong(late=True) == []
    assert len(one.server.batches) == 2
    assert any("was created after the wait for it" in text for text in one.said.lines)
    calls = len(one.said.lines)
    assert one.run() == 0  # and it is known from now on
    assert not any("was created after" in text for text in one.said.lines[calls:])


def test_a_lost_batch_of_another_account_is_not_looked_for(start):
    one = start(OpenAI)
    about = {"provider": "anthropic", "path": "/v1/messages", "model": "m", "account": "anthropic:another"}
    events = [
        {"event": "run", "run": "r", "version": 1},
        {"event": "intent", "chunk": "1-a", **about, "at_s": datetime.now(UTC).timestamp(), "tokens": 9, "ids": ["r0"]},
        {"event": "ended", "chunk": "1-a", "state": "never created"},
    ]
    write_lines(one.output.with_name(f"{one.output.name}.batches.jsonl"), events)
    one.completes(batches=3)


@APIS
def test_a_late_creation_is_waited_for_also_after_a_long_upload(start, api, timing, monkeypatch):
    intend = BatchJournal.intend

    def long_ago(self, chunk, account):
        intend(self, chunk, account)
        chunk.at_s -= 90

    monkeypatch.setattr(BatchJournal, "intend", long_ago)
    timing(**PATIENT | {"settle_s": 30.0})
    start(api, Unkind(lost=(0,), late=3), count=4).completes(batches=1)


@APIS
@pytest.mark.parametrize(
    ("created_h", "date_h"), [(-2, -2), (0, 48)], ids=["this machine is two hours ahead", "the date is two days late"]
)
def test_a_batch_is_found_by_its_time_where_clocks_differ(start, api, monkeypatch, created_h, date_h):
    created, date = (datetime.now(UTC) + timedelta(hours=hours) for hours in (created_h, date_h))
    monkeypatch.setattr(unkind_batches, "CREATED_S", int(created.timestamp()))
    monkeypatch.setattr(unkind_batches, "TIME", created.isoformat())
    monkeypatch.setattr(unkind_batches._Handler, "date_time_string", lambda _: format_datetime(date, usegmt=True))
    one = start(api, Unkind(lost=(0,)), count=4)
    one.completes(batches=1)


def test_a_late_batch_that_two_chunks_could_be_is_that_of_one(start, monkeypatch):
    """The first creation is lost and the second one killed, with the same requests. Then the batch of the first appears."""
    one = start(Anthropic, Unkind(lost=(0,), late=100, work=0), count=4)
    kill_after_intent(one, monkeypatch, number=2)
    one.server.batches[0].hidden = 0
    find = AnthropicEndpoints.find

    async def slowly(self, *args):
        found = await find(self, *args)
        await asyncio.sleep(0.05)  # while the other one is looking
        return found

    monkeypatch.setattr(AnthropicEndpoints, "find", slowly)
    one.completes(batches=1)


def test_a_late_batch_whose_requests_are_all_answered_is_cancelled(start):
    one = start(OpenAI, Unkind(lost=(0,), late=1, work=4), count=4)
    one.completes()
    assert [batch.cancelled for batch in one.server.batches] == [True, False]


@APIS
def test_a_state_that_is_not_documented_is_said_and_ends_the_run(start, api, timing, capsys):
    one = start(api, Unkind(state="paused_for_review"), count=4)
    timing(**PATIENT | {"lost_s": 0.05})
    assert one.run() == 1
    assert "its state is 'paused_for_review', which is not known here" in capsys.readouterr().err
    one.server.unkind.state = ""
    timing(**PATIENT)
    one.completes()


def kills(api, folder, seed, wanted):
    """Kill runs at random steps, over random bad days, until there were so many kills; return what was wrong."""
    dice, count, found = random.Random(seed), 0, []
    for number in range(10 * wanted):
        if count >= wanted:
            break
        unkind = Unkind(
            refused=dice.choice([0, 0, 2]), cuts=dice.randint(0, 1), pending=dice.randint(0, 2), counting=dice.randint(0, 1),
            twice=dice.random() < 0.3, nulls=dice.random() < 0.3, lost=tuple(dice.sample(range(6), dice.randint(0, 2))), seed=number,
            undone=dice.choice([0, 0, 1]), form=coded(api, UNDONE[2 if api is OpenAI else 6][1], 429),
            refusals={n: (409, dice.random() < 0.5) for n in dice.sample(range(6), dice.randint(0, 1))},
        )  # fmt: skip
        with api(unkind) as server:
            one = Input(server, folder / f"{seed}-{number}", count=8)
            for _ in range(dice.randint(1, 4)):
                with pytest.MonkeyPatch.context() as patch:
                    Crashing(patch, dice.randint(0, 60))
                    try:
                        one.run()
                    except CrashError:
                        count += 1
            code = one.run()
            wrong = one.wrong() + ([f"exit code {code}: {one.said.lines}"] if code else [])
            found += [f"seed {seed}, world {number}, {unkind}: {text}" for text in wrong]
    return count, found


@APIS
@pytest.mark.parametrize("wanted", [4, pytest.param(100, marks=pytest.mark.long("a hundred kills"))])
def test_kills_at_random_moments(tmp_path, api, wanted):
    count, found = kills(api, tmp_path, seed=wanted, wanted=wanted)
    assert found == []
    assert count >= wanted


def coded(api, code, status=0):
    """The fields of a result of a request that a batch has not worked on, or of one that was refused in it."""
    if api is Anthropic:
        if code in ("canceled", "expired"):
            return {"result": {"type": code}}
        return {"result": {"type": "errored", "error": api.error(None, code, "of the line")}}
    error = {"code": code, "message": "of the line"}
    if not status:
        return {"response": None, "error": error}
    return {"response": {"status_code": status, "request_id": "req_1", "body": {"error": error}}, "error": None}


UNDONE = [
    (OpenAI, "batch_cancelled", 0), (OpenAI, "batch_expired", 0), (OpenAI, "rate_limit_exceeded", 429), (OpenAI, "", 503),
    (Anthropic, "canceled", 0), (Anthropic, "expired", 0), (Anthropic, "overloaded_error", 0),
]  # fmt: skip


@pytest.mark.parametrize(("api", "code", "status"), UNDONE)
def test_requests_that_a_batch_has_not_worked_on_are_sent_again(start, api, code, status):
    one = start(api, Unkind(undone=2, form=coded(api, code, status)), count=8)
    one.completes()
    assert len(one.server.batches) in (3, 4)  # what comes back from both goes into one, or into one each


def test_what_a_batch_that_has_ended_early_says_in_its_own_words_is_sent_again(start):
    one = start(OpenAI, Unkind(undone=2, state="expired", form=coded(OpenAI, "code_17")), count=4)
    one.completes()


@pytest.mark.parametrize(
    ("of", "batches", "reason"),
    [
        (UNDONE[2], 3, ("rate_limit_exceeded", "of the line")),
        (UNDONE[6], 3, ("overloaded_error", "of the line")),
        ((OpenAI, "invalid_prompt", 400), 1, ("blocked", "a filter of the provider blocked the prompt")),
        ((Anthropic, "invalid_request_error", 0), 1, ("invalid_request_error", "of the line")),
    ],
)
def test_requests_that_no_batch_works_on_fail_with_the_reason_and_wrong_ones_at_once(start, of, batches, reason):
    one = start(of[0], Unkind(undone=2, times=99, form=coded(*of)), count=4)
    assert one.run() == 1
    assert one.wrong() == []
    errors = [record["error"] for record in read_answers(one.output) if record["error"]]
    assert [(error["code"], error["message"]) for error in errors] == [reason] * 2
    assert len(one.server.batches) == batches


def test_before_a_deadline_such_requests_are_sent_one_by_one(start):
    one = start(OpenAI, Unkind(undone=2, times=99, form=coded(OpenAI, "rate_limit_exceeded", 429)), count=4)
    one.completes(mode="auto", deadline_s=86_400.0, batches=3)
    assert any("2 requests have no answer in batches: they are sent one by one" in text for text in one.said.lines)


def test_a_batch_whose_answers_were_cut_is_not_complete_by_what_it_has_not_done(start, monkeypatch):
    """The count of results is reached by requests that can be sent again, and the count of answers is not."""
    content = OpenAI.content

    def cut_once(self, batch):
        whole = content(self, batch).splitlines(keepends=True)
        if batch.looks > 4:
            return b"".join(whole)
        return b"".join(line for line in whole if b"batch_expired" in line)

    monkeypatch.setattr(OpenAI, "content", cut_once)
    one = start(OpenAI, Unkind(undone=3, state="expired", form=coded(OpenAI, "batch_expired")), count=6)
    one.completes(most=6)


@pytest.mark.sample(5)
@APIS
@pytest.mark.parametrize("gone", [404, 410, b"", b"<html></html>", b'{"data": []}\n', None], ids=str)
def test_results_that_are_gone_or_below_the_count_are_sent_again_on_demand_only(start, api, gone, timing):
    timing(**PATIENT | {"lost_s": 0.03})
    one = start(api, Unkind(gone=gone, dropped=2 * (gone is None)), count=8)
    assert one.run() == 1
    errors = [record["error"] for record in read_answers(one.output) if record["error"]]
    assert [error["code"] for error in errors] == ["result_unread"] * 4
    if gone is None:  # in both batches
        assert all("4 results by the provider's count, and 2 can be read" in error["message"] for error in errors)
        assert {batch.id in str(errors) for batch in one.server.batches} == {True}
        assert any("reading them again for" in text for text in one.said.lines)
    assert one.run() == 1
    assert "4 requests may be answered, but the result was not read: --repair sends them again" in one.said.lines[-1]
    assert len(one.server.batches) == 2  # nothing was made again
    one.server.unkind.dropped = 0
    assert one.run(repair=True) == 0
    assert len(one.server.batches) == 3
    assert one.wrong(late=True)[:-4] == []  # the four are paid twice, as it was asked for


def test_results_that_are_gone_of_a_batch_without_a_count_are_not_taken_for_undone(start, monkeypatch, timing):
    timing(**PATIENT | {"lost_s": 0.03})
    show = OpenAI.show
    monkeypatch.setattr(OpenAI, "show", lambda self, batch: show(self, batch) | {"request_counts": None})
    one = start(OpenAI, Unkind(gone=404, state="expired"), count=4)
    assert one.run() == 1
    assert {record["error"]["code"] for record in read_answers(one.output)} == {"result_unread"}
    assert max(one.server.paid.values()) == 1


@pytest.mark.parametrize("pending", [0, 2])
def test_an_early_end_whose_counts_and_files_come_later_is_not_taken_for_undone(start, timing, pending):
    timing(**PATIENT | {"settle_s": 0.2})
    start(OpenAI, Unkind(counting=3, pending=pending, state="expired"), count=4).completes(batches=1)


def test_results_that_end_within_a_line_are_read_again_without_a_count(start, monkeypatch):
    show = OpenAI.show
    monkeypatch.setattr(OpenAI, "show", lambda self, batch: show(self, batch) | {"request_counts": None})
    start(OpenAI, Unkind(cuts=1, state="expired"), count=3).completes(batches=1)


def failing_lists(monkeypatch, api, count):
    """Let so many lists of batches fail first; return the errors that are left."""
    ends, errors = ENDS[api], [BrokenError("no list")] * count
    find = ends.find

    async def failing(self, *given):
        if errors:
            raise errors.pop()
        return await find(self, *given)

    monkeypatch.setattr(ends, "find", failing)
    return errors


@APIS
def test_a_creation_is_looked_for_by_the_next_command_if_no_list_could_be_read(start, api, monkeypatch):
    errors = failing_lists(monkeypatch, api, 1_000)
    one = start(api, Unkind(work=4, refusals={0: (400, True)}))
    assert one.run() == 1
    del errors[1:]
    one.completes(batches=3)


@APIS
def test_a_refusal_that_says_that_nothing_was_made_is_believed_if_no_list_can_be_read(start, api, monkeypatch):
    failing_lists(monkeypatch, api, 1)
    one = start(api, Unkind(refusals={0: (429, False)}))
    one.completes(batches=3)


@APIS
def test_a_creation_that_is_wrong_stops_the_run_after_a_look(start, api, capsys):
    one = start(api, Unkind(refusals={0: (400, False)}))
    assert one.run() == 1
    assert "refused a call of its Batch API with a 400: overloaded: Too busy" in capsys.readouterr().err
    assert one.server.creations == 1
    one.completes()


def test_a_creation_without_money_is_not_waited_for(start, monkeypatch, capsys):
    error = OpenAI.error
    words = "insufficient_quota", "You exceeded your current quota"
    monkeypatch.setattr(OpenAI, "error", lambda self, *_: error(self, *words))
    one = start(OpenAI, Unkind(refusals={0: (429, False)}))
    assert one.run() == 1
    assert "with a 429: insufficient_quota: You exceeded your current quota" in capsys.readouterr().err
    assert one.server.creations == 1
    one.completes()


def test_what_has_ended_is_read_before_a_run_stops_for_want_of_money(start, monkeypatch):
    """Each run stops there, long before the results have come."""
    one = start(OpenAI, Unkind(work=10**6))
    kill_after_intent(one, monkeypatch, number=3)
    one.server.unkind = Unkind(work=0, refusals=dict.fromkeys(range(9), (429, False)))
    error, results = OpenAI.error, OpenAIEndpoints.results
    monkeypatch.setattr(OpenAI, "error", lambda self, *_: error(self, "insufficient_quota", "no quota"))

    async def slowly(self, *given):
        await asyncio.sleep(0.2)
        return await results(self, *given)

    monkeypatch.setattr(OpenAIEndpoints, "results", slowly)
    assert one.run() == 1
    assert len(read_answers(one.output)) == 8
    assert any("the results of batches that have ended are read first" in text for text in one.said.lines)


NO_MONEY = {"code": "billing_hard_limit_reached", "message": "Billing hard limit has been reached", "line": None}
FAILED = {"status": "failed", "errors": {"object": "list", "data": [NO_MONEY]}, "request_counts": None}
"""What is shown of a batch that has failed without money."""


def test_a_batch_that_fails_without_money_ends_the_run_after_others_have_worked(start, monkeypatch, capsys):
    look, show = OpenAI.look, OpenAI.show

    def looks(self, batch):
        if batch is self.batches[0]:
            return look(self, batch)
        batch.looks += bool(self.batches[0].read)  # it fails some looks after the results of the first were sent
        return batch

    monkeypatch.setattr(OpenAI, "look", looks)
    monkeypatch.setattr(OpenAI, "show", lambda self, batch: show(self, batch) | (FAILED if batch.looks > 8 else {}))
    one = start(OpenAI, count=8)
    assert one.run() == 1
    assert "has failed; billing_hard_limit_reached: Billing hard limit has been reached" in capsys.readouterr().err
    assert len(one.server.batches) == 2
    assert len(read_answers(one.output)) == 4


def test_batches_of_an_earlier_run_that_had_no_money_do_not_end_this_one(start, monkeypatch):
    show = OpenAI.show
    one = start(OpenAI, Unkind(work=10**6))
    kill_after_intent(one, monkeypatch, number=3)
    earlier = [batch.id for batch in one.server.batches]
    assert len(earlier) == 2
    one.server.unkind.work = 0

    def shows(self, batch):
        return show(self, batch) | (FAILED | {"output_file_id": None} if batch.id in earlier else {})

    monkeypatch.setattr(OpenAI, "show", shows)
    one.server.look = lambda batch: batch if batch.id in earlier else OpenAI.look(one.server, batch)
    one.completes()
    assert len(one.server.batches) > len(earlier)


@pytest.mark.parametrize(
    "words", ["Cannot find file {}, or project proj_1 does not have access to it.", "Input file not found"]
)
def test_a_batch_of_a_file_that_is_not_found_yet_is_asked_for_again(start, monkeypatch, words):
    error = OpenAI.error
    monkeypatch.setattr(OpenAI, "error", lambda self, *_: error(self, None, words.format(list(self.files)[-1])))
    one = start(OpenAI, Unkind(refusals={0: (400, False), 1: (404, False)}))
    one.completes(batches=3)
    assert (one.server.uploads, one.server.files) == (3, {})
    assert any(f"no batch can be created yet: {words[:10]}" in text for text in one.said.lines)


def test_a_batch_that_the_queue_has_no_room_for_keeps_its_file(start):
    one = start(OpenAI, Unkind(refusals={1: (429, False)}))
    one.completes(batches=3)
    assert (one.server.uploads, one.server.files) == (3, {})


def test_the_requests_of_a_kept_file_that_is_gone_are_uploaded_again(start, monkeypatch):
    """Gemini deletes files after two days."""
    call, used = OpenAI.call, []

    def forgetting(self, method, path, query, headers, body):
        if method == "POST" and path == "/v1/batches":
            file = json.loads(body)["input_file_id"]
            if used.count(file):
                self.files.pop(file, None)
                return 403, self.error(
                    None, f"You do not have permission to access the File {file} or it may not exist."
                )
            used.append(file)
        return call(self, method, path, query, headers, body)

    monkeypatch.setattr(OpenAI, "call", forgetting)
    one = start(OpenAI, Unkind(refusals={1: (429, False)}))
    one.completes(batches=3)
    assert (one.server.uploads, one.server.files) == (4, {})
    assert any("its requests are uploaded again" in text for text in one.said.lines)


def uploads(monkeypatch, refusals):
    """Let the uploads be refused with these statuses first."""
    call = OpenAI.call

    def refusing(self, method, path, *rest):
        if path == "/v1/files" and refusals:
            raise OddError(refusals.pop())
        return call(self, method, path, *rest)

    monkeypatch.setattr(OpenAI, "call", refusing)


def test_an_upload_that_is_refused_for_its_rate_says_nothing_of_the_queue(start, monkeypatch, timing):
    """It is said at once: the address may be wrong."""
    uploads(monkeypatch, [429, 409, 500, 429, 429])
    timing(**PATIENT | {"quiet_s": 60.0})
    one = start(OpenAI)
    one.completes(most=12, batches=1)
    assert any("no batch can be created yet: Too busy" in text for text in one.said.lines)
    assert not any("takes no batch" in text for text in one.said.lines)


def test_an_interrupt_before_the_upload_leaves_no_batch_to_look_for(start, monkeypatch):
    class Interrupting(Said):
        def say(self, text):
            super().say(text)
            if "no batch can be created yet" in text:
                signal.raise_signal(signal.SIGINT)

    uploads(monkeypatch, [429] * 10_000)
    one = start(OpenAI)
    one.said = Interrupting()
    assert one.run() == 130
    assert BatchJournal(str(one.output)).unfinished == 0


def test_before_a_deadline_a_batch_without_its_file_is_left(start, monkeypatch, timing):
    timing(**PATIENT | {"cancel_s": 0.1, "last_s": 0.1})
    uploads(monkeypatch, [429] * 10_000)
    one = start(OpenAI)
    one.completes(most=12, mode="auto", deadline_s=2.0, batches=0)
    assert BatchJournal(str(one.output)).unfinished == 0


@APIS
def test_batches_that_are_too_large_are_halved(start, api):
    one = start(api, Unkind(largest=1_500), count=32)
    one.completes(most=32)
    assert 3 < len(one.server.batches) < 32
    assert any("half of it at most" in text for text in one.said.lines)


@APIS
def test_a_request_that_is_too_large_for_any_batch_has_failed(start, api):
    one = start(api, Unkind(largest=10), count=2)
    assert one.run() == 1
    error = {"code": "request_too_large", "message": "a page: 413 Request Entity Too Large"}
    assert [one["error"] for one in read_answers(one.output)] == [error] * 2


def adding(api, monkeypatch, custom_id):
    """A result with an odd id comes before the others of each batch."""
    content = api.content

    def odd(self, batch):
        line = self.line("odd", "of another") | {"custom_id": custom_id}
        return json.dumps(line).encode() + b"\n" + content(self, batch)

    monkeypatch.setattr(api, "content", odd)


@pytest.mark.sample(4)
@APIS
@pytest.mark.parametrize("custom_id", ["\ud800", 10**30, 2, True, 1.0, None, ["r0"]], ids=repr)
def test_a_result_with_an_id_of_any_form_is_of_no_request(start, api, monkeypatch, custom_id):
    one = start(api)
    adding(api, monkeypatch, custom_id)
    one.completes(batches=3)


def test_a_result_whose_id_became_an_integer_on_the_way_is_of_its_request(start, monkeypatch):
    line = OpenAI.line
    monkeypatch.setattr(OpenAI, "line", lambda self, name, text: line(self, name, text) | {"custom_id": int(name)})
    one = start(OpenAI, ids="10{}")
    one.completes()


@pytest.mark.parametrize("line", ["2", True, 0, 10**9])
def test_an_error_of_a_batch_with_an_odd_line_is_about_the_whole_batch(start, monkeypatch, capsys, line):
    show = OpenAI.show
    errors = {"object": "list", "data": [{"code": "invalid_json_line", "message": "not valid", "line": line}]}

    def failed(self, batch):
        ended = {"status": "failed", "errors": errors, "output_file_id": None, "request_counts": None}
        return show(self, batch) | (ended if batch.ended else {})

    monkeypatch.setattr(OpenAI, "show", failed)
    one = start(OpenAI, count=4)
    assert one.run() == 2
    assert "invalid_json_line: not valid" in capsys.readouterr().err


def let_fail(monkeypatch, fails, line_of=lambda batch: None, code="server_error"):
    """Let the batches fail as a whole that ``fails`` names, at once."""
    show = OpenAI.show

    def shows(self, batch):
        batch.ended = (failed := not batch.ended and fails(batch)) or batch.ended
        batch.failed = failed or getattr(batch, "failed", False)
        problem = {"code": code, "message": "The server had an error", "line": line_of(batch)}
        errors = {"status": "failed", "errors": {"data": [problem]}, "output_file_id": None, "request_counts": None}
        return show(self, batch) | (errors if batch.failed else {})

    monkeypatch.setattr(OpenAI, "show", shows)


@pytest.mark.parametrize("code", ["server_error", "rate_limit_exceeded"])
def test_batches_that_fail_in_an_outage_use_up_no_try(start, monkeypatch, code):
    outage = list(range(12))
    let_fail(monkeypatch, lambda _: bool(outage and outage.pop() + 1), code=code)
    one = start(OpenAI)
    assert one.run() == 0
    assert [record["error"] for record in read_answers(one.output)] == [None] * 12
    assert one.server.uploads < len(one.server.batches)
    assert any("takes no batch of about" in text for text in one.said.lines)


def test_a_request_whose_batch_fails_alone_for_long_has_failed(start, timing, monkeypatch):
    """Its content may be the reason; the others are answered."""
    timing(**PATIENT | {"lost_s": 0.3})
    let_fail(monkeypatch, lambda batch: any(prompt == "one 5" for _, prompt in batch.requests))
    one = start(OpenAI)
    assert one.run() == 1
    assert [record["error"] for record in read_answers(one.output) if record["custom_id"] != "r5"] == [None] * 11
    assert read_answers(one.output)[-1]["error"]["code"] == "server_error"


def test_a_request_that_an_error_of_load_names_has_failed(start, monkeypatch):
    """Without it, the others are sent at once."""

    def line_of(batch):
        return next((n for n, (_, prompt) in enumerate(batch.requests, 1) if prompt == "one 5"), None)

    let_fail(monkeypatch, line_of, line_of)
    one = start(OpenAI)
    assert one.run() == 1
    assert {record["custom_id"] for record in read_answers(one.output) if record["error"]} == {"r5"}
    assert len(one.server.batches) == 4


@pytest.mark.parametrize(
    "errors", [[], "none", [{"code": "x", "message": "y"}], {"data": {}}, {"data": [None, 3]}], ids=str
)
def test_errors_of_another_form_do_not_hide_the_results(start, monkeypatch, errors):
    show = OpenAI.show
    monkeypatch.setattr(OpenAI, "show", lambda self, batch: show(self, batch) | {"errors": errors})
    one = start(OpenAI)
    one.completes()


class Full(io.BytesIO):
    """A temporary file on a full disk: what is buffered does not fit in the end."""

    def seek(self, *args):
        raise OSError(errno.ENOSPC, "No space left on device")


class FullAtOnce(io.BytesIO):
    def write(self, part):
        raise OSError(errno.ENOSPC, "No space left on device")


@APIS
@pytest.mark.parametrize("full", [Full, FullAtOnce])
def test_a_temporary_file_without_room_is_waited_for(start, api, monkeypatch, full):
    real, made = tempfile.TemporaryFile, []

    def make():
        made.append(full() if len(made) < 4 else real())
        return made[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", make)
    one = start(api)
    one.completes()
    assert any("no temporary file can be made: No space left on device; set TMPDIR" in t for t in one.said.lines)


def test_a_machine_without_threads_is_named(start, monkeypatch):
    request, calls = aiohttp.ClientSession.request, []

    def lacking(self, *args, **options):
        calls.append(args)
        if 3 <= len(calls) < 6:
            raise RuntimeError("can't start new thread")
        return request(self, *args, **options)

    monkeypatch.setattr(aiohttp.ClientSession, "request", lacking)
    one = start(OpenAI, count=4)
    one.completes()
    assert any("no new thread can be started; raise it with ulimit -u" in text for text in one.said.lines)


class Store(Server):
    """Has the results of another server, at signed URLs that are valid once; keeps the headers of each call."""

    def __init__(self, server, refused=0):
        super().__init__(Unkind())
        self.server, self.left, self.seen = server, refused, []
        self.base_url = f"http://localhost:{self.server_port}"

    def answer(self, method, path, query, headers, body):
        self.seen.append(headers)
        if self.left:
            self.left -= 1
            raise OddError(403)
        if "signature" not in query:
            raise StoredError(f"{self.base_url}{path}?signature=a%2Fb%3D")
        return 200, self.server.content(self.server.find(path.removeprefix("/")))

    def error(self, code, message):
        return {"Error": "Request has expired"}


@APIS
def test_results_in_a_store_are_read_there_without_the_key(tmp_path, api, monkeypatch):
    call = api.call

    def stored(self, method, path, *rest):
        if path.endswith(("/content", "/results")):
            name = path.split("/")[-2].removeprefix("output-")
            raise StoredError(f"{store.base_url}/{name}")
        return call(self, method, path, *rest)

    monkeypatch.setattr(api, "call", stored)
    with api(Unkind()) as server, Store(server, refused=2) as store:
        one = Input(server, tmp_path)
        one.completes()
        sent = {name.lower() for headers in store.seen for name in headers}
        assert not sent & {"authorization", "x-api-key"}
        assert any(f"status 403 from {store.base_url}, to which" in text for text in one.said.lines)


def test_results_may_take_longer_than_a_call_while_they_come(start, monkeypatch):
    def slowly(self, raw):
        for at in range(0, len(raw), 500):
            time.sleep(0.04)
            yield raw[at : at + 500]

    monkeypatch.setattr(OpenAI, "parts", slowly)
    monkeypatch.setattr(offline, "CALL_S", 1.0)  # much longer than from one part to the next
    one = start(OpenAI, count=60)
    one.completes(most=60, batches=1)


def test_results_that_a_store_has_not_end_as_unread(tmp_path, monkeypatch, timing):
    timing(**PATIENT | {"lost_s": 0.03})
    with OpenAI(Unkind()) as server, Store(server, refused=10**9) as store:
        monkeypatch.setattr(OpenAI, "content", lambda _, batch: (_ for _ in ()).throw(StoredError(store.base_url)))
        one = Input(server, tmp_path, count=4)
        assert one.run() == 1
        assert {record["error"]["code"] for record in read_answers(one.output)} == {"result_unread"}
        assert f"status 403 from {store.base_url}, to which" in read_answers(one.output)[0]["error"]["message"]


@pytest.mark.parametrize("place", ["ftp://127.0.0.1/x", "http://[", f"/v1/files/output-batch_{0:024x}/content"])
def test_results_that_are_nowhere_stop_the_run(start, monkeypatch, capsys, place, timing):
    def stored(*_):
        raise StoredError(place)

    monkeypatch.setattr(OpenAI, "content", stored)
    timing(**PATIENT | {"lost_s": 0.02})
    one = start(OpenAI, count=4)
    assert one.run() == 1
    assert "redirects" in capsys.readouterr().err


@APIS
@pytest.mark.parametrize(
    ("odd", "read"),
    [(b'"\xff\xfe"', "\ufffd\ufffd"), (b"9" * 5_000, "9" * 5_000), (b"NaN", "NaN")],
    ids=["UTF-8", "long", "NaN"],
)
def test_results_are_read_as_answers_without_batches_are(start, api, monkeypatch, odd, read):
    content = api.content

    def odder(self, batch):
        return content(self, batch).replace(b'"usage": {', b'"usage": {"odd": ' + odd + b", ")

    monkeypatch.setattr(api, "content", odder)
    one = start(api, count=4)
    one.completes()
    assert {record["response"]["body"]["usage"]["odd"] for record in read_answers(one.output)} == {read}


@APIS
def test_no_other_batch_is_created_while_the_file_of_a_refused_one_is_deleted(start, api, monkeypatch):
    one, call, created = start(api, Unkind(refusals={0: (401, False)}), count=12), api.call, threading.Event()

    def slow(self, method, path, *rest):
        if self.creations and method == "POST":
            created.set()
        if method == "DELETE":
            self.lock.release()
            created.wait(1.0)
            self.lock.acquire()
        return call(self, method, path, *rest)

    monkeypatch.setattr(api, "call", slow)
    assert one.run() != 0
    assert one.server.creations == 1
