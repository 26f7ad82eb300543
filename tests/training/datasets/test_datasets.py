"""Data sets: the content and split of an example, versions as files, and files that were changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from hrm_agent.errors import TaskError
from hrm_agent.training.datasets import (
    Added,
    DatasetExample,
    ExampleSource,
    add_examples,
    dataset_names,
    file_of_version,
    list_versions,
    make_example,
    read_version,
)

SOURCE = ExampleSource(run="r", trajectory="t")


def example(
    prompt: str = "What is 6 * 7?", answer: str | None = "42", **changes: Any
) -> DatasetExample:
    facts: dict[str, Any] = {"family": "jsonl:q.jsonl", "metadata": {}, "task": "1"}
    return make_example(prompt=prompt, answer=answer, **{**facts, "source": SOURCE, **changes})


def several(first: int, end: int) -> list[DatasetExample]:
    return [example(f"What is {n} * 7?", str(7 * n)) for n in range(first, end)]


def test_an_example_is_its_content_and_not_its_run() -> None:
    trace = {"format": "otel", "id": "1"}
    one = example(metadata={"level": 2, "drawn": {"place": 1}, "trace": trace, "not_recorded": "x"})
    other = example(
        metadata={"level": 2, "drawn": {"place": 5}},
        task="2",
        source=ExampleSource(run="", trajectory="u"),
    )
    assert one.id == other.id and one.line != other.line
    assert one.metadata == {"level": 2} and one.drawn == {"place": 1}
    changed = [
        example(metadata={"level": 3}),
        example("What is 6*7?", metadata={"level": 2}),
        example(answer=None, metadata={"level": 2}),
        example(family="gsm8k:q.jsonl", metadata={"level": 2}),
        example(metadata={"level": 2, "trace": "of the user"}),
    ]
    assert len({one.id, *(each.id for each in changed)}) == 6


def test_a_question_stays_on_its_side(tmp_path: Path) -> None:
    few = add_examples(tmp_path, "d", several(0, 30)).dataset
    sides = {each.id: each.split(few.eval_share) for each in few.examples}
    many = add_examples(tmp_path, "d", several(10, 2_000)).dataset
    assert {
        id_: side
        for each in many.examples
        if (id_ := each.id) in sides
        for side in [each.split(many.eval_share)]
    } == sides
    assert abs(many.splits["eval"] / 2_000 - 0.2) < 0.03
    # the answer and the metadata of a question do not decide, its input and earlier turns do
    for share in (0.2, 0.5):
        for n in range(40):
            one = example(f"{n}?")
            assert one.split(share) == example(f"{n}?", "x", metadata={"a": 1}).split(share)
    inputs = [example(metadata={"inputs": {"x": n}}).question for n in range(5)]
    history = [example(metadata={"history": [{"role": "user", "content": "a"}]}).question]
    assert len({*inputs, *history, example().question}) == 7


def test_versions_are_files_that_are_never_changed(tmp_path: Path) -> None:
    first = add_examples(tmp_path, "d", several(0, 5))
    kept = first.dataset.version.path.read_bytes()
    again = add_examples(tmp_path, "d", several(1, 4))
    assert again == Added(first.dataset, 0, 3) and len(list_versions(tmp_path, "d")) == 1
    second = add_examples(tmp_path, "d", [*several(3, 8)])
    assert (second.dataset.version.reference, second.added, second.known) == ("d@2", 3, 2)
    assert first.dataset.version.path.read_bytes() == kept
    assert read_version(file_of_version(tmp_path, "d@1")) == first.dataset
    assert read_version(file_of_version(tmp_path, "d")) == second.dataset
    assert dataset_names(tmp_path) == ["d"]
    # the same examples have the same file, whatever order they came in
    other = add_examples(tmp_path, "e", reversed(several(0, 5))).dataset.version.path
    assert (other.name, other.read_bytes()) == (first.dataset.version.path.name, kept)
    with pytest.raises(TaskError, match=r"holds out a share of 0\.2 .* not 0\.5"):
        add_examples(tmp_path, "d", several(0, 9), 0.5)


def test_what_is_added_at_once_is_kept_and_a_part_of_a_killed_one_is_not(tmp_path: Path) -> None:
    add_examples(tmp_path, "d", several(0, 1))
    (tmp_path / "d" / f"2-{'0' * 32}.jsonl.part").write_text("half")
    ready = Barrier(8)

    def add(number: int) -> None:
        ready.wait()
        add_examples(tmp_path, "d", several(100 * number, 100 * number + 50))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))
    assert len(read_version(file_of_version(tmp_path, "d")).examples) == 400
    assert [each.number for each in list_versions(tmp_path, "d")] == list(range(1, 10))
    assert not [*tmp_path.glob("d/*.part")]


def edited(change: Callable[[dict[str, Any]], None]) -> Callable[[list[str]], list[str]]:
    """Change the first example of a file, which is written again with sorted keys."""

    def edit(lines: list[str]) -> list[str]:
        values = json.loads(lines[1])
        change(values)
        return [lines[0], json.dumps(values, sort_keys=True, ensure_ascii=False), *lines[2:]]

    return edit


DAMAGES: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "answer": (edited(lambda e: e.update(answer="forged")), "but its content has"),
    "id": (edited(lambda e: e.update(id="0" * 32)), "but its content has"),
    "new key": (edited(lambda e: e.update(code="import os")), "code: Extra inputs"),
    "task": (edited(lambda e: e.update(task="2")), "the digest of its examples is"),
    "drawn": (edited(lambda e: e.update(drawn={"place": 1})), "the digest of its examples is"),
    "source": (edited(lambda e: e["source"].update(run="x")), "the digest of its examples is"),
    "type": (edited(lambda e: e.update(prompt=7)), "prompt: Input should be a valid string"),
    "reserved": (edited(lambda e: e["metadata"].update(stored={})), "reserved key 'stored'"),
    "long": (edited(lambda e: e.update({"x" * 10_000: 1})), "Extra inputs"),
    "key twice": (lambda ls: [ls[0], '{"id": "0", ' + ls[1][1:], *ls[2:]], "canonical form"),
    "order": (lambda ls: [ls[0], ls[2], ls[1], *ls[3:]], "not sorted by id"),
    "twice": (lambda ls: [ls[0], ls[1], *ls[1:]], "not sorted by id, each once"),
    "gone": (lambda ls: ls[:-1], "has 4 examples, its head says 5"),
    "share": (lambda ls: [ls[0].replace("0.2", "0.3"), *ls[1:]], "the digest of its examples is"),
    "head": (lambda ls: ['{"format": "other"}', *ls[1:]], "line 1 is not the head"),
    "no head": (lambda ls: ls[1:], "line 1 is not the head"),
    "deep": (lambda ls: [ls[0], "[" * 100_000, *ls[2:]], "line 2 is not an example"),
    "nan": (lambda ls: [ls[0], ls[1].replace("{}", '{"a": NaN}'), *ls[2:]], "line 2 is not an ex"),
    "empty": (lambda ls: [], "line 1 is not the head"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_changed_file_is_refused(name: str, tmp_path: Path) -> None:
    path = add_examples(tmp_path, "d", several(0, 5)).dataset.version.path
    damage, message = DAMAGES[name]
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("".join(f"{line}\n" for line in damage(lines)), encoding="utf-8")
    with pytest.raises(TaskError) as raised:
        read_version(file_of_version(tmp_path, "d"))
    assert message in raised.value.message and len(str(raised.value)) < 600
    with pytest.raises(TaskError):
        add_examples(tmp_path, "d", several(5, 6))
    assert len(list_versions(tmp_path, "d")) == 1


def test_bytes_that_are_no_text_and_a_line_without_an_end_are_refused(tmp_path: Path) -> None:
    path = add_examples(tmp_path, "d", several(0, 5)).dataset.version.path
    whole = path.read_bytes()
    for damaged, message in (
        (whole.replace(b"What", b"Wh\xff\xfe", 1), "line 2 is not UTF-8"),
        (whole[:-1], "line 6 has no end"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(TaskError, match=message):
            read_version(file_of_version(tmp_path, "d"))


@pytest.mark.parametrize("name", ["", "a/b", "../d", ".hidden", "a@1@2", "a@0", "a@x", "a" * 101])
def test_names_are_checked(name: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="data set"):
        file_of_version(tmp_path, name)
    if "@" not in name:
        with pytest.raises(TaskError, match="cannot be the name"):
            add_examples(tmp_path / "new", name, several(0, 1))
        assert not (tmp_path / "new").exists()


def test_versions_of_two_branches_are_joined_by_the_next_addition(tmp_path: Path) -> None:
    first, other = tmp_path / "a", tmp_path / "b"
    add_examples(first, "d", several(0, 5))
    shutil.copytree(first, other)
    add_examples(first, "d", several(5, 8))
    add_examples(other, "d", several(8, 12))
    add_examples(other, "d", several(12, 13))
    shutil.copytree(other, first, dirs_exist_ok=True)
    for reference in ("d", "d@2"):
        with pytest.raises(TaskError, match="two versions 2, of two branches"):
            file_of_version(first, reference)
    assert len(read_version(file_of_version(first, "d@1")).examples) == 5
    assert len(read_version(file_of_version(first, "d@3")).examples) == 10
    # an addition of what is there already joins them, too
    joined = add_examples(first, "d", several(0, 1))
    assert (joined.dataset.version.reference, joined.added, joined.joined) == ("d@4", 0, 3)
    assert len(read_version(file_of_version(first, "d")).examples) == 13
    assert add_examples(first, "d", several(0, 1)).dataset == joined.dataset


def test_a_task_without_an_answer_of_its_own_is_one_example(tmp_path: Path) -> None:
    taken, again, none = (example(answer=answer) for answer in ("1", "2", None))
    add_examples(tmp_path, "d", [taken], unanswered=[taken.id])
    assert add_examples(tmp_path, "d", [again], unanswered=[again.id]).added == 0
    assert add_examples(tmp_path, "d", [none], unanswered=[none.id]).added == 0
    assert add_examples(tmp_path, "d", [again]).added == 1
    add_examples(tmp_path, "e", [none], unanswered=[none.id])
    assert add_examples(tmp_path, "e", [taken], unanswered=[taken.id]).added == 1


def test_texts_of_every_kind_are_read_back(tmp_path: Path) -> None:
    prompt = "a\u2028b\x85c\r\nd \ud800 \U0001f600 \x00"
    made = example(prompt, metadata={"x": float("nan"), "y": [1, {"z": 1.5}]})
    found = add_examples(tmp_path, "d", [made]).dataset
    assert read_version(found.version).examples == (made,)
    assert made.prompt == prompt.replace("\ud800", "\ufffd") and made.metadata["x"] is None
