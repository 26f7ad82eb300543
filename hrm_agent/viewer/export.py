"""Copy of the page that opens by double click: its files, and its data as scripts.

A page opened from a file may request nothing, so that all its answers are in `data/*.js`, by the
key under which the page looks for them. They come from the functions that the server calls. A copy
is bounded by its number of trajectories, newest steps first, and reports what was left out.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import quote

from hrm_agent import __version__
from hrm_agent.basics.files import read_whole
from hrm_agent.errors import ConfigError, HrmError
from hrm_agent.viewer.json_text import json_text
from hrm_agent.viewer.projections.bare_threads import count_bare_threads
from hrm_agent.viewer.projections.blobs import whole_text
from hrm_agent.viewer.projections.groups import groups, step
from hrm_agent.viewer.projections.run.compare import compare
from hrm_agent.viewer.projections.run.curves import metrics
from hrm_agent.viewer.projections.run.environment import environment
from hrm_agent.viewer.projections.run.trajectories import trajectories
from hrm_agent.viewer.projections.runs import place_runs
from hrm_agent.viewer.projections.trajectory.citations import citations, source
from hrm_agent.viewer.projections.trajectory.graph import graph
from hrm_agent.viewer.projections.trajectory.items import items
from hrm_agent.viewer.projections.trajectory.moments import moment, moments
from hrm_agent.viewer.projections.trajectory.tokens import tokens
from hrm_agent.viewer.projections.trajectory.trajectory import trajectory

if TYPE_CHECKING:
    from hrm_agent.viewer.places import Place

__all__ = ["TRAJECTORIES", "data_key", "export"]

TRAJECTORIES = 500
"""Maximum number of trajectories in a copy by default."""
_MARK = "export.json"
"""Marker file in the folder of a copy, so that a copy can be made there again."""
_MADE_BY = "hrm-agent view --export"
_WEB = Path(__file__).parent / "web"
_DATA_LINE = "<!-- data -->"
_MOST_ITEMS, _MOST_MOMENTS, _MOST_STATES = 1_000, 500, 60
"""Maximum items, moments and states of one trajectory."""
_MOST_TOKENS, _MOST_TEXT = 20_000, 200_000
"""Maximum tokens of one call, and characters of a text that is not cut."""
_MOST_GROUPS = 500

Values = Mapping[str, Any]


class _Chosen(NamedTuple):
    """Trajectories and steps of a run that are in the copy."""

    ids: list[str]
    steps: list[int]
    all: int


def export(
    places: Sequence[Place], folder: Path, *, runs: Sequence[str] = (), limit: int | None = None
) -> dict[str, Any]:
    """Write a copy of the page into a folder. Return its `files`, `bytes`, `left_out` and `folder`.

    `runs`: only these. `limit`: maximum number of trajectories in all. Raises `ConfigError` for a
    folder with other contents, and for a missing run.
    """
    _make_room(folder)
    copy = _Copy(folder)
    copy.pages()
    found = list(_runs_of(places, copy, runs))
    if runs and (missing := set(runs) - {run["run"] for _, run in found}):
        raise ConfigError(
            f"There is no run {min(missing)!r}.", "`hrm-agent view` lists the runs that there are."
        )
    left = TRAJECTORIES if limit is None else limit
    for number, (place, run) in enumerate(found):
        with place.moment():
            left -= copy.run(place, run, -(-left // (len(found) - number)))
    copy.everywhere(places, [run for _, run in found])
    return copy.done()


def _runs_of(
    places: Sequence[Place], copy: _Copy, wanted: Sequence[str]
) -> Iterator[tuple[Place, dict[str, Any]]]:
    for place in places:
        try:
            with place.moment():
                for run in place_runs(place):
                    if not wanted or run["run"] in wanted:
                        yield place, run
                if not wanted:
                    copy.leave_out(
                        "threads without a trajectory", count_bare_threads(place.store())
                    )
        except HrmError as error:
            copy.leave_out("places", 1)
            copy.problems.append({"place": place.id, "message": error.message, "hint": error.hint})


def _make_room(folder: Path) -> None:
    """Remove an earlier copy. Raises `ConfigError` for a folder with other contents."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigError(f"{folder} is a file.", "Name a folder.")
    if not any(folder.iterdir()):
        return
    try:
        kept: Any = json.loads(read_whole(folder / _MARK) or "null")
    except (OSError, ValueError, RecursionError):
        kept = None
    if not isinstance(kept, dict) or cast("dict[str, Any]", kept).get("made_by") != _MADE_BY:
        raise ConfigError(
            f"{folder} is not empty, and no copy that was exported.", "Name a new folder."
        )
    if link := next((path for path in folder.rglob("*") if path.is_symlink()), None):
        raise ConfigError(
            f"{link} is a link: what it leads to would be written over.", "Name a new folder."
        )
    names: Any = cast("dict[str, Any]", kept).get("files")
    for name in cast("list[Any]", names) if isinstance(names, list) else ():
        path = folder / str(name)
        if (
            ".." not in path.parts
            and path.is_file()
            and path.resolve().is_relative_to(folder.resolve())
        ):
            path.unlink()
    for path in (folder / "data").glob("*-*.js"):  # of an unfinished copy
        path.unlink()


