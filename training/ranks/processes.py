"""Several processes of one training: how they join, and which one leads.

    torchrun --nproc_per_node 2 -m hrm_agent train rl --sharding ddp

Rank 0 leads. Only it has the run's folder, draws the tasks, judges rollouts, and gives orders. The
other ranks (`hrm_agent.training.ranks.learner`) run the rollouts that it hands to them, each with
its own engine, and take part in each update with the micro-batches that it gives them. So each
decision is made once, and the course of a run does not depend on the number of its ranks.

Silent errors of launchers are checked first: copies that were never joined, one process where two
were asked for, another kind of sharding than was named. The check uses environment variables as
launchers set them. Accelerate joins processes without an accelerator only on request, so its own
count is 1 in each of them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, InitProcessGroupKwargs
from torch import distributed

from hrm_agent.errors import ConfigError, HrmError, RunError
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.ranks.links import FALLEN, RankLink, RankListener, linked_to
from hrm_agent.training.workers.wire import Message, told

__all__ = [
    "Ranks",
    "is_first_process",
    "require_one_process",
    "require_ranks",
    "several_ranks",
    "wait_for_all",
]

_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
_RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
"""Rank variables of torchrun and accelerate launch, and of three kinds of mpirun."""
_JOINED_BY = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_OF_ACCELERATE = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM")
TORCHRUN = "torchrun --nproc_per_node 2 -m hrm_agent train rl --sharding ddp ..."


def require_one_process() -> None:
    """Raise `ConfigError` in a process that was started as one of several."""
    count = _first(_SIZES)
    if count > 1:
        raise ConfigError(
            f"This runs in one process, and {count} were started: they would share nothing.",
            "Start it without torchrun, accelerate launch or mpirun; `train rl` runs in several"
            " that are told how to train together: --sharding ddp, or fsdp2.",
        )


def require_ranks(sharding: str) -> int:
    """Number of processes of a training with this sharding.

    Raises `ConfigError` if they were not started as the training needs.
    """
    if sharding == "none":
        require_one_process()
        return 1
    count = _first(_SIZES)
    if "WORLD_SIZE" not in os.environ:
        if count:
            raise ConfigError(
                f"sharding = {sharding}, and mpirun started these {count} processes.",
                f"Start them by {TORCHRUN}",
            )
        raise ConfigError(
            f"sharding = {sharding} is for several processes, and this one was started by itself"
            " (on a machine without an accelerator `accelerate launch` starts one, whatever number"
            " it is given).",
            f"Start them by {TORCHRUN}; or go on in one process: --sharding none.",
        )
    lacking = [name for name in _JOINED_BY if name not in os.environ]
    if lacking:
        raise ConfigError(
            f"{count} processes were started, and {', '.join(lacking)} is not set: they cannot find"
            " each other.",
            f"Start them by {TORCHRUN}",
        )
    for name in _OF_ACCELERATE:
        if os.environ.get(name, "").lower() == "true":
            raise ConfigError(
                f"accelerate launch was told of a way of its own to share the weights ({name}), and"
                f" sharding = {sharding} is another.",
                "Leave it out of accelerate's configuration: `accelerate launch --num_processes 2"
                " -m hrm_agent ...`.",
            )
    return count


def is_first_process() -> bool:
    """False in processes whose messages would repeat those of the first one.

    A rank variable without a number of processes is a leftover in the environment, and the process
    is the only one.
    """
    return _first(_SIZES) <= 1 or _first(_RANKS) == 0


def wait_for_all() -> None:
    """Wait until every process of this training calls this."""
    if _first(_SIZES) > 1:
        import torch
        from accelerate import PartialState

        PartialState(cpu=not torch.cuda.is_available()).wait_for_everyone()


def _first(names: tuple[str, ...]) -> int:
    found = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in found if value.isdecimal()), 0)


_EXCHANGE_SECONDS = 600.0
"""Timeout in seconds of one exchange of tensors. Ranks begin an update together, so that none waits
for longer than another computes.
"""
_LAST_WORDS_SECONDS = 2.0
"""Seconds to wait for the last messages of an ended rank after a failed exchange."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Processes of a training, seen from one of them."""

    accelerator: Accelerator
    """Accelerator of this rank, joined with the others."""
    sharding: str
    """`ddp` or `fsdp2`."""
    on_one_machine: bool
    """True if all ranks are on one machine."""
    links: Mapping[int, RankLink]
    """Links by rank number: to each other rank on rank 0, to rank 0 on the others."""

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self.accelerator.process_index

    @property
    def count(self) -> int:
        """Number of ranks."""
        return self.accelerator.num_processes

    @property
    def leads(self) -> bool:
        """True if this is rank 0."""
        return self.rank == 0

    def order(self, kind: str, each: Callable[[int], tuple[Any, ...]] = lambda _: ()) -> None:
        """Send an order with `each(rank)` to every other rank. Does nothing on ranks other than 0,
        which act on that order.

        Raises `RunError` if a rank has ended.
        """
        if not self.leads:
            return
        for rank, link in self.links.items():
            if link.ended.is_set():
                raise self.ended(rank)
            link.send((kind, *each(rank)))

    def ended(self, rank: int) -> RunError:
        """Error to raise when a rank has ended."""
        why = self.links[rank].failure
        how = f": {why}" if why else ", by no error of its own: a signal, or its machine"
        if rank == 0:
            how = f", and with it the training: {why}" if why else ", and with it the training"
        return RunError(
            f"Rank {rank} has ended{how}.", "What was recorded is kept. Resume the run."
        )

    @contextmanager
    def exchange(self) -> Generator[None]:
        """Raise `RunError`, which names the missing rank, if tensors cannot be exchanged in the
        block.
        """
        try:
            yield
        except RuntimeError as error:
            if not (
                isinstance(error, distributed.DistError)
                or "gloo" in str(error)
                or "Connection" in str(error)
            ):
                raise
            for rank, link in self.links.items():
                if link.ended.wait(_LAST_WORDS_SECONDS / len(self.links)):
                    raise self.ended(rank) from error
            raise RunError(
                f"Rank {self.rank} cannot exchange tensors with the others:"
                f" {str(error).partition(chr(10))[0]}.",
                "What was recorded is kept. Resume the run.",
            ) from error


