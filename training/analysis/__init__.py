"""What a run on record says of itself: entropy of its tokens, tool errors, lengths, and what
selection changed.
"""
