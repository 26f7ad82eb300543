"""Parser of the specs of `--tasks`: a family, then `LOCATION?parameter=value&...`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from hrm_agent.config import secret_in
from hrm_agent.errors import TaskError, nearest
from hrm_agent.training.tasks.base import Task

__all__ = [
    "FAMILY_NAMES",
    "MODULE",
    "PACKAGE",
    "WITHOUT_BOX",
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
    "bfcl",
    "csv",
    "dataset",
    "gpqa",
    "gsm8k",
    "hf",
    "ifeval",
    "jsonl",
    "math500",
    "mix",
    "openenv",
    "parquet",
    "reasoning_gym",
    "store",
    "verifiers",
    "word_problems",
)
"""Family names, which stand before the colon of a spec. They take precedence over modules and
packages of the same name.
"""
WITHOUT_BOX = ("bfcl", "gpqa", "ifeval", "openenv", "verifiers")
r"""Families whose verifiers need no `\boxed{}` in an answer."""
MODULE = "module"
"""Kind of a spec that names an attribute of a user's module."""
PACKAGE = "package"
"""Kind of a spec that is neither a family, a file nor a module, so that it can only be a name
registered by an installed package.
"""
_BY_ENDING = {".csv": "csv", ".jsonl": "jsonl", ".parquet": "parquet"}
_MODULE = re.compile(
    r"(?P<module>(?:[^:?]*/)?[^:?/]+\.py|[A-Za-z_][\w.]*):(?P<attribute>[A-Za-z_]\w*)(?:\?(?P<query>.*))?",
    re.DOTALL,
)

Loader = Callable[..., list[Task]]
"""Function (rest of the spec, *, split, seed, count, folder) -> tasks. Relative names are resolved
in `folder`.
"""
Columns = Mapping[str, str]
"""Role of a column (`question`, `answer`, `id`) -> name of the column (empty if there is none)."""

_COLUMNS = {"question": "question", "answer": "answer", "id": ""}


def kind_of(spec: str) -> tuple[str, str]:
    """Kind of a spec (a family, `MODULE` or `PACKAGE`), and the rest of the spec for the loader of
    that kind.
    """
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
    """Parts of a spec of kind `MODULE`: module or file, attribute, query."""
    named = _MODULE.fullmatch(spec)
    assert named is not None
    return named["module"], named["attribute"], named["query"] or ""


def file_of(spec: str, split: str, folder: Path | None) -> tuple[Path, str]:
    """File that a spec names, in which `{split}` is replaced, and query of the spec. `folder`:
    folder in which a relative name is resolved (None: the working directory).
    """
    location, _, query = spec.partition("?")
    return Path(folder or "", Path(unquote(location).replace("{split}", split)).expanduser()), query


def literal(text: str) -> Any:
    """Parsed JSON value, or the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def one_line(error: BaseException) -> str:
    """Class and text of an error in one line, without a full stop at the end."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(".: ")


def read_parameters(query: str) -> dict[str, Any]:
    """Parameters of a query with their values, parsed as JSON (a value that is not JSON
    is a text). Raises `TaskError` for an option that is named like a secret.
    """
    given = dict(parse_qsl(query, keep_blank_values=True))
    if (name := secret_in(given)) is not None:
        raise TaskError(
            f"The option {name!r} of the tasks is named like a secret, or holds a password, and"
            " options are recorded.",
            "Give it to the environment in another way, such as an environment variable.",
        )
    return {name: literal(text) for name, text in given.items()}


def read_columns(family: str, query: str, others: Sequence[str] = ()) -> dict[str, str]:
    """Names of the columns by role, and parameters of the query that are in `others`. Raises
    `TaskError` for any other parameter.
    """
    given = dict(parse_qsl(query, keep_blank_values=True))
    known = (*_COLUMNS, *others)
    for name in given:
        if name not in known:
            hint = f"{nearest(name, known)} Known: {', '.join(known)}.".strip()
            raise TaskError(f"{family}: has no parameter {name!r}.", hint)
    return {**_COLUMNS, **given}
