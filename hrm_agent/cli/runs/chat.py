"""`hrm-agent chat`: a conversation with any graph whose input has messages. The user can go back to
any moment.

Input comes from a terminal with line editing, line by line from a pipe, or as one turn with --say.
Ctrl-C stops the running turn, not the program. If the process is killed during a turn, the turn is
resumed when the thread is opened again. An error in a turn is reported in one line, and the
conversation continues.
"""

from __future__ import annotations

from typing import Any

from hrm_agent.basics.files import json_line
from hrm_agent.cli.common.arguments import (
    Parser,
    add_config,
    config_from,
    print_config,
    refuse_broken,
)
from hrm_agent.cli.common.citations_view import citation_lines, source_data, without_list
from hrm_agent.cli.common.formatting import thought_lines, turn_lines
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.prompts import tell_unreached_prompts
from hrm_agent.cli.common.run_folder import DEFAULT_STORE
from hrm_agent.cli.runs.chat_commands import COMMANDS, GoOn, Leave, obey
from hrm_agent.cli.runs.chat_screen import Screen
from hrm_agent.cli.runs.chat_session import ChatSession, new_name
from hrm_agent.cli.runs.resume import value_of
from hrm_agent.cli.runs.run import RunConfig, header, known_config
from hrm_agent.errors import ConfigError, HrmError, RunError
from hrm_agent.runtime.selection.choice import is_choice
from hrm_agent.store import open_store
from hrm_agent.trajectory import RunStatus, StopReason, Trajectory
from hrm_agent.trajectory.words import REASONING, answer_thoughts

__all__ = ["run"]

_THOUGHT_LINES = 20
"""Maximum number of lines of thoughts that are shown before an answer."""


def run(words: list[str]) -> int:
    """Return 1 if a turn of `--say` failed, or if, without a terminal, a turn failed or a line was
    invalid. Return 0 otherwise.
    """
    parser = Parser(
        "chat", "Talk with a graph, turn by turn; /help at the prompt lists the commands."
    )
    parser.add_argument(
        "--thread", help="name of the conversation; one on record is resumed [a new one]"
    )
    parser.add_argument(
        "--say", metavar="TEXT", help="send one message, or answer the pending question, and exit"
    )
    parser.add_argument(
        "--store", default=DEFAULT_STORE, help=f"where it is recorded [{DEFAULT_STORE}]"
    )
    add_config(parser, RunConfig)
    arguments = parser.read(words)
    if arguments.dry_run and arguments.thread is None:
        print_config(config_from(arguments, RunConfig, "run"), "run", as_json=arguments.json)
        return 0
    with open_store(arguments.store) as store:
        known = store.journal.find_trajectory(arguments.thread) if arguments.thread else None
        if known is not None and is_choice(known.graph):
            raise RunError(
                f"Thread {known.thread_id!r} holds a --mode result, not a run.",
                f"Name a run: {known.thread_id}/0.",
            )
        before = known_config(store, known)
        config = config_from(arguments, RunConfig, "run", before)
        if arguments.dry_run:
            print_config(config, "run", as_json=arguments.json)
            return 0
    with open_store(arguments.store, allow=config.allowed_types) as store:
        screen = Screen(Output(as_json=arguments.json), list(COMMANDS))
        with ChatSession(store, config, screen) as session:
            session.check(before)
            session.stand_on(arguments.thread or new_name(), config)
            chat = _Chat(session)
            said = arguments.say
            code = chat.one_turn(said) if said is not None else chat.run_to_end()
            if session.known is not None and session.config.prompts:
                whole = store.journal.trajectory(session.known.id)
                tell_unreached_prompts(session.config.prompts, [whole])
            return code


