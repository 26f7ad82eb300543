from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm_agent.answers.exact import exact_equal, number
from hrm_agent.answers.final_answer import final_answer, own_text
from hrm_agent.training.tasks.verify import answer_line, exact_verifier, text_answer

EQUAL = [
    ("0.5", "1/2"), ("0.5", r"\frac12"), (r"\frac{1}{2}", r"\dfrac12"), (".50", "5e-1"), ("1,000", "1000"),
    ("1{,}000", "1e3"), ("$18$", "18"), (r"\$18", "18"), ("$1,250.50", "1250.5"), (r"-\frac{1}{2}", "-.5"),
    (r"\frac{-1}{2}", "-1/2"), (r"1\frac{1}{2}", "1.5"), (r"50\%", "50"), ("50%", r"50\%"), (r"5 \text{ km}", "5"),
    (r"12\text{cm}^2", "12"), ("-$5", "-5"), (r"90^\circ", "90°"), ("−3", "-3"), ("5.", "5"), ("+7", "7"),
    ("00100", "100"), ("0", "-0"), (" x = 2 ", "x = 2"), ("blue", " blue\n"),
]  # fmt: skip

DIFFERENT = [
    ("100005", "100000"), ("0.333", "1/3"), ("0.3333333333333333333", "1/3"), ("1,00", "100"), ("1,2", "12"),
    ("1e999999999", "1e999999998"), (r"3\text{ million}", "3"), (r"5\text{km}", r"5\text{m}"), ("$5", "€5"),
    ("1/0", "0"), (r"\frac{1}{0}", "0"), ("50%", "0.5"), ("", "0"), (".", "0"), ("٣", "3"), ("1_000", "1000"),
    ("nan", "NaN"), ("inf", "1e9"), ("e5", "0"), ("--5", "5"), ("5 apples", "5"), ("2 3", "23"), ("Blue", "blue"),
    ("9007199254740993", "9007199254740992"), ("0.1", "0.1000000000000000055511151231257827"),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), EQUAL)
def test_equal(a, b):
    assert exact_equal(a, b)
    assert exact_equal(b, a)


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_different(a, b):
    assert not exact_equal(a, b)
    assert not exact_equal(b, a)


@given(st.integers(-(10**40), 10**40))
def test_integers_in_all_their_writings(n):
    for text in (str(n), f"{n:,}", f"{n}.0", f"{n}e0", rf"\frac{{{n}}}{{1}}", f"{2 * n}/2"):
        assert number(text) == n
        assert exact_equal(text, str(n))
        assert not exact_equal(text, str(n + 1))


@given(st.integers(-(10**12), 10**12), st.integers(1, 10**12))
def test_fractions_are_compared_as_rationals(a, b):
    assert number(f"{a}/{b}") == number(rf"\frac{{{a}}}{{{b}}}") == Fraction(a, b)


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, places=9, min_value=-(10**9), max_value=10**9
    )
)
def test_decimals_are_exact(value):
    assert number(f"{value:f}") == Fraction(value)


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_is_compared_without_raising_and_symmetrically(a, b):
    assert exact_equal(a, b) == exact_equal(b, a)
    assert exact_equal(a, a)


@given(st.lists(st.sampled_from(
    ["<answer>", "</answer>", "<reason>", "</reason>", "<tool_response>", "</tool_response>", r"\boxed{", "{", "}", "7",
     "\\", "\n", "Answer: 3"]
)))  # fmt: skip
def test_any_mixture_of_tags_is_read_without_raising(parts):
    text = "".join(parts)
    assert exact_verifier("7")(text) in (0.0, 1.0)
    answer = final_answer(text)
    assert answer is None or answer in text


@pytest.mark.parametrize(
    "hostile",
    [
        "9" * 10**6,
        "1e999999999",
        "1e-999999999",
        "9" * 200 + "e250",
        "-" * 10**6,
        "1," * 10**5,
        r"\frac{" * 10**5,
        "<reason>" * 10**5,
        "<answer>" + r"\boxed{" * 10**5 + "</answer>",
        "<answer>" * 10**5 + "</answer>" * 10**5,
        "</reason>x" * 10**5,
        "<answer>" + r"\boxed{" + "{" * 10**6 + "</answer>",
        r"<answer>\boxed{" + "9" * 10**6 + "}</answer>",
        r"\text{" * 40,
        " " * 255 + "x",
    ],
)
def test_hostile_texts_cost_next_to_nothing(hostile):
    start = time.thread_time()
    assert not exact_equal(hostile, "1")
    assert exact_verifier("1")(hostile) == 0.0
    assert time.thread_time() - start < 5.0  # linear: a tenth of a second; quadratic: minutes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"<answer>\boxed{42}</answer>", "42"),
        (r"<reason>\boxed{1}</reason><answer>so \boxed{2}, or rather \boxed{ 3 }</answer>", "3"),
        (r"<answer>\boxed{1}</answer> no, <answer>\boxed{2}</answer>", "2"),
        (r"<answer>\boxed{\frac{1}{2}}</answer>", r"\frac{1}{2}"),
        (r"<answer>\boxed{a\}b}</answer>", r"a\}b"),
        (r"<answer>\boxed {5}</answer>", "5"),
        (r"half a thought</reason><answer>\boxed{5}</answer>", "5"),
        (r"\boxed{5}", None),
        ("<answer>5</answer>", None),
        (r"<answer>\boxed{5</answer>", None),
        (r"<answer>\boxed{5}", None),
        (r"</answer>\boxed{5}<answer>", None),
        (r"<reason><answer>\boxed{5}</answer></reason>", None),
        (r"<reason>unclosed <answer>\boxed{5}</answer>", None),
        (r"<tool_response><answer>\boxed{5}</answer></tool_response>", None),
        (r'<tool_call>{"code": "<answer>\boxed{5}</answer>"}</tool_call>', None),
        (r"<answer><reason>\boxed{5}</reason></answer>", None),
        (r"<answer>\boxed{1}</answer><tool_response>\boxed{2}</tool_response>", "1"),
        (r"<answer>\boxed{}</answer>", ""),
        ("", None),
    ],
)
def test_the_final_answer_is_the_last_box_of_the_last_answer(text, expected):
    assert final_answer(text) == expected


def test_what_is_hidden_is_not_the_models_own_text():
    assert own_text("a<reason>b</reason>c<tool_response>d</tool_call>e</tool_response>f") == "acf"


def test_a_line_with_the_answer_counts_where_there_are_no_answer_tags():
    assert text_answer("The total is known.\nAnswer: 1279.43\n") == "1279.43"
    assert text_answer("Answer: 1\nand so on") is None
    assert text_answer("<reason>Answer: 3</reason>") is None
    assert text_answer("<answer>5</answer>\nAnswer: 5") is None, (
        "the tag was there: the box is missing"
    )
    assert answer_line("Total: 5", prefix="Total:") == "5"


def test_the_verifier_scores_the_final_answer():
    verify = exact_verifier("1,250")
    assert verify(r"<reason>\boxed{3}</reason><answer>\boxed{1250}</answer>") == 1.0
    assert verify("Answer: $1250.00") == 1.0
    assert verify(r"<answer>\boxed{1251}</answer>") == 0.0
    assert verify("") == 0.0
