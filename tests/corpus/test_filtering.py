"""Tests which documents the filters of `prepare` drop and count."""

import itertools
import json
import pathlib
import random
import sys

import numpy as np
import pytest
from text_files import LETTERS, contents_of, names_in, text_of_words

pytest.importorskip("datasketch", reason="the extra [data] is not there")

from bert_jax.cli.main import execute
from bert_jax.corpus import filters as filters_module
from bert_jax.corpus import prepare, reader, sources, tokenize
from bert_jax.corpus.filters import Filters
from bert_jax.text.vocabulary import SPECIAL_TOKENS

PIECES = [*SPECIAL_TOKENS, *LETTERS, *(f"##{c}" for c in LETTERS)]
KEPT_TEXT = "the cat sat on a mat and the dog lay on a rug by the door"
REPEATED_TEXT = "so it goes on and " * 8
TEXT_OF_SYMBOLS = "tea | milk | $ 1 + 1 = 2 | ~ ~ ~ | rye < oats"
SHORT_TEXT = "not much"
ALL_FILTERS = Filters("NFKC", 5, 0.1, 0.3, True, 0.7)


@pytest.fixture
def in_process(monkeypatch):
  """Runs `prepare` in one process, because starting others takes seconds."""

  def ordered_map(make_function, arguments, inputs, processes):
    yield from map(make_function(*arguments), inputs)

  monkeypatch.setattr(tokenize, "ordered_map", ordered_map)
  monkeypatch.setattr(tokenize, "_BATCH_CHARS", 1500)


@pytest.fixture
def vocab(tmp_path):
  path = tmp_path / "vocab.txt"
  path.write_text("\n".join(PIECES) + "\n")
  return str(path)


def write(path, texts) -> str:
  path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
  return str(path)


def texts_of(folder: str) -> list[str]:
  """Returns all documents of a prepared folder, split after split."""
  prepared = reader.open_prepared(folder)
  texts = []
  for corpus in prepared.splits.values():
    starts = np.asarray(corpus.sentences)[np.asarray(corpus.documents)]
    for begin, end in itertools.pairwise(starts):
      pieces = [prepared.vocab[i] for i in corpus.tokens[begin:end]]
      texts.append(" ".join(pieces).replace(" ##", ""))
  return texts


# NEARER differs from NEAR only in its last words.
NEAR = text_of_words(*range(300))
NEARER = text_of_words(*range(297), 5000, 5001)
CORPUS = {
  "kept": KEPT_TEXT,
  "near": NEAR,
  "copy": "  the cat sat on a mat\nand the dog lay on a rug by the door\n\n",
  "nearer": NEARER,
  "short": SHORT_TEXT,
  "signs": TEXT_OF_SYMBOLS,
  "loop": REPEATED_TEXT,
  "nearer again": NEARER,
  "ligature": "ﬁve ﬂags ﬂy ﬁne over there",
}


def counts(*names: str) -> dict[str, int]:
  words = sum(len(CORPUS[name].split()) for name in names)
  return {"documents": len(names), "words": words}


def test_each_filter_drops_and_counts(tmp_path, vocab, in_process):
  path = write(tmp_path / "in.jsonl", CORPUS.values())

  def dropped(**filters) -> dict[str, dict[str, int]]:
    output = str(tmp_path / "_".join(map(str, filters.values())))
    meta = prepare.prepare(path, vocab, output, filters=Filters(**filters))
    assert meta["filtered"]["read"] == counts(*CORPUS)
    total = {
      key: sum(c[key] for c in meta["filtered"]["dropped"].values())
      for key in ("documents", "words")
    }
    remaining = meta["filtered"]["kept"]
    assert {k: remaining[k] + total[k] for k in remaining} == counts(*CORPUS)
    assert len(texts_of(output)) == remaining["documents"]
    assert {k: meta["options"][k] for k in filters} == filters
    return meta["filtered"]["dropped"]

  assert dropped(min_words=3) == {"min_words": counts("short")}
  assert dropped(min_words=2) == {"min_words": counts()}
  assert dropped(max_symbols=0.1) == {"max_symbols": counts("signs")}
  assert dropped(max_repetition=0.3) == {"max_repetition": counts("loop")}
  exact = {"drop_duplicates": counts("copy", "nearer again")}
  assert dropped(drop_duplicates=True) == exact
  near = counts("copy", "nearer", "nearer again")
  assert dropped(near_duplicates=0.8) == {"near_duplicates": near}
  assert dropped(**ALL_FILTERS._asdict()) == {
    "min_words": counts("short"),
    "max_symbols": counts("signs"),
    "max_repetition": counts("loop"),
    # "nearer again" counts as an exact copy, although "nearer" is dropped.
    "drop_duplicates": counts("copy", "nearer again"),
    "near_duplicates": counts("nearer"),
  }


