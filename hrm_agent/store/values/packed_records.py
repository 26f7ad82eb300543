"""Compression of finished runs that will only be read: records to a sixth, tokens to a third.

Most of a record is common to all records: names of fields, and values that are nearly always the
same. So a record is deflated with a dictionary of these: one for calls and one for trajectories.
Records are not packed when they are written, as that would double the time of writing. `hrm-agent
store prune --keep-steps` packs the remaining records of a training's older rollouts.

Token ids and log-probs are stored by byte planes: all first bytes, then all second bytes, and so
on, since most of the higher bytes are alike.

The dictionaries are part of the store's format. A changed byte in one makes all records that were
packed with it unreadable.
"""

from __future__ import annotations

import zlib

__all__ = ["packed", "packed_mask", "packed_numbers", "plain_mask", "plain_numbers", "plain_record"]

_MOST_BYTES = 1 << 26
"""Maximum number of unpacked bytes. Packed data that claims more was not made by this module."""
_CALLS = (
    b'{"idempotency_key":null,"repeated_of":null,"session":null,"status":"error","content":"Trac'
    b'eback (most recent call last):\\n  File \\"<python>\\", line 1, in <module>\\nNameError:'
    b" name "
    b'\'x\' is not defined","stdout":"","stderr":"","value":null,"output":null,"duration_seconds":'
    b'0.0,"cpu_seconds":0.0,"peak_memory_bytes":0,"tool_call_id":"","name":"python","arguments":'
    b'{"code":"print("},"status":"ok","__pregel_pull/tools","1/reason/__pregel_pull/reason","sta'
    b'rted_at":17,"ended_at":17,"type":"tool_call"},"invalid_tool_calls":[],"usage_metadata":{"i'
    b'nput_tokens":1,"output_tokens":1,"total_tokens":1}},"queue_seconds":0.0}{"id":"","identity'
    b'":{"thread_id":"/step-1/0/0","checkpoint_id":"1f1","root_checkpoint_id":"1f1","checkpoint_'
    b'ns":"reason:","task_id":"","node":"reason","path":"","attempt":1},"call_index":0,"sample_i'
    b'ndex":0,"request_hash":"","context_hash":"","tools_hash":"","model":"builtin:cold-start","'
    b'answered_by":null,"policy_version":0,"parent":null,"branch_reason":"root","branch_reason":'
    b'null,"branch_of":null,"logprob_kind":"raw","sampling":{"temperature":1.0,"top_p":1.0,"max_'
    b'tokens":256,"seed":,"stop":[]},"sampling_sent":null,"usage":null,"finish_reason":"stop","c'
    b'onstrained":false,"untrainable":null,"response":{"content":"<reason></reason><answer>\\\\box'
    b'ed{}</answer>","additional_kwargs":{},"response_metadata":{"call_id":"","model_name":"buil'
    b'tin:cold-start","finish_reason":"stop","policy_version":0,"started_at":17,"ended_at":17,"t'
    b'hread_id":""},"type":"ai","name":null,"id":"","tool_calls":[{"name":"python","args":{"code'
    b'":"'
)
_TRAJECTORIES = (
    b'"status":"failed","stop_reason":"error","error":null,"answer":null,"rewards":{},"status":"completed"'
    b',"stop_reason":"length","error":null,"answer":null,"rewards":{"correct":0.0},"turns":[{"prompt":"","'
    b'answer":"","ended_at":17}],"forked_from":{"trajectory_id":"","checkpoint_id":"1f1"}{"schema_version"'
    b':2,"id":"","thread_id":"/step-1/0/0","run_id":"","group_id":"/step-1/0","sample_index":0,"task":{"id'
    b'":"","family":"word_problems","prompt":" How many ? Round to 2'
    b' decimals.","answer":"","metadata":{"t'
    b'emplate":"","numbers":[1]}},"graph":"tool_loop","policy":"builtin:cold-start","policy_version":0,"st'
    b'atus":"completed","stop_reason":"answer","error":null,"answer":"<reason>Python has computed'
    b" it.</rea"
    b'son><answer>\\\\boxed{}</answer>","rewards":{"correct":1.0},"turns":[],"forked_from":null,"started_a'
    b't":17,"ended_at":17}'
)
_DICTIONARIES = {b"\x01": _CALLS, b"\x02": _TRAJECTORIES}
"""Dictionaries by the first byte of a packed record. Other records begin with a brace."""
_MARK_OF = {"call": b"\x01", "tool": b"\x01", "trajectory": b"\x02"}
_MASK = b"\x02"
"""First byte of a packed mask. Other masks begin with 0 or 1."""
_NUMBERS = (b"\x01", b"\x02\x00")
"""Prefixes of a packed array. The prefix is chosen so that the length is no multiple of four, since
the length of an unpacked array always is one.
"""


def packed(record: bytes, kind: str) -> bytes:
    """Packed form of a record, for a run that is only read. A packed or huge record is unchanged.

    `kind`: `call`, `tool` or `trajectory`.
    """
    if record[:1] in _DICTIONARIES or len(record) > _MOST_BYTES:
        return record
    mark = _MARK_OF[kind]
    return mark + _deflated(record, _DICTIONARIES[mark])


def plain_record(stored: bytes) -> bytes:
    """Record, whether packed or not. Raises `ValueError` for a damaged one."""
    dictionary = _DICTIONARIES.get(stored[:1])
    return stored if dictionary is None else _inflated(stored[1:], dictionary)


def packed_numbers(array: bytes) -> bytes:
    """Packed form of an array of four-byte numbers. A packed, empty or huge array is unchanged."""
    if not array or len(array) % 4 or len(array) > _MOST_BYTES:
        return array
    deflated = _deflated(b"".join(array[byte::4] for byte in range(4)))
    return next(mark + deflated for mark in _NUMBERS if (len(mark) + len(deflated)) % 4)


def plain_numbers(stored: bytes) -> bytes:
    """Array, whether packed or not. Raises `ValueError` for a damaged one."""
    if len(stored) % 4 == 0:
        return stored
    mark = next((mark for mark in _NUMBERS if stored.startswith(mark)), None)
    if mark is None:
        raise ValueError("it is cut short")
    planes = _inflated(stored[len(mark) :])
    size = len(planes) // 4
    array = bytearray(4 * size)
    if len(planes) != len(array):
        raise ValueError("it is cut short")
    for byte in range(4):
        array[byte::4] = planes[byte * size : (byte + 1) * size]
    return bytes(array)


def packed_mask(mask: bytes) -> bytes:
    """Packed form of a mask, with a byte of 0 or 1 for each token."""
    return (
        mask
        if not mask or mask.startswith(_MASK) or len(mask) > _MOST_BYTES
        else _MASK + _deflated(mask)
    )


def plain_mask(stored: bytes) -> bytes:
    """Mask, whether packed or not. Raises `ValueError` for a damaged one."""
    return _inflated(stored[1:]) if stored.startswith(_MASK) else stored


def _deflated(data: bytes, dictionary: bytes = b"") -> bytes:
    deflate = zlib.compressobj(
        9, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_DEFAULT_STRATEGY, dictionary
    )
    return deflate.compress(data) + deflate.flush()


def _inflated(data: bytes, dictionary: bytes = b"") -> bytes:
    inflate = zlib.decompressobj(-zlib.MAX_WBITS, dictionary)
    try:
        plain = inflate.decompress(data, _MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"it cannot be unpacked: {error}") from error
    if not inflate.eof or inflate.unconsumed_tail or inflate.unused_data:
        raise ValueError("it is cut short, or longer than any record")
    return plain
