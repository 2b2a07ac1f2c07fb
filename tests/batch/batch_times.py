"""Runs in batches that take no time: keys for each Batch API, the emulator's times, and those of the run."""

NAMES = ("OPENAI", "ANTHROPIC", "AZURE_OPENAI", "MISTRAL", "TOGETHER", "GEMINI")
KEYS = {f"{name}_API_KEY": f"sk-{name.lower()}-0123456789abcdef" for name in NAMES}
QUICK = {"turnaround_s": 0.01, "validating_s": 0.0, "finalizing_s": 0.0, "cancel_s": 0.1}
WAITS = {"poll_first_s": 0.002, "poll_most_s": 0.03, "settle_s": 0.0, "retry_s": 0.005}
SOON = WAITS | {"full_first_s": 0.05, "full_most_s": 0.2}
