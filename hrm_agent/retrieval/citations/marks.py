"""Parser of citations in a model's text, in the many forms that models write. It does not look up
the quotes.

The requested form is `[S1: "words of the source"]`. Other forms with the same meaning are read,
too: with other quotation marks or without any, with the quote before the name (`"words" [S1]`,
`["words", S1]`), with several names or several quotes in one bracket, as `[s1: ...]`, `[Source S1:
...]` or `(S1: ...)`, and with a source's title in place of its name.

Text that only looks like a citation is also a mark, but a mark without a quote: `[1]`, `[1, 2]`, `[
1 ]`, `[^1]`, `【1†source】`, `[source 3]`, `[Smith, 2020]`, `[1](http://...)`. Brackets of other
scripts, full-width and superscript digits, invisible characters and escaped brackets are read as
they appear. A model's own list of sources is found by its heading, or by definitions of footnotes.

No marks are numbers that begin with 0, slices (`[1:3]`), `[sic]`, `[...]`, and links with a text.
In code, only a complete citation with its words is a mark. An unclosed fence, or a fence for
Markdown, does not count as code.

Every character is scanned a bounded number of times, so time is linear in the length of the text.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["LONGEST_QUOTE", "CitedWords", "Mark", "find_lists", "find_marks", "plain_brackets"]

LONGEST_QUOTE = 1000
"""Maximum characters of a quote."""
_OPEN, _CLOSE = "[［【〔〖〚⟦❲⁅", "]］】〕〗〛⟧❳⁆"
_DOUBLE, _SINGLE = '"“”„‟«»「」『』＂', "'‘’‹›`´"
_OPENED_BY = {
    "”": "“„‟",
    "“": "„“",
    "»": "«",
    "«": "»",
    "」": "「",
    "』": "『",
    "’": "‘'",
    "›": "‹",
    "‘": "‚‘",
}
_QUOTES = f"[{_DOUBLE}{_SINGLE}]"
_NAME = r"(?:sources?:?\s{1,3})?S\d{1,6}\b"
_CANDIDATE = re.compile(rf"[ \t]{{0,4}}(?P<open>\\?[{re.escape(_OPEN)}]{{1,3}}|\()")
_HEADS = {
    kind: re.compile(
        rf"(?P<head>[^{re.escape(_OPEN + _CLOSE)}{other}{_DOUBLE}]{{0,120}}?)(?:[{_DOUBLE}]|(?<!\w)[{_SINGLE}])"
    )
    for kind, other in {"[": "", "(": "()"}.items()
}
_POSITION = r"(?:,?\s{0,4}(?:pp?\.?\s{0,2})?\d[\d\s,–-]{0,20})?"
_LATER = re.compile(rf"[;,&]?\s{{0,4}}(?={_NAME})", re.IGNORECASE)
_SIMPLE = {
    "[": re.compile(
        rf"[^{re.escape(_OPEN + _CLOSE)}]{{1,{LONGEST_QUOTE}}}(?P<close>[{re.escape(_CLOSE)}]{{1,3}})"
    ),
    "(": re.compile(r"[^()\[\]]{1,200}(?P<close>\))"),
}
_LINK = re.compile(r"\([^()\s]{0,500}(?:[ \t]{1,4}\"[^\"\n]{0,200}\")?\)")
_UNCLOSED = re.compile(
    rf"\s{{0,4}}{_NAME}[^\n{re.escape(_OPEN + _CLOSE)}]{{0,{LONGEST_QUOTE}}}", re.IGNORECASE
)
_WORDS = (
    r"(?:sources?|src|web|oai(?:_citation)?|refs?|references?|cites?|citations?|footnotes?|notes?|fn|docs?|documents?|"
    r"see)"
)
_BEGINS = re.compile(rf"{_WORDS}[:.]?\s+|{_WORDS}[:.]?(?=#?\d)|{_WORDS}:\s*(?=\S)")
_ONLY_CITES = re.compile(r"(?:sources?|refs?|references?|cites?|citations?):\s*\S")
_SOURCE = re.compile(r"(?<!\w)s(\d{1,6})(?!\w)")
_NUMBER = re.compile(r"[#s]?([1-9]\d{0,5})(?:[-‐‑‒–—−]s?\d{1,6})?\.?")
_DAGGER = re.compile(r"\d[\d:,\s-]*[†‡].*|\^[\w.-]{1,40}")
_TAG = re.compile(r"</?[A-Za-z][A-Za-z0-9]{0,9}>")
_JOINING = ("and", "und", "et", "y", "p.", "pp.", "p", "pp", "page", "pages")
_AUTHOR = re.compile(
    r"[^\W\d_](?:[^\W\d_]|[ .&'’-]){0,80}(?:,| et"
    r" al\.?,?)\s?(?:1[5-9]|20)\d\d[a-z]?(?:,\s?pp?\.\s?[\d–-]+)?"
)
_ENTITIES = (
    (re.compile(r"&(?:#0{0,4}91|#x0{0,4}5b|lsqb|lbrack);", re.IGNORECASE), "["),
    (re.compile(r"&(?:#0{0,4}93|#x0{0,4}5d|rsqb|rbrack);", re.IGNORECASE), "]"),
)
_FENCE = re.compile(r"^ {0,3}(?P<mark>`{3,}|~{3,})[ \t]*(?P<info>[^\s`]*)[^\n`]*$", re.MULTILINE)
_TICKS = re.compile(r"`+")
_HEADINGS = (
    r"(?:sources?|references?|citations?|footnotes?|bibliography|works cited|further"
    r" reading|quellen|quellenangaben|"
    r"références|referencias|fuentes|fonti|bronnen|источники|出典|参考文献|来源)"
)
_HEADING = re.compile(
    rf"[\s>#*_=|-]{{0,12}}(?:\d{{1,2}}[.)]\s?(?=[^:]{{1,40}}:))?(?:list of )?{_HEADINGS}"
    r"(?:\s(?:cited|used|consulted|list))?(?:\s(?:in|for) (?:this|the|my)"
    r" \w{1,12})?(?:\s?\(\d{1,3}\))?[\s*_|]{0,6}"
    r"(?P<colon>[:：]?)[\s*_=]{0,6}(?P<rest>.*)",
    re.IGNORECASE,
)
_ENTRY = re.compile(
    rf"\s{{0,8}}(?:[-*•+–>|]|\(?\d{{1,4}}[.):\]]|\\?[{re.escape(_OPEN)}(^]|S\d{{1,6}}\b|https?:|<|[{_DOUBLE}¹²³⁰⁴-⁹])",
    re.IGNORECASE,
)
MAX_ENTRY = 400
"""Maximum characters of a line that does not look like an entry but counts as a part of a list."""
_QUOTED = re.compile(r"""\[[^\[\]\n]*\]|"[^"\n]*"|“[^“”\n]*”|«[^«»\n]*»""")
_STOPPED = re.compile(r"[.!?。！？…][)\]*_\s]{0,4}\Z|[^\W\d_]{3}\s?[.!?]\s+[^\W\d_]|[。！？]")
_DEFINITION = re.compile(r"\s{0,3}\[(?:\^[^\[\]\s]{1,40}|\s?\d{1,6}\s?)\]:")


