"""Benchmark of `gate`: its verdicts, and the requests that they take."""
