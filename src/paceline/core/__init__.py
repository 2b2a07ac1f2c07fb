"""The engine: arithmetic and state. Time is an argument; no clock, no IO, no lock.

The order in which to read the modules:

- values: quota, results (hints has parts of error messages);
- the quotas of a pool: meters, entry, pause, ledger;
- the pool: queue, capacity, silence, stop, allowance, progress, waits, record, pool, whose docstring has the order of
  calls;
- what answers teach: changes, then the folder learning, which has its ideas and its own order; local, which brings it
  to a pool; plan, the pool of an account;
- the limits that are stated nowhere: the folder unstated, which has its own order.

``now_ns`` is the present, which never goes back from one call of a pool to the next. ``..._ns`` is an instant or a
duration; where the name does not show which, the docstring says so. ``..._unit_ns`` is the refill time of one unit.
Amounts have no suffix. Inside of a bucket, lacks and refunds are nanoseconds of refill; its methods ``lack`` and
``level`` return amounts.
"""
