"""Budget of model calls: what is reserved, settled and lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from hrm_agent.errors import ConfigError, RunError
from hrm_agent.models.hosted import is_text
from hrm_agent.training.evaluation.budget import BudgetUsedUp, Meter, RequestBudget, read_budget
from hrm_agent.training.evaluation.prices import Price, Prices
from hrm_agent.trajectory import RequestSize
from hrm_agent.trajectory.call_facts import CallUsage
from tests.support.trajectory.samples import make_trajectory

CALL = make_trajectory().calls[0]
PRICES = Prices({"m": Price(1.0, 3.0)})


def request(name: str, **other: Any) -> RequestSize:
    return RequestSize(**{
        "call_id": name, "model": "m", "read": 100, "sampled": 50, "engine": False, **other
    })  # fmt: skip


def answered(name: str, read: int | None = 10, sampled: int | None = 5) -> Any:
    usage = CallUsage(input_tokens=read, output_tokens=sampled)
    return CALL.model_copy(update={"id": name, "usage": usage, "token_ids": (), "response": {}})


def meter(file: Path, budget: RequestBudget | None, *on_record: Any) -> Meter:
    return Meter(file, PRICES, budget, lambda ids: [c for c in on_record if c.id in ids])


def test_a_request_waits_for_open_ones_and_is_refused_if_none_is_left(tmp_path: Path) -> None:
    limited = meter(tmp_path / "asked", RequestBudget(200, tokens=True))
    assert limited.reserve(request("a"))
    assert not limited.reserve(request("b"))
    limited.lose("b")  # its run was cancelled
    limited.settle(answered("a"))
    assert limited.total.tokens == 15
    assert limited.reserve(request("c"))
    assert not limited.reserve(request("b"))
    limited.settle(answered("c"))
    assert limited.reserve(request("b"))
    limited.lose("b")
    assert limited.total.tokens == 180
    with pytest.raises(BudgetUsedUp, match="could exceed the budget of 200 tokens"):
        limited.reserve(request("d"))
    assert limited.closed
    with pytest.raises(BudgetUsedUp):
        limited.reserve(request("e", read=1, sampled=1))


def test_what_has_no_answer_on_record_counts_as_reserved(tmp_path: Path) -> None:
    file = tmp_path / "asked"
    money = RequestBudget(0.0009, tokens=False)
    first = meter(file, money)
    for name in "abc":
        assert first.reserve(request(name))
    file.write_text(file.read_text() + '{"call": "was not se')
    # killed: only `a` was recorded; the provider did not report the tokens of `b`
    again = meter(file, money, answered("a"), answered("b", None))
    assert again.total == (210, 105, pytest.approx(525e-6))
    assert [again.was_asked(name) for name in "abcd"] == [True, True, True, False]
    assert again.reserve(request("c"))
    assert len(meter(file, None).total._asdict()) == 3
    with pytest.raises(BudgetUsedUp):
        meter(file, money).reserve(request("c"))
    file.write_text('{"call": "a"}\n')
    with pytest.raises(RunError, match=r"Line 1 of .* is damaged"):
        meter(file, None)


def test_images_have_no_known_number_of_tokens() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
    text = {"type": "text", "text": "Look."}
    result = {"type": "tool_result", "content": [image]}
    assert is_text([HumanMessage("Look."), HumanMessage([text, "and say."])])
    assert not is_text([HumanMessage([text, image])])
    assert not is_text([HumanMessage([result])])


def test_a_request_whose_maximum_is_not_known_is_refused(tmp_path: Path) -> None:
    money = meter(tmp_path / "asked", RequestBudget(1, tokens=False))
    tokens = meter(tmp_path / "asked", RequestBudget(1000, tokens=True))
    for limited in (money, tokens):
        with pytest.raises(ConfigError, match="no limit of completion tokens"):
            limited.reserve(request("a", sampled=None))
        with pytest.raises(ConfigError, match="parts other than text"):
            limited.reserve(request("a", text_only=False))
        with pytest.raises(ConfigError, match="a model of its own"):
            limited.reserve(request("a", by_policy=False))
    with pytest.raises(ConfigError, match="The price of other is not known"):
        money.reserve(request("a", model="other"))
    assert money.reserve(request("a", model="other", engine=True))
    assert meter(tmp_path / "none", None).reserve(request("a", model="other", sampled=None))
    with pytest.raises(RunError, match="it is not known how much of the budget is left"):
        meter(tmp_path / "none", RequestBudget(9, tokens=True))


@pytest.mark.parametrize(
    ("text", "found"),
    [("2.50", RequestBudget(2.5, tokens=False)), ("10tokens", RequestBudget(10, tokens=True))],
)
def test_a_budget_is_read(text: str, found: RequestBudget) -> None:
    assert read_budget(text) == found
    for wrong in ("", "-1", "0tokens", "1e3", "nan", "5 dollars"):
        with pytest.raises(ConfigError, match="is not an amount"):
            read_budget(wrong)
