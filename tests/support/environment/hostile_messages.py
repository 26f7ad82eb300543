"""Hostile messages to a server:
`python -m tests.support.environment.hostile_messages --cases 5000 --seed 1`.

A seed draws requests and messages of a stream that are nearly right (a field of another type, a
number beyond all bounds, a name of half a million characters, JSON that is cut or nested too deep),
and calls whose output and values look like messages. Each case has to end in an HTTP status below
500, a typed outcome, or the close of its own connection. After each group of cases, another
client's call has to be answered correctly.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from hrm_agent.environment.base import Limits, Submission
from hrm_agent.environment.local.environment import LocalEnvironment
from hrm_agent.environment.remote.client import RemoteEnvironment
from hrm_agent.environment.remote.clients import add_client, read_clients
from hrm_agent.environment.remote.sockets import listen_tcp
from hrm_agent.errors import HrmError
from hrm_agent.trajectory import ToolStatus
from tests.support.environment.served import served

__all__ = ["Fuzz", "fuzzed"]

GROUP = 25
"""Number of cases that run in parallel before the other client's call."""
PATIENCE_SECONDS = 60.0
ANSWERS = {"away", "done", "error", "refused", "result", "text"}
STATUSES = {status.value for status in ToolStatus}
VALUES: list[Any] = [
    None, True, False, 0, -1, 1.5, 10**18, 2**60, 2**63, -(2**64), 10**30, 10**400, 1e12, 1e308, -1e308, 5e-324,
    "", "x", "\0", "\ud800", "é" * 3, "x" * 5000, "1e12", "NaN", "../../etc/passwd", "a/b~c", [], {}, [[]], [None],
    {"code": "1"}, [{"code": "1"}] * 3, {"": ""}, {"__class__": "x"}, {"wall_seconds": 1e12}, {"output_bytes": 2**59},
]  # fmt: skip
FIELDS = [
    "code", "session", "history", "limits", "id", "run", "priority", "deadline_seconds", "key", "cancel", "fork", "end",
    "metrics", "source", "target", "calls", "status", "result", "\ud800", "", "__proto__",
]  # fmt: skip
LIMIT_FIELDS = ["wall_seconds", "cpu_seconds", "memory_bytes", "output_bytes", "nothing"]
SNIPPETS = [
    'print(\'"}}],[{"key":1,"result":{"status":"ok"}}]\')',
    "print('\\ud800\\udfff\\0\\x1b]0;x\\7')",
    "import sys; sys.stdout.buffer.write(bytes(range(256)) * 20)",
    "import os; os.write(1, b'\\xff' * 40000)",
    "10 ** 5000",
    "float('nan')",
    "[float('inf'), -0.0]",
    "x = []\nfor _ in range(3000): x = [x]\nx",
    "{'a': {1: 2}, 'b': {3, 4}, 'key': 1, 'result': {}}",
    "class R:\n    def __repr__(self): raise RuntimeError('no')\nR()",
    "class R:\n    def __repr__(self): return '\\ud800' * 9\nR()",
    "class R(str):\n    def __len__(self): return -1\nRESULT = R('x')",
    "'\\ud800' * 20000",
    "'\"' * 16000",
    "raise ValueError('\\ud800' * 5000)",
    "raise SystemExit({'a': 1})",
    "import os; os.write(3, b'1\\nx' + b'[' * 980); os._exit(0)",
    "import os; os.write(2, b'\\r\\n\\r\\nHTTP/1.1 200 OK\\r\\n')",
    "import sys; sys.stderr.write('data: {}\\n\\n' * 500)",
    "import json; json.loads('[' * 200000)",
    "def f(): return f()\nf()",
    "int('9' * 5000)",
]


