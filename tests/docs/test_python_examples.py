"""Every Python example runs, page by page: its blocks one after the other, in one space.

A block with ``print(...)  # TEXT`` prints TEXT; one that a block ``text`` follows prints that. OpenAI and Anthropic are an emulator. What a
page takes for granted (a client, a prompt) is in ``GIVEN``; blocks that need packages of their own are in ``PARSED``, and their
names of paceline are looked up.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import socket
import subprocess
from importlib import import_module
from pathlib import Path

import anthropic
import openai
import pytest
from pages import BLOCKS, Block, environment_of, split, started

import paceline
from grids import some
from memory_store import MemoryStore
from paceline.providers import registry
from paceline.providers.base import Usage
from paceline.providers.plan_headers import PlanReading

PYTHON: dict[str, list[Block]] = {}
for block in BLOCKS:
    if block.language == "python" and not block.text.startswith(">>>"):
        PYTHON.setdefault(block.page, []).append(block)

SHELL = {"docs/first_minutes.md"}
"""The pages whose commands run, too. The others' are parsed: ``test_commands_and_settings.py``."""

COMMON = """
import asyncio, json, logging
from collections import Counter, defaultdict
import anthropic, openai, paceline
prompt = "Why is the sky blue?"
messages = [{"role": "user", "content": prompt}]
limiter = paceline.Limiter({"openai/gpt-5": ["500 requests/min", "500k tokens/min"]})
client = openai.AsyncOpenAI(max_retries=0)
"""
"""What every page may take for granted; ``GIVEN`` has what single pages need besides."""

GIVEN = {
    "docs/by_hand.md": """
import httpx2
answered = httpx2.Response(200, json={"usage": {"prompt_tokens": 1_180, "completion_tokens": 95, "total_tokens": 1_275}},
                           headers={"x-ratelimit-limit-requests": "500", "x-ratelimit-remaining-requests": "499",
                                    "x-ratelimit-reset-requests": "120ms"},
                           request=httpx2.Request("POST", "https://api.openai.com/v1/responses"))
response_429 = httpx2.Response(429, json={"error": {"code": "rate_limit_exceeded", "message": "Please try again in 1ms."}},
                               request=answered.request)
response, usage = answered, {"prompt_tokens": 1_180, "completion_tokens": 95}
class provider:
    @staticmethod
    async def generate(prompt): ...
    generate_structured = generate
async def wait(asked):
    return await asked
""",
    "docs/config.md": """
from pathlib import Path
Path("paceline.toml").write_text("tier = 2\\nprovider = 'openai'")
Path("limits.yaml").write_text("provider: openai")
""",
    "docs/testing.md": "import urllib.request\nfound = []\n"
    "def run(base_url): openai.OpenAI(base_url=base_url).responses.create(model='gpt-5', input=prompt)\n",
    "docs/events.md": "quotas = {'openai/gpt-5': '500 requests/min'}",
    "docs/groups.md": "keys = dict.fromkeys(('eu', 'us', 'asia'), 'any')\nurls = dict.fromkeys(keys, openai.AsyncOpenAI().base_url)",
    "docs/status.md": "from starlette.applications import Starlette\nmain_app = Starlette()",
    "docs/files.md": """
import os, subprocess
from pathlib import Path
Path("prompts.txt").write_text("Name a river.")
body = {"model": "gpt-5", "messages": messages, "max_completion_tokens": 20}
line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
Path("requests.jsonl").write_text(json.dumps(line))
subprocess.run(["paceline", "run", "requests.jsonl", "--base-url", os.environ["OPENAI_BASE_URL"]], check=True, capture_output=True)
""",
    "docs/engines.md": "import os\nos.environ['PACELINE_STORE'] = f'sqlite:{os.getcwd()}/quotas.db'",
    "docs/processes.md": "quotas = {'jobs': '60 requests/min'}",
    "docs/troubleshooting.md": "limiter = paceline.Limiter({'openai/gpt-6-luna': '20 requests/min'})\n"
    "limiter.acquire('openai/gpt-6-luna').wait().settle()",
    "docs/integrations.md": "import anthropic\nother = limiter",
    "examples/contextualizer/README.md": "policy = paceline.RetryPolicy()",
    "examples/simulation/README.md": "async def call(prompt): return await client.responses.create(model='gpt-5', input=prompt)",
}

