"""What trains a model: objectives, optimizers, schedules, and the step that puts them together."""
