"""Runs whose graph raised, because of the policy's text or by itself."""

from __future__ import annotations

import asyncio
import errno
import itertools
import random
import sqlite3
import ssl
from collections.abc import Callable
from contextlib import closing
from email.message import Message
from pathlib import Path
from typing import Any, TypedDict
from urllib.error import HTTPError, URLError

import httpx
import pytest
from langgraph.graph import START, StateGraph
from transformers import AutoTokenizer

from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ContextLengthError, TemplateRefusalError
from hrm_agent.models import policy
from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.failures import may_follow_from_answers
from hrm_agent.runtime.replay.player import replay
from hrm_agent.store import RunStore
from hrm_agent.trajectory import RunStatus, StopReason, TaskRef, Trajectory
from hrm_agent.trajectory.lint import lint
from tests.support.graphs import hostile_answers
from tests.support.graphs.hostile_answers import calling, quoting, reading

TASK = TaskRef(id="1", family="test", prompt="What is 6 * 7?", answer="42")
RIGHT = '{"steps": [], "answer": "42"}'


class State(TypedDict, total=False):
    question: str
    answer: Any


def graph_of(node: Callable[[State], Any]) -> Any:
    return StateGraph(State).add_node("think", node).add_edge(START, "think").compile()


def asking(then: Callable[[str], Any]) -> Any:
    """Graph that asks once and passes the answer to `then`."""

    async def think(state: State) -> dict[str, Any]:
        return {"answer": then((await policy().ainvoke([("user", state["question"])])).text)}

    return graph_of(think)


def run(
    graph: Any, answers: list[str], store: RunStore, environment: LocalEnvironment, **options: Any
) -> tuple[Trajectory, int]:
    """Trajectory of a rollout, and the number of requests to the policy."""
    codec, thread = options.pop("codec", None), options.pop("thread", "t")
    with ScriptedEngine(answers, codec=codec) as engine:
        runner = EpisodeRunner(
            store, engine, "scripted", environment, **{"repeats_errors": True, **options}
        )
        episode = Episode(
            TASK, thread, graph=graph, seed=1, verify=lambda text: float(text == "42")
        )
        return asyncio.run(runner.run(episode)), engine.calls


def end_of(trajectory: Trajectory) -> tuple[RunStatus, StopReason | None, dict[str, float]]:
    assert lint(trajectory) == []
    return trajectory.status, trajectory.stop_reason, trajectory.rewards


BY_POLICY = (RunStatus.FAILED, StopReason.UNUSABLE_ANSWER, {"correct": 0.0})


def raised(error: Exception) -> Callable[[str], Any]:
    def then(_: str) -> Any:
        raise error

    return then


@pytest.mark.parametrize(
    ("graph", "answer", "error"),
    [
        (reading, "no JSON", "JSONDecodeError: Expecting value"),
        (reading, "[1]", "TypeError: list indices"),
        (reading, '{"steps": null}', "AttributeError: 'NoneType' object has no attribute 'append'"),
        (reading, '{"goal": 1}', "KeyError: 'steps'"),
        (reading, '{"steps": [], "answer": ' + "[" * 400 + "]" * 400 + "}", ""),
        (asking(raised(RuntimeError("this is no plan"))), "hm", "RuntimeError: this is no plan"),
        (asking(lambda text: Path(text).read_text()), "no/such/file", "FileNotFoundError"),
        (asking(lambda text: Path(text).read_text()), "a" * 300, "OSError"),
        (
            asking(lambda text: sqlite3.connect(":memory:").execute(text)),
            "SELEC 1",
            "OperationalError: near",
        ),
        (asking(httpx.get), "example", "UnsupportedProtocol"),
    ],
)
def test_what_a_graph_raises_on_an_answer_is_a_wrong_answer(
    graph: Any, answer: str, error: str, store: RunStore, environment: LocalEnvironment
) -> None:
    found, asked = run(graph, [answer], store, environment)
    assert end_of(found) == BY_POLICY and asked == 1, (
        "the same answer was given back, not another one sampled"
    )
    assert (found.error or "").startswith(error) and ".py:" in str(found.error_at)
    assert store.journal.trajectory("t") == found
    if error:  # what a store cannot hold, a replay in memory can
        again = replay(store, "t", graph=graph)
        assert again.equal, again


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError("away"),
        ConnectionResetError(),
        TimeoutError(),
        MemoryError(),
        OSError(28, "full"),
    ],
)
def test_what_a_machine_or_a_service_fails_at_is_not(
    error: Exception, store: RunStore, environment: LocalEnvironment
) -> None:
    found, _ = run(asking(raised(error)), ["42"], store, environment)
    assert end_of(found)[:2] == (RunStatus.FAILED, StopReason.ERROR)
    wrapped = ValueError("no page")
    wrapped.__cause__ = error
    assert not may_follow_from_answers(wrapped) and may_follow_from_answers(ValueError("no page"))


