"""The status page over ASGI and real HTTP: its routes, its key, its history, its metrics."""

import asyncio
import errno
import json
import logging
import time
import weakref
from contextlib import closing
from io import StringIO
from types import SimpleNamespace

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.routing import Mount

import paceline
from paceline.core.results import SettingsError
from paceline.telemetry import history, prometheus
from paceline.telemetry.history import Recorder
from paceline.testing import ManualClock, run_virtual
from virtual_time import virtual
from waits import gone, until


def ask(app, path, *, accept=b"*/*", method="GET", query=b"", headers=(), root=""):
    """The status, the headers and the body of an answer."""
    sent = []

    async def send(event):
        sent.append(event)

    scope = {"type": "http", "method": method, "path": path, "root_path": root, "query_string": query}
    asyncio.run(app(scope | {"headers": [(b"accept", accept), *headers]}, None, send))
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


@pytest.fixture
def limiter():
    return paceline.Limiter({"openai/gpt-5": "500 requests/min"}, clock=ManualClock())


@pytest.fixture
def used():
    """A limiter with two pools that were used."""
    quotas = {"jobs": "60 requests/min burst 2", "openai/gpt-5": ["500 requests/min", "400k tokens/min"]}
    limiter = paceline.Limiter(quotas, clock=ManualClock())
    limiter.try_acquire("jobs")
    limiter.try_acquire("openai/gpt-5", input_tokens=1_000).settle()
    return limiter


API = "/api/v1/rate-limits/status"
ALL = ("/", "", "/status", "/status/", API, f"{API}/")
ONE = {"/status/openai/gpt-5": "openai/gpt-5", "/status/jobs": "jobs", f"{API}/jobs/": "jobs"}
"""The paths of the status, and of one pool."""


