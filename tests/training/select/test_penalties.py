"""Penalties of GRPO-RoC for a rollout, which padding does not lower."""

from __future__ import annotations

import ast
import random
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hrm_agent.answers.fenced_code import block_ids
from hrm_agent.tools.python_tool import DIFFERS, LOST, NO_OUTPUT
from hrm_agent.training.select.code_facts import MAX_CHARACTERS, code_facts
from hrm_agent.training.select.penalties import count_calls, penalty_error, penalty_format
from hrm_agent.training.select.roc import select
from hrm_agent.trajectory import ToolCall, ToolStatus
from tests.support.training.builders import call, rollout, tool_call, trajectory

OK, ERROR = ToolStatus.OK, ToolStatus.ERROR


def ran(
    code: str, status: ToolStatus = OK, shown: str | None = None, name: str = "", **changes: object
) -> ToolCall:
    """A call as the record has it: what the model was shown is never empty."""
    shown = shown if shown is not None else "7" if status is OK and _prints(code) else NO_OUTPUT
    facts = {"arguments": {"code": code}, "content": shown if status is OK else "Error", **changes}
    return tool_call(name or f"call {code!r} {status} {shown}", status).model_copy(update=facts)


def _prints(code: str) -> bool:
    facts = code_facts(code)
    return facts is not None and facts.shows


def renamed(code: str, names: dict[str, str]) -> str:
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names:
            node.id = names[node.id]
        elif isinstance(node, ast.arg) and node.arg in names:
            node.arg = names[node.arg]
        elif isinstance(node, ast.FunctionDef) and node.name in names:
            node.name = names[node.name]
        elif isinstance(node, ast.alias) and (node.asname or node.name) in names:
            node.asname = names[node.asname or node.name]
    return ast.unparse(tree)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = 3 * 4\nprint(x)", "total=3*4  # hens\n\nprint( total )"),
        (
            "def f(a, b):\n    '''Sum.'''\n    return a + b\nf(1, 2)",
            "def add(x, y):\n\n  pass\n  return x+y\nadd(1,2)",
        ),
        ("[a * b for a in q for b in q]", "[i * j for i in q for j in q]"),
        (
            "class A:\n    '''Doc.'''\n    x = 1\nprint('A', A.x)",
            "class B:\n    x = 1\nprint('A', B.x)",
        ),
        (
            "def f():\n z=1\n a=2\n return lambda: z-a\nf()()",
            "def f():\n b=1\n c=2\n return lambda: b-c\nf()()",
        ),
        ("rate: float = 0.5\nprint(rate)", "r = .5\nprint(r)"),
        (
            "try:\n    x = 1\nexcept OSError as e:\n    print(e)",
            "try: y = 1\nexcept OSError as why: print(why)",
        ),
        ("import numpy as np\nnp.zeros(3)", "import numpy\nnumpy.zeros(3)"),
        ("sum = xs.sum()\nprint(sum)", "s = xs.sum()\nprint(s)"),
        ("'''What.'''\nx = x\n5\nprint(7)", "print(7)"),
        ("while True:\n    break\nprint(1)", "while True: break\nprint(1)"),
        (
            "try:\n    a = q()\nfinally:\n    b = 1\nprint(a, b)",
            "try: c = q()\nfinally: d = 1\nprint(c, d)",
        ),
    ],
)
def test_wording_does_not_tell_two_snippets_apart(one: str, other: str) -> None:
    assert code_facts(one).form == code_facts(other).form != ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = y\nprint(x)", "x = z\nprint(x)"),  # of the session
        ("x = x + 1", "y = y + 1"),
        ("0-1", "0-2"),
        ("if a:\n    b()\n    c()", "if a:\n    b()\nc()"),
        ("print('x', x)", "print('y', x)"),
        ("f(a=1)", "f(b=1)"),
        ("x.real", "x.imag"),
        ("import math\nmath.sqrt(4)", "import cmath\ncmath.sqrt(4)"),
        ("1", "1.0 + 0"),
        ("x = 1\ny = 2\nprint(x - y)", "x = 1\ny = 2\nprint(y - x)"),
        ("try:\n    f()\nfinally:\n    g()", "f()\ng()"),
        ("try:\n    f()\nfinally:\n    g()", "try:\n    f()\nexcept:\n    g()"),
        ("try:\n    f()\nfinally:\n    g()\nh()", "try:\n    f()\nfinally:\n    g()\n    h()"),
        ("'-' * 40 + x", "'-' * 41 + x"),
        ("a * (b + 1)", "a @ (b + 1)"),
    ],
)
def test_what_is_done_tells_them_apart(one: str, other: str) -> None:
    assert code_facts(one).form != code_facts(other).form


