"""Texts to evaluate on, public domain: State of the Union addresses (sotu_eval), Moby Dick (moby_eval).

Neither is in what the embedded model was trained on. Any UTF-8 file does as well: evaluate.texts=[FILE].
"""
