"""`hrm-agent completion SHELL`: completion script of commands and flags for bash, zsh or fish.

The script contains the commands and flags of this version, so pressing Tab does not start Python.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module

from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.main import COMMANDS, module_of

__all__ = ["run", "words_by_command"]

_DESCRIPTION = """\
Print a script that completes commands and flags. In ~/.bashrc or ~/.zshrc:

    source <(hrm-agent completion bash)
    source <(hrm-agent completion zsh)

and for fish, once: hrm-agent completion fish > ~/.config/fish/completions/hrm-agent.fish

The one for zsh begins zsh's own completion (compinit) where it has not begun; put it after a compinit of yours."""
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9.-]*[a-z0-9]")
_BASH = """\
_hrm_agent() {
  local words
  case "${COMP_WORDS[1]:-} ${COMP_WORDS[2]:-}" in
%s
    *) words="" ;;
  esac
  [ "$COMP_CWORD" -gt 1 ] || words="%s"
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _hrm_agent hrm-agent
"""
_ZSH = """\
whence compdef >/dev/null || { autoload -U +X compinit && compinit -i; }
autoload -U +X bashcompinit && bashcompinit
"""
"""Start of the zsh script. bashcompinit needs zsh's own completion, which an empty `.zshrc` does
not start.
"""


def run(words: list[str]) -> int:
    parser = Parser("completion", _DESCRIPTION)
    parser.add_argument("shell", choices=sorted(_SCRIPTS), help="the shell that the script is for")
    arguments = parser.read(words)
    sys.stdout.write(_SCRIPTS[arguments.shell](words_by_command()))
    return 0


def words_by_command() -> dict[str, list[str]]:
    """Possible words after each command: its flags, and its actions if it has several (`train
    rl`).
    """
    found: dict[str, list[str]] = {}
    for name in COMMANDS:
        try:
            module = import_module(module_of(name))
        # packages of the command are not installed, so list the command without flags
        except ImportError:
            found[name] = []
            continue
        actions: Mapping[str, str] = getattr(module, "ACTIONS", {})
        found[name] = [*actions, *_flags(module.run, [])]
        found |= {f"{name} {action}": _flags(module.run, [action]) for action in actions}
    return found


def _flags(command: Callable[[list[str]], int], words: Sequence[str]) -> list[str]:
    shown = io.StringIO()
    with redirect_stdout(shown), suppress(SystemExit, ImportError):
        command([*words, "--help-all"])
    return list(dict.fromkeys(_FLAG.findall(shown.getvalue())))


def _bash(words: Mapping[str, Sequence[str]]) -> str:
    actions_first = sorted(words, key=lambda command: " " not in command)
    cases = [
        f'    "{command}{"" if " " in command else " "}"*) words="{" ".join(words[command])}" ;;'
        for command in actions_first
    ]
    return _BASH % ("\n".join(cases), " ".join(COMMANDS))


def _zsh(words: Mapping[str, Sequence[str]]) -> str:
    return _ZSH + _bash(words)


def _fish(words: Mapping[str, Sequence[str]]) -> str:
    lines = [
        f"complete -c hrm-agent -n __fish_use_subcommand -f -a {name} -d '{_quoted(text)}'"
        for name, text in COMMANDS.items()
    ]
    for command, following in words.items():
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.split())
        for word in following:
            kind = f"-l {word[2:]}" if word.startswith("--") else f"-f -a {word}"
            lines.append(f"complete -c hrm-agent -n '{seen}' {kind}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


_SCRIPTS: Mapping[str, Callable[[Mapping[str, Sequence[str]]], str]] = {
    "bash": _bash,
    "fish": _fish,
    "zsh": _zsh,
}
