"""Training: objectives, optimizers, the step, the loop."""
