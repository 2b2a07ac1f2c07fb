"""Pacing in one process: who waits, who goes, and what happened; threads and event loops, locks and timers."""
