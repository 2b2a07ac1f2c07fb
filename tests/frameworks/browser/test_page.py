"""The live page in a real browser: what it shows, accessibility, an odd name, many pools, a server that goes away."""

import shutil
import threading
import time
from contextlib import closing

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

import paceline
from paceline.cli.standing import Reader
from paceline.core.queue import LaneSpec, Waiter
from paceline.core.quota import NS, parse_quotas
from paceline.core.results import NO_ANSWER
from paceline.shared.messages import Known, Message
from paceline.stores import open_store
from paceline.telemetry.server import StatusServer

ODD = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert path, "these tests need Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def show(browser):
    """Open the page of a limiter."""
    opened = []

    def show(limiter, *, width=1280, scheme="light", key=None):
        server = limiter.serve_status(port=0, key=key)
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        page.problems = []
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("console", lambda message: page.problems.append(message.text) if message.type == "error" else None)
        page.goto(server.url)
        opened.append((server, context))
        return page, server

    yield show
    for server, context in opened:
        context.close()
        server.close()


def until(page, expression):
    """Wait until an expression is true; Playwright's own way evaluates it in the page, which its policy forbids."""
    end = time.monotonic() + 40
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(50)


def wait(limiter, pool, number, lane="default"):
    """Let requests wait in a pool, without threads."""
    scheduler = limiter.pacer.pools.scheduler(pool)
    for _ in range(number):
        scheduler.pool.submit(scheduler.now_ns(), Waiter({"requests": 1}, LaneSpec(lane)))


def limited():
    limiter = paceline.Limiter(
        {"openai/gpt-5": "5 requests/min, 10k tokens/min", "openai/gpt-5-mini": "500 requests/min"}
    )
    for left in (4, 3, 2):
        headers = {"x-ratelimit-limit-requests": "5", "x-ratelimit-remaining-requests": f"{left}"}
        limiter.acquire("openai/gpt-5", input_tokens=100).wait().settle(input_tokens=90, headers=headers)
    limiter.acquire("openai/gpt-5", input_tokens=100).wait().refused(paceline.Refusal(paceline.RefusalKind.CAPACITY))
    limiter.acquire("openai/gpt-5-mini").wait().settle()
    for lane in range(9):
        wait(limiter, "openai/gpt-5", lane + 1, f"lane {lane}")
    return limiter


def test_one_glance(show):
    page, _ = show(limited())
    page.wait_for_selector("article.limited")
    headline = page.inner_text("#headline")
    assert headline.startswith("openai/gpt-5 is at its limit of 5 requests/min: 45 wait, the last one goes in about ")
    assert page.title() == "at its limit: openai/gpt-5 - paceline"
    first = page.locator("article").first
    assert first.locator("h3").inner_text() == "openai/gpt-5"
    assert first.locator(".quota.binds .name").inner_text() == "5 requests/min"
    assert first.locator(".lanes tr").count() == 1 + 6 + 1
    assert "3 others" in first.locator(".lanes").inner_text()
    assert first.locator(".sources").inner_text().startswith("Limits from your configuration, seen in OpenAI's headers")
    until(page, "document.querySelector('.quota.binds .used').textContent.endsWith(' of 5 a minute')")
    assert first.locator("figcaption").first.inner_text().startswith("Speed")
    answers = page.locator("#answers > div").all_inner_texts()
    assert [one.splitlines()[0] for one in answers] == [
        "Speed, of what is allowed", "Refused by providers", "Waiting", "Tokens saved by the order of caches",
    ]  # fmt: skip
    assert answers[1].splitlines()[1] == "1"
    assert answers[2].splitlines()[1] == "45"
    assert answers[2].endswith(", openai/gpt-5")
    assert "Refused by OpenAI: 1 \N{MULTIPLICATION SIGN} servers full (503, 529)" in first.inner_text()
    assert page.problems == []


def test_what_caches_and_their_order_save(show):
    limiter = limited()
    status = limiter.status
    cache = {"input_tokens": 1000, "read_tokens": 620, "saved_tokens": 120_000, "overtook": 3}

    def with_cache(queue=50):
        found = status(queue)
        found["pools"]["openai/gpt-5"]["cache"] = cache
        return found

    limiter.status = with_cache
    page, _ = show(limiter)
    page.wait_for_selector("article .cache:not([hidden])")
    last = page.locator("#answers > div").last.inner_text().splitlines()
    assert last[1:] == ["120k", "62 % of the input came from prompt caches"]
    said = "Prompt cache: 62 % of the input came from it. The order by it saved 120k tokens: 3 requests went first."
    assert page.inner_text("article .cache:not([hidden])") == said


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")])
def test_it_is_accessible_and_fits(show, width, scheme):
    page, _ = show(limited(), width=width, scheme=scheme)
    page.wait_for_selector("article.limited")
    until(page, "document.querySelector('svg.queue .line').getAttribute('d')")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")


def test_it_follows_what_happens(show):
    limiter = limited()
    page, _ = show(limiter)
    page.wait_for_selector("article.limited")
    limiter.pacer.pools.scheduler("openai/gpt-5-mini").pause(limiter.pacer.clock.now_ns() + 60 * 10**9)
    until(page, "document.getElementById('headline').textContent.includes(' after a refusal or failures')")
    until(page, "document.querySelector('article .badge').textContent == 'paused'")


