"""Reporting: what a run did, for people and for programs."""
