"""How long coding agents wait for an answer: ``python tests/frameworks/patience.py [claude@VERSION] [codex@VERSION] ...``.

Run it for each release of a client, and put what it prints into the tables of ``src/paceline/gateway/waiting.py``. Each
client asks once, with an invented login or key, before a server that sends nothing, or the head of a stream and a note every 15 s.
After ``--most`` seconds it answers. All of them run at once: they only wait.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from plan_world import NOTES, VERSIONS, Server, answer_of, arguments, environ, is_turn, program, respond, streams

EVERY_S = 15.0
LIFTED = dict.fromkeys(
    ("API_TIMEOUT_MS", "CLAUDE_STREAM_IDLE_TIMEOUT_MS", "CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS"), "86400000"
)
MANNERS = {
    "claude": ("silence", "ping", "comment"), "codex": ("silence", "keepalive", "comment"),
    "opencode": ("silence", "ping", "comment"), "gemini": ("silence", "blank"),
}  # fmt: skip
LIFTS = ("claude", "codex")
"""The clients whose limits settings lift."""


class Waiting(Server):
    """Answers after ``most_s``, and until then as ``manner`` says."""

    def __init__(self, manner, most_s):
        super().__init__()
        self.manner, self.most_s = manner, most_s

    async def answer(self, asked, reader, writer):
        """See :class:`Server`."""
        if not is_turn(asked):
            return await respond(writer, asked, 200, {}, {"models": []})
        note, left_s = NOTES.get(self.manner), self.most_s - asked.at_s
        body, kind = answer_of(asked)
        if note is not None and streams(asked):
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
            writer.write(head)
        else:
            note = None
        gone = asyncio.ensure_future(reader.read(1))
        while left_s > 0 and not gone.done():
            if note is not None:
                writer.write(note)
            await asyncio.wait([gone], timeout=min(left_s, EVERY_S))
            left_s = self.most_s - (time.monotonic() - self.began_s)
        gone.cancel()
        with suppress(asyncio.CancelledError, ConnectionError):
            await gone
            return False
        if note is None:
            return await respond(writer, asked, 200, {"content-type": kind}, body)
        asked.status = 200
        writer.write(body)
        await writer.drain()
        return False


def measure(name, version, manner, most_s, *, lifted):
    """One line: how often a client has asked, how long it has waited each time, and how it ended."""
    path = program(name, version)
    with Waiting(manner, most_s) as server, tempfile.TemporaryDirectory() as folder:
        env, command = environ(folder, name), arguments(name, path=path)
        if name == "claude":
            env |= {"ANTHROPIC_BASE_URL": server.url} | (LIFTED if lifted else {})
        elif name == "gemini":
            env["GOOGLE_GEMINI_BASE_URL"] = server.url
        elif name == "opencode":
            options = {"options": {"baseURL": f"{server.url}/v1", "apiKey": "key"}}
            settings = {"provider": {"anthropic": options}, "model": "anthropic/claude-sonnet-4-5", "autoupdate": False}
            env["OPENCODE_CONFIG_CONTENT"] = json.dumps(settings)
        else:
            idle = ", stream_idle_timeout_ms=86400000" if lifted else ""
            at = f'base_url="{server.url}/backend-api/codex", wire_api="responses", requires_openai_auth=true'
            options = ["model_provider=paced", f'model_providers.paced={{name="paced", {at}{idle}}}']
            command[1:1] = [word for option in options for word in ("-c", option)]
        began_s = time.monotonic()
        try:
            done = subprocess.run(
                command,
                env=env,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=most_s + 60,
                check=False,
            )
            code = f"exit code {done.returncode}"
        except subprocess.TimeoutExpired:
            code = "still waits"
        ended_s = time.monotonic() - began_s
        waits = [f"{one.closed_s - one.at_s:.0f} s{'' if streams(one) else ' (no stream)'}" for one in server.turns]
    manner += " lifted" if lifted else ""
    agent = next((one.headers.get("user-agent", "") for one in server.turns), "")
    return f"{name} {version:<9} {manner:<17} {', '.join(waits)}; {code} after {ended_s:.0f} s; {agent}"


def main():
    """Measure what is named."""
    parser = argparse.ArgumentParser(description="Measure how long coding agents wait for an answer.")
    parser.add_argument("clients", nargs="*", default=[f"{name}@{version}" for name, version in VERSIONS.items()])
    parser.add_argument("--most", type=float, default=1_500.0, help="seconds after which each of them is answered")
    parser.add_argument("--lifted", choices=("no", "yes", "both"), default="both", help="with the settings of exec")
    asked = parser.parse_args()
    clients = [tuple(client.split("@")) for client in asked.clients]
    for client in clients:
        program(*client)
    ways = {"no": (False,), "yes": (True,), "both": (False, True)}[asked.lifted]
    runs = [
        (*client, manner, lifted)
        for client in clients
        for manner in MANNERS[client[0]]
        for lifted in ways
        if client[0] in LIFTS or not lifted
    ]
    with ThreadPoolExecutor(len(runs)) as threads:
        found = [threads.submit(measure, *run[:3], asked.most, lifted=run[3]) for run in runs]
        for one in found:
            sys.stdout.write(one.result() + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
