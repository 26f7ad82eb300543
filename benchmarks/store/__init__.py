"""The run store against LangGraph's own savers and against bare inserts:
`python -m benchmarks.store`.
"""
