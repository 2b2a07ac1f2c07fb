"""A secret of another proxy, which its client keeps."""

import hashlib
import secrets
import uuid

import pytest
from click.testing import CliRunner
from gateway_helpers import chat

from paceline.cli.app import app
from paceline.core.results import SettingsError
from paceline.gateway.keys import KeyFile, taken_over

OLD = "sk-Vb3K9_xQ2mTz7Lw0RpYf8A"


def add(file, name, given, *more):
    words = ["keys", "add", name, "--keys", str(file), "--secret-file", "-", *more]
    return CliRunner().invoke(app, words, input=given)


def test_a_client_keeps_its_secret_and_its_hash_alone_is_kept(serve, emulator, client, tmp_path):
    file, hashed = tmp_path / "keys.json", hashlib.sha256(b"sk-of-another-client").hexdigest()
    done = add(file, "old", f"\ufeff{OLD}\r\n", "--limit", "10 usd/day")
    assert (done.exit_code, done.stdout) == (0, ""), done.output
    assert add(file, "hash", f"sha256:{hashed.upper()}\n").exit_code == 0
    assert OLD not in file.read_text() + done.output
    running = serve(emulator.base_url, keys=file)
    for secret, status in ((OLD, 200), ("sk-of-another-client", 200), (hashed, 401), (OLD[:-1], 401)):
        headers = {"authorization": f"Bearer {secret}"}
        assert client.post(f"{running.url}/v1/chat/completions", json=chat(), headers=headers).status_code == status
    KeyFile(file).rotate("old", 60)
    assert KeyFile(file).find(OLD).name == "old"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "write one secret, in one line"),
        ("sk-one\nsk-two", "write one secret, in one line"),
        ("sk-1234", "can be guessed"),
        ("sk-production-team-search-2024", "can be guessed"),
        ("SuperSecretMasterKey2024!", "can be guessed"),
        ("sk-" + "ab" * 20, "can be guessed"),
        ("0a" * 32, "can be a secret or its hash"),
        ("sha256:12", "64 hex digits"),
        ("sha256:" + "0" * 64, "is not the SHA-256 of a secret"),
        ("sha256:" + hashlib.sha256(b"").hexdigest(), "is not the SHA-256 of a secret"),
        (f"LITELLM_KEY={OLD}", "it is in quotes or after NAME="),
        (f"'{OLD}'", "it is in quotes or after NAME="),
        (OLD, "the key first has this secret already"),
    ],
)
def test_what_is_not_taken_over(tmp_path, given, said):
    file = tmp_path / "keys.json"
    add(file, "first", OLD)
    before = file.read_text()
    done = add(file, "next", given)
    assert (done.exit_code, file.read_text()) == (2, before)
    assert said in done.stderr
    assert not given.strip() or given not in done.output


@pytest.mark.parametrize("make", [lambda: secrets.token_hex(16), uuid.uuid4, lambda: secrets.token_urlsafe(32)])
def test_random_ones_are_taken_over(make):
    def refused():
        try:
            taken_over(f"sk-{make()}")
        except SettingsError:
            return True
        return False

    # One of 600 looks like words by chance: more than nine of 300 never are.
    assert sum(refused() for _ in range(300)) <= 9
