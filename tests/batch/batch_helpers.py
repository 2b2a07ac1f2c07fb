import _thread
import dataclasses
import json
import os
import subprocess
import sys
import time

from click.testing import CliRunner

from paceline.batch.answers import RunAnswers
from paceline.batch.check import Checker, InputPlan
from paceline.batch.client import RunClient
from paceline.batch.index import Index
from paceline.batch.job import Job, Output
from paceline.batch.offline import Batching
from paceline.batch.packs import Packer
from paceline.batch.progress import ProgressLine, ProgressView
from paceline.batch.requests import request_of
from paceline.batch.results import encode_answer
from paceline.batch.runner import Runner
from paceline.batch.summary import RunTally
from paceline.cli.app import app
from paceline.config import Config
from paceline.config.servers import ProviderAddress
from paceline.limiter.limiter import SYSTEM_CLOCK, Limiter
from paceline.providers.registry import provider_named
from waits import until

FAST = "60k requests/min,60M tokens/min"
GOOD = {"choices": [{"message": {"content": "two"}}], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}
GOOD_MESSAGE = {"content": [{"type": "text", "text": "two"}], "usage": {"input_tokens": 9, "output_tokens": 1}}
OK = {"status_code": 200, "request_id": "r", "body": {"text": "né\u2028"}}


class Reply:
    """A response of aiohttp with status 200, as far as it is read."""

    status, headers = 200, {}

    def __init__(self, body):
        self.content, self._chunks = self, [body, b""]

    async def readany(self):
        return self._chunks.pop(0)

    def close(self):
        pass


def interrupt_when(condition):
    """Press Ctrl-C, from another thread."""
    until(condition)
    _thread.interrupt_main()


class Said(ProgressView):
    """Remembers what a run says."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)

    @property
    def text(self):
        return "\n".join(self.lines)


def chat(custom_id, model="gpt-5", text="one plus one?", max_tokens=20, **extra):
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, **extra}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def chats(count):
    return [chat(f"r{number}") for number in range(count)]


def message(custom_id, model="claude-sonnet-4-5", text="hello"):
    params = {"model": model, "max_tokens": 20, "messages": [{"role": "user", "content": text}]}
    return {"custom_id": custom_id, "params": params}


def contents(custom_id, model="gemini-2.5-flash", text="one plus one?"):
    body = {"contents": [{"role": "user", "parts": [{"text": text}]}], "generationConfig": {"maxOutputTokens": 20}}
    return {"custom_id": custom_id, "method": "POST", "url": f"/v1beta/models/{model}:generateContent", "body": body}


def completion(text):
    """The body of an answer of a chat."""
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    choices = [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}]
    return {"id": "1", "object": "chat.completion", "choices": choices, "usage": usage}


def index_of(names):
    """An index of an input whose lines have these names."""
    index = Index()
    for line, name in enumerate(names, 1):
        index.add(name, line)
    return index


def ok(name):
    """The line of a request that was answered."""
    return encode_answer(name, OK, None)


def failed(name):
    return encode_answer(name, {**OK, "status_code": 400}, {"code": "bad", "message": "no"})


def write_lines(path, values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def read_answers(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def ids_in(path):
    return [answer["custom_id"] for answer in read_answers(path)]


def errors_in(path):
    """The code of the error of each answer, by its id."""
    return {answer["custom_id"]: answer["error"] and answer["error"]["code"] for answer in read_answers(path)}


def words(args, base_url, limit):
    return ["run", *map(str, args), "--base-url", base_url, "--limit", f"*={limit}"]


def call(*args, base_url, code=0, environ=None, limit=FAST):
    """Call `paceline run` in this process.

    Returns:
        What it has written to standard output and standard error.
    """
    done = CliRunner().invoke(app, words(args, base_url, limit), env=environ)
    assert done.exit_code == code, done.output
    return done.stdout, done.stderr


def run_job(source, base_url, view=None, *, environ=None, **given):
    """Run an input in this process, without the command.

    Args:
        source: Its path.
        base_url: The server.
        view: Is told what the run says.
        environ: Has the keys.
        given: Options of the run, which are fields of its `Job`, `Output` and `Batching`, and settings.

    Returns:
        The exit code and the report.
    """
    given["path"] = given.pop("output", None)
    output, batching, options = (
        {one.name: given.pop(one.name) for one in dataclasses.fields(kind) if one.name in given}
        for kind in (Output, Batching, Job)
    )
    config = Config.load(environ={}, given={"base_url": base_url, "limits": {"*": FAST}, **given})
    job = Job(str(source), Output(**output), config, environ or {}, batching=Batching(**batching), **options)
    return job.run(view or ProgressView())


async def send_lines(lines, results, root, view, *, post=None, clock=SYSTEM_CLOCK, **given):
    """Send requests by the parts of a run, into an open file of answers.

    Args:
        lines: The requests.
        results: The file.
        root: The server.
        view: Is told what the run says.
        post: In place of the sender's.
        clock: Of the limiter.
        given: Settings.

    Returns:
        The runner, and what it has counted.
    """
    config = Config.load(environ={}, given=given)
    limiter = Limiter(**config.arguments("openai"), clock=clock)
    checker, tally = Checker(limiter, Index()), RunTally(len(lines))
    requests = [request_of(number, line) for number, line in enumerate(lines, 1)]
    source = iter([(request, checker.describe(request)) for request in requests])
    addresses = {"openai": ProviderAddress(root, {}, "", provider_named("openai"))}
    client = RunClient(limiter, addresses, config.timeout_s, view.say, tally.sent.attempts, lambda: bool(results.kept))
    meter, packer = ProgressLine(InputPlan(), tally, config.workers), Packer(checker.describe)
    runner = Runner(source, client, RunAnswers(results, Index(), tally, view), meter, packer, config.workers)
    client.sender.post = post or client.sender.post
    await runner.run()
    return runner, tally


def start(*args, base_url, environ=None, limit=FAST, streams=None, setup="", **options):
    """Start `paceline run` in a process of its own, after the statements of `setup`."""
    names = ("PATH", "HOME", "XDG_STATE_HOME", "PYTHONPATH", "SSL_CERT_FILE")
    environ = {name: os.environ.get(name, "") for name in names} | (environ or {})
    line = [sys.executable, "-c", f"{setup}\nfrom paceline.cli import main; main()", *words(args, base_url, limit)]
    streams = streams or {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(line, env=environ, text=True, **streams, **options)


def finish(process, code):
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    return out, err


def wait_for_lines(path, count, process):
    """Wait until the output has so many lines."""
    deadline = time.monotonic() + 60  # only a broken run gets here
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
