"""How the text of `--tasks` is read: which family it names, and what follows:
`LOCATION?parameter=value&...`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from hrm_agent.errors import TaskError, nearest
from hrm_agent.training.tasks.base import Task

__all__ = [
    "FAMILY_NAMES",
    "MODULE",
    "PACKAGE",
    "Columns",
    "Loader",
    "file_of",
    "kind_of",
    "literal",
    "module_name",
    "one_line",
    "read_columns",
    "read_parameters",
]

FAMILY_NAMES = (
    "aime",
    "arc_agi",
    "csv",
    "hf",
    "jsonl",
    "mix",
    "parquet",
    "reasoning_gym",
    "store",
    "verifiers",
    "word_problems",
)
"""What may stand before the colon; no module and no package of such a name is looked for."""
MODULE = "module"
"""Kind of a spec that names an attribute of a user's module."""
PACKAGE = "package"
"""Kind of a spec that can only be a name that an installed package has registered."""
_BY_ENDING = {".csv": "csv", ".jsonl": "jsonl", ".parquet": "parquet"}
_MODULE = re.compile(
    r"(?P<module>(?:[^:?]*/)?[^:?/]+\.py|[A-Za-z_][\w.]*):(?P<attribute>[A-Za-z_]\w*)(?:\?(?P<query>.*))?",
    re.DOTALL,
)

Loader = Callable[..., list[Task]]
"""(rest of the spec, *, split, seed, count, folder) -> tasks. `folder`: relative names are names in
it.
"""
Columns = Mapping[str, str]
"""Role of a column (`question`, `answer`, `id`) -> its name; empty: there is none."""

_COLUMNS = {"question": "question", "answer": "answer", "id": ""}


def kind_of(spec: str) -> tuple[str, str]:
    """The family, `MODULE` or `PACKAGE` that a spec names, and the part of it that is for that."""
    name, _, rest = spec.partition(":")
    if name in FAMILY_NAMES:
        return name, rest
    location = spec.partition("?")[0]
    if (family := _BY_ENDING.get(Path(location).suffix)) and (
        ":" not in location or location[0] in "./~"
    ):
        return family, spec
    return (MODULE if _MODULE.fullmatch(spec) else PACKAGE), spec


def module_name(spec: str) -> tuple[str, str, str]:
    """Module (or file), attribute and query of a spec of kind `MODULE`."""
    named = _MODULE.fullmatch(spec)
    assert named is not None
    return named["module"], named["attribute"], named["query"] or ""


def file_of(spec: str, split: str, folder: Path | None) -> tuple[Path, str]:
    """The file that a spec names, `{split}` replaced in it, and its query. `folder`: of a relative
    name; None: here.
    """
    location, _, query = spec.partition("?")
    return Path(folder or "", Path(unquote(location).replace("{split}", split)).expanduser()), query


def literal(text: str) -> Any:
    """A JSON value; text that is none stands for itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def one_line(error: BaseException) -> str:
    """Kind and text of an error of somebody else's code, without line breaks and without the stop
    at its end.
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(".: ")


def read_parameters(query: str) -> dict[str, Any]:
    """Each parameter with its value: parsed as JSON, or the text itself if it is not JSON."""
    return {name: literal(text) for name, text in parse_qsl(query, keep_blank_values=True)}


def read_columns(family: str, query: str, others: Sequence[str] = ()) -> dict[str, str]:
    """Names of the columns by role, and the parameters of `others` as far as they are given. Raises
    `TaskError`.
    """
    given = dict(parse_qsl(query, keep_blank_values=True))
    known = (*_COLUMNS, *others)
    for name in given:
        if name not in known:
            hint = f"{nearest(name, known)} Known: {', '.join(known)}.".strip()
            raise TaskError(f"{family}: has no parameter {name!r}.", hint)
    return {**_COLUMNS, **given}
