"""The environment service against its peers and against a bare fork:
`python -m benchmarks.environment`.
"""
