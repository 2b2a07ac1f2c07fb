"""What a request will cost: tokens from characters, corrected by what answers report."""
