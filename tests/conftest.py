"""Property tests play the same examples every time; `--hypothesis-profile=soak` looks for new ones, for longer."""

from hypothesis import HealthCheck, settings

settings.register_profile("paceline", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", settings.get_profile("paceline"), derandomize=False, max_examples=5_000)
settings.load_profile("paceline")