def test_an_ordinary_rollout_has_the_penalties_of_the_paper() -> None:
    calls = [
        ran("import math"),
        ran("def area(r):\n    return math.pi * r ** k"),
        ran("area(3)", ERROR),
        ran("k = 2"),
        ran("area(3)", shown="28.27"),
        ran("xs = []"),
        ran("xs.append(area(1))"),
        ran("ys = list(xs)", shown=NO_OUTPUT),
        ran("for y in ys: print(y)", shown="3.14"),
        ran("print(1/0)", ERROR),
    ]
    failed_before = count_calls(calls)
    assert (failed_before.failed, failed_before.effective) == (
        2,
        7,
    ), "area(3) failed once: that is what counts"
    assert failed_before.padding == {calls[4].tool_call_id}
    others = [
        ToolCall(**{**tool_call(f"s{i}").model_dump(), "name": "search", "arguments": {"q": i}})
        for i in range(3)
    ]
    assert penalty_error([*others, ran("1/0", ERROR)]) == 1 / 4


@pytest.mark.parametrize(
    "code",
    [
        "",
        "pass",
        "# note",
        "None",
        "5",
        "'text'",
        "x = x",
        "y = 1",
        "import os",
        "def f(): return 1",
        "total.count(3);pass",
        "print(19)",
        "print(end='a')",
        "[-1, 'a']",
        "y = 5\nprint('y', y, f'{y}')",
        "print(str(5))",
        "y = total",
    ],
)
def test_a_call_that_does_nothing_counts_for_nothing(code: str) -> None:
    base = [ran("total = [3]"), ran("print(total)"), ran("1/0", ERROR)]
    idle = ran(code, shown="5" if code == "5" else NO_OUTPUT)
    assert penalty_error([*base[:2], idle, base[2]]) == penalty_error(base) == 1 / 3
    assert penalty_error([idle]) == penalty_error([]) == 0.5


def test_only_the_last_of_several_values_was_of_use() -> None:
    sets = [ran(f"x = {value}") for value in range(20)]
    assert count_calls([*sets, ran("print(x)")]).effective == 2
    chain = [ran("a = 1"), *(ran(f"a{n + 1} = a{n or ''}") for n in range(20))]
    assert count_calls(chain).effective == 0
    assert count_calls([*chain, ran("print(a20 + 1)")]).effective == 2, "the first and the last"
    named = [ran("k = 3"), ran("def f(): return k"), ran("g = f"), ran("print(g())")]
    assert count_calls(named).padding == {named[2].tool_call_id}


@pytest.mark.parametrize(
    "code", ["6 * 7", "print(len('abc'))", "if q:\n    print('prime')", "assert q\nprint('passed')"]
)
def test_what_was_computed_counts_though_it_is_short(code: str) -> None:
    assert count_calls([ran(code)]).effective == 1


def test_sessions_are_told_apart() -> None:
    fresh = [
        ran(
            "x = 1",
            name="a",
        ),
        ran("print(x)", ERROR, name="b"),
    ]
    stateless = [
        each.model_copy(update={"name": "python_stateless"})
        for each in (fresh[0], ran("print(x + 1)"))
    ]
    assert count_calls(stateless).effective == 1
    identity = fresh[0].identity.model_copy(update={"thread_id": "another"})
    assert (
        count_calls(
            [fresh[0].model_copy(update={"identity": identity}), ran("print(x + 1)")]
        ).effective
        == 1
    )


