"""Parts shared by the ATIF writer and reader: content, and the data of an answer for which ATIF has
no field.
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
"""Key of `extra` for the data that restores a trajectory from a document."""

_IMAGES = {
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "png": "image/png",
    "gif": "image/gif",
    "webp": "image/webp",
}
_DATA = re.compile(r"data:(image/(?:jpeg|png|gif|webp));base64,")


def parts_of(message: BaseMessage) -> str | list[Row]:
    """Content: text, or parts if an image is among them. A part that ATIF has no form for is
    replaced by its type.
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
        return None  # in separate fields
    return {
        "type": "text",
        "text": f"[a part of the type {block.get('type')}, which ATIF has no form for]",
    }


def _source(block: Mapping[str, Any]) -> Row | None:
    """Address and media type of an image (None for other blocks, and for types that ATIF does not
    have).
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
    """LangChain content of a document's message, the inverse of `parts_of`."""
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
    """Call without its tokens and messages, and without the parts of its answer that the step
    contains.
    """
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
    """Answer of a step as a LangChain message dump."""
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
