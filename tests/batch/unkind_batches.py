"""Servers of two Batch APIs, written from the providers' documentation alone, that do what real ones do on a bad day.

developers.openai.com/api/docs/guides/batch and /reference/batches; platform.claude.com/docs/en/build-with-claude/batch-processing and
/api/creating-message-batches (2026-11). They share no code with the emulator. Each keeps books of what was paid.
"""

from __future__ import annotations

import json
import random
import re
import socket
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from odd_server import Loopback

PAGE = b"<html>\r\n<head><title>413 Request Entity Too Large</title></head>\r\n<body>nginx</body></html>"
CREATED_S = 4_000_000_000
TIME = "2096-10-02T07:06:40.100435Z"


@dataclass
class Unkind:
    """What a server does; all is counted, and nothing is timed.

    Attributes:
        work: The looks at a batch, or at a list that has it, until it has ended.
        lost: The numbers of creations, from 0 on, whose answer is lost.
        late: The lists that are read until such a batch exists.
        lag: The lists that do not have a new batch yet.
        pending: The looks at an ended batch that do not name its results yet.
        counting: The same, for which the counts are still zero.
        cuts: The times that results end at the half, in the middle of a line, with a clean end of the answer.
        dropped: The results of a batch that never appear.
        twice: Whether each line of the results is there twice.
        foreign: Whether results of other requests are among them.
        nulls: Whether lists have ``null`` and batches of another form among the others.
        refused: The calls of every ten that are answered with status 429, 500 or nothing.
        state: What ended batches call their state.
        gone: How the results of the first batch are answered for good: a status, or a body with status 200; ``None`` for results.
        undone: The requests of a batch that it does not work on.
        times: How often that happens to a prompt.
        form: The fields of a result of such a request.
        refusals: The numbers of creations that are answered with an error, with its status and whether they took effect.
        largest: The most bytes of a body.
    """

    work: int = 2
    lost: tuple[int, ...] = ()
    late: int = 0
    lag: int = 0
    pending: int = 0
    counting: int = 0
    cuts: int = 0
    dropped: int = 0
    twice: bool = False
    foreign: bool = False
    nulls: bool = False
    refused: int = 0
    state: str = ""
    gone: int | bytes | None = None
    undone: int = 0
    times: int = 1
    form: dict[str, object] = field(default_factory=dict)
    refusals: dict[int, tuple[int, bool]] = field(default_factory=dict)
    largest: int = 2**30
    seed: int = 0


@dataclass
class Batch:
    id: str
    requests: list[tuple[str, str]]  # the id, and the prompt
    about: dict[str, object] = field(default_factory=dict)
    hidden: int = 0
    looks: int = 0
    ended: bool = False
    cancelled: bool = False
    pending: int = 0
    counting: int = 0
    cuts: int = 0
    read: set[str] = field(default_factory=set)  # the prompts whose results were sent, whole
    undone: set[str] = field(default_factory=set)  # the prompts that it has not worked on


class ClosedError(Exception):
    """The connection is closed without an answer."""


