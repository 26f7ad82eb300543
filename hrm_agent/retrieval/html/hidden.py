"""Hidden elements of an HTML page, found from the page itself, without a browser.

Attackers put instructions to a model into hidden text, and pages keep content for later in it. An
element may be hidden by the attribute `hidden`, as a closed `<dialog>`, or by the properties
`display`, `visibility`, `opacity`, `font-size`, `font` and `content-visibility`, in its `style` or
in the page's `<style>`. Rules with simple selectors (`tag`, `.class`, `#id` and their combinations)
are applied by importance, specificity and order, as in CSS. As in a browser, an unknown value has
no effect. `aria-hidden` is ignored, since it does not hide text from a viewer of the page.

Not covered are selectors of descendants, siblings, attributes and states, style sheets outside of
the page, rules and sheets with conditions on the medium, scripts, and text that is in the colour of
its background, outside of the window, or under something else. If it is not clear whether an
element is hidden, it counts as shown.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["SHOWN", "StyleRules", "StyleSheets", "Visibility"]

_SELECTOR = re.compile(r"([a-zA-Z][\w-]*)?((?:[.#][\w-]+)*)")
_PART = re.compile(r"[.#][\w-]+")
_SCREEN = re.compile(r"\s*(?:only\s+)?(?:all|screen)?\s*", re.IGNORECASE)
_LONG_NUMBER = re.compile(r"(\d{300})\d+")
"""Number with more digits than Python converts. Its first digits are enough to decide if it is
above 0.
"""
_INERT = {"iframe", "noembed", "noframes", "noscript", "script", "template"}
"""Elements whose contents a browser does not show as part of the page."""
Effect = Literal["shown", "hidden", "inherited"]
"""Effect of a declaration on its element. `inherited`: as the parent."""
_HIDING = {
    "content-visibility": {"hidden"},
    "display": {"none"},
    "visibility": {"collapse", "hidden"},
}
# fmt: off
_SHOWING = {
    "content-visibility": {"auto", "initial", "revert", "visible"},
    "display": {
        "block", "contents", "flex", "flow-root", "grid", "initial", "inline", "inline-block", "inline-flex",
        "inline-grid", "list-item", "table", "table-caption", "table-cell", "table-column",
        "table-column-group", "table-footer-group", "table-header-group", "table-row", "table-row-group",
        "-webkit-box",
    },
    "visibility": {"initial", "visible"},
    "opacity": {"initial", "revert"},
    "font-size": {"initial", "large", "medium", "small", "x-large", "x-small", "xx-large", "xx-small", "xxx-large"},
}
_UNITS: dict[str, Effect] = {
    **dict.fromkeys(("cm", "in", "mm", "pc", "pt", "px", "q", "rem", "vh", "vmax", "vmin", "vw"), "shown"),
    **dict.fromkeys(("cap", "ch", "em", "ex", "ic", "lh"), "inherited"),
}
# fmt: on
"""Effects of a font size above 0, by its unit. A size in relative units depends on the parent's
font size.
"""
Weight = tuple[bool, tuple[int, int, int], int]
"""Importance, specificity and order of a declaration. The largest wins."""
_INLINE = (1 << 30, 0, 0)
"""Specificity of a `style` attribute, above all selectors."""
_MOST_COMPARED = 2_000_000
"""Maximum number of comparisons of names in rules with elements of a page. Without a limit, many
rules for one class, compared with every element of this class, would take quadratic time. Elements
beyond the limit count as shown.
"""


@dataclass(frozen=True, slots=True)
class Visibility:
    """Visibility of an element, derived from that of its parent."""

    rendered: bool = True
    """True if neither the element nor an ancestor is removed or transparent."""
    visible: bool = True
    """True if `visibility` shows the element. A descendant may set `visibility` again."""
    sized: bool = True
    """True if the font size is above 0. A descendant may set the size again."""

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
    effect: Effect
    """Effect of the declaration."""
    weight: Weight
    """Precedence among rules for one property."""


class StyleRules:
    """Rules of a page's `<style>` elements that may hide something."""

    def __init__(self) -> None:
        self._by_key = defaultdict[str, dict[tuple[str, frozenset[str], str], _Rule]](dict)
        """Rules by one of their classes or ids, or else by their tag. Of several rules with equal
        selectors, the rule with the highest weight is kept.
        """
        self._left = _MOST_COMPARED
        self._count = 0
        self._found = dict[tuple[str, frozenset[str]], dict[str, tuple[Weight, Effect]]]()
        """Cache of properties by tag, classes and id. Most elements of a page have the same as
        others.
        """

    def add(self, sheet: str) -> None:
        """Add the rules of one style sheet, after the previous ones."""
        import tinycss2

        options = {"skip_comments": True, "skip_whitespace": True}
        open_rules: list[Any] = tinycss2.parse_stylesheet(
            _LONG_NUMBER.sub(r"\1", sheet), **options
        )[::-1]
        while open_rules:
            rule = open_rules.pop()
            before = tinycss2.serialize(getattr(rule, "prelude", ()))
            if rule.type == "qualified-rule":
                self._add(before, _declared(rule.content))
            elif rule.type == "at-rule" and rule.content is not None:
                screen = rule.lower_at_keyword == "media" and _SCREEN.fullmatch(before)
                if screen or rule.lower_at_keyword == "layer":
                    open_rules += tinycss2.parse_rule_list(rule.content, **options)[::-1]

    def _add(self, selectors: str, declared: Mapping[str, tuple[bool, Effect]]) -> None:
        for selector in set(map(str.strip, selectors.split(","))) if declared else ():
            match = _SELECTOR.fullmatch(selector)
            if not (match and match[0]):
                continue
            tag = (match[1] or "").lower()
            parts = match[2]
            needed = frozenset(_PART.findall(parts))
            specificity = parts.count("#"), parts.count("."), int(bool(tag))
            alike = self._by_key[min(needed, default=tag)]
            for name, (important, effect) in declared.items():
                self._count += 1
                rule = _Rule(tag, needed, effect, (important, specificity, self._count))
                before = alike.get((tag, needed, name), rule)
                alike[tag, needed, name] = max(before, rule, key=lambda one: one.weight)

    def inside(self, around: Visibility, tag: str, attributes: Mapping[str, str]) -> Visibility:
        """Visibility of an element whose parent has the visibility `around`."""
        if not (around.rendered and (self._by_key or attributes or tag == "dialog")):
            return around
        names = {f".{name}" for name in attributes.get("class", "").split()}
        names |= {f"#{attributes['id']}"} if attributes.get("id") else set()
        found = dict(self._of_sheets(tag, frozenset(names)))
        if "hidden" in attributes or (tag == "dialog" and "open" not in attributes):
            found.setdefault("display", ((False, (0, 0, 0), 0), "hidden"))
        for name, (important, effect) in _declared(
            _LONG_NUMBER.sub(r"\1", attributes.get("style", ""))
        ).items():
            own: tuple[Weight, Effect] = (important, _INLINE, 0), effect
            found[name] = max(found.get(name, own), own, key=lambda one: one[0])
        shown = {
            name: effect == "shown" for name, (_, effect) in found.items() if effect != "inherited"
        }
        return Visibility(
            all(shown.get(name, True) for name in ("content-visibility", "display", "opacity")),
            shown.get("visibility", around.visible),
            shown.get("font-size", around.sized),
        )

    def _of_sheets(self, tag: str, names: frozenset[str]) -> dict[str, tuple[Weight, Effect]]:
        """Effects of the rules on an element, by property."""
        known = self._found.get((tag, names))
        if known is not None or not self._by_key:
            return known or {}
        found = self._found[tag, names] = {}
        for key in (tag, *names):
            for (_, _, name), rule in self._by_key.get(key, {}).items():
                self._left -= 1 + len(rule.needed)
                if self._left < 0:
                    return {}
                if rule.tag in ("", tag) and rule.needed <= names:
                    other: tuple[Weight, Effect] = rule.weight, rule.effect
                    found[name] = max(found.get(name, other), other, key=lambda one: one[0])
        return found


