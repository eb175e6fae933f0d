"""Tests readers of files: little memory, all formats, errors for bad files."""

import gzip
import json
import lzma
import tracemalloc

import pytest
from text_files import (
  EXPECTED_DOCUMENTS,
  compress_zstd,
  jsonl_text,
  read_documents,
  write_file,
)

from bert_jax.cli.main import execute
from bert_jax.corpus import lines, parquet, sources

COMPRESSORS = {
  "": bytes,
  ".gz": gzip.compress,
  # With preset 0, the dictionary has 256 KB, which the reader must hold.
  ".xz": lambda content: lzma.compress(content, preset=0),
  ".zst": lambda content: compress_zstd(content),
}
TEXT_FORMATS = ("bert", "text", "text_blocks", "text_lines")


def read_raw(
  path, format: str, errors: str = "strict"
) -> list[sources.RawDocument]:
  return list(sources.read_file(str(path), format, errors))


def use_small_limits(monkeypatch) -> None:
  monkeypatch.setattr(lines, "MAX_CHARS", 2**14)
  monkeypatch.setattr(lines, "MAX_RECORD_CHARS", 2**16)
  monkeypatch.setattr(lines, "_BLOCK_BYTES", 2**13)


def measure_reading(path, format: str) -> tuple[int, int, int]:
  """Reads a file, and measures the reader's memory.

  Returns:
    The number of characters in all documents, the number of characters in the
    longest document, and the largest number of bytes of memory.
  """
  tracemalloc.start()
  try:
    num_chars = longest_length = 0
    for raw_document in sources.read_file(
      str(path), format=format, errors="strict"
    ):
      num_chars += len(raw_document.text)
      longest_length = max(longest_length, len(raw_document.text))
    return num_chars, longest_length, tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()


# A text -> how often a file of one line repeats it. The last one is a file of
# empty lines.
NUM_REPEATS_BY_TEXT = {
  "word ": 2**20,
  "x": 2**20,
  "\u4e16": 2**20,
  " ": 2**20,
  "\n": 2**17,
}
LONG_LINE_CASES = [
  (format, "", unit) for format in TEXT_FORMATS for unit in NUM_REPEATS_BY_TEXT
]
LONG_LINE_CASES += [
  ("text", s, unit) for s in (".gz", ".xz", ".zst") for unit in "x\n"
]


@pytest.mark.parametrize("format, suffix, repeated_text", LONG_LINE_CASES)
def test_memory_does_not_grow_with_a_line(
  tmp_path, monkeypatch, format, suffix, repeated_text
):
  use_small_limits(monkeypatch)
  if suffix == ".zst":
    pytest.importorskip("pyarrow")
  text = repeated_text * NUM_REPEATS_BY_TEXT[repeated_text]
  path = write_file(
    tmp_path / f"a.txt{suffix}", COMPRESSORS[suffix](text.encode())
  )
  num_chars, longest_length, peak_bytes = measure_reading(path, format)
  if repeated_text.isspace():
    assert num_chars == 0
  else:
    # A text that is cut into documents has additional newlines.
    assert len(text) <= num_chars <= len(text) * 1.01
  assert longest_length <= 2 * lines.MAX_CHARS + 1
  # The memory holds blocks of the file, a few copies of a document, and a
  # decompressor. The whole text would need over 1 MB.
  assert peak_bytes < 8e5


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_record_longer_than_the_limit_is_refused(
  tmp_path, monkeypatch, suffix
):
  use_small_limits(monkeypatch)
  content = jsonl_text("Fine.") + '{"text": "' + "x" * 2**22
  path = write_file(
    tmp_path / f"a.jsonl{suffix}", COMPRESSORS[suffix](content.encode())
  )
  with pytest.raises(ValueError, match=r"a\.jsonl.*:2: .* 65,536 characters"):
    measure_reading(path, "jsonl")
  # A record within the limit is cut into documents.
  text = "\n" * 1000 + "word " * 12000
  write_file(path, COMPRESSORS[suffix](jsonl_text(text).encode()))
  texts = [raw.text for raw in read_raw(path, "jsonl")]
  assert max(map(len, texts)) <= 2 * lines.MAX_CHARS + 1
  assert "".join(texts).replace("\n", "") == "word " * 12000


