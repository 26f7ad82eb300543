"""Controlled study of GRPO and GRPO-RoC on the small policy. See `benchmarks.roc_study.__main__`."""