def test_hostile_code_is_read_within_bounds() -> None:
    hostile = [
        "(" * 300,
        "-" * 8000 + "1",
        "1+" * 4000 + "1",
        "x" * 1_000_000,
        "\0",
        "\ud800",
        "9" * 5000,
        "[" * 100,
    ]
    hostile += ["x = " + "(lambda: " * 150 + "1" + ")" * 150, "a" + ".b" * 3000, "if a: x\n" * 900]
    for code in hostile:
        for status in (OK, ERROR):
            assert 0 <= penalty_error([ran(code, status), ran(code + " ", status)]) <= 1
    long = [ran(f"print({n})" + " " * MAX_CHARACTERS, shown=str(n)) for n in range(20)]
    assert count_calls([*long, ran("1/0", ERROR)]).effective == 1, (
        "those that are not read count as one"
    )


def test_each_solver_has_a_session_of_its_own() -> None:
    def at(solver: str, call: ToolCall, repeated_of: str | None = None) -> ToolCall:
        identity = call.identity.model_copy(update={"checkpoint_ns": f"{solver}:1|tools:2"})
        name = f"{solver} {call.tool_call_id}"
        changes = {
            "identity": identity,
            "id": name,
            "tool_call_id": name,
            "repeated_of": repeated_of,
        }
        return call.model_copy(update=changes)

    sets, shows, fails = ran("x = 1"), ran("print(x)"), ran("print(x)", ERROR, name="NameError")
    alike = [
        at("a", sets),
        at("a", shows),
        at("b", sets, "a 1"),
        at("b", shows, "a 2"),
        at("c", fails, "a 2"),
    ]
    assert penalty_error(alike) == 1 / 5
    assert count_calls(alike).padding == frozenset()
    assert penalty_error([*alike, at("d", fails, "a 2")]) == 2 / 6
    assert penalty_error([*alike, at("b", ran("print( x )")), at("c", shows, "a 2")]) == 1 / 5


@pytest.mark.parametrize("note", ["", LOST, DIFFERS.format("call 2")])
def test_a_note_on_the_session_is_nothing_that_the_code_showed(note: str) -> None:
    def noted(call: ToolCall, stdout: str = "", value: str | None = None) -> ToolCall:
        shown = f"{note}\n{stdout or value or NO_OUTPUT}"
        return call.model_copy(
            update={"content": shown.strip("\n"), "stdout": stdout, "value": value}
        )

    quiet = [noted(ran("y = 1")), noted(ran("f(0)")), noted(ran("print(end=z)"), stdout=" ")]
    assert count_calls(quiet).effective == 0
    heard = [
        noted(ran("f(1)"), value="2"),
        noted(ran("f(2)"), stdout=f"{NO_OUTPUT}\n"),
        noted(ran("f(3)"), value="''"),
    ]
    assert count_calls(heard).effective == 3


def _nested_finally(depth: int, exits: int) -> str:
    lines = ["def f():"]
    for level in range(depth):
        lines += [" " * (level + 1) + "try:", *[" " * (level + 2) + "if x: return"] * exits]
        lines += [" " * (level + 1) + "finally:"]
    return "\n".join([*lines, " " * (depth + 1) + "y()"])


@pytest.mark.parametrize(
    ("code", "is_read"),
    [
        (_nested_finally(8, 3), True),
        (_nested_finally(40, 1), True),
        ("'a' * 4096 + " * 300 + "''", True),
        ("4096 * ('a',)[0] + " * 300 + "''", True),
        ("(0,) * 256 + " * 600 + "()", True),
        (f"match x:\n case [{','.join(f'a{n}' for n in range(1200))}]: 0", False),
        (f"def f({','.join(f'a{n}' for n in range(300))}):\n return {'lambda:' * 300} f", False),
    ],
)
def test_what_the_compiler_would_blow_up_takes_little_memory(code: str, *, is_read: bool) -> None:
    assert len(code) <= MAX_CHARACTERS
    tracemalloc.start()
    try:
        facts = code_facts.__wrapped__(code)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (facts is not None) is is_read
    assert peak < 16 * 1024 * 1024


