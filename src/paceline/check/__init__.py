"""`paceline check`: the limits that a provider states for a key, compared with the configured ones."""
