"""Language of a text, given or guessed offline from the text itself, and the stemmer for it.

If a language is unknown or has no stemmer, its words are folded and not stemmed. langid's model
makes the guess (py3langid, 4.6 MB in its wheel). The model takes a second to load, with the first
document whose language is not given. The language of a question is never guessed, since questions
are too short.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from hrm_agent.errors import ConfigError, nearest

__all__ = [
    "AUTO",
    "NO_LANGUAGE",
    "STEMMERS",
    "check_language",
    "guess_language",
    "stemmer_of",
    "stemmer_version",
]

AUTO = "auto"
"""Setting by which the language of each text is guessed."""
NO_LANGUAGE = ""
"""Language of a text whose words are folded and not stemmed."""
# fmt: off
STEMMERS = {
    "ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek", "en": "english",
    "eo": "esperanto", "es": "spanish", "et": "estonian", "eu": "basque", "fa": "persian", "fi": "finnish",
    "fr": "french", "ga": "irish", "hi": "hindi", "hu": "hungarian", "hy": "armenian", "id": "indonesian",
    "it": "italian", "lt": "lithuanian", "ne": "nepali", "nl": "dutch", "no": "norwegian", "pl": "polish",
    "pt": "portuguese", "ro": "romanian", "ru": "russian", "sr": "serbian", "sv": "swedish", "ta": "tamil",
    "tr": "turkish", "yi": "yiddish",
}
# fmt: on
"""Snowball's names of algorithms by ISO 639-1 code."""
_NONE = "none"
_SAME = {"pcm": "en", "grc": "el", "nn": "no"}
"""Languages of the model that use the stemmer of another language. The likelihoods of both are
added.
"""
_LEAST = 0.25
"""Minimum likelihood of the most likely of about 130 languages. Below this, the language counts as
unknown. Prose reaches it after three to five words.
"""
_WINDOWS, _WINDOW = 4, 500
"""Number of windows of a long text from which its language is guessed, and characters of each
window. The beginning alone could be a licence in another language.
"""


def check_language(name: str) -> str:
    """Code of a language: `auto`, a code of `STEMMERS`, or `NO_LANGUAGE` for `none`. Raise
    `ConfigError` for anything else.
    """
    if name in (AUTO, NO_LANGUAGE, *STEMMERS):
        return name
    if name == _NONE:
        return NO_LANGUAGE
    known = [AUTO, _NONE, *STEMMERS]
    raise ConfigError(
        f"There is no language {name!r}.",
        f"{nearest(name, known)} Known: {', '.join(known)}.".strip(),
    )


def guess_language(text: str) -> str:
    """Guess the language of a text: a code of `STEMMERS`, or `NO_LANGUAGE`."""
    likely = dict[str, float]()
    if len(text) > _WINDOWS * _WINDOW:
        step = (len(text) - _WINDOW) // (_WINDOWS - 1)
        text = "\n".join(text[place * step : place * step + _WINDOW] for place in range(_WINDOWS))
    ranked: list[tuple[str, float]] = _model().rank(text)
    for found, share in ranked:
        name = _SAME.get(found, found)
        likely[name] = likely.get(name, 0.0) + share
    best = max(likely, key=likely.__getitem__)
    return best if best in STEMMERS and likely[best] >= _LEAST else NO_LANGUAGE


@lru_cache(maxsize=1)
def _model() -> Any:
    # The model is unpacked into a temporary file, which must not be logged as an effect of the
    # calling node.
    return Context().run(_read_model)


def _read_model() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def stemmer_of(language: str) -> Callable[[str], str] | None:
    """Function from a lower-case word to its stem (None for a language without a stemmer)."""
    if language not in STEMMERS:
        return None
    from snowballstemmer import stemmer

    return stemmer(STEMMERS[language]).stemWord


@lru_cache(maxsize=1)
def stemmer_version() -> str:
    """Name and version of the stemmer package. Stems of different versions may differ.
    snowballstemmer uses PyStemmer if it is installed.
    """
    for package in ("PyStemmer", "snowballstemmer"):
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
    raise ConfigError("snowballstemmer is not installed.", "Run `pip install snowballstemmer`.")
