"""Server of the page: files, projections as JSON, events about changes, and forks if they are
allowed.

    GET  /, /core/..., /pages/...   the files of `web/`, and no others; without a token, since they hold nothing
    GET  /api/v1/about              the places that are shown
    GET  /api/v1/NAME               a projection of `hrm_agent.viewer.projections`, by query values
    GET  /api/v1/events             server-sent events: places that have changed
    GET  /api/v1/jobs               forks and replays that were started
    POST /api/v1/fork/plan, fork, replay     if the server was started for it, with a second token

Answers are made in a few threads, each from one snapshot of the store. The size of an answer and
the number of waiting requests are limited.
"""

from __future__ import annotations

import gzip
import logging
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hrm_agent import __version__
from hrm_agent.errors import ConfigError, HrmError, StoreError, nearest, to_install
from hrm_agent.training.datasets import dataset_names
from hrm_agent.viewer.json_text import NotThere, json_text
from hrm_agent.viewer.places import NoPlaceError, Places
from hrm_agent.viewer.projections import ENDPOINTS, PLACE, Endpoint

try:
    from aiohttp import web

    from hrm_agent.basics.http_server import (
        BadRequestError,
        application,
        body_of,
        listening,
        one_token,
        serve_routes,
    )
    from hrm_agent.viewer.answer_threads import AnswerThreads
    from hrm_agent.viewer.events import Events
    from hrm_agent.viewer.security import HEADERS, SiteGate, require_fork_token
except ImportError as error:
    raise ConfigError(
        "The page is served with aiohttp.", f"Run `{to_install('viewer')}`."
    ) from error

if TYPE_CHECKING:
    from hrm_agent.environment.remote.address import Address
    from hrm_agent.viewer.fork_jobs import ForkJobs

__all__ = ["WEB", "EnvironmentServer", "Viewer", "viewing"]

WEB = Path(__file__).parent / "web"
_PREFIX = "/api/v1/"
_FILES = "file"
_STANDS_FOR = {"": "index.html", "favicon.ico": "icon.svg"}
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_REQUEST_BYTES = 1 << 20
_MOST_BYTES = 32 << 20
"""Maximum bytes of an answer."""
_WORTH_PACKING = 1024
_LOG = logging.getLogger(__name__)
_STATUS: tuple[tuple[type[HrmError], int], ...] = (
    (NotThere, 404),
    (NoPlaceError, 404),
    (StoreError, 503),
)


class EnvironmentServer(NamedTuple):
    """Environment server (`hrm-agent environment serve`) whose figures are shown."""

    address: Address
    """Address of the server."""
    token: str
    """Token that it requires from its clients."""


