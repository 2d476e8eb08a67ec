"""Verbs about runs that there are already: each a module with `main(words) -> exit code`, imported when it is typed."""
