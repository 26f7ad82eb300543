"""Sources of recorded runs (stores, run folders, exported files), and a check of their tokens.

A store is only read. If a folder shares its store with others, only the folder's runs are read. The
record of a call has its sampling settings, but not its tokenizer. So the tokenizer is tested:
tokens that another model sampled must decode, by the codec of the trained policy, to the answer
recorded with them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from hrm_agent.basics.files import read_whole
from hrm_agent.errors import ConfigError, RunError, StoreError
from hrm_agent.models.engine import Codec
from hrm_agent.models.loading.policy_loader import load_codec
from hrm_agent.store import STORE_POINTER, RunStore, open_store
from hrm_agent.store.run_store import file_of, own_run
from hrm_agent.training.evaluation.rubrics import scorings_named
from hrm_agent.trajectory import Call, LogprobKind, Scoring, Trajectory
from hrm_agent.trajectory.decisions import made_by_blame

__all__ = ["RecordedRuns", "TokenReader", "is_same_store", "opened_runs"]

_FILES = (".jsonl", ".parquet")
OTHER_TOKENIZER = "its tokens are of another tokenizer"
RAW_LOGPROBS = "log-probs at another temperature than the one it was sampled at"


class RecordedRuns(Protocol):
    """A source of recorded runs."""

    where: str
    """Name by which the user gave the source."""
    store: RunStore | None
    """Store of the runs (None for a file, which has neither states nor scores of rubrics)."""

    def headers(self, left_out: dict[str, int]) -> Sequence[Trajectory]:
        """All trajectories; those of a store are without calls. `left_out`: reason -> number of
        trajectories left out, to which this adds.
        """
        ...

    def whole(self, trajectory_id: str, *, requests: bool) -> Trajectory:
        """Read a trajectory with its calls. Raises `RunError` if it does not exist any more."""
        ...

    def scorings(self, name: str, headers: Iterable[Trajectory]) -> Mapping[str, Scoring]:
        """Scorings named `name`, by trajectory id. Raises `ConfigError` if there are none."""
        ...


class _StoredRuns:
    def __init__(self, where: str, store: RunStore) -> None:
        self.where = where
        self.store: RunStore | None = store
        self._journal = store.journal

    def headers(self, left_out: dict[str, int]) -> Sequence[Trajectory]:
        def on_damage(trajectory_id: str, error: StoreError) -> None:
            del trajectory_id, error
            reason = "cannot be read: `hrm-agent store verify` lists why"
            left_out[reason] = left_out.get(reason, 0) + 1

        own = own_run(self.where)
        where: tuple[str, tuple[str, ...]] = (
            ("1 = 1", ()) if own is None else ("run_id = ?", (own,))
        )
        headers = self._journal.headers(*where, on_damage)
        kept = [each for each in headers if not made_by_blame(each)]
        if len(kept) < len(headers):
            left_out["value a moment (`hrm-agent blame`)"] = len(headers) - len(kept)
        return kept

    def whole(self, trajectory_id: str, *, requests: bool) -> Trajectory:
        found = next(iter(self._journal.headers("id = ?", (trajectory_id,))), None)
        if found is None:
            raise _gone(trajectory_id, self.where)
        return self._journal.with_calls(found, requests=requests)

    def scorings(self, name: str, headers: Iterable[Trajectory]) -> Mapping[str, Scoring]:
        assert self.store is not None
        return scorings_named(self.store, name, headers)


class _ExportedRuns:
    store: RunStore | None = None

    def __init__(self, where: str) -> None:
        from hrm_agent.trajectory.formats import read_jsonl, read_parquet

        path = Path(where)
        self.where = where
        self._found = {
            t.id: t for t in (read_parquet(path) if path.suffix == ".parquet" else read_jsonl(path))
        }

    def headers(self, left_out: dict[str, int]) -> Sequence[Trajectory]:
        del left_out
        return list(self._found.values())

    def whole(self, trajectory_id: str, *, requests: bool) -> Trajectory:
        del requests
        if trajectory_id not in self._found:
            raise _gone(trajectory_id, self.where)
        return self._found[trajectory_id]

    def scorings(self, name: str, headers: Iterable[Trajectory]) -> Mapping[str, Scoring]:
        del headers
        raise ConfigError(
            f"{self.where} is a file, which has recorded rewards but no scores {name!r}.",
            "Name the run's folder or its store.",
        )


@contextmanager
def opened_runs(sources: Sequence[str], allow: Sequence[str] = ()) -> Generator[list[RecordedRuns]]:
    """Open the runs of each of `sources` for reading. `allow`: types that states may hold."""
    with ExitStack() as stack:
        yield [
            (
                _ExportedRuns(where)
                if _is_file(where)
                else _StoredRuns(
                    where, stack.enter_context(open_store(where, read_only=True, allow=allow))
                )
            )
            for where in sources
        ]


def is_same_store(a: str, b: str) -> bool:
    """True if two names refer to the same store."""
    files = [None if _is_file(where) else file_of(_pointed(where)) for where in (a, b)]
    if None not in files:
        return (
            files[0] is not None
            and files[1] is not None
            and files[0].resolve() == files[1].resolve()
        )
    return _pointed(a) == _pointed(b)


class TokenReader:
    """Finds the recorded tokens that a policy can be trained on."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self.codec: Codec = load_codec(policy)
        """Codec of the policy."""
        tokenizer: Any = getattr(self.codec, "tokenizer", None)
        self._tokens = 1 << 31 if tokenizer is None else len(tokenizer)

    def readied(self, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory in which calls that this policy cannot be trained on are marked as
        untrainable.
        """
        # torch is not needed to read runs
        from hrm_agent.training.update.batch import no_gradient

        lacks = {
            call.id: lack
            for call in trajectory.own_calls
            if no_gradient(call, trajectory.policy) is None and (lack := self._lack(call))
        }
        if not lacks:
            return trajectory
        calls = [
            c.model_copy(update={"untrainable": lacks[c.id]}) if c.id in lacks else c
            for c in trajectory.calls
        ]
        return trajectory.model_copy(update={"calls": tuple(calls)})

    def reads(self, call: Call) -> bool:
        """True if the tokens of a call belong to this policy's tokenizer, at any temperature."""
        own = max(call.token_ids, default=0) < self._tokens
        return own and (call.model == self._policy or self._reads_as_recorded(call))

    def _lack(self, call: Call) -> str:
        if max(call.token_ids, default=0) >= self._tokens:
            return OTHER_TOKENIZER
        if call.model == self._policy:
            return ""
        if call.logprob_kind is LogprobKind.RAW and call.sampled_with.temperature != 1:
            return RAW_LOGPROBS
        return "" if self._reads_as_recorded(call) else OTHER_TOKENIZER

    def _reads_as_recorded(self, call: Call) -> bool:
        sampled = [
            token for token, is_sampled in zip(call.token_ids, call.mask, strict=True) if is_sampled
        ]
        text = self.codec.decode(sampled)
        said = call.response.get("content")
        tools: Any = call.response.get("tool_calls") or []
        names = [each.get("name") for each in tools]
        both = (self.codec.parse(text, call.tools or (), thinks=thinks) for thinks in (True, False))
        return any(
            said == one.content and names == [each["name"] for each in one.tool_calls]
            for one in both
        )


def _is_file(where: str) -> bool:
    return Path(where).suffix in _FILES


def _pointed(where: str) -> str:
    """Resolve the store pointer of a folder whose store lies elsewhere."""
    pointer = Path(where) / STORE_POINTER
    return (read_whole(pointer) or where) if "://" not in where and pointer.is_file() else where


def _gone(trajectory_id: str, where: str) -> RunError:
    return RunError(
        f"Trajectory {trajectory_id}, which this training learns from, is not in {where} any more.",
        "Put the record back as it was, or start a new run in another folder with --out.",
    )