PARSED = {
    ("docs/integrations_frameworks.md", ""): "each framework runs in an environment of its own: tests/frameworks",
    ("docs/ray.md", ""): "tests/frameworks/ray",
    ("docs/gateway_quickstart.md", ""): "a program that the page runs: test_journeys.py",
    **dict.fromkeys(
        [
            ("docs/engines.md", part)
            for part in ("mapInPandas", "map_partitions", "map_batches", "pool.map", "app.task", "@task", "SLURM")
        ],
        "tests/frameworks/engines and tests/frameworks/ray",
    ),
    ("docs/batch.md", 'mode="batch"'): "a batch takes its time: tests/batch/test_rows.py",
    ("docs/stores.md", "StoreConformance"): "a test class: tests/stores/test_conformance.py runs that suite",
    ("docs/status.md", "Limiter(...,"): "`...` stands for limits",
    ("docs/integrations.md", "genai.Client()"): "needs Google's key: tests/frameworks/genai",
    ("docs/integrations.md", "bedrock/"): "needs AWS: tests/frameworks/boto3_xai",
    ("docs/testing.md", "test_my_batches"): "tests/emulator/test_emulator_batches.py",
    ("docs/events.md", "FIELDS"): "changes the log of the process: tests/pacing/test_lines.py",
    (
        "examples/contextualizer/README.md",
        "",
    ): "its classes are those of the example: tests/examples/test_contextualizer.py",
    ("examples/simulation/README.md", "pace_engine"): "needs extropy: tests/frameworks/extropy",
}
"""Page and a part of a block: why the block does not run here, and where the same is tested."""


def is_parsed(block: Block) -> bool:
    return any(block.page == page and part in block.text for page, part in PARSED)


def space_of(page: str) -> dict:
    space: dict = {}
    exec(COMMON + GIVEN.get(page, ""), space)
    return space


