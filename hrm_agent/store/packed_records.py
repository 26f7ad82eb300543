"""Records of calls in a sixth of their bytes, for runs that are only read from now on.

Most of a record is what every record has: names of fields, and values that are nearly always the same. So it is
deflated against a dictionary of these. A record that is written is not packed: that would cost as much time as the
rest of writing it. `hrm-agent store prune --keep-steps` packs what it leaves of a training's older rollouts.

The dictionary is part of the store's format: a byte changed in it makes all packed records unreadable.
"""

from __future__ import annotations

import zlib

__all__ = ["packed", "plain_record"]

_PACKED = b"\x01"
"""The first byte of a packed record; one that is not begins with a brace."""
_MOST_BYTES = 1 << 26
"""Of a record that is packed: a small one that claims to be larger was not made here."""
_DICTIONARY = (
    b'{"idempotency_key":null,"repeated_of":null,"session":null,"status":"error","content":"Trac'
    b'eback (most recent call last):\\n  File \\"<python>\\", line 1, in <module>\\nNameError: name '
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


def packed(record: bytes) -> bytes:
    """A record as it is kept in a run that is only read. One that is packed already, or huge, stays as it is."""
    if record.startswith(_PACKED) or len(record) > _MOST_BYTES:
        return record
    deflate = zlib.compressobj(
        9, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_DEFAULT_STRATEGY, _DICTIONARY
    )
    return _PACKED + deflate.compress(record) + deflate.flush()


def plain_record(stored: bytes) -> bytes:
    """The record, packed or not. Raises `ValueError` for one that is damaged."""
    if not stored.startswith(_PACKED):
        return stored
    inflate = zlib.decompressobj(-zlib.MAX_WBITS, _DICTIONARY)
    try:
        record = inflate.decompress(stored[len(_PACKED) :], _MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"it cannot be unpacked: {error}") from error
    if not inflate.eof or inflate.unconsumed_tail or inflate.unused_data:
        raise ValueError("it is cut short, or longer than any record")
    return record
