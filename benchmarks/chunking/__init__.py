"""Our chunks beside other libraries' and beside the tokenizer alone:
`python -m benchmarks.chunking`.
"""