def test_the_parts_of_a_cut_line_join_to_the_line(tmp_path, monkeypatch):
  monkeypatch.setattr(lines, "MAX_CHARS", 50)
  monkeypatch.setattr(lines, "_BLOCK_BYTES", 7)
  words = [f"w{i}" for i in range(300)]
  path = write_file(tmp_path / "a.txt", " ".join(words))
  raw_documents = read_raw(path, "text_lines")
  assert "".join(raw.text for raw in raw_documents) == " ".join(words)
  assert max(len(raw.text) for raw in raw_documents) <= 50
  assert all(raw.text.endswith(" ") for raw in raw_documents[:-1])


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r", "\r\r\n"])
@pytest.mark.parametrize("block_bytes", [1, 2, 3, 2**17])
def test_every_kind_of_line_end_is_read(
  tmp_path, monkeypatch, line_end, block_bytes
):
  monkeypatch.setattr(lines, "_BLOCK_BYTES", block_bytes)
  texts = ["One hére.", "Two there.", "", "Third document.", ""]
  path = write_file(tmp_path / "a.txt", "\ufeff" + line_end.join(texts))
  expected_documents = [["One hére.", "Two there."], ["Third document."]]
  assert read_documents(path) == expected_documents
  path = write_file(tmp_path / "a.jsonl", line_end.join(map(jsonl_line, texts)))
  assert read_documents(path) == [
    ["One hére."],
    ["Two there."],
    ["Third document."],
  ]
  # Other separators of Unicode are ordinary characters of a line.
  path = write_file(tmp_path / "b.txt", f"A\u2028b\x0bc\x0cd\x85e.{line_end}F.")
  assert read_documents(path) == [["A\u2028b\x0bc\x0cd\x85e.", "F."]]


def jsonl_line(text: str) -> str:
  return json.dumps({"text": text}) if text else ""


@pytest.mark.parametrize("block_bytes", [1, 5, 2**17])
def test_the_byte_that_is_not_utf8_is_named(tmp_path, monkeypatch, block_bytes):
  monkeypatch.setattr(lines, "_BLOCK_BYTES", block_bytes)
  content = "Fine.\r\néé\rB".encode() + b"\xc3("
  path = write_file(tmp_path / "a.txt", content)
  with pytest.raises(ValueError, match=r"a\.txt: .*line 3, at byte 13;"):
    read_documents(path)
  write_file(path, "Fine.\nCut é".encode()[:-1])
  with pytest.raises(ValueError, match=r"a\.txt: .*line 2, at byte 10;"):
    read_documents(path)
  assert read_documents(path, errors="replace") == [["Fine.", "Cut \ufffd"]]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_the_error_of_a_damaged_file_says_where(tmp_path, suffix):
  if suffix == ".zst":
    pytest.importorskip("pyarrow")
  text = "".join(f"Sentence {i * i}.\n" for i in range(40000)).encode()
  content = COMPRESSORS[suffix](text)
  if suffix == ".zst":
    zstandard = pytest.importorskip("zstandard")
    # The command zstd writes a checksum, too. Without a checksum, the reader
    # may not notice the damage.
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    content = compressor.compress(text)
  path = write_file(tmp_path / f"a.txt{suffix}", content[: len(content) // 2])
  message = (
    rf"a\.txt{suffix}: the compressed file is damaged after [\d,]+ bytes"
  )
  with pytest.raises(ValueError, match=message):
    read_documents(path)
  write_file(path, content[:1000] + b"damage" + content[1006:])
  with pytest.raises(ValueError, match=message):
    read_documents(path)
  write_file(path, text)
  with pytest.raises(ValueError, match=message):
    read_documents(path)
  # A file may hold two compressed texts.
  write_file(path, content + content)
  (first_text, second_text) = [
    raw.text for raw in read_raw(path, "text_blocks")
  ] * 2
  assert first_text == second_text == (text + text).decode().strip()


def test_xz_with_a_huge_dictionary_is_refused(tmp_path):
  filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 2**20}]
  content = lzma.compress(b"One here.", lzma.FORMAT_XZ, filters=filters)
  # In .xz, a checksum protects the size of the dictionary. The older format
  # FORMAT_ALONE has no checksum, so this test can write a huge size into it.
  path = write_file(tmp_path / "a.txt.xz", content)
  assert read_documents(path) == [["One here."]]
  content = lzma.compress(b"One here.", lzma.FORMAT_ALONE)
  write_file(path, content[:1] + (2**30).to_bytes(4, "little") + content[5:])
  with pytest.raises(
    ValueError, match=r"a\.txt\.xz: the compressed file is damaged .*[Mm]emory"
  ):
    read_documents(path)


