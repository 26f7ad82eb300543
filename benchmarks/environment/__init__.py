"""Environment service compared with its peers and with a bare fork:
`python -m benchmarks.environment`.
"""
