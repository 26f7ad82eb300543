"""Analysis of a recorded run: entropy of its tokens, tool errors, lengths, and effects of
selection.
"""
