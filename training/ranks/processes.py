"""Several processes of one training: how they find each other, and who leads.

    torchrun --nproc_per_node 2 -m hrm_agent train rl --sharding ddp

Rank 0 leads. It alone has the run's folder, draws the tasks, judges rollouts, and says what is
done; the other ranks (`hrm_agent.training.ranks.learner`) run the rollouts that it hands to them,
each with an engine of its own, and take part in each update with the micro-batches that it gives
them. So what a run does is decided once, and the course of a run does not depend on the number of
its ranks.

What launchers get silently wrong is looked at first: copies that were never joined, one process
where two were asked for, another kind of sharding than was named.

Whether this is one of several processes of a training, and whether they were started as they have
to be.

Asked of the environment, as launchers set it: Accelerate joins processes without an accelerator
only if it is told to, so its own count is 1 in each of them.
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
"""torchrun and accelerate launch; three kinds of mpirun."""
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
    """The number of processes of a training that was asked to be sharded so.

    Raises `ConfigError` where they were started otherwise than the training needs.
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

    A rank without a number of processes is left over in the environment: nobody else is there to
    say anything.
    """
    return _first(_SIZES) <= 1 or _first(_RANKS) == 0


def wait_for_all() -> None:
    """Go on when every process of this training has come here."""
    if _first(_SIZES) > 1:
        import torch
        from accelerate import PartialState

        PartialState(cpu=not torch.cuda.is_available()).wait_for_everyone()


def _first(names: tuple[str, ...]) -> int:
    found = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in found if value.isdecimal()), 0)


_EXCHANGE_SECONDS = 600.0
"""For one exchange of tensors: ranks begin an update together, so that none waits for longer than
another computes.
"""
_LAST_WORDS_SECONDS = 2.0
"""For what a rank that has ended had said, after an exchange with it has failed."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of a training, seen from one of them."""

    accelerator: Accelerator
    """Of this rank; joined with the others."""
    sharding: str
    """`ddp` or `fsdp2`."""
    on_one_machine: bool
    """Whether all of them are."""
    links: Mapping[int, RankLink]
    """To each other rank by its number, on rank 0; to rank 0, on the others."""

    @property
    def rank(self) -> int:
        """Number of this one."""
        return self.accelerator.process_index

    @property
    def count(self) -> int:
        """How many there are."""
        return self.accelerator.num_processes

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def order(self, kind: str, each: Callable[[int], tuple[Any, ...]] = lambda _: ()) -> None:
        """On rank 0: have every other rank do something, with `each(rank)`; elsewhere nothing, for
        it was told to.

        Raises `RunError` where a rank has ended.
        """
        if not self.leads:
            return
        for rank, link in self.links.items():
            if link.ended.is_set():
                raise self.ended(rank)
            link.send((kind, *each(rank)))

    def ended(self, rank: int) -> RunError:
        """The error to raise when a rank has ended."""
        why = self.links[rank].failure
        how = f": {why}" if why else ", by no error of its own: a signal, or its machine"
        if rank == 0:
            how = f", and with it the training: {why}" if why else ", and with it the training"
        return RunError(
            f"Rank {rank} has ended{how}.", "What was recorded is kept. Resume the run."
        )

    @contextmanager
    def exchange(self) -> Generator[None]:
        """Says which rank is missing where tensors cannot be exchanged."""
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
"""The ranks of the training that goes on in this process, if it is one of several."""


@contextmanager
def several_ranks(config: GrpoConfig) -> Generator[Ranks | None]:
    """This process as one of those that the configuration asks for, joined with the others; None
    where it is the one.

    Within a block that has joined them already, they stay so. Raises `ConfigError` where the
    processes were started otherwise than the configuration says, with what to do.
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
    """Wait for the others, and hold how they were started against what was asked for."""
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
    return Ranks(
        accelerator, config.optim.sharding, on_one_machine, _links(accelerator, on_one_machine)
    )


def _links(accelerator: Accelerator, on_one_machine: bool) -> Mapping[int, RankLink]:
    listener = (
        RankListener("127.0.0.1" if on_one_machine else "") if accelerator.is_main_process else None
    )
    places: list[Any] = [listener.place if listener else None]
    distributed.broadcast_object_list(places, device=accelerator.device)
    if listener is not None:
        return listener.accept(accelerator.num_processes)
    host = "127.0.0.1" if on_one_machine else os.environ["MASTER_ADDR"]
    return {0: linked_to(host, places[0], accelerator.process_index)}
