"""A teacher's log-probs of what the policy sampled, in the weights of its tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from langchain_core.messages import BaseMessage, HumanMessage, convert_to_messages

from hrm_agent.errors import ConfigError, ModelError
from hrm_agent.models.loading.load_weights import load_pretrained
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.config.parts import AdapterPart, LossPart
from hrm_agent.training.select.roc import RocOptions, select
from hrm_agent.training.update import teachers as teachers_module
from hrm_agent.training.update.advantages import by_group
from hrm_agent.training.update.batch import ForwardName, build_batches
from hrm_agent.training.update.logprobs import token_logprobs
from hrm_agent.training.update.objectives import UNTAUGHT, LossOptions
from hrm_agent.training.update.optimizer_step import OptimOptions, policy_update
from hrm_agent.training.update.teachers import LocalTeacher, ServerTeacher, Teachers
from hrm_agent.training.update.trained_policy import TrainedPolicy
from hrm_agent.trajectory import Call, TaskRef, Trajectory, Verdict
from tests.support.training.builders import sampled_call, tiny_model, trajectory

RUNS = [
    trajectory(0, 1.0, calls=(sampled_call("a", [3, 4, 20, 21], 2),)),
    trajectory(1, 0.0, calls=(sampled_call("b", [3, 4, 22, 23, 24], 2),)),
]


def log_probs(model: Any, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens])).logits[0].log_softmax(-1)


@pytest.mark.parametrize(("outcome_coef", "teacher_coef"), [(0.0, 1.0), (1.0, 0.5)])
def test_the_gradient_equals_a_computation_in_double_precision(
    outcome_coef: float, teacher_coef: float
) -> None:
    overlays = by_group(select(RUNS, 2, "grpo", seed=0), "dr_grpo")
    model, teacher = tiny_model(), tiny_model(1)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    metrics = policy_update(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        build_batches(RUNS, overlays, token_budget=64),
        loss=LossOptions(teacher_coef=teacher_coef, outcome_coef=outcome_coef),
        optim=OptimOptions(max_grad_norm=1e9),
        teacher=partial(token_logprobs, teacher),
    )

    double, double_teacher = tiny_model().double(), tiny_model(1).double()
    loss = torch.zeros((), dtype=torch.float64)
    divergence = 0.0
    for run, overlay in zip(RUNS, overlays, strict=True):
        tokens = [*run.calls[0].token_ids]
        ours, theirs = log_probs(double, tokens), log_probs(double_teacher, tokens)
        for i in range(2, len(tokens)):
            own = ours[i - 1, tokens[i]]
            apart = (theirs[i - 1, tokens[i]] - own).detach()
            divergence -= float(apart) / 5
            weight = outcome_coef * float(overlay.advantage or 0) + teacher_coef * apart
            loss = loss - weight * own / 5
    loss.backward()
    assert metrics["kl_teacher"] == pytest.approx(divergence, abs=1e-5)
    for name, parameter in double.named_parameters():
        step = before[name] - model.get_parameter(name).detach()
        assert parameter.grad is not None
        torch.testing.assert_close(step.double(), parameter.grad, rtol=1e-3, atol=1e-6, msg=name)


def test_a_group_of_equal_rewards_is_trained_on_and_without_a_teacher_it_is_not() -> None:
    equal = [each.model_copy(update={"rewards": {"correct": 1.0}}) for each in RUNS]
    for taught, verdict in ((True, Verdict.KEPT), (False, Verdict.GROUP_REJECTED)):
        judged = select(equal, 2, "grpo", seed=0, options=RocOptions(taught=taught))
        assert {each.verdict for each in judged} == {verdict}


def test_another_vocabulary_is_refused_with_a_token_that_differs(tmp_path: Path) -> None:
    folder = model_folder("builtin:cold-start")
    model, tokenizer = load_pretrained(folder)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    described = json.loads(file.read_text())
    added = {**described["added_tokens"][-1], "id": len(tokenizer), "content": "<more>"}
    described["added_tokens"].append(added)
    file.write_text(json.dumps(described))
    policy = TrainedPolicy.load(
        "builtin:cold-start", AdapterPart(), dtype="float32", device="cpu", seed=0
    )
    assert policy.teachers(LossPart()) is None
    assert policy.teachers(LossPart(teacher="builtin:trained")) is not None
    with pytest.raises(
        ModelError, match=r"vocabularies differ\. The text '<more>' is token \d+ of"
    ):
        policy.teachers(LossPart(teacher=str(tmp_path)))
    with pytest.raises(ModelError, match="names a provider, whose weights are not here"):
        policy.teachers(LossPart(teacher="builtin:trained"), {"sums": "openai:gpt-5"})


@pytest.mark.parametrize("forward", ["padded", "packed", "tree"])
def test_a_server_is_asked_for_whole_sequences_and_answers_as_a_model_here(
    forward: ForwardName,
) -> None:
    model = tiny_model(1)
    asked: list[list[int]] = []

    def logprobs(token_ids: list[int]) -> list[float]:
        asked.append(token_ids)
        given = log_probs(model, token_ids).detach()
        return [float(given[i - 1, token]) for i, token in enumerate(token_ids) if i]

    overlays = by_group(select(RUNS, 2, "grpo", seed=0))
    batches = build_batches(RUNS, overlays, token_budget=64, forward=forward)
    teacher = ServerTeacher(logprobs, "vllm:there")
    for batch in batches:
        torch.testing.assert_close(
            teacher(batch), token_logprobs(model, batch).detach(), rtol=0, atol=1e-5
        )
    sequences = [list(tokens) for tokens in asked]
    assert sequences and all(
        not any(each != other and other[: len(each)] == each for other in sequences)
        for each in sequences
    ), "no sequence is asked for as the beginning of another one"
    warm = replace(batches[0], temperatures_K=batches[0].temperatures_K * 0.5)
    with pytest.raises(ModelError, match=r"the policy samples at 0\.5"):
        teacher(warm)


class Words:
    """Codec with a token for each word."""

    def encode(self, messages: Sequence[BaseMessage], tools: Sequence[Any] = ()) -> list[int]:
        del tools
        words = " ".join(str(message.content) for message in messages).split()
        return [5 + sum(map(ord, word)) % 50 for word in words]


QUESTION = ({"type": "system", "content": "count"}, {"type": "human", "content": "two and two"})
HINT = "It is {answer} of course"


def asked(index: int, family: str, answer: str | None, *sampled: list[int]) -> Trajectory:
    """A rollout whose calls sampled these tokens, each call after the one before."""
    prompt = [10, 11, 12, 13]
    calls: list[Call] = []
    for turn, tokens in enumerate(sampled):
        inserted = prompt if not turn else [60]
        added = sampled_call(
            f"{index}-{turn}", [*inserted, *tokens], len(inserted), calls[-1].id if turn else None
        )
        calls.append(added.model_copy(update={"request": QUESTION, "tools": ()}))
    task = TaskRef(id=str(index), family=family, prompt="two and two", answer=answer)
    return trajectory(index, float(index % 2), calls=tuple(calls), task=task)


LESSONS = [
    asked(0, "sums", "4", [20, 21], [22]),
    asked(1, "sums", "4", [20, 23, 24]),
    asked(2, "words", "blue", [25], [26, 27]),
    asked(3, "words", "blue", [25, 28]),
]


def read_by(model: Any, prompt: list[int], run: Trajectory) -> list[float]:
    """Log-probs of the sampled tokens of a rollout after this prompt."""
    first, *later = run.calls
    tokens = [*prompt, *first.token_ids[4:], *(id_ for call in later for id_ in call.token_ids)]
    mask = [*first.mask[4:], *(each for call in later for each in call.mask)]
    given = log_probs(model, tokens).detach()
    start = len(prompt)
    return [float(given[start + i - 1, tokens[start + i]]) for i, m in enumerate(mask) if m]


@pytest.mark.parametrize("hint", [HINT, None])
@pytest.mark.parametrize("forward", ["padded", "packed", "tree"])
def test_each_family_has_its_teacher_which_reads_the_answer_if_it_is_told(
    forward: ForwardName, hint: str | None
) -> None:
    models = [tiny_model(1), tiny_model(2)]
    words: Any = Words()
    teachers = Teachers(LocalTeacher(models[0]), {"words": LocalTeacher(models[1])}, hint, words)
    overlays = by_group(select(LESSONS, 4, "grpo", seed=0, options=RocOptions(taught=True)))
    batches = build_batches(
        LESSONS, overlays, token_budget=24, forward=forward, lesson=teachers.lesson
    )
    found: dict[int, list[float]] = {}
    for batch in batches:
        values = teachers(batch).tolist()
        fewer = replace(  # as without tokens that are too stale
            batch,
            **{
                each.name: getattr(batch, each.name)[:-1]
                for each in fields(batch)
                if each.name.endswith("_K")
            },
        )
        if fewer.trained_tokens:
            assert teachers(fewer).tolist() == pytest.approx(values[:-1], abs=1e-5)
        for sequence, value in zip(batch.sequences_K.tolist(), values, strict=True):
            found.setdefault(sequence, []).append(value)
    for number, run in enumerate(LESSONS):
        answer = run.task.answer or ""
        told = [*QUESTION[:1], {"content": f"two and two\n\n{HINT.replace('{answer}', answer)}"}]
        text = " ".join(each["content"] for each in told)
        prompt = words.encode([HumanMessage(text)]) if hint else [10, 11, 12, 13]
        expected = read_by(models[run.task.family == "words"], prompt, run)
        assert found[number] == pytest.approx(expected, abs=1e-5)


def test_a_server_reads_the_answer_as_a_model_here_does() -> None:
    model = tiny_model(1)
    words: Any = Words()

    def logprobs(token_ids: list[int]) -> list[float]:
        given = log_probs(model, token_ids).detach()
        return [float(given[i - 1, token]) for i, token in enumerate(token_ids) if i]

    here = Teachers(LocalTeacher(model), {}, HINT, words)
    there = Teachers(ServerTeacher(logprobs, "vllm:there"), {}, HINT, words)
    overlays = by_group(select(LESSONS, 4, "grpo", seed=0, options=RocOptions(taught=True)))
    for batch in build_batches(
        LESSONS, overlays, token_budget=64, forward="tree", lesson=here.lesson
    ):
        torch.testing.assert_close(there(batch), here(batch), rtol=0, atol=1e-5)


def test_a_server_that_is_away_is_waited_for_and_one_that_refuses_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(teachers_module, "_SECONDS_BETWEEN_TRIES", 0.0)
    overlays = by_group(select(RUNS, 2, "grpo", seed=0))
    (batch,) = build_batches(RUNS, overlays, token_budget=64)
    failures = iter([True, True])
    healthy = False

    def logprobs(token_ids: list[int]) -> list[float]:
        if next(failures, healthy):
            raise ModelError("The server is away.")
        return [-1.0] * (len(token_ids) - 1)

    teacher = ServerTeacher(logprobs, "vllm:there", 6, lambda: healthy)
    values = teacher(batch).tolist()
    assert sorted(set(values)) == [-1.0], "both have at most five tokens"
    short = ServerTeacher(logprobs, "vllm:there", 5, lambda: healthy)
    assert sorted(short(batch).tolist()) == [-1.0, -1.0, UNTAUGHT, UNTAUGHT, UNTAUGHT]
    healthy = True
    with pytest.raises(ModelError, match="is away"):
        teacher(batch)


def test_what_a_teacher_cannot_read_the_outcome_alone_teaches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words: Any = Words()
    model = tiny_model(1)
    teachers = Teachers(LocalTeacher(model), {}, HINT, words)
    right = asked(0, "sums", "4", [20])
    run = right.calls[0].model_copy(update={"request": None})
    runs = [
        right,
        asked(1, "sums", None, [21]),
        right.model_copy(update={"id": "bare", "calls": (run,)}),
        asked(3, "sums", "4", [20] * 300),
    ]
    overlays = by_group(select(runs, 4, "grpo", seed=0, options=RocOptions(taught=True)))
    found: dict[int, set[float]] = {}
    batches = build_batches(runs, overlays, token_budget=1000, lesson=teachers.lesson)
    for batch in batches:
        for sequence, value in zip(
            batch.sequences_K.tolist(), teachers(batch).tolist(), strict=True
        ):
            found.setdefault(sequence, set()).add(value)
    assert found.pop(0) != {UNTAUGHT}
    assert found == {number: {UNTAUGHT} for number in (1, 2, 3)}
    told = capsys.readouterr().err
    assert "a task of sums has no reference answer for teacher_prompt; the outcome alone" in told
    assert "longer than the 256 tokens" in told
    student = tiny_model()
    metrics = policy_update(
        student,
        torch.optim.SGD(student.parameters(), lr=1.0),
        batches,
        loss=LossOptions(teacher_coef=1.0, outcome_coef=0.0),
        teacher=teachers,
    )
    assert metrics["kl_teacher"] != 0 and math.isfinite(metrics["loss"])


def test_tasks_with_one_prompt_and_two_answers_are_read_apart() -> None:
    words: Any = Words()
    model = tiny_model(1)
    teachers = Teachers(LocalTeacher(model), {}, HINT, words)
    runs = [asked(0, "sums", "4", [20, 21]), asked(1, "sums", "5", [20, 21])]
    overlays = by_group(select(runs, 2, "grpo", seed=0, options=RocOptions(taught=True)))
    (batch,) = build_batches(
        runs, overlays, token_budget=1000, forward="tree", lesson=teachers.lesson
    )
    values = teachers(batch)
    for number, answer in enumerate("45"):
        prompt = words.encode(
            [HumanMessage(f"count two and two {HINT}".replace("{answer}", answer))]
        )
        expected = read_by(model, prompt, runs[number])
        assert values[batch.sequences_K == number].tolist() == pytest.approx(expected, abs=1e-5)


def test_the_prompt_with_the_answer_is_that_of_the_policys_own_template() -> None:
    policy = TrainedPolicy.load(
        "builtin:cold-start", AdapterPart(), dtype="float32", device="cpu", seed=0
    )
    loss = LossPart(teacher="builtin:trained", teacher_prompt="The answer is {answer}.")
    teachers = policy.teachers(loss)
    assert teachers is not None
    messages = convert_to_messages(list(QUESTION))
    prompt = policy.codec.encode(messages)
    call = sampled_call("a", [*prompt, *prompt[:3]], len(prompt))
    run = asked(0, "sums", "4", [20]).model_copy(
        update={"calls": (call.model_copy(update={"request": QUESTION, "tools": ()}),)}
    )
    number, preamble = teachers.lesson(run, run.calls[0])
    assert number == 0 and preamble is not None and preamble.replaces == len(prompt)
    told = policy.codec.decode(preamble.token_ids)
    assert told == policy.codec.decode(prompt).replace(
        "two and two", "two and two\n\nThe answer is 4."
    )


def test_coefficients_need_a_teacher() -> None:
    with pytest.raises(ConfigError, match="teacher_coef has no effect here: teacher is not set"):
        GrpoConfig.of(teacher_coef=0.5)
    sums = {"name": "sums", "teacher": "builtin:cold-start"}
    with pytest.raises(ConfigError, match="is to teach one family, but teacher is not set"):
        GrpoConfig.of(families=(sums,))
    with pytest.raises(ConfigError, match=r"does not have \{answer\} in it"):
        GrpoConfig.of(teacher="builtin:trained", teacher_prompt="Think.")
    for name in ("builtin:cold-start", "vllm:http://x/v1"):
        with pytest.raises(ConfigError, match="fsdp2 does not go with several teachers"):
            GrpoConfig.of(
                teacher="builtin:trained", families=({**sums, "teacher": name},), sharding="fsdp2"
            )
    assert GrpoConfig.of(teacher="builtin:trained", outcome_coef=0.0).loss.outcome_coef == 0


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"temperature": 0.5}, "does not go with temperature = 0.5"),
        ({"engine": "vllm", "servers": ("vllm:http://x/v1",)}, "is one of the servers"),
    ],
)
def test_a_server_that_cannot_teach_is_refused_before_anything_is_sampled(
    keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        GrpoConfig.of(teacher="vllm:http://x/v1?timeout=5", **keys)
