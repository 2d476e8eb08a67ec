"""What `flow=bench` is made of: processes that measure, notes of what they measured, and what these come to."""
