"""Pacing in one process: pools for threads and event loops, with locks, timers, permits, retries and events."""
