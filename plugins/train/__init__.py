"""What trains a model: objectives, optimizers, schedules, the step that puts them together, and the loop around it.

`trainer.py` is the plugin node; it, objectives, optimizers and schedules import no framework before they are used.
"""