class _Chat:
    """Conversation that processes input line by line."""

    def __init__(self, session: ChatSession) -> None:
        self._session = session
        self._screen = session.screen
        self._output = session.screen.output
        self._answers: dict[str, Any] = {}
        """Answers by question id, collected while several questions wait."""
        self._wrong = 0
        """Number of failed turns and of invalid lines."""

    def one_turn(self, text: str) -> int:
        """Run the turn of `--say`. Raises `HrmError`."""
        refuse_broken(text, "The message")
        if not text.strip():
            raise ConfigError("--say is empty.", "Write --say TEXT.")
        if self._session.cut_short and self._session.as_before:
            self._resume()
        self._take(text)
        return 1 if self._wrong else 0

    def run_to_end(self) -> int:
        """Process lines until the input ends."""
        known = self._session.known
        thread = self._session.thread
        turns = f"{len(known.prompts)} turns" if known is not None else "new"
        if self._screen.typed:
            self._output.say(
                f"{self._session.config.graph}, thread {thread} ({turns}). /help lists commands.",
                "dim",
            )
        if self._session.questions() is not None:
            self._ask()
        elif self._session.cut_short:
            self._resume_interrupted_turn()
        while True:
            prompt = "? " if self._session.questions() is not None else "> "
            try:
                line = self._screen.ask(prompt)
            except EOFError:
                break
            except KeyboardInterrupt:  # as in a shell, the line is dropped
                if not self._screen.typed:
                    raise
                self._output.say()
                continue
            except HrmError as error:
                self._complain(error)
                continue
            try:
                self._safely(lambda line=line: self._take(line))
            except (Leave, EOFError):  # the input may end while a command asks a question
                break
        self._part()
        return 1 if self._wrong and not self._screen.typed else 0

    def _resume_interrupted_turn(self) -> None:
        """Resume an interrupted turn. If the options have changed, only tell the user how to resume
        it, since recorded answers belong to requests with the old options.
        """
        if self._session.as_before:
            self._output.say("Resuming the interrupted turn.", style="dim")
            self._safely(self._resume)
        else:
            other = (
                "The interrupted turn had other options; /resume continues it with the present"
                " ones."
            )
            self._output.say(other, style="yellow")

    def _part(self) -> None:
        if self._screen.typed and self._session.known is not None:
            self._output.say(
                f"Saved; `hrm-agent chat --thread {self._session.thread}` continues it.",
                style="dim",
            )

    def _safely(self, do: Any) -> None:
        """Call a function, and report an `HrmError` in one line. The recorded part of a stopped
        turn is kept.
        """
        try:
            do()
        except KeyboardInterrupt:
            if not self._screen.typed:
                raise
            self._output.say(
                "Stopped; what was recorded is kept. Say something else, or /resume.",
                style="yellow",
            )
        except HrmError as error:
            self._complain(error)
            if self._session.cut_short:
                self._output.say(
                    "What the turn did so far is kept; /resume continues it.", style="yellow"
                )

    def _complain(self, error: HrmError) -> None:
        self._wrong += 1
        self._output.result({"event": "error", "error": error.message, "hint": error.hint})
        self._output.say(" ".join(str(error).split()), style="red")

    def _take(self, line: str) -> None:
        waits = self._session.questions()
        if line.startswith("/") and not line.startswith("//"):
            try:
                obey(self._session, line)
            except GoOn:
                self._resume()
            return
        text = line.removeprefix("/") if line.startswith("//") else line
        if waits is not None:
            self._answer(text)
        elif text:
            self._show(self._session.say(text))

    def _resume(self) -> None:
        self._show(self._session.resume())

    def _answer(self, text: str) -> None:
        """Answer one waiting question. Once all questions have answers, these are sent together. At
        a breakpoint, any line continues, even an empty line.
        """
        waits = [
            asked for asked in self._session.questions() or () if asked.id not in self._answers
        ]
        if waits and not text:
            return
        answer = value_of(text) if text else None
        if waits:
            self._answers[waits[0].id] = answer
            if len(waits) > 1:
                self._ask()
                return
        given = self._answers
        self._answers = {}
        self._show(self._session.resume(given or answer))

    def _ask(self) -> None:
        waits = [
            asked for asked in self._session.questions() or () if asked.id not in self._answers
        ]
        for asked in waits[:1]:
            value = asked.value if isinstance(asked.value, str) else json_line(asked.value)
            self._output.result({"event": "question", "id": asked.id, "value": asked.value})
            self._output.say(value, style="yellow")
        if not waits:
            self._output.say("Paused at a breakpoint; press Enter to continue.", style="yellow")

    def _show(self, trajectory: Trajectory) -> None:
        """Show the result of a turn, with the citations of its answer."""
        values = self._session.values
        thoughts = answer_thoughts(trajectory)
        thought = {REASONING: thoughts} if thoughts else {}
        self._output.result(
            {"event": "end", **header(trajectory), **thought, **source_data(values)}
        )
        self._wrong += trajectory.status is RunStatus.FAILED
        if trajectory.stop_reason is StopReason.INTERRUPT:
            self._answers = {}
            self._ask()
            return
        for line in thought_lines(thoughts, _THOUGHT_LINES):
            self._output.say(line, style="dim")
        answer = trajectory.answer
        for text, style in turn_lines(
            None,
            (
                trajectory.model_copy(update={"answer": without_list(answer, values)})
                if answer
                else trajectory
            ),
        ):
            self._output.say(text, style=style)
        for text, style in citation_lines(values) if trajectory.answer else ():
            self._output.say(text, style=style)
        if self._session.can_resume:
            self._output.say("/resume continues the turn where it stopped.", style="dim")
