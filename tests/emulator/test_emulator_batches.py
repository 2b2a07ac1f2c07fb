"""The Batch APIs through the SDKs of OpenAI, Anthropic and Google; the provider's clock is moved, so that no test waits."""

import io
import json
import random

import anthropic
import httpx2
import openai
import pytest
from google import genai
from hypothesis import given
from hypothesis import strategies as st

from paceline.emulator.batch_files import entry, read_form
from paceline.emulator.batches import EmulatedBatch, EmulatedBatches, Full
from paceline.emulator.openai import EmulatedOpenAI
from paceline.emulator.settings import Settings, SettingsError
from paceline.emulator.world import World

EXACT = {"output_share": 1.0, "output_spread": 0.0}


def line(custom_id, model="gpt-5", text="one plus one?", url="/v1/chat/completions", **body):
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 20, **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def sent_by_hand(client, base=""):
    """A file that was uploaded without an SDK, and the body that makes a batch of it."""
    files = {"file": ("a.jsonl", jsonl(LINES))}
    file = client.post(f"{base}files", files=files, data={"purpose": "batch"}).json()
    return file, {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}


def jsonl(lines):
    return "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines).encode()


class Side:
    """One emulator and a client of OpenAI's dialect."""

    def __init__(self, emulator, **options):
        self.emulator = emulator
        self.client = openai.OpenAI(base_url=f"{emulator.base_url}/v1", api_key="any", max_retries=0, **options)

    def upload(self, lines):
        return self.client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")

    def create(self, lines, **more):
        file = self.upload(lines)
        options = {"endpoint": "/v1/chat/completions", "completion_window": "24h"} | more
        return self.client.batches.create(input_file_id=file.id, **options)

    def later(self, seconds, batch):
        self.emulator.advance(seconds)
        return self.client.batches.retrieve(batch.id)

    def read(self, file_id):
        return [json.loads(one) for one in self.client.files.content(file_id).text.splitlines()]

    def batches(self):
        return self.emulator.tally()["batches"]


@pytest.fixture
def side(paceline_emulator, kept):
    def start(settings=None, **batches):
        emulator = paceline_emulator(**{"limits": "gpt-5=1 requests/min", "batches": batches} | (settings or {}))
        kept((one := Side(emulator)).client)
        return one

    return start


LINES = [line(f"r{number}", text=f"question {number}") for number in range(10)]


def test_openai_from_file_to_results(side):
    one = side(EXACT | {"limits": "gpt-5=1 requests/min"}, turnaround_s=100, validating_s=5, finalizing_s=10)
    batch = one.create(LINES, metadata={"run": "7", "chunk": "abc"})
    assert (batch.status, batch.metadata, batch.output_file_id) == ("validating", {"run": "7", "chunk": "abc"}, None)
    assert batch.request_counts.total == 0
    batch = one.later(5, batch)
    assert (batch.status, batch.request_counts.total, batch.request_counts.completed) == ("in_progress", 10, 0)
    batch = one.later(51, batch)
    assert (batch.status, batch.request_counts.completed, batch.output_file_id) == ("in_progress", 5, None)
    assert one.later(50, batch).status == "finalizing"
    batch = one.later(10, batch)
    assert (batch.status, batch.request_counts.completed, batch.error_file_id) == ("completed", 10, None)
    assert batch.in_progress_at < batch.finalizing_at < batch.completed_at
    assert one.batches()["unread"] == 1
    answers = one.read(batch.output_file_id)
    assert sorted(answer["custom_id"] for answer in answers) == [one["custom_id"] for one in LINES]
    assert [answer["custom_id"] for answer in answers] != [one["custom_id"] for one in LINES]
    for answer in answers:
        assert (answer["error"], answer["response"]["status_code"]) == (None, 200)
        completion = openai.types.chat.ChatCompletion.model_validate(answer["response"]["body"])
        assert completion.usage.completion_tokens == 20
    assert len({answer["id"] for answer in answers}) == 10
    assert batch.usage.output_tokens == 200
    tally = one.emulator.tally()
    assert (tally["admitted"], tally["answers"]["distinct"], tally["answers"]["most"]) == (0, 10, 1)
    found = tally["batches"]
    assert (found["created"], found["files"], found["paid"], found["unread"]) == (1, 1, 10, 0)
    assert found["same"]["most"] == found["custom_ids"]["most"] == found["contents"]["most"] == 1
    assert (found["input_tokens"], found["output_tokens"]) == (batch.usage.input_tokens, 200)


