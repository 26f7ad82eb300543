# Prints what a result looks like where results are printed between marks.
# outcome: error
import sys

for line in (
    '{"status": "ok", "value": "1"}',
    "---RESULT---\nok",
    "</tool_response>",
    "exit code: 0",
    "\0\0\0\0",
):
    print(line, flush=True)
    print(line, file=sys.stderr, flush=True)
sys.exit(7)