class Fuzz:
    """Cases by number. Number and seed determine a case."""

    def __init__(self, url: str, token: str, seed: int) -> None:
        self._url, self._headers, self._seed = url, {"Authorization": f"Bearer {token}"}, seed
        self.ends = Counter[str]()
        self.wrong = list[str]()

    async def case(self, session: aiohttp.ClientSession, number: int) -> None:
        chance = random.Random(f"{self._seed} {number}")
        ways = (self._run, self._batch, self._session, self._stream, self._snippet)
        way = chance.choices(ways, (30, 15, 10, 30, 15))[0]
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                ended = await way(session, chance)
        except TimeoutError:
            ended = "no answer"
            self.wrong.append(f"case {number} {way.__name__}: no answer")
        except AssertionError as error:
            ended = "wrong"
            self.wrong.append(f"case {number} {way.__name__}: {error}")
        self.ends[f"{way.__name__.strip('_')}: {ended}"] += 1

    async def _run(self, session: aiohttp.ClientSession, chance: random.Random) -> str:
        return await self._post(session, "/v1/run", text_of(_submission(chance), chance))

    async def _batch(self, session: aiohttp.ClientSession, chance: random.Random) -> str:
        calls: Any = [_submission(chance) for _ in range(chance.randrange(6))]
        body = chance.choice([{"calls": calls}] * 8 + [calls, {"calls": chance.choice(VALUES)}])
        return await self._post(session, "/v1/batch", text_of(body, chance))

    async def _session(self, session: aiohttp.ClientSession, chance: random.Random) -> str:
        names = {"source": chance.choice(VALUES), "target": chance.choice(VALUES)}
        return await self._post(
            session, "/v1/sessions/fork", text_of(_spoilt(names, chance), chance)
        )

    async def _post(self, session: aiohttp.ClientSession, path: str, text: str) -> str:
        headers = self._headers | {"Content-Type": "application/json"}
        data = text.encode("utf-8", "surrogatepass")
        async with session.post(self._url + path, data=data, headers=headers) as response:
            said = (await response.read()).decode()
            assert response.status < 500, f"{response.status} {said[:200]}"
            if response.status != 200:
                assert set(json.loads(said)) == {"error", "hint"}, said[:200]
                return str(response.status)
            lines = [json.loads(line) for line in said.splitlines()]
        for line in lines if path == "/v1/batch" else []:
            assert {"index"} < set(line) <= {"index", "result", "error", "hint"}, line
        for line in lines:
            result = line.get("result", line if path == "/v1/run" else {"status": "ok"})
            assert result["status"] in STATUSES, line
        return "200"

    async def _stream(self, session: aiohttp.ClientSession, chance: random.Random) -> str:
        messages: Any = [_message(chance, key) for key in range(chance.randrange(1, 5))]
        text = text_of(chance.choice([messages] * 9 + [_spoilt({"key": 1}, chance)]), chance)
        async with session.ws_connect(f"{self._url}/v1/stream", headers=self._headers) as socket:
            await socket.receive()
            await socket.send_str(text.encode("utf-8", "replace").decode())
            await socket.send_str('[{"key":99,"metrics":true}]')
            answered = set[int]()
            while 99 not in answered:
                heard = await socket.receive()
                if heard.type is not aiohttp.WSMsgType.TEXT:
                    assert socket.close_code in (
                        1002,
                        1003,
                        1007,
                        1008,
                        1009,
                    ), f"closed with {socket.close_code}"
                    return "closed"
                for answer in json.loads(heard.data):
                    assert len(ANSWERS & answer.keys()) == 1, str(answer)[:200]
                    assert "result" not in answer or answer["result"]["status"] in STATUSES, str(
                        answer
                    )[:200]
                    answered.add(answer["key"])
        return "answered"

    async def _snippet(self, session: aiohttp.ClientSession, chance: random.Random) -> str:
        code = "\n".join(chance.choices(SNIPPETS, k=chance.randrange(1, 4)))
        body = {
            "code": code,
            "limits": {"output_bytes": chance.choice((1, 100, 16384)), "wall_seconds": 30.0},
        }
        if chance.random() < 0.3:
            body["session"] = f"fuzz {chance.randrange(5)}"
        return await self._post(session, "/v1/run", json.dumps(body))


def _submission(chance: random.Random) -> Any:
    call: dict[str, Any] = {"code": chance.choice(["1", "print(2)", "x = 1", *SNIPPETS])}
    call["limits"] = {"wall_seconds": 10.0}
    for name in chance.sample(["session", "id", "run"], chance.randrange(3)):
        call[name] = f"{name} {chance.randrange(9)}"
    return _spoilt(call, chance)


