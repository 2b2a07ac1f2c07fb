"""Quotas that processes share: leases, the outbox, the snapshot of the store, and the ledger that stores keep."""
