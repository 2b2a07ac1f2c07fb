"""Property tests play the same examples every time; `--hypothesis-profile=soak` looks for new ones, for longer."""

import asyncio
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import uvicorn.server
from hypothesis import HealthCheck, settings

settings.register_profile("paceline", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", settings.get_profile("paceline"), derandomize=False, max_examples=5_000)
# `make mutants`: a test runs several times in one process.
again = [HealthCheck.too_slow, HealthCheck.differing_executors]
settings.register_profile("mutants", settings.get_profile("paceline"), max_examples=25, suppress_health_check=again)
settings.load_profile("paceline")

collect_ignore = ["frameworks"]  # each in an environment of its own: `make frameworks`

# A shell's background job ignores Ctrl-C, and so would every process that these tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore = ["frameworks"]  # each in an environment of its own: `make frameworks`

# No test leaves the machine: a client reads one certificate, in 0.3 ms, and not those of the system, in 20 ms.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("authority.pem"))

# uvicorn looks every 0.1 s whether it is to stop, and then waits as long: here a twentieth, in each of 1,000 tests.
uvicorn.server.asyncio = SimpleNamespace(**vars(asyncio) | {"sleep": lambda delay: asyncio.sleep(delay / 20)})
