"""gpt-oss: its names and its packed experts."""
