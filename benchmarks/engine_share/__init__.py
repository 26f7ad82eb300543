"""Share of the engine in the cost of a rollout, by the size of the network:
`python -m benchmarks.engine_share`.
"""
