"""Which elements of an HTML page a browser does not show, told by the page itself, without a
browser.

Text that nobody sees is where instructions to a model are hidden, and where pages keep what is
shown another time. Looked at are the attribute `hidden`, a closed `<dialog>`, and `display`,
`visibility`, `opacity`, `font-size`, `font` and `content-visibility` where their values are valid
(`hrm_agent.retrieval.html.css_values`), in an element's `style` and in the page's `<style>`: rules
with simple selectors (`tag`, `.class`, `#id` and their combinations), in the order of importance,
specificity and place that CSS has. `aria-hidden` hides nothing from who looks at the page, so it
hides nothing here.

Not covered: selectors of descendants, siblings, attributes and states, style sheets outside of the
page, rules and sheets for media other than screens as such, scripts, text in the colour of its
background, outside of the window or under something else. What cannot be told counts as shown.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hrm_agent.retrieval.html.css_values import declared, is_nothing, size_unit

__all__ = ["SHOWN", "StyleRules", "StyleSheets", "Visibility"]

_SELECTOR = re.compile(r"([a-zA-Z][\w-]*)?((?:[.#][\w-]+)*)")
_PART = re.compile(r"([.#])([\w-]+)")
_SCREEN = re.compile(r"@media\s+(?:only\s+)?(?:all|screen)\s*", re.IGNORECASE)
_OF_PARENT = {"inherit", "unset", "larger", "smaller"}
_RELATIVE = {"em", "ex", "ch", "%", "lh", "cap", "ic"}
_COMMENT_MARK = re.compile("<!--|-->")
"""Of HTML, around a whole sheet: CSS passes over the marks,
and not over what stands between them.
"""
_INERT = {"iframe", "noembed", "noframes", "noscript", "script", "template"}
"""What is in them is no part of the page that a browser shows."""
_BRACES = re.compile(r"[{}]")
Weight = tuple[bool, tuple[int, int, int], int]
"""Importance, specificity, place."""
_INLINE = (1 << 30, 0, 0)
"""Specificity of a `style` attribute: above all selectors."""
_MOST_COMPARED = 2_000_000
"""Names of rules that are held against the elements of a page: rules that have one class in common
meet every element that has it. What is left over counts as shown.
"""


@dataclass(frozen=True, slots=True)
class Visibility:
    """Of an element, from that of the one around it."""

    rendered: bool = True
    """Neither it nor anything around it is taken out or made transparent."""
    visible: bool = True
    """`visibility`, which an element inside may set back."""
    sized: bool = True
    """Its letters are larger than nothing, which an element inside may set back."""

    @property
    def is_shown(self) -> bool:
        return self.rendered and self.visible and self.sized


SHOWN = Visibility()


@dataclass(frozen=True, slots=True)
class _Rule:
    tag: str
    """Lower case; empty: any."""
    needed: frozenset[str]
    """Classes with a dot and ids with a hash, all of which an element has to have."""
    name: str
    """Property."""
    value: str
    """Lower case."""
    weight: Weight
    """Decides between rules for one property."""


class StyleRules:
    """The rules of a page's `<style>` elements that may hide something."""

    def __init__(self) -> None:
        self._by_key = defaultdict[str, dict[tuple[str, frozenset[str], str], _Rule]](dict)
        """Under one of the classes or ids that rules need, or their tag: of rules that are alike
        the one that holds.
        """
        self._names = Counter[str]()
        """Cost of comparing an element with the rules under a key."""
        self._compared = self._count = 0
        self._found = dict[tuple[str, frozenset[str]], dict[str, tuple[Weight, str]]]()
        """Tag, classes and id -> properties: pages have few different ones."""

    def add(self, sheet: str) -> None:
        """The rules of one style sheet, after those that there are."""
        rules = _COMMENT_MARK.sub(" ", _without(sheet, "/*", "*/"))
        for selectors, declarations in _blocks(rules):
            given = dict[str, tuple[bool, str]]()
            for name, value, important in declared(declarations):
                if important or not given.get(name, (False, ""))[0]:
                    given[name] = important, value
            for selector in set(map(str.strip, selectors.split(","))) if given else ():
                match = _SELECTOR.fullmatch(selector)
                if match and match[0]:
                    self._add((match[1] or "").lower(), match[2], given)

    def _add(self, tag: str, parts: str, given: Mapping[str, tuple[bool, str]]) -> None:
        needed = frozenset(mark + name for mark, name in _PART.findall(parts))
        specificity = parts.count("#"), parts.count("."), int(bool(tag))
        alike = self._by_key[key := min(needed, default=tag)]
        for name, (important, value) in given.items():
            self._count += 1
            rule = _Rule(tag, needed, name, value, (important, specificity, self._count))
            self._names[key] += 0 if (tag, needed, name) in alike else 1 + len(needed)
            before = alike.get((tag, needed, name), rule)
            alike[tag, needed, name] = max(before, rule, key=lambda one: one.weight)

    def inside(self, around: Visibility, tag: str, attributes: Mapping[str, str]) -> Visibility:
        """How visible an element is; `around`: the element that it is in."""
        if not (around.rendered and (self._by_key or attributes or tag == "dialog")):
            return around
        names = {f".{name}" for name in attributes.get("class", "").split()}
        names |= {f"#{attributes['id']}"} if attributes.get("id") else set()
        found = dict(self._of_sheets(tag, frozenset(names)))
        if "hidden" in attributes or (tag == "dialog" and "open" not in attributes):
            found.setdefault("display", ((False, (0, 0, 0), 0), "none"))
        for number, (name, value, important) in enumerate(
            declared(_without(attributes.get("style", ""), "/*", "*/"))
        ):
            weight = important, _INLINE, number
            found[name] = max(found.get(name, (weight, "")), (weight, value))
        return _under(around, {name: value for name, (_, value) in found.items()})

    def _of_sheets(self, tag: str, names: frozenset[str]) -> dict[str, tuple[Weight, str]]:
        """Property -> what the rules that an element meets say of it."""
        known = self._found.get((tag, names))
        if known is not None or not self._by_key:
            return known or {}
        found = self._found[tag, names] = {}
        keys = [key for key in (tag, *names) if key in self._by_key]
        if (compared := self._compared + sum(self._names[key] for key in keys)) > _MOST_COMPARED:
            return found
        self._compared = compared
        for key in keys:
            for rule in self._by_key[key].values():
                if rule.tag in ("", tag) and rule.needed <= names:
                    found[rule.name] = max(
                        found.get(rule.name, (rule.weight, "")), (rule.weight, rule.value)
                    )
        return found