@pytest.mark.parametrize(
    ("lines", "code", "at"),
    [
        ([*LINES, "{"], "invalid_json_line", 11),
        ([*LINES, LINES[0]], "duplicate_custom_id", 11),
        ([*LINES, line("x", model="gpt-4")], "mismatched_model", 11),
        ([line("x", url="/v1/embeddings")], "url_mismatch", 1),
        ([{"custom_id": "x"}], "missing_required_parameter", 1),
        ([line("x", model="unknown")], "model_not_found", None),
        ([line(str(n)) for n in range(21)], "too_many_tasks", None),
        ([], "empty_file", None),
    ],
)
def test_openai_finds_mistakes_only_after_the_creation(side, lines, code, at):
    one = side(most_requests=20)
    batch = one.create(lines)
    assert (batch.status, batch.errors) == ("validating", None)
    batch = one.later(1, batch)
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert (batch.errors.data[0].code, batch.errors.data[0].line) == (code, at)
    assert batch.failed_at
    with pytest.raises(openai.ConflictError, match="status 'failed'"):
        one.client.batches.cancel(batch.id)
    assert one.batches()["paid"] == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"input_file_id": "file-x"}, "no such file 'file-x'"),
        ({"endpoint": "/v1/nothing"}, "Supported values are"),
        ({"completion_window": "1h"}, "must be '24h'"),
        ({"metadata": {"k": "v" * 513}}, "values 512"),
        ({"metadata": {str(n): "" for n in range(17)}}, "at most 16"),
    ],
)
def test_openai_refuses_some_creations(side, more, message):
    one = side()
    file = one.upload(LINES)
    options = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    with pytest.raises(openai.BadRequestError, match=message):
        one.client.batches.create(**options | more)
    assert one.batches()["created"] == 0


def test_openai_has_a_full_queue_late_and_frees_it_at_the_end(side):
    tokens = sum(EmulatedOpenAI().read("chat", json.dumps(one["body"]).encode()).input_tokens for one in LINES)
    one = side(enqueued_tokens=int(tokens * 1.5), turnaround_s=100, release_s=30)
    first, second = one.create(LINES), one.create([line(f"s{n}", text=f"question {n}") for n in range(10)])
    second = one.later(1, second)
    assert (second.status, second.errors.data[0].code) == ("failed", "token_limit_exceeded")
    text = "Enqueued token limit reached for gpt-5 in organization org-emulated. Limit: "
    assert second.errors.data[0].message.startswith(f"{text}{int(tokens * 1.5):,} enqueued tokens. Please try again")
    assert one.batches()["enqueued_tokens"] == {"gpt-5": tokens}
    assert one.later(102, first).status == "completed"
    again = one.create(LINES)
    assert one.later(1, again).status == "failed"  # the queue is freed later than the batch ends
    one.emulator.advance(30)
    again = one.create(LINES)
    assert one.later(1, again).status == "in_progress"
    assert one.batches()["same"]["most"] == 3


@pytest.mark.parametrize(("status", "error"), [("400", openai.BadRequestError), ("429", openai.RateLimitError)])
def test_openai_can_refuse_the_creation_when_the_queue_is_full(side, status, error):
    one = side(enqueued_tokens={"*": 150}, queue_full=status)
    one.create(LINES)
    with pytest.raises(error, match="Limit: 150 enqueued tokens") as refused:
        one.create(LINES)
    assert refused.value.code == "token_limit_exceeded"
    assert one.batches()["refused"] == {"queue": 1}


def test_a_queue_can_be_full_by_mistake(side):
    one = side(enqueued_tokens=1_000_000, full_by_mistake=1.0)
    batch = one.later(1, one.create(LINES))
    assert batch.errors.data[0].code == "token_limit_exceeded"


