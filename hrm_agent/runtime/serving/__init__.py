"""Graphs behind the interface that chat clients know: OpenAI's chat completions over HTTP.

Each request is an episode (`hrm_agent.runtime.episode`); nothing here knows of commands or
trainers. `requests` reads what a client sends, `answers` writes what it gets, `server` joins both
with the runner and a socket. aiohttp is imported by `server` alone.
"""
