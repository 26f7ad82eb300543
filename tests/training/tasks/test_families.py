from __future__ import annotations

import builtins
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm_agent.errors import HrmError, TaskError
from hrm_agent.training.tasks import load_tasks, verifier_of
from hrm_agent.training.tasks.mixture import read_mixture, shares
from hrm_agent.training.tasks.reasoning_gym import _FORMS, answer_form_is_safe
from tests.support.graphs.scripts import boxed


def write(path: Path, *rows: object) -> Path:
    path.write_text(
        "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows),
        encoding="utf-8",
    )
    return path


# --- JSON lines
# -------------------------------------------------------------------------------------------------------


def test_rows_become_tasks(tmp_path):
    file = write(
        tmp_path / "a.jsonl",
        {"q": "1+1?", "a": "work\n#### 2", "n": "x1"},
        "",
        {"q": "2*3?", "a": 6, "n": 7},
    )
    tasks = load_tasks(f"jsonl:{file}?question=q&answer=a&id=n", split="train", seed=0)
    assert {(t.id, t.prompt, t.answer) for t in tasks} == {("x1", "1+1?", "2"), ("7", "2*3?", "6")}
    assert all(t.verify(boxed(t.answer)) == 1.0 and t.verify(boxed(99)) == 0.0 for t in tasks)
    assert tasks[0].ref().family == f"jsonl:{file}?question=q&answer=a&id=n"


def test_order_is_drawn_from_the_seed_and_no_row_comes_twice(tmp_path):
    file = write(tmp_path / "a.jsonl", *({"question": str(i), "answer": i} for i in range(30)))

    def order(seed: int, count: int | None = None) -> list[str]:
        return [
            t.prompt for t in load_tasks(f"jsonl:{file}", split="train", seed=seed, count=count)
        ]

    assert order(1) == order(1) != order(2)
    assert order(1, 5) == order(1)[:5]
    assert sorted(order(1, 99)) == sorted(str(i) for i in range(30))


def test_the_split_may_stand_in_the_files_name(tmp_path):
    write(tmp_path / "train.jsonl", {"question": "a", "answer": 1})
    write(tmp_path / "test.jsonl", {"question": "b", "answer": 1})
    spec = f"jsonl:{tmp_path}/{{split}}.jsonl"
    assert [
        t.prompt for split in ("train", "test") for t in load_tasks(spec, split=split, seed=0)
    ] == ["a", "b"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"question": "a"', "line 2: not JSON"),
        ("[1]", "line 2: a JSON list"),
        ('{"question": "a"}', "line 2: no key 'answer'"),
        ('{"question": "a", "answers": "b"}', "Did you mean 'answers'"),
        ('{"question": "a", "answer": null}', "'answer' is a NoneType"),
        ('{"question": {}, "answer": 1}', "'question' is a dict"),
        ("[" * 100_000, "line 2: not JSON"),
        ('{"question": "a \\ud83d", "answer": 1}', "line 2: 'question' holds half a character"),
        ('{"question": "a", "answer": " "}', "line 2: the answer 'answer' is empty"),
        (
            '{"question": "a", "answer": "6 * 7 = 42\\n####"}',
            "line 2: the answer 'answer' is empty",
        ),
    ],
)
def test_a_malformed_row_is_named(tmp_path, row, message):
    file = write(tmp_path / "bad.jsonl", {"question": "a", "answer": 1}, row)
    with pytest.raises(TaskError) as caught:
        load_tasks(f"jsonl:{file}", split="train", seed=0)
    assert str(file) in str(caught.value)
    assert message in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    for content, fault in (
        (None, "No such file"),
        (b"\xff\xfe", "not UTF-8"),
        (b"\n\n", "has no rows"),
    ):
        file = tmp_path / f"{fault}.jsonl"
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(TaskError, match=fault):
            load_tasks(f"jsonl:{file}", split="train", seed=0)
    with pytest.raises(TaskError, match="Did you mean 'question'"):
        load_tasks("jsonl:x?questions=q", split="train", seed=0)


def test_an_id_that_comes_twice_is_named_with_its_lines(tmp_path):
    rows = [{"question": f"q{i}", "answer": i, "n": i % 2} for i in range(3)]
    file = write(tmp_path / "a.jsonl", *rows)
    with pytest.raises(
        TaskError, match=r"The id '0' occurs more than once: .*a\.jsonl, line 1, .*a\.jsonl, line 3"
    ):
        load_tasks(f"jsonl:{file}?id=n", split="train", seed=0)