def test_openai_expired_batches_have_results_and_errors(side):
    one = side(turnaround_s=2 * 86_400, validating_s=0)
    batch = one.later(86_400, one.create(LINES))
    assert (batch.status, batch.expired_at, batch.completed_at) == ("expired", batch.expires_at, None)
    assert (batch.request_counts.completed, batch.request_counts.failed) == (5, 5)
    done, not_done = one.read(batch.output_file_id), one.read(batch.error_file_id)
    assert {one["custom_id"] for one in done + not_done} == {one["custom_id"] for one in LINES}
    assert [(one["response"], one["error"]["code"]) for one in not_done] == [(None, "batch_expired")] * 5
    assert one.batches()["outcomes"] == {"succeeded": 5, "expired": 5}


def test_openai_cancels_slowly_and_keeps_what_is_done(side):
    one = side(turnaround_s=1_000, cancel_s=200, validating_s=0)
    batch = one.create(LINES)
    one.emulator.advance(301)
    batch = one.client.batches.cancel(batch.id)
    assert (batch.status, batch.request_counts.completed, batch.output_file_id) == ("cancelling", 3, None)
    assert one.client.batches.cancel(batch.id).status == "cancelling"
    assert one.later(150, batch).status == "cancelling"
    batch = one.later(51, batch)
    assert (batch.status, batch.request_counts.completed, batch.error_file_id) == ("cancelled", 5, None)
    assert len(one.read(batch.output_file_id)) == 5
    assert one.batches()["enqueued_tokens"] == {}
    one.emulator.reset(batches={"validating_s": 50, "cancel_s": 200})
    early = one.create(LINES)
    assert one.client.batches.cancel(early.id).status == "cancelling"
    early = one.later(200, early)
    assert (early.status, early.output_file_id, early.in_progress_at) == ("cancelled", None, None)


def test_openai_failed_requests_are_in_the_error_file(side):
    wrong = line("wrong")
    wrong["body"]["messages"] = "hello"
    one = side(failed_requests=1.0)
    batch = one.later(100, one.create([*LINES, wrong]))
    assert (batch.status, batch.output_file_id, batch.request_counts.failed) == ("completed", None, 11)
    errors = {one["custom_id"]: one for one in one.read(batch.error_file_id)}
    assert errors["r1"]["error"] is None
    assert errors["r1"]["response"]["status_code"] == 500
    assert errors["wrong"]["response"]["status_code"] == 400
    assert "messages" in errors["wrong"]["response"]["body"]["error"]["message"]
    assert one.batches()["paid"] == 0


def test_openai_embeddings_and_responses(side):
    one = side()
    lines = [{"custom_id": "e", "method": "POST", "url": "/v1/embeddings", "body": {"model": "gpt-5", "input": "a"}}]
    batch = one.later(100, one.create(lines, endpoint="/v1/embeddings"))
    openai.types.CreateEmbeddingResponse.model_validate(one.read(batch.output_file_id)[0]["response"]["body"])
    lines = [{"custom_id": "e", "method": "POST", "url": "/v1/responses", "body": {"model": "gpt-5", "input": "a"}}]
    batch = one.later(100, one.create(lines, endpoint="/v1/responses"))
    openai.types.responses.Response.model_validate(one.read(batch.output_file_id)[0]["response"]["body"])


def test_openai_lists_in_pages_the_newest_first(side):
    one = side()
    made = [one.create(LINES, metadata={"n": str(n)}) for n in range(5)]
    page = one.client.batches.list(limit=2)
    assert ([batch.id for batch in page.data], page.has_more) == ([made[4].id, made[3].id], True)
    assert [batch.metadata["n"] for batch in one.client.batches.list(limit=2)] == list("43210")
    assert len(list(one.client.files.list(limit=2))) == 5
    assert list(one.client.files.list(purpose="assistants")) == []


def test_openai_files(side):
    one = side(most_bytes=5_000)
    file = one.upload(LINES)
    assert (file.purpose, file.filename, file.bytes) == ("batch", "in.jsonl", len(jsonl(LINES)))
    assert one.client.files.content(file.id).content == jsonl(LINES)
    assert one.client.files.retrieve(file.id) == file
    batch = one.create(LINES)
    assert one.client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError, match=f"No file found with id '{file.id}'"):
        one.client.files.retrieve(file.id)
    output = one.later(100, batch).output_file_id
    assert one.client.files.retrieve(output).bytes == len(one.client.files.content(output).content)
    assert one.client.files.retrieve(output).purpose == "batch_output"
    with pytest.raises(openai.APIStatusError) as error:
        one.upload([line("x", text="x" * 6_000)])
    assert error.value.status_code == 413
    with pytest.raises(openai.BadRequestError, match="purpose"):
        one.client.files.create(file=io.BytesIO(b""), purpose="nothing")
    with pytest.raises(openai.NotFoundError):
        one.client.batches.retrieve("batch_" + "f" * 32)


