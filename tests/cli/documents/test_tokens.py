"""`hrm-agent tokens`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hrm_agent.cli.common.text_files import HeldOut, Texts
from hrm_agent.retrieval import load_tokenizer
from hrm_agent.retrieval.tokenizers.statistics import measure
from tests.cli.conftest import Command
from tests.support.retrieval.documents import pdf

TEXT = "The models learn words from words, and the words are counted by 12 models.\n" * 60


@pytest.fixture(autouse=True)
def nothing_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the vocabularies that are cached on this machine."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "no"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "no"))


def test_tokenizers_side_by_side(hrm: Command, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.html").write_text("<p>naïve cafés</p>")
    (tmp_path / "c.pdf").write_bytes(pdf("Whales sing"))
    (tmp_path / "d.txt").write_text("naïve cafés " * 50, encoding="utf-16")
    done = hrm(
        "tokens", "a.txt", "b.html", "c.pdf", "d.txt", "--json", "--price", "2", "--price", "word=4"
    )
    assert done.code == 0
    rows = {row["tokenizer"]: row for row in done.json["tokenizers"]}
    assert [*rows] == ["character", "pieces", "word"]
    assert done.json["characters"] == rows["character"]["tokens"] == 4500 + 11 + 11 + 600
    assert done.json["words"] == 60 * 14 + 2 + 2 + 100
    assert rows["character"]["dollars"] == pytest.approx(5122 * 2e-6)
    assert rows["word"]["dollars"] == pytest.approx(rows["word"]["tokens"] * 4e-6)
    assert rows["pieces"]["unknown_rate"] is rows["pieces"]["round_trip"] is None
    assert rows["pieces"]["megabytes_per_second"] > 0
    table = hrm("tokens", "a.txt", "--tokenizer", "word", "--tokenizer", "word").out.splitlines()
    assert table[0] == "a.txt: 4,500 characters, 840 words"
    assert table[2].split()[:4] == ["word", "960", "4.69", "1.14"]


@pytest.mark.parametrize(
    ("kind", "out", "loads"),
    [
        ("bpe", "voc", "hf:voc/tokenizer.json"),
        ("bpe", "voc/v.tiktoken", "tiktoken:voc/v.tiktoken"),
        ("sentencepiece-bpe", "v.model", "sentencepiece:v.model"),
        ("word", "v.json", "hf:v.json"),
    ],
)
def test_a_vocabulary_is_learnt_and_measured_on_what_was_held_out(
    kind: str, out: str, loads: str, hrm: Command, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text(TEXT * 5 + "Zürich£")
    words = ("tokens", "a.txt", "--train", kind, "--vocab", "330", "--out", out, "--json")
    done = hrm(*words)
    assert done.code == 0, done.err
    assert done.json["held_out"]["every"] == 10
    assert 0.05 < done.json["characters"] / (len(TEXT) * 5) < 0.15
    assert [row["tokenizer"] for row in done.json["tokenizers"]] == [
        loads,
        "character",
        "pieces",
        "word",
    ]
    assert done.json["learnt_characters"] + done.json["characters"] == len(TEXT) * 5 + len(
        "Zürich£"
    )
    first = load_tokenizer(loads).count(TEXT)
    # over what it wrote itself
    people = hrm(*words[:-1], "--tokenizer", loads, "--price", f"{loads}=3")
    assert people.code == 0
    assert "one in 10 of" in people.out and f"{loads} was learnt from" in people.out
    assert "measuring, MB 1/1" in people.err  # not also as the file that was there before
    assert load_tokenizer(loads).count(TEXT) == first


def test_the_parts_are_the_whole(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(("\ufeff" + (TEXT + "日本語\r\n") * 40).encode())
    texts = Texts([file])
    assert "".join(texts.pieces(1_000)) == (TEXT + "日本語\r\n") * 40
    for name in ("pieces", "word", "character"):
        tokenizer = load_tokenizer(name)
        whole = measure(tokenizer, ["".join(texts.pieces())]).tally
        assert measure(tokenizer, texts.pieces(1_000)).tally == whole
    held = HeldOut.of(texts)
    assert sorted("".join([*held.held(), *held.learnt()])) == sorted("".join(texts.pieces()))
    few = HeldOut.of(texts, most=texts.bytes // 4)
    assert 0.2 < len("".join(few.learnt())) / len("".join(held.learnt())) < 0.3


def test_memory_does_not_grow_with_the_file(hrm: Command, tmp_path: Path) -> None:
    import tracemalloc

    (tmp_path / "big.txt").write_text(TEXT * 4_000)  # 18 MB
    tracemalloc.start()
    assert hrm("tokens", "big.txt", "--tokenizer", "character").code == 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 120 * 2**20


def test_mistakes_are_explained(hrm: Command, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "short.txt").write_text("word " * 9)
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "binary").write_bytes(b"\0\1" * 99)
    (tmp_path / "broken.pdf").write_bytes(pdf("x")[:60])
    (tmp_path / "notes.json").write_text("{}")
    train = ("a.txt", "--train", "bpe", "--out")
    for words, said in (
        (("missing.txt",), "There is no file missing.txt"),
        ((".",), "Name its files"),
        (("/dev/null",), "is not a regular file"),
        (("empty.txt",), "There is no text in empty.txt"),
        (("a.txt", "binary"), "binary is not text: it has NUL bytes"),
        (("broken.pdf",), "No text can be read from broken.pdf"),
        (("a.txt", "--tokenizer", "wrod"), "Did you mean 'word'?"),
        (("a.txt", "--tokenizer", "tiktoken:cl100k_base"), "TIKTOKEN_CACHE_DIR"),
        (("a.txt", "--price", "cheap"), "is not a price"),
        (("a.txt", "--price", "-1"), "is not a price"),
        (("a.txt", "--price", "wrod=1"), "Did you mean 'word'?"),
        (("a.txt", "--train", "bpe"), "--train and --out can only be given together"),
        (("a.txt", "--train", "bep", "--out", "x"), "Did you mean 'bpe'?"),
        ((*train, "x.txt"), "Name a folder, or x.json"),
        ((*train, "notes.json"), "exists already and is not a bpe vocabulary"),
        ((*train, "a.txt/x"), "cannot be written"),
        ((*train, "x", "--vocab", "9"), "Choose a size of at least 256"),
        ((*train, "x", "--train-mb", "0"), "a number above 0"),
        (("short.txt", "--train", "bpe", "--out", "x"), "too short to learn"),
    ):
        done = hrm("tokens", *words, "--json")
        assert done.code == 2, words
        assert said in " ".join(json.loads(done.err.splitlines()[-1]).values()), (words, done.err)
    assert (tmp_path / "notes.json").read_text() == "{}"


def test_a_file_that_may_not_be_read(
    hrm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text(TEXT)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may read everything
    done = hrm("tokens", "a.txt")
    assert (done.code, "a.txt cannot be read: Permission denied" in done.err) == (2, True)
