"""FP8 of tiles, as DeepSeek and Qwen publish it."""