def test_a_lost_answer_leaves_a_batch(side):
    one = side()
    file = one.upload(LINES)
    one.emulator.reset(batches={"lost_answers": 1.0})
    for _ in range(2):
        with pytest.raises(openai.APIConnectionError):
            one.upload(LINES)
    files = list(one.client.files.list())
    assert len(files) == 2
    with pytest.raises(openai.APIConnectionError):
        one.client.batches.create(
            input_file_id=files[0].id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"run": "7"}
        )
    assert [batch.metadata for batch in one.client.batches.list()] == [{"run": "7"}]
    assert one.batches()["lost_answers"] == 3
    assert file.id == files[1].id  # a reset starts with no files


def test_no_more_creations_than_allowed_in_an_hour(side):
    one = side(creations_per_hour=2)
    for _ in range(2):
        one.create(LINES)
    with pytest.raises(openai.RateLimitError, match="2 batches per hour"):
        one.create(LINES)
    one.emulator.advance(3_600)
    one.create(LINES)


def test_azure_and_groq_have_their_own_paths(side):
    one = side()
    root = one.emulator.base_url
    for base, headers in (
        (f"{root}/openai/v1", {"authorization": "Bearer any"}),
        (f"{root}/openai", {"api-key": "any"}),
    ):
        with httpx2.Client(headers=headers) as client:
            _, body = sent_by_hand(client, f"{base}/")
            batch = client.post(f"{base}/batches?api-version=1", json=body).json()
            assert client.get(f"{base}/batches/{batch['id']}").json()["object"] == "batch"
            assert client.delete(f"{base}/batches/{batch['id']}").status_code == 405
            assert client.post(f"{base}/batches/{batch['id']}/cancel").json()["status"] == "cancelling"
    with httpx2.Client() as client:
        assert client.get(f"{root}/v1/batches").status_code == 401
        assert client.put(f"{root}/v1/batches", headers={"authorization": "Bearer any"}).status_code == 405
        assert client.get(f"{root}/v1/batches/x/content").status_code == 404


def test_azure_refuses_a_batch_of_a_file_that_it_has_not_processed(side):
    one = side(pending_s=10)
    with httpx2.Client(base_url=f"{one.emulator.base_url}/openai/v1/", headers={"api-key": "any"}) as client:
        file, body = sent_by_hand(client)
        refused = client.post("batches", json=body)
        assert (file["status"], refused.status_code) == ("pending", 400)
        assert f"The input file '{file['id']}' is in 'pending' state." in refused.json()["error"]["message"]
        one.emulator.advance(10)
        assert client.get(f"files/{file['id']}").json()["status"] == "processed"
        assert client.post("batches", json=body).json()["status"] == "validating"
    assert one.upload(LINES).status == "processed"  # OpenAI's own


# --- Mistral ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def mistral(side):
    one = side({"limits": {"mistral-small": "1 requests/min"}}, turnaround_s=100, expires_s=86_400)
    with httpx2.Client(base_url=f"{one.emulator.base_url}/v1/", headers={"authorization": "Bearer any"}) as client:

        def create(lines, **more):
            file = one.upload(lines)
            body = {"input_files": [file.id], "endpoint": "/v1/chat/completions", "model": "mistral-small"}
            return client.post("batch/jobs", json=body | more)

        yield one, client, create


BARE = [{"custom_id": f"r{n}", "body": {"messages": [{"role": "user", "content": f"{n}?"}]}} for n in range(10)]


