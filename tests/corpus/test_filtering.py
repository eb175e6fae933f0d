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
ALL_FILTERS = Filters(
  normalise="NFKC",
  min_words=5,
  max_symbols=0.1,
  max_repetition=0.3,
  drop_duplicates=True,
  near_duplicates=0.7,
)


@pytest.fixture
def run_in_one_process(monkeypatch):
  """Runs `prepare` in one process, because more processes start slowly."""

  def ordered_map(make_function, arguments, inputs, processes):
    yield from map(make_function(*arguments), inputs)

  monkeypatch.setattr(tokenize, "ordered_map", ordered_map)
  monkeypatch.setattr(tokenize, "_BATCH_CHARS", 1500)


@pytest.fixture
def vocab_path(tmp_path):
  path = tmp_path / "vocab.txt"
  path.write_text("\n".join(PIECES) + "\n")
  return str(path)


def write_jsonl(path, texts) -> str:
  path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
  return str(path)


def read_texts(folder: str) -> list[str]:
  """Returns the texts of a prepared folder, one split after the other."""
  prepared_folder = reader.open_prepared(folder)
  texts = []
  for corpus in prepared_folder.splits.values():
    starts = np.asarray(corpus.sentences)[np.asarray(corpus.documents)]
    for begin, end in itertools.pairwise(starts):
      pieces = [prepared_folder.vocab[i] for i in corpus.tokens[begin:end]]
      texts.append(" ".join(pieces).replace(" ##", ""))
  return texts


# NEAR_COPY differs from LONG_TEXT only in its last words.
LONG_TEXT = text_of_words(*range(300))
NEAR_COPY = text_of_words(*range(297), 5000, 5001)
TEXT_BY_NAME = {
  "kept": KEPT_TEXT,
  "near": LONG_TEXT,
  "copy": "  the cat sat on a mat\nand the dog lay on a rug by the door\n\n",
  "nearer": NEAR_COPY,
  "short": SHORT_TEXT,
  "signs": TEXT_OF_SYMBOLS,
  "loop": REPEATED_TEXT,
  "nearer again": NEAR_COPY,
  "ligature": "ﬁve ﬂags ﬂy ﬁne over there",
}


def document_and_word_counts(*names: str) -> dict[str, int]:
  num_words = sum(len(TEXT_BY_NAME[name].split()) for name in names)
  return {"documents": len(names), "words": num_words}


def test_each_filter_drops_its_documents_and_counts_them(
  tmp_path, vocab_path, run_in_one_process
):
  path = write_jsonl(tmp_path / "in.jsonl", TEXT_BY_NAME.values())

  def count_dropped(**filters) -> dict[str, dict[str, int]]:
    output = str(tmp_path / "_".join(map(str, filters.values())))
    meta = prepare.prepare(path, vocab_path, output, filters=Filters(**filters))
    assert meta["filtered"]["read"] == document_and_word_counts(*TEXT_BY_NAME)
    total_dropped = {
      key: sum(
        filter_counts[key]
        for filter_counts in meta["filtered"]["dropped"].values()
      )
      for key in ("documents", "words")
    }
    remaining = meta["filtered"]["kept"]
    assert {
      key: remaining[key] + total_dropped[key] for key in remaining
    } == document_and_word_counts(*TEXT_BY_NAME)
    assert len(read_texts(output)) == remaining["documents"]
    assert {key: meta["options"][key] for key in filters} == filters
    return meta["filtered"]["dropped"]

  assert count_dropped(min_words=3) == {
    "min_words": document_and_word_counts("short")
  }
  assert count_dropped(min_words=2) == {"min_words": document_and_word_counts()}
  assert count_dropped(max_symbols=0.1) == {
    "max_symbols": document_and_word_counts("signs")
  }
  assert count_dropped(max_repetition=0.3) == {
    "max_repetition": document_and_word_counts("loop")
  }
  exact_copy_counts = {
    "drop_duplicates": document_and_word_counts("copy", "nearer again")
  }
  assert count_dropped(drop_duplicates=True) == exact_copy_counts
  near_copy_counts = document_and_word_counts("copy", "nearer", "nearer again")
  assert count_dropped(near_duplicates=0.8) == {
    "near_duplicates": near_copy_counts
  }
  assert count_dropped(**ALL_FILTERS._asdict()) == {
    "min_words": document_and_word_counts("short"),
    "max_symbols": document_and_word_counts("signs"),
    "max_repetition": document_and_word_counts("loop"),
    # "nearer again" counts as an exact copy, although "nearer" is dropped.
    "drop_duplicates": document_and_word_counts("copy", "nearer again"),
    "near_duplicates": document_and_word_counts("nearer"),
  }


