"""`hrm-agent index`: a folder of documents into an index that agents search and cite from."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from hrm_agent.cli.arguments import Parser
from hrm_agent.cli.main import main
from hrm_agent.cli.output import Output, progress
from hrm_agent.retrieval.index.database import DocumentIndex
from hrm_agent.retrieval.index.folder import Chunking, Done, FileOutcome, FolderReport, files_in, index_folder
from hrm_agent.retrieval.index.reading import MAX_BYTES

__all__ = ["run"]

DEFAULT_INDEX = "runs/index.db"


def run(words: list[str]) -> int:
    """1 if a file could not be read, or nothing was found to index; what could be read is indexed."""
    arguments = _parser().read(words)
    files, clock = files_in(arguments.folder), time.perf_counter()
    chunking = Chunking(arguments.strategy, arguments.tokenizer, arguments.size, arguments.overlap)
    with DocumentIndex(arguments.store, create=True) as index, progress("indexing", len(files)) as advance:

        def on_file(outcome: FileOutcome) -> None:
            if outcome.done is not Done.REMOVED:
                advance(outcome.file)

        limit = int(arguments.max_mb * 2**20)
        report = index_folder(index, arguments.folder, files, chunking=chunking, max_bytes=limit, on_file=on_file)
        documents, chunks = index.size()
    seconds = time.perf_counter() - clock
    _say(Output(as_json=arguments.json), arguments.store, report, documents, chunks, seconds)
    return 1 if report.failed or not documents else 0


def _parser() -> Parser:
    parser = Parser(
        "index", "Index the text, Markdown, HTML and PDF files of a folder; only what changed is read again."
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder; names that begin with a dot are left out")
    parser.add_argument("--store", type=Path, default=DEFAULT_INDEX, metavar="FILE", help=f"index [{DEFAULT_INDEX}]")
    usual = Chunking()
    parser.add_argument("--strategy", default=usual.strategy, metavar="NAME", help=f"of chunking [{usual.strategy}]")
    parser.add_argument("--tokenizer", default=usual.tokenizer, metavar="NAME", help=f"[{usual.tokenizer}]")
    parser.add_argument("--size", type=int, default=usual.size, metavar="TOKENS", help=f"of a chunk [{usual.size}]")
    parser.add_argument("--overlap", type=float, default=usual.overlap, metavar="SHARE", help=f"[{usual.overlap}]")
    largest = MAX_BYTES // 2**20
    parser.add_argument("--max-mb", type=float, default=largest, metavar="MB", help=f"largest file read [{largest}]")
    return parser


def _say(output: Output, store: Path, report: FolderReport, documents: int, chunks: int, seconds: float) -> None:
    skipped = [outcome for outcome in report.outcomes if outcome.done is Done.SKIPPED]
    rows = [{"file": o.file, "why": str(o.why), "reason": o.reason} for o in skipped]
    totals = {"documents": documents, "chunks": chunks, "seconds": seconds}
    output.result({"store": str(store), **report.counts, **totals, "files_skipped": rows})
    if rows:
        output.table(("skipped", "why", "reason"), [tuple(row.values()) for row in rows])
    counts = ", ".join(f"{count} {name}" for name, count in report.counts.items() if count)
    output.say(f"{counts}: {documents} documents, {chunks} chunks in {store} ({seconds:.1f} s)")


if __name__ == "__main__":
    sys.exit(main(["index", *sys.argv[1:]]))