@pytest.fixture
def reader(paceline_emulator, monkeypatch, tmp_path):
    """The environment of a reader whose provider is an emulator, in an empty folder."""
    world = paceline_emulator(limits={"*": "6000 requests/min,60M tokens/min"})
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{world.base_url}/v1",
        "ANTHROPIC_API_KEY": "none", "ANTHROPIC_BASE_URL": world.base_url,
        **environment_of(tmp_path),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PACELINE_STORE", "")
    monkeypatch.delenv("PACELINE_STORE")  # a page may set it: it is gone with its test
    for name in ("_added", "_hosts"):  # a page may register a provider
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    opened = []  # what stays open when a page is at its end
    for owner, name in (
        (openai.AsyncOpenAI, "__init__"), (anthropic.AsyncAnthropic, "__init__"),
        (paceline, "instrument"), (paceline.Limiter, "serve_status"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, opening(getattr(owner, name), opened))
    reader = Reader({"127.0.0.1:9901": world.base_url.removeprefix("http://"), "127.0.0.1:9902": f"127.0.0.1:{free_port()}",
                     "port=8000": "port=0", "/var/lib/app": str(tmp_path), "time.sleep(3)": "time.sleep(0)",
                     "range(900)": "range(9)", "asyncio.run(main())  # 900": "await main()  # 9"})  # fmt: skip
    with asyncio.Runner() as runner:
        reader.run = runner.run
        yield reader
        runner.run(closed(opened))
    reader.end()


def opening(function, opened):
    """``function``, whose result, or the object that it initializes, is noted in ``opened``."""

    def noting(*args, **named):
        made = function(*args, **named)
        opened.append(args[0] if made is None else made)
        return made

    return noting


async def closed(opened):
    for each in opened:
        ended = each.close()
        if inspect.isawaitable(ended):
            await ended
    await asyncio.sleep(0.01)  # the transports tell their protocols that they are closed


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Reader:
    """Runs the blocks of a page as they stand there, with addresses of its own in place of those of the page."""

    def __init__(self, places):
        self.places = places
        self.servers = []

    def text_of(self, block):
        text = block.text
        for told, real in self.places.items():
            text = text.replace(told, real)
            if ":" in told:
                text = text.replace(f"--port {told.rpartition(':')[2]}", f"--port {real.rpartition(':')[2]}")
        return text

    def python(self, block, space):
        running = eval(
            compile("\n" * block.line + self.text_of(block), block.page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), space
        )
        if inspect.iscoroutine(running):
            self.run(asyncio.wait_for(running, 20))

    def shell(self, block):
        """Run the commands of a block, and compare its lines, regardless of the numbers in them."""
        commands, told = split(self.text_of(block))
        commands = [command for command in commands if not command.startswith(("pip ", "paceline emulate"))]
        for command in commands:
            if command.startswith("paceline serve"):
                url = f"http://{self.places['127.0.0.1:9902']}/healthz"
                self.servers.append(started(command.removesuffix("&"), url))
        script = "\n".join(command for command in commands if not command.startswith("paceline serve"))
        done = subprocess.run(["bash", "-ec", script], check=False, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        lines = {without_numbers(line) for line in (done.stdout + done.stderr).splitlines()}
        assert [line for line in told if without_numbers(line) not in lines] == [], done.stdout + done.stderr

    def end(self):
        for server in self.servers:
            server.terminate()
        for server in self.servers:
            server.wait(20)


def without_numbers(line: str) -> str:
    return re.sub(r"[\d.,]+", "#", line.strip())


def expected(block: Block) -> list[str]:
    """What a block says that it prints."""
    if block.output is not None:
        return [line.rstrip() for line in block.output.splitlines()]
    return re.findall(r"^ *print\(.*\)  # (.*)$", block.text, re.MULTILINE)


PAGES = [page for page, blocks in PYTHON.items() if not all(map(is_parsed, blocks))]


@pytest.mark.filterwarnings("ignore::paceline.PacelineWarning")  # an emulator has no published limits
# A page leaves its clients to the end of the program.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "page", some(PAGES, *set(PAGES) - SHELL, mark=pytest.mark.long("starts a process for each command of a page"))
)
def test_the_examples_of_a_page_run(page, reader, capsys, paceline_emulator):
    space = space_of(page)
    for block in BLOCKS:
        if block.page == page in SHELL and block.language == "console":
            reader.shell(block)
        if block not in PYTHON[page] or is_parsed(block):
            continue
        reader.python(block, space)
        for name, value in list(space.items()):  # a test function of the page is called, with the fixture that it takes
            if name.startswith("test_") and callable(value):
                space.pop(name)(paceline_emulator)
        printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        if expected(block) or block.output is not None:
            assert printed == expected(block), str(block)


def dotted(node: ast.expr) -> str | None:
    """``paceline.Limiter.load`` of the expression of this name; a limiter's methods are those of ``paceline.Limiter``."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    root = {"paceline": "paceline", "limiter": "paceline.Limiter"}.get(node.id if isinstance(node, ast.Name) else "")
    return ".".join([root, *reversed(parts)]) if root and parts else None


def found(name: str) -> object:
    """What a dotted name of paceline is; of a module that needs a package that is not installed, its source has to define it."""
    value, parts = paceline, name.split(".")[1:]
    for i, part in enumerate(parts, 1):
        try:
            value = getattr(value, part) if hasattr(value, part) else import_module(".".join(["paceline", *parts[:i]]))
        except ImportError as error:
            source = Path(paceline.__file__).parent.joinpath(*parts[: len(parts) - 1]).with_suffix(".py")
            if "this integration needs" in str(error) and re.search(rf"\b{parts[-1]}\b", source.read_text("utf-8")):
                return None
            raise AssertionError(f"{name} is not there") from error
    return value


@pytest.mark.parametrize("block", [block for blocks in PYTHON.values() for block in blocks], ids=str)
def test_what_an_example_takes_from_paceline_is_there(block):
    tree = compile(block.text, str(block), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("paceline"):
            for alias in node.names:
                found(f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Attribute) and (name := dotted(node)):
            found(name)
        elif isinstance(node, ast.Call) and (name := dotted(node.func)) and inspect.isroutine(found(name)):
            takes = inspect.signature(found(name)).parameters
            if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in takes.values()):
                assert {keyword.arg for keyword in node.keywords if keyword.arg} <= set(takes), name


def keys_in(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(keys_in, value.values()))
    return set().union(*map(keys_in, value)) if isinstance(value, list) else set()


def test_the_status_has_the_fields_of_its_page():
    told = {
        key
        for block in BLOCKS
        if block.text.startswith(">>> limiter.status()")
        for key in re.findall(r"'(\w+)': ", block.text)
    }
    limiter = paceline.Limiter({"openai/gpt-5": ["1 requests/min", "10k input_tokens/min"]}, store=MemoryStore())
    with limiter.acquire("openai/gpt-5", input_tokens=10, output_tokens=1) as permit:
        permit.settle(input_tokens=9)
    limiter.pacer.pools.plans.read("anthropic", [PlanReading("5h", 0.5)])
    limiter.pacer.pools.plans.charge("anthropic", ["5h"], Usage(input_tokens=9))
    limiter.pacer.answers.count("api.openai.com", "openai/gpt-5", 401, "key", 1.0)
    own = {
        "prep", "wrap", "provider", "host", "kind", "count", "remedy", "waited_s", "expected_wait_s",
        "cost", "cached_tokens", "lost_in_s", "name", "lane", "requests", "mode", "reason",
    }  # fmt: skip
    assert told - own - keys_in(limiter.status()) == set()
    limiter.close()


def test_the_lists_of_this_file_name_pages_that_are_there():
    assert set(GIVEN) <= set(PYTHON)
    assert [entry for entry in PARSED if not any(entry[1] in block.text for block in PYTHON[entry[0]])] == []
