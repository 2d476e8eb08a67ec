"""The cases of `flow=bench_ops`, and who runs them: backends of ours, and peers."""