class StyleSheets:
    """Parser target that collects the rules of all `<style>` elements of a page."""

    def __init__(self) -> None:
        self._rules = StyleRules()
        self._sheet: list[str] | None = None
        """Text of the open sheet, if it applies to screens (None otherwise)."""
        self._inert = 0
        """Number of open elements in `_INERT`."""

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._inert += tag in _INERT
        if tag == "style" and not self._inert:
            self._sheet = [] if _SCREEN.fullmatch(attributes.get("media", "")) else None

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


def _declared(block: Any) -> dict[str, tuple[bool, Effect]]:
    """Declarations of a block with a known effect, as property -> (importance, effect). `font` is
    returned as `font-size`.
    """
    if not block:
        return {}
    import tinycss2

    found = dict[str, tuple[bool, Effect]]()
    for one in tinycss2.parse_blocks_contents(block, skip_comments=True, skip_whitespace=True):
        if one.type == "declaration":
            name = "font-size" if one.lower_name == "font" else one.lower_name
            effect = _effect(one.lower_name, [t for t in one.value if t.type != "whitespace"])
            if effect and (one.important or not found.get(name, (False, effect))[0]):
                found[name] = one.important, effect
    return found


def _effect(name: str, value: list[Any]) -> Effect | None:
    """Effect of a value (None for an unknown value)."""
    if name == "font":
        name = "font-size"
        sized = ("dimension", "percentage")
        value = [t for t in value if t.type in sized or (t.type == "number" and not t.value)][:1]
    if name not in _SHOWING or len(value) != 1:
        return None
    (token,) = value
    if token.type == "ident":
        if token.lower_value in ("inherit", "unset"):
            return "inherited"
        if token.lower_value in _HIDING.get(name, ()):
            return "hidden"
        return "shown" if token.lower_value in _SHOWING[name] else None
    if name == "opacity" and token.type in ("number", "percentage"):
        return "shown" if token.value > 0 else "hidden"
    if name == "font-size" and token.type in ("dimension", "number", "percentage"):
        if not token.value:
            return "hidden"
        unit = "em" if token.type == "percentage" else getattr(token, "lower_unit", "")
        return _UNITS.get(unit) if token.value > 0 else None
    return None
