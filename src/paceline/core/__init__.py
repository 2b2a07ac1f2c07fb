"""The engine: arithmetic and state. Time is an argument; no clock, no IO, no lock."""
