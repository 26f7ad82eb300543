"""How much of a rollout is the engine, over the size of the network:
`python -m benchmarks.engine_share`.
"""