@dataclass(frozen=True, slots=True)
class CitedWords:
    """Citation of one quote, or without a quote, by one or several names of sources."""

    names: tuple[str, ...]
    """Names of sources, e.g. `S1`."""
    quotes: tuple[str, ...]
    """Candidates for the quoted words, the most likely first (empty without a quote)."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Citation in a text, or something that looks like one."""

    start: int
    """First character, including the spaces before the mark."""
    end: int
    """End of the mark, one past its last character."""
    cited: tuple[CitedWords, ...]
    """Citations of the mark."""
    instead: str
    """Replacement if no citation of the mark is valid. Numbers, which may belong to the text, are
    put in parentheses.
    """


def plain_brackets(text: str) -> str:
    """Return the text with HTML entities of brackets replaced by the brackets."""
    for entity, bracket in _ENTITIES:
        text = entity.sub(bracket, text)
    return text


def find_marks(text: str, titles: Mapping[str, str]) -> Iterator[Mark]:
    """Yield the marks of a text in order, without overlaps. `titles` maps casefolded titles of
    sources to their names.
    """
    scanner = _Scanner(text, titles)
    at = 0
    while opening := _CANDIDATE.search(text, at):
        mark = scanner.mark(opening)
        if mark is not None:
            yield mark
        at = mark.end if mark else opening.end()