class TestRoutes:
    @pytest.mark.parametrize("path", [*ALL, *ONE])
    def test_it_shows_all_that_the_limiter_says(self, used, path):
        code, headers, body = ask(paceline.status_app(used), path)
        assert (code, headers[b"content-type"], headers[b"cache-control"]) == (200, b"application/json", b"no-store")
        status = used.status()
        assert json.loads(body) == (status["pools"][ONE[path]] if path in ONE else status)

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
    def test_it_is_only_read(self, limiter, method):
        code, headers, _ = ask(paceline.status_app(limiter), "/status/jobs", method=method)
        assert (code, headers[b"allow"]) == (405, b"GET, HEAD")

    def test_head_has_the_same_headers_and_no_body(self, used):
        app = paceline.status_app(used)
        code, headers, _ = ask(app, "/")
        assert ask(app, "/", method="HEAD") == (code, headers, b"")

    @pytest.mark.parametrize("path", [API, f"{API}/", "/paceline/"])
    def test_mounted_below_another_app(self, used, path):
        page = paceline.status_app(used)
        app = Starlette(routes=[Mount("/api/v1/rate-limits", page), Mount("/paceline", page)])
        assert json.loads(ask(app, path)[2]) == used.status()
        assert json.loads(ask(app, "/paceline/status/jobs")[2]) == used.status()["pools"]["jobs"]
        assert ask(app, "/paceline/status/nobody")[0] == 404
        by_server = ask(paceline.status_app(used), "/status/jobs", root="/paceline")  # which strips the prefix itself
        assert by_server[0] == 200

    async def test_lifespan_and_websockets_get_an_answer(self, limiter):
        app, sent = paceline.status_app(limiter), []
        events = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

        async def receive():
            return next(events)

        async def send(message):
            sent.append(message["type"])

        await app({"type": "lifespan"}, receive, send)
        await app({"type": "websocket", "path": "/"}, receive, send)
        assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]

    def test_the_address_of_a_store_is_not_shown(self, tmp_path):
        limiter = paceline.Limiter({"openai/gpt-5": "500 requests/min"}, store=f"sqlite:{tmp_path}/quotas.db")
        limiter.acquire("openai/gpt-5").wait().settle()
        assert str(tmp_path).encode() not in ask(paceline.status_app(limiter), "/")[2]
        limiter.close()

    def test_when_headers_last_stated_a_quota(self):
        limiter = paceline.Limiter({"openai/gpt-5": "500 requests/min, 10k tokens/min"}, clock=(clock := ManualClock()))
        headers = {"x-ratelimit-limit-requests": "500", "x-ratelimit-remaining-requests": "499"}
        limiter.acquire("openai/gpt-5", tokens=1).wait().settle(headers=headers)
        clock.advance(12)
        quotas = json.loads(ask(paceline.status_app(limiter), "/status/openai/gpt-5")[2])["quotas"]
        assert [quota["stated_ago_s"] for quota in quotas] == [12.0, None]

    def test_the_page_is_for_browsers(self, limiter):
        app = paceline.status_app(limiter)
        code, headers, body = ask(app, "/", accept=b"text/html,application/xhtml+xml")
        assert (code, headers[b"content-type"]) == (200, b"text/html; charset=utf-8")
        assert b"default-src 'none'" in headers[b"content-security-policy"]
        assert b'<base href="/">' in body
        assert json.loads(ask(app, "/")[2]) == limiter.status()

    def test_where_it_is_mounted(self, limiter):
        app = paceline.status_app(limiter)
        body = ask(app, "/main/limits", accept=b"text/html", root="/main/limits")[2]
        assert b'<base href="/main/limits/">' in body
        body = ask(app, "/a", accept=b"text/html", root='/a"><script>')[2]
        assert b"<script>" not in body

    @pytest.mark.parametrize(
        ("path", "kind"),
        [
            ("/assets/page.js", b"text/javascript"),
            ("/assets/page.css", b"text/css"),
            ("/favicon.ico", b"image/svg+xml"),
        ],
    )
    def test_its_files(self, limiter, path, kind):
        code, headers, body = ask(paceline.status_app(limiter), path)
        assert (code, headers[b"content-type"].split(b";")[0]) == (200, kind)
        assert body

    @pytest.mark.parametrize("path", [
        "/assets/../status_app.py", "/assets/index.html", "/assets/", "/x", "/statusx", "/statuses", "/status/nobody",
        "/status/jobs/more", "/status/" + "x" * 5_000, "/" + "x" * 5_000,
    ])  # fmt: skip
    def test_nothing_else(self, used, path):
        code, _, body = ask(paceline.status_app(used), path)
        assert (code, "error" in json.loads(body), len(body) < 300) == (404, True, True)

    def test_the_page_loads_nothing_from_elsewhere(self):
        text = ask(paceline.status_app(SimpleNamespace(status=dict)), "/", accept=b"text/html")[2].decode()
        script = ask(paceline.status_app(SimpleNamespace(status=dict)), "/assets/page.js")[2].decode()
        assert "://" not in text
        assert "innerHTML" not in script
        assert "://" not in script


def test_everything_but_the_page_needs_its_key(limiter):
    app = paceline.status_app(limiter, key="secret")
    right, wrong = [(b"authorization", b"Bearer secret")], [(b"authorization", b"Bearer secre")]
    for path in ("/", "/status", "/history", "/metrics", "/api/v1/openapi.json", "/x"):
        code, headers, _ = ask(app, path)
        assert (code, headers[b"www-authenticate"]) == (401, b"Bearer")
        assert ask(app, path, headers=wrong)[0] == 401
    assert ask(app, "/status", headers=right)[0] == 200
    assert ask(app, "/", accept=b"text/html")[0] == 200
    assert ask(app, "/assets/page.js")[0] == 200


