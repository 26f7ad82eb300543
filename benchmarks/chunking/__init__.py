"""Our chunks compared with other libraries' and with the tokenizer alone:
`python -m benchmarks.chunking`.
"""
