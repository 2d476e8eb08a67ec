"""Texts to evaluate on, public domain: State of the Union addresses (sotu_eval), Moby Dick (moby_eval).

Neither is in what the embedded model was trained on, which lies here as well (sotu_train, moby_train, compressed). Any
UTF-8 file does as well: evaluate.texts=[FILE], data.files=[FILE].
"""
