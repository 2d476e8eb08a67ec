"""Published weights and vocabularies; skipped without them."""
