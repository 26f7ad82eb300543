"""Graphs behind the interface that chat clients know: OpenAI's chat completions over HTTP.

A room of `graphs`, because each request is an episode and episodes begin at `hrm_agent.runtime.episode`; it knows
nothing of commands or of trainers. `requests` reads what a client sends, `answers` writes what it gets, `server` joins
both with the runner and a socket. aiohttp is imported by `server` alone.
"""
