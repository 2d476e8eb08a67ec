"""AWQ's checkpoints, as AutoAWQ saves them."""
