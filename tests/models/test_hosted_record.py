"""Record of a call to a provider: the request as sent and the provider's report, over real
requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from hrm_agent.models import policy, using_policy
from hrm_agent.models.external.recorded import record_external_models
from hrm_agent.models.hosted import sent_sampling
from hrm_agent.runtime.settings import RunSettings
from hrm_agent.store import RunStore
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.trajectory import (
    Call,
    CallUsage,
    Recording,
    Sampling,
    SentSampling,
    content_hash,
    recording,
)
from hrm_agent.trajectory.call_facts import reported_usage, total_usage
from tests.support.serving.providers import ProviderServer

CONFIG: Any = {
    "metadata": {
        "thread_id": "t",
        "langgraph_checkpoint_ns": "ask:1",
        "langgraph_node": "ask",
        "langgraph_step": 1,
    }
}
TOKENS: Any = {"input_tokens": 5, "output_tokens": 3, "cached_tokens": 1, "reasoning_tokens": 2}


@tool
def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    record_external_models()
    with ProviderServer(cost=0.0021) as running:
        yield running


def hosted(server: ProviderServer, **options: Any) -> Any:
    return ChatOpenAI(
        model="gpt-test", api_key="k", base_url=f"{server.url}/v1", max_retries=0, **options
    )


def asked(store: RunStore, model: Any, how: str = "invoke") -> Call:
    """The record of one request."""
    with recording(Recording(store.journal)):
        if how == "stream":
            list(model.stream([HumanMessage("6 * 7?")], CONFIG))
        else:
            model.invoke([HumanMessage("6 * 7?")], CONFIG)
    (call,) = store.journal.calls_of_task("t", "1")
    return call


def sent_with(call: Call) -> SentSampling:
    """Sampling parameters on record, without the hashes of all other options."""
    assert call.sampling_sent is not None and call.sampling_sent.hashes is not None
    return call.sampling_sent.model_copy(update={"hashes": None})


def test_what_a_request_does_not_name_is_not_on_record(
    server: ProviderServer, store: RunStore
) -> None:
    call = asked(store, hosted(server))
    named = {"temperature", "top_p", "max_tokens", "max_completion_tokens", "seed", "stop"}
    assert named & server.asked[0].keys() == set()
    assert call.sampling is None and sent_with(call) == SentSampling()


def test_what_it_names_is(server: ProviderServer, store: RunStore) -> None:
    model = hosted(server, temperature=0.0, max_tokens=50, seed=7, reasoning_effort="low")
    call = asked(store, model.bind(top_p=0.9, stop=["END"]))
    sent = server.asked[0]
    assert (sent["temperature"], sent["max_completion_tokens"], sent["stop"]) == (0.0, 50, ["END"])
    assert sent_with(call) == SentSampling(
        temperature=0.0,
        top_p=0.9,
        max_tokens=50,
        seed=7,
        stop=("END",),
        other={"reasoning_effort": "low"},
    )


def test_a_default_that_a_client_sends_was_sent(server: ProviderServer, store: RunStore) -> None:
    from langchain_anthropic import ChatAnthropic  # two seconds, of each process if it stood above

    call = asked(
        store, ChatAnthropic(model="claude-test", api_key="k", base_url=server.url, max_retries=0)
    )
    assert sent_with(call) == SentSampling(max_tokens=server.asked[0]["max_tokens"])
    assert call.answered_by == "claude-test-0" and call.used == CallUsage(
        input_tokens=6, output_tokens=3, cached_tokens=1
    )


@pytest.mark.parametrize(("how", "cost"), [("invoke", 0.0021), ("stream", None)])
def test_tokens_and_cost_are_the_providers(
    how: str, cost: float | None, server: ProviderServer, store: RunStore
) -> None:
    """LangChain's client of OpenAI drops the cost of a stream: then none was reported."""
    call = asked(store, hosted(server, stream_usage=True), how)
    assert call.usage == call.used == CallUsage(**TOKENS, cost=cost)
    assert (call.model, call.answered_by) == ("gpt-test", "gpt-test-0")


def test_what_is_not_reported_is_not_on_record(server: ProviderServer, store: RunStore) -> None:
    call = asked(store, hosted(server, stream_usage=False), "stream")
    assert call.usage is None and call.used is None


def test_the_tools_and_the_messages_are_there_whole(
    server: ProviderServer, store: RunStore
) -> None:
    key = {
        "type": "mcp",
        "server_url": "http://x",
        "authorization": "Bearer secret",
        "headers": {"X-Key": "secret"},
    }
    model = hosted(server, use_responses_api=False)
    call = asked(store, model.bind_tools([multiply]))
    assert [*(call.tools or ())] == server.asked[0]["tools"] and content_hash(
        call.tools
    ) == call.tools_hash
    assert [message["content"] for message in call.request or ()] == ["6 * 7?"]
    with recording(Recording(store.journal)):
        model.bind(tools=[key]).invoke("6 * 8?", CONFIG)
    kept = store.journal.calls_of_task("t", "1")[1].tools
    assert kept == (
        {"type": "mcp", "server_url": "http://x", "authorization": "removed", "headers": "removed"},
    )


