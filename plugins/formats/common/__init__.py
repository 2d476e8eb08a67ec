"""What containers and dialects share."""
