"""Tests that inputs of every format are read as documents of sentences."""

import gzip
import lzma

import numpy as np
import pytest
from text_files import (
  BERT_FORMAT,
  EXPECTED_DOCUMENTS,
  compress_zstd,
  jsonl_text,
  read_documents,
  write_file,
)

from bert_jax.cli import flags
from bert_jax.corpus import lines, sources


@pytest.mark.parametrize(
  "content",
  [
    BERT_FORMAT,
    BERT_FORMAT.rstrip("\n"),
    BERT_FORMAT.replace("\n", "\r\n"),
    "\ufeff" + BERT_FORMAT,
    "\n \n\t\n" + BERT_FORMAT.replace("\n\n", "\n  \n\r\n\n") + "\n\n",
    "  One here. \nTwo there.\n\nThird document.",
  ],
)
def test_blank_lines_end_documents_in_bert_format(tmp_path, content):
  assert (
    read_documents(write_file(tmp_path / "a.txt", content))
    == EXPECTED_DOCUMENTS
  )


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize(
  "suffix, compress",
  [(".gz", gzip.compress), (".xz", lzma.compress), (".zst", compress_zstd)],
)
def test_compressed_files_are_read(tmp_path, name, suffix, compress):
  text = jsonl_text("One here. Two there.", "Third document.")
  text = text if "json" in name else BERT_FORMAT
  content = compress(text.encode())
  path = write_file(tmp_path / (name + suffix), content)
  assert read_documents(path) == EXPECTED_DOCUMENTS
  write_file(path, content[:-6])
  with pytest.raises(
    ValueError, match=f"{name}{suffix}: the compressed file is damaged"
  ):
    read_documents(path)


def test_plain_text_joins_wrapped_lines(tmp_path):
  text = "Dr. Smith came\nin. He sat\r\ndown.\r\n \r\nA new para-\ngraph\n"
  path = write_file(tmp_path / "a.txt", text)
  expected_documents = [
    ["Dr. Smith came in.", "He sat down.", "A new para- graph"]
  ]
  assert read_documents(path, format="text") == expected_documents
  # A plain text without blank lines is one paragraph, whose lines are joined.
  write_file(path, "One line goes\non. Then stops.")
  assert read_documents(path, format="text") == [
    ["One line goes on.", "Then stops."]
  ]


def test_each_jsonl_text_is_split_into_sentences(tmp_path):
  path = write_file(
    tmp_path / "a.jsonl",
    jsonl_text("A title\nBody one. Body two.", "Wrapped\nline.\n\nNext.", " \n")
    + "\n  \r\n",
  )
  assert read_documents(path) == [
    ["A title", "Body one.", "Body two."],
    ["Wrapped line.", "Next."],
  ]


@pytest.mark.parametrize(
  "line",
  ["{", '"text"', '{"txt": "a"}', '{"text": 3}', '{"text": [null]}', "[]"],
)
def test_bad_jsonl_names_file_and_line(tmp_path, line):
  path = write_file(
    tmp_path / "a.jsonl", jsonl_text("Fine.") + "\n" + line + "\n"
  )
  with pytest.raises(ValueError, match=r"a\.jsonl:3: "):
    read_documents(path)


def test_half_a_surrogate_pair_is_refused_or_replaced(tmp_path):
  path = write_file(tmp_path / "a.jsonl", '{"text": "bad \\ud800 end"}\n')
  with pytest.raises(ValueError, match=r"a\.jsonl:1: .*surrogate"):
    read_documents(path)
  assert read_documents(path, errors="replace") == [["bad ? end"]]
  write_file(path, '{"text": "good \\ud83d\\ude00 end"}\n')
  assert read_documents(path) == [["good \U0001f600 end"]]


