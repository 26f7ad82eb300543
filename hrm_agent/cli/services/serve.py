"""`hrm-agent serve`: serves graphs to chat clients through OpenAI's chat completions. Every request
is recorded as a run.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from hrm_agent.basics.frozen_heap import frozen_heap
from hrm_agent.cli.common.arguments import Arguments, Parser, add_config, config_from, print_config
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.run_folder import DEFAULT_STORE
from hrm_agent.cli.common.serving_options import (
    Token,
    add_place,
    announce,
    check_place,
    hosts_of,
    kept_token,
    until_signal,
    url_of,
)
from hrm_agent.cli.runs.run import RunConfig
from hrm_agent.config import BY_MODEL, build_config, to_toml
from hrm_agent.environment.remote.address import kept_token_file
from hrm_agent.environment.remote.sockets import listen_tcp
from hrm_agent.models import DEFAULT_POLICY
from hrm_agent.runtime.episode import Episode, EpisodeRunner, policy_for
from hrm_agent.runtime.execution.loading import BUILTIN_GRAPHS, load_graph
from hrm_agent.runtime.settings import GraphOptions, RunSettings, holds_none
from hrm_agent.store import RunStore, open_store
from hrm_agent.trajectory import Sampling

__all__ = ["TOKEN_VARIABLE", "ServeConfig", "run"]

TOKEN_VARIABLE = "HRM_AGENT_SERVE_TOKEN"
_PORT = 8743


class ServeConfig(RunSettings, GraphOptions):
    """Served graphs, and defaults of requests."""

    graphs: list[str] = Field(default_factory=lambda: list(BUILTIN_GRAPHS), min_length=1)
    """Models that clients may name: built-in graphs, or your own as package.module:attribute."""
    policy: str = DEFAULT_POLICY
    """Model that answers: a built-in policy, a model folder, hf:NAME, scripted:FILE, or a
    provider's chat model.
    """
    context: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Options of the graphs, such as max_turns=6. A request may set its own, but only lower values
    of limits given here, and no sources, models, prices or files.
    """
    concurrency: int = Field(default=16, ge=1)
    """Maximum number of parallel runs. Further requests are answered with 429."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature of requests that set none. 0 takes the most probable token. none: 1, or
    the provider's default for a hosted model.
    """
    max_tokens: Annotated[int | None, BY_MODEL] = Field(default=None, ge=1)
    """Maximum completion tokens of one reply. A request may ask for fewer. The default depends on
    the model: half of its context, but at most 2048. For a hosted model it is the provider's own
    limit; if a request sets a limit, that limit is sent to the provider.
    """


def run(words: list[str]) -> int:
    parser = Parser(
        "serve",
        "Serve graphs to chat clients: OpenAI's /v1/chat/completions, each request on record.",
    )
    parser.add_argument("--store", default=DEFAULT_STORE, help=f"where to record [{DEFAULT_STORE}]")
    add_place(parser, _PORT, _kept_token_file())
    add_config(parser, ServeConfig)
    arguments = parser.read(words)
    config = config_from(arguments, ServeConfig, "serve")
    if arguments.dry_run:
        print_config(config, "serve", as_json=arguments.json)
        return 0
    check_place(arguments)
    for name in config.graphs:
        load_graph(name, config.configurable)
    token = kept_token(arguments.token_file, TOKEN_VARIABLE, _kept_token_file())
    listener = listen_tcp(arguments.host, arguments.port, allow_remote=arguments.allow_remote)
    with listener, open_store(arguments.store, allow=config.allowed_types) as store, frozen_heap():
        asyncio.run(_until_stopped(arguments, config, store, token, listener))
    return 0


def _kept_token_file() -> Path:
    """Default token file. It differs from the environment server's token file, since a client that
    may use agents should not thereby be allowed to run code.
    """
    return kept_token_file().with_name("serve-token")


def _keeping(config: ServeConfig, store: RunStore) -> Callable[[Episode, Sampling], None]:
    """Callback that saves the options of each run with its thread. With them, `hrm-agent resume`
    can continue runs of a server.
    """
    shared = config.model_dump(include=RunConfig.model_fields.keys() - {"context"})
    options = build_config(RunConfig, shared, "of the server")

    def keep(episode: Episode, sampling: Sampling) -> None:
        context = {name: value for name, value in episode.context.items() if not holds_none(value)}
        own = sampling.model_dump(
            include=sampling.model_fields_set & {"temperature", "top_p", "max_tokens"}
        )
        own |= {"graph": episode.graph, "seed": episode.seed, "context": context}
        store.options.write_later(episode.thread_id, to_toml(options.model_copy(update=own), "run"))

    return keep


async def _until_stopped(
    arguments: Arguments,
    config: ServeConfig,
    store: RunStore,
    token: Token,
    listener: socket.socket,
) -> None:
    from hrm_agent.runtime.serving.server import ChatService, serving

    backend = await asyncio.to_thread(policy_for, config.policy, *config.graphs)
    async with EpisodeRunner.open(store, config.policy, config, backend=backend) as runner:
        hosts = hosts_of(arguments)
        service = ChatService(
            runner,
            config.graphs,
            token.text,
            hosts=hosts,
            concurrency=config.concurrency,
            context=config.context,
            configurable=config.configurable,
            keep=_keeping(config, store),
        )
        async with serving(service, listener, drain_seconds=arguments.drain_seconds):
            output = Output(as_json=arguments.json)
            url = f"{url_of(arguments.host, listener)}/v1"
            what = f"{', '.join(config.graphs)}, with {config.policy}"
            facts = {"models": config.graphs, "policy": config.policy}
            await until_signal(lambda: announce(output, token, url, what, **facts))
