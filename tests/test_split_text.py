"""Text in BERT's format, written whole or not at all."""

import json
import sys

import pytest

from bert_jax import split_text
from bert_jax.data import sources


def run_command(monkeypatch, *arguments):
  monkeypatch.setattr(sys, "argv", ["split_text", *map(str, arguments)])
  split_text.main()


def test_reads_back_as_the_same_documents(tmp_path, monkeypatch, capsys):
  texts = ["One here. Two  here.\n\nThree\there.", "Four."]
  path = tmp_path / "in.jsonl"
  path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
  out = tmp_path / "out.txt"
  run_command(monkeypatch, "--input", path, "--output", out)
  assert out.read_text() == "One here.\nTwo here.\nThree here.\n\nFour.\n"
  assert list(sources.read_documents(str(out))) == [
    ["One here.", "Two here.", "Three here."],
    ["Four."],
  ]
  assert "2 documents, 7 words" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"\n \n", b"a\xff"])
def test_bad_text_leaves_nothing_behind(tmp_path, monkeypatch, content):
  (tmp_path / "in.txt").write_bytes(content)
  out = tmp_path / "out.txt"
  with pytest.raises(SystemExit, match="error: .*in.txt"):
    run_command(monkeypatch, "--input", tmp_path / "in.txt", "--output", out)
  assert [p.name for p in tmp_path.iterdir()] == ["in.txt"]