class Server(Loopback):
    """A Batch API.

    Attributes:
        unkind: What it does.
        batches: All batches, in the order of their creation.
        paid: How often each prompt was answered.
        busy: How often what was sent to it was refused with a 429 that has no reason.
    """

    def __init__(self, unkind):
        super().__init__(_Handler)
        self.busy = 0
        self.unkind, self.batches, self.paid, self.left = unkind, [], Counter(), Counter()
        self.dice, self.creations, self.uploads, self.files = random.Random(unkind.seed), 0, 0, {}

    def answer(self, method, path, query, headers, body):
        """Status and body, bytes or a JSON value, of one call."""
        with self.lock:
            if len(body) > self.unkind.largest:
                return 413, PAGE
            dice = self.dice.random() * 10
            if dice < self.unkind.refused:
                raise ClosedError if dice < self.unkind.refused / 3 else self._odd(method, dice)
            try:
                status, value = self.call(method, path, query, headers, body)
            except KeyError:
                status, value = 404, self.error("not_found_error", f"nothing is at {path}")
            if dice > 10 - self.unkind.refused / 3:
                raise ClosedError
            return status, value

    def _odd(self, method, dice):
        status = 429 if dice < self.unkind.refused * 2 / 3 else 500
        self.busy += status == 429 and method != "GET"
        return OddError(status)

    def create(self, requests, **about):
        """A new batch; one whose answer is lost, or an error, may come to exist later."""
        number, self.creations = self.creations, self.creations + 1
        status, made = self.unkind.refusals.get(number, (0, True))
        if not made:
            raise OddError(status)
        batch = Batch(
            self.name(len(self.batches)), requests, about, self.unkind.lag, pending=self.unkind.pending,
            counting=self.unkind.counting, cuts=self.unkind.cuts,
        )  # fmt: skip
        if number in self.unkind.lost:
            batch.hidden = max(batch.hidden, self.unkind.late)
        self.batches.append(batch)
        if number in self.unkind.lost:
            raise ClosedError
        if status:
            raise OddError(status)
        return batch

    def parts(self, raw):
        """The parts in which an answer is written."""
        return [raw]

    def find(self, name):
        return next(batch for batch in self.batches if batch.id == name)

    def listed(self):
        """The batches in a list, the newest first."""
        found = [batch for batch in reversed(self.batches) if not batch.hidden]
        for batch in found:
            self.look(batch)
        for batch in self.batches:
            batch.hidden = max(0, batch.hidden - 1)
        return found

    def look(self, batch):
        """One look at a batch: it works on."""
        batch.looks += 1
        if not batch.ended and batch.looks > self.unkind.work:
            batch.ended = True
            prompts = [prompt for _, prompt in batch.requests]
            batch.undone |= {p for p in prompts[: self.unkind.undone] if self.left[p] < self.unkind.times}
            self.left.update(batch.undone)
            self.paid.update(prompt for prompt in prompts if not batch.cancelled and prompt not in batch.undone)
        elif batch.ended:
            batch.counting -= 1
            batch.pending -= batch.counting < 0
        return batch

    def content(self, batch):
        """The results of a batch, in no order."""
        if self.unkind.gone is not None and batch is self.batches[0]:
            if isinstance(self.unkind.gone, bytes):
                return self.unkind.gone
            raise OddError(self.unkind.gone)
        lines = [
            (prompt, self.line(name, prompt) | (self.unkind.form if prompt in batch.undone else {}))
            for name, prompt in batch.requests[self.unkind.dropped :]
        ] * (1 + self.unkind.twice)
        self.dice.shuffle(lines)
        if self.unkind.foreign:
            lines.insert(0, ("", self.line("of-another-batch", "secret of another")))
        encoded = [json.dumps(line).encode() + b"\n" for _, line in lines]
        size = sum(map(len, encoded))
        if batch.cuts:
            batch.cuts, size = batch.cuts - 1, size // 2
        whole = b"".join(encoded)[:size]
        batch.read.update(prompt for prompt, _ in lines[: whole.count(b"\n")])
        return whole


class StoredError(Exception):
    """The answer is somewhere else."""

    def __init__(self, place):
        self.place = place


class OddError(Exception):
    def __init__(self, status):
        self.status = status


class OpenAI(Server):
    """``/v1/files`` and ``/v1/batches``."""

    style = "openai"

    def name(self, number):
        return f"batch_{number:024x}"

    def error(self, code, message):
        return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}

    def call(self, method, path, query, headers, body):
        if path == "/v1/chat/completions":
            prompt = json.loads(body)["messages"][0]["content"]
            self.paid[prompt] += 1
            return 200, self.line("", prompt)["response"]["body"]
        if path == "/v1/files":
            self.uploads += 1
            name = f"file-{self.uploads:024x}"
            self.files[name] = _part(headers["content-type"], body)
            about = {"object": "file", "bytes": len(body), "created_at": CREATED_S, "filename": "f", "purpose": "batch"}
            return 200, {"id": name, **about}
        if path == "/v1/batches" and method == "POST":
            asked = json.loads(body)
            lines = [json.loads(line) for line in self.files[asked["input_file_id"]].splitlines()]
            requests = [(line["custom_id"], line["body"]["messages"][0]["content"]) for line in lines]
            return 200, self.show(self.create(requests, metadata=asked.get("metadata"), file=asked["input_file_id"]))
        if path == "/v1/batches":
            found = [self.show(batch) for batch in self.listed()]
            if self.unkind.nulls:
                about = {"file": "f", "metadata": None}
                foreign = self.show(Batch("batch_of_another", [("r0", "of another")], about, ended=True))
                found = [None, *found, {"id": 7, "created_at": "now"}, foreign, {"object": "batch", "metadata": []}]
            return 200, {"object": "list", "data": found, "has_more": False}
        if method == "DELETE":
            del self.files[path.removeprefix("/v1/files/")]
            return 200, {"deleted": True}
        if path.startswith("/v1/files/"):
            return 200, self.content(self.find(path.split("/")[3].replace("output-", "")))
        batch = self.find(path.split("/")[3])
        if path.endswith("/cancel"):
            if batch.ended:
                return 409, self.error(None, "Cannot cancel a batch with status 'completed'.")
            batch.cancelled = True
            return 200, self.show(batch)
        return 200, self.show(self.look(batch))

    def show(self, batch):
        counts = batch.ended and batch.counting < 1 and not batch.cancelled
        done = len(batch.requests) - len(batch.undone) if counts else 0
        state = ("cancelled" if batch.cancelled else self.unkind.state or "completed") if batch.ended else ""
        names = batch.ended and batch.counting < 1 and batch.pending < 1 and not batch.cancelled
        return {
            "id": batch.id, "object": "batch", "endpoint": "/v1/chat/completions", "errors": None,
            "input_file_id": batch.about["file"], "completion_window": "24h", "created_at": CREATED_S,
            "status": state or ("in_progress" if batch.looks > 1 else "validating"),
            "output_file_id": f"output-{batch.id}" if names else None, "error_file_id": None,
            "request_counts": {"total": len(batch.requests) * bool(batch.looks), "completed": done, "failed": 0},
            "metadata": batch.about["metadata"],
        }  # fmt: skip

    def line(self, custom_id, prompt):
        message = {"role": "assistant", "content": f"about {prompt}", "refusal": None}
        body = {
            "id": "chatcmpl-1", "object": "chat.completion", "created": CREATED_S, "model": "gpt-5",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
        }  # fmt: skip
        response = {"status_code": 200, "request_id": "req_1", "body": body}
        return {"id": "batch_req_1", "custom_id": custom_id, "response": response, "error": None}

    @staticmethod
    def text(record):
        """What a record of the output says."""
        return record["response"]["body"]["choices"][0]["message"]["content"]