def test_a_policy_that_is_hosted_was_sent_its_parameters(
    server: ProviderServer, store: RunStore
) -> None:
    with using_policy(hosted(server), Sampling(temperature=0.5, max_tokens=9)):
        call = asked(store, policy().bind_tools([multiply]))
    assert server.asked[0]["temperature"] == 0.5 and server.asked[0]["max_completion_tokens"] == 9
    assert (call.sampling, call.sampling_sent) == (
        None,
        SentSampling(temperature=0.5, max_tokens=9),
    )
    assert (
        call.usage == CallUsage(**TOKENS, cost=0.0021)
        and [*(call.tools or ())] == server.asked[0]["tools"]
    )


@pytest.mark.parametrize(
    ("settings", "own", "sent"),
    [
        (RunSettings(), {}, {}),
        (RunSettings(), {"max_tokens": 5}, {"max_tokens": 5}),
        (
            RunSettings(),
            {"max_tokens": 5000, "temperature": 0.2},
            {"max_tokens": 5000, "temperature": 0.2},
        ),
        # what a graph has left by its own default: nobody asked for it
        (RunSettings(), {"budget": 5000}, {}),
        (RunSettings(), {"budget": 5}, {"max_tokens": 5}),
        (RunSettings(), {"max_tokens": 5000, "budget": 5}, {"max_tokens": 5}),
        (RunSettings(temperature=1.0, max_tokens=512), {}, {"temperature": 1.0, "max_tokens": 512}),
        (RunSettings(max_tokens=9, top_p=0.5), {"max_tokens": 20}, {"max_tokens": 9, "top_p": 0.5}),
    ],
)
def test_a_hosted_policy_is_sent_what_was_asked_for_and_no_default_of_ours(
    settings: RunSettings,
    own: dict[str, Any],
    sent: dict[str, Any],
    server: ProviderServer,
    store: RunStore,
) -> None:
    sampling = settings.runner_options()["sampling"]
    with using_policy(hosted(server), sampling):
        call = asked(store, policy(**own))
    named = {"temperature": "temperature", "top_p": "top_p", "max_tokens": "max_completion_tokens"}
    assert {
        name: server.asked[0][there] for name, there in named.items() if there in server.asked[0]
    } == sent
    assert call.sampling_sent == SentSampling(**sent)


def test_a_role_with_a_hosted_model_is_not_sent_what_a_training_samples_by(
    server: ProviderServer, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hrm_agent.models.chat.load_policy", lambda name: hosted(server))
    options = GrpoConfig.of(max_tokens=256).runner_options()
    with using_policy("builtin:trained", options["sampling"], own_sampling=options["own_sampling"]):
        call = asked(store, policy(model="openai:judge", temperature=0.1))
    assert call.sampling_sent == SentSampling(temperature=0.1)
    with using_policy("builtin:trained", options["sampling"]), recording(Recording(store.journal)):
        policy(model="openai:judge").invoke([HumanMessage("6 * 8?")], CONFIG)
    assert store.journal.calls_of_task("t", "1")[1].sampling_sent == SentSampling(
        temperature=1.0, max_tokens=256
    )


@pytest.mark.parametrize(
    ("response", "known"),
    [
        ({}, None),
        ({"usage_metadata": None, "response_metadata": {"cost": float("nan")}}, None),
        ({"usage_metadata": {"input_tokens": -1, "output_tokens": True}}, None),
        ({"usage_metadata": {"input_tokens": 1.5}}, None),
        ({"usage_metadata": "many", "response_metadata": ["cost"]}, None),
        ({"response_metadata": {"cost": 0.5}}, CallUsage(cost=0.5)),
        ({"response_metadata": {"usage": {"cost": 0}}}, CallUsage(cost=0.0)),
        (
            {
                "usage_metadata": {
                    "input_tokens": 3,
                    "input_token_details": {"flex_cache_read": 2, "flex": 1},
                }
            },
            CallUsage(input_tokens=3, cached_tokens=2),
        ),
    ],
)
def test_what_a_provider_may_say(response: dict[str, Any], known: CallUsage | None) -> None:
    assert reported_usage(response) == known


def test_a_sum_is_of_what_is_known() -> None:
    found = total_usage(
        [None, CallUsage(input_tokens=2, cost=0.5), CallUsage(input_tokens=3, output_tokens=1)]
    )
    assert (
        found == CallUsage(input_tokens=5, output_tokens=1, cost=0.5)
        and total_usage([None]) == CallUsage()
    )


def test_a_value_of_a_form_that_we_do_not_know_is_left_out() -> None:
    class Odd(ChatOpenAI):
        def _get_invocation_params(self, stop: Any = None, **options: Any) -> dict[str, Any]:
            odd = {
                "temperature": float("nan"),
                "top_p": "high",
                "max_tokens": float("inf"),
                "seed": 1.5,
                "stop": 7,
            }
            return {**odd, "top_k": [1], "verbosity": "low", **options}

    model = Odd(model="m", api_key="k", base_url="http://127.0.0.1:1")
    assert sent_sampling(model, {}) == SentSampling(other={"verbosity": "low"})
    assert sent_sampling(model, {"stop": "END", "max_tokens": 5}).max_tokens == 5
