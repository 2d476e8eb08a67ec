"""What runs a model: weights on the device, prefill and decode, sampling, scoring.

`engine.py` is the plugin node and imports no framework; everything else here is imported when a model is loaded.
"""
