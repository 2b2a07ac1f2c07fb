"""Forecasts of how long work will take."""
