"""Run store compared with LangGraph's own savers and with bare inserts:
`python -m benchmarks.store`.
"""