class _Scanner:
    """Scanner of one text, with precomputed code spans and ends of quotes."""

    def __init__(self, text: str, titles: Mapping[str, str]) -> None:
        self._text = text
        self._titles = titles
        self._known = set(titles.values())
        self._code = _code_spans(text)
        ends = {"[": f"[{re.escape(_CLOSE)}]", "(": r"\)"}
        closing = rf"{_QUOTES}{_POSITION}\s{{0,4}}(?P<end>%s|[;,&]?\s{{0,4}}(?={_NAME}))"
        self._closings = {
            kind: list(re.finditer(closing % end, text, re.IGNORECASE))
            for kind, end in ends.items()
        }
        named = rf"{_QUOTES}[\s,;:–—-]{{0,6}}(?P<names>{_NAME}(?:\s{{0,3}}[,;&]\s{{0,3}}S\d{{1,6}}){{0,8}})\s{{0,4}}%s"
        self._named = {
            kind: list(re.finditer(named % end, text, re.IGNORECASE)) for kind, end in ends.items()
        }

    def mark(self, opening: re.Match[str]) -> Mark | None:
        """Mark that begins with this bracket (None if it is no mark)."""
        kind = "(" if opening["open"] == "(" else "["
        found = self._quoting(opening, kind) or self._quote_first(opening, kind)
        if found is not None:
            return found
        return None if _inside(self._code, opening.start("open")) else self._bare(opening, kind)

    def _quoting(self, opening: re.Match[str], kind: str) -> Mark | None:
        """Mark of the form `[S1: "words"; S2: "words"]`."""
        text = self._text
        at = opening.end()
        cited = list[CitedWords]()
        while head := _HEADS[kind].match(text, at):
            names = self._names_of(head["head"], kind)
            closing = _next(self._closings[kind], head.end())
            if not names or closing is None or closing.start() - head.end() > LONGEST_QUOTE:
                break
            cited.append(CitedWords(names, (text[head.end() : closing.start()],)))
            at = closing.end()
            if closing["end"][:1] in (*_CLOSE, ")"):
                break
        return self._marked(opening, at, cited) if cited else None

    def _quote_first(self, opening: re.Match[str], kind: str) -> Mark | None:
        """Mark of the form `["words", S1]`."""
        head = _HEADS[kind].match(self._text, opening.end())
        if head is None or head["head"].strip():
            return None
        closing = _next(self._named[kind], head.end())
        if closing is None or closing.start() - head.end() > LONGEST_QUOTE:
            return None
        quote = self._text[head.end() : closing.start()]
        names = self._names_of(closing["names"], kind)
        if not names or any(
            bracket in quote for bracket in (_OPEN + _CLOSE if kind == "[" else "()")
        ):
            return None
        return self._marked(opening, closing.end(), [CitedWords(names, (quote,))])

    def _bare(self, opening: re.Match[str], kind: str) -> Mark | None:
        """Mark with names or numbers only. A quote may be before the bracket in quotation marks, or
        in it after a colon.
        """
        text = self._text
        simple = _SIMPLE[kind].match(text, opening.end())
        if simple is None:
            cut = _UNCLOSED.match(text, opening.end()) if kind == "[" else None
            if cut is None:
                return None
            # at the end of the text, the answer was cut off, which is not reported as a problem
            whole = cut.end() < len(text)
            cited = (CitedWords(self._names_of(cut[0], kind), ()),) if whole else ()
            return Mark(opening.start(), cut.end(), cited, "")
        content = text[opening.end() : simple.start("close")]
        names, certain = self._named_by(content, kind)
        if not names and not certain:
            return None
        quotes = _quotes_before(text, opening.start("open"))
        if (
            not quotes
            and len(spoken := content.partition(":")[2].strip(f" \t\n{_DOUBLE}{_SINGLE}\\")) > 1
        ):
            quotes = (spoken,)
        linked = _LINK.match(text, simple.end()) if kind == "[" else None
        number = content.strip(" \\")
        instead = "" if certain or linked else f"{opening[0][: -len(opening['open'])]}({number})"
        return self._marked(
            opening, simple.end(), [CitedWords(names, quotes)], instead, close=simple["close"]
        )

    def _marked(
        self,
        opening: re.Match[str],
        end: int,
        cited: Sequence[CitedWords],
        instead: str = "",
        close: str = "]",
    ) -> Mark:
        """Mark that includes as many closing brackets as opening brackets, and a link address that
        follows.
        """
        extra = len(opening["open"].lstrip("\\")) - len(close)
        if extra < 0:
            end += extra
        while extra > 0 and self._text[end : end + 1] in (*_CLOSE,):
            end = end + 1
            extra = extra - 1
        linked = _LINK.match(self._text, end) if opening["open"] != "(" else None
        return Mark(opening.start(), linked.end() if linked else end, tuple(cited), instead)

    def _names_of(self, head: str, kind: str) -> tuple[str, ...]:
        """Names of the sources before a quote."""
        said = _seen(head).strip(" :,;.-–—=")
        names = tuple(dict.fromkeys(f"S{number}" for number in _SOURCE.findall(said.casefold())))
        if names and (kind == "[" or _begins_with_name(said)):
            return names
        rest = _BEGINS.sub("", said.casefold(), count=1).strip(" :,")
        if title := self._titles.get(rest):
            return (title,)
        numbers = _numbers(rest) if kind == "[" and head.rstrip().endswith(":") else []
        return tuple(f"S{number}" for number in numbers)

    def _named_by(self, content: str, kind: str) -> tuple[tuple[str, ...], bool]:
        """Names of the sources in a bracket, and True if the bracket cannot be anything but a
        citation.
        """
        said = _seen(content).strip(" \\*_~")
        low = said.casefold()
        begun = _BEGINS.match(low)
        rest = low[begun.end() :] if begun else low
        if _begins_with_name(said):
            names = tuple(dict.fromkeys(f"S{number}" for number in _SOURCE.findall(low)))
            alone = not _SOURCE.sub("", low).strip(" ,;&") or self._known.issuperset(names)
            return (names, True) if kind == "[" or (alone and len(said) < 60) else ((), False)
        if kind == "(":
            return (), False
        if (
            title := self._titles.get(low)
            or self._titles.get(rest)
            or self._titles.get(low.partition(":")[0].strip())
        ):
            return (title,), True
        if _DAGGER.fullmatch(rest) or _AUTHOR.fullmatch(said) or _ONLY_CITES.match(low):
            return tuple(f"S{number}" for number in _numbers(re.split("[†‡]", rest)[0])), True
        return tuple(f"S{number}" for number in _numbers(rest)), begun is not None and bool(
            _numbers(rest)
        )