def test_mistral_from_file_to_results(mistral):
    one, client, create = mistral
    job = create(BARE, metadata={"run": "7"}).json()
    at = f"batch/jobs/{job['id']}"
    assert job | {"status": "QUEUED", "metadata": {"run": "7"}, "total_requests": 10, "output_file": None} == job
    one.emulator.advance(1)
    assert client.get(at).json()["status"] == "RUNNING"
    one.emulator.advance(51)
    assert client.get(at).json()["completed_requests"] == 5
    one.emulator.advance(60)
    job = client.get(at).json()
    assert (job["status"], job["succeeded_requests"], job["error_file"]) == ("SUCCESS", 10, None)
    answers = one.read(job["output_file"])
    assert sorted(answer["custom_id"] for answer in answers) == [line["custom_id"] for line in BARE]
    assert {answer["response"]["body"]["model"] for answer in answers} == {"mistral-small"}
    assert one.batches()["unread"] == 0
    assert one.client.batches.list().data == []  # it is none of OpenAI's


def test_mistral_cancels_lists_and_refuses(mistral):
    one, client, create = mistral
    names = [create(BARE).json()["id"] for _ in range(3)]
    page = client.get("batch/jobs?page=1&page_size=2").json()
    assert ([job["id"] for job in page["data"]], page["total"]) == (names[:1], 3)
    one.emulator.advance(51)
    assert client.post(f"batch/jobs/{names[0]}/cancel").json()["status"] == "CANCELLATION_REQUESTED"
    one.emulator.advance(1)
    job = client.get(f"batch/jobs/{names[0]}").json()
    assert (job["status"], job["completed_requests"]) == ("CANCELLED", 5)
    assert len(one.read(job["output_file"])) == 5
    assert create(BARE, model="other").status_code == 400
    assert create(BARE, endpoint="/v1/nothing").status_code == 422
    assert create(BARE, metadata={"run": 7}).status_code == 422
    assert create(BARE, input_files=["file-x"]).status_code == 400
    assert client.put("batch/jobs/job-ff").status_code == 404
    assert client.put("batch/jobs").status_code == 405
    assert client.post("batch/jobs", content=b"{").status_code == 400
    for lines in ([*BARE, BARE[0]], [{"custom_id": "a"}], []):
        job = create(lines).json()
        one.emulator.advance(1)
        job = client.get(f"batch/jobs/{job['id']}").json()
        assert (job["status"], len(job["errors"])) == ("FAILED", 1)


# --- Together --------------------------------------------------------------------------------------------------------


@pytest.fixture
def together(side):
    """Shapes of docs.together.ai/reference (2026-11)."""
    one = side(
        {"limits": "gpt-5=1 requests/min", "dialect": "together"}, turnaround_s=100, expires_s=86_400, validating_s=1
    )
    with httpx2.Client(base_url=f"{one.emulator.base_url}/v1/", headers={"authorization": "Bearer any"}) as client:

        def create(lines):
            form = {"purpose": "batch-api", "file_name": "in.jsonl", "file_type": "jsonl"}
            file = client.post("files/upload", data=form, files={"file": ("in.jsonl", jsonl(lines))}).json()
            assert client.get(f"files/{file['id']}").json()["filename"] == "in.jsonl"
            return client.post("batches", json={"input_file_id": file["id"], "endpoint": "/v1/chat/completions"})

        yield one, client, create


def with_model(lines):
    return [one | {"body": one["body"] | {"model": "gpt-5"}} for one in lines]


def test_together_from_file_to_results(together):
    one, client, create = together
    answer = create(with_model(BARE))
    job = answer.json()["job"]
    assert (answer.status_code, job["status"], job["progress"]) == (201, "VALIDATING", 0)
    one.emulator.advance(51)
    found = client.get(f"batches/{job['id']}").json()
    assert (found["status"], found["progress"]) == ("IN_PROGRESS", 50)
    one.emulator.advance(60)
    (listed,) = client.get("batches").json()
    assert (listed["status"], listed["error_file_id"]) == ("COMPLETED", None)
    answers = one.read(listed["output_file_id"])
    assert {line["custom_id"] for line in answers} == {line["custom_id"] for line in BARE}
    assert answers[0]["response"]["body"]["choices"]