_joined: list[Ranks] = []
"""Ranks of the current training of this process, if it is one of several (at most one entry)."""


@contextmanager
def several_ranks(config: GrpoConfig) -> Generator[Ranks | None]:
    """Join this process with the others that the configuration asks for (None if it is the only
    one).

    Nested blocks use the same ranks. Raises `ConfigError` with a hint if the processes were not
    started as the configuration requires.
    """
    count = require_ranks(config.optim.sharding)
    if count == 1 or _joined:
        yield _joined[0] if _joined else None
        return
    ranks = _join(config, count)
    _joined.append(ranks)
    try:
        yield ranks
    except BaseException as error:
        said = (
            error
            if isinstance(error, HrmError)
            else RuntimeError(f"{type(error).__name__}: {error}")
        )
        _tell_all(ranks, (FALLEN, told(said)))
        raise
    else:
        _tell_all(ranks, ("end",))
        distributed.destroy_process_group()
    finally:
        _joined.clear()
        for link in ranks.links.values():
            link.close()


def _tell_all(ranks: Ranks, message: Message) -> None:
    for link in ranks.links.values():
        link.send(message)


def _join(config: GrpoConfig, count: int) -> Ranks:
    """Wait for the other processes, and check that they were started as required."""
    on_cpu = not torch.cuda.is_available()
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if not on_cpu and here > torch.cuda.device_count():
        raise ConfigError(
            f"{here} processes were started on a machine with {torch.cuda.device_count()} GPUs.",
            "Start one for each GPU: --nproc_per_node.",
        )
    accelerator = Accelerator(
        cpu=on_cpu,
        mixed_precision="no",
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=_EXCHANGE_SECONDS))],
    )
    expected = DistributedType.MULTI_CPU if on_cpu else DistributedType.MULTI_GPU
    joined = distributed.get_world_size() if distributed.is_initialized() else 1
    if (accelerator.num_processes, joined, accelerator.distributed_type) != (
        count,
        count,
        expected,
    ):
        raise ConfigError(
            f"{count} processes were started, and this one is joined with {joined} in all, as"
            f" {accelerator.distributed_type} in place of {expected}: they would train unlike each"
            " other.",
            "Start them by torchrun, and leave ways of accelerate's own to share the weights out of"
            " its configuration.",
        )
    seen: list[Any] = [None] * count
    distributed.all_gather_object(
        seen, (config.optim.sharding, accelerator.device.type, socket.gethostname())
    )
    kinds = {each[:2] for each in seen}
    if len(kinds) > 1:
        shown = ", ".join(sorted(f"{sharding} on {device}" for sharding, device in kinds))
        raise ConfigError(
            f"The ranks were started unlike each other: {shown}.",
            "Give all of them the same command.",
        )
    on_one_machine = len({host for _, _, host in seen}) == 1
    listener = (
        RankListener("127.0.0.1" if on_one_machine else "") if accelerator.is_main_process else None
    )
    places: list[Any] = [listener.place if listener else None]
    distributed.broadcast_object_list(places, device=accelerator.device)
    if listener is not None:
        links = listener.accept(count)
    else:
        host = "127.0.0.1" if on_one_machine else os.environ["MASTER_ADDR"]
        links = {0: linked_to(host, places[0], accelerator.process_index)}
    return Ranks(accelerator, config.optim.sharding, on_one_machine, links)
