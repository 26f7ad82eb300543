"""`hrm-agent environment`: runs a server that executes model-written code for other processes, and
reports its status.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from hrm_agent.cli.common.actions import run_action
from hrm_agent.cli.common.arguments import Arguments, Parser
from hrm_agent.cli.common.formatting import sentence
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.serving_options import (
    Token,
    add_place,
    announce,
    check_place,
    hosts_of,
    kept_token,
    read_token,
    until_signal,
    url_of,
)
from hrm_agent.environment.isolation import DEFAULT_ISOLATION, Isolation, parse_isolation
from hrm_agent.environment.local.environment import LocalEnvironment
from hrm_agent.environment.remote.address import (
    TOKEN_VARIABLE,
    about_of,
    ask,
    kept_token_file,
    parse_address,
    token_or_variable,
)
from hrm_agent.environment.remote.clients import Clients, add_client, read_clients
from hrm_agent.environment.remote.sockets import listen_tcp, listen_unix
from hrm_agent.environment.scheduler.admission import QUEUE_LIMIT
from hrm_agent.errors import ConfigError, HrmError

__all__ = ["ACTIONS", "run"]

ACTIONS = {
    "serve": "run model-written code for other processes, over HTTP",
    "status": "status and metrics of a server",
    "token": "make a token for a client, with a quota",
}
_PORT = 8742


def run(words: list[str]) -> int:
    return run_action("environment", "Where model-written code runs.", ACTIONS, _RUN, words)


def _serve(words: list[str]) -> int:
    parser = Parser("environment serve", sentence(ACTIONS["serve"]))
    add = parser.add_argument
    add_place(parser, _PORT, kept_token_file())
    add("--socket", metavar="PATH", help="listen on a unix socket instead, open to this user alone")
    add("--slots", type=int, help="calls that run at once [two per core]")
    add(
        "--isolation",
        default=DEFAULT_ISOLATION.value,
        metavar="LEVEL",
        help=f"lowest isolation that is accepted [{DEFAULT_ISOLATION}]",
    )
    add(
        "--cgroup",
        type=Path,
        metavar="FOLDER",
        help="delegated cgroup, for L3 [with --isolation L3: its own]",
    )
    add(
        "--packages",
        nargs="+",
        metavar="NAME",
        help="packages that snippets may import [numpy and sympy, where installed]",
    )
    add(
        "--queue-limit",
        type=int,
        default=QUEUE_LIMIT,
        help=f"calls that may wait in the queue; more are held back [{QUEUE_LIMIT}]",
    )
    add(
        "--max-sessions",
        type=int,
        default=64,
        help="most session processes; beyond that an idle one is closed [64]",
    )
    add(
        "--clients",
        type=Path,
        metavar="FILE",
        help="clients with tokens of their own (`environment token` makes them)",
    )
    arguments = parser.read(words)
    for name in ("slots", "queue_limit", "max_sessions"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: at least 1 is needed.")
    check_place(arguments)
    isolation = parse_isolation(arguments.isolation)
    if arguments.clients is None:
        token = kept_token(arguments.token_file, TOKEN_VARIABLE, kept_token_file())
        clients = Clients.of_token(token.text)
    elif arguments.token_file is not None:
        raise ConfigError(
            "--clients cannot be combined with --token-file.",
            "Leave out --token-file. Each client has a token of its own.",
        )
    else:
        token = Token("", str(arguments.clients))
        clients = read_clients(arguments.clients)
    if arguments.socket:
        listener = listen_unix(arguments.socket)
        url = f"unix:{Path(arguments.socket).absolute()}"
    else:
        listener = listen_tcp(arguments.host, arguments.port, allow_remote=arguments.allow_remote)
        url = url_of(arguments.host, listener)
    with listener:
        environment = LocalEnvironment(
            slots=arguments.slots,
            max_sessions=arguments.max_sessions,
            isolation=isolation,
            packages=arguments.packages,
            queue_limit=arguments.queue_limit,
            cgroup=arguments.cgroup,
        )
        asyncio.run(_until_stopped(arguments, environment, token, clients, listener, url))
    return 0


async def _until_stopped(
    arguments: Arguments,
    environment: LocalEnvironment,
    token: Token,
    clients: Clients,
    listener: socket.socket,
    url: str,
) -> None:
    from hrm_agent.environment.remote.server import serving

    hosts = () if arguments.socket else hosts_of(arguments)
    try:
        await environment.warm_up()
        async with serving(
            environment,
            clients,
            listener,
            hosts=hosts,
            slots=environment.slots,
            drain_seconds=arguments.drain_seconds,
        ):
            level = environment.isolation
            slots = environment.slots
            what = f"isolation {level}, {slots} slots"
            output = Output(as_json=arguments.json)
            facts = {"isolation": level, "slots": slots}
            await until_signal(lambda: announce(output, token, url, what, **facts))
            if arguments.socket:
                _remove(arguments.socket)
    finally:
        await environment.close()


def _remove(path: str) -> None:
    """Remove the socket's file. This has to happen before the server stops listening, since the
    next server may then create a file of this name.
    """
    Path(path).unlink(missing_ok=True)


def _status(words: list[str]) -> int:
    parser = Parser("environment status", sentence(ACTIONS["status"]))
    parser.add_argument("url", help="http://HOST:PORT, https://HOST:PORT or unix:PATH")
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help=f"the server's [{kept_token_file()}]"
    )
    arguments = parser.read(words)
    output = Output(as_json=arguments.json)
    address = parse_address(arguments.url)
    if arguments.token_file is None and os.environ.get(TOKEN_VARIABLE):
        token = token_or_variable(None)
    else:
        path = arguments.token_file or kept_token_file()
        try:
            token = read_token(path).text
        except FileNotFoundError:
            raise HrmError(
                f"There is no token in {path}.",
                f"Name the --token-file, or set {TOKEN_VARIABLE}.",
            ) from None
    about = about_of(ask(address, "/health", token), address, Isolation.L0)
    metrics = ask(address, "/metrics", token)
    output.result({"url": str(address), **asdict(about), "metrics": metrics})
    output.say(
        f"{address}: isolation {about.isolation}, {about.slots} slots, version"
        f" {about.version}\n\n{metrics.rstrip()}"
    )
    return 0


def _token(words: list[str]) -> int:
    parser = Parser("environment token", sentence(ACTIONS["token"]))
    parser.add_argument("name", help="name of the client")
    parser.add_argument(
        "--clients", type=Path, required=True, metavar="FILE", help="file that it is added to"
    )
    parser.add_argument(
        "--calls", type=int, metavar="N", help="most calls that it has open at once [no limit]"
    )
    arguments = parser.read(words)
    if arguments.calls is not None and arguments.calls < 1:
        raise ConfigError(f"--calls {arguments.calls}: at least 1 is needed.")
    text = add_client(arguments.clients, arguments.name, arguments.calls)
    output = Output(as_json=arguments.json)
    output.result({"name": arguments.name, "token": text, "clients": str(arguments.clients)})
    output.say(
        f"{text}\n\nShown once: {arguments.clients} keeps its hash. A server reads the file when it"
        " starts."
    )
    return 0


_RUN: dict[str, Callable[[list[str]], int]] = {"serve": _serve, "status": _status, "token": _token}
