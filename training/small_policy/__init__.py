"""Small policy that the project builds from scratch: architecture, tokenizer, chat template,
demonstrations.
"""
