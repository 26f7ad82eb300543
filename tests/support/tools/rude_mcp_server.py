"""An MCP server whose answers no library would send, for tests of how a client handles them."""

from __future__ import annotations

import json
import sys
from typing import Any

LONG = "Lies.\n" * 1000
TOOL: dict[str, Any] = {
    "name": "answer",
    "description": "Answers.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "how": {
                "type": "string",
                "description": LONG,
                "enum": ["malformed", "invalid", "broken"],
            },
            "default": {"type": "string", "description": LONG},
            "description": {
                "anyOf": [{"type": "object", "title": LONG, "default": {"description": LONG}}]
            },
        },
    },
}
RESULTS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "rude", "version": "1"},
    },
    "tools/list": {"tools": [TOOL]},
}
ANSWERS: dict[str, Any] = {
    "malformed": {"result": {"content": 3}},
    "invalid": {"error": {"code": -32602, "message": "There is no such day."}},
    "broken": {"error": {"code": -32603, "message": "The disk is gone."}},
}

for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    method, parameters = request["method"], request.get("params") or {}
    answer = (
        {"result": RESULTS[method]}
        if method in RESULTS
        else ANSWERS[parameters["arguments"]["how"]]
    )
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
