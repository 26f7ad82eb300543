"""What the writer and the reader of ATIF share: content, and the part of an answer that ATIF has no
field for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from langchain_core.messages import BaseMessage

from hrm_agent.trajectory.formats.shared.rows import Row
from hrm_agent.trajectory.schema import Call

__all__ = ["ATIF_VERSION", "OURS", "blocks_of", "call_record", "parts_of", "response_of"]

ATIF_VERSION = "ATIF-v1.8"
OURS = "hrm_agent"
"""Key of `extra` under which stands what makes a document a trajectory again."""

_IMAGES = {
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "png": "image/png",
    "gif": "image/gif",
    "webp": "image/webp",
}
_DATA = re.compile(r"data:(image/(?:jpeg|png|gif|webp));base64,")


def parts_of(message: BaseMessage) -> str | list[Row]:
    """The content: text, or parts where an image is among them. A kind of part that ATIF lacks is
    named instead.
    """
    content: Any = message.content
    if isinstance(content, str):
        return content
    blocks = [
        {"type": "text", "text": one} if isinstance(one, str) else one
        for one in cast("list[Any]", content)
    ]
    if not any(
        _source(block) or block.get("type") in ("image", "audio", "file", "image_url")
        for block in blocks
    ):
        return message.text
    return [part for block in blocks if (part := _part(block)) is not None]


def _part(block: Mapping[str, Any]) -> Row | None:
    if block.get("type") == "text":
        return {"type": "text", "text": str(block.get("text") or "")}
    if source := _source(block):
        return {"type": "image", "source": source}
    if block.get("type") in ("tool_use", "tool_call", "thinking", "reasoning"):
        return None  # told in fields of their own
    return {
        "type": "text",
        "text": f"[a part of the type {block.get('type')}, which ATIF has no form for]",
    }


def _source(block: Mapping[str, Any]) -> Row | None:
    """Address and media type of an image; None for what is none, or none of the four types that
    ATIF knows.
    """
    if block.get("type") != "image_url":
        return None
    held = block.get("image_url")
    url = str(held.get("url") if isinstance(held, dict) else held or "")
    if found := _DATA.match(url):
        return {"media_type": found[1], "path": url}
    media = _IMAGES.get(url.partition("?")[0].rpartition(".")[2].lower())
    return {"media_type": media, "path": url} if media else None


def blocks_of(message: str | list[Row]) -> str | list[str | dict[str, Any]]:
    """The content of a message out of a document's: the other way round."""
    if isinstance(message, str):
        return message
    blocks: list[str | dict[str, Any]] = []
    for part in message:
        source = part.get("source")
        if part["type"] == "text":
            blocks.append({"type": "text", "text": part["text"]})
        elif part["type"] == "image" and source:
            blocks.append({"type": "image_url", "image_url": {"url": source["path"]}})
        else:
            blocks.append({"type": "text", "text": f"[{part['type']} {source and source['path']}]"})
    return blocks


def call_record(call: Call, step: Mapping[str, Any]) -> Row:
    """The call without its tokens and messages, and of its answer without what the step says."""
    record = call.model_dump(
        mode="json", exclude={"token_ids", "mask", "logprobs", "request", "response"}
    )
    said = response_of(step)
    held = call.response.items()
    record["response"] = {
        name: value for name, value in held if name not in said or said[name] != value
    }
    return record


def response_of(step: Mapping[str, Any]) -> Row:
    """What a step says of an answer, in the words of a LangChain message dump."""
    return {
        "type": "ai",
        "content": blocks_of(step["message"]),
        "tool_calls": [
            {
                "name": call["function_name"],
                "args": call["arguments"],
                "id": call["tool_call_id"],
                "type": "tool_call",
            }
            for call in step.get("tool_calls") or ()
        ],
    }