class Anthropic(Server):
    """``/v1/messages/batches``."""

    style = "anthropic"

    def name(self, number):
        return f"msgbatch_{number:024d}"

    def error(self, code, message):
        return {"type": "error", "error": {"type": code, "message": message}}

    def call(self, method, path, query, headers, body):
        if path == "/v1/messages/batches" and method == "POST":
            given = json.loads(body)["requests"]
            asked = [(one["custom_id"], one["params"]["messages"][0]["content"]) for one in given]
            ids = [name for name, _ in asked]
            if len(set(ids)) < len(ids) or not all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", name) for name in ids):
                return 400, self.error("invalid_request_error", "requests.0.custom_id: not valid")
            return 200, self.show(self.create(asked))
        if path == "/v1/messages/batches":
            found = [self.show(batch) for batch in self.listed()]
            if self.unkind.nulls:
                # It never ends, so that of one of the same size it would never be known whether it is ours.
                foreign = self.show(Batch("msgbatch_of_another", [("r0", "of another")] * 1_000))
                strange = [foreign, {"type": "message_batch", "request_counts": []}]
                found = [None, *found, {"id": 7, "created_at": 5}, *strange]
            return 200, {"data": found, "has_more": False, "first_id": None, "last_id": None}
        batch = self.find(path.split("/")[4])
        if path.endswith("/cancel"):
            if batch.ended:
                return 400, self.error("invalid_request_error", "Batch cannot be canceled: it has ended")
            batch.cancelled = True
            return 200, self.show(batch)
        if path.endswith("/results"):
            batch.pending -= 1
            if not batch.ended or batch.pending >= 0:
                return 404, self.error("not_found_error", "No results are available")
            return 200, self.content(batch)
        return 200, self.show(self.look(batch))

    def show(self, batch):
        counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
        state = "processing" if not batch.ended else "canceled" if batch.cancelled else "succeeded"
        counts[state] = len(batch.requests)
        if batch.undone:
            counts["succeeded"], counts["errored"] = counts["succeeded"] - len(batch.undone), len(batch.undone)
        if batch.ended and batch.counting > 0:
            counts = dict.fromkeys(counts, 0)
        going = "canceling" if batch.cancelled else "in_progress"
        results = f"{self.base_url}/v1/messages/batches/{batch.id}/results"
        return {
            "id": batch.id, "type": "message_batch", "created_at": TIME, "expires_at": TIME, "request_counts": counts,
            "processing_status": (self.unkind.state or "ended") if batch.ended else going, "ended_at": TIME if batch.ended else None,
            "results_url": results if batch.ended and batch.pending < 1 else None,
        }  # fmt: skip

    def line(self, custom_id, prompt):
        message = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "stop_reason": "end_turn",
            "content": [{"type": "text", "text": f"about {prompt}"}], "usage": {"input_tokens": 9, "output_tokens": 3},
        }  # fmt: skip
        batch = next((b for b in self.batches if b.cancelled and (custom_id, prompt) in b.requests), None)
        result = {"type": "canceled"} if batch is not None else {"type": "succeeded", "message": message}
        return {"custom_id": custom_id, "result": result}

    @staticmethod
    def text(record):
        """What a record of the output says."""
        return record["response"]["body"]["content"][0]["text"]


def _part(kind, body):
    """The file of a multipart body."""
    mark = b"--" + re.search('boundary="?([^";]+)', kind)[1].encode()
    part = next(one for one in body.split(mark) if b'name="file"' in one)
    return part.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _answer(self):
        place = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            status, value = self.server.answer(self.command, place.path, parse_qs(place.query), self.headers, body)
        except OddError as error:
            status, value = error.status, self.server.error("overloaded", "Too busy")
        except StoredError as error:
            self.send_response(302)
            self.send_header("location", error.place)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        except ClosedError:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        raw = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/x-jsonl" if isinstance(value, bytes) else "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        for part in self.server.parts(raw):
            self.wfile.write(part)

    do_GET = do_POST = do_DELETE = _answer  # noqa: N815

    def log_message(self, *_):
        pass
