"""The access log: who has asked for what, and what it took."""

import json
import os
import sys
import time
from multiprocessing.pool import ThreadPool
from types import SimpleNamespace

import pytest
from gateway_helpers import CHAT, chat

from paceline.gateway import access
from paceline.gateway.access import AccessLog
from paceline.gateway.incoming import Incoming, RequestHead
from paceline.gateway.keys import KeyFile
from waits import until


def test_each_request_has_a_line(serve, emulator, client, tmp_path):
    secret = KeyFile(tmp_path / "keys.json").add("alice", models=("gpt-5",))
    running = serve(emulator.base_url, access_log=tmp_path / "access.log")
    for key, model in ((secret, "gpt-5"), (secret, "gpt-4o"), ("pk-wrong", "gpt-5")):
        client.post(f"{running.url}{CHAT}?a=secret", json=chat(model=model), headers={"authorization": f"Bearer {key}"})
    client.get(running.url + "/readyz")
    until(lambda: (tmp_path / "access.log").read_text().count("\n") == 3)
    text = (tmp_path / "access.log").read_text()
    served, forbidden, unknown = map(json.loads, text.splitlines())
    assert (served["key"], served["status"], served["pool"], served["attempts"]) == ("alice", 200, "openai/gpt-5", 1)
    assert (served["method"], served["path"], served["client"]) == ("POST", CHAT, "127.0.0.1")
    assert served["input_tokens"] > 0 < served["output_tokens"]
    assert (forbidden["key"], forbidden["status"]) == ("alice", 403)
    assert (unknown["key"], unknown["status"]) == ("", 401)
    assert "pool" not in unknown
    assert not any(private in text for private in (secret, "pk-wrong", "secret", "sk-of-openai"))


def test_waits_for_the_limits_of_a_key_are_told(serve, emulator, client, tmp_path):
    file, secret = (
        tmp_path / "access.log",
        KeyFile(tmp_path / "keys.json").add("alice", limits=("300 requests/min burst 1",)),
    )
    running = serve(emulator.base_url, access_log=file, limits={"*": "100k requests/min"})
    asked = {"json": chat(), "headers": {"authorization": f"Bearer {secret}"}}
    with ThreadPool(3) as pool:
        answers = pool.map(lambda _: client.post(running.url + CHAT, **asked), range(3))
    longest_s = running.pool("lane/alice")["wait_s"]["longest"]
    assert longest_s > 0.1
    told = [float(answer.headers["x-paceline-waited"]) for answer in answers]
    until(lambda: file.exists() and file.read_text().count("\n") == 3)
    logged = [json.loads(line)["waited_s"] for line in file.read_text().splitlines()]
    assert max(told) == max(logged) == pytest.approx(longest_s, abs=0.05)


def test_the_line_of_a_request_without_an_answer_has_its_pool(serve, client, tmp_path):
    file = tmp_path / "access.log"
    running = serve("http://127.0.0.1:1", access_log=file)
    assert client.post(f"{running.url}{CHAT}", json=chat(model="gpt-5")).status_code == 502
    until(lambda: file.exists() and file.read_text().endswith("\n"))
    line = json.loads(file.read_text())
    assert (line["status"], line["server"], line["pool"], line["attempts"]) == (502, "openai", "openai/gpt-5", 1)


def test_no_process_writes_over_the_line_of_another(tmp_path, monkeypatch):
    """The C library of Windows has no append: it looks for the end of the file, and writes there."""
    write = os.write

    def as_on_windows(fd, content):
        end = os.lseek(fd, 0, os.SEEK_END)
        time.sleep(0.001)
        os.lseek(fd, end, os.SEEK_SET)
        return write(fd, content)

    monkeypatch.setattr(os, "write", as_on_windows)
    monkeypatch.setattr(os, "O_APPEND", 0)
    monkeypatch.setattr(access, "sys", SimpleNamespace(platform="win32"))
    logs = [AccessLog(tmp_path / "access.log") for _ in range(2)]
    with ThreadPool(2) as pool:
        pool.map(lambda number: logs[number % 2].write({"number": number}), range(40), 1)
    for one in logs:
        one.close()
    lines = (tmp_path / "access.log").read_bytes().decode().split("\n")
    assert sorted(json.loads(line)["number"] for line in lines if line) == list(range(40))


@pytest.mark.skipif(sys.platform == "win32", reason="processes take turns there")
def test_a_lock_of_another_program_keeps_no_request_waiting(tmp_path):
    import fcntl

    log = AccessLog(file := tmp_path / "access.log")
    with file.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        began_s = time.monotonic()
        log.write({"number": 1})
        assert time.monotonic() - began_s < 10
    log.close()
    assert json.loads(file.read_text()) == {"number": 1}


def test_a_request_is_shown_without_its_key_and_its_body():
    """Reports of errors show the variables of each function."""
    head = RequestHead("POST", "", [(b"authorization", b"Bearer pk-1")], {})
    one = Incoming(head, None, None, None, None, None, "pk-1", None, CHAT, parts=[b"prompt"])
    assert "pk-1" not in repr(one)
    assert "prompt" not in repr(one)