def test_all_together_keep_the_first_and_normalise(tmp_path, vocab, in_process):
  path = write(tmp_path / "in.jsonl", CORPUS.values())
  output = str(tmp_path / "out")
  meta = prepare.prepare(path, vocab, output, filters=ALL_FILTERS, heldout=0)
  assert texts_of(output) == [KEPT_TEXT, NEAR, "five flags fly fine over there"]
  assert meta["filtered"]["normalised"] == {"documents": 1}
  assert meta["filtered"]["kept"] == counts("kept", "near", "ligature")
  # In the opposite order, other copies come first, and these are kept.
  path = write(tmp_path / "other.jsonl", list(CORPUS.values())[::-1])
  other_output = str(tmp_path / "other")
  prepare.prepare(path, vocab, other_output, filters=ALL_FILTERS, heldout=0)
  expected = ["five flags fly fine over there", NEARER, KEPT_TEXT]
  assert texts_of(other_output) == expected
  # Without filters there is no report, and nothing is dropped.
  meta = prepare.prepare(path, vocab, str(tmp_path / "none"))
  assert "filtered" not in meta and not set(meta["options"]) & set(
    ALL_FILTERS._fields
  )
  assert sum(s["documents"] for s in meta["splits"].values()) == len(CORPUS)


def test_sentences_stay_sentences(tmp_path, vocab, in_process):
  """Filtered text has the sentences of a text that never had bad documents."""
  dirty = "ﬁrst a line\nthe second is longer\n\nshort\n\nthird ﬁne line here\n"
  clean = "first a line\nthe second is longer\n\nthird fine line here\n"
  corpora = []
  for name, text in (("dirty", dirty), ("clean", clean)):
    path = tmp_path / f"{name}.txt"
    path.write_text(text)
    output = str(tmp_path / name)
    prepare.prepare(
      str(path), vocab, output, filters=Filters("NFKC", 2), heldout=0
    )
    corpora.append(reader.open_prepared(output).splits["train"])
  assert corpora[0].num_documents == 2 and len(corpora[0].sentences) == 4
  for filtered_array, clean_array in zip(*corpora, strict=True):
    np.testing.assert_array_equal(filtered_array, clean_array)


def many_texts() -> list[str]:
  rng = random.Random(0)
  texts = []
  for k in range(40):
    words = list(range(1000 * k, 1000 * k + rng.randint(2, 60)))
    texts += [text_of_words(*words)] * rng.randint(1, 2)
    texts += [text_of_words(*words[:-1])] * rng.randint(0, 1)
  rng.shuffle(texts)
  return texts


def test_bytes_do_not_depend_on_processes(tmp_path, vocab, monkeypatch):
  path = write(tmp_path / "in.jsonl", many_texts())
  folders = []
  for processes, size in ((1, 2**18), (3, 700)):
    monkeypatch.setattr(tokenize, "_BATCH_CHARS", size)
    output = str(tmp_path / f"out{processes}")
    meta = prepare.prepare(
      path, vocab, output, processes=processes, filters=ALL_FILTERS
    )
    folders.append(contents_of(output))
  assert folders[0] == folders[1]
  dropped = meta["filtered"]["dropped"]
  assert all(
    dropped[name]["documents"]
    for name in ("min_words", "drop_duplicates", "near_duplicates")
  )


