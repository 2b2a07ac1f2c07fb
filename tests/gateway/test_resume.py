"""An operator ends the stop of a pool: who may, what is told of it, in each process of the gateway."""

import json

import httpx2
import pytest
from click.testing import CliRunner
from gateway_helpers import CHAT, Stub, bearer, chat, stub

from paceline.cli.app import app
from waits import until

NO_MONEY = {"error": {"code": "insufficient_quota", "type": "insufficient_quota", "message": "Check your billing."}}


class Account(Stub):
    """A provider that answers when the account is paid."""

    paid = False

    def answer(self, *_):
        return ({"choices": [{"message": {"content": "Hi."}}]},) if self.paid else (NO_MONEY, 429)


@pytest.fixture
def account():
    made = Account()
    with stub(made) as made.url:
        yield made


def said(*words):
    done = CliRunner().invoke(app, ["resume", *words], prog_name="paceline")
    return done.exit_code, done.output


def test_an_operator_resumes_a_pool(serve, keys, client, account, tmp_path, caplog):
    alice, ops = keys.add("alice"), keys.add("ops", may_resume=True)
    running = serve(account.url, limits={"*": "100k requests/min"}, access_log=tmp_path / "access.jsonl")

    def send(model="gpt-5"):
        return client.post(running.url + CHAT, json=chat(model=model), headers=bearer(alice)).status_code

    assert (send(), send("gpt-4o")) == (429, 429)
    account.paid = True
    assert (send(), running.pool()["stopped"]) == (429, "no money left (insufficient_quota)")

    code, output = said("openai/gpt-5", running.url, "--key", alice)
    assert code == 1
    assert "403: paceline: this key may not resume pools: `paceline keys change alice --may-resume`" in output
    assert "answers 401" in said("openai/gpt-5", running.url, "--key", "pk-wrong")[1]
    assert client.get(f"{running.url}/api/v1/resume/openai/gpt-5", headers=bearer(ops)).status_code == 405
    code, output = said("openai/gtp-*", running.url, "--key", ops)
    assert (code, "404: paceline: no pool in use has the name 'openai/gtp-*'" in output) == (1, True)
    assert "%" not in output, "the address is shown as it was written"
    assert send() == 429

    assert said("openai/gpt-5", running.url, "--key", ops) == (0, "resumed: openai/gpt-5\n")
    assert (send(), send("gpt-4o")) == (200, 429)
    assert said("openai/*", running.url, "--key", ops) == (0, "resumed: openai/gpt-4o\nnot stopped: openai/gpt-5\n")
    assert send("gpt-4o") == 200
    stopped = "which was stopped (no money left (insufficient_quota))"
    assert f"openai/gpt-5: key ops has resumed the pool, {stopped}" in caplog.text
    told = [json.loads(line) for line in (tmp_path / "access.jsonl").read_text().splitlines()]
    tried = [(one["key"], one["status"]) for one in told if "/resume/" in one["path"]]
    assert tried == [("alice", 403), ("", 401), ("ops", 405), ("ops", 404), ("ops", 200), ("ops", 200)]


def test_a_web_page_of_another_server_resumes_nothing(serve, client, account):
    running = serve(account.url)
    page = {"origin": "https://elsewhere.example"}
    assert client.post(f"{running.url}/api/v1/resume/openai/gpt-5", headers=page).status_code == 403


@pytest.mark.long("starts a gateway of two processes")
def test_each_process_of_the_gateway_resumes(account, process):
    gateway = process("--workers", "2", "--limit", "*=100k requests/min", upstream=account.url)

    def send():
        found = set()
        for _ in range(20):  # each on a connection of its own
            with httpx2.Client(timeout=30, trust_env=False, verify=False) as client:
                found.add(client.post(gateway.url + CHAT, json=chat()).status_code)
        return found

    def stopped():
        assert send() == {429}
        return gateway.log().count("refused (money)") == 2  # each process has got a request

    until(stopped)
    account.paid = True
    assert send() == {429}
    assert said("openai/gpt-5", gateway.url) == (0, "resumed: openai/gpt-5\n")
    assert send() == {200}
    assert "openai/gpt-5: a client has resumed the pool" in gateway.log()
