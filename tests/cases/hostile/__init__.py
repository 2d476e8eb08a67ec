"""Files that must be refused, one for each check, made from a few bytes by plain code."""
