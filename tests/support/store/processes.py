"""Processes that write to a store, from the side of the test that starts them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from tests.support.store.writer import main

__all__ = ["Writer", "writers"]


@dataclass
class Writer:
    """Another process, and the connection to it."""

    process: BaseProcess
    line: Connection

    def begin(self) -> None:
        self.line.send("go")

    def says(self) -> str:
        assert self.line.poll(120), "the writer sent nothing for two minutes"
        return self.line.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@contextmanager
def writers(url: str, work: Any, *names: str) -> Iterator[list[Writer]]:
    """Processes that are ready to begin. They are killed at the end of the block if they have not
    ended.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tests.support.store.writer"]
    )  # so that a process costs a fork, not LangGraph's import
    started: list[Writer] = []
    try:
        for name in names:
            here, there = context.Pipe()
            process = context.Process(target=main, args=(there, work, url, name))
            process.start()
            there.close()
            started.append(Writer(process, here))
        yield started
    finally:
        for writer in started:
            writer.kill()
