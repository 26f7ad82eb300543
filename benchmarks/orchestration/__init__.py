"""Cost of a graph and its record per model call: `python -m benchmarks.orchestration`."""