def test_finally_is_read_like_any_other_block() -> None:
    facts = code_facts("def f():\n try:\n  return a\n finally:\n  b()")
    assert facts.through == (("f", frozenset({"a", "b"})),)
    facts = code_facts(
        "try:\n x = a\nexcept OSError: pass\nelse: z = 1\nfinally:\n y = x\nprint(y, z)"
    )
    assert (facts.reads, facts.sets) == ({"a", "OSError", "print"}, {"x", "y", "z"})


def test_turns_that_only_pad_do_not_thin_out_surplus_answers() -> None:
    def turn(name: str, asked: list[str], text: str = "") -> object:
        response = {"type": "ai", "content": text, "tool_calls": [{"id": each} for each in asked]}
        return call(
            name, parent=str(int(name) - 1) if name != "0" else None, text=text, response=response
        )

    tools = [
        ran("print(3 + 4)", name="real"),
        ran("pass", name="pad"),
        ran("1/0", ERROR, name="bad"),
    ]
    tools.append(ran("1/0 # again", ERROR, name="worse"))
    counted = count_calls(tools)
    assert (counted.padding, counted.counted) == ({"pad", "worse"}, {"real", "bad"})
    turns = [turn("0", ["real"]), turn("1", [], "<answer>1</answer><answer>2</answer>")]
    assert penalty_format(turns, counted) == 1 / 2
    padded = [*turns, turn("2", ["pad"]), turn("3", ["pad", "worse"])]
    assert penalty_format(padded, counted) == 1 / 2 > penalty_format(padded)
    assert (
        penalty_format([*padded, turn("4", ["bad"]), turn("5", ["pad"], "<answer>")], counted)
        == 2 / 4
    )


def test_fenced_blocks_are_calls_of_their_turn() -> None:
    """A message that holds its calls as text has none in its record:
    they are known by their ids.
    """
    turns = [
        call("first", text="```python ..."),
        call("second", parent="first", text="<answer>1</answer>" * 2),
    ]
    first = block_ids("first")
    good, failed = ran("print(3 + 4)", name=first[0]), ran("1 / 0", ERROR, name=first[1])
    counted = count_calls([good, failed])
    assert (counted.error, penalty_format(turns, counted)) == (1 / 2, 1 / 2)
    assert penalty_format(turns, count_calls([ran("pass", name=first[0])])) == 1.0, (
        "a turn that only pads"
    )
    invalid = tool_call(first[0], ToolStatus.INVALID_CALL).model_copy(update={"arguments": "x = "})
    assert count_calls([invalid]).error == 1.0


# --- no padding of the kinds above lowers a penalty
# -------------------------------------------------------------------

NAMES = ["a", "b", "total", "xs", "f"]
snippets = st.builds(
    "\n".join,
    st.lists(
        st.one_of(
            st.builds("{} = {}".format, st.sampled_from(NAMES), st.integers(0, 4)),
            st.builds("{} = {} + {}".format, *[st.sampled_from(NAMES)] * 3),
            st.builds("print({})".format, st.sampled_from(NAMES)),
            st.builds("{}.append({})".format, *[st.sampled_from(NAMES)] * 2),
            st.builds("for {0} in {1}:\n    {2} += {0}".format, *[st.sampled_from(NAMES)] * 3),
            st.builds(
                "def f({0}):\n    {1} = {0}\n    return {1} * {2}".format,
                *[st.sampled_from(NAMES)] * 3,
            ),
            st.builds(
                "print([{0} for {0} in {1} if {0} > {2}])".format, *[st.sampled_from(NAMES)] * 3
            ),
            st.builds("import math\nprint(math.sqrt({}))".format, st.integers(0, 4)),
        ),
        min_size=1,
        max_size=3,
    ),
)
programs = st.lists(
    st.tuples(snippets, st.sampled_from([OK, OK, OK, ERROR])), min_size=1, max_size=6
)