@pytest.mark.parametrize("byte_order_mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_that_is_not_utf8_is_named(tmp_path, byte_order_mark):
  path = write_file(tmp_path / "a.txt", byte_order_mark + b"Fine.\nB\xe4d.\n")
  with pytest.raises(
    ValueError, match=rf"a\.txt: .*byte {7 + len(byte_order_mark)};"
  ):
    read_documents(path)
  assert read_documents(path, errors="replace") == [["Fine.", "B\ufffdd."]]


def test_the_text_column_of_parquet_is_read(tmp_path):
  pa = pytest.importorskip("pyarrow")
  pq = pytest.importorskip("pyarrow.parquet")
  path = tmp_path / "a.parquet"
  texts = ["One here. Two there.", None, "", "Third document."]
  pq.write_table(pa.table({"n": [1, 2, 3, 4], "text": texts}), path)
  assert read_documents(path) == EXPECTED_DOCUMENTS
  pq.write_table(pa.table({"body": texts}), path)
  with pytest.raises(
    ValueError, match=r"has no column `text`; its columns are body"
  ):
    read_documents(path)
  pq.write_table(pa.table({"text": [1, 2]}), path)
  with pytest.raises(ValueError, match="int64"):
    read_documents(path)
  write_file(path, "no parquet")
  with pytest.raises(ValueError, match=r"a\.parquet is not a readable"):
    read_documents(path)


def test_data_sets_of_tfds_are_read(tmp_path, monkeypatch):
  tfds = pytest.importorskip("tensorflow_datasets")

  class BertJaxTinyText(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
      features = {
        "text": tfds.features.Text(),
        "n": tfds.features.Scalar(np.int32),
      }
      return tfds.core.DatasetInfo(
        builder=self, features=tfds.features.FeaturesDict(features)
      )

    def _split_generators(self, manager):
      return {
        "train": self._generate_examples(3),
        "test": self._generate_examples(1),
      }

    def _generate_examples(self, count):
      for i in range(count):
        yield i, {"text": f"Text {i}. End.", "n": i}

  open_builder = tfds.builder
  monkeypatch.setattr(
    tfds, "builder", lambda name: open_builder(name, data_dir=str(tmp_path))
  )
  train_documents = read_documents("tfds:bert_jax_tiny_text")
  assert sorted(train_documents) == [[f"Text {i}.", "End."] for i in range(3)]
  assert read_documents("tfds:bert_jax_tiny_text") == train_documents
  assert read_documents("tfds:bert_jax_tiny_text:test") == [["Text 0.", "End."]]
  with pytest.raises(ValueError, match="tfds:no_such_thing: cannot be loaded"):
    read_documents("tfds:no_such_thing")


def test_files_of_patterns_are_sorted_and_read_once(tmp_path):
  for name in ("b.txt", "a.txt", "sub/c.txt"):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    write_file(tmp_path / name, name)
  a_document, b_document, c_document = ["a.txt"], ["b.txt"], ["sub/c.txt"]
  assert read_documents(tmp_path / "*.txt") == [a_document, b_document]
  assert read_documents(tmp_path / "**/*.txt") == [
    a_document,
    b_document,
    c_document,
  ]
  inputs = [f"{tmp_path}/b.txt, {tmp_path}/*", f"{tmp_path}/sub/../a.txt"]
  assert read_documents(inputs) == [b_document, a_document]


def test_names_of_inputs_are_not_normalised(tmp_path, monkeypatch):
  """A prepared folder stores the names of its inputs as they are given.

  A second call of `prepare` compares them with the names that it is given.
  """
  write_file(tmp_path / "a.txt", "a")
  monkeypatch.chdir(tmp_path)
  for name in ("./a.txt", f"{tmp_path}/./a.txt", "./*.txt"):
    (source,) = sources.find_sources(name)
    assert source.name == name.replace("*", "a")


def test_missing_inputs_are_named(tmp_path):
  with pytest.raises(ValueError, match=r"there is no file .*x\.txt\.$"):
    read_documents(tmp_path / "x.txt")
  with pytest.raises(ValueError, match=r"\*\.txt: no file"):
    read_documents(tmp_path / "*.txt")
  with pytest.raises(ValueError, match="is a folder; name its files"):
    read_documents(tmp_path)
  with pytest.raises(ValueError, match="no input"):
    read_documents(" , ")


@pytest.mark.parametrize("name", ["nope:a.txt", "txt:*.txt", "TEXT:a.txt"])
def test_an_unknown_format_is_named(tmp_path, monkeypatch, name):
  monkeypatch.chdir(tmp_path)
  write_file(tmp_path / "a.txt", "a")
  format_name = name.partition(":")[0]
  with pytest.raises(
    ValueError, match=f"{format_name!r} before the colon is no form"
  ):
    read_documents(name)
  write_file(tmp_path / name.replace("*", "b"), "c")
  assert read_documents(name) == [["c"]]
  # The format `text` exists, but the file is missing.
  with pytest.raises(ValueError, match=r"there is no file x\.txt\.$"):
    read_documents("text:x.txt")


def test_long_texts_are_cut_into_documents(tmp_path, monkeypatch):
  monkeypatch.setattr(lines, "MAX_CHARS", 10)
  texts = [f"Line {i}." for i in range(5)]
  path = write_file(tmp_path / "a.txt", "\n".join(texts))
  expected_documents = [texts[:2], texts[2:4], texts[4:]]
  assert read_documents(path) == expected_documents
  assert read_documents(path, format="text") == expected_documents
  path = write_file(tmp_path / "a.jsonl", jsonl_text("\n".join(texts)))
  assert read_documents(path) == expected_documents


@pytest.mark.parametrize("sentence", ['He said " so. ', "no-stop ", "x"])
def test_long_paragraphs_are_cut_into_sentences(tmp_path, sentence):
  text = sentence * 30000
  path = write_file(tmp_path / "a.txt", text)
  (document,) = read_documents(path, format="text")
  assert max(map(len, document)) <= sources.MAX_PARAGRAPH_CHARS
  text_without_spaces = "".join("".join(document).split())
  assert text_without_spaces == "".join(text.split())


@pytest.mark.parametrize("block_chars", [1, 3, 2**16])
def test_white_space_becomes_single_spaces(monkeypatch, block_chars):
  monkeypatch.setattr(sources, "_BLOCK_CHARS", block_chars)
  for text in ("", "a", "  ", " a\n\tbc \u3000d\x1ce ", "abcdefgh ij  k" * 20):
    assert sources.with_single_spaces(text) == " ".join(text.split())


def test_the_share_of_the_input_that_was_read_grows_to_one(tmp_path):
  write_file(tmp_path / "a.txt", BERT_FORMAT)
  write_file(tmp_path / "b.jsonl", jsonl_text("One.", "Two."))
  text_sources = sources.find_sources(str(tmp_path / "*"))
  assert [source.format for source in text_sources] == ["bert", "jsonl"]
  shares = [record.share for record in sources.read_records(text_sources)]
  assert shares == sorted(shares) and shares[-1] == 1.0


def test_two_flags_input_add_their_files():
  parser = flags.Parser("bert_jax")
  flags.add_text(parser)
  parsed_flags = parser.parse(["--input", "a", "b", "--input", "c"])
  assert parsed_flags.input == ["a", "b", "c"]