def test_all_filters_keep_the_first_copy_and_normalise(
  tmp_path, vocab_path, run_in_one_process
):
  path = write_jsonl(tmp_path / "in.jsonl", TEXT_BY_NAME.values())
  output = str(tmp_path / "out")
  meta = prepare.prepare(
    path, vocab_path, output, filters=ALL_FILTERS, heldout=0
  )
  assert read_texts(output) == [
    KEPT_TEXT,
    LONG_TEXT,
    "five flags fly fine over there",
  ]
  assert meta["filtered"]["normalised"] == {"documents": 1}
  assert meta["filtered"]["kept"] == document_and_word_counts(
    "kept", "near", "ligature"
  )
  # In the reverse order, the copies that were dropped come first and are kept.
  path = write_jsonl(
    tmp_path / "other.jsonl", list(TEXT_BY_NAME.values())[::-1]
  )
  output_of_reversed = str(tmp_path / "other")
  prepare.prepare(
    path, vocab_path, output_of_reversed, filters=ALL_FILTERS, heldout=0
  )
  expected_texts = ["five flags fly fine over there", NEAR_COPY, KEPT_TEXT]
  assert read_texts(output_of_reversed) == expected_texts
  # Without filters there is no report, and nothing is dropped.
  meta = prepare.prepare(path, vocab_path, str(tmp_path / "none"))
  assert "filtered" not in meta and not set(meta["options"]) & set(
    ALL_FILTERS._fields
  )
  assert sum(
    split_sizes["documents"] for split_sizes in meta["splits"].values()
  ) == len(TEXT_BY_NAME)


def test_filters_keep_the_sentences_of_documents(
  tmp_path, vocab_path, run_in_one_process
):
  """With filters, `unfiltered_text` gives the corpus of `expected_text`."""
  unfiltered_text = (
    "ﬁrst a line\nthe second is longer\n\nshort\n\nthird ﬁne line here\n"
  )
  expected_text = "first a line\nthe second is longer\n\nthird fine line here\n"
  corpora = []
  for name, text in (("dirty", unfiltered_text), ("clean", expected_text)):
    path = tmp_path / f"{name}.txt"
    path.write_text(text)
    output = str(tmp_path / name)
    prepare.prepare(
      str(path),
      vocab_path,
      output,
      filters=Filters(normalise="NFKC", min_words=2),
      heldout=0,
    )
    corpora.append(reader.open_prepared(output).splits["train"])
  assert corpora[0].num_documents == 2 and len(corpora[0].sentences) == 4
  for filtered_array, clean_array in zip(*corpora, strict=True):
    np.testing.assert_array_equal(filtered_array, clean_array)


# Returns 40 different texts, some of them twice or with a near copy, in random
# order.
def many_texts() -> list[str]:
  rng = random.Random(0)
  texts = []
  for text_number in range(40):
    word_numbers = list(
      range(1000 * text_number, 1000 * text_number + rng.randint(2, 60))
    )
    texts += [text_of_words(*word_numbers)] * rng.randint(1, 2)
    texts += [text_of_words(*word_numbers[:-1])] * rng.randint(0, 1)
  rng.shuffle(texts)
  return texts


def test_bytes_do_not_depend_on_the_number_of_processes(
  tmp_path, vocab_path, monkeypatch
):
  path = write_jsonl(tmp_path / "in.jsonl", many_texts())
  contents = []
  for processes, batch_chars in ((1, 2**18), (3, 700)):
    monkeypatch.setattr(tokenize, "_BATCH_CHARS", batch_chars)
    output = str(tmp_path / f"out{processes}")
    meta = prepare.prepare(
      path, vocab_path, output, processes=processes, filters=ALL_FILTERS
    )
    contents.append(contents_of(output))
  assert contents[0] == contents[1]
  dropped = meta["filtered"]["dropped"]
  assert all(
    dropped[name]["documents"]
    for name in ("min_words", "drop_duplicates", "near_duplicates")
  )