def repeats(call: ToolCall, since: list[ToolCall]) -> bool:
    """True if a call, made again after the calls `since` its first time, changes nothing.

    `a = a + b` does more each time, and so does `a = b + total` after an `a = 0`.
    """
    code = code_facts(str(call.arguments["code"]))
    others = [code_facts(str(each.arguments["code"])) for each in since]
    changed = {name for each in others[1:] for name in each.sets | each.changes}
    own = code.sets | code.changes
    return not own & code.reads and not (own | code.reads) & changed


def padding_for(calls: list[ToolCall], at: int, kind: str, seed: int) -> ToolCall:
    """A call that does nothing new, to be inserted before place `at`, with what the record would
    say of it.
    """
    rng = random.Random(seed)
    fresh = f"pad{seed % 1_000_000}"
    repeatable = [call for place, call in enumerate(calls[:at]) if repeats(call, calls[place:at])]
    if kind == "idle" or not repeatable:
        idle = [
            "pass",
            f"# {fresh}",
            f"'{fresh}'",
            f"{seed}",
            "",
            "a = a",
            f"{fresh} = {seed}",
            f"import {fresh}",
        ]
        idle += [
            f"print({seed})",
            f"print(end='{fresh}')",
            f"{fresh} = [{seed}]\nprint({fresh})",
            f"{fresh} = a",
        ]
        idle += [
            f"def {fresh}(x):\n    return x + a",
            f"{fresh} = [n * total for n in xs]",
            f"{fresh}: int = b",
        ]
        code = rng.choice(idle)
        return ran(
            code,
            shown=str(seed) if code == f"{seed}" or "print" in code else NO_OUTPUT,
            name=f"{fresh}-{at}",
        )
    again = rng.choice(repeatable)
    code = str(again.arguments["code"])
    if kind == "wording":
        own = code_facts(code).sets - code_facts(code).reads
        code = (
            renamed(code, {name: f"{name}_{fresh}" for name in own}) if rng.random() < 0.7 else code
        )
        code = f"# {fresh}\n" + code.replace("\n", f"  # {fresh}\n\n")
    repeated = again.repeated_of or again.id if kind == "repeat" else None
    changes = {"content": again.content, "repeated_of": repeated}
    return ran(code, again.status, name=f"{fresh}-{at}").model_copy(update=changes)


kinds = st.sampled_from(["idle", "repeat", "wording"])


@settings(max_examples=150, deadline=None)
@given(programs, st.lists(st.tuples(kinds, st.integers(0, 10**9)), min_size=7, max_size=10))
@example(
    [("import math\nprint(math.sqrt(0))", OK), ("a = 0", OK), ("a = 0", OK), ("a = 0", ERROR)],
    # a module is given another name, then one more
    [*[("idle", 0)] * 6, ("wording", 845), ("wording", 865)],
)
@example(
    [("a = a + b", OK), ("a = 0", OK), ("b = 0", OK), ("for a in a:\n    a += a\nprint(a)", OK)],
    [*[("idle", 0)] * 4, ("repeat", 269), *[("idle", 0)] * 2],  # a sum is not repeated
)
def test_padding_never_lowers_a_penalty(
    program: list[tuple[str, ToolStatus]], paddings: list[tuple[str, int]]
) -> None:
    padded = [ran(code, status, name=str(index)) for index, (code, status) in enumerate(program)]
    before = penalty_error(padded)
    for kind, seed in paddings:  # each is held against the rollout before it
        at = 1 + seed % len(padded)
        padded = [*padded[:at], padding_for(padded, at, kind, seed), *padded[at:]]
        after = penalty_error(padded)
        assert after >= before, (kind, [each.arguments["code"] for each in padded])
        before = after


def test_what_was_found_is_closed() -> None:
    one_failed = ran("1/0", ERROR)
    noops = [ran(f"pass  # {n}") for n in range(20)]
    assert penalty_error([one_failed, *noops]) == penalty_error([one_failed]) == 1.0
    clean = rollout(0, 1.0, 0, 1)
    lazy = trajectory(1, 1.0, tool_calls=(ran("x = 1"),))
    overlays = select([clean, lazy, rollout(2, 0.0)], 3, "grpo-roc", seed=0)
    assert [overlay.penalty_error for overlay in overlays] == [0.0, 0.5, 0.0]
