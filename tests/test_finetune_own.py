"""One's own data: what a label may be, and the forms that tags come in."""

import finetune_files as files
import pytest

from bert_jax.finetune import reading
from bert_jax.finetune.reading import Input

COLUMNS = "text=text,label=label"


def read(inputs, name="mine", **own):
  known = reading.find(name, **own)
  return reading.read(known, [Input(*pair) for pair in inputs.items()])


def labels_of(found, split):
  return [example["label"] for example in found.splits[split]]


def test_minus_one_is_a_class_of_ones_own(tmp_path):
  table = files.write(tmp_path / "a.tsv", "text\tlabel\na\t-1\nb\t0\nc\t1\n")
  lines = [{"text": "a", "label": -1}, {"text": "b", "label": None}]
  lines += [{"text": "c", "label": " "}, {"text": "d"}]
  other = files.write_jsonl(tmp_path / "b.jsonl", lines)
  found = read({"train": table, "test": other}, columns=COLUMNS)
  assert found.known.task.labels == ("-1", "0", "1")
  assert labels_of(found, "train") == ["-1", "0", "1"]
  assert labels_of(found, "test") == ["-1", None, None, None]
  # In a published task it says that the label is kept back.
  table = files.write(tmp_path / "c.tsv", "sentence\tlabel\na\t-1\n")
  (example,) = reading.read(
    reading.find("sst2"), [Input("test", table)]
  ).splits["test"]
  assert example["label"] is None
  with pytest.raises(ValueError, match=r"c\.tsv:2: no label in column 'label'"):
    reading.read(reading.find("sst2"), [Input("train", table)])


def test_whole_numbers_are_one_class_however_they_are_written(tmp_path):
  lines = [{"text": "a", "label": x} for x in (0, 1.0, 1, 2.5, -0.0, 1e3)]
  path = files.write_jsonl(tmp_path / "a.jsonl", lines)
  found = read({"train": path}, columns=COLUMNS)
  assert labels_of(found, "train") == ["0", "1", "1", "2.5", "0", "1000"]
  assert found.known.task.labels == ("0", "1", "1000", "2.5")
  # Names that were given stay as they were given.
  lines = [{"text": "a", "label": x} for x in (0.0, 1.0)]
  path = files.write_jsonl(tmp_path / "b.jsonl", lines)
  for names in (["0", "1"], ["0.0", "1.0"]):
    found = read({"train": path}, columns=COLUMNS, labels=names)
    assert labels_of(found, "train") == names
  path = files.write(tmp_path / "c.jsonl", '{"text": "a", "label": NaN}')
  with pytest.raises(ValueError, match=r"c\.jsonl:1: label nan is neither a n"):
    read({"train": path}, columns=COLUMNS)
