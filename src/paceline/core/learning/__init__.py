"""Learning: readings (the headers of answers) and refusals correct the meters of a pool.

A reading is a noisy sample. The server takes it when it admits the attempt, it may or may not count the attempts
that were sent at about the same time, and it arrives with the answer, which can take long. So each attempt carries a
note of the level of each meter when it was sent, and its reading is compared with that note. If all attempts of about
the same time are counted, the server should have one level left, and if none of them is, another. Between the two the
meter is taken to be right. A reading beyond them means that others use the key, too, or that the charges are too high.

A provider's ``reset`` is the time until its bucket is full, so ``remaining + reset x rate`` is the size of the bucket.
It is less than the limit when the limit is divided into shorter periods. It is more when the reset follows a clock,
and the quota is not a bucket.

A refusal for rate or growth teaches the level; the burst, when the meter had much left; the rule, when the provider
asks to wait longer than a bucket would; the rate, when refusals repeat.

:class:`~paceline.core.learning.learning.Learning` is the door: a capacity tells it of answers, and a pool knows no more
of it than ``Learner`` in :mod:`paceline.core.capacity`. The order in which to read the modules: resets, tracker,
guesses, corrections, readings, refusals, learning.
"""
