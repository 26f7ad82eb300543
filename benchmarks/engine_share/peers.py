"""Inputs of the peers, and calls of their driver in the interpreter that has them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from benchmarks.engine_share.measured import collected
from benchmarks.engine_share.networks import network
from benchmarks.rollout_profile.measured import POLICY
from hrm_agent.models import load_policy
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.store import open_store

__all__ = ["PEERS", "peers"]

PEERS = ("TRL", "smolagents")
_PROMPT = re.compile(
    r"<\|im_start\|>system\n(?P<system>.*)\n<tools>.*</tools><\|im_end\|>\n"
    r"<\|im_start\|>user\n(?P<problem>.*)<\|im_end\|>\n<\|im_start\|>assistant\n",
    re.DOTALL,
)


def peers(
    size: str, python: Path, rollouts: int, repeats: int, threads: int
) -> list[dict[str, Any]]:
    """Row of each peer. smolagents has one repeat, since it runs one conversation after another in
    many short turns.
    """
    driver = str(Path(__file__).with_name("peers_driver.py"))
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        network(size).save_pretrained(folder)
        _tokenizer().save_pretrained(folder)
        given = {"folder": name, "conversations": _conversations(rollouts)}
        for peer in PEERS:
            text = json.dumps({**given, "peer": peer, "repeats": repeats if peer == "TRL" else 1})
            words = [str(python), driver]
            done = subprocess.run(
                words, env=environment, input=text, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(f"{peer}: {done.stderr[-2000:]}")
            rows.append(json.loads(done.stdout.splitlines()[-1]))
    return rows


def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(model_folder(POLICY))


@cache
def _conversations(rollouts: int) -> list[dict[str, Any]]:
    """Conversations as texts, recorded with the shipped policy."""
    tokenizer = _tokenizer()
    policy: Any = load_policy(POLICY)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        collected(rollouts, Path(name), policy)
        with open_store(Path(name) / "run") as store:
            for trajectory in store.journal.trajectories(requests=False):
                calls = [call for call in trajectory.calls if call.token_ids]
                first = tokenizer.decode(
                    store.journal.path_tokens(calls[0].id)[: -calls[0].sampled_tokens]
                )
                parts = _PROMPT.fullmatch(first)
                assert parts is not None
                texts = [
                    policy.codec.decode(call.token_ids[-call.sampled_tokens :]) for call in calls
                ]
                found.append({**parts.groupdict(), "texts": texts})
    return found
