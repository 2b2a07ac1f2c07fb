"""The engine: arithmetic and state. Time is an argument; no clock, no IO, no lock.

The order in which to read the modules: quota, results, meters, ledger, capacity, queue, pool, learning, guesses, hints.

``..._ns``: an instant if the name says when (``now_``, ``at_``, ``until_``, ``wake_``, ``sent_``), else a duration. Amounts
have no suffix.
"""
