"""Hidden elements of an HTML page, found from the page itself, without a browser.

Hidden text is where instructions to a model are placed, and where pages keep content for later.
Considered are the attribute `hidden`, a closed `<dialog>`, and valid values
(`hrm_agent.retrieval.html.css_values`) of `display`, `visibility`, `opacity`, `font-size`, `font`
and `content-visibility`, in an element's `style` and in the page's `<style>`: rules with simple
selectors (`tag`, `.class`, `#id` and their combinations), by importance, specificity and order as
in CSS. `aria-hidden` hides nothing from a viewer of the page, so it hides nothing here.

Not covered: selectors of descendants, siblings, attributes and states, style sheets outside of the
page, rules and sheets for media other than screens as such, scripts, text in the colour of its
background, outside of the window or under something else. Undecided elements count as shown.
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
"""HTML comment marks around a style sheet. CSS ignores the marks, and not the text between them."""
_INERT = {"iframe", "noembed", "noframes", "noscript", "script", "template"}
"""Elements whose contents a browser does not show as part of the page."""
_BRACES = re.compile(r"[{}]")
Weight = tuple[bool, tuple[int, int, int], int]
"""Importance, specificity, order."""
_INLINE = (1 << 30, 0, 0)
"""Specificity of a `style` attribute, above all selectors."""
_MOST_COMPARED = 2_000_000
"""Maximum names of rules that are compared with the elements of a page, since rules with a common
class are compared with every element that has it. Elements beyond it count as shown.
"""


@dataclass(frozen=True, slots=True)
class Visibility:
    """Visibility of an element, derived from that of its parent."""

    rendered: bool = True
    """True if neither the element nor an ancestor is removed or transparent."""
    visible: bool = True
    """True if `visibility` shows it. A descendant may set it again."""
    sized: bool = True
    """True if the font size is above 0. A descendant may set it again."""

    @property
    def is_shown(self) -> bool:
        return self.rendered and self.visible and self.sized


SHOWN = Visibility()


@dataclass(frozen=True, slots=True)
class _Rule:
    tag: str
    """Tag in lower case (empty for any tag)."""
    needed: frozenset[str]
    """Classes with a dot and ids with a hash, all of which an element has to have."""
    name: str
    """Name of the property."""
    value: str
    """Value in lower case."""
    weight: Weight
    """Precedence among rules for one property."""


class StyleRules:
    """Rules of a page's `<style>` elements that may hide something."""

    def __init__(self) -> None:
        self._by_key = defaultdict[str, dict[tuple[str, frozenset[str], str], _Rule]](dict)
        """Rules under one of their classes or ids, or their tag. Of equal selectors the one with
        the highest weight is kept.
        """
        self._names = Counter[str]()
        """Cost of comparing an element with the rules under a key."""
        self._compared = self._count = 0
        self._found = dict[tuple[str, frozenset[str]], dict[str, tuple[Weight, str]]]()
        """Cache of properties by tag, classes and id. Pages have few different ones."""

    def add(self, sheet: str) -> None:
        """Add the rules of one style sheet, after the previous ones."""
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
        """Visibility of an element inside of one with the visibility `around`."""
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
        """Properties that rules set for an element."""
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
    """Parser target that collects the rules of a page's `<style>` elements, anywhere in it."""

    def __init__(self) -> None:
        self._rules = StyleRules()
        self._sheet: list[str] | None = None
        """Text of the open sheet, if it applies to screens (None otherwise)."""
        self._inert = 0
        """Number of open elements in `_INERT`."""

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
        """Do nothing, since a comment has no rules."""

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
    """Selectors and declarations of the rules that apply to screens."""
    opened: list[tuple[str, bool]] = []
    """Open blocks, outermost first, as (text before the brace, True if its rules apply)."""
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
    """Text without the parts between two marks. An unclosed part extends to the end."""
    parts, at = list[str](), 0
    while (begin := text.find(opening, at)) >= 0:
        parts.append(text[at:begin])
        end = text.find(closing, begin + len(opening))
        if end < 0:
            return " ".join(parts)
        at = end + len(closing)
    return " ".join([*parts, text[at:]]) if parts else text