def test_contest_answers_are_integers_and_nothing_else(tmp_path):
    file = write(tmp_path / "aime.jsonl", {"problem": "p", "answer": "042"})
    (task,) = load_tasks(f"aime:{file}?question=problem", split="eval", seed=0)
    for verify in (task.verify, verifier_of(task.ref())):
        assert verify is not None
        assert [verify(boxed(text)) for text in ("42", "042", " $42$ ")] == [1, 1, 1]
        assert [
            verify(boxed(text)) for text in ("84/2", "42.0", "0042", "-42", "43", "٤٢", "42e0", "")
        ] == [0] * 8
    for answer in ("1000", -1, 1.5, "x"):
        write(
            tmp_path / "aime.jsonl",
            {"question": "p", "answer": 1},
            {"question": "p", "answer": answer},
        )
        with pytest.raises(
            TaskError, match=r"aime\.jsonl, line 2: the answer '.*' is not an integer from 0 to 999"
        ):
            load_tasks(f"aime:{file}", split="eval", seed=0)


@pytest.mark.shared_data
def test_gsm8k_is_understood(shared_data):
    tasks = load_tasks(f"jsonl:{shared_data}/gsm8k/test.jsonl", split="test", seed=0)
    assert len(tasks) > 1000
    assert all(t.verify(boxed(t.answer)) == 1.0 for t in tasks)
    assert all(t.answer and "####" not in t.answer and len(t.answer) < 20 for t in tasks)


# --- reasoning-gym
# ----------------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_problems_are_a_function_of_split_and_seed():
    def prompts(split: str, seed: int, spec: str = "reasoning_gym:chain_sum") -> list[str]:
        return [t.prompt for t in load_tasks(spec, split=split, seed=seed, count=5)]

    assert prompts("train", 1) == prompts("train", 1)
    assert len({tuple(prompts(split, seed)) for split in ("train", "eval") for seed in (1, 2)}) == 4
    wide = prompts("train", 1, "reasoning_gym:chain_sum?min_terms=8&max_terms=9")
    assert all(prompt.count("+") + prompt.count(" - ") >= 6 for prompt in wide)


def test_the_librarys_verifier_scores_answer_or_text():
    task = load_tasks("reasoning_gym:chain_sum", split="train", seed=0, count=1)[0]
    assert task.verify(boxed(task.answer)) == 1.0
    assert task.verify(f"<reason>add</reason> {task.answer}") == 1.0
    assert task.verify(f"it is {task.answer}, I think") == 0.0, (
        "the library gives a part of a point for this"
    )
    assert task.verify("<answer>no box</answer>") == 0.0


@pytest.mark.whole
@pytest.mark.parametrize("family", sorted(_FORMS))
def test_answers_of_families_that_evaluate_text_pass_the_guard_and_code_does_not(family):
    attacks = [
        "__import__('os').system('true')",
        "().__class__.__base__",
        "open('/etc/passwd').read()",
        "9**9**9**9",
        "exit()",
        "[x for x in (1).__class__.__mro__]",
        "factorial(99999)",
        "x.diff",
        "9" * 20000,
    ]
    assert not any(answer_form_is_safe(family, attack) for attack in attacks)
    for task in load_tasks(f"reasoning_gym:{family}", split="train", seed=3, count=8):
        if "Integral" in str(task.answer) or task.answer is None:
            continue
        assert task.verify(boxed(task.answer)) == 1.0, task.answer


def test_an_attack_does_not_reach_eval(monkeypatch):
    reached: list[str] = []
    evaluate = builtins.eval
    monkeypatch.setattr(
        builtins, "eval", lambda text, *rest: reached.append(str(text)) or evaluate(text, *rest)
    )
    task = load_tasks("reasoning_gym:spiral_matrix", split="train", seed=0, count=1)[0]
    assert task.verify(boxed("__import__('os').getpid()")) == 0.0
    assert reached == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("reasoning_gym:chain_sums", "Did you mean 'chain_sum'"),
        ("reasoning_gym:", "has no family ''"),
        ("reasoning_gym:chain_sum?min_term=2", "Did you mean 'min_terms'"),
        ("reasoning_gym:chain_sum?min_terms=-4", "cannot be made"),
        ("reasoning_gym:chain_sum?min_terms=many", "cannot be made"),
        ("reasoning_gym:chain_sum?seed=4", "has no parameter 'seed'"),
    ],
)
def test_wrong_families_and_parameters_are_named(spec, message):
    with pytest.raises(TaskError) as caught:
        load_tasks(spec, split="train", seed=0, count=2)
    assert message in str(caught.value)


