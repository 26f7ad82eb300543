"""What a graph costs a model call, and its record: `python -m benchmarks.orchestration`."""