def data_key(name: str, values: Values) -> str:
    """Key under which a page looks for an answer: `NAME?a=1&b=2`, sorted, without empty values."""
    given = {key: str(value) for key, value in values.items() if value not in (None, "")}
    return f"{name}?" + "&".join(f"{key}={quote(given[key], safe='')}" for key in sorted(given))


class _Copy:
    """Files of a copy, while they are written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[str] = []
        self.keys: dict[str, str] = {}
        self.problems: list[dict[str, str]] = []
        self._left_out: dict[str, int] = {}
        self._in_index: dict[str, Any] = {}
        (folder / "data").mkdir(parents=True, exist_ok=True)
        self._mark()

    def _mark(self) -> None:
        """Write the marker. It is also written before the first file, so that an unfinished copy
        can be made again.
        """
        mark = {
            "made_by": _MADE_BY,
            "version": __version__,
            "files": [*self.files, _MARK],
            "left_out": self._left_out,
        }
        (self.folder / _MARK).write_text(json.dumps(mark, indent=1) + "\n", encoding="utf-8")

    def leave_out(self, what: str, count: int) -> None:
        if count > 0:
            self._left_out[what] = self._left_out.get(what, 0) + count

    def pages(self) -> None:
        """Write the files of the page itself."""
        for path in sorted(_WEB.rglob("*")):
            name = path.relative_to(_WEB).as_posix()
            if path.is_file() and "__pycache__" not in name:
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                if name == "index.html":
                    text = path.read_text(encoding="utf-8")
                    script = '<script defer src="data/index.js"></script>'
                    (self.folder / name).write_text(
                        text.replace(_DATA_LINE, script), encoding="utf-8"
                    )
                else:
                    shutil.copyfile(path, self.folder / name)
                self.files.append(name)

    def run(self, place: Place, run: dict[str, Any], most: int) -> int:
        """Write a run with at most `most` trajectories. Return their number."""
        name, here = run["run"], {"place": place.id, "run": run["run"]}
        chosen = _chosen(place, run, most)
        self.leave_out("trajectories", chosen.all - len(chosen.ids))
        shown = set(chosen.ids)
        listed = trajectories(place, name, limit=10**6)
        listed |= {"rows": [row for row in listed["rows"] if row[1] in shown], "next": None}
        answers = {
            data_key("metrics", here): metrics(place, name),
            data_key("environment", here): environment(place, name),
            data_key("trajectories", here): listed,
        }
        if not chosen.steps:
            grouped = groups(place, name, limit=_MOST_GROUPS)
            kept = [
                group
                for group in grouped["groups"]
                if any(r["trajectory"] in shown for r in group["rollouts"])
            ]
            answers[data_key("groups", here)] = grouped | {"groups": kept, "next": None}
        self._write(place, "run", answers)
        steps = {number: step(place, name, number) for number in chosen.steps}
        for number, answer in steps.items():
            neighbours = {
                "previous": _within(answer["previous"], steps),
                "next": _within(answer["next"], steps),
            }
            self._write(
                place, "step", {data_key("step", {**here, "step": number}): answer | neighbours}
            )
        for id_ in chosen.ids:
            try:
                self._write(place, "trajectory", dict(self._of_trajectory(place, id_, name)))
            except HrmError as error:
                self.leave_out("trajectories that cannot be read", 1)
                self.problems.append(
                    {"place": place.id, "message": error.message, "hint": error.hint}
                )
        return len(chosen.ids)

    def _of_trajectory(self, place: Place, id_: str, run: str) -> Iterator[tuple[str, Any]]:
        whole = trajectory(place, id_)
        thread, here = whole["header"]["thread"], {"place": place.id}
        read = items(place, id_, limit=_MOST_ITEMS)
        self.leave_out("items", read["total"] - len(read["items"]))
        yield data_key("trajectory", {**here, "id": id_}), whole
        yield (
            data_key("items", {**here, "id": id_}),
            read
            | {
                "next": None,
                "total": len(read["items"]),
            },
        )
        yield from self._of_thread(place, thread)
        cited = citations(place, id_)
        yield data_key("citations", {**here, "id": id_}), cited
        for each in cited["citations"]:
            if any(each["source"] == known["id"] for known in cited["sources"]):
                span = {"source": each["source"], "start": each["start"], "end": each["end"]}
                found = source(place, id_, each["source"], each["start"] or 0, each["end"] or 0)
                yield data_key("source", {**here, "id": id_, **span}), found
        own = whole["header"]["run"]
        for item in read["items"]:
            if item.get("has_tokens"):
                yield from self._of_call(place, item["id"], {own: ("", own), run: (run,)})
        origin = whole["forked_from"]
        if origin is not None:
            pair = {"a": origin["trajectory_id"], "b": id_}
            try:
                yield data_key("compare", {**here, **pair}), compare(place, **pair)
            except HrmError:  # the origin was deleted
                self.leave_out("comparisons", 1)

    def _of_thread(self, place: Place, thread: str) -> Iterator[tuple[str, Any]]:
        here = {"place": place.id, "thread": thread}
        read = moments(place, thread, limit=_MOST_MOMENTS)
        self.leave_out("moments", read["total"] - len(read["moments"]))
        self.leave_out("states", len(read["moments"]) - _MOST_STATES)
        yield data_key("moments", here), read | {"next": None, "total": len(read["moments"])}
        yield data_key("graph", here), graph(place, thread)
        for each in read["moments"][-_MOST_STATES:]:
            if "problem" not in each:
                yield (
                    data_key("moment", {**here, "checkpoint": each["checkpoint"]}),
                    moment(place, thread, each["checkpoint"]),
                )

    def _of_call(
        self, place: Place, call: str, runs: Mapping[str, tuple[str, ...]]
    ) -> Iterator[tuple[str, Any]]:
        """Tokens of a call. `runs`: run whose weights are shown -> names under which the page asks
        for them.
        """
        for run, names in runs.items():
            found = tokens(place, call, to=_MOST_TOKENS, run=run)
            self.leave_out("tokens", found["total"] - found["to"])
            for name in dict.fromkeys(names):
                yield (
                    data_key("tokens", {"place": place.id, "call": call, "run": name}),
                    found | {"total": found["to"]},
                )

    def _write(self, place: Place, kind: str, answers: Mapping[str, Any]) -> None:
        """Write a file of answers, with the full texts that were cut in them."""
        name = f"data/{kind}-{len(self.files)}.js"
        whole = dict(answers) | dict(self._cut_in(place, list(answers.values())))
        self._file(name, "".join(_stored(key, value) for key, value in whole.items()))
        self.keys |= dict.fromkeys(whole, name)

    def _cut_in(self, place: Place, answers: Any) -> Iterator[tuple[str, Any]]:
        for item, field, chars in set(_cut_places(answers)):
            key = data_key("blob", {"place": place.id, "item": item, "field": field})
            if chars > _MOST_TEXT:
                self.leave_out("long texts", 1)
            elif key not in self.keys:
                text = whole_text(place, item, field)
                yield key, {"text": text, "from": 0, "chars": len(text), "next": None}

    def _file(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="ascii")
        self.files.append(name)

    def everywhere(self, places: Sequence[Place], runs: Sequence[dict[str, Any]]) -> None:
        """Add the answers that every page needs: the list of runs, and facts about the copy."""
        ordered = sorted(
            runs, key=lambda run: run["updated_at"] or run["started_at"] or 0.0, reverse=True
        )
        still = [{**run, "live": False} for run in ordered]
        listed = [
            {"id": place.id, "where": place.where, "problem": place.problem} for place in places
        ]
        about = {
            "version": __version__,
            "fork": False,
            "static": True,
            "environment": False,
            "places": listed,
        }
        self._in_index |= {
            data_key("runs", {}): {"runs": still, "bare_threads": [], "problems": self.problems},
            data_key("about", {}): {**about, "left_out": self._left_out},
        }

    def done(self) -> dict[str, Any]:
        index = f"hrm.storeFiles(JSON.parse({json.dumps(json_text(self.keys))}));\n"
        self._file(
            "data/index.js",
            index + "".join(_stored(key, value) for key, value in self._in_index.items()),
        )
        self._mark()
        written = [*self.files, _MARK]
        size = sum((self.folder / name).stat().st_size for name in written)
        return {
            "files": len(written),
            "bytes": size,
            "left_out": self._left_out,
            "folder": str(self.folder),
        }


def _stored(key: str, value: Any) -> str:
    """Line of a data file. The answer is JSON in a string, since some names mean more in a
    JavaScript literal.
    """
    return f"hrm.store({json.dumps(key)},JSON.parse({json.dumps(json_text(value))}));\n"


def _within(number: int | None, steps: Mapping[int, Any]) -> int | None:
    return number if number in steps else None


def _chosen(place: Place, run: dict[str, Any], most: int) -> _Chosen:
    """Trajectories of the newest steps, then trajectories without a step."""
    rows = trajectories(place, run["run"], limit=10**6)["rows"]
    by_step: dict[int, list[str]] = {}
    apart: list[str] = []
    for row in rows:
        (apart if row[4] is None else by_step.setdefault(row[4], [])).append(row[1])
    ids: list[str] = []
    steps: list[int] = []
    for number in sorted(by_step, reverse=True):
        if len(ids) < most:
            steps.append(number)
            ids += by_step[number][: most - len(ids)]
    ids += apart[::-1][: most - len(ids)]
    return _Chosen(ids, steps, len(rows))


def _cut_places(value: Any) -> Iterator[tuple[str, str, int]]:
    """Texts cut in an answer as (item, field, length)."""
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        if table.get("cut") is True and isinstance(table.get("blob"), dict):
            yield table["blob"]["item"], table["blob"]["field"], table["chars"]
        for inner in table.values():
            yield from _cut_places(inner)
    elif isinstance(value, (list, tuple)):
        for inner in cast("Sequence[Any]", value):
            yield from _cut_places(inner)
