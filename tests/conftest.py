"""Property tests play the same examples every time; `--hypothesis-profile=soak` looks for new ones, for longer."""

import signal

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
