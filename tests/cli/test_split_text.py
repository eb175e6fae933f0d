"""Tests that `split-text` writes all of a text in BERT's format, or nothing."""

import json

import pytest

from bert_jax.cli.main import execute
from bert_jax.corpus import prepare, sources, split_text


def run_command(*arguments):
  execute(["split-text", *map(str, arguments)])


def test_the_output_reads_back_as_the_same_documents(tmp_path, capsys):
  texts = ["One here. Two  here.\n\nThree\there.", "Four."]
  path = tmp_path / "in.jsonl"
  path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
  output_path = tmp_path / "out.txt"
  run_command("--input", path, "--output", output_path)
  assert (
    output_path.read_text() == "One here.\nTwo here.\nThree here.\n\nFour.\n"
  )
  assert list(sources.read_documents(str(output_path))) == [
    ["One here.", "Two here.", "Three here."],
    ["Four."],
  ]
  assert capsys.readouterr().out.splitlines() == [
    f"{output_path}: 2 documents, 7 words.",
    f"next: bert_jax vocab --input {output_path} --size 30522"
    " --output vocab.txt",
  ]


def test_words_that_no_tokenizer_keeps_are_left_out(tmp_path):
  path, output_path = tmp_path / "in.txt", tmp_path / "out.txt"
  path.write_bytes(b"\x00\x01 \xe2\x80\x8b\n\nA \x02 word\x03.\n\x04\n\n\xff\n")
  split_text.split_text(
    [str(path)],
    str(output_path),
    format="auto",
    errors="replace",
    language="en",
  )
  assert output_path.read_text() == "A word\x03.\n"


@pytest.mark.parametrize(
  "content", [b"\n \n", b"a\xff", b"\x00\x01\n\x02 \x03\n"]
)
def test_bad_text_leaves_no_output(tmp_path, content):
  (tmp_path / "in.txt").write_bytes(content)
  output_path = tmp_path / "out.txt"
  with pytest.raises(SystemExit, match="error: .*in.txt"):
    run_command("--input", tmp_path / "in.txt", "--output", output_path)
  assert [entry.name for entry in tmp_path.iterdir()] == ["in.txt"]


def test_an_unknown_language_is_refused(tmp_path):
  (tmp_path / "in.txt").write_text("Some words.\n")
  arguments = [str(tmp_path / "in.txt")], str(tmp_path / "out")
  for code in ("xx", "EN", "english", ""):
    message = f"--language={code} is no .*choose one of aa, .* zu;"
    with pytest.raises(ValueError, match=message):
      split_text.split_text(*arguments, "auto", "strict", code)
    with pytest.raises(ValueError, match=message):
      prepare.prepare(*arguments, "unused", language=code)
  assert len(sources.LANGUAGES) == len(set(sources.LANGUAGES)) == 184
  assert all(len(code) == 2 for code in sources.LANGUAGES)


@pytest.mark.parametrize(
  "arguments, message",
  [
    (["--input", "a"], "required: --output; bert_jax split-text"),
    (["--input", "a", "--output", "b", "--format", "docx"], "'docx'"),
    (
      ["--input", "a", "--output", "b", "--lang", "de"],
      "did you mean --language?",
    ),
  ],
)
def test_a_bad_flag_gets_one_sentence(arguments, message):
  with pytest.raises(SystemExit) as exit_info:
    run_command(*arguments)
  assert (
    exit_info.value.code.startswith("error: ")
    and message in exit_info.value.code
  )
  assert "\n" not in exit_info.value.code
