"""Training of SmolLM2-135M-Instruct on arithmetic problems with the Python tool. See
`benchmarks.smollm2.__main__`.
"""