def test_together_fails_late_and_cancels(together):
    one, client, create = together
    failed = create(BARE[:1] + BARE[:1]).json()["job"]["id"]
    one.emulator.advance(5)
    job = client.get(f"batches/{failed}").json()
    assert (job["status"], job["error"]) == ("FAILED", "Line 2 has no body, or no custom_id of its own.")
    other = create(with_model(BARE)).json()["job"]["id"]
    one.emulator.advance(51)
    assert client.post(f"batches/{other}/cancel").json()["status"] == "IN_PROGRESS"
    one.emulator.advance(1)
    job = client.get(f"batches/{other}").json()
    assert job["status"] == "CANCELLED"
    assert len(one.read(job["output_file_id"])) == 5
    assert client.post("batches/none/cancel").status_code == 404
    body = {"input_file_id": one.upload(BARE).id, "endpoint": "/v1/chat/completions"}
    assert client.post("batches", json=body).status_code == 400  # its purpose is OpenAI's


# --- Gemini ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def gemini(paceline_emulator, kept):
    """An emulator, the client of Google's SDK, and how to create a batch with it."""

    def start(**batches):
        limits = {"gemini-2.5-flash": "1 requests/min"}
        emulator = paceline_emulator(limits=limits, batches={"turnaround_s": 100} | batches)
        client = kept(genai.Client(api_key="any", http_options={"base_url": emulator.base_url}))

        def create(lines, **more):
            config = {"display_name": "my requests", "mime_type": "application/jsonl"}
            file = client.files.upload(file=io.BytesIO(jsonl(lines)), config=config)
            assert file.display_name == "my requests"
            options = {"model": "gemini-2.5-flash", "src": file.name, "config": {"display_name": "mine"}} | more
            return client.batches.create(**options)

        return emulator, client, create

    return start


def keyed(count):
    return [{"key": f"r{n}", "request": {"contents": [{"parts": [{"text": f"{n}?"}]}]}} for n in range(count)]


def test_gemini_from_file_to_results(gemini):
    emulator, client, create = gemini()
    made = create(keyed(10))
    assert (made.display_name, made.state.name) == ("mine", "JOB_STATE_PENDING")
    emulator.advance(51)
    assert client.batches.get(name=made.name).state.name == "JOB_STATE_RUNNING"
    emulator.advance(60)
    done = client.batches.get(name=made.name)
    assert done.state.name == "JOB_STATE_SUCCEEDED"
    lines = [json.loads(one) for one in client.files.download(file=done.dest.file_name).splitlines()]
    assert {one["key"] for one in lines} == {f"r{n}" for n in range(10)}
    assert {one["response"]["modelVersion"] for one in lines} == {"gemini-2.5-flash"}
    assert emulator.tally()["batches"]["unread"] == 0


def test_gemini_fails_late_cancels_slowly_and_lists_in_pages(gemini, monkeypatch):
    emulator, client, create = gemini(cancel_s=10, enqueued_tokens=100)
    failed = create(keyed(1) * 2)
    other = create(keyed(10))
    with pytest.raises(genai.errors.ClientError, match="429 RESOURCE_EXHAUSTED"):
        create(keyed(10))
    emulator.advance(51)
    assert client.batches.get(name=failed.name).state.name == "JOB_STATE_FAILED"
    client.batches.cancel(name=other.name)
    assert client.batches.get(name=other.name).state.name == "JOB_STATE_RUNNING"
    emulator.advance(10)
    cancelled = client.batches.get(name=other.name)
    assert cancelled.state.name == "JOB_STATE_CANCELLED"
    assert len(client.files.download(file=cancelled.dest.file_name).splitlines()) == 6
    assert [one.name for one in client.batches.list(config={"page_size": 1})] == [other.name, failed.name]
    with pytest.raises(genai.errors.ClientError, match="404"):
        create(keyed(1), src="files/none")
    emulator.reset(batches={"expires_s": 50, "turnaround_s": 100})
    expired = create(keyed(10))
    emulator.advance(51)
    expired = client.batches.get(name=expired.name)
    assert (expired.state.name, expired.dest and expired.dest.file_name) == ("JOB_STATE_EXPIRED", None)
    emulator.reset(batches={"most_bytes": 1_000})
    monkeypatch.setattr("google.genai._api_client.INITIAL_RETRY_DELAY", 0)  # it would send the file again for 7 s
    with pytest.raises(genai.errors.ClientError, match="413 INVALID_ARGUMENT"):
        create(keyed(100))


# --- Anthropic -------------------------------------------------------------------------------------------------------


