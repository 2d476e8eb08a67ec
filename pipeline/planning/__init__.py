"""Planning: what will happen, what it takes, and everything that is wrong with it."""
