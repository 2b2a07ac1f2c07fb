"""What the body or the stream of a response says, in the forms of all APIs."""