def test_an_interrupted_pass_goes_on(
  tmp_path, vocab, in_process, monkeypatch, capfd
):
  path = write(tmp_path / "in.jsonl", many_texts())
  whole_output, output = str(tmp_path / "whole"), str(tmp_path / "out")
  prepare.prepare(path, vocab, whole_output, filters=ALL_FILTERS)
  judge, calls = filters_module._EarlierDocuments.judge, []

  def interrupt(self, row):
    calls.append(row)
    if len(calls) in (30, 70):
      raise KeyboardInterrupt
    return judge(self, row)

  monkeypatch.setattr(filters_module._EarlierDocuments, "judge", interrupt)
  for _ in range(2):
    with pytest.raises(KeyboardInterrupt):
      prepare.prepare(path, vocab, output, filters=ALL_FILTERS, save_seconds=0)
    # Bytes that were written after the last save must be dropped.
    path_of_rows = pathlib.Path(f"{output}.partial", filters_module.ROWS_FILE)
    with path_of_rows.open("ab") as f:
      f.write(b"torn")
  with pytest.raises(ValueError, match=r"min_words was 5, is None"):
    prepare.prepare(
      path, vocab, output, filters=ALL_FILTERS._replace(min_words=None)
    )
  capfd.readouterr()
  prepare.prepare(path, vocab, output, filters=ALL_FILTERS, save_seconds=0)
  assert "filters: going on after" in capfd.readouterr().err
  # Documents with fewer than five words are dropped before they are compared.
  judged = sum(len(t.split()) >= 5 for t in many_texts())
  assert judged < len(calls) < judged + 30
  assert contents_of(output) == contents_of(whole_output)


def test_a_finished_pass_is_not_repeated(
  tmp_path, vocab, in_process, monkeypatch
):
  path = write(tmp_path / "in.jsonl", many_texts())
  whole_output, output = str(tmp_path / "whole"), str(tmp_path / "out")
  prepare.prepare(path, vocab, whole_output, filters=ALL_FILTERS)
  append, calls = prepare.SplitWriter.append, []

  def interrupt(self, split, documents):
    calls.append(split)
    if len(calls) == 10:
      raise KeyboardInterrupt
    append(self, split, documents)

  monkeypatch.setattr(prepare.SplitWriter, "append", interrupt)
  arguments = {"filters": ALL_FILTERS, "save_seconds": 0}
  with pytest.raises(KeyboardInterrupt):
    prepare.prepare(path, vocab, output, **arguments)
  monkeypatch.setattr(filters_module, "make_judge", None)
  prepare.prepare(path, vocab, output, **arguments)
  assert contents_of(output) == contents_of(whole_output)


def test_another_filter_is_another_folder(tmp_path, vocab, in_process, capfd):
  path = write(tmp_path / "in.jsonl", CORPUS.values())
  output = str(tmp_path / "out")
  base_filters = Filters(near_duplicates=0.8)
  meta = prepare.prepare(path, vocab, output, filters=base_filters)
  assert prepare.prepare(path, vocab, output, filters=base_filters) == meta
  assert "nothing to do" in capfd.readouterr().err
  for other_filters, message in (
    (Filters(near_duplicates=0.7), "near_duplicates was 0.8, is 0.7"),
    (Filters(), "near_duplicates was 0.8, is None"),
    (base_filters._replace(min_words=3), "min_words was None, is 3"),
  ):
    with pytest.raises(ValueError, match=message):
      prepare.prepare(path, vocab, output, filters=other_filters)
  # The fingerprint differs even if the other filter drops nothing.
  with_min_words = base_filters._replace(min_words=2)
  other_meta = prepare.prepare(
    path, vocab, str(tmp_path / "other"), filters=with_min_words
  )
  assert other_meta["splits"] == meta["splits"]
  assert other_meta["fingerprint"] != meta["fingerprint"]


def run(monkeypatch, *arguments) -> None:
  execute(["prepare", *map(str, arguments)])