@pytest.mark.parametrize(
  "content, message",
  [
    (b"PAR1....", "a Parquet file; leave --format out"),
    (gzip.compress(b"text", mtime=0), "compressed by gzip"),
    (lzma.compress(b"text"), "compressed by xz"),
    (b"%PDF-1.7", "a PDF"),
    ("text".encode("utf-16"), "UTF-16"),
  ],
)
@pytest.mark.parametrize("errors", ["strict", "replace"])
def test_files_that_are_no_text_are_refused(tmp_path, content, message, errors):
  path = write_file(tmp_path / "a.txt", content)
  with pytest.raises(ValueError, match=rf"a\.txt is {message}"):
    read_documents(path, errors=errors)


def test_each_format_of_plain_text_gives_its_documents(tmp_path):
  path = write_file(
    tmp_path / "a.txt", "One here. Two\nthere.\n\n \nThird. Fourth.\n"
  )
  first_block, second_block = ["One here.", "Two there."], ["Third.", "Fourth."]
  assert read_documents(path, format="text") == [first_block + second_block]
  assert read_documents(path, format="text_blocks") == [
    first_block,
    second_block,
  ]
  lines_as_documents = [["One here.", "Two"], ["there."], second_block]
  assert read_documents(path, format="text_lines") == lines_as_documents
  bert_documents = [["One here. Two", "there."], ["Third. Fourth."]]
  assert (
    read_documents(path)
    == read_documents(path, format="bert")
    == bert_documents
  )


def test_each_input_may_have_its_format(tmp_path):
  text = "One here. Two there.\n\nThird document.\n"
  path_a, path_b = (
    write_file(tmp_path / name, text) for name in ("a.txt", "b.txt")
  )
  bert_documents = [["One here. Two there."], ["Third document."]]
  two_inputs = [f"text_blocks:{path_a}", str(path_b)]
  assert read_documents(two_inputs) == EXPECTED_DOCUMENTS + bert_documents
  assert read_documents(two_inputs, format="text") == [
    *EXPECTED_DOCUMENTS,
    EXPECTED_DOCUMENTS[0] + EXPECTED_DOCUMENTS[1],
  ]
  text_sources = sources.find_sources(f"bert:{path_a},text:{tmp_path}/b*")
  assert [(source.name, source.format) for source in text_sources] == [
    (str(path_a), "bert"),
    (str(path_b), "text"),
  ]
  with pytest.raises(ValueError, match="there is no file words:.*, and"):
    read_documents(f"words:{path_a}")


@pytest.mark.parametrize(
  "name, format",
  [
    ("a.md", "text"),
    ("A.MD.gz", "text"),
    ("a.txt.zst", "bert"),
    ("a", "bert"),
    ("news.en-00001-of-00100", "bert"),
    ("a.ndjson.xz", "jsonl"),
    ("a.csv", None),
    ("a.tsv.gz", None),
    ("a.html", None),
    ("a.docx", None),
    ("a.mp3", None),
    ("part.0001.gz", "bert"),
  ],
)
def test_the_name_of_a_file_gives_its_format(name, format):
  if format is None:
    with pytest.raises(ValueError, match=r"give --format, or --input FORMAT:a"):
      sources.format_of(name)
  else:
    assert sources.format_of(name) == format


