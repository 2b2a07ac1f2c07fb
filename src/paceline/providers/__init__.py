"""The providers, one page each: what they charge, what they report, how they say no, and what they publish."""

from paceline.providers.registry import register

__all__ = ["register"]