class Viewer:
    """Request handlers of the page. `viewing` puts them behind a socket."""

    def __init__(
        self,
        places: Places,
        token: str,
        host: str,
        port: int,
        *,
        forks: ForkJobs | None = None,
        fork_token: str = "",
        environment: EnvironmentServer | None = None,
    ) -> None:
        self._places = places
        self._environment = environment
        self._forks = forks
        self._fork_token = fork_token
        self.workers = AnswerThreads()
        self.events = Events(places.changed)
        gate = SiteGate(host, port, "/")
        self.app = application(
            one_token(token),
            (),
            _REQUEST_BYTES,
            _refusal,
            reject=gate.reject,
            without_token=(_FILES,),
        )
        self.app.on_response_prepare.append(_add_headers)
        routes = [
            web.get(_PREFIX + "about", self._about),
            web.get(_PREFIX + "events", self.events.answer, allow_head=False),
            web.get(_PREFIX + "jobs", self._jobs),
            web.post(_PREFIX + "{action:fork/plan|fork|replay}", self._act),
            web.get(_PREFIX + "{name}", self._project),
        ]
        self._files = _files()
        routes.append(web.get("/{path:(?!api/)(?s:.*)}", self._file, name=_FILES))
        serve_routes(self.app, routes)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        file = self._files.get(_STANDS_FOR.get(path, path))
        if file is None:
            raise BadRequestError(404, "There is no such file.")
        return web.Response(
            body=file.read_bytes(), content_type=_TYPES[file.suffix], charset="utf-8"
        )

    async def _about(self, request: web.Request) -> web.StreamResponse:
        _refuse_values(request)
        return await self._answer(request, self._about_data)

    def _about_data(self) -> dict[str, Any]:
        places = [{"id": p.id, "where": p.where, "problem": p.problem} for p in self._places.all()]
        return {
            "version": __version__,
            "fork": self._forks is not None,
            "static": False,
            "environment": self._environment is not None,
            "datasets": bool(dataset_names(self._places.datasets)),
            "places": places,
        }

    async def _project(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        endpoint = ENDPOINTS.get(name)
        if endpoint is None:
            raise BadRequestError(404, f"There is no {name[:80]!r}.", nearest(name[:80], ENDPOINTS))
        for given in request.query:
            if len(request.query.getall(given)) > 1:
                raise ConfigError(
                    f"The query value {given[:80]!r} is given twice.", "Give it once."
                )
        query = dict(request.query)
        values = endpoint.read(query)
        return await self._answer(request, lambda: self._projected(name, endpoint, query, values))

    def _projected(
        self, name: str, endpoint: Endpoint, query: Mapping[str, str], values: Mapping[str, Any]
    ) -> dict[str, Any]:
        if endpoint.everywhere:
            folder = {"folder": self._places.datasets} if endpoint.of_datasets else {}
            return endpoint.function(self._places.all(), **folder, **values)
        if not query.get(PLACE):
            raise ConfigError(
                f"The query value {PLACE!r} is missing.",
                f"Add {PLACE}=ID. `GET /api/v1/about` lists the ids.",
            )
        place = self._places.get(query[PLACE])
        found = place.read(lambda: endpoint.function(place, **values))
        return found | self._live() if name == "environment" else found

    def _live(self) -> dict[str, Any]:
        """Current figures of the environment server (empty if none was given)."""
        if self._environment is None:
            return {}
        from hrm_agent.environment.remote.address import ask
        from hrm_agent.viewer.projections.run.environment import live_figures

        try:
            return {
                "live": live_figures(
                    ask(self._environment.address, "/metrics", self._environment.token)
                )
            }
        except HrmError as error:
            return {"live": None, "live_problem": {"message": error.message, "hint": error.hint}}

    async def _jobs(self, request: web.Request) -> web.StreamResponse:
        _refuse_values(request)
        forks = self._forks
        return await self._answer(request, lambda: forks.all() if forks else {"jobs": []})

    async def _act(self, request: web.Request) -> web.StreamResponse:
        forks = self._forks
        if forks is None:
            raise BadRequestError(
                403, "This server only shows runs.", "Start it with `hrm-agent view --allow-fork`."
            )
        require_fork_token(request, self._fork_token)
        _refuse_values(request)
        body = await body_of(request)
        if not isinstance(body, dict) or not isinstance(body.get(PLACE), str):
            raise BadRequestError(400, f"The body has to be an object with {PLACE!r}.")
        actions = {"fork/plan": forks.plan, "fork": forks.fork, "replay": forks.replay}
        act = actions[request.match_info["action"]]
        return await self._answer(request, lambda: act(self._places.get(body[PLACE]), body))

    async def _answer(
        self, request: web.Request, make: Callable[[], dict[str, Any]]
    ) -> web.Response:
        packs = "gzip" in request.headers.get("Accept-Encoding", "").replace(",", " ").split()

        def made() -> web.Response:
            return _json_response(make(), 200, packs=packs)

        return await self.workers.run(made)

    async def drain(self) -> None:
        """End all event streams."""
        self.events.end()


def _refuse_values(request: web.Request) -> None:
    for name in request.query:
        raise ConfigError(f"This address has no query value {name[:80]!r}.", "Leave it out.")


def _json_response(data: Any, status: int, *, packs: bool = False) -> web.Response:
    body = json_text(data).encode()
    if len(body) > _MOST_BYTES:
        raise BadRequestError(
            500, f"The answer would have {len(body) >> 20} MiB.", "Ask for fewer rows with limit=N."
        )
    headers = {"Content-Type": "application/json", "Vary": "Accept-Encoding"}
    if packs and len(body) > _WORTH_PACKING:
        body, headers["Content-Encoding"] = gzip.compress(body, 5, mtime=0), "gzip"
    return web.Response(body=body, status=status, headers=headers)


def _refusal(error: Exception, request: web.Request) -> web.StreamResponse:
    """Response for an error. An unexpected error is logged with its traceback, which is not sent."""
    match error:
        case BadRequestError():
            status = error.status
            message = error.message
            hint = error.hint
        case HrmError():
            status = next((status for kind, status in _STATUS if isinstance(error, kind)), 400)
            message = error.message
            hint = error.hint
        case web.HTTPException():
            status = error.status
            message = error.reason
            hint = ""
        case _:
            _LOG.error("request failed: %s %s", request.method, request.path, exc_info=error)
            status = 500
            message = "The server failed."
            hint = "Run it with --debug, which logs where."
    answer = _json_response({"error": {"message": message, "hint": hint}}, status)
    if status == 503:
        answer.headers["Retry-After"] = "1"
    return answer


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    del request
    response.headers.update(HEADERS)


def _files() -> dict[str, Path]:
    """All files that are served, by path. Every other path is refused."""
    found = (path for path in sorted(WEB.rglob("*")) if path.is_file() and not path.is_symlink())
    return {path.relative_to(WEB).as_posix(): path for path in found if path.suffix in _TYPES}


@asynccontextmanager
async def viewing(viewer: Viewer, listener: socket.socket) -> AsyncGenerator[None]:
    """Serve inside the block. Closes `listener`."""
    async with viewer.events.watching(), listening(viewer.app, listener, viewer.drain):
        yield
