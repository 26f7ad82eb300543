"""`hrm-agent eval-retrieval`: how well chunking and ranking methods find the passages that answer
questions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path

from hrm_agent.cli.common.arguments import Arguments, Parser
from hrm_agent.cli.common.output import Output, progress
from hrm_agent.cli.main import main
from hrm_agent.retrieval.chunking.chunker import DEFAULT_OVERLAP, DEFAULT_SIZE, STRATEGIES
from hrm_agent.retrieval.evaluation.configurations import DEFAULT, Configuration
from hrm_agent.retrieval.evaluation.evaluate import Settings, evaluate
from hrm_agent.retrieval.evaluation.questions import read_questions
from hrm_agent.retrieval.evaluation.reports import LEGEND, record, tables, write_results
from hrm_agent.retrieval.index.fusion import MODES

__all__ = ["run"]

_BASE = "langchain-located:512/64:words"
_USUAL = (DEFAULT, "langchain", *(name for name in STRATEGIES if name != "code"))


def run(words: list[str]) -> int:
    arguments = _parser().read(words)
    questions = read_questions(arguments.folder)
    chosen = {key: value for key, value in vars(arguments).items() if key in Settings.__slots__}
    settings, base = Settings(**chosen), Configuration.read(arguments.base)
    configurations = dict.fromkeys([base, *_configurations(arguments)])
    with progress("measuring", len(configurations)) as advance:
        found = evaluate(
            questions,
            list(configurations),
            base,
            settings,
            on_result=lambda done: advance(str(done)),
        )
    written = write_results(found, arguments.out, str(arguments.folder)) if arguments.out else []
    output = Output(as_json=arguments.json)
    output.result(record(found, str(arguments.folder)))
    for title, columns, rows in tables(found):
        output.table(columns, rows, title)
    output.say(LEGEND)
    if written:
        output.say(f"Written: {', '.join(map(str, written))}")
        if len(written) < 3:
            output.say("No picture: matplotlib is not installed. Run `pip install matplotlib`.")
    return 0


def _configurations(arguments: Arguments) -> Iterator[Configuration]:
    for mode, size, strategy in product(arguments.mode, arguments.size, arguments.strategy):
        overlap = 0.0 if strategy == "fixed" else arguments.overlap
        yield Configuration(strategy, size, round(size * overlap), mode)


def _parser() -> Parser:
    parser = Parser(
        "eval-retrieval",
        "Measure chunking strategies and rankings on questions whose answers are spans of the"
        " texts.",
    )
    usual = asdict(Settings())
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="corpora (*.md, *.txt) and questions.jsonl"
    )
    text = f"`default`, a strategy of `hrm-agent chunk`, or another library's [{' '.join(_USUAL)}]"
    parser.add_argument("--strategy", nargs="+", default=_USUAL, metavar="NAME", help=text)
    text = f"most tokens of a chunk [{DEFAULT_SIZE}]"
    parser.add_argument(
        "--size", nargs="+", type=int, default=[DEFAULT_SIZE], metavar="TOKENS", help=text
    )
    text = f"share of the size that neighbours have in common [{DEFAULT_OVERLAP}]"
    parser.add_argument(
        "--overlap", type=float, default=DEFAULT_OVERLAP, metavar="SHARE", help=text
    )
    parser.add_argument(
        "--mode", nargs="+", default=["words"], metavar="MODE", help=f"{', '.join(MODES)} [words]"
    )
    text = (
        "embeddings of vectors and hybrid, as for `hrm-agent index --vectors`"
        f" [{usual['embeddings']}]"
    )
    parser.add_argument("--embeddings", default=usual["embeddings"], metavar="NAME", help=text)
    text = f"what the others are compared with, as STRATEGY:SIZE/OVERLAP:MODE [{_BASE}]"
    parser.add_argument("--base", default=_BASE, metavar="CONFIGURATION", help=text)
    parser.add_argument(
        "--k", type=int, default=usual["k"], metavar="CHUNKS", help=f"chunks shown [{usual['k']}]"
    )
    text = f"tokens shown, in the measures with a token budget [{usual['budget']}]"
    parser.add_argument("--budget", type=int, default=usual["budget"], metavar="TOKENS", help=text)
    text = f"tokenizer that tokens are counted with [{usual['tokenizer']}]"
    parser.add_argument("--tokenizer", default=usual["tokenizer"], metavar="NAME", help=text)
    parser.add_argument(
        "--apart", action="store_true", help="an index for each corpus [one index of them all]"
    )
    text = f"resamples of the questions, for the intervals [{usual['resamples']}]"
    parser.add_argument("--resamples", type=int, default=usual["resamples"], metavar="N", help=text)
    parser.add_argument(
        "--seed", type=int, default=usual["seed"], help=f"seed of the resamples [{usual['seed']}]"
    )
    text = "write results.json, results.md and results.png into it"
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=text)
    return parser


if __name__ == "__main__":
    sys.exit(main(["eval-retrieval", *sys.argv[1:]]))
