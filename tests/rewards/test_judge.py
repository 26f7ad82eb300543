"""Models as judges: their prompts, their answers, and the handling of unusable answers."""

from __future__ import annotations

import json
from typing import Any

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from hrm_agent.rewards import Rollout, Rubric, judged, opened_scorer, ranked
from hrm_agent.trajectory import RewardFault, Scoring
from tests.support.trajectory.samples import make_trajectory


def judge(*replies: str) -> GenericFakeChatModel:
    usage: Any = {"input_tokens": 90, "output_tokens": 12, "total_tokens": 102}
    facts = {"token_usage": {"cost": 0.002}, "model_name": "judge-1"}
    messages = [
        AIMessage(reply, usage_metadata=usage, response_metadata=facts) for reply in replies
    ]
    return GenericFakeChatModel(messages=iter(messages))


def rollouts(*answers: str | None) -> list[Rollout]:
    return [
        Rollout(make_trajectory(id=f"t{i}", answer=answer, sample_index=i))
        for i, answer in enumerate(answers)
    ]


async def score(rubric: Rubric, *answers: str | None) -> list[Scoring]:
    async with opened_scorer(rubric) as scorer:
        return await scorer.score(rollouts(*answers))


async def test_a_judge_scores_an_answer_and_its_request_is_on_record() -> None:
    model = judge('{"reason": "It is.", "score": 0.75}')
    (found,) = await score(Rubric([judged("Is it kind?", model)]), 'Dear "you"')
    (given,) = found.scores
    (call,) = given.judge_calls
    assert (given.value, given.reason) == (0.75, "It is.")
    assert (call.model, call.input_tokens, call.output_tokens, call.cost) == (
        "judge-1",
        90,
        12,
        0.002,
    )
    assert "Is it kind?" in call.request[0]["content"]
    data = json.loads(call.request[1]["content"])
    assert data == {"task": "What is 17 + 25?", "reference": "42", "answer": 'Dear "you"'}


async def test_an_answer_that_cannot_be_read_is_asked_for_once_more() -> None:
    model = judge("I think it is fine.", '{"score": 1}')
    (found,) = await score(Rubric([judged("Fine?", model)]), "x")
    assert found.scores[0].value == 1.0
    assert [call.response for call in found.scores[0].judge_calls] == [
        "I think it is fine.",
        '{"score": 1}',
    ]
    (lost,) = await score(Rubric([judged("Fine?", judge("No.", '{"score": 7}'))]), "x")
    assert lost.scores[0].fault is RewardFault.JUDGE
    assert lost.rewards == {}, "a judge that fails is not a 0"


async def test_a_judge_that_does_not_answer_is_a_fault() -> None:
    (found,) = await score(Rubric([judged("Fine?", judge())]), "x")
    assert found.scores[0].fault is RewardFault.JUDGE


class Ranking(GenericFakeChatModel):
    """Gives each candidate its length as score, by the labels that it was given."""

    def _generate(self, messages: Any, *args: Any, **options: Any) -> Any:
        answers = json.loads(messages[1].content)["answers"]
        scores = {
            label: {"reason": label, "score": len(text) / 10} for label, text in answers.items()
        }
        self.messages = iter([AIMessage(json.dumps({"scores": scores}))])
        return super()._generate(messages, *args, **options)


async def test_siblings_are_ranked_in_one_request_whatever_order_they_are_shown_in() -> None:
    found = await score(
        Rubric([ranked("Longer is better.", Ranking(messages=iter([])))]), "a", "bbb", None, "cc"
    )
    assert [s.outcome for s in found] == [0.1, 0.3, 0.0, 0.2]
    assert [len(s.scores[0].judge_calls) for s in found] == [
        1,
        0,
        0,
        0,
    ], "one request, with the first of them"
    request = json.loads(found[0].scores[0].judge_calls[0].request[1]["content"])
    assert sorted(request["answers"].values()) == ["a", "bbb", "cc"]


async def test_a_ranking_of_other_candidates_is_none() -> None:
    one = json.dumps({"scores": {"answer_1": {"score": 1}}})
    found = await score(Rubric([ranked("Best?", judge(one, one))]), "a", "b")
    assert {s.scores[0].fault for s in found} == {RewardFault.JUDGE}
