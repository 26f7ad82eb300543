"""Graphs behind the interface of chat clients: OpenAI's chat completions over HTTP.

Each request is an episode (`hrm_agent.runtime.episode`). Nothing here depends on commands or
trainers. `requests` parses requests, `answers` writes answers, `server` joins both with the runner
and a socket. Only `server` imports aiohttp.
"""
