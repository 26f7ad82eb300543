"""Tokens of a call and of the calls that it extends: which of them the policy read, sampled, and
was trained on, and their texts.

No model is loaded and no foreign code runs. Tokenizers are read from the policies in the package,
from models fetched by name, and from model folders inside the place's own folder. No other path
that a store names is opened. A tokenizer's file is data for the `tokenizers` library.
"""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hrm_agent.errors import StoreError, to_install
from hrm_agent.models.cached.folders import models_cache
from hrm_agent.models.cached.known import KNOWN_MODELS
from hrm_agent.models.loading.policy_loader import BUILTIN_POLICIES
from hrm_agent.store import RunStore
from hrm_agent.store.browse.lists import overlays_of
from hrm_agent.store.browse.thread import CallTokens, call_tokens, path_of_call
from hrm_agent.trajectory import Call, Overlay, Trajectory, Verdict
from hrm_agent.viewer.json_text import NotThere, foreign, short
from hrm_agent.viewer.projections.groups import Damaged, overlay_data, step_begun_for

if TYPE_CHECKING:
    from hrm_agent.viewer.places import Place

__all__ = ["TokenTexts", "token_texts", "tokens"]

_MOST_BYTES_OF_TEXT = 1 << 26
"""Maximum bytes of a tokenizer's file."""
_SHIPPED = Path(__file__).parents[3] / "models" / "builtin"
_BYTES_FRAME = {
    256: "<|im_start|>",
    257: "<|im_end|>",
    258: "<tool_response>",
    259: "</tool_response>",
}


class TokenTexts:
    """Texts of the tokens of one vocabulary."""

    def __init__(self, name: str, pieces: dict[int, bytes | str]) -> None:
        """`pieces`: bytes of each token, or its text if the token always consists of whole
        characters.
        """
        self.name = name
        self._pieces = pieces

    def spell(self, ids: Sequence[int]) -> list[str]:
        """Text of each token. The bytes of a character are shown at the token that completes it."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        found: list[str] = []
        for id_ in ids:
            piece = self._pieces.get(id_, f"<{id_}>")
            if isinstance(piece, bytes):
                found.append(decoder.decode(piece))
            else:
                found.append(decoder.decode(b"", True) + piece)
                decoder.reset()
        return found


def token_texts(model: str, folder: Path | None) -> tuple[TokenTexts | None, str | None]:
    """Token texts of a model, or the reason why they cannot be shown. `folder`: folder of the
    place.
    """
    base = model.partition("?")[0]
    scheme, colon, rest = base.partition(":")
    if "scripted" in (base, scheme):
        pieces = {byte: bytes([byte]) for byte in range(256)}
        return TokenTexts("bytes", {**pieces, **_BYTES_FRAME}), None
    if colon and scheme == "builtin":
        if rest not in BUILTIN_POLICIES:
            return None, f"There is no built-in policy {rest[:80]!r} here."
        return _from_file(_SHIPPED / rest / "tokenizer.json")
    if base in KNOWN_MODELS and (fetched := models_cache() / base / "tokenizer.json").is_file():
        return _from_file(fetched)
    found = _inside(base, folder)
    if found is None:
        return None, "Its tokenizer is not in the folder of this run. Other folders are not opened."
    return _from_file(found)


def _inside(name: str, folder: Path | None) -> Path | None:
    """File of the tokenizer of a model that was saved in the place's folder, even if that folder
    was moved (None if missing).
    """
    if folder is None or "\0" in name:
        return None
    root = folder.resolve()
    parts = Path(name).parts
    tails = [parts[n + 1 :] for n, part in enumerate(parts) if part == folder.name] + [parts]
    for tail in tails:
        candidate = root.joinpath(*tail, "tokenizer.json")
        try:
            real = candidate.resolve()
            if real.is_relative_to(root) and real.is_file():
                return real
        except (OSError, ValueError, RuntimeError):
            continue
    return None


def _from_file(path: Path) -> tuple[TokenTexts | None, str | None]:
    try:
        facts = path.stat()
    except OSError:
        return None, "The tokenizer of this model is missing."
    if facts.st_size > _MOST_BYTES_OF_TEXT:
        return None, "The file of this model's tokenizer is too large."
    if find_spec("tokenizers") is None:
        return None, f"The library that reads tokenizers is not installed: `{to_install('train')}`."
    return _read(path, facts.st_mtime_ns)


@lru_cache(maxsize=8)
def _read(path: Path, changed: int) -> tuple[TokenTexts | None, str | None]:
    """Read a tokenizer's file. `changed` is a part of the cache key, so a changed file is read
    again.
    """
    from tokenizers import Tokenizer

    del changed
    try:
        tokenizer: Any = Tokenizer.from_file(str(path))
        added = {
            int(id_): str(token.content)
            for id_, token in tokenizer.get_added_tokens_decoder().items()
        }
        vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=False)
        decoder = tokenizer.decoder
        in_bytes = "ByteLevel" in str(type(decoder)) or (
            decoder is not None and '"ByteLevel"' in str(decoder.__getstate__())
        )
    except Exception as error:
        return (
            None,
            f"The tokenizer of this model cannot be read: {' '.join(str(error).split())[:200]}.",
        )
    pieces: dict[int, bytes | str] = {}
    for text, id_ in vocabulary.items():
        if not in_bytes:
            pieces[id_] = text.replace("\N{LOWER ONE EIGHTH BLOCK}", " ")
            continue
        spelled = [_BYTE_OF.get(character) for character in text]
        pieces[id_] = (
            text if None in spelled else bytes(byte for byte in spelled if byte is not None)
        )
    return TokenTexts(path.parent.name, pieces | added), None


_SHOWN = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(256) if byte not in set(_SHOWN)]
_BYTE_OF = {chr(byte): byte for byte in _SHOWN} | {
    chr(256 + number): byte for number, byte in enumerate(_HIDDEN)
}
"""Bytes by the characters that spell them in GPT-2's vocabulary."""


