"""The tokens of a request: estimated from its characters, corrected by the usage that answers report."""