def request(custom_id, model="claude-opus-5", **params):
    params = {"model": model, "max_tokens": 20, "messages": [{"role": "user", "content": custom_id}]} | params
    return {"custom_id": custom_id, "params": params}


REQUESTS = [request(f"r{number}") for number in range(10)]


@pytest.fixture
def claude(paceline_emulator, kept):
    def start(**batches):
        emulator = paceline_emulator(limits="claude-opus-5=1 requests/min", batches=batches, **EXACT)
        client = kept(anthropic.Anthropic(base_url=emulator.base_url, api_key="any", max_retries=0))
        return emulator, client.messages.batches

    return start


def test_anthropic_from_creation_to_results(claude):
    emulator, batches = claude(turnaround_s=100, finalizing_s=10)
    batch = batches.create(requests=REQUESTS)
    assert (batch.processing_status, batch.request_counts.processing, batch.results_url) == ("in_progress", 10, None)
    with pytest.raises(anthropic.AnthropicError, match="in_progress"):
        batches.results(batch.id)
    early = httpx2.get(f"{emulator.base_url}/v1/messages/batches/{batch.id}/results", headers={"x-api-key": "any"})
    assert (early.status_code, "has no results yet" in early.text) == (400, True)
    emulator.advance(105)
    batch = batches.retrieve(batch.id)  # counts move at the end only
    assert (batch.processing_status, batch.request_counts.processing) == ("in_progress", 10)
    emulator.advance(5)
    batch = batches.retrieve(batch.id)
    counts = batch.request_counts
    assert (batch.processing_status, counts.succeeded, counts.processing) == ("ended", 10, 0)
    results = list(batches.results(batch.id))
    assert {result.custom_id for result in results} == {one["custom_id"] for one in REQUESTS}
    assert [result.custom_id for result in results] != [one["custom_id"] for one in REQUESTS]
    assert {result.result.message.usage.output_tokens for result in results} == {20}
    tally = emulator.tally()
    assert (tally["admitted"], tally["answers"]["most"], tally["batches"]["unread"]) == (0, 1, 0)


def test_anthropic_reports_mistakes_of_parameters_in_the_results(claude):
    emulator, batches = claude()
    lines = [request("good"), request("bad", max_tokens=0), request("other", model="claude-1")]
    batch = batches.create(requests=lines)
    emulator.advance(100)
    found = {result.custom_id: result.result for result in batches.results(batch.id)}
    assert found["good"].type == "succeeded"
    assert (found["bad"].type, found["bad"].error.error.type) == ("errored", "invalid_request_error")
    assert (found["other"].type, found["other"].error.error.type) == ("errored", "not_found_error")


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([request("no spaces")], "should match pattern"),
        ([request("r"), request("r")], "duplicate"),
        ([], "Field required"),
        ([{"custom_id": "a"}], "params"),
        ([request(f"r{n}") for n in range(11)], "at most 10"),
    ],
)
def test_anthropic_finds_mistakes_of_ids_at_once(claude, requests, message):
    _, batches = claude(most_requests=10)
    with pytest.raises(anthropic.BadRequestError, match=message):
        batches.create(requests=requests)


def test_anthropic_cancels_slowly(claude):
    emulator, batches = claude(turnaround_s=1_000, cancel_s=200)
    batch = batches.create(requests=REQUESTS)
    emulator.advance(301)
    batch = batches.cancel(batch.id)
    assert (batch.processing_status, batch.request_counts.processing) == ("canceling", 10)
    assert batch.cancel_initiated_at
    emulator.advance(200)
    batch = batches.retrieve(batch.id)
    counts = batch.request_counts
    assert (batch.processing_status, counts.succeeded, counts.canceled) == ("ended", 5, 5)
    kinds = [result.result.type for result in batches.results(batch.id)]
    assert sorted(kinds) == ["canceled"] * 5 + ["succeeded"] * 5
    with pytest.raises(anthropic.BadRequestError, match="has ended"):
        batches.cancel(batch.id)