_MOST = 100_000
"""Maximum tokens of one answer."""
_ANALYSED = "analysis/tokens.jsonl"
"""File of an analysis in the run's folder."""
_MOST_BYTES = 1 << 28
"""Maximum bytes of an analysis file."""


def tokens(place: Place, call: str, from_: int = 0, to: int = 0, run: str = "") -> dict[str, Any]:
    """`GET tokens`: tokens `from` to `to` of the call's path. If `to` is 0, there are as many as
    one answer may have.
    """
    store = place.store()
    damaged = Damaged()
    ids = path_of_call(store, call)
    if not ids:
        raise NotThere(
            f"There is no model call {call[:80]!r} in {place.where}.", "It may have been deleted."
        )
    known = call_tokens(store, ids)
    calls = {each.id: each for each in damaged.readable(store.journal.calls_among, ids)}
    starts = [0]  # start of each call's tokens, and the end of the last call's
    for id_ in ids:
        starts.append(starts[-1] + (len(known[id_].token_ids) if id_ in known else 0))
    total = starts[-1]
    last = min(to or total, total, from_ + _MOST)
    first = min(from_, last)
    asked = calls.get(call)
    overlay, header = _judged(store, asked, run, damaged)
    why_untrained = {id_: _why_untrained(calls.get(id_), overlay, header) for id_ in ids}
    weights: dict[str, float | None] = dict.fromkeys(ids)
    for id_ in ids:
        if overlay is not None and why_untrained[id_] is None:
            credit = overlay.credit
            weights[id_] = credit.get(id_) if credit is not None else overlay.advantage
    columns = _columns(ids, known, starts, (first, last), weights)
    model = asked.model if asked else ""
    spelling, why = token_texts(model, place.folder)
    spelled = spelling.spell(columns["ids"]) if spelling is not None else None
    sampling = {id_: each.sampling for id_, each in calls.items() if each.sampling is not None}
    return {
        "call": call,
        "model": short(model),
        "trajectory": header.id if header else None,
        "run": overlay.run_id if overlay else run or (header.run_id if header else ""),
        "path": [
            {
                "call": id_,
                "role": short(calls[id_].identity.role) if id_ in calls else None,
                "index": number,
                "from": starts[number],
                "to": starts[number + 1],
                "temperature": sampling[id_].temperature if id_ in sampling else None,
                "logprob_kind": calls[id_].logprob_kind.value if id_ in calls else None,
                "weight": foreign(weights[id_]),
                "why_untrained": why_untrained[id_],
            }
            for number, id_ in enumerate(ids)
        ],
        "total": total,
        "from": first,
        "to": last,
        "codec": spelling.name if spelling is not None else None,
        "why_no_text": why,
        **columns,
        "text": spelled,
        **_analysis(place.folder, ids, starts, (first, last)),
        "analysis": {
            "folder": place.folder is not None,
            "there": place.folder is not None and (place.folder / _ANALYSED).is_file(),
            "steps": _steps_word(header),
        },
        "verdict": overlay.verdict.value if overlay else None,
        "reason": overlay_data(overlay)["reason"],
        "temperature": sampling[call].temperature if call in sampling else None,
        "truncated": last < total,
        "damaged": damaged.data(),
    }


def _judged(
    store: RunStore, call: Call | None, run: str, damaged: Damaged
) -> tuple[Overlay | None, Trajectory | None]:
    """Judgement of a call's trajectory, and the trajectory. `run`: run that judged it (empty: the
    run that made the trajectory).
    """
    if call is None:
        return None, None
    with suppress(StoreError):
        for header in store.journal.headers("thread_id = ?", (call.identity.thread_id,)):
            return (
                overlays_of(store, run or header.run_id, damaged, ids=[header.id]).get(header.id),
                header,
            )
    return None, None


