"""Joint training by several processes: how they join, and which of them leads.

    torchrun --nproc_per_node 2 -m hrm_agent train rl --sharding ddp

Rank 0 leads: only rank 0 uses the run's folder, draws the tasks, judges rollouts and gives orders.
The other ranks (`hrm_agent.training.ranks.learner`) run the rollouts that rank 0 hands to them,
each with its engine, and take part in each update with the micro-batches that rank 0 sends. So each
decision is made once, and the course of a run does not depend on the number of its ranks.

Launchers may fail silently, so this is checked first: processes that were never joined, one process
instead of two, or another kind of sharding than was named. The check reads the environment
variables that launchers set. It cannot use Accelerate's count of processes: on machines without an
accelerator, Accelerate joins processes only on request and counts 1 in each.
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
from hrm_agent.training.update.accelerators import exact_accelerator
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
    """Raise `ConfigError` if this process was started as one of several."""
    count = _first(_SIZES)
    if count > 1:
        raise ConfigError(
            f"This runs in one process, but {count} were started, which would share nothing.",
            "Start it without torchrun, accelerate launch or mpirun. Only `train rl` runs in"
            " several processes, with --sharding ddp or fsdp2.",
        )


def require_ranks(sharding: str) -> int:
    """Number of processes of a training with this sharding.

    Raises `ConfigError` if the processes were not started as the sharding requires.
    """
    if sharding == "none":
        require_one_process()
        return 1
    count = _first(_SIZES)
    if "WORLD_SIZE" not in os.environ:
        if count:
            raise ConfigError(
                f"sharding = {sharding}, but mpirun started these {count} processes.",
                f"Start them by {TORCHRUN}",
            )
        raise ConfigError(
            f"sharding = {sharding} is for several processes, but this one was started alone"
            " (on a machine without an accelerator `accelerate launch` starts one, whatever number"
            " it is given).",
            f"Start them by {TORCHRUN}; or go on in one process: --sharding none.",
        )
    lacking = [name for name in _JOINED_BY if name not in os.environ]
    if lacking:
        raise ConfigError(
            f"{count} processes were started, but {', '.join(lacking)} is not set, so they cannot"
            " find each other.",
            f"Start them by {TORCHRUN}",
        )
    for name in _OF_ACCELERATE:
        if os.environ.get(name, "").lower() == "true":
            raise ConfigError(
                f"accelerate launch was configured to share the weights in another way ({name})"
                f" than sharding = {sharding}.",
                "Leave it out of accelerate's configuration: `accelerate launch --num_processes 2"
                " -m hrm_agent ...`.",
            )
    return count


def is_first_process() -> bool:
    """True if this process should print messages: the only process, or the first of several.

    If the environment has a rank but no number of processes, the rank is a leftover, and the
    process counts as the only one.
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
"""Timeout in seconds of one exchange of tensors. Ranks begin an update together, so a rank waits no
longer than another rank computes.
"""
_LAST_WORDS_SECONDS = 2.0
"""Seconds to wait, after a failed exchange, for the last messages of a rank that has ended."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Ranks of a training, as one of them sees them."""

    accelerator: Accelerator
    """Accelerator of this rank, joined with those of the other ranks."""
    sharding: str
    """`ddp` or `fsdp2`."""
    on_one_machine: bool
    """True if all ranks are on one machine."""
    links: Mapping[int, RankLink]
    """Rank -> connection to that rank. Rank 0 is connected to all other ranks, and each other rank
    to rank 0.
    """

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
        """Send an order, with the arguments `each(rank)`, to every other rank. On ranks other than
        0 this does nothing.

        Raises `RunError` if a rank has ended.
        """
        if not self.leads:
            return
        for rank, link in self.links.items():
            if link.ended.is_set():
                raise self.ended(rank)
            link.send((kind, *each(rank)))

    def ended(self, rank: int) -> RunError:
        """Error that reports that a rank has ended."""
        why = self.links[rank].failure
        how = f": {why}" if why else " without an error: by a signal, or with its machine"
        if rank == 0:
            how = f", and with it the training: {why}" if why else ", and with it the training"
        return RunError(
            f"Rank {rank} has ended{how}.", "What was recorded is kept. Resume the run."
        )

    @contextmanager
    def exchange(self) -> Generator[None]:
        """Raise `RunError` if tensors cannot be exchanged in the block. The error names the missing
        rank if there is one.
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
"""Ranks of the current joint training of this process (empty if there is none, else one entry)."""


@contextmanager
def several_ranks(config: GrpoConfig) -> Generator[Ranks | None]:
    """Join this process with the other processes of the configuration, and yield the ranks (None if
    this process is the only one).

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
    """Wait for the other processes, and check that all were started as the
    configuration requires.
    """
    on_cpu = not torch.cuda.is_available()
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if not on_cpu and here > torch.cuda.device_count():
        raise ConfigError(
            f"{here} processes were started on a machine with {torch.cuda.device_count()} GPUs.",
            "Start one for each GPU: --nproc_per_node.",
        )
    accelerator = exact_accelerator(
        cpu=on_cpu,
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
            f"{count} processes were started, but this one is joined as one of {joined}, as"
            f" {accelerator.distributed_type} in place of {expected}: they would train"
            " differently.",
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
            f"The ranks were started differently: {shown}.",
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