def _begins_with_name(said: str) -> bool:
    low = said.casefold()
    return _SOURCE.match(low, begun.end() if (begun := _BEGINS.match(low)) else 0) is not None


def _inside(spans: Sequence[tuple[int, int]], at: int) -> bool:
    number = bisect_right(spans, at, key=lambda span: span[1])  # ends are exclusive
    return number < len(spans) and spans[number][0] <= at


def _next(closings: Sequence[re.Match[str]], at: int) -> re.Match[str] | None:
    number = bisect_left(closings, at, key=lambda closing: closing.start())
    return closings[number] if number < len(closings) else None


def _seen(text: str, signs: bool = True) -> str:
    """Visible form of a short text, without tags and invisible characters, and with plain digits.
    `signs`: True to keep emoji.
    """
    shown = unicodedata.normalize("NFKC", _TAG.sub("", text))
    unseen = ("Cf", "Mn", "Me") if signs else ("Cf", "Mn", "Me", "So")
    kept = (c for c in shown if unicodedata.category(c) not in unseen)
    return " ".join("".join(str(unicodedata.decimal(c, c)) for c in kept).split())


def _numbers(said: str) -> list[str]:
    """Numbers of a list such as `1, 2 and 5-7`. A range gives its first number. Empty if there is
    any other text, or a number that begins with 0.
    """
    words = [word for word in re.split(r"[\s,、;&/|+]+", said) if word and word not in _JOINING]
    found = [_NUMBER.fullmatch(word) for word in words]
    return [number[1] for number in found if number] if all(found) else []


def _quotes_before(text: str, at: int) -> tuple[str, ...]:
    """Candidates for a quote that ends right before `at`, the shortest first."""
    before = text[max(at - LONGEST_QUOTE - 8, 0) : at].rstrip(" \t*_")
    if before[-1:] in (*".,;:!?",):
        before = before[:-1].rstrip("*_")
    end = before[-1:]
    if not end or end not in _DOUBLE + _SINGLE:
        return ()
    before = before[:-1].rpartition("\n\n")[2]
    opens = list(re.finditer(rf"(?<!\w)[{re.escape(_OPENED_BY.get(end, end))}](?=\S)", before))
    return tuple(before[match.end() :] for match in reversed(opens[-4:]))


