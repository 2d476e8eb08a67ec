"""Runs beside each other: how far each metric changed, what is noise, and who is on Pareto's front."""
