"""What each test costs: the ten slowest are printed, and one that takes too much CPU time without a reason fails the run."""

import contextlib
import os
import time

import pytest
from _pytest.runner import runtestprotocol

with contextlib.suppress(ImportError):  # not there on Windows
    import resource

QUIET_LOOP_S = 0.006
"""CPU seconds that `_loop_s` takes on the machine for which the limit is meant."""

LOOK = 100
"""After so many tests, the speed of the host is looked at again."""

BUSY = 2.0
"""From so many processes for each core on, CPU time says little: what they share besides the cores is fought over."""

EXEMPT = ("long", "soak")


def _cpu_s():
    """CPU seconds of this process, and of the processes that it has started and awaited."""
    if os.name != "posix":
        return time.process_time()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _loop_s():
    started, total = time.process_time(), 0
    for number in range(100_000):
        total += number * number
    return time.process_time() - started


def _measured(item, nextitem):
    cpu_s, wall_s = _cpu_s(), time.monotonic()
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    return reports, _cpu_s() - cpu_s, time.monotonic() - wall_s


class Costs:
    """Measures where tests run, and reports where results are gathered: with xdist, these are different processes."""

    def __init__(self, limit_s):
        self.limit_s = limit_s
        self.spent = {}
        self.loop_s = QUIET_LOOP_S  # the slowest so far: some hosts are twice as slow from one second to the next

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        """Run the test; if it takes too much, once more: what it loads, or the host's worst second, is not its own cost."""
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports, cpu_s, wall_s = _measured(item, nextitem)
        dear = cpu_s > self.limit_s > 0 and not any(map(item.get_closest_marker, EXEMPT))
        if dear or (self.limit_s and len(self.spent) % LOOK == 0):
            self.loop_s = max(self.loop_s, *(_loop_s() for _ in range(5 if dear else 2)))
        if dear and all(report.passed for report in reports):
            item._initrequest()
            cpu_s = min(cpu_s, _measured(item, nextitem)[1]) * QUIET_LOOP_S / self.loop_s
        spent = {"cpu_s": cpu_s, "wall_s": wall_s, "dear": dear and cpu_s > self.limit_s}
        for report in reports:
            report.user_properties += spent.items()
            if report.when == "call" or not report.passed:  # a fixture that did its work is not worth a message
                item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_runtest_logreport(self, report):
        if report.user_properties:
            self.spent[report.nodeid] = dict(report.user_properties)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session):
        self.busy = os.name != "posix" or os.getloadavg()[0] > BUSY * os.cpu_count()
        self.dear = [name for name, spent in self.spent.items() if spent.get("dear")]
        if self.dear and not self.busy and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if not self.limit_s:
            return
        terminalreporter.section("the slowest ten")
        slowest = sorted(self.spent, key=lambda name: -self.spent[name]["wall_s"])[:10]
        for name in slowest:
            terminalreporter.line("{wall_s:6.2f} s, CPU {cpu_s:5.2f} s  {name}".format(name=name, **self.spent[name]))
        verdict = "on a machine as busy as this one that is no failure" if self.busy else "FAILED"
        for name in self.dear:
            terminalreporter.line(
                f"{verdict}: {name}: it takes {self.spent[name]['cpu_s']:.1f} s of CPU time, and at most {self.limit_s:g} s are allowed. "
                'Shorten it, or mark it: @pytest.mark.long("why")',
                red=not self.busy,
            )
