"""`hrm-agent index`: builds an index of document folders that agents search and cite from."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections import Counter
from pathlib import Path

from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.output import Output, progress
from hrm_agent.cli.main import main
from hrm_agent.errors import ConfigError
from hrm_agent.retrieval.index.database import DocumentIndex
from hrm_agent.retrieval.index.folder import (
    Chunking,
    Done,
    FileOutcome,
    FolderReport,
    index_folder,
    remove_folder,
)
from hrm_agent.retrieval.index.reading import MAX_BYTES
from hrm_agent.retrieval.index.walk import files_in, no_document
from hrm_agent.retrieval.languages import STEMMERS

__all__ = ["DEFAULT_INDEX", "renewal", "run"]

DEFAULT_INDEX = "runs/index.db"


def run(words: list[str]) -> int:
    """Return 1 if a file could not be read or the index is empty. All readable files are indexed in
    any case.
    """
    parser = Parser(
        "index",
        "Index the text, Markdown, HTML and PDF files of folders; only what changed is read again.",
    )
    parser.add_argument(
        "folders",
        type=Path,
        nargs="*",
        metavar="DIR",
        help="a folder; names that begin with a dot are left out",
    )
    parser.add_argument(
        "--store", type=Path, default=DEFAULT_INDEX, metavar="FILE", help=f"index [{DEFAULT_INDEX}]"
    )
    parser.add_argument(
        "--remove",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="remove a folder's documents",
    )
    text = (
        f"language that words are stemmed in: {', '.join(STEMMERS)}; auto (each document's own is"
        " guessed) or none"
    )
    parser.add_argument(
        "--language", metavar="CODE", help=f"{text} [auto for a new index, else unchanged]"
    )
    parser.add_argument(
        "--vectors",
        metavar="NAME",
        help="embeddings: static, static:64, package.module:attribute or none [unchanged]",
    )
    usual = Chunking()
    parser.add_argument(
        "--strategy",
        default=usual.strategy,
        metavar="NAME",
        help=f"chunking strategy [{usual.strategy}]",
    )
    parser.add_argument(
        "--tokenizer",
        default=usual.tokenizer,
        metavar="NAME",
        help=f"tokenizer that sizes are counted with [{usual.tokenizer}]",
    )
    parser.add_argument(
        "--size",
        type=int,
        default=usual.size,
        metavar="TOKENS",
        help=f"most tokens of a chunk [{usual.size}]",
    )
    parser.add_argument(
        "--overlap",
        type=float,
        default=usual.overlap,
        metavar="SHARE",
        help=f"share of the size that neighbours have in common [{usual.overlap}]",
    )
    text = "index text of HTML pages that a browser would not show, too"
    parser.add_argument("--hidden-text", action="store_true", help=text)
    text = "code, data and what programs make (runs, build, *.py, *.json and the like), too"
    parser.add_argument("--all-files", action="store_true", help=text)
    text = "follow links out of the folder, to files and folders"
    parser.add_argument("--follow-links", action="store_true", help=text)
    largest = MAX_BYTES // 2**20
    parser.add_argument(
        "--max-mb", type=float, default=largest, metavar="MB", help=f"largest file read [{largest}]"
    )
    arguments = parser.read(words)
    if not (arguments.folders or arguments.remove):
        raise ConfigError("There is no folder to index.", "Name a folder: `hrm-agent index DIR`.")
    clock = time.perf_counter()
    files = {
        folder: files_in(folder, follow_links=arguments.follow_links)
        for folder in arguments.folders
    }
    left_out = Counter[str]()
    if not arguments.all_files:
        left_out = Counter(
            why for names in files.values() for name in names if (why := no_document(name))
        )
        files = {
            folder: [name for name in names if no_document(name) is None]
            for folder, names in files.items()
        }
    chunking = Chunking(arguments.strategy, arguments.tokenizer, arguments.size, arguments.overlap)
    chunking.check()
    embeddings = None if arguments.vectors == "none" else arguments.vectors
    create = bool(arguments.folders)
    if arguments.vectors == "none" and arguments.store.is_file():
        with DocumentIndex(arguments.store) as index:
            index.drop_vectors()
    changes = {"language": arguments.language, "embeddings": embeddings}
    with DocumentIndex(arguments.store, create=create, **changes) as index:
        report = FolderReport()
        report.warnings += renewal(index)
        for folder in arguments.remove:
            report.add(remove_folder(index, folder))
        _update(index, files, chunking, arguments, report)
        documents = _say(index, report, left_out, Output(as_json=arguments.json), clock)
    return 1 if report.failed or (create and not documents) else 0


def _update(
    index: DocumentIndex,
    files: dict[Path, list[str]],
    chunking: Chunking,
    arguments: Namespace,
    report: FolderReport,
) -> None:
    with progress("indexing", sum(map(len, files.values()))) as advance:

        def on_file(outcome: FileOutcome) -> None:
            if outcome.done is not Done.REMOVED:
                advance(outcome.file)

        reading = {"hidden_text": arguments.hidden_text, "follow_links": arguments.follow_links}
        limit = int(arguments.max_mb * 2**20)
        for folder, names in files.items():
            report.add(
                index_folder(
                    index,
                    folder,
                    names,
                    chunking=chunking,
                    max_bytes=limit,
                    **reading,
                    on_file=on_file,
                )
            )
    if index.embeddings and (bare := index.without_vectors()):
        with progress("vectors", len(bare)) as advance:
            for file in bare:
                index.add_vectors(file)
                advance(file)


def renewal(index: DocumentIndex) -> list[str]:
    """Message about documents whose words were indexed again when the index was opened (empty if
    none were).
    """
    what = "the language, this program or its stemmers have changed"
    return (
        [f"The words of {index.renewed} documents were indexed again: {what}."]
        if index.renewed
        else []
    )


def _say(
    index: DocumentIndex, report: FolderReport, left_out: Counter[str], output: Output, clock: float
) -> int:
    """Print a summary and return the number of documents."""
    documents, chunks = index.size()
    seconds = time.perf_counter() - clock
    skipped = [outcome for outcome in report.outcomes if outcome.done is Done.SKIPPED]
    rows = [{"file": o.file, "why": str(o.why), "reason": o.reason} for o in skipped]
    about = {"store": str(index.path), "language": index.language or "none"}
    about |= {"vectors": index.embeddings, "folders": index.folders()}
    totals = {"documents": documents, "chunks": chunks, "seconds": seconds}
    skips = {"files_skipped": rows, "left_out": dict(left_out)}
    output.result({**about, **report.counts, **totals, **skips, "warnings": report.warnings})
    if rows:
        output.table(("skipped", "why", "reason"), [tuple(row.values()) for row in rows])
    if left_out:
        said = "; ".join(f"{count} {why}" for why, count in left_out.most_common())
        output.say(f"No documents, left out (--all-files takes them): {said}")
    for warning in report.warnings:
        output.say(f"warning: {warning}", "yellow")
    counts = (
        ", ".join(f"{count} {name}" for name, count in report.counts.items() if count)
        or "nothing to do"
    )
    output.say(
        f"{counts}: {documents} documents, {chunks} chunks in {index.path} ({seconds:.1f} s)"
    )
    return documents


if __name__ == "__main__":
    sys.exit(main(["index", *sys.argv[1:]]))
