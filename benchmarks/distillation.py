"""Distillation: a weak small policy, before and after it learns from a hosted model's calls, role
by role.

    python -m benchmarks.distillation [--runs 200] [--problems 256] [--student-steps 400] [--steps 150] [--json FILE]

The teacher is a server with OpenAI's API on loopback: it returns texts and tool calls without token
ids, like a hosted model. It runs the trained policy of the package. It solves `--runs` problems
with the graph of four roles; `hrm-agent export --format chat` writes every call of every role, and
`hrm-agent train sft --from` learns from the correct runs. The student is the package's cold start,
trained for `--student-steps` in place of 1,000. It is evaluated before and after on the same
held-out problems, and both evaluations are compared problem by problem.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, convert_to_messages, convert_to_openai_messages
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from hrm_agent.models import policy
from hrm_agent.store import open_store
from hrm_agent.training.config.commands import CollectConfig
from hrm_agent.training.rollout.collect import collect
from hrm_agent.training.small_policy.cold_start import COLD_START, build_cold_start

Row = dict[str, Any]
PRODUCT = (sys.executable, "-m", "hrm_agent")
TEACHER = "builtin:trained"


@contextmanager
def serving() -> Generator[str]:
    """Run the teacher in threads of this process and yield its address in the form of
    OPENAI_BASE_URL.
    """
    teacher = policy(model=TEACHER)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body: Row = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            limit = body.get("max_completion_tokens") or body.get("max_tokens") or 512
            asked = teacher.bind(temperature=body.get("temperature", 1.0), max_tokens=limit)
            if body.get("tools"):
                asked = asked.bind(tools=body["tools"])
            answer: AIMessage = asked.invoke(convert_to_messages(body["messages"]))
            message: Any = convert_to_openai_messages(answer)
            spent = answer.usage_metadata
            assert spent is not None  # the policy counts its tokens
            usage = {
                "prompt_tokens": spent["input_tokens"],
                "completion_tokens": spent["output_tokens"],
            }
            usage["total_tokens"] = spent["total_tokens"]
            ended = "tool_calls" if answer.tool_calls else answer.response_metadata["finish_reason"]
            choice = {"index": 0, "message": message, "finish_reason": ended}
            whole = {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": "teacher-1",
            }
            content = json.dumps({**whole, "choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()


def command(folder: Path, words: str) -> Row:
    """Run a command of the product and return the last JSON line that it prints with `--json`."""
    done = subprocess.run(
        [*PRODUCT, *words.split()], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"hrm-agent {words} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {}


def measured(folder: Path, options: argparse.Namespace) -> Row:
    """All figures. `folder` holds the runs."""
    row: Row = {
        "student_steps": options.student_steps,
        "runs": options.runs,
        "sft_steps": options.steps,
    }
    recipe = COLD_START.model_copy(update={"steps": options.student_steps})
    row["student"] = build_cold_start(folder / "student", options.seed, None, recipe)
    began = time.perf_counter()
    with serving() as address:
        hosted = ChatOpenAI(model="teacher", base_url=address, api_key=SecretStr("none"))
        config = CollectConfig(
            policy="teacher",
            count=options.runs,
            graph="reasoning",
            split="train",
            seed=options.seed,
            temperature=options.temperature,
        )
        asyncio.run(collect(config, folder / "teacher", backend=hosted))
    row["collect_seconds"] = round(time.perf_counter() - began, 1)
    row["teacher"] = command(folder, "eval teacher --json")["pass_at_1"]
    with open_store(folder / "teacher") as store:
        calls = [call for trajectory in store.journal.trajectories() for call in trajectory.calls]
    row["calls_on_record"] = dict(Counter(call.identity.role for call in calls))
    row["temperatures_sent"] = list(
        {call.sampling_sent.temperature for call in calls if call.sampling_sent}
    )
    row["calls_with_token_ids"] = sum(bool(call.token_ids) for call in calls)
    command(folder, "export teacher --format chat --out teacher.jsonl")
    rows = [json.loads(line) for line in (folder / "teacher.jsonl").read_text().splitlines()]
    row["conversations"] = dict(Counter(each["role"] for each in rows))
    turns = (
        each["role"]
        for each in rows
        for message in each["messages"]
        if message["role"] == "assistant"
    )
    row["answers_exported"] = dict(Counter(turns))
    held_out = (
        f"--graph reasoning --temperature 0 --count {options.problems} --seed {options.seed + 1}"
    )
    command(folder, f"eval --policy student {held_out} --out before --json")
    began = time.perf_counter()
    training = (
        f"train sft --from teacher --reward 1 --policy student --steps {options.steps}"
        " --batch-size 32"
    )
    row["sft"] = command(
        folder, f"{training} --learning-rate {options.learning_rate} --out distilled --json"
    )
    row["sft_seconds"] = round(time.perf_counter() - began, 1)
    command(folder, f"eval --policy distilled/model {held_out} --out after --json")
    row["comparison"] = command(folder, "eval --compare before after --json")
    return row


def main() -> None:
    """Run the benchmark once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200, help="runs of the teacher")
    parser.add_argument("--problems", type=int, default=256, help="held-out problems")
    parser.add_argument(
        "--student-steps", type=int, default=400, help="steps of the student's cold start"
    )
    parser.add_argument("--steps", type=int, default=150, help="steps of fine-tuning")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="of fine-tuning")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the teacher")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--folder", type=Path, help="where the runs are kept; otherwise they are deleted"
    )
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        row = measured(folder.absolute(), options)
    print(json.dumps(row, indent=2))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(row, indent=2) + "\n")


if __name__ == "__main__":
    main()
