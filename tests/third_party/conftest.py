"""What lies here is not ours: tests/cli/test_third_party.py installs it and runs its tests."""

collect_ignore_glob = ["*/*"]
