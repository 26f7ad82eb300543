"""`hrm-agent view`: shows runs in the browser, during training and afterwards. Stores are opened
read-only.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from hrm_agent.cli.common.arguments import Arguments, Parser
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.pages import writing_page
from hrm_agent.cli.common.serving_options import check_port, read_token, until_signal, url_of
from hrm_agent.errors import ConfigError
from hrm_agent.store.database.sqlite_read_only import is_run_store
from hrm_agent.training.datasets import FOLDER

if TYPE_CHECKING:
    from hrm_agent.viewer.app import EnvironmentServer
    from hrm_agent.viewer.places import Places

__all__ = ["run"]

_HOST, _RUNS = "127.0.0.1", "runs"
_TOKEN_BYTES = 32


def run(words: list[str]) -> int:
    parser = Parser(
        "view",
        "Look at runs in the browser, while they train or later: curves, groups with verdicts,"
        " trajectories, tokens.\nStores are opened for reading only.",
    )
    add = parser.add_argument
    add(
        "places",
        nargs="*",
        metavar="PLACE",
        help=f"run folder, folder of several, store file or store URL; repeatable [{_RUNS}]",
    )
    add(
        "--datasets",
        type=Path,
        default=Path(FOLDER),
        metavar="FOLDER",
        help=f"folder of data sets that are listed [{FOLDER}]",
    )
    add("--host", default=_HOST, help=f"address to listen on [{_HOST}]")
    add("--port", type=int, default=0, help="port; 0 takes a free one [0]")
    add("--allow-remote", action="store_true", help="allow a --host that other machines reach")
    add("--no-browser", action="store_true", help="print the address and open no browser")
    add(
        "--environment",
        metavar="URL",
        help="also show the figures of this `hrm-agent environment serve`",
    )
    add("--token-file", type=Path, metavar="FILE", help="file of that environment's token")
    add(
        "--allow-fork",
        action="store_true",
        help="let the page fork and replay runs: commands that write to the store",
    )
    add(
        "--export",
        type=Path,
        metavar="FILE",
        help="write the page with its data as one file that opens by double click, and stop",
    )
    add(
        "--run",
        action="append",
        default=[],
        metavar="RUN",
        help="with --export: only this run; repeatable",
    )
    add("--limit", type=int, metavar="N", help="with --export: at most N trajectories in all [500]")
    arguments = parser.read(words)
    named = arguments.places or [_RUNS]
    check_port(arguments)
    if arguments.token_file is not None and arguments.environment is None:
        raise ConfigError(
            "--token-file can only be used with an environment.", "Add --environment URL."
        )
    if arguments.export is None and (arguments.run or arguments.limit is not None):
        raise ConfigError("--run and --limit can only be used with --export.", "Add --export FILE.")
    if arguments.limit is not None and arguments.limit < 1:
        raise ConfigError(
            f"--limit {arguments.limit}: at least 1 is needed.", "Leave it out for all."
        )
    for name in named:
        if "://" not in name and Path(name).is_file() and not is_run_store(Path(name)):
            raise ConfigError(
                f"{name} is not a store.", "Name a run folder, a store file or a store's URL."
            )
    missing = [name for name in named if "://" not in name and not Path(name).exists()]
    if len(missing) == len(named):
        raise ConfigError(
            f"There is nothing at {', '.join(missing)}.",
            "Name a run folder, a store file or a store's URL; `hrm-agent demo` makes a run to"
            " look at.",
        )
    if arguments.export is not None:
        return _export(arguments, named)
    from hrm_agent.environment.remote.sockets import listen_tcp
    from hrm_agent.viewer.places import Places

    if arguments.environment is None:
        environment = None
    else:
        from hrm_agent.environment.remote.address import parse_address, token_for
        from hrm_agent.viewer.app import EnvironmentServer

        address = parse_address(arguments.environment)
        try:
            given = read_token(arguments.token_file).text if arguments.token_file else None
        except FileNotFoundError:
            raise ConfigError(
                f"There is no token file {arguments.token_file}.", "Name another --token-file."
            ) from None
        environment = EnvironmentServer(address, token_for(address, given))
    with listen_tcp(
        arguments.host, arguments.port, allow_remote=arguments.allow_remote
    ) as listener:
        places = Places(named, arguments.datasets)
        try:
            asyncio.run(_until_stopped(arguments, places, environment, listener))
        finally:
            places.close()
    return 0


def _export(arguments: Arguments, named: list[str]) -> int:
    from hrm_agent.viewer.export import export
    from hrm_agent.viewer.places import Places

    places = Places(named, arguments.datasets)
    path = Path(arguments.export)
    try:
        with writing_page(path) as file:
            left_out = export(
                places.all(),
                file,
                runs=arguments.run,
                limit=arguments.limit,
                datasets_folder=arguments.datasets,
            )
    finally:
        places.close()
    size = path.stat().st_size
    output = Output(as_json=arguments.json)
    output.result({"file": str(path), "bytes": size, "left_out": left_out})
    output.say(f"{path}: {size / 1e6:.1f} MB")
    for what, count in left_out.items():
        output.say(f"left out: {count} {what}")
    return 0


async def _until_stopped(
    arguments: Arguments,
    places: Places,
    environment: EnvironmentServer | None,
    listener: socket.socket,
) -> None:
    import webbrowser

    from hrm_agent.viewer.app import Viewer, viewing

    token = secrets.token_urlsafe(_TOKEN_BYTES)
    fork_token = ""
    forks = None
    if arguments.allow_fork:
        from hrm_agent.viewer.fork_jobs import ForkJobs

        forks = ForkJobs()
        fork_token = secrets.token_urlsafe(_TOKEN_BYTES)
    port = listener.getsockname()[1]
    viewer = Viewer(
        places,
        token,
        arguments.host,
        port,
        forks=forks,
        fork_token=fork_token,
        environment=environment,
    )
    shown = _HOST if arguments.host in ("0.0.0.0", "::") else arguments.host  # noqa: S104
    url = f"{url_of(shown, listener)}/#token={token}" + (f"&fork={fork_token}" if forks else "")
    output = Output(as_json=arguments.json)

    def ready() -> None:
        output.result({"url": url, "fork_token": fork_token or None})
        output.say(url)
        output.say("Ctrl-C ends it.")
        # Without a screen, a text browser might be found, which would run in this terminal.
        if not (arguments.no_browser or arguments.json) and (
            sys.platform == "darwin"
            or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
        ):
            # A thread is used, since opening some browsers only returns when they are closed.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    try:
        async with viewing(viewer, listener):
            await until_signal(ready)
    finally:
        if forks is not None:
            forks.close()