class TestParquet:
  @pytest.fixture(autouse=True)
  def pyarrow(self):
    self.pa = pytest.importorskip("pyarrow")
    self.pq = pytest.importorskip("pyarrow.parquet")

  def write(self, path, column, **options) -> None:
    names = ["n", "text"]
    table = self.pa.table([range(len(column)), column], names)
    self.pq.write_table(table, path, **options)

  def test_every_string_type_is_read(self, tmp_path):
    pa, path = self.pa, tmp_path / "a.parquet"
    texts = ["One here. Two there.", "", "Third document."] * 3
    for string_type in ("string", "large_string", "string_view"):
      self.write(path, pa.array(texts, getattr(pa, string_type)()))
      assert read_documents(path) == EXPECTED_DOCUMENTS * 3
    self.write(path, pa.array(texts).dictionary_encode())
    assert read_documents(path) == EXPECTED_DOCUMENTS * 3
    self.write(path, pa.array([b"bytes"]))
    with pytest.raises(ValueError, match="`text` holds binary, not strings"):
      read_documents(path)

  @pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
  def test_null_is_left_out_and_counted(self, tmp_path, capsys, name):
    texts = ["One here. Two there.", None, None, "Third document."]
    path = tmp_path / name
    if name == "a.jsonl":
      write_file(path, jsonl_text(*texts))
    else:
      self.write(path, texts)
    assert read_documents(path) == EXPECTED_DOCUMENTS
    errors = capsys.readouterr().err
    assert errors == (
      f"{path}: 2 of 4 rows have no text (null); they are left out.\n"
    )

  def test_damage_names_the_file_and_the_row(self, tmp_path):
    path = tmp_path / "a.parquet"
    texts = [f"Text {i * i} of many." for i in range(4000)]
    self.write(
      path, texts, row_group_size=1000, use_dictionary=False, compression="none"
    )
    content = path.read_bytes()
    write_file(path, content[:200])
    with pytest.raises(
      ValueError, match=r"a\.parquet is not a readable Parquet"
    ):
      read_documents(path)
    begin_of_damage = content.index(b"Text 4000000")  # Row 2000 begins here.
    end_of_damage = begin_of_damage + 20000
    write_file(
      path,
      content[:begin_of_damage] + b"\xff" * 20000 + content[end_of_damage:],
    )
    with pytest.raises(ValueError, match=r"a\.parquet is .*row 2\d\d\d\b"):
      read_documents(path)

  def test_two_columns_named_text_are_refused(self, tmp_path):
    path = tmp_path / "a.parquet"
    table = self.pa.table([["a"], ["b"]], ["text", "text"])
    self.pq.write_table(table, path)
    with pytest.raises(ValueError, match="2 columns have the name `text`"):
      read_documents(path)

  def test_a_parquet_file_is_refused_for_every_other_format(self, tmp_path):
    path = tmp_path / "a.parquet"
    self.write(path, ["One here."])
    for format in (*TEXT_FORMATS, "jsonl"):
      with pytest.raises(ValueError, match=r"a\.parquet is a Parquet file"):
        read_documents(path, format=format)
    write_file(tmp_path / "a.parquet.gz", gzip.compress(path.read_bytes()))
    with pytest.raises(ValueError, match="decompress it"):
      read_documents(tmp_path / "a.parquet.gz")

  def test_batches_of_large_rows_have_fewer_rows(self, tmp_path):
    path = tmp_path / "a.parquet"
    for num_rows, size in ((1000, 10), (20, 2**20)):
      texts = [f"{i} " + "x" * size for i in range(num_rows)]
      self.write(path, texts, use_dictionary=False, compression="none")
      # A batch has at most 8 rows, and fewer if they are large.
      row_group = self.pq.read_metadata(path).row_group(0)
      rows_per_batch = parquet._rows_per_batch(row_group)
      assert rows_per_batch == (8 if size == 10 else 3)
      assert [raw.text for raw in read_raw(path, "parquet")] == texts


@pytest.mark.parametrize(
  "command, sentence",
  [
    ("prepare", "With fewer --processes, the same command continues"),
    ("vocab", "nothing was written"),
    ("split-text", "nothing was written"),
  ],
)
def test_too_little_memory_is_a_sentence(
  tmp_path, monkeypatch, command, sentence
):
  """The error is one sentence, which names the file that was being read."""
  path = write_file(tmp_path / "a.txt", "One here.\n" * 9)
  pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one"]
  write_file(tmp_path / "v.txt", "\n".join(pieces) + "\n")

  def raise_memory_error(*arguments, **options):
    raise MemoryError

  monkeypatch.setattr(lines, "read_lines", raise_memory_error)
  arguments_of_command = [
    command,
    "--input",
    str(path),
    "--output",
    str(tmp_path / "out"),
  ]
  arguments_of_command += (
    ["--vocab", f"{tmp_path}/v.txt"] if command == "prepare" else []
  )
  arguments_of_command += ["--size", "100"] if command == "vocab" else []
  with pytest.raises(SystemExit) as exit_info:
    execute(arguments_of_command)
  message = str(exit_info.value)
  assert message.startswith(f"error: {path}: there is too little memory")
  assert sentence in message