class StyleSheets:
    """Target of a parser: the rules of a page's `<style>` elements, wherever in it they stand."""

    def __init__(self) -> None:
        self._rules = StyleRules()
        self._sheet: list[str] | None = None
        """Text of the sheet that is open, if it holds on a screen."""
        self._inert = 0
        """Elements of the kind that are open."""

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._inert += tag in _INERT
        if tag == "style" and not self._inert:
            media = attributes.get("media", "").strip() or "all"
            self._sheet = [] if _SCREEN.fullmatch(f"@media {media}") else None

    def data(self, data: str) -> None:
        if self._sheet is not None:
            self._sheet.append(data)

    def end(self, tag: str) -> None:
        self._inert -= tag in _INERT
        if tag == "style" and self._sheet is not None:
            self._rules.add("".join(self._sheet))
            self._sheet = None

    def comment(self, _text: str) -> None:
        """Holds no rule."""

    def close(self) -> StyleRules:
        return self._rules


def _under(around: Visibility, style: Mapping[str, str]) -> Visibility:
    if not style:
        return around
    gone = style.get("display") == "none" or style.get("content-visibility") == "hidden"
    return Visibility(
        around.rendered and not gone and not is_nothing(style.get("opacity", "")),
        {"hidden": False, "collapse": False, "visible": True, "initial": True}.get(
            style.get("visibility", ""), around.visible
        ),
        _is_sized(style.get("font-size", ""), around),
    )


def _is_sized(value: str, around: Visibility) -> bool:
    if not value or value in _OF_PARENT:
        return around.sized
    unit = size_unit(value)
    return unit is None or (not is_nothing(value) and (around.sized or unit not in _RELATIVE))


def _blocks(sheet: str) -> Iterator[tuple[str, str]]:
    """Selectors and declarations of the rules that hold on a screen."""
    opened: list[tuple[str, bool]] = []
    """The blocks around, innermost last: what stands before each, and whether rules in it hold."""
    last = 0
    for brace in _BRACES.finditer(sheet):
        between = sheet[last : brace.start()]
        if brace[0] == "{":
            before = between.rpartition(";")[2].strip()
            groups = _SCREEN.fullmatch(before) or before.lower().startswith("@layer")
            holds = (
                bool(groups)
                if before.startswith("@")
                else not (opened and not opened[-1][0].startswith("@"))
            )
            opened.append((before, holds and all(held for _, held in opened[-1:])))
        elif opened:
            before, holds = opened.pop()
            if holds and not before.startswith("@"):
                yield before, between
        last = brace.end()


def _without(text: str, opening: str, closing: str) -> str:
    """Without what stands between two marks; one that is not closed goes on to the end."""
    parts, at = list[str](), 0
    while (begin := text.find(opening, at)) >= 0:
        parts.append(text[at:begin])
        end = text.find(closing, begin + len(opening))
        if end < 0:
            return " ".join(parts)
        at = end + len(closing)
    return " ".join([*parts, text[at:]]) if parts else text
