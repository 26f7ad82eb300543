"""Small, real policy that the project builds itself: architecture, tokenizer, chat template,
demonstrations.
"""
