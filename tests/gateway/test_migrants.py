"""Clients of a litellm proxy, unchanged: with their names and secrets, at the gateway that a converted configuration has started."""

import json
import tomllib
from pathlib import Path

import openai
import pytest
from click.testing import CliRunner
from gateway_helpers import Stub, stub

from paceline.cli.app import app
from paceline.config import Config
from paceline.gateway.keys import KeyFile, taken_over
from paceline.gateway.upstreams import Upstreams, path_at

FILES = sorted(Path(__file__).with_name("litellm").glob("*.yaml"))
SECRET = "sk-Vb3K9_xQ2mTz7Lw0RpYf8A"
ENVIRON = {
    "AZURE_SWEDEN_BASE": "https://sweden.openai.azure.com",
    "AZURE_FRANCE_BASE": "https://france.openai.azure.com",
    "SWEDEN_TPM": "450000",
}
REGIONS = "azure_sweden/gpt-4o-sweden or azure_france/gpt-4o-france"
NAMES = {
    "any_provider": {
        "openai/gpt-6-luna": "openai/gpt-6-luna", "anthropic/claude-sonnet-5": "anthropic/claude-sonnet-5", "gemini-3-pro": "gemini/gemini-3-pro",
        "open/openai/gpt-oss-120b": "groq/openai/gpt-oss-120b", "safe": "openai/gpt-6-luna",
    },
    "azure_regions": {
        "gpt-4o": REGIONS, "gpt-4": REGIONS, "gpt-4-turbo": REGIONS,
        "embeddings": "azure_sweden/text-embedding-3-large",
    },
    "budget_and_fallbacks": {
        "smart": "anthropic/claude-sonnet-5", "fast": "openai/gpt-6-luna", "cheap": "groq/openai/gpt-oss-120b", "long": "gemini/gemini-3-pro",
    },
    "one_address_for_all": {
        "main": "openai_api/vendor-large", "draw": "openai_api/vendor-image", "router": "openrouter/deepseek/deepseek-chat-v3.2",
        "gpt-3.5-turbo": "openai_api/vendor-large",
    },
    "own_machines": {
        "qwen": "vllm_8000/qwen3-32b", "llama": "ollama_11434/llama3.3", "bge": "openai_7997/bge-m3",
        "cloud": "togetherai/Qwen/Qwen3-235B-A22B",
    },
    "three_clouds": {"claude": "anthropic/claude-sonnet-5", "gpt": "azure_corp/gpt-6-luna", "whisper": "openai/whisper-1"},
}  # fmt: skip
"""Of each configuration, its names, and the server and the model that each led to."""


class Server(Stub):
    """Every server of a configuration, each below its name; a name in ``down`` answers 500."""

    def __init__(self):
        self.seen, self.down = [], set()

    def answer(self, path, headers, body):
        name = path.split("/")[1]
        model = "whisper-1" if b"whisper-1" in body else json.loads(body)["model"]
        self.seen.append((f"{name}/{model}", " ".join(headers.values())))
        status = 500 if name in self.down else 200
        made = {
            "id": "1", "object": "chat.completion", "created": 1, "model": "m", "text": "hi", "data": [{"embedding": [0.1], "index": 0}],
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }  # fmt: skip
        return made, status


def converted(file, monkeypatch):
    """The settings, as the command writes them."""
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(app, ["init", "--from", str(file), "-o", "-"])
    assert done.exit_code == 0, done.output
    return tomllib.loads(done.stdout), done.stderr


@pytest.fixture
def moved(serve, monkeypatch, tmp_path):
    """Start the gateway of a configuration, with all of its servers at one of the test's own."""
    server = Server()
    with stub(server) as url:

        def start(file, **more):
            settings, said = converted(file, monkeypatch)
            needed = next(line for line in said.splitlines() if "the keys that it needs" in line).partition(": ")[2]
            for variable in needed.split(", "):
                monkeypatch.setenv(variable, f"key-of-{variable}")
            for name, table in settings["upstreams"].items():
                table["base_url"] = f"{url}/{name}"
            keys = KeyFile(tmp_path / "keys.json")
            keys.add("old", taken_over(SECRET))
            return server, serve(url, provider=None, keys=keys.file, **settings, **more)

        yield start


