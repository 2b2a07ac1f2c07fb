"""The limits that are stated nowhere, found from outcomes alone: the rate of a unit, and the most attempts in flight.

Where a limit is stated, by the user or by answers, :mod:`paceline.core.learning` corrects it, and nothing here limits.

:class:`~paceline.core.unstated.unstated.Unstated` is the door. The order in which to read the modules: delays, cycle,
chance, rate, in_flight, in_time (each without a word of pools), measured (their meters), unstated.
"""
