"""`paceline run`: send a file of requests and write a file of answers."""
