r"""For tests of your own agents, without a model, a wiki or a network.

    from hrm_agent.testing import ScriptedEngine, loopback_only

    with loopback_only(), ScriptedEngine(["<answer>\\boxed{42}</answer>"]) as engine:
        ...

* `ScriptedEngine` answers from a list or a function, as exact tokens, so that such runs are recorded like any.
* `LocalWiki` serves a folder of texts as a wiki.
* `tiny_model` writes a real model with random weights, for code that samples or trains.
* `wait_until` waits for an event and not for a time; `loopback_only` refuses connections to other machines.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import socket
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.tools.local_wiki import LocalWiki

__all__ = ["LocalWiki", "ScriptedEngine", "loopback_only", "tiny_model", "wait_until"]

_LOOPBACK = ("127.", "::1", "localhost", "::ffff:127.")


async def wait_until(condition: Callable[[], bool | Awaitable[bool]], seconds: float = 60.0) -> None:
    """Return once `condition` holds. Raises `TimeoutError` after so many seconds, which only a hang should meet."""
    async with asyncio.timeout(seconds):
        while True:
            held = condition()
            if await held if inspect.isawaitable(held) else held:
                return
            await asyncio.sleep(0.01)


@contextmanager
def loopback_only() -> Generator[list[str]]:
    """Sockets of this process reach this machine alone; others are as if there were no network.

    Gives the addresses that were tried, for a test to find none in it.
    """
    tried: list[str] = []
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex

    def refused(of: socket.socket, address: Any) -> bool:
        if of.family not in (socket.AF_INET, socket.AF_INET6) or str(address[0]).startswith(_LOOPBACK):
            return False
        tried.append(f"{address[0]}:{address[1]}")
        return True

    def guarded(of: socket.socket, address: Any) -> None:
        if refused(of, address):
            raise OSError(errno.ENETUNREACH, f"{address[0]} is not this machine")
        connect(of, address)

    def guarded_ex(of: socket.socket, address: Any) -> int:
        return errno.ENETUNREACH if refused(of, address) else connect_ex(of, address)

    socket.socket.connect, socket.socket.connect_ex = guarded, guarded_ex  # type: ignore[method-assign]
    try:
        yield tried
    finally:
        socket.socket.connect, socket.socket.connect_ex = connect, connect_ex  # type: ignore[method-assign]


def tiny_model(folder: Path, seed: int = 0) -> Path:
    """Write a causal language model with random weights to `folder`: the small policy's tokenizer and chat template.

    Needs the extra `train`. A function of the seed; the global random state is left as it was.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from hrm_agent.models.policy_loader import model_folder

    source = model_folder("builtin:cold-start")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source))
    model.save_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(source)
    tokenizer.save_pretrained(folder)
    return folder