def ask(client, name):
    if name == "whisper":
        return client.audio.transcriptions.with_raw_response.create(model=name, file=("a.wav", b"RIFF"))
    if name in ("embeddings", "bge"):
        return client.embeddings.with_raw_response.create(model=name, input="hi")
    return client.chat.completions.with_raw_response.create(
        model=name, messages=[{"role": "user", "content": "hi"}], max_tokens=5
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_clients_keep_their_address_their_names_and_their_secret(moved, file):
    server, running = moved(file)
    with openai.OpenAI(base_url=running.url, api_key=SECRET, max_retries=0) as client:
        for name, led_to in NAMES[file.stem].items():
            ask(client, name)
            assert server.seen[-1][0] in led_to.split(" or ")
        listed = {one.id for one in client.models.list()}
        assert listed == set(running.gateway.upstreams.native.routes)
        of_patterns = {name for name in NAMES[file.stem] if "/" in name or name == "gemini-3-pro"}
        assert set(NAMES[file.stem]) - listed == of_patterns
    assert len(server.seen) == len(NAMES[file.stem])
    assert not [led_to for led_to, sent in server.seen if SECRET in sent]
    bare = {led_to.partition("/")[0] for led_to, sent in server.seen if "key-of-" not in sent}
    assert bare == ({"vllm_8000", "ollama_11434", "openai_7997"} if file.stem == "own_machines" else set())
    other = openai.OpenAI(base_url=f"{running.url}/v1", api_key="sk-another", max_retries=0)
    with other, pytest.raises(openai.AuthenticationError):
        ask(other, name)


@pytest.mark.parametrize(("stem", "name", "down", "answers"), [
    ("budget_and_fallbacks", "smart", {"anthropic", "openai"}, "groq/openai/gpt-oss-120b"),
    ("any_provider", "anthropic/claude-sonnet-5", {"anthropic"}, "openai/gpt-6-luna"),
    ("own_machines", "qwen", {"vllm_8000", "vllm_8000_2"}, "togetherai/Qwen/Qwen3-235B-A22B"),
    ("azure_regions", "gpt-4", {"azure_sweden"}, "azure_france/gpt-4o-france"),
])  # fmt: skip
def test_fallbacks_answer(moved, stem, name, down, answers):
    server, running = moved(next(file for file in FILES if file.stem == stem))
    server.down |= down
    with openai.OpenAI(base_url=running.url, api_key=SECRET, max_retries=0) as client:
        said = ask(client, name).headers.get("x-paceline-fallback", "")
    assert server.seen[-1][0] == answers
    assert said.partition(" after ")[0] == ("" if stem == "azure_regions" else answers)  # a group is one place


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_real_addresses_get_their_own_paths(file, monkeypatch):
    settings, _ = converted(file, monkeypatch)
    config = Config.load(environ={}, given=settings)
    keys = {one["key_env"]: "a-key" for one in config.upstreams.values() if "key_env" in one}
    places = {
        "https://api.openai.com": "/v1", "https://api.anthropic.com": "/v1", "https://generativelanguage.googleapis.com": "/v1beta/openai",
        "https://api.groq.com": "/openai/v1", "https://openrouter.ai": "/api/v1", "https://api.together.xyz": "/v1",
    }  # fmt: skip
    for one in Upstreams(config, keys).servers.values():
        expected = places.get(one.root, "/v1")
        for path in ("/v1/chat/completions", "/chat/completions"):
            assert path_at(one, path) == f"{expected}/chat/completions", one.root
        header = b"api-key" if "azure" in one.root else b"authorization"
        assert one.credentials(f"{expected}/chat/completions", "a-key")[0] == header
