"""The limiter, as users see it."""
