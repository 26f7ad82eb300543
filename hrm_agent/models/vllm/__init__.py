"""Sampling with a vLLM server."""