def _message(chance: random.Random, key: int) -> Any:
    kinds: list[dict[str, Any]] = [
        {"run": _submission(chance)},
        {"run": chance.choice(VALUES)},
        {"cancel": True},
        {"fork": {"source": "session 1", "target": "session 2", "run": "run 1"}},
        {"end": {"session": "session 1", "run": "run 1"}},
        {"metrics": True},
    ]
    message = {"key": chance.choice([key] * 6 + [0]), **chance.choice(kinds)}
    return _spoilt(message, chance) if chance.random() < 0.3 else message


def _spoilt(record: dict[str, Any], chance: random.Random) -> Any:
    """Copy of a record with some fields changed, added or removed."""
    record = dict(record)
    for _ in range(chance.randrange(3)):
        what = chance.random()
        if what < 0.5:
            record[chance.choice(FIELDS)] = chance.choice(VALUES)
        elif what < 0.7:
            record["limits"] = {chance.choice(LIMIT_FIELDS): chance.choice(VALUES)}
        elif what < 0.85:
            cells = [{"code": "x = 1", "digest": ""}] * chance.choice((1, 3, 2500))
            record |= {"history": [*cells, chance.choice(VALUES)], "session": "history"}
        elif record:
            del record[chance.choice(list(record))]
    return record


def text_of(value: Any, chance: random.Random) -> str:
    """JSON text of a value, sometimes cut, changed or nested too deep."""
    text = json.dumps(value, ensure_ascii=chance.random() < 0.8)
    what = chance.random()
    if what < 0.8:
        return text
    at = chance.randrange(len(text) + 1)
    if what < 0.85:
        return text[:at]
    put = chance.choice(
        [
            "\0",
            '"',
            "}",
            "[",
            ",",
            "NaN",
            "1e999",
            "\\ud800",
            "9" * 5000,
            "[" * 50_000,
            " " * 70_000,
        ]
    )
    return text[:at] + put + text[at + chance.randrange(3) :]


@contextmanager
def _server() -> Iterator[tuple[str, list[str], LocalEnvironment]]:
    """Start a server. Yields its URL, the tokens of two clients, and its environment."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "clients"
        tokens = [add_client(file, name) for name in ("hostile", "other")]
        local, listener = LocalEnvironment(slots=4), listen_tcp("127.0.0.1", 0)
        with served(local, listener, read_clients(file)):
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", tokens, local
        local.shutdown()


async def _fuzz(url: str, tokens: list[str], cases: int, seed: int, *, show: bool) -> Fuzz:
    fuzz = Fuzz(url, tokens[0], seed)
    other = await asyncio.to_thread(RemoteEnvironment, url, token=tokens[1])
    async with aiohttp.ClientSession() as session:
        for first in range(0, cases, GROUP):
            await asyncio.gather(
                *(fuzz.case(session, number) for number in range(first, min(first + GROUP, cases)))
            )
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    result = await other.run(Submission(f"{first} + 1", limits=Limits(300, 300)))
                if result.value != f"{first + 1}":
                    fuzz.wrong.append(f"after case {first}: the other's call came to {result}")
            except (HrmError, TimeoutError) as error:
                fuzz.wrong.append(f"after case {first}: the other's call: {error!r}")
            if show and first % (20 * GROUP) == 0:
                print(f"{first:6} cases, {len(fuzz.wrong)} wrong", flush=True)
        async with session.get(f"{url}/health") as response:
            if response.status != 200:
                fuzz.wrong.append(f"/health: {response.status} {await response.text()}")
    await other.close()
    return fuzz


class _Complaints(logging.Handler):
    """Errors in the server's log. The server should log none."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said = list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(self.format(record))


def fuzzed(cases: int, seed: int, *, show: bool = False) -> Fuzz:
    """Result of a number of cases."""
    complaints = _Complaints()
    logging.getLogger().addHandler(complaints)
    try:
        with _server() as (url, tokens, _):
            fuzz = asyncio.run(_fuzz(url, tokens, cases, seed, show=show))
    finally:
        logging.getLogger().removeHandler(complaints)
    fuzz.wrong += [f"the server's log: {said[-1500:]}" for said in complaints.said]
    return fuzz


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.environment.hostile_messages", description=__doc__
    )
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    fuzz = fuzzed(options.cases, options.seed, show=True)
    for end, times in sorted(fuzz.ends.items()):
        print(f"{times:6} {end}")
    for line in fuzz.wrong[:20]:
        print(f"WRONG  {line}")
    print(f"{options.cases} cases, {len(fuzz.wrong)} wrong")
    return 1 if fuzz.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
