"""`paceline run`: a file of requests in, a file of answers out."""
