from __future__ import annotations

import ast
import operator
import re
from fractions import Fraction

import pytest

from hrm_agent.training.tasks.word_problems import (
    TEMPLATES,
    problem,
    sample_problems,
    split_of,
    word_problems,
)

TANK = (
    "A tank holds 1200 L. It leaks 2% per hour for 3 hours, then is refilled by 150 L. "
    "Return exactly: 'Answer: <liters>'."
)
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def exactly(code: str, names: dict[str, Fraction] | None = None) -> Fraction:
    """The value of an expression in rationals; `round` and `//` must be the last thing that
    happens.
    """

    def value(node: ast.expr) -> Fraction:
        match node:
            case ast.Constant(value=number):
                return Fraction(str(number))
            case ast.Name(id=name):
                return (names or {})[name]
            case ast.Call(args=[inner, ast.Constant(value=int(places))]):
                return round(value(inner), places)
            case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
                return Fraction(value(left) // value(right))
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(exponent))):
                return value(left) ** exponent
            case ast.BinOp(left=left, op=op, right=right):
                return OPERATORS[type(op)](value(left), value(right))
        raise AssertionError(ast.dump(node))

    return value(ast.parse(code, mode="eval").body)


@pytest.mark.parametrize("split", ["train", "eval"])
def test_expression_and_plan_come_to_the_answer_in_exact_arithmetic(split):
    for drawn in sample_problems(split, 3, 400):
        assert exactly(drawn.expression) == Fraction(drawn.answer), drawn
        values = {step.name: step.value for step in drawn.plan}
        known: dict[str, Fraction] = {}
        for step in drawn.plan:
            *given, formula = step.code.split("\n")
            assert given == [f"{name} = {values[name]}" for name in step.needs]
            # Halfway cases may round either way between steps, never in the answer.
            assert abs(exactly(formula, known) - Fraction(step.value)) <= Fraction(1, 10_000)
            known[step.name] = Fraction(step.value)
        assert known[drawn.plan[-1].name] == Fraction(drawn.answer)


def test_answers_of_known_problems():
    assert problem("tank", (1200, 2, 3, 150)).answer == "1279.43"
    assert problem("shop", (12, 30, 15, 20), ("Ada", "pens", "pears")).answer == "660"
    assert problem("boxes", (12, 30, 101), ("Ada", "pens")).answer == "259"
    assert problem("change", (1001, 20, 30), ("Ada", "pens")).answer == "401"
    assert problem("train", (101, 11, 41, 20)).answer == "1931"
    assert problem("share", (101, 103, 4), ("Ada", "pens", "pears")).answer == "51"
    assert problem("savings", (101, 11, 12), ("Ada",)).answer == "233"
    assert problem("fence", (101, 11, 2)).answer == "448"
    assert problem("bakery", (110, 101, 3)).answer == "27"
    assert problem("farm", (11, 12)).answer == "70"


def test_what_has_no_proper_answer_is_no_problem():
    assert problem("share", (101, 104, 4), ("Ada", "pens", "pears")) is None
    assert problem("bakery", (101, 110, 3)) is None
    assert problem("change", (1001, 90, 90), ("Ada", "pens")) is None


def test_the_tank_is_asked_word_for_word_and_checked_to_the_cent():
    tank = problem("tank", (1200, 2, 3, 150))
    task = tank.task("exact")
    assert task.prompt == TANK
    assert tank.final_text("exact") == "Answer: 1279.43"
    assert [step.code for step in tank.plan] == [
        "round(1200*(1-2/100)**3, 4)",
        "left = 1129.4304\nround(left+150, 2)",
    ]
    assert task.verify("Answer: 1279.43") == 1.0
    assert task.verify("Answer: 1279.42") == 0.0
    assert task.verify("1279.43") == 0.0
    assert tank.task().verify("<reason>Done.</reason><answer>\\boxed{1279.43}</answer>") == 1.0
    assert (
        tank.task().verify("<reason>\\boxed{1279.43}</reason><answer>\\boxed{1279}</answer>") == 0.0
    )


def test_splits_share_no_numbers_and_the_shown_problem_is_never_trained_on():
    drawn = {
        split: {
            (p.template, p.numbers) for seed in range(3) for p in sample_problems(split, seed, 600)
        }
        for split in ("train", "eval")
    }
    assert not drawn["train"] & drawn["eval"]
    assert all(split_of(*key) == split for split, keys in drawn.items() for key in keys)
    assert split_of("tank", (1200, 2, 3, 150)) == "eval"


def test_every_number_stands_in_the_prompt_of_either_form():
    for drawn in sample_problems("train", 6, 100):
        for form in ("plain", "exact"):
            assert set(map(str, drawn.numbers)) <= set(re.findall(r"\d+", drawn.prompt(form)))


def test_names_and_nouns_do_not_change_the_split():
    assert problem("farm", (11, 12)).text == "A farm keeps 11 hens and 12 cows."
    first = problem("savings", (101, 11, 12), ("Ada",))
    second = problem("savings", (101, 11, 12), ("Ben",))
    assert first.text != second.text
    assert split_of(first.template, first.numbers) == split_of(second.template, second.numbers)


def test_tasks_are_a_function_of_the_seed_and_all_different():
    tasks = word_problems("eval", 7, 256)
    assert word_problems("eval", 7, 300)[:256] == tasks
    assert word_problems("eval", 8, 256) != tasks
    assert len({task.id for task in tasks}) == 256
    assert {task.metadata["template"] for task in tasks} == {
        template.name for template in TEMPLATES
    }
    assert all(
        task.answer is not None and task.verify(f"<answer>\\boxed{{{task.answer}}}</answer>") == 1
        for task in tasks
    )


def test_some_plans_have_independent_parts_and_some_a_chain():
    plans = {p.template: p.plan for p in sample_problems("train", 0, 20)}
    assert [step.needs for step in plans["shop"]] == [(), (), ("first", "second")]
    assert [step.needs for step in plans["tank"]] == [(), ("left",)]
    assert len(plans["savings"]) == 1