def _why_untrained(
    call: Call | None, overlay: Overlay | None, header: Trajectory | None
) -> str | None:
    """Reason why the tokens of a call are not trained on (None if they are trained on)."""
    if call is None or header is None:
        return "the call cannot be read" if call is None else None
    if call.identity.thread_id != header.thread_id:
        return "it belongs to the run from which this run was forked, and is trained on there"
    if call.model != header.policy:
        return "another model's"
    if call.constrained:
        return "it was constrained to a schema while it was sampled"
    if call.why_untrainable is not None:
        return short(call.why_untrainable)
    if overlay is None:
        return "no run has judged its trajectory"
    if overlay.verdict is not Verdict.KEPT:
        return f"its trajectory was not trained on ({overlay.verdict.value})"
    if overlay.credit is not None and call.id not in overlay.credit:
        return "it got no credit"
    return None


def _columns(
    ids: Sequence[str],
    known: Mapping[str, CallTokens],
    starts: Sequence[int],
    span: tuple[int, int],
    weights: Mapping[str, float | None],
) -> dict[str, Any]:
    found: dict[str, list[Any]] = {
        "ids": [],
        "mask": [],
        "logprob": [],
        "call_of": [],
        "weight": [],
    }
    for number, id_ in enumerate(ids):
        a = max(span[0] - starts[number], 0)
        b = min(span[1], starts[number + 1]) - starts[number]
        if id_ not in known or a >= b:
            continue
        own = known[id_]
        mask = own.mask[a:b].ljust(b - a, b"\0")
        logprobs = [*own.logprobs[a:b], *[math.nan] * (b - a - len(own.logprobs[a:b]))]
        weight = foreign(weights[id_])
        found["ids"] += own.token_ids[a:b]
        found["mask"] += [1 if sampled else 0 for sampled in mask]
        found["logprob"] += [
            # seven digits, as many as a 32-bit float has
            float(f"{p:.7g}") if sampled and math.isfinite(p) else None
            for p, sampled in zip(logprobs, mask, strict=True)
        ]
        found["call_of"] += [number] * (b - a)
        found["weight"] += [weight if sampled else None for sampled in mask]
    return found


def _analysis(
    folder: Path | None, ids: Sequence[str], starts: Sequence[int], span: tuple[int, int]
) -> dict[str, Any]:
    """Entropy and marks of the tokens, from the analysis file of the run (null without this file)."""
    lines = _analysed(folder, set(ids))
    if not lines:
        return {"entropy": None, "marks": None}
    entropy: list[float | None] = [None] * (span[1] - span[0])
    marks: list[str | None] = [None] * (span[1] - span[0])
    for number, id_ in enumerate(ids):
        line = lines.get(id_)
        offset = starts[number] - span[0]
        length = starts[number + 1] - starts[number]
        for place, value in enumerate(_list(line, "entropy")[:length]):
            if 0 <= place + offset < len(entropy) and isinstance(value, (int, float)):
                entropy[place + offset] = foreign(float(value))
        for kind in ("forking", "reflection"):
            for place in _list(line, kind):
                if type(place) is int and 0 <= place < length and 0 <= place + offset < len(marks):
                    marks[place + offset] = kind
    return {"entropy": entropy, "marks": marks}


def _steps_word(header: Trajectory | None) -> str | None:
    """Value of `--steps` with which `hrm-agent analyze` covers the trajectory (None outside of a
    run).
    """
    if header is None or not header.run_id:
        return None
    step = step_begun_for(header.run_id, header.group_id)
    part = header.group_id.removeprefix(f"{header.run_id}/").partition("/")[0]
    return str(step) if step is not None else part if part.startswith("eval-") else None


def _list(line: Mapping[str, Any] | None, name: str) -> list[Any]:
    found: Any = line.get(name) if line is not None else None
    return cast("list[Any]", found) if isinstance(found, list) else []


def _analysed(folder: Path | None, ids: set[str]) -> dict[str, dict[str, Any]]:
    """Analysis lines of these calls. Each line begins with the id of its call, so other lines are
    skipped without parsing.
    """
    path = folder / _ANALYSED if folder is not None else None
    found: dict[str, dict[str, Any]] = {}
    with suppress(OSError):
        if path is None or not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return found
        wanted = [json.dumps(id_).encode() for id_ in ids]
        with path.open("rb") as file:
            for line in file:
                if any(id_ in line[:200] for id_ in wanted):
                    with suppress(ValueError, RecursionError):
                        row: Any = json.loads(line)
                        if isinstance(row, dict) and cast("dict[str, Any]", row).get("call") in ids:
                            found[str(row["call"])] = cast("dict[str, Any]", row)
    return found
