"""What is so, whoever reads or computes it: code books, split patterns, spellings of config.json, gpt-oss and Gemma.

Formats know no arithmetic, models no file and tokenizers neither; what several of them have to know is here, once, with
its source. Nothing here imports another plugin.
"""
