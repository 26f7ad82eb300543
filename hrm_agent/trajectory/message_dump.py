"""JSON form of a message, in which the record shows what a model was sent."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

__all__ = ["message_dump"]


def message_dump(
    message: BaseMessage, fallback: Callable[[Any], Any] | None = None
) -> dict[str, Any]:
    """Message as JSON values. Bytes, such as those of an image, are shown as base64 text (RFC 4648,
    section 4).

    `fallback`: function that returns what to show for an object without a JSON form (None: such an
    object raises `ValueError`).
    """
    fields: dict[str, Any] = {**vars(message), **(message.__pydantic_extra__ or {})}
    shown = {name: _without_bytes(value) for name, value in fields.items() if _holds_bytes(value)}
    plain = message.model_copy(update=shown) if shown else message
    return plain.model_dump(mode="json", warnings=False, fallback=fallback)


def _holds_bytes(value: Any) -> bool:
    if not value or isinstance(value, str):
        return False
    if isinstance(value, dict):
        held = cast("dict[Any, Any]", value)
        return any(map(_holds_bytes, held)) or any(map(_holds_bytes, held.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(_holds_bytes, cast("Iterable[Any]", value)))
    return isinstance(value, (bytes, bytearray))


def _without_bytes(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {_without_bytes(name): _without_bytes(item) for name, item in items}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_without_bytes(item) for item in cast("Iterable[Any]", value)]
    return value