class TestHistory:
    @virtual
    async def test_of_a_limiter(self, clock):
        limiter = paceline.Limiter({"jobs": "60 requests/min burst 10"}, clock=clock)
        recorder = Recorder(limiter, lambda: clock.now_ns() / 1e9)
        limiter.pacer.pools.scheduler("jobs")
        recorder.sample()
        for _ in range(5):
            (await limiter.acquire("jobs")).settle()
        await asyncio.sleep(1)
        recorder.sample()
        pool = recorder.document()["pools"]["jobs"]
        assert pool["granted"] == [0, 5]
        assert pool["waiting"] == pool["refused"] == [0, 0]
        assert pool["quotas"]["60 requests/min burst 10"][0] == pytest.approx(10 / 60, abs=0.001)
        later = recorder.document(since_s=pool["t"][0])["pools"]["jobs"]
        assert later["granted"] == [5]
        assert recorder.document(since_s=pool["t"][1])["pools"] == {}

    @staticmethod
    def recorders(limiter, clock):
        """One of a limiter, and one of a status alone."""
        return [
            Recorder(one, lambda: clock.now_ns() / 1e9) for one in (limiter, SimpleNamespace(status=limiter.status))
        ]

    def test_the_speed_is_what_was_granted_in_the_last_minute(self):
        quotas = "60 requests/min exact, 600 tokens/min exact, 1k tokens/day, 3 concurrency"
        limiter = paceline.Limiter({"jobs": quotas}, clock=(clock := ManualClock()))
        recorders = self.recorders(limiter, clock)
        limiter.pacer.pools.scheduler("jobs")
        for second in range(100):
            if second < 50:
                permit = limiter.try_acquire("jobs", tokens=4)
                assert permit is not None
                permit.settle()
            for recorder in recorders:
                recorder.sample()
            clock.advance(1.01)
        speed = recorder.document()["pools"]["jobs"]["speed"]
        requests, tokens = speed.values()
        assert list(speed) == ["60 requests/min exact", "600 tokens/min exact"]  # of a day and of slots there is none
        assert requests[:5] == [None] * 5
        assert requests[30] == pytest.approx(60 / 60.6, abs=0.001)
        assert tokens[30] == pytest.approx(24 / 60.6, abs=0.001)
        assert requests[80] == pytest.approx(28 / 60.6, abs=0.02)
        assert recorders[0].document() == recorder.document()

    @pytest.mark.parametrize(("quota", "refused"), [("600 requests/min", 3), ("600 requests/min exact", 0)])
    def test_refused_attempts_are_no_speed(self, quota, refused):
        """An exact quota does not keep their charge, because the refusal says how long to wait."""
        limiter = paceline.Limiter({"jobs": quota}, clock=(clock := ManualClock()))
        recorders = self.recorders(limiter, clock)
        limiter.pacer.pools.scheduler("jobs")
        for second in range(10):
            for recorder in recorders:
                recorder.sample()
            if second < 6:
                permit = limiter.try_acquire("jobs")
                if second % 2:
                    permit.refused(retry_after_s=0.5)
                else:
                    permit.settle()
            clock.advance(1)
        (status,) = limiter.status()["pools"]["jobs"]["quotas"]
        assert (status["spent"], status["refused"]) == (3 + refused, refused)
        (speed,) = recorder.document()["pools"]["jobs"]["speed"].values()
        assert speed[-1] == pytest.approx(3 / 9 / 10, abs=1e-4)
        assert recorders[0].document() == recorder.document()

    def test_another_limit_is_another_speed(self):
        pool = {"quotas": [{"quota": "q", "unit": "requests", "remaining": 1, "rule": "bucket", "period_s": 60.0}]}
        now_s = iter(range(1, 100))
        recorder = Recorder(SimpleNamespace(status=lambda: {"pools": {"jobs": pool}}), lambda: next(now_s))
        for spent, limit in ((0, 60), (0, 60), (0, 60), (0, 60), (0, 60), (5, 60), (6, 120), (2, 0)):
            pool["quotas"][0] |= {"spent": spent, "limit": limit}
            recorder.sample()
        assert recorder.document()["pools"]["jobs"]["speed"]["q"] == [*[None] * 5, 1.0, 0.5, None]

    def test_it_is_bounded(self, monkeypatch):
        monkeypatch.setattr(history, "POOLS_MAX", 3)
        limiter = paceline.Limiter({"*": "5 requests/min"}, clock=ManualClock())
        for number in range(5):
            limiter.pacer.pools.scheduler(f"job_{number}")
        recorder = Recorder(limiter, lambda: 1.0)
        for _ in range(700):
            recorder.sample()
        pools = recorder.document(since_s=0)["pools"]
        assert (len(pools), {len(pool["t"]) for pool in pools.values()}) == (3, {600})
        samples = [sample for kept in recorder._pools.values() for sample in kept]
        assert len({id(sample.state) for sample in samples}) == 3  # of a pool in which nothing happens

    def test_it_begins_when_it_is_looked_at(self, limiter):
        app = paceline.status_app(limiter)
        limiter.pacer.pools.scheduler("openai/gpt-5")
        ask(app, "/status")
        document = json.loads(ask(app, "/history", query=b"since=nonsense")[2])
        assert len(document["pools"]["openai/gpt-5"]["t"]) == 1

    def test_it_goes_on_when_a_server_configures_logging(self, limiter, monkeypatch):
        monkeypatch.setattr(history, "STEP_S", 0.001)
        recorder = Recorder(limiter)
        limiter.pacer.pools.scheduler("openai/gpt-5")
        logging.shutdown([weakref.ref(recorder)])  # as logging.config does
        recorder.start()
        until(lambda: len(recorder.document()["pools"]["openai/gpt-5"]["t"]) >= 3)
        recorder.stop()

    def test_events_are_what_is_logged(self, limiter):
        app = paceline.status_app(limiter)
        before = time.time()
        ask(app, "/history")
        logging.getLogger("paceline.http").warning("a %s", "warning" * 1_000)
        events = json.loads(ask(app, "/history", query=f"since={before - 1}".encode())[2])["events"]
        assert [(event["level"], event["text"][:9], len(event["text"])) for event in events] == [
            ("warning", "a warning", 500)
        ]

    def test_what_is_logged_is_printed_as_without_a_page(self, limiter, monkeypatch, capsys):
        log = logging.getLogger("paceline")
        monkeypatch.setattr(log, "propagate", False)  # the test runner has handlers
        for _ in range(2):
            ask(paceline.status_app(limiter), "/history")
        logging.getLogger("paceline.http").warning("a warning")
        assert capsys.readouterr().err == "a warning\n"
        own = logging.StreamHandler(io := StringIO())
        log.addHandler(own)
        logging.getLogger("paceline.http").warning("another one")
        log.removeHandler(own)
        assert (capsys.readouterr().err, io.getvalue()) == ("", "another one\n")


