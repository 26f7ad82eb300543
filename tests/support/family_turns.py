"""Turns as the models of a family write them. The texts are written by hand, without any code of
the codec.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BY_FAMILY", "FORMS", "Form", "Turns"]


@dataclass(frozen=True)
class Form:
    """A form in which calls are written."""

    call: str
    """One call, with NAME and ARGS."""
    text: str
    """A string argument, with KEY and VALUE."""
    value: str
    """An argument of another type."""
    malformed: dict[str, str]
    """Malformed calls by their fault. Every family has the fault `broken`: a call that is closed,
    or that ends the answer.
    """
    between: str = ""
    """Separator of two arguments."""
    several: tuple[str, str, str] = ("", "\n", "")
    """Texts before, between and after the calls of one answer."""
    one: str = ""
    """Form of a call among several (empty if it equals the form of a single call)."""
    words: str = "{}\n"
    """Template of the words before a call (empty if the family writes none)."""
    then: str = "\n"
    """Separator of two calls that are not written as one group."""
    parallel: bool = True
    """True if an answer may have several calls."""


FORMS = {
    "hermes": Form(
        call='<tool_call>\n{"name": "NAME", "arguments": {ARGS}}\n</tool_call>',
        text='"KEY": "VALUE"',
        value='"KEY": VALUE',
        between=", ",
        malformed={
            "unclosed": '<tool_call>\n{"name": "python", "arguments": {"code": "6 * 7"}}',
            "broken": (
                '<tool_call>\n{"name": "python", "arguments": {"code": "6 * 7}}\n</tool_call>'
            ),
            "no object": '<tool_call>\n{"name": "python", "arguments": "6 * 7"}\n</tool_call>',
        },
    ),
    "qwen_xml": Form(
        call="<tool_call>\n<function=NAME>\nARGS</function>\n</tool_call>",
        text="<parameter=KEY>\nVALUE\n</parameter>\n",
        value="<parameter=KEY>\nVALUE\n</parameter>\n",
        malformed={
            "unclosed": (
                "<tool_call>\n<function=python>\n<parameter=code>\n6 * 7\n</parameter>\n</function>"
            ),
            "broken": (
                "<tool_call>\n<function=python>\n<parameter=code>\n6 * 7\n</function>\n</tool_call>"
            ),
            "another form": (
                '<tool_call>\n{"name": "python", "arguments": {"code": "6 * 7"}}\n</tool_call>'
            ),
        },
    ),
    "glm": Form(
        call="<tool_call>NAME\nARGS</tool_call>",
        text="<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n",
        value="<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n",
        malformed={
            "unclosed": (
                "<tool_call>python\n<arg_key>code</arg_key>\n<arg_value>6 * 7</arg_value>\n"
            ),
            "broken": "<tool_call>python\n<arg_key>code</arg_key>\n<arg_value>6 * 7\n</tool_call>",
            "another form": (
                '<tool_call>{"name": "python", "arguments": {"code": "6 * 7"}}</tool_call>'
            ),
        },
    ),
    "gemma": Form(
        call="<|tool_call>call:NAME{ARGS}<tool_call|>",
        text='KEY:<|"|>VALUE<|"|>',
        value="KEY:VALUE",
        between=",",
        several=("", "", ""),
        malformed={
            "unclosed": '<|tool_call>call:python{code:<|"|>6 * 7<|"|>}',
            "broken": '<|tool_call>call:python{code:<|"|>6 * 7}<tool_call|>',
            "another form": (
                '<|tool_call>{"name": "python", "arguments": {"code": "6 * 7"}}<tool_call|>'
            ),
        },
    ),
    "pythonic": Form(
        call="<|tool_call_start|>[NAME(ARGS)]<|tool_call_end|>",
        text='KEY="VALUE"',
        value="KEY=VALUE",
        between=", ",
        several=("<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
        one="NAME(ARGS)",
        malformed={
            "unclosed": '<|tool_call_start|>[python(code="6 * 7")]',
            "broken": '<|tool_call_start|>[python(code="6 * 7)]<|tool_call_end|>',
            "no names": '<|tool_call_start|>[python("6 * 7")]<|tool_call_end|>',
            "no literal": "<|tool_call_start|>[python(code=6 * 7)]<|tool_call_end|>",
        },
    ),
    "llama": Form(
        call='{"name": "NAME", "parameters": {ARGS}}',
        text='"KEY": "VALUE"',
        value='"KEY": VALUE',
        between=", ",
        several=("<|python_tag|>", "; ", ""),
        words="",
        then="; ",
        malformed={
            "unclosed": '{"name": "python", "parameters": {"code": "6 * 7"',
            "broken": '{"name": "python", "parameters": {"code": "6 * 7}}',
            "after the mark": '<|python_tag|>{"name": "python", "parameters": {"code": "6 * 7}}',
        },
    ),
    "harmony": Form(
        call="<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{ARGS}",
        text='"KEY": "VALUE"',
        value='"KEY": VALUE',
        between=", ",
        words="<|channel|>commentary<|message|>{}<|end|><|start|>assistant",
        then="<|end|><|start|>assistant",
        parallel=False,
        malformed={
            "unclosed": (
                '<|channel|>commentary to=functions.python <|constrain|>json<|message|>{"code": "6'
                ' * 7"'
            ),
            "broken": (
                '<|channel|>commentary to=functions.python <|constrain|>json<|message|>{"code": "6'
                " * 7}"
            ),
            "no object": " to=functions.python<|channel|>commentary json<|message|>6 * 7",
        },
    ),
    "muse": Form(
        call=(
            " to=NAME<|message|><atem:function_calls>\n<atem:invoke"
            ' name="NAME">\nARGS</atem:invoke>\n</atem:function_calls>'
        ),
        text='<atem:parameter name="KEY">VALUE</atem:parameter>\n',
        value='<atem:parameter name="KEY">VALUE</atem:parameter>\n',
        several=(" to=python<|message|><atem:function_calls>\n", "\n", "\n</atem:function_calls>"),
        one='<atem:invoke name="NAME">\nARGS</atem:invoke>',
        words=" to=user<|message|>{}<|eom|><|start|>assistant",
        then="<|eom|><|start|>assistant",
        malformed={
            "unclosed": (
                ' to=python<|message|><atem:function_calls>\n<atem:invoke name="python">\n'
                '<atem:parameter name="code">6 * 7</atem:parameter>\n</atem:invoke>\n'
            ),
            "broken": (
                ' to=python<|message|><atem:function_calls>\n<atem:invoke name="python">\n'
                '<atem:parameter name="code">6 * 7\n</atem:invoke>\n</atem:function_calls>'
            ),
            "no call": " to=python<|message|>6 * 7",
        },
    ),
}
"""Forms by name."""

_OPENED = "{}\n</think>\n\n"
_THOUGHTS = {
    "tag": "<think>\n{}\n</think>\n\n",
    "opened": _OPENED,
    "gemma": "<|channel>thought\n{}\n<channel|>",
    "harmony": "<|channel|>analysis<|message|>{}<|end|><|start|>assistant",
    "muse": " to=self<|message|>{}<|eom|><|start|>assistant",
    "none": "",
}
_ANSWERS = {"harmony": "<|channel|>final<|message|>{}", "muse": " to=user<|message|>{}"}


@dataclass(frozen=True)
class Turns:
    """Answers as the models of a family write them."""

    form: Form
    thoughts: str
    """Template of a thought (empty if the family writes none)."""
    words: str = "{}"
    """Template of the words of an answer."""

    def call(self, name: str, think: str = "", **arguments: str | int) -> str:
        """An answer with one call."""
        return self.after(think) + self._filled(self.form.call, name, arguments)

    def calls(self, name: str, *each: dict[str, str | int], think: str = "") -> str:
        """An answer with several calls of one tool."""
        before, between, after = self.form.several
        one = self.form.one or self.form.call
        return (
            self.after(think)
            + before
            + between.join(self._filled(one, name, given) for given in each)
            + after
        )

    def both(self, words: str, name: str, think: str = "", **arguments: str | int) -> str:
        """Answer with words, a call, and a malformed call."""
        form = self.form
        said = form.words.format(words) + self._filled(form.call, name, arguments)
        return self.after(think) + said + form.then + form.malformed["broken"]

    def malformed(self, kind: str, think: str = "") -> str:
        """Answer with a malformed call."""
        return self.after(think) + self.form.malformed[kind]

    def answer(self, words: str, think: str = "") -> str:
        """An answer in words."""
        return self.after(think) + self.words.format(words)

    def after(self, think: str) -> str:
        """The thoughts before an answer. If the prompt opens thoughts, they are closed at least."""
        return self.thoughts.format(think) if think or self.thoughts == _OPENED else ""

    def _filled(self, text: str, name: str, arguments: dict[str, str | int]) -> str:
        written = (
            (self.form.text if isinstance(value, str) else self.form.value)
            .replace("KEY", key)
            .replace("VALUE", str(value))
            for key, value in arguments.items()
        )
        return text.replace("NAME", name).replace("ARGS", self.form.between.join(written))


BY_FAMILY = {
    name: Turns(FORMS[form], _THOUGHTS[thoughts], _ANSWERS.get(form, "{}"))
    for (form, thoughts), names in {
        (
            "hermes",
            "none",
        ): "cohere cohere2 gemma gemma3 llama3 phi3 phi3_5 qwen2_5 qwen3_instruct_2507",
        ("hermes", "opened"): "deepseek_r1_distill deepseekv3",
        ("hermes", "tag"): "qwen3",
        ("qwen_xml", "none"): "qwen3_5_nothink",
        ("qwen_xml", "opened"): (
            "nemotron_3_5_lightning nemotron_3_nano nemotron_3_super nemotron_3_ultra "
            "qwen3_5_think qwen3_6 qwen3_8"
        ),
        ("glm", "tag"): "glm4moe",
        ("gemma", "gemma"): "diffusion_gemma gemma4 gemma4_v2 gemma4_v3 gemma4_v4 gemma4_v5",
        ("pythonic", "none"): "lfm2 lfm2_v2",
        ("pythonic", "tag"): "lfm2_2_5 lfm2_2_5_v2",
        ("llama", "none"): "llama3_1 llama3_2",
        ("harmony", "harmony"): "gptoss",
        ("muse", "muse"): "muse_glimmer",
    }.items()
    for name in names.split()
}
"""Turns by the names of `tests.support.families.FAMILIES`."""
