"""The engine: arithmetic and state. Time is an argument; no clock, no IO, no lock.

The order in which to read the modules: quota, results, meters, ledger, queue, capacity, pool, guesses, learning, hints.
``capacity`` names ``Learning``, which corrects the meters from answers.

``..._ns`` is an instant or a duration; where the name does not show which, the docstring says so. ``..._unit_ns`` is the
refill time of one unit. Amounts have no suffix. Inside of a bucket, lacks and refunds are nanoseconds of refill.
"""