def test_the_report(tmp_path, vocab, in_process, monkeypatch, capfd):
  path = write(tmp_path / "in.jsonl", CORPUS.values())
  output = tmp_path / "out"
  files = ["--input", path, "--vocab", vocab, "--output", output]
  filter_flags = "--normalise NFKC --min-words 5 --max-symbols 0.1"
  filter_flags += (
    " --max-repetition 0.3 --drop-duplicates --near-duplicates 0.7"
  )
  run(monkeypatch, *files, *filter_flags.split())
  lines = capfd.readouterr().err.splitlines()
  words = sum(len(text.split()) for text in CORPUS.values())
  first = lines.index(f"filters: 9 documents, {words} words read")
  assert lines[first + 1 : first + 8] == [
    "  normalise: 1 documents changed",
    "  min_words: 1 documents, 2 words dropped",
    "  max_symbols: 1 documents, 18 words dropped",
    "  max_repetition: 1 documents, 40 words dropped",
    "  drop_duplicates: 2 documents, 315 words dropped",
    "  near_duplicates: 1 documents, 299 words dropped",
    "  kept: 3 documents, 322 words",
  ]
  assert filters_module.ROWS_FILE not in names_in(output)


@pytest.mark.parametrize(
  "arguments, message",
  [
    ("--min-words 0", "--min-words=0 is less than one"),
    ("--min-words many", "argument --min-words: invalid int value: 'many'"),
    ("--max-symbols 1", "--max-symbols=1.0 is not a share, from 0 to below 1"),
    ("--max-symbols -0.1", "--max-symbols=-0.1 is not a share"),
    ("--max-repetition nan", "--max-repetition=nan is not a share"),
    ("--near-duplicates 1", "For exact copies, use --drop-duplicates"),
    ("--near-duplicates 0.999", "it must be above 0 and at most 0.99"),
    ("--near-duplicates 0", "--near-duplicates=0.0 is no similarity"),
    ("--normalise NFD", "invalid choice: 'NFD'"),
    (
      "--min-words 999",
      "drop all 9 documents, most by --min-words=999; loosen",
    ),
  ],
)
def test_refusals(tmp_path, vocab, in_process, monkeypatch, arguments, message):
  path = write(tmp_path / "in.jsonl", CORPUS.values())
  names_before = names_in(tmp_path)
  files = ["--input", path, "--vocab", vocab, "--output", tmp_path / "out"]
  with pytest.raises(SystemExit) as e:
    run(monkeypatch, *files, *arguments.split())
  assert e.value.code.startswith("error: ") and message in e.value.code
  assert "\n" not in e.value.code
  assert names_in(tmp_path) == names_before


def test_without_the_package(tmp_path, vocab, monkeypatch):
  monkeypatch.setitem(sys.modules, "datasketch", None)
  message = r"near-duplicates needs the package datasketch; run `pip install"
  with pytest.raises(ValueError, match=message):
    Filters(near_duplicates=0.8).check()
  Filters(drop_duplicates=True).check()
  message = "--normalise=NFD is not one of NFC, NFKC"
  with pytest.raises(ValueError, match=message):
    Filters(normalise="NFD").check()


def test_text_that_changes_meanwhile(tmp_path, vocab, in_process, monkeypatch):
  path = write(tmp_path / "in.jsonl", CORPUS.values())
  run_filters = filters_module.judge_documents

  def then_change(*arguments):
    run_filters(*arguments)
    write(tmp_path / "in.jsonl", [KEPT_TEXT])

  monkeypatch.setattr(prepare, "judge_documents", then_change)
  with pytest.raises(
    ValueError, match="in.jsonl was changed while it was read"
  ):
    prepare.prepare(path, vocab, str(tmp_path / "out"), filters=ALL_FILTERS)


@pytest.mark.parametrize("change", [-1, 1])
def test_an_input_without_a_file_that_changes(
  tmp_path, vocab, in_process, monkeypatch, change
):
  """An input without a file, such as a data set, cannot be watched for changes.

  So each pass counts its documents, and another count is an error.
  """
  path = write(tmp_path / "in.jsonl", CORPUS.values())
  read_records, counts_of_passes = sources.read_records, []

  def read(text_sources):
    records = list(read_records(text_sources))
    counts_of_passes.append(len(records))
    if len(counts_of_passes) == 2:
      records = records[:change] if change < 0 else [*records, records[0]]
    return iter(records)

  monkeypatch.setattr(sources, "read_records", read)
  count = len(CORPUS)
  message = (
    f"had {count} documents and now has {count + change}: it was changed"
  )
  with pytest.raises(ValueError, match=message):
    prepare.prepare(path, vocab, str(tmp_path / "out"), filters=ALL_FILTERS)
  assert counts_of_passes == [count] * 2 and not (tmp_path / "out").exists()