def of(package: str, *names: str, **attributes: Any) -> Exception:
    """Error of a package that need not be installed. The last name is its class, earlier names are
    the bases.
    """
    kind: type[Exception] = Exception
    for name in names:
        kind = type(name, (kind,), {"__module__": f"{package}.exceptions"})
    error = kind("said")
    vars(error).update(attributes)
    return error


def by_sqlite(statement: str, before: str = "") -> Exception:
    """The error that sqlite raises at a statement, after some before it."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(before)
        with pytest.raises((sqlite3.Error, sqlite3.Warning)) as raised:
            connection.execute(statement)
    return raised.value


def status(code: int) -> Exception:
    asked = httpx.Request("GET", "http://h/")
    return httpx.HTTPStatusError(
        "said", request=asked, response=httpx.Response(code, request=asked)
    )


@pytest.mark.parametrize(
    ("error", "may"),
    [
        (by_sqlite("SELEC 1"), True),
        (by_sqlite("SELECT * FROM locked"), True),
        (by_sqlite("SELECT 1; SELECT 2"), True),
        (by_sqlite("INSERT INTO t VALUES (1), (1)", "CREATE TABLE t (a UNIQUE)"), True),
        (by_sqlite("CREATE TABLE t (a)", "PRAGMA query_only = 1"), False),
        (sqlite3.OperationalError("database is locked"), False),
        (sqlite3.OperationalError("disk I/O error"), False),
        (sqlite3.OperationalError("unable to open database file"), False),
        (of("sqlalchemy", "DBAPIError", "OperationalError", orig=by_sqlite("SELEC 1")), True),
        (
            of(
                "sqlalchemy",
                "OperationalError",
                orig=sqlite3.OperationalError("database is locked"),
            ),
            False,
        ),
        (of("sqlalchemy", "NoSuchTableError"), True),
        (of("psycopg", "DatabaseError", "ProgrammingError", "UndefinedTable"), True),
        (of("psycopg", "ProgrammingError", "InsufficientPrivilege"), False),
        (of("psycopg", "DatabaseError", "OperationalError", "QueryCanceled"), False),
        (httpx.InvalidURL("said"), True),
        (of("requests", "RequestException", "MissingSchema"), True),
        (of("requests", "RequestException", "InvalidURL", "InvalidProxyURL"), False),
        (of("requests", "RequestException", "ConnectionError"), False),
        (of("urllib3", "LocationValueError", "LocationParseError"), True),
        *((status(code), True) for code in (400, 404, 422)),
        *((status(code), False) for code in (301, 401, 403, 407, 408, 425, 429, 500, 503)),
        (of("openai", "BadRequestError", status_code=400), True),
        (of("aiohttp", "ClientResponseError", status=404), True),
        (of("pymongo", "OperationFailure", code=462), False),
        (HTTPError("http://h/", 404, "said", Message(), None), True),
        (HTTPError("http://h/", 502, "said", Message(), None), False),
        (URLError(ConnectionRefusedError()), False),
        *(
            (OSError(getattr(errno, name), "said"), True)
            for name in ("ENAMETOOLONG", "EINVAL", "ENOENT", "EEXIST")
        ),
        *((OSError(getattr(errno, name), "said"), True) for name in ("EISDIR", "ENOTDIR")),
        *(
            (OSError(getattr(errno, name), "said"), False)
            for name in ("EACCES", "EIO", "ENOSPC", "ECONNREFUSED")
        ),
        (ssl.SSLWantReadError(errno.EINVAL, "said"), False),
    ],
    ids=lambda value: value if isinstance(value, bool) else repr(value)[:40],
)
def test_what_a_service_was_asked_amiss_may_be_the_policys(error: Exception, may: bool) -> None:
    handled = ValueError("no page")
    handled.__context__ = error
    assert (may_follow_from_answers(error), may_follow_from_answers(handled)) == (may, may)


def test_what_happens_by_chance_does_not_happen_twice(
    store: RunStore, environment: LocalEnvironment
) -> None:
    tries = itertools.count()
    found, asked = run(
        hostile_answers.by_chance(lambda: next(tries) == 0), ["42"], store, environment
    )
    assert end_of(found) == (RunStatus.COMPLETED, StopReason.ANSWER, {"correct": 1.0})
    assert (asked, next(tries)) == (1, 2), "the step was taken again, with the answer on record"


def test_chance_is_drawn_anew(store: RunStore, environment: LocalEnvironment) -> None:
    drawn: list[float] = []

    def think(text: str) -> str:
        drawn.append(random.random())
        if len(drawn) == 1:
            raise ValueError("an unlucky draw")
        return text

    found, _ = run(asking(think), ["42"], store, environment)
    assert found.answer == "42" and drawn[0] != drawn[1]


def test_before_the_policy_has_answered_nothing_is_its_doing(
    store: RunStore, environment: LocalEnvironment
) -> None:
    def think(_: State) -> Any:
        raise KeyError("no such setting")

    found, asked = run(graph_of(think), [], store, environment)
    assert (*end_of(found)[:2], asked) == (RunStatus.FAILED, StopReason.ERROR, 0)


def test_a_single_run_repeats_nothing(store: RunStore, environment: LocalEnvironment) -> None:
    tries = itertools.count()
    graph = hostile_answers.by_chance(lambda: next(tries) == 0)
    found, _ = run(graph, ["42"], store, environment, repeats_errors=False)
    assert end_of(found)[:2] == (RunStatus.FAILED, StopReason.ERROR) and next(tries) == 1


def codec_that(refusal: str, role: str = "assistant") -> ChatTemplateCodec:
    """The codec of the small policy, whose template does `refusal` at each message of `role`."""
    tokenizer: Any = AutoTokenizer.from_pretrained(model_folder("builtin:cold-start"))
    here = f"message.role == '{role}' -%}}"
    assert here in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(here, here + refusal)
    return ChatTemplateCodec(tokenizer)


CALL = '<tool_call>{"name": "echo", "arguments": {"text": "a"}}</tool_call>'
PLAIN_JSON = '{"steps": []}'


@pytest.mark.parametrize(
    ("refusal", "answer", "graph", "reason"),
    [
        (hostile_answers.REFUSALS[0], CALL * 2, calling, "only single tool-calls at once"),
        (hostile_answers.REFUSALS[1], CALL, calling, "an answer needs a text"),
        (hostile_answers.REFUSALS[2], CALL, calling, "TypeError"),
        (hostile_answers.REFUSALS[3], CALL, calling, "ZeroDivisionError"),
        (hostile_answers.REFUSALS[4], "x" * 41 + CALL, calling, "has no attribute 'missing'"),
    ],
)
def test_what_a_template_refuses_of_the_policy_ends_its_own_rollout(
    refusal: str,
    answer: str,
    graph: Any,
    reason: str,
    store: RunStore,
    environment: LocalEnvironment,
) -> None:
    codec = codec_that(refusal)
    found, asked = run(graph, [answer, "42"], store, environment, codec=codec)
    assert end_of(found) == BY_POLICY and asked == 1
    assert reason in str(found.error) and "refuses the conversation" in str(found.error)
    again, _ = run(graph, ["42"], store, environment, codec=codec, thread="another")
    assert end_of(again) == (RunStatus.COMPLETED, StopReason.ANSWER, {"correct": 1.0})
    played = replay(store, "t", graph=graph)
    assert played.equal, played


def test_what_a_template_refuses_of_the_graph_itself_is_a_persons_to_mend(
    store: RunStore, environment: LocalEnvironment
) -> None:
    codec = codec_that(
        "{{ raise_exception('no user here') if message.content != 'QUESTION' }}", role="user"
    )
    with pytest.raises(TemplateRefusalError, match="refuses the conversation: no user here"):
        run(calling, ["42"], store, environment, codec=codec)


def test_a_refusal_of_a_later_prompt_of_the_graph_is_named_all_the_same(
    store: RunStore, environment: LocalEnvironment
) -> None:
    codec = codec_that(
        "{{ raise_exception('no') if message.content == PLAIN }}".replace(
            "PLAIN", repr(PLAIN_JSON)
        ),
        "user",
    )
    found, _ = run(quoting, [PLAIN_JSON], store, environment, codec=codec)
    assert end_of(found) == BY_POLICY


def test_the_text_of_a_full_context_window_is_kept(
    store: RunStore, environment: LocalEnvironment
) -> None:
    full = ContextLengthError("The prompt has 3000 tokens, and the window 2048.", "Shorten it.")
    found, _ = run(asking(raised(full)), ["42"], store, environment)
    assert end_of(found)[:2] == (RunStatus.TRUNCATED, StopReason.MAX_TOKENS)
    assert "3000 tokens" in str(found.error)


def test_halves_of_characters_are_no_reason_to_fail(
    store: RunStore, environment: LocalEnvironment
) -> None:
    found, _ = run(reading, ['{"steps": [], "answer": "a\\ud800b\\u0000"}'], store, environment)
    assert found.status is RunStatus.COMPLETED and found.answer == "a\ufffdb\x00"
    failed, _ = run(
        asking(raised(ValueError("\ud800"))), ["42"], store, environment, thread="failed"
    )
    assert failed.error == "ValueError: \ufffd" and store.journal.trajectory("failed") == failed
