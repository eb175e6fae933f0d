"""Tests tasks through seqio, and tasks from TensorFlow Datasets."""

import finetune_files as files
import numpy as np
import pytest

from bert_jax.tasks import batches, encoded_rows, prepare_task, task_inputs
from bert_jax.tasks.published import TASKS

seqio = pytest.importorskip("seqio", reason="the extra [data] is not there")
from bert_jax.seqio_tasks import downstream  # noqa: E402
from bert_jax.tasks.files import tfds as tfds_files  # noqa: E402

BATCH_KEYS = (
  "input_ids",
  "segment_ids",
  "sequence_ids",
  "labels",
  "label_weights",
)


@pytest.fixture(autouse=True)
def reset_registry():
  """Forgets the registered tasks after each test."""
  yield
  seqio.TaskRegistry.reset()


CONTEXT = "the cat sat on the mat"
CONTENTS_BY_TASK = {
  "rte": "index\tsentence1\tsentence2\tlabel\n0\ta cat\tb\tentailment\n"
  "1\tthe dog\tsat on\tnot_entailment\n",
  "stsb": "a cat,b,3.8\nthe dog,sat on,0.5\n",
  "wnut17": "the\tO\ncat\tB-person\n\nxyz\tB-group\nsat\tI-group\n",
  "swag": ",sent1,sent2,ending0,ending1,ending2,ending3,label\n"
  "0,a,b,the,cat,sat,on the mat,3\n",
  "squad": files.squad_json(
    [(CONTEXT, [("1", "the", [("cat", 4)]), ("2", "a", [("mat", 19)])])]
  ),
}


@pytest.mark.parametrize("name", CONTENTS_BY_TASK)
def test_seqio_task_gives_the_same_rows_as_batches(tmp_path, name):
  # The rows of a task in seqio must equal `expected`, which training reads.
  ending = {"stsb": "csv", "swag": "csv", "squad": "json"}.get(name, "tsv")
  path = files.write_text(tmp_path / f"a.{ending}", CONTENTS_BY_TASK[name])
  vocab_path = files.write_wordpiece(tmp_path)
  split_files = [f"train={path}"]
  task_format = TASKS[name]
  inputs = task_inputs.parse_inputs(task_format, split_files)
  folder = str(tmp_path / "out")
  prepare_task.prepare(task_format, inputs, vocab_path, folder, length=24)
  task, encoded, _ = encoded_rows.load(folder, "train")
  num_examples = len(encoded.example_indices) // task.num_choices
  expected_batches = batches.Batches(
    task, encoded, pad=0, batch_size=num_examples, shuffle=False, buckets=(24,)
  )
  expected = expected_batches.batch(0)
  task_of_files = downstream.register(
    "one", name, split_files, vocab_path, length=24
  )
  task_of_folder = downstream.register_folder("two", folder)
  for seqio_task in (task_of_files, task_of_folder):
    dataset = seqio_task.get_dataset(split="train", shuffle=False)
    task_rows = list(dataset.as_numpy_iterator())
    assert len(task_rows) == num_examples
    for key in BATCH_KEYS:
      stacked_rows = np.stack([row[key] for row in task_rows])
      np.testing.assert_array_equal(stacked_rows, expected[key], key)
      assert stacked_rows.dtype == expected[key].dtype
  assert task_of_files.output_features["input_ids"].vocabulary.pad_id == 0


def test_tensorflow_datasets_are_read_like_files(tmp_path, monkeypatch):
  tfds = pytest.importorskip("tensorflow_datasets")
  features = tfds.features
  entailment_label = features.ClassLabel(names=["entailment", "not_entailment"])
  sentiment_label = features.ClassLabel(names=["negative", "positive"])

  class BertJaxTinyTask(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
      fields = {
        "sentence1": features.Text(),
        "sentence2": features.Text(),
        "sentence": features.Text(),
        "label": entailment_label,
        "idx": np.int32,
        "other": sentiment_label,
        "score": np.float32,
        "words": features.Sequence(features.Text()),
        "tags": features.Sequence(features.ClassLabel(names=["O", "B-X"])),
        "answers": features.Sequence(
          {"text": features.Text(), "answer_start": np.int32}
        ),
      }
      return tfds.core.DatasetInfo(
        builder=self, features=features.FeaturesDict(fields)
      )

    def _split_generators(self, manager):
      return {"train": self._generate_examples(1)}

    def _generate_examples(self, label):
      answers = {"text": ["cat"], "answer_start": [4]}
      yield (
        0,
        dict(
          sentence1="a\u00e9",
          sentence2="b",
          sentence="c",
          label=label,
          idx=7,
          other=label,
          score=3.8,
          words=["a", "b"],
          tags=[1, 0],
          answers=answers,
        ),
      )

  original_builder = tfds.builder
  monkeypatch.setattr(
    tfds, "builder", lambda name: original_builder(name, data_dir=str(tmp_path))
  )
  path = "tfds:bert_jax_tiny_task:train"
  # A class whose name is not in ("0", "1") is read as its number.
  (record,) = tfds_files.records(path, ("0", "1"))
  assert record.location == f"{path}: example 0"
  fields = record.fields
  assert fields["other"] == "1" and fields["idx"] == 7
  assert fields["words"] == ["a", "b"] and fields["tags"] == ["1", "0"]
  assert fields["answers"] == {"text": ["cat"], "answer_start": [4]}
  task_format = TASKS["rte"]
  contents = task_inputs.read(
    task_format, task_inputs.parse_inputs(task_format, [f"train={path}"])
  )
  assert contents.splits["train"] == [
    {"id": "7", "texts": ["a\u00e9", "b"], "label": "not_entailment"}
  ]
  tiny_task = task_format._replace(tfds_name="bert_jax_tiny_task")
  assert task_inputs.parse_inputs(tiny_task, ["tfds"]) == [
    task_inputs.Input("train", path)
  ]
  task_format = task_inputs.find_task("mine", "tagging")
  contents = task_inputs.read(task_format, [task_inputs.Input("train", path)])
  assert contents.splits["train"][0]["tags"] == ["B-X", "O"]
  with pytest.raises(ValueError, match="no split 'dev'"):
    list(tfds_files.records("tfds:bert_jax_tiny_task:dev"))
  with pytest.raises(ValueError, match="tfds:no_such: cannot be loaded"):
    list(tfds_files.records("tfds:no_such:train"))