def test_anthropic_counts_queued_requests_of_all_models(claude):
    emulator, batches = claude(queued_requests=15)
    batches.create(requests=REQUESTS)
    with pytest.raises(anthropic.RateLimitError, match="15 batch requests"):
        batches.create(requests=REQUESTS)
    emulator.advance(100)
    batches.create(requests=REQUESTS)
    found = emulator.tally()["batches"]
    assert found["refused"] == {"queue": 1}
    assert (found["same"]["most"], found["custom_ids"]["most"]) == (2, 1)
    emulator.advance(100)
    found = emulator.tally()["batches"]
    assert (found["custom_ids"]["most"], found["contents"]["most"], found["paid"]) == (2, 2, 20)


def test_anthropic_lists_in_pages(claude):
    _, batches = claude()
    made = [batches.create(requests=REQUESTS).id for _ in range(5)][::-1]
    page = batches.list(limit=2)
    assert ([batch.id for batch in page.data], page.has_more, page.last_id) == (made[:2], True, made[1])
    assert [batch.id for batch in batches.list(limit=2)] == made


# --- without HTTP ----------------------------------------------------------------------------------------------------


def entries(count, first=0):
    return [entry(f"r{n}", line("")["body"], "chat", EmulatedOpenAI()) for n in range(first, first + count)]


def durations(seed, count=400, **batches):
    world = EmulatedBatches(World(Settings(seed=seed, batches=batches)))
    made = [world.create(0.0, "openai", entries(1)) for _ in range(count)]
    world.catch_up(1.0)
    return sorted(batch.lasts_s for batch in made)


def test_turnarounds_have_the_median_and_the_spread_and_repeat():
    found = durations(7, turnaround_s=420, turnaround_spread=8.6)
    assert found == durations(7, turnaround_s=420, turnaround_spread=8.6) != durations(8, turnaround_s=420)
    assert found[200] == pytest.approx(420, rel=0.25)
    assert found[360] == pytest.approx(3_600, rel=0.35)
    assert set(durations(7, turnaround_s=420)) == {420}


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_counts_hold_at_every_moment(seed, steps):
    """Random creations, cancels and waits: every request has one outcome, and the queue empties."""
    dice = random.Random(seed)
    rules = {"turnaround_s": 300, "turnaround_spread": 9, "cancel_s": 60, "expires_s": 400, "failed_requests": 0.1}
    rules |= {"enqueued_tokens": 400, "release_s": 5, "in_order": dice.random() < 0.5}
    world, now, made = EmulatedBatches(World(Settings(batches=rules, seed=seed))), dice.choice((0.0, 1.8e9)), []
    for _ in range(steps):
        now += dice.choice((0, 0.5, 10, 200))
        batch = world.create(now, dice.choice(("openai", "anthropic")), entries(dice.randint(1, 20)))
        assert isinstance(batch, EmulatedBatch)
        made.append(batch)
        if dice.random() < 0.3:
            world.cancel(now, dice.choice(made))
        assert sum(b.tokens for b in world.queued if b.style == "openai") <= 400
    world.catch_up(now + 10_000)
    tally = world.tally(now + 10_000)
    assert tally["enqueued_tokens"] == {}
    assert set(tally["states"]) <= {"completed", "failed", "expired", "cancelled"}
    for batch in made:
        ended = batch.state != "failed"
        assert set(batch.counts) <= {"succeeded", "errored", "expired", "canceled"}
        assert sum(batch.counts.values()) == (len(batch.entries) if ended else 0)
        assert len(list(batch.results("succeeded", "errored", "expired", "canceled"))) == sum(batch.counts.values())
    assert tally["paid"] == sum(batch.counts["succeeded"] for batch in made)


def test_the_number_of_requests_is_bounded(monkeypatch):
    monkeypatch.setattr("paceline.emulator.batches.MOST_REQUESTS", 10)
    world = EmulatedBatches(World(Settings()))
    world.create(0.0, "openai", entries(8))
    assert world.create(0.0, "openai", entries(3)) == Full("memory", 10)


@given(st.binary(max_size=200), st.sampled_from(["multipart/form-data; boundary=x", "text/plain", ""]))
def test_any_form_is_read_without_an_error(body, kind):
    assert isinstance(read_form(body, kind), dict)
    assert read_form(b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + body + b"\r\n--x--", kind) is not None


def test_the_clock_moves_forward_only(side):
    with pytest.raises(SettingsError, match="seconds is -1"):
        side().emulator.advance(-1)
