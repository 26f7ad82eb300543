"""What reinforcement learning makes of the small policies, over several seeds. See
`benchmarks.learning.__main__`.
"""