def test_a_silent_pool_is_not_paused_by_the_provider(show):
    limiter = limited()
    page, _ = show(limiter)
    page.wait_for_selector("article.limited")
    scheduler = limiter.pacer.pools.scheduler("openai/gpt-5-mini")
    scheduler.pause(scheduler.now_ns() + 60 * 10**9, NO_ANSWER)
    wait(limiter, "openai/gpt-5-mini", 1, "lane")
    until(page, "document.querySelector('article .badge').textContent == 'no answers'")


def test_text_is_never_html(show):
    limiter = paceline.Limiter({ODD: "5 requests/min"})
    wait(limiter, ODD, 9, ODD)
    page, _ = show(limiter)
    page.wait_for_selector("article")
    assert page.locator("h3").inner_text() == ODD
    assert page.locator("img").count() == 0


def test_the_keyboard_and_the_theme(show):
    page, _ = show(limited())
    page.wait_for_selector("article")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "filter"
    page.keyboard.type("mini")
    until(page, "document.querySelectorAll('article').length === 1")
    page.keyboard.press("Tab")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("Enter")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_many_pools_and_waiters_stay_smooth(show):
    limiter = paceline.Limiter({"*": "5 requests/min"})
    for number in range(200):
        wait(limiter, f"openai/model-{number}", 26)
    page, _ = show(limiter)
    until(page, "document.querySelectorAll('article').length === 60")
    page.get_by_role("button", name="Show all 200 pools").click()
    until(page, "document.querySelectorAll('article').length === 200")
    page.evaluate(
        """() => {
            window.changed = 0;
            const count = (list) => { window.changed += list.filter((one) => one.type === 'childList').length; };
            new MutationObserver(count).observe(document.getElementById('pools'), { childList: true });
        }"""
    )
    page.wait_for_timeout(3000)
    assert page.evaluate("window.changed") == 0  # no card is built again or moved
    assert page.inner_text("#summary").startswith("200 pools, 200 at a limit or halted")


def test_a_server_that_goes_away_and_comes_back(show):
    limiter = limited()
    page, server = show(limiter)
    page.wait_for_selector("article")
    port = int(server.url.rstrip("/").rpartition(":")[2])
    server.close()
    said = "No answer from the server: what is shown is from "
    until(page, f"document.getElementById('connection').textContent.startsWith('{said}')")
    assert page.title() == "no answer - paceline"
    again = limiter.serve_status(port=port)
    try:
        until(page, "document.getElementById('connection').textContent === ''")
    finally:
        again.close()


def test_the_page_of_a_fleet(browser, tmp_path):
    file = tmp_path / "q.db"
    quotas = parse_quotas("5 requests/min")
    with closing(open_store(f"sqlite:{file}")) as store:
        for who, fields in {
            "host:1:a": {"wants": [[5.0]]},
            f"{ODD}:2:b": {"wants": [[1.0]], "place_ns": 100 * NS},
        }.items():
            store.exchange("openai/gpt-5", Message(who, 1, Known(quotas, [-1], headroom_s=0.0), **fields))
    with closing(Reader(f"sqlite:{file}", 5.0)) as reader:
        server = StatusServer(reader, "127.0.0.1", 0, None)
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        try:
            page = context.new_page()
            page.goto(server.url)
            page.wait_for_selector("article.limited")
            assert page.inner_text("#headline") == "openai/gpt-5 is at its limit of 5 requests/min: 1 process waits"
            names = page.locator(".processes tbody tr td:first-child").all_inner_texts()
            assert names == [f"{ODD}:2", "host:1"]
            answers = [one.splitlines()[:2] for one in page.locator("#answers > div").all_inner_texts()]
            assert answers[1:] == [
                ["Refused by providers", "0"],
                ["Processes that wait", "1"],
                ["Processes alive", "2"],
            ]
            assert Axe().run(page).violations_count == 0
            kept = file.read_bytes()
            file.write_bytes(b"another file")
            until(page, "document.getElementById('connection').textContent.startsWith('sqlite:')")
            file.write_bytes(kept)
            until(page, "document.getElementById('connection').textContent === ''")
        finally:
            context.close()
            server.close()


def test_it_asks_for_the_key(show):
    page, _ = show(limited(), key="secret")
    page.wait_for_selector("#login:not([hidden])")
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    until(page, "document.getElementById('login-error').textContent.includes('wrong')")
    page.fill("#key", "secret")
    page.keyboard.press("Enter")
    page.wait_for_selector("article.limited")
    assert not page.locator("#login").is_visible()


def test_granting_goes_on_while_it_is_watched(show):
    limiter = paceline.Limiter({"jobs": "6000 requests/min"})
    page, _ = show(limiter)
    stop = time.monotonic() + 3

    def work():
        while time.monotonic() < stop:
            limiter.acquire("jobs").wait().settle()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    page.wait_for_selector("article")
    for thread in threads:
        thread.join()
    assert limiter.status()["pools"]["jobs"]["counts"]["granted"] > 100
    assert page.problems == []
