"""Ranks of one training: processes that share its batches."""
