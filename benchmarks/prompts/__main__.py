"""`hrm-agent optimize` on an agent whose rules its prompts do not name.

    python -m benchmarks.prompts [--only learning budget kills] [--seeds 5] [--kills 10]
        [--folder F] [--json FILE] [--quick]

* `learning`: accuracy on held-out tasks before and after, within 200 runs and reflections, those of
  the held-out tasks included. The scripted agent solves two fifths of the tasks without a rule. The
  scripted reflection model sees only what it is sent (`benchmarks.prompts.server`).
* `budget`: searches under limits of tokens, of money, and of runs. Compared are what the server has
  counted, and the limit.
* `kills`: one search whose process is killed at random moments and resumed, against one that is not
  interrupted. Counted are the requests beyond those of the latter, and those among them whose answer
  was on record. Others were under way at a kill, so that their answers are lost.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.prompts.server import FakeProvider, tasks
from hrm_agent.store import open_store

Row = dict[str, Any]
MODEL = """
from langchain_openai import ChatOpenAI


def init_chat_model(name, **options):
    return ChatOpenAI(model=name.partition(":")[2], **options)
"""
"""Part of the package langchain that opens a provider's model, which is all that is needed here."""
PRICE = (1.0, 4.0)
"""Money for a million prompt tokens and completion tokens."""


def command(folder: Path, out: str, url: str, *words: str) -> subprocess.Popen[str]:
    """Start a search in `folder`."""
    (folder / "langchain").mkdir(exist_ok=True)
    (folder / "langchain" / "__init__.py").touch()
    (folder / "langchain" / "chat_models.py").write_text(MODEL)
    rows = "".join(f"{json.dumps(row)}\n" for row in tasks(400))
    (folder / "tasks.jsonl").write_text(rows)
    root = Path(__file__).parents[2]
    environment = {
        **os.environ,
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": url,
        "PYTHONPATH": f"{folder}{os.pathsep}{root}",
    }
    given = ["--graph", "benchmarks.prompts.post_office:graph", "--policy", "openai:agent"]
    given += ["--reflection-policy", "openai:reflection", "--tasks", "tasks.jsonl"]
    given += ["--rewards", "answer:text", "--minibatch", "4", "--max-tokens", "64"]
    given += ["--out", out, "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "hrm_agent", "optimize", *given, *words],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def searched(folder: Path, out: str, url: str, *words: str) -> Row:
    """Result of a search."""
    running = command(folder, out, url, *words)
    said, errors = running.communicate()
    if running.returncode not in (0, 1):
        return {"error": errors.strip().splitlines()[-1], "code": running.returncode}
    return json.loads(said)


def learning(folder: Path, seeds: int, words: list[str]) -> Row:
    """Searches from several seeds."""
    rows = list[Row]()
    for seed in range(seeds):
        with FakeProvider() as server:
            found = searched(folder, f"learning-{seed}", server.url, "--seed", str(seed), *words)
            asked = Counter(body["model"] for body in server.asked)
        held_out = found["held_out"]
        rows.append(
            {
                "seed": seed,
                "before": held_out["before"]["value"],
                "after": held_out["after"]["value"],
                "difference": held_out["difference"],
                "rollouts": found["rollouts"],
                "reflections": found["reflections"],
                "requests": dict(asked),
                "changes": [each["prompt"] for each in found["candidates"]],
            }
        )
    return {"searches": rows}


def budget(folder: Path, quick: bool) -> Row:
    """Use of searches under limits, by the server's count."""
    rows = list[Row]()
    limits = ["12000tokens"]
    if not quick:
        limits += ["8000tokens", "10000tokens", "14000tokens", "0.016", "0.020", "0.024"]
        limits += ["25rollouts", "35rollouts", "45rollouts"]
    fewer = ["--test", "8", "--train", "8", "--validation", "4"]
    fewer += ["--reflection-max-tokens", "256"]
    for limit in limits:
        with FakeProvider() as server:
            name = f"budget-{limit}"
            priced = ["--price", f"{PRICE[0]},{PRICE[1]}"]
            found = searched(folder, name, server.url, "--budget", limit, *priced, *fewer)
            read, sampled = server.tokens
        money = (read * PRICE[0] + sampled * PRICE[1]) / 1e6
        used = {"tokens": read + sampled, "rollouts": None}.get(limit.lstrip("0123456789"), money)
        if used is None:
            used = found["rollouts"] + found["reflections"]
        most = float(limit.removesuffix("tokens").removesuffix("rollouts"))
        rows.append(
            {
                "budget": limit,
                "used": used,
                "within": used <= most,
                "tested": found.get("held_out", {}).get("tasks"),
                "error": found.get("error"),
            }
        )
    return {"searches": rows, "within": all(row["within"] for row in rows)}


def on_record(folder: Path) -> tuple[set[str], int]:
    """Calls on record in a folder, and the number of requests that were sent."""
    if not (folder / "asked.jsonl").exists():
        return set(), 0
    with open_store(folder / "store.db", read_only=True) as store:
        calls = {
            call.id for run in store.journal.trajectories(requests=False) for call in run.calls
        }
    return calls, (folder / "asked.jsonl").read_bytes().count(b"\n")


def kills(folder: Path, number: int, words: list[str]) -> Row:
    """Requests of a search that was killed and resumed, beyond those of one that was not."""
    with FakeProvider(delay=0.02) as server:
        began = time.monotonic()
        whole = searched(folder, "whole", server.url, *words)
        seconds = time.monotonic() - began
        plain = Counter(json.dumps(body) for body in server.asked)
    rng = random.Random(0)
    states = list[tuple[set[str], int]]()
    with FakeProvider(delay=0.02) as server:
        for _ in range(number):
            running = command(folder, "killed", server.url, *words)
            start = len(server.asked)
            patience = time.monotonic() + seconds + 60
            while len(server.asked) == start and time.monotonic() < patience:
                time.sleep(0.005)
            time.sleep(rng.uniform(0, seconds / (number + 2)))
            running.kill()
            running.wait()
            server.drain()
            states.append(on_record(folder / "killed"))
        found = searched(folder, "killed", server.url, *words)
        asked = Counter(json.dumps(body) for body in server.asked)
    extra = (asked - plain).total()
    lines = (folder / "killed" / "asked.jsonl").read_text().splitlines()

    def after(number: int) -> list[str]:
        return [json.loads(line)["call"] for line in lines[number:]]

    return {
        "kills": number,
        "requests": plain.total(),
        "requests_killed": asked.total(),
        "asked_again": extra,
        "asked_again_though_on_record": sum(
            len(recorded & set(after(number))) for recorded, number in states
        ),
        "missing": (plain - asked).total(),
        "same_texts": found["texts"] == whole["texts"],
    }


def main() -> None:
    """Run the selected parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = ["learning", "budget", "kills"]
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="a few tasks, which say nothing")
    parser.add_argument("--folder", type=Path, help="where the runs are kept [deleted]")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    words = ["--budget", "200rollouts"]
    if options.quick:
        words = ["--budget", "40rollouts", "--test", "8", "--train", "8", "--validation", "4"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        record: Row = {}
        if "learning" in options.only:
            record["learning"] = learning(folder, 1 if options.quick else options.seeds, words)
        if "budget" in options.only:
            record["budget"] = budget(folder, options.quick)
        if "kills" in options.only:
            record["kills"] = kills(folder, 1 if options.quick else options.kills, words)
    print(json.dumps(record, indent=2))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
