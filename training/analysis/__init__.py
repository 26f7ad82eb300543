"""Analysis of a run on record: entropy of its tokens, tool errors, lengths, and effects of
selection.
"""