def test_an_interrupted_pass_continues(
  tmp_path, vocab_path, run_in_one_process, monkeypatch, capfd
):
  path = write_jsonl(tmp_path / "in.jsonl", many_texts())
  uninterrupted_output, output = str(tmp_path / "whole"), str(tmp_path / "out")
  prepare.prepare(path, vocab_path, uninterrupted_output, filters=ALL_FILTERS)
  original_judge, judged_rows = filters_module._EarlierDocuments.judge, []

  def interrupt(self, row):
    judged_rows.append(row)
    if len(judged_rows) in (30, 70):
      raise KeyboardInterrupt
    return original_judge(self, row)

  monkeypatch.setattr(filters_module._EarlierDocuments, "judge", interrupt)
  for _ in range(2):
    with pytest.raises(KeyboardInterrupt):
      prepare.prepare(
        path, vocab_path, output, filters=ALL_FILTERS, save_seconds=0
      )
    # `prepare` must delete bytes that were written after the last save.
    path_of_verdicts = pathlib.Path(
      f"{output}.partial", filters_module.VERDICTS_FILE
    )
    with path_of_verdicts.open("ab") as f:
      f.write(b"torn")
  with pytest.raises(ValueError, match=r"min_words was 5, is None"):
    prepare.prepare(
      path, vocab_path, output, filters=ALL_FILTERS._replace(min_words=None)
    )
  capfd.readouterr()
  prepare.prepare(path, vocab_path, output, filters=ALL_FILTERS, save_seconds=0)
  assert "filters: going on after" in capfd.readouterr().err
  # Documents with fewer than five words are dropped before they are compared.
  num_judged = sum(len(text.split()) >= 5 for text in many_texts())
  assert num_judged < len(judged_rows) < num_judged + 30
  assert contents_of(output) == contents_of(uninterrupted_output)


def test_a_finished_pass_is_not_repeated(
  tmp_path, vocab_path, run_in_one_process, monkeypatch
):
  path = write_jsonl(tmp_path / "in.jsonl", many_texts())
  uninterrupted_output, output = str(tmp_path / "whole"), str(tmp_path / "out")
  prepare.prepare(path, vocab_path, uninterrupted_output, filters=ALL_FILTERS)
  original_append, appended_splits = prepare.SplitWriter.append, []

  def interrupt(self, split, documents):
    appended_splits.append(split)
    if len(appended_splits) == 10:
      raise KeyboardInterrupt
    original_append(self, split, documents)

  monkeypatch.setattr(prepare.SplitWriter, "append", interrupt)
  arguments = {"filters": ALL_FILTERS, "save_seconds": 0}
  with pytest.raises(KeyboardInterrupt):
    prepare.prepare(path, vocab_path, output, **arguments)
  # A second pass of the filters would call this function, and fail.
  monkeypatch.setattr(filters_module, "make_judge", None)
  prepare.prepare(path, vocab_path, output, **arguments)
  assert contents_of(output) == contents_of(uninterrupted_output)


def test_an_existing_folder_with_other_filters_is_refused(
  tmp_path, vocab_path, run_in_one_process, capfd
):
  path = write_jsonl(tmp_path / "in.jsonl", TEXT_BY_NAME.values())
  output = str(tmp_path / "out")
  base_filters = Filters(near_duplicates=0.8)
  meta = prepare.prepare(path, vocab_path, output, filters=base_filters)
  assert prepare.prepare(path, vocab_path, output, filters=base_filters) == meta
  assert "nothing to do" in capfd.readouterr().err
  for other_filters, message in (
    (Filters(near_duplicates=0.7), "near_duplicates was 0.8, is 0.7"),
    (Filters(), "near_duplicates was 0.8, is None"),
    (base_filters._replace(min_words=3), "min_words was None, is 3"),
  ):
    with pytest.raises(ValueError, match=message):
      prepare.prepare(path, vocab_path, output, filters=other_filters)
  # The fingerprint differs even if the added filter drops nothing.
  filters_with_min_words = base_filters._replace(min_words=2)
  other_meta = prepare.prepare(
    path, vocab_path, str(tmp_path / "other"), filters=filters_with_min_words
  )
  assert other_meta["splits"] == meta["splits"]
  assert other_meta["fingerprint"] != meta["fingerprint"]


def run_prepare(*arguments) -> None:
  execute(["prepare", *map(str, arguments)])


