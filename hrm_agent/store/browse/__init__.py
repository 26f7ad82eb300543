"""Readers for looking at a store: lists, threads, messages and states, without the types of the
values.
"""