def samples(text):
    """By the names of the metrics, and then by their labels, what is exported."""
    found = {}
    for family in text_string_to_metric_families(text):
        found[family.name], found[f"type of {family.name}"] = {}, family.type
        for one in family.samples:
            labels = " ".join(f"{name}={value}" for name, value in sorted(one.labels.items()))
            found.setdefault(one.name, {})[labels] = one.value
    return found


class TestMetrics:
    def exported(self, limiter, app=None):
        code, headers, body = ask(app or paceline.status_app(limiter), "/metrics")
        assert (code, headers[b"content-type"].split(b";")[0]) == (200, b"text/plain")
        return samples(body.decode())

    def test_the_numbers_of_the_status(self, limiter):
        permit = limiter.acquire("openai/gpt-5", input_tokens=10).wait()
        permit.refused(paceline.Refusal(paceline.RefusalKind.RATE, retry_after_s=3.0))
        found, pool = self.exported(limiter), "pool=openai/gpt-5"
        kinds = ("rate", "growth", "capacity", "money", "never_fits")  # each is there before it happens
        assert found["paceline_refusals_total"] == {f"kind={kind} {pool}": kind == "rate" for kind in kinds}
        events = ("granted", "settled", "cancelled")
        assert found["paceline_permits_total"] == {f"event={event} {pool}": event == "granted" for event in events}
        assert found["paceline_cool_down_seconds"] == {pool: 3.0}
        assert found["paceline_stopped"] == {pool: 0}
        assert found["paceline_rpm_limit"] == {pool: 500}
        assert found["paceline_rate_limit_429_count_total"] == {pool: 1}
        assert found["paceline_quota_limit"] == {f"{pool} quota=500 requests/min unit=requests": 500}

    def test_the_labels_are_bounded_and_the_rest_is_other(self, monkeypatch):
        monkeypatch.setattr(prometheus, "POOLS_MAX", 2)
        limiter = paceline.Limiter({f"openai/m{n}": "500 requests/min" for n in range(1, 5)}, clock=ManualClock())
        app = paceline.status_app(limiter)

        def granted():
            found = self.exported(limiter, app)["paceline_permits_total"].items()
            return {labels.partition("pool=")[2]: number for labels, number in found if "event=granted" in labels}

        for n in (3, 4):
            limiter.acquire(f"openai/m{n}").wait()
        assert granted() == {"openai/m1": 0, "openai/m2": 0, "other": 2}
        limiter.acquire("openai/m4").wait()
        assert granted() == {"openai/m1": 0, "openai/m2": 0, "other": 3}

    def test_a_stopped_pool_is_seen(self, limiter):
        limiter.acquire("openai/gpt-5").wait().refused(paceline.Refusal(paceline.RefusalKind.MONEY))
        assert self.exported(limiter)["paceline_stopped"] == {"pool=openai/gpt-5": 1}

    def test_waits_are_histograms_by_pool_and_by_lane(self):
        async def main(clock):
            limiter = paceline.Limiter(dict.fromkeys("ab", "60 requests/min burst 1"), clock=clock)
            for number in range(102):
                with paceline.lane(f"lane_{number}"):
                    limiter.try_acquire("b")
                    clock.advance(2)
            with paceline.lane("lane_7"):
                for _ in range(4):
                    async with limiter.acquire("a"):
                        pass
            return limiter

        found = self.exported(run_virtual(main))
        assert found["type of paceline_wait_seconds"] == found["type of paceline_lane_wait_seconds"] == "histogram"
        buckets, sums, counts = (found[f"paceline_wait_seconds_{kind}"] for kind in ("bucket", "sum", "count"))
        assert [buckets[f"le={le} pool=a"] for le in ("0.5", "1.0", "2.5", "+Inf")] == [1, 1, 4, 4]
        assert sums["pool=a"] == pytest.approx(3, abs=0.5)
        assert counts["pool=b"] == 102
        lanes = found["paceline_lane_wait_seconds_count"]
        assert (lanes["lane=lane_7"], lanes["lane=other"], len(lanes)) == (5, 2, 101)
        assert found["paceline_lane_wait_seconds_sum"]["lane=lane_7"] == pytest.approx(3, abs=0.5)

    def test_of_a_store_it_says_whether_it_answers(self, tmp_path):
        limits = {"jobs": "60 requests/min", "unused": "60 requests/min"}
        limiter = paceline.Limiter(limits, store=f"sqlite:{tmp_path}/q.db")
        limiter.acquire("jobs").wait().settle()
        found = self.exported(limiter)
        limiter.close()
        assert found["paceline_store_up"] == {"pool=jobs": 1}
        [versions] = found["paceline_build_info"]
        assert f"version={paceline.__version__}" in versions.split()

    def test_of_a_store_that_has_never_answered_a_pool_says_nothing(self, tmp_path):
        limiter = paceline.Limiter({"jobs": "60 requests/min"}, store=f"sqlite:{tmp_path}")  # a folder
        with pytest.raises(paceline.StoreError):
            limiter.acquire("jobs").wait()
        found = self.exported(limiter)
        limiter.close()
        assert found["paceline_store_up"] == {}

    @virtual
    async def test_lanes_are_bounded(self, clock):
        limiter, tasks = paceline.Limiter({"jobs": "60 requests/min"}, clock=clock), []
        for number in [*range(300), 299]:
            with paceline.lane(f"lane_{number}"):
                tasks.append(asyncio.ensure_future(limiter.acquire("jobs")))
        await asyncio.sleep(0)
        waiting = samples(prometheus.exposition(limiter.status()).decode())["paceline_lane_waiting"]
        await gone(tasks)
        assert len(waiting) == 101
        assert waiting["lane=lane_299 pool=jobs"] == 2
        assert sum(waiting.values()) == waiting["lane=other pool=jobs"] + 101


class TestServer:
    def test_a_program_can_serve_its_page(self, limiter):
        with closing(limiter.serve_status(port=0)) as server:
            assert httpx2.get(server.url + "status", trust_env=False).json() == limiter.status()
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(server.url, trust_env=False)

    def test_off_loopback_it_needs_a_key(self, limiter):
        with pytest.raises(SettingsError, match=r"0\.0\.0\.0 can be reached from other machines"):
            limiter.serve_status("0.0.0.0", 0)
        with closing(limiter.serve_status("0.0.0.0", 0, key="secret")) as server:
            url = server.url.replace("0.0.0.0", "127.0.0.1") + "status"
            assert httpx2.get(url, trust_env=False).status_code == 401
            assert httpx2.get(url, headers={"authorization": "Bearer secret"}, trust_env=False).status_code == 200

    def test_a_taken_port_is_an_error_at_once(self, limiter):
        with closing(limiter.serve_status(port=0)) as server:
            with pytest.raises(OSError) as raised:
                limiter.serve_status(port=int(server.url.rstrip("/").rpartition(":")[2]))
            assert raised.value.errno == errno.EADDRINUSE
