"""Projections of one trajectory: items, tokens, moments, its graph and threads."""
