"""Speed of sampling and training at the size of a real small model:
`python -m benchmarks.real_size`.
"""
