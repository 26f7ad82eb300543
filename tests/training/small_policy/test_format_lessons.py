"""Lessons in form alone: they read back as they were written, and teach nothing about the tasks to
come.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, SystemMessage
from transformers import AutoModelForCausalLM, AutoTokenizer

from hrm_agent.config import build_config, read_config_file
from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.training.config.commands import SftConfig
from hrm_agent.training.sft import read_chats, tokenize, train_sft
from hrm_agent.training.small_policy.format_lessons import (
    KINDS,
    format_lessons,
    main,
    write_lessons,
)
from hrm_agent.training.tasks.word_problems import sample_problems

CONFIG = Path(__file__).parents[3] / "configs" / "format-cold-start.toml"


def test_a_seed_gives_the_same_lessons_of_every_kind() -> None:
    lessons = list(format_lessons(3, 400))
    assert lessons == list(format_lessons(3, 400)) != list(format_lessons(4, 400))
    prompts = {
        lesson.messages[0].text
        for lesson in lessons
        if isinstance(lesson.messages[0], SystemMessage)
    }
    assert len(prompts) == len(KINDS) - 1
    assert (
        0.1
        < sum(not isinstance(lesson.messages[0], SystemMessage) for lesson in lessons) / 400
        < 0.3
    )


def test_no_lesson_speaks_of_the_tasks_to_come() -> None:
    told = " ".join(
        m.text for lesson in format_lessons(0, 400) for m in lesson.messages if m.type == "human"
    ).lower()
    for problem in sample_problems("train", 0, 200):
        assert problem.prompt() not in told
        assert not [word for word in problem.words if f" {word} " in told]


def test_written_lessons_are_tokenised_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        sys.argv[0],
        str(tmp_path / "lessons.jsonl"),
        "--count",
        "300",
        "--fresh",
        str(tmp_path / "fresh"),
    ]
    monkeypatch.setattr(sys, "argv", words)
    main()
    codec = ChatTemplateCodec(AutoTokenizer.from_pretrained(tmp_path / "fresh"))
    lessons = list(format_lessons(0, 300))
    read = read_chats(tmp_path / "lessons.jsonl")
    assert [tokenize(a, codec) for a in read] == [tokenize(b, codec) for b in lessons]
    config = build_config(
        SftConfig, read_config_file(CONFIG, "train sft"), "the recipe"
    ).model_copy(update={"steps": 3, "warmup_steps": 1})
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "fresh", dtype="float32")
    rows = train_sft(model, codec, read, config)
    assert config.forward == "packed" and rows[-1]["loss"] < rows[0]["loss"]


def test_an_answer_shows_what_the_tool_showed(tmp_path: Path) -> None:
    tools = [lesson for lesson in format_lessons(1, 200) if lesson.tools]
    assert tools
    for lesson in tools:
        shown, answer = lesson.messages[-2:]
        assert isinstance(answer, AIMessage) and f"{{{shown.text.strip()}}}" in answer.text
    write_lessons(tools, tmp_path / "tools.jsonl")
    assert len(read_chats(tmp_path / "tools.jsonl")) == len(tools)
