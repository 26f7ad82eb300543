"""Copy of the page in one file that opens by double click, with its scripts, styles and answers.

A page opened from a file cannot make requests. So the file has each answer as JSON, with the key
under which the page looks for it. The answers come from the functions that the server calls. The
number of trajectories in a copy is limited, the newest steps are preferred, and the copy reports
what was left out.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from html import escape
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, cast
from urllib.parse import quote

from hrm_agent import __version__
from hrm_agent.errors import ConfigError, HrmError
from hrm_agent.training.datasets import dataset_names
from hrm_agent.viewer.json_text import json_text
from hrm_agent.viewer.projections.bare_threads import count_bare_threads
from hrm_agent.viewer.projections.blobs import whole_text
from hrm_agent.viewer.projections.datasets import dataset, datasets_of
from hrm_agent.viewer.projections.evaluations import evaluations, evaluations_key
from hrm_agent.viewer.projections.groups import groups, step
from hrm_agent.viewer.projections.run.analyses import analyses, analysis
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
_WEB = Path(__file__).parent / "web"
_LOADED = re.compile(r'<(?:script defer src|link rel="stylesheet" href)="([^"]+)">(?:</script>)?\n')
"""Lines of the page that load a script or a style."""
_MOST_ITEMS, _MOST_MOMENTS, _MOST_STATES = 1_000, 500, 60
"""Maximum items, moments and states of one trajectory."""
_MOST_TOKENS, _MOST_TEXT = 20_000, 200_000
"""Maximum tokens of one call, and maximum characters of a text that is copied in full."""
_MOST_GROUPS = 500
_MOST_COMPARED = 6
"""Maximum number of evaluations that are compared with each other."""
_MOST_EXAMPLES = 500
"""Maximum number of examples of a data set."""

Values = Mapping[str, Any]


class _Chosen(NamedTuple):
    """Trajectories and steps of a run that are in the copy."""

    ids: list[str]
    steps: list[int]
    all: int


def export(
    places: Sequence[Place],
    file: TextIO,
    *,
    runs: Sequence[str] = (),
    limit: int | None = None,
    only: Collection[str] = (),
    start: str = "",
    datasets_folder: Path | None = None,
) -> dict[str, int]:
    """Write a copy of the page. Returns the numbers of things that were left out, by kind.

    `runs`: runs to copy (empty: all). `limit`: maximum number of trajectories in all. `only`: ids
    of the trajectories to copy (empty: all). `start`: address within the page at which the copy
    opens. `datasets_folder`: folder of data sets that are listed (None: no list). Raises
    `ConfigError` for a missing run.
    """
    copy = _Copy(file, frozenset(only))
    found = list(_runs_of(places, copy, runs))
    if runs and (missing := set(runs) - {run["run"] for _, run in found}):
        raise ConfigError(f"There is no run {min(missing)!r}.", "`hrm-agent view` lists all runs.")
    before, after = _page(start)
    file.write(before)
    left = TRAJECTORIES if limit is None else limit
    for number, (place, run) in enumerate(found):
        with place.moment():
            left -= copy.run(place, run, -(-left // (len(found) - number)))
    listed = sorted(
        (run for _, run in found),
        key=lambda run: run["updated_at"] or run["started_at"] or 0.0,
        reverse=True,
    )
    with_datasets = (
        not only and datasets_folder is not None and bool(dataset_names(datasets_folder))
    )
    if not only:
        copy.compared(places, listed)
    if with_datasets and datasets_folder is not None:
        copy.datasets(places, datasets_folder, listed)
    copy.everywhere(places, listed, datasets=with_datasets)
    file.write(after)
    return copy.left_out


def _page(start: str) -> tuple[str, str]:
    """Text of the page before and after the answers, with styles and scripts in it. The content
    security policy of the page only allows these scripts, and no requests.
    """
    text = (_WEB / "index.html").read_text(encoding="utf-8")
    loaded = [_WEB / name for name in _LOADED.findall(text)]
    styles = [path.read_text(encoding="utf-8") for path in loaded if path.suffix == ".css"]
    scripts = [path.read_text(encoding="utf-8") for path in loaded if path.suffix == ".js"]
    icon = "data:image/svg+xml;base64," + b64encode((_WEB / "icon.svg").read_bytes()).decode()
    script = "\n;\n".join(scripts).replace("icon.svg", icon)
    allowed = b64encode(sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{allowed}'; style-src 'unsafe-inline'; img-src"
        " data:; base-uri 'none'; form-action 'none'"
    )
    head, _, body = _LOADED.sub("", text).replace("icon.svg", icon).partition("</head>")
    inside, _, end = body.partition("</body>")
    head += f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    head += f'<meta name="start" content="{escape(start)}">\n'
    head += f"<style>\n{''.join(styles)}</style>\n</head>"
    licenses = [path.read_text(encoding="utf-8") for path in sorted(_WEB.glob("vendor/*.LICENSE"))]
    kept = "".join(f"<!--\n{each}-->\n" for each in licenses)
    return head + inside, f"{kept}<script>{script}</script>\n</body>{end}"


def _runs_of(
    places: Sequence[Place], copy: _Copy, wanted: Sequence[str]
) -> Iterator[tuple[Place, dict[str, Any]]]:
    for place in places:
        try:
            found, bare = place.read(
                lambda place=place: (place_runs(place), count_bare_threads(place.store()))
            )
            for run in found:
                if not wanted or run["run"] in wanted:
                    yield place, run
            if not wanted:
                copy.leave_out("threads without a trajectory", bare)
        except HrmError as error:
            copy.leave_out("places", 1)
            copy.problems.append({"place": place.id, "message": error.message, "hint": error.hint})


def data_key(name: str, values: Values) -> str:
    """Key under which a page looks for an answer: `NAME?a=1&b=2`, with sorted names and without
    empty values.
    """
    given = {key: str(value) for key, value in values.items() if value not in (None, "")}
    return f"{name}?" + "&".join(f"{key}={quote(given[key], safe='')}" for key in sorted(given))


class _Copy:
    """Answers of a copy, while they are written."""

    def __init__(self, file: TextIO, only: frozenset[str]) -> None:
        self._file = file
        self._only = only
        self._keys: set[str] = set()
        self.problems: list[dict[str, str]] = []
        self.left_out: dict[str, int] = {}

    def leave_out(self, what: str, count: int) -> None:
        if count > 0:
            self.left_out[what] = self.left_out.get(what, 0) + count

    def run(self, place: Place, run: dict[str, Any], most: int) -> int:
        """Write a run with at most `most` trajectories. Return their number."""
        name = run["run"]
        here = {"place": place.id, "run": run["run"]}
        chosen = _chosen(place, run, most, self._only)
        if not self._only:
            self.leave_out("trajectories", chosen.all - len(chosen.ids))
        shown = set(chosen.ids)
        listed = trajectories(place, name, limit=10**6)
        listed |= {"rows": [row for row in listed["rows"] if row[1] in shown], "next": None}
        answers = {
            data_key("metrics", here): metrics(place, name),
            data_key("environment", here): environment(place, name),
            data_key("trajectories", here): listed,
        }
        if self._only or not chosen.steps:
            grouped = groups(place, name, limit=_MOST_GROUPS)
            kept = _with_shown(grouped["groups"], shown)
            while grouped["next"] is not None and len(kept) < _MOST_GROUPS:
                grouped = groups(place, name, after=grouped["next"], limit=_MOST_GROUPS)
                kept += _with_shown(grouped["groups"], shown)
            answers[data_key("groups", here)] = grouped | {"groups": kept, "next": None}
        if not self._only:
            answers |= self._analyses(place, name)
        self._write(place, answers)
        for number in chosen.steps:
            answer = step(place, name, number)
            answer |= {
                side: answer[side] if answer[side] in chosen.steps else None
                for side in ("previous", "next")
            }
            if self._only:
                answer |= {"groups": _with_shown(answer["groups"], shown)}
            self._write(place, {data_key("step", {**here, "step": number}): answer})
        for id_ in chosen.ids:
            try:
                self._write(place, dict(self._of_trajectory(place, id_, name)))
            except HrmError as error:
                self.leave_out("trajectories that cannot be read", 1)
                self.problems.append(
                    {"place": place.id, "message": error.message, "hint": error.hint}
                )
        return len(chosen.ids)

    def _analyses(self, place: Place, run: str) -> dict[str, Any]:
        """Answers of the pages of a run's analyses (none if it has no analysis)."""
        here = {"place": place.id, "run": run}
        listed = analyses(place, run)
        if not listed["analyses"]:
            return {}
        found = {data_key("analyses", here): listed}
        for each in listed["analyses"]:
            named = {**here, "name": each["name"]}
            found[data_key("analysis", named)] = analysis(place, run, each["name"])
        return found

    def _of_trajectory(self, place: Place, id_: str, run: str) -> Iterator[tuple[str, Any]]:
        whole = trajectory(place, id_)
        thread = whole["header"]["thread"]
        here = {"place": place.id}
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
        """Tokens of a call. `runs`: runs whose judgement is shown with the tokens, each with the
        names under which the page asks for it.
        """
        for run, names in runs.items():
            found = tokens(place, call, to=_MOST_TOKENS, run=run)
            self.leave_out("tokens", found["total"] - found["to"])
            for name in dict.fromkeys(names):
                yield (
                    data_key("tokens", {"place": place.id, "call": call, "run": name}),
                    found | {"total": found["to"]},
                )

    def _write(self, place: Place, answers: Mapping[str, Any]) -> None:
        """Write answers, with the full texts that were cut in them."""
        texts: dict[str, Any] = {}
        for item, field, chars in set(_cut_places(list(answers.values()))):
            key = data_key("blob", {"place": place.id, "item": item, "field": field})
            if chars > _MOST_TEXT:
                self.leave_out("long texts", 1)
            elif key not in self._keys:
                text = whole_text(place, item, field)
                texts[key] = {"text": text, "from": 0, "chars": len(text), "next": None}
        # write only after all are read, so if an answer cannot be read, none of them is in the copy
        for key, value in (*answers.items(), *texts.items()):
            self._store(key, value)

    def _store(self, key: str, value: Any) -> None:
        """Write an answer as a `script` element, escaped so that no text in it can end the element."""
        if key not in self._keys:
            self._keys.add(key)
            told = json_text(value).replace("<", "\\u003c")
            self._file.write(
                f'<script type="application/json" data-key="{escape(key)}">{told}</script>\n'
            )

    def compared(self, places: Sequence[Place], runs: Sequence[dict[str, Any]]) -> None:
        """Write comparisons of the evaluations: of all of them, and of each two."""
        evaluated = [(run["place"], run["run"]) for run in runs if run["kind"] == "eval"]
        self.leave_out("evaluations in comparisons", len(evaluated) - _MOST_COMPARED)
        named = evaluated[:_MOST_COMPARED]
        chosen = [*permutations(named, 2), *([tuple(named)] if len(named) > 2 else [])]
        for several in chosen:
            key = evaluations_key(several)
            try:
                answer = evaluations(places, key)
            except HrmError:  # no common problem, or too many trajectories
                continue
            self._store(data_key("evaluations", {"runs": key}), answer)

    def datasets(
        self, places: Sequence[Place], folder: Path, runs: Sequence[dict[str, Any]]
    ) -> None:
        """Write the list of data sets, and the examples of the newest version of each."""
        found = datasets_of(places, folder, runs)
        self._store(data_key("datasets", {}), found)
        seen = set[str]()
        for each in found["datasets"]:
            if each["name"] not in seen:
                seen.add(each["name"])
                named = {"name": each["name"], "version": each["version"]}
                try:
                    shown = dataset(places, folder, **named, after=0, limit=_MOST_EXAMPLES)
                except HrmError:  # two versions of one number, which the list reports
                    continue
                self.leave_out("examples", each["examples"] - len(shown["rows"]))
                self._store(data_key("dataset", named), {**shown, "next": None})

    def everywhere(
        self, places: Sequence[Place], runs: Sequence[dict[str, Any]], *, datasets: bool
    ) -> None:
        """Add the answers that every page needs: the list of runs, and facts about the copy.
        `datasets`: True if the copy has a list of data sets.
        """
        still = [{**run, "live": False} for run in runs]
        listed = [
            {"id": place.id, "where": place.where, "problem": place.problem} for place in places
        ]
        about = {
            "version": __version__,
            "fork": False,
            "static": True,
            "environment": False,
            "datasets": datasets,
            "places": listed,
        }
        self._store(
            data_key("runs", {}), {"runs": still, "bare_threads": [], "problems": self.problems}
        )
        self._store(data_key("about", {}), {**about, "left_out": self.left_out})


def _with_shown(found: Sequence[dict[str, Any]], shown: Collection[str]) -> list[dict[str, Any]]:
    """Groups with a rollout in the copy."""
    return [
        group for group in found if any(one["trajectory"] in shown for one in group["rollouts"])
    ]


def _chosen(place: Place, run: dict[str, Any], most: int, only: frozenset[str]) -> _Chosen:
    """Trajectories of the newest steps, then trajectories without a step. `only`: ids to choose
    from (empty: all).
    """
    rows = trajectories(place, run["run"], limit=10**6)["rows"]
    by_step: dict[int, list[str]] = {}
    apart: list[str] = []
    for row in rows:
        if only and row[1] not in only:
            continue
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
    """Texts that are cut in an answer, as (item, field, length)."""
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        if table.get("cut") is True and isinstance(table.get("blob"), dict):
            yield table["blob"]["item"], table["blob"]["field"], table["chars"]
        for inner in table.values():
            yield from _cut_places(inner)
    elif isinstance(value, (list, tuple)):
        for inner in cast("Sequence[Any]", value):
            yield from _cut_places(inner)
