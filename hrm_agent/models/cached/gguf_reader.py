"""Reader of a GGUF file's head for files that may be damaged or malicious.

The reader of the package `gguf` trusts lengths: it continues beyond the end of the file, and keeps
an object for each item of an array. Here arrays are skipped, and nothing is read beyond the end.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from gguf import GGUFReader, GGUFValueType

__all__ = ["HeadReader"]

_MOST_ITEMS = 1 << 22
"""Maximum number of items in all arrays together, since the conversion keeps about a kilobyte for
each item. The largest vocabularies need a third of this number.
"""

Value = TypeVar("Value", str, int)


class HeadReader(GGUFReader):
    """Reader of single values and tensors of a GGUF file. Raises `ValueError` or similar errors if
    the file is damaged.
    """

    _items = 0

    def value(self, key: str, kind: type[Value]) -> Value | None:
        """Value of a key (None if the file has none). Raises `ValueError` for another type."""
        field = self.get_field(key)
        if field is None:
            return None
        value = None if field.types[0] == GGUFValueType.ARRAY else field.contents()
        if type(value) is not kind:
            raise ValueError(
                f"{key} is {'an array' if value is None else repr(value)}, not of type"
                f" {kind.__name__}"
            )
        return value

    def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
        found = super()._get(offset, dtype, count, override_order)
        if len(found) < int(count):
            raise ValueError(f"it ends before byte {offset + int(count):,}")
        return found

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[Any], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        kind = GGUFValueType(self._get(orig_offs, np.uint32)[0])
        count = int(self._get(orig_offs + 4, np.uint64)[0])
        self._items += count
        if self._items > _MOST_ITEMS:
            raise ValueError(f"arrays of {self._items:,} items")
        end = orig_offs + 12
        if kind == GGUFValueType.STRING:
            for _ in range(count):
                end += 8 + int(self._get(end, np.uint64)[0])
        elif kind == GGUFValueType.ARRAY:
            raise ValueError("an array of arrays")
        else:
            end += count * np.dtype(self.gguf_scalar_to_np[kind]).itemsize
        if end > len(self.data):
            raise ValueError(f"it ends before byte {end:,}")
        return end - orig_offs, [], [], [GGUFValueType.ARRAY]
