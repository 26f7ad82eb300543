"""Environments of other projects that a task is played in: OpenEnv's servers, and verifiers' v1
environments.

| module | contents |
|---|---|
| `source` | the text that names an environment, such as `openenv:http://127.0.0.1:8000?steps=4` |
| `servers` | servers that this process starts, each in an interpreter of its own |
| `wire` | one session on a server: messages with limits, strictly parsed |
| `sessions` | sessions of this process, with as many at a time as a server allows |
| `play` | the acts of a run: recorded, repeated after a crash, never sent twice |
| `foreign` | scripts that run in the environment's interpreter |

An environment is foreign code that a user has chosen. It runs outside of this process, and
everything that it sends is untrusted.
"""
