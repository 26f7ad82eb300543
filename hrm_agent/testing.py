r"""Helpers to test your own agents without a model, a wiki or a network.

    from hrm_agent.testing import ScriptedEngine, loopback_only

    with loopback_only(), ScriptedEngine(["<answer>\\boxed{42}</answer>"]) as engine:
        ...

* `ScriptedEngine` answers from a list or a function, as exact tokens, so that such runs are
  recorded like any other.
* `LocalWiki` serves a folder of texts as a wiki.
* `tiny_model` writes a real model with random weights, for code that samples or trains;
  `tiny_network` is the model alone, in memory.
* `wait_until` waits for a condition, not for a fixed time. `block_until` does so in synchronous
  code.
* `loopback_only` refuses connections to other machines.

`docs/testing.md` has a complete test.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import socket
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hrm_agent.models.scripted import ScriptedEngine
    from hrm_agent.tools.local_wiki import LocalWiki

__all__ = [
    "LocalWiki",
    "ScriptedEngine",
    "block_until",
    "loopback_only",
    "tiny_model",
    "tiny_network",
    "wait_until",
]

T = TypeVar("T")

_LOOPBACK = ("127.", "::1", "localhost", "::ffff:127.")
_LONG = 120.0
_SECONDS_BETWEEN_LOOKS = 0.01


def __getattr__(name: str) -> Any:
    """Import a class on first use, since a test of arithmetic needs neither LangGraph nor a wiki."""
    if name == "ScriptedEngine":
        from hrm_agent.models.scripted import ScriptedEngine

        return ScriptedEngine
    if name == "LocalWiki":
        from hrm_agent.tools.local_wiki import LocalWiki

        return LocalWiki
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


async def wait_until(condition: Callable[[], T | Awaitable[T]], seconds: float = _LONG) -> T:
    """Wait until the value of `condition` is true, and return it.

    Raises `TimeoutError` with the condition's name or source after `seconds`, a limit that only a
    hang should reach.
    """
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            while True:
                held = condition()
                if found := (
                    await cast("Awaitable[T]", held)
                    if inspect.isawaitable(held)
                    else cast("T", held)
                ):
                    return found
                await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
    except TimeoutError:
        if limit.expired():
            raise _in_vain(condition, seconds) from None
        raise


def block_until(condition: Callable[[], T], seconds: float = _LONG) -> T:
    """Wait for another thread or process until the value of `condition` is true, and return it. The
    calling thread sleeps in between.

    Raises `TimeoutError` after `seconds`.
    """
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() >= end:
            raise _in_vain(condition, seconds)
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return found


def _in_vain(condition: Callable[[], object], seconds: float) -> TimeoutError:
    name = str(getattr(condition, "__name__", condition))
    if name == "<lambda>":
        try:
            name = " ".join(inspect.getsource(condition).split())
        except OSError:  # no source: typed at a prompt, or made from a string
            name = str(condition)
    return TimeoutError(f"Waited {seconds:g} s in vain: {name}")


@contextmanager
def loopback_only() -> Generator[list[str]]:
    """Restrict sockets of this process to this machine. A connection to another address fails as if
    there were no network.

    Yields the list of refused addresses, which a test can assert to be empty.
    """
    tried: list[str] = []
    connect = socket.socket.connect
    connect_ex = socket.socket.connect_ex

    def refused(of: socket.socket, address: Any) -> bool:
        if of.family not in (socket.AF_INET, socket.AF_INET6) or str(address[0]).startswith(
            _LOOPBACK
        ):
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


def tiny_network(seed: int = 0, **sizes: Any) -> PreTrainedModel:
    """Causal language model with random weights, in memory. Its architecture is that of the small
    policy, Qwen3.

    `sizes` are settings of its configuration, such as
    `hidden_size=32, num_hidden_layers=1, vocab_size=64`. Needs the extra `train`. Equal
    arguments give equal weights. The global random state is unchanged.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from hrm_agent.models.loading.policy_loader import model_folder

    config = AutoConfig.from_pretrained(model_folder("builtin:cold-start"), **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: Any = AutoModelForCausalLM.from_config(config)
    return network.eval()


def tiny_model(folder: Path, seed: int = 0, **sizes: Any) -> Path:
    """Write a `tiny_network` to `folder`, with the small policy's tokenizer and chat template.
    Return the folder.

    The vocabulary must not be smaller than the tokenizer's 1022 tokens for prompts to work.
    """
    from transformers import AutoTokenizer

    from hrm_agent.models.loading.policy_loader import model_folder

    tiny_network(seed, **sizes).save_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(model_folder("builtin:cold-start"))
    tokenizer.save_pretrained(folder)
    return folder
