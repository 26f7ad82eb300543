"""Effect of reinforcement learning on the small policies, over several seeds. See
`benchmarks.learning.__main__`.
"""
