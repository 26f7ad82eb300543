"""Record of a call's log-probs: their distribution, and whether a trainer can learn from the call."""

from __future__ import annotations

import pytest
from langchain_core.messages import HumanMessage

from hrm_agent.models import using_policy
from hrm_agent.models.chat import PolicyModel
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.store import RunStore
from hrm_agent.trajectory import Call, LogprobKind, Recording, Sampling, recording
from tests.models.test_contract import calls_of

RAW, TEMPERED, SAMPLED, NONE = (
    LogprobKind.RAW,
    LogprobKind.TEMPERED,
    LogprobKind.SAMPLED,
    LogprobKind.NONE,
)


class Reporting(ScriptedEngine):
    """Log-probs of the given kind: `tempered` as in this process, `sampled` as of a server's
    processed ones.
    """

    def __init__(self, kind: LogprobKind) -> None:
        super().__init__(["42"])
        self.logprob_kind = kind


def called(store: RunStore, kind: LogprobKind, sampling: Sampling) -> Call:
    with (
        Reporting(kind) as engine,
        recording(Recording(store.journal)),
        using_policy(engine, sampling),
    ):
        PolicyModel().invoke([HumanMessage("6 * 7?")], {"metadata": {"thread_id": "t"}})
        (call,) = calls_of(store, "t")
        return call


@pytest.mark.parametrize(
    ("engines", "temperature", "top_p", "recorded"),
    [
        (RAW, 1.0, 1.0, RAW),
        (RAW, 0.5, 1.0, RAW),
        (RAW, 0.0, 0.9, RAW),
        (TEMPERED, 1.0, 1.0, RAW),
        (TEMPERED, 0.5, 1.0, TEMPERED),
        (TEMPERED, 0.5, 0.9, TEMPERED),
        (TEMPERED, 0.0, 1.0, RAW),
        (SAMPLED, 1.0, 1.0, RAW),
        (SAMPLED, 0.5, 1.0, TEMPERED),
        (SAMPLED, 0.5, 0.9, SAMPLED),
        (SAMPLED, 0.0, 1.0, SAMPLED),
        (NONE, 1.0, 1.0, NONE),
    ],
)
def test_the_record_says_of_which_distribution_log_probs_are(
    engines: LogprobKind, temperature: float, top_p: float, recorded: LogprobKind, store: RunStore
) -> None:
    call = called(store, engines, Sampling(temperature=temperature, top_p=top_p))
    assert call.logprob_kind is recorded
    expected = "log-probs are none" if engines is NONE else {0.0: "temperature 0"}.get(temperature)
    expected = expected or ("top_p 0.9" if top_p < 1 else None)
    assert str(call.untrainable).startswith(expected or "None")
    assert call.trainable is (expected is None)