def _code_spans(text: str) -> list[tuple[int, int]]:
    """Spans of fenced blocks and inline code, in order."""
    blocks: list[tuple[int, int]] = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif fence["mark"].startswith(opened["mark"]) and not fence["info"]:
            if opened["info"].lower() not in ("markdown", "md"):
                blocks.append((opened.start(), fence.end()))
            opened = None
    spans = list[tuple[int, int]]()
    at = 0
    for start, end in [*blocks, (len(text), len(text))]:
        spans += [*_inline_code(text, at, start), (start, end)]
        at = end
    return spans[:-1]


def _inline_code(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Spans between runs of equally many backticks, within a paragraph."""
    opened: dict[int, int] = {}
    done = start
    for ticks in _TICKS.finditer(text, start, end):
        length = len(ticks[0])
        line = text.rfind("\n", max(ticks.start() - 4, 0), ticks.start()) + 1
        if length >= 3 and not text[line : ticks.start()].strip() and (line or ticks.start() < 4):
            continue  # a fence that is not closed or holds prose
        before = opened.get(length, -1)
        if before >= done and "\n\n" not in text[before : ticks.start()][: 4 * LONGEST_QUOTE]:
            yield before, ticks.end()
            done = ticks.end()
            opened = {}
        else:
            opened[length] = ticks.start()


def find_lists(text: str) -> list[tuple[int, int]]:
    """Spans of a model's own lists of sources: a heading with its entries, and definitions of
    footnotes and links.
    """
    lines = _Lines(text)
    written = len(text.rstrip())
    found = list[tuple[int, int]]()
    number = 0
    while number < len(lines.spans):
        start, end = lines.spans[number]
        line = text[start:end]
        heading = _HEADING.fullmatch(_seen(line[:MAX_ENTRY], signs=False))
        last = lines.last_entry(number) if heading else number
        ends_text = lines.spans[last][1] >= written
        at_end = heading and heading["colon"] and start > 0 and ends_text
        listed = heading and not heading["rest"] and (last > number or ends_text)
        if not _inside(lines.code, start) and (_DEFINITION.match(line) or at_end or listed):
            found.append((start, lines.spans[last][1]))
            number = last
        number += 1
    return found


class _Lines:
    """Lines of a text, for finding the ends of lists."""

    def __init__(self, text: str) -> None:
        self._text, self.code = text, _code_spans(text)
        self.spans: list[tuple[int, int]] = []
        at = 0
        for line in text.splitlines(keepends=True):
            self.spans.append((at, at + len(line)))
            at += len(line)
        self._kinds = [self._kind(text, *span) for span in self.spans] + ["prose"]
        self._past_blank = self._first_not("blank")
        self._past_plain = self._first_not("plain")
        self._past_entries = self._first_not("entry", "blank")

    def _kind(self, text: str, start: int, end: int) -> str:
        line = text[start : min(end, start + MAX_ENTRY + 1)]
        if not line.strip():
            return "blank" if end - start <= MAX_ENTRY else "prose"
        if _ENTRY.match(line):
            return "entry"
        said = _QUOTED.sub(" ", line).strip(" \t\r\n*_")
        whole = _STOPPED.search(said) and len(said.split()) > 2
        return (
            "prose"
            if whole
            or len(line) > MAX_ENTRY
            or said[:1] == "#"
            or line.rstrip(" \t\r\n*_")[-1:] == ":"
            else "plain"
        )

    def _first_not(self, *kinds: str) -> list[int]:
        """Index, for each line, of the first line from there on whose kind is not in `kinds`."""
        found = [*range(len(self._kinds))]
        for number in range(len(found) - 2, -1, -1):
            found[number] = found[number + 1] if self._kinds[number] in kinds else number
        return found

    def last_entry(self, heading: int) -> int:
        """Last line of the list under a heading. The list consists of lines that are no sentences,
        followed by lines that begin like entries. Prose ends the list and is never removed.
        """
        begins = self._past_blank[heading + 1]
        ends = self._past_plain[begins]
        if ends > begins and self._kinds[ends] == "prose" and ends < len(self.spans):
            start = self.spans[ends][0]
            if self._text[start : start + 1].islower():  # the line continues a sentence
                return heading
        ends = self._past_entries[ends]
        while ends > heading + 1 and self._kinds[ends - 1] == "blank":
            ends -= 1
        return ends - 1