def test_a_missing_library_is_named_with_the_command(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("reasoning_gym"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(HrmError, match="pip install reasoning-gym"):
        load_tasks("reasoning_gym:chain_sum", split="train", seed=0, count=1)


@pytest.mark.whole
def test_arc_agi_is_each_published_grid_once():
    train, held_out = (load_tasks("arc_agi", split=split, seed=0) for split in ("train", "eval"))
    assert (len(train), len(held_out), len({t.id for t in train + held_out})) == (416, 419, 835)
    assert (
        len({t.metadata["task"] for t in train})
        == len({t.metadata["task"] for t in held_out})
        == 400
    )
    assert [t.id for t in load_tasks("arc_agi", split="eval", seed=0, count=9)] == [
        t.id for t in held_out[:9]
    ]
    for task in (*train, *held_out):
        assert task.answer is not None and verifier_of(task.ref()) is not None
        assert (
            task.verify(boxed(task.answer)) == task.verify(task.answer.replace("\n", " \n ")) == 1
        )
        wrong = str((int(task.answer[-1]) + 1) % 10)
        assert task.verify(boxed(task.answer[:-1] + wrong)) == task.verify(task.answer + " 0") == 0


# --- the registry
# -----------------------------------------------------------------------------------------------------


def test_word_problems_are_found_and_verified():
    train = load_tasks("word_problems", split="train", seed=0, count=6)
    assert [t.prompt for t in load_tasks("word_problems", split="train", seed=0, count=6)] == [
        t.prompt for t in train
    ]
    assert all(t.verify(boxed(t.answer)) == 1.0 for t in train)


def test_a_mixture_is_shared_out_by_weight(tmp_path):
    file = write(tmp_path / "a.jsonl", *({"question": str(i), "answer": i} for i in range(3)))
    spec = f"mix:2*word_problems,reasoning_gym:binary_matrix?p_zero=0.2,0.5*jsonl:{file}"
    tasks = load_tasks(spec, split="eval", seed=0, count=14)
    assert [t.id for t in tasks] == [t.id for t in load_tasks(spec, split="eval", seed=0, count=14)]
    families = Counter(t.family.partition(":")[0] for t in tasks)
    assert families == {"word_problems": 8, "reasoning_gym": 4, "jsonl": 2}
    assert len(load_tasks(spec, split="eval", seed=0, count=70)) == 40 + 20 + 3, (
        "a part gives what it has"
    )
    parts = read_mixture(
        "1*reasoning_gym:x?a=[1,2],jsonl:a,b.jsonl,.5*aime:c", ("aime", "jsonl", "reasoning_gym")
    )
    assert [part.spec for part in parts] == [
        "reasoning_gym:x?a=[1,2]",
        "jsonl:a,b.jsonl",
        "aime:c",
    ], "commas within"


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=8), st.integers(0, 10_000))
def test_shares_sum_up_and_are_off_by_less_than_one(weights, count):
    given_out = shares(weights, count)
    assert sum(given_out) == count
    assert all(
        abs(n - count * w / sum(weights)) < 1 + 1e-6
        for n, w in zip(given_out, weights, strict=True)
    )


@pytest.mark.parametrize(
    ("spec", "split", "count", "message"),
    [
        ("word_problem", "train", 1, "Did you mean 'word_problems'"),
        (
            "",
            "train",
            1,
            "Families: aime, arc_agi, bfcl, csv, dataset, gpqa, gsm8k, hf, ifeval, jsonl, math500, mix",
        ),
        ("jsnl:rows.jsonl", "train", 1, "no task family 'jsnl'. Did you mean 'jsonl'"),
        ("word_problems:hard", "train", 1, "takes no parameters"),
        ("word_problems", "dev", 1, "no split 'dev'"),
        ("word_problems", "train", None, "is endless"),
        ("reasoning_gym:chain_sum", "train", None, "is endless"),
        ("word_problems", "train", -1, "0 or more"),
        ("arc_agi:easy", "train", 1, "takes no parameters"),
        ("arc_agi", "test", 1, "no split 'test'"),
        ("mix:word_problems", "train", None, "and no number was given"),
        ("mix:0*word_problems", "train", 1, "is not a part of a mixture"),
        ("mix:1" + "0" * 400 + "*word_problems", "train", 1, "is not a part of a mixture"),
        ("mix:2*word_problems,word_problems", "train", 1, "twice"),
        ("mix:mix:word_problems", "train", 1, "has a mixture in it"),
        ("mix:2*word_problem", "train", 1, "Did you mean 'word_problems'"),
    ],
)
def test_unknown_families_and_splits_are_named(spec, split, count, message):
    with pytest.raises(TaskError) as caught:
        load_tasks(spec, split=split, seed=0, count=count)
    assert message in str(caught.value)


# --- parallel threads
# -------------------------------------------------------------------------------------------------------


THREADS = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from hrm_agent.training.tasks import load_tasks

def loaded(family, after=""):
    while after and after not in sys.modules:  # the other thread has begun to import it
        time.sleep(0.001)
    return len(load_tasks("reasoning_gym:" + family, split="train", seed=0, count=2))

with ThreadPoolExecutor(2) as pool:
    print(sum(pool.map(loaded, ("gcd", "word_sorting"), ("", "reasoning_gym.factory"))))
"""


def test_a_thread_that_loads_tasks_while_another_imports_finds_all_families_of_reasoning_gym() -> (
    None
):
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "4"), done.stderr
