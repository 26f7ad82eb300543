r"""For tests of your own agents, without a model, a wiki or a network.

    from hrm_agent.testing import ScriptedEngine, loopback_only

    with loopback_only(), ScriptedEngine(["<answer>\\boxed{42}</answer>"]) as engine:
        ...

* `ScriptedEngine` answers from a list or a function, as exact tokens, so that such runs are
  recorded like any.
* `LocalWiki` serves a folder of texts as a wiki.
* `tiny_model` writes a real model with random weights, for code that samples or trains;
  `tiny_network` is the model alone, in memory.
* `wait_until` waits for an event and not for a time, `block_until` does so where nothing is
  awaited; `loopback_only` refuses connections to other machines.

`docs/testing.md` has a whole test.
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

from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.tools.local_wiki import LocalWiki

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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


async def wait_until(condition: Callable[[], T | Awaitable[T]], seconds: float = _LONG) -> T:
    """Return what `condition` gives, once that is true.

    Raises `TimeoutError` with the condition's name or source after so many seconds, which only a
    hang should meet.
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
    """`wait_until` for what another thread or process does:
    the calling thread sleeps in between.
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
        except OSError:  # from a prompt, or code made of a string
            name = str(condition)
    return TimeoutError(f"Waited {seconds:g} s in vain: {name}")


@contextmanager
def loopback_only() -> Generator[list[str]]:
    """Sockets of this process reach this machine alone; others are as if there were no network.

    Gives the addresses that were tried, for a test to find none in it.
    """
    tried: list[str] = []
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex

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
    """A causal language model with random weights, in memory: of the small policy's architecture, a
    Qwen3.

    `sizes` are settings of its configuration, such as
    `hidden_size=32, num_hidden_layers=1, vocab_size=64`. Needs the extra `train`. A function of its
    arguments; the global random state is left as it was.
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
    """Write a `tiny_network` to `folder`, with the small policy's tokenizer and chat template; the
    folder.

    A vocabulary smaller than the tokenizer's 1022 tokens is none that it can be asked in.
    """
    from transformers import AutoTokenizer

    from hrm_agent.models.loading.policy_loader import model_folder

    tiny_network(seed, **sizes).save_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(model_folder("builtin:cold-start"))
    tokenizer.save_pretrained(folder)
    return folder
