"""Two pages as a reader follows them: the gateway in five minutes, and each message of the page of troubles, provoked."""

from __future__ import annotations

import os
import re
import subprocess
import time

import openai
import pytest
from pages import BLOCKS, environment_of, split, started
from test_python_examples import free_port

import paceline


def texts(page, *languages):
    return [block.text for block in BLOCKS if block.page == page and block.language in languages]


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Run a command of a reader whose folders and keys are their own; return all that it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_BASE_URL"))}
    environment |= {"HOME": str(tmp_path), "USERPROFILE": str(tmp_path), **environment_of(tmp_path)}

    def run(command, **variables):
        done = subprocess.run(
            ["bash", "-c", command], check=False, cwd=tmp_path, env=environment | variables, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return done.stdout + done.stderr

    run.environment, run.folder = environment, tmp_path
    return run


@pytest.mark.long("starts a process for each command of the page")
def test_the_gateway_in_five_minutes(shell, paceline_emulator):
    world, port = paceline_emulator(limits={"*": "6000 requests/min"}), free_port()
    page = "docs/gateway_quickstart.md"
    places = {
        "127.0.0.1:9901": world.base_url.removeprefix("http://"),
        ":8080": f":{port}",
        "--port 8080": f"--port {port}",
        "=12 req": "=6000 req",
    }
    [program] = texts(page, "python")
    (shell.folder / "ask.py").write_text(program, "utf-8")
    keys, gateway, variables = [], None, {}
    try:
        for block in texts(page, "console"):
            commands, _ = split(block)
            for line in commands:
                command = line.removesuffix("&")
                for told, real in places.items():
                    command = command.replace(told, real)
                if command.startswith(("pip ", "paceline emulate")):
                    continue
                if command.startswith("export"):
                    command = command.replace("pk-MQTR...", keys[1] if len(keys) > 1 else "")
                    variables |= dict(re.findall(r"(\w+)=(\S+)", command))
                elif command.startswith("paceline serve"):
                    where = {"env": shell.environment | variables, "cwd": shell.folder}
                    gateway = started(command, f"http://127.0.0.1:{port}/healthz", **where)
                else:
                    printed = shell(command.replace("pk-wxj5...", keys[2] if len(keys) > 2 else ""), **variables)
                    keys += re.findall(r"^pk-\S+$", printed, re.MULTILINE)
                    if "ask.py" in command and "0.001 usd" not in block:
                        assert printed.startswith("15 answers")
                    elif "ask.py" in command:
                        deadline_s = time.monotonic() + 30  # the running gateway looks at the file once in a second
                        while "nothing is left of the budget of billing, 0.001 usd/day" not in printed:
                            assert time.monotonic() < deadline_s, printed
                            printed = shell(command, **variables)
                    elif "status" in command:
                        assert "openai/gpt-6-luna" in printed
                    elif "usage" in command:
                        assert '"billing": {"requests": 15' in printed
    finally:
        if gateway:
            gateway.terminate()
            gateway.wait(20)
    assert len(keys) == 3


TROUBLES = "docs/troubleshooting.md"


def failure(call):
    with pytest.raises((paceline.PacelineError, openai.OpenAIError)) as caught:
        call()
    return f"{caught.type.__name__}: {caught.value}"


def lines_of_troubles():
    return [line for text in texts(TROUBLES, "text") for line in text.splitlines()]


def test_the_messages_of_a_limiter_are_those_of_the_page(paceline_emulator, caplog):
    quotas = {"jobs": "60 requests/min burst 1", "openai/gpt-6-luna": "75 requests/min, 500k tokens/min"}
    ask = {"model": "gpt-6-luna", "messages": [{"role": "user", "content": "Hello"}], "max_completion_tokens": 5}

    def send(**settings):
        world = paceline_emulator(limits={"*": "20 requests/min"}, **settings)
        client = openai.OpenAI(base_url=f"{world.base_url}/v1", api_key="any", max_retries=0)
        with client, paceline.Limiter(quotas, retry=paceline.RetryPolicy(max_elapsed_s=0.1)) as limiter:
            limiter.attach(client, provider="openai").chat.completions.create(**ask)

    with paceline.Limiter(quotas) as limiter, paceline.Limiter(quotas, store="redis://127.0.0.1:1/0") as away:
        limiter.acquire("jobs").wait().settle()
        said = [failure(limiter.acquire("jobs", timeout=0).wait)]
        said.append(failure(limiter.acquire("openai/gpt-6-luna", input_tokens=600_000).wait))
        said.append(failure(away.acquire("jobs").wait))
    with caplog.at_level("WARNING"):
        failure(lambda: send(start_level=0.0))
        said += [line.getMessage() for line in caplog.records]
    said.append(failure(lambda: send(money_after=0)))
    moving = r"waited [\d.]+|retry after \d\S* s"
    plain = re.sub(moving, "#", "\n".join(said))
    for line in lines_of_troubles():
        if line.startswith(
            ("AcquireTimeoutError", "NeverFitsError", "StoreError", "rate_limit.429_error", "GaveUpError")
        ):
            assert re.sub(moving, "#", line.removeprefix("GaveUpError: ")) in plain


@pytest.mark.long("starts a process for each message of a command")
def test_the_messages_of_commands_are_those_of_the_page(shell, paceline_emulator):
    world = paceline_emulator(limits={"*": "6000 requests/min"}, valid_key="sk-right")
    (shell.folder / "prompts.txt").write_text("One?\n")
    send = f"paceline run prompts.txt --model gtp-9 --provider openai --base-url {world.base_url}"
    said = "".join([
        shell("paceline exec -- python -c pass"),
        shell("paceline exec --gateway -- python -c pass"),
        shell("paceline exec --gateway -- python -c pass", OPENAI_API_KEY="any"),
        shell(send, OPENAI_API_KEY="sk-right"),
        shell(send, OPENAI_API_KEY="sk-wrong"),
        shell("rm prompts.txt.results.jsonl"),
        shell(send, OPENAI_API_KEY="sk-wrong"),
    ])  # fmt: skip
    for line in lines_of_troubles():
        if line.startswith(("paceline exec", "warning", "openai refused")):
            assert line in said, said
