"""The providers: what they charge, report and refuse, and the limits that they publish."""

from paceline.providers.registry import register

__all__ = ["register"]
