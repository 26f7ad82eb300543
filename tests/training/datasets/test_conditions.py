"""Conditions of `hrm-agent dataset add --where`."""

from __future__ import annotations

import pytest

from hrm_agent.errors import ConfigError
from hrm_agent.training.datasets.conditions import read_condition
from hrm_agent.trajectory import Scoring, TaskRef, ToolStatus
from tests.support.trajectory.samples import make_tool_call, make_trajectory

RUN = make_trajectory().model_copy(
    update={
        "rewards": {"correct": 1.0, "reward": 0.25, "style": 0.5},
        "run_id": "prod-7",
        "task": TaskRef(
            id="1",
            family="otel",
            prompt="Where is my order?",
            metadata={
                "customer": {"plan": "gold", "age": 7},
                "test": True,
                "n": "7",
                "a.b": 1,
                "void": None,
            },
        ),
        "tool_calls": (make_tool_call(status=ToolStatus.ERROR), make_tool_call("tc-1")),
    }
)
SCORINGS = {
    "feedback": Scoring(trajectory_id="t", rubric="feedback", outcome=0.0, total=0.0, scored_at=1.0)
}

TRUE = [
    *("reward<0.5", "reward = 0.25", "correct>=1", "rewards.style<=0.5", "reward!=1"),
    *("status=completed", "status!=failed", "run~prod-*", "run!~test-*", "family=otel"),
    *("metadata.customer.plan=gold", "metadata.customer.age>6", "metadata.customer.age=7"),
    *("metadata.test=true", "metadata.n=7", "metadata.a.b=1", "metadata.customer.plan~g*d"),
    *("role=reason", "role!=critic", "role~rea*", "tool=python", "tool_errors>0", "calls>=1"),
    *("scores.feedback<1", "prompt~*order[?]", "rewards.other!=1", "metadata.none!=1", "turns=1"),
    # null is a missing value, in every field
    *("metadata.none=null", "metadata.void=null", "metadata.n!=null", "reward!=null"),
    *("error=null", "rewards.other=null", "scores.other=null", "tool!=null", "policy!=null"),
    # numbers as texts, and patterns for what is no text
    *("metadata.n>6", "metadata.a.b~1*", "metadata.test~t*", "metadata.customer~*gold*"),
    *("answer!=<answer>", "metadata.n<=7"),
]
FALSE = [
    *("reward>0.25", "correct<1", "rewards.other<1", "rewards.other=1", "scores.other<9"),
    *("status=failed", "run~test-*", "run=prod-", "metadata.customer.age=8", "metadata.test=1"),
    *("metadata.customer.plan>3", "metadata.none=1", "metadata.none~*", "role=critic"),
    *("role!=reason", "tool_errors>1", "error~*", "metadata.none!=null", "metadata.n=null"),
    *("metadata.void!=null", "reward=null", "error!=null", "tool=null", "scores.feedback=null"),
    *("metadata.n>7", "metadata.a.b!~1*", "metadata.test!~t*"),
]


@pytest.mark.parametrize(
    ("text", "holds"), [*((t, True) for t in TRUE), *((t, False) for t in FALSE)]
)
def test_conditions(text: str, holds: bool) -> None:
    assert read_condition(text).holds(RUN, SCORINGS) is holds


def test_only_conditions_on_calls_read_them() -> None:
    of_calls = [text for text in (*TRUE, *FALSE) if read_condition(text).reads_calls]
    assert {read_condition(text).field for text in of_calls} == {
        "calls",
        "role",
        "tool",
        "tool_errors",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("reward", "is not a condition"),
        ("<1", "is not a condition"),
        ("reward<half", "'half' is not a number"),
        ("reward<nan", "'nan' is not a number"),
        ("reward<true", "'true' is not a number"),
        ("reward~1", "is a number, which ~ does not compare"),
        ("status<1", "is a text, which < does not compare"),
        ("status=done", "there is no status 'done'"),
        ("stats=failed", "has no field 'stats'. Did you mean 'status'?"),
        ("metadata=1", "has no field 'metadata'"),
        ("reward.x=1", "has no field 'reward.x'"),
        ("thread!==x", "has two operators, != and =."),
        ("family==x", "has two operators, = and =."),
        ("family=~x", "has two operators, = and ~."),
        ("metadata.ok=True", "which has no True. Write true, or"),
        ("__class__=1", "has no field '__class__'"),
        ("x" * 5_000 + "=1", "has no field"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_condition(text)
    assert message in str(raised.value) and len(str(raised.value)) < 600
