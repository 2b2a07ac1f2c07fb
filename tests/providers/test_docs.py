"""The documentation of providers: its example runs, and its table has every provider. A user's own providers are found."""

from __future__ import annotations

import json
import re
import runpy
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from paceline.core.results import PacelineWarning, Reading, RefusalKind, SettingsError
from paceline.providers import register, registry
from paceline.providers.base import Usage
from paceline.providers.generic import Generic
from paceline.providers.registry import PROVIDERS, is_provider, provider_for_host, provider_named
from paceline.providers.tables import known_providers

PAGE = Path(__file__).parents[2].joinpath("docs", "providers.md").read_text(encoding="utf-8")
(EXAMPLE,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "acme" in block)


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """What a test registers is gone after it."""

    def forget():
        registry._load.cache_clear()
        registry._plug_in.cache_clear()

    forget()
    monkeypatch.setattr(registry, "_added", {})
    monkeypatch.setattr(registry, "_hosts", dict(registry._hosts))
    yield
    forget()


def offer(monkeypatch, **points):
    asked = []

    def entry_points(group):
        asked.append(group)
        return EntryPoints(EntryPoint(name, value, group) for name, value in points.items())

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    return asked


def test_the_table_has_every_provider():
    listed = re.findall(
        r"`(\w+)`(?=[\s,.])", PAGE.partition("paceline measures their rates: ")[2].partition("<!-- end -->")[0]
    )
    told = {*re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE), *listed}
    assert told == set(PROVIDERS), "python docs/site/facts.py writes the table again"
    assert set(known_providers()) <= set(PROVIDERS)


def test_the_table_is_made_of_the_data_set():
    written = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "site" / "facts.py"))["written"]
    assert written(PAGE) == PAGE, "python docs/site/facts.py writes it again"


def test_the_example():
    space = {}
    exec(EXAMPLE, space)
    provider = provider_named("acme")
    assert provider_for_host("api.acme.example") is provider
    assert provider_for_host("eu.acme.example:443") is provider
    assert is_provider("acme")
    assert provider.key_env == "ACME_API_KEY"
    call = provider.describe("/v1/chat/completions", {"model": "acme-large", "messages": [], "max_tokens": 400})
    assert provider.held(call, 100, 50)["tokens"] == 500
    assert provider.charged(call, Usage(90, 30))["tokens"] == 120
    headers = {"x-acme-limit": "1000", "x-acme-left": "998"}
    assert provider.readings(headers, 0.0) == [Reading("requests", 1_000, 998, period_s=3_600)]
    assert provider.readings({"x-acme-limit": "x"}, 0.0) == []
    body = json.dumps({"error": {"message": "You are out of credits."}}).encode()
    assert provider.refusal(429, {}, body).kind is RefusalKind.MONEY
    assert provider.refusal(429, {}, b"{}").kind is RefusalKind.RATE
    schedulers = {space["limiter"].pacer.pools.scheduler(f"acme/acme-{size}") for size in ("small", "large")}
    assert [scheduler.pool.name for scheduler in schedulers] == ["acme/acme"]


def test_a_page_of_ones_own_beats_ours():
    class Mine(Generic):
        hosts = ("api.groq.com",)

    mine = register(Mine("groq"))
    assert provider_named("groq") is provider_for_host("api.groq.com") is mine


@pytest.mark.parametrize(
    ("name", "hosts", "message"),
    [
        ("Acme Cloud", (), "invalid provider name 'Acme Cloud': use lower-case"),
        ("acme/eu", (), "provider name 'acme/eu'"),
        ("acme", "api.acme.example", "hosts 'api.acme.example' of provider acme: give a tuple"),
        ("acme", ("API.acme.example",), "lower-case host names"),
    ],
)
def test_what_cannot_be_registered(name, hosts, message):
    provider = Generic("acme")
    provider.name, provider.hosts = name, hosts
    with pytest.raises(SettingsError, match=re.escape(message)):
        register(provider)


def test_a_page_without_its_methods():
    class Half:
        name, hosts = "half", ()

        def describe(self, path, body):
            return None

    with pytest.raises(SettingsError, match=r"half has no pool, held, .*usage\(\): derive it from"):
        register(Half())


class FromPackage(Generic):
    hosts = ("api.packaged.example",)

    def __init__(self):
        super().__init__("packaged")


@pytest.mark.parametrize("ask", [lambda: provider_named("packaged"), lambda: provider_for_host("api.packaged.example")])
def test_entry_points_are_looked_up_once_and_late(monkeypatch, ask):
    asked = offer(monkeypatch, packaged="test_docs:FromPackage")
    assert provider_named("openai").name == "openai"
    assert is_provider("claude")
    assert asked == []
    assert type(ask()).__name__ == "FromPackage"
    provider_for_host("nobody.example")
    provider_named("nobody")
    assert asked == ["paceline.providers"]
    assert is_provider("packaged")


def test_an_entry_point_that_fails_is_left_out(monkeypatch):
    offer(monkeypatch, broken="no_such_module_here:Page", packaged="test_docs:FromPackage")
    with pytest.warns(PacelineWarning, match=r"'no_such_module_here:Page' of 'paceline.providers' is left out"):
        assert provider_for_host("api.packaged.example").name == "packaged"


def test_an_entry_point_takes_nobodys_name(monkeypatch):
    mine = register(FromPackage())
    offer(monkeypatch, packaged="test_docs:FromPackage")
    provider_for_host("nobody.example")
    assert provider_named("packaged") is mine