def test_the_report_has_a_line_for_each_filter(
  tmp_path, vocab_path, run_in_one_process, capfd
):
  path = write_jsonl(tmp_path / "in.jsonl", TEXT_BY_NAME.values())
  output = tmp_path / "out"
  file_flags = ["--input", path, "--vocab", vocab_path, "--output", output]
  filter_flags = "--normalise NFKC --min-words 5 --max-symbols 0.1"
  filter_flags += (
    " --max-repetition 0.3 --drop-duplicates --near-duplicates 0.7"
  )
  run_prepare(*file_flags, *filter_flags.split())
  lines = capfd.readouterr().err.splitlines()
  num_words = sum(len(text.split()) for text in TEXT_BY_NAME.values())
  index_of_first_line = lines.index(
    f"filters: 9 documents, {num_words} words read"
  )
  assert lines[index_of_first_line + 1 : index_of_first_line + 8] == [
    "  normalise: 1 documents changed",
    "  min_words: 1 documents, 2 words dropped",
    "  max_symbols: 1 documents, 18 words dropped",
    "  max_repetition: 1 documents, 40 words dropped",
    "  drop_duplicates: 2 documents, 315 words dropped",
    "  near_duplicates: 1 documents, 299 words dropped",
    "  kept: 3 documents, 322 words",
  ]
  assert filters_module.VERDICTS_FILE not in names_in(output)


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
def test_bad_filters_are_refused(
  tmp_path, vocab_path, run_in_one_process, arguments, message
):
  path = write_jsonl(tmp_path / "in.jsonl", TEXT_BY_NAME.values())
  names_before = names_in(tmp_path)
  file_flags = [
    "--input",
    path,
    "--vocab",
    vocab_path,
    "--output",
    tmp_path / "out",
  ]
  with pytest.raises(SystemExit) as exit_info:
    run_prepare(*file_flags, *arguments.split())
  assert (
    exit_info.value.code.startswith("error: ")
    and message in exit_info.value.code
  )
  assert "\n" not in exit_info.value.code
  assert names_in(tmp_path) == names_before


def test_near_duplicates_need_datasketch_and_forms_must_be_known(
  vocab_path, monkeypatch
):
  monkeypatch.setitem(sys.modules, "datasketch", None)
  message = r"near-duplicates needs the package datasketch; run `pip install"
  with pytest.raises(ValueError, match=message):
    Filters(near_duplicates=0.8).check()
  Filters(drop_duplicates=True).check()
  message = "--normalise=NFD is not one of NFC, NFKC"
  with pytest.raises(ValueError, match=message):
    Filters(normalise="NFD").check()


def test_a_file_that_changes_between_passes_is_refused(
  tmp_path, vocab_path, run_in_one_process, monkeypatch
):
  path = write_jsonl(tmp_path / "in.jsonl", TEXT_BY_NAME.values())
  judge_documents = filters_module.judge_documents

  def filter_and_change_file(*arguments):
    judge_documents(*arguments)
    write_jsonl(tmp_path / "in.jsonl", [KEPT_TEXT])

  monkeypatch.setattr(prepare, "judge_documents", filter_and_change_file)
  with pytest.raises(
    ValueError, match="in.jsonl was changed while it was read"
  ):
    prepare.prepare(
      path, vocab_path, str(tmp_path / "out"), filters=ALL_FILTERS
    )


@pytest.mark.parametrize("change", [-1, 1])
def test_a_data_set_that_changes_between_passes_is_refused(
  tmp_path, vocab_path, run_in_one_process, monkeypatch, change
):
  """A data set is no file whose changes can be seen.

  So each pass counts the documents, and two different counts are an error.
  """
  path = write_jsonl(tmp_path / "in.jsonl", TEXT_BY_NAME.values())
  read_records, count_by_pass = sources.read_records, []

  def read_changed_records(text_sources):
    records = list(read_records(text_sources))
    count_by_pass.append(len(records))
    if len(count_by_pass) == 2:
      records = records[:change] if change < 0 else [*records, records[0]]
    return iter(records)

  monkeypatch.setattr(sources, "read_records", read_changed_records)
  total = len(TEXT_BY_NAME)
  message = (
    f"had {total} documents and now has {total + change}: it was changed"
  )
  with pytest.raises(ValueError, match=message):
    prepare.prepare(
      path, vocab_path, str(tmp_path / "out"), filters=ALL_FILTERS
    )
  assert count_by_pass == [total] * 2 and not (tmp_path / "out").exists()
