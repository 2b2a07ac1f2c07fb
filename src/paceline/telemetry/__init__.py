"""What is shown of a running limiter."""
