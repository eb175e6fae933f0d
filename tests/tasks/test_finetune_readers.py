"""Tests the readers of the tasks' original files and their error messages."""

import json
import os

import finetune_files as files
import pytest

from bert_jax.tasks import prepare_task, task_inputs
from bert_jax.tasks.files import tags
from bert_jax.tasks.published import TASKS
from bert_jax.tasks.task_inputs import Input

DATA_FOLDER = os.environ.get("BERT_JAX_TEST_DATA")


def read_examples(name, path, split="train", **options):
  task = task_inputs.find_task(name, **options)
  return task_inputs.read(task, [Input(split, str(path))]).splits[split]


# Each case has a task, the name and the content of a file, and the texts and
# the label of the only example in the file.
PUBLISHED_FILES = [
  ("cola", "a.tsv", "gj04\t1\t\tA cat.", ["A cat."], "1"),
  ("sst2", "a.tsv", 'sentence\tlabel\na "cat \t0', ['a "cat '], "0"),
  (
    "mrpc",
    "a.txt",
    "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\ta\tb\r\n",
    ["a", "b"],
    "1",
  ),
  (
    "stsb",
    "a.tsv",
    "index\tgenre\tsentence1\tsentence2\tscore\n4\tx\ta\tb\t3.8",
    ["a", "b"],
    3.8,
  ),
  ("stsb", "a.csv", '"a, c",b,2.5', ["a, c", "b"], 2.5),
  ("stsb", "b.csv", "g\tf\t2012\t0001\t5.0\ta\tb\tlicence", ["a", "b"], 5.0),
  (
    "qqp",
    "a.tsv",
    "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n3\t1\t2\ta\tb\t1",
    ["a", "b"],
    "1",
  ),
  (
    "mnli",
    "a.tsv",
    "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\ta\tb\tneutral\t"
    "contradiction",
    ["a", "b"],
    "contradiction",
  ),
  (
    "qnli",
    "a.tsv",
    "index\tquestion\tsentence\tlabel\n0\ta\tb\tentailment",
    ["a", "b"],
    "entailment",
  ),
  (
    "rte",
    "a.tsv",
    "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tnot_entailment",
    ["a", "b"],
    "not_entailment",
  ),
  (
    "rte",
    "a.jsonl",
    '{"premise": "a", "hypothesis": "b", "label": "entailment", "idx": 0}',
    ["a", "b"],
    "entailment",
  ),
  (
    "wnli",
    "a.tsv",
    "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1",
    ["a", "b"],
    "1",
  ),
  (
    "boolq",
    "a.jsonl",
    '{"question": "a", "passage": "b", "label": true}',
    ["a", "b"],
    "true",
  ),
  (
    "cb",
    "a.jsonl",
    '{"premise": "a", "hypothesis": "b", "label": "neutral", "idx": 1}',
    ["a", "b"],
    "neutral",
  ),
  (
    "wic",
    "a.jsonl",
    '{"word": "w", "sentence1": "a", "sentence2": "b", "label": false}',
    ["w: a", "b"],
    "false",
  ),
  (
    "wsc",
    "a.jsonl",
    '{"text": "Mark told Pete he lied", "label": true, "target":'
    ' {"span1_index": 0, "span1_text": "Mark", "span2_index": 3,'
    ' "span2_text": "he"}}',
    ["* Mark * told Pete # he # lied"],
    "true",
  ),
  (
    "copa",
    "a.jsonl",
    '{"premise": "P.", "choice1": "x", "choice2": "y", "question": "cause",'
    ' "label": 1, "idx": 0}',
    [
      ["P. What was the cause of this?", "x"],
      ["P. What was the cause of this?", "y"],
    ],
    "1",
  ),
  (
    "swag",
    "a.csv",
    ",video-id,sent1,sent2,ending0,ending1,ending2,ending3,label\n"
    '7,v,"A, b.",She,w,x,y,z,2',
    [["A, b.", f"She {ending}"] for ending in "wxyz"],
    "2",
  ),
]


@pytest.mark.parametrize(
  "name, file_name, content, texts, label", PUBLISHED_FILES
)
def test_published_files_are_read(
  tmp_path, name, file_name, content, texts, label
):
  path = files.write_text(tmp_path / file_name, content)
  (example,) = read_examples(name, path)
  assert (example["texts"], example["label"]) == (texts, label)
  assert isinstance(example["id"], str)


def test_examples_of_test_sets_may_lack_labels(tmp_path):
  path = files.write_text(
    tmp_path / "t.tsv", "index\tsentence\n5\ta cat\n6\tb\n"
  )
  for name in ("cola", "sst2"):
    examples = read_examples(name, path, "test")
    assert [example["label"] for example in examples] == [None, None]
    assert [example["id"] for example in examples] == ["5", "6"]
    with pytest.raises(ValueError, match=r"t\.tsv:2 has no column 'label'"):
      read_examples(name, path, "validation")
  line = '{"question": "a", "passage": "b", "idx": 3}'
  path = files.write_text(tmp_path / "t.jsonl", line)
  assert read_examples("boolq", path, "test")[0]["label"] is None


def test_broken_lines_of_qqp_are_skipped_and_listed(tmp_path):
  head = "id\tquestion1\tquestion2\tis_duplicate\n"
  path = files.write_text(
    tmp_path / "q.tsv", head + "0\ta\tb\t1\n1\ta\n2\tc\td\t0"
  )
  contents = task_inputs.read(TASKS["qqp"], [Input("train", path)])
  assert [example["id"] for example in contents.splits["train"]] == ["0", "2"]
  assert contents.skipped_lines == [f"{path}:3"]
  # A server matches predictions to the lines of a test set by their order, so
  # no line of a test set is skipped.
  with pytest.raises(
    ValueError, match=r"q\.tsv:3 has 2 columns, but the first line has 4"
  ):
    task_inputs.read(TASKS["qqp"], [Input("test", path)])


def test_multirc_and_record_have_an_example_for_each_answer(tmp_path):
  answers = [dict(text=text, idx=i, label=i) for i, text in enumerate("xy")]
  questions = [dict(question="q?", idx=4, answers=answers)]
  path = files.write_jsonl(
    tmp_path / "m.jsonl",
    [dict(idx=2, passage=dict(text="p", questions=questions))],
  )
  examples = read_examples("multirc", path)
  assert [
    (example["id"], example["group"], example["answer"], example["label"])
    for example in examples
  ] == [
    ("2-4-0", "2-4", "x", "0"),
    ("2-4-1", "2-4", "y", "1"),
  ]
  assert examples[1]["texts"] == ["p", "q? y"]
  text = "Ann met Bob.\n@highlight\nBob left"
  spans = [(0, 2), (8, 10), (24, 26)]
  entities = [dict(start=begin, end=last) for begin, last in spans]
  queries = [
    dict(query="@placeholder left", idx=9, answers=[dict(text="Bob", start=8)])
  ]
  path = files.write_jsonl(
    tmp_path / "r.jsonl",
    [dict(idx=0, passage=dict(text=text, entities=entities), qas=queries)],
  )
  examples = read_examples("record", path)
  assert [
    (example["answer"], example["label"], example["group"])
    for example in examples
  ] == [
    ("Ann", "false", "9"),
    ("Bob", "true", "9"),
  ]
  assert examples[1]["texts"] == ["Ann met Bob. Bob left", "Bob left"]
  assert examples[0]["answers"] == ["Bob"]
  passage = dict(text=text, entities=[])
  path = files.write_jsonl(
    tmp_path / "none.jsonl", [dict(idx=0, passage=passage, qas=queries)]
  )
  with pytest.raises(ValueError, match=r"none\.jsonl:1: query 9 has no entit"):
    read_examples("record", path)


def test_a_folder_of_race_is_read(tmp_path):
  passage = dict(
    article="p",
    questions=["I _ it.", "Why?"],
    options=[list("wxyz"), list("stuv")],
    answers=["B", "D"],
  )
  files.write_text(tmp_path / "dev" / "high" / "1.txt", json.dumps(passage))
  examples = read_examples("race", tmp_path / "dev")
  assert [(example["id"], example["label"]) for example in examples] == [
    ("high/1-0", "B"),
    ("high/1-1", "D"),
  ]
  assert examples[0]["texts"][1] == ["p", "I x it."]
  assert examples[1]["texts"][3] == ["p", "Why? v"]
  bad_path = files.write_text(tmp_path / "x" / "1.txt", '{"article": "p"}')
  with pytest.raises(ValueError, match=r"1\.txt is not a passage of RACE"):
    read_examples("race", bad_path)


def test_files_with_a_word_and_its_tag_on_each_line_are_read(tmp_path):
  path = files.write_text(
    tmp_path / "c.txt",
    "-DOCSTART- -X- -X- O\n\nEU NNP B-NP I-ORG\nUN NNP I-NP B-ORG\nand CC O O\n"
    "\n-DOCSTART- -X- -X- O\n\nBonn NNP B-NP I-LOC\n",
  )
  first_example, second_example = read_examples("conll2003", path)
  # In the original files, B- marks a word only if an entity of the same type
  # ends before it. The reader gives every first word B-.
  assert first_example["words"] == ["EU", "UN", "and"]
  assert first_example["tags"] == ["B-ORG", "B-ORG", "O"]
  assert (first_example["document"], second_example["document"]) == (1, 2)
  path = files.write_text(
    tmp_path / "w.conll", "@a\tO\n\t\nBig Ben\tB-location\n"
  )
  examples = read_examples("wnut17", path)
  assert [example["words"] for example in examples] == [["@a"], ["Big Ben"]]
  assert tags.to_iob2(["I-A", "I-A", "I-B", "O", "I-B", "B-B"]) == (
    ["B-A", "I-A", "B-B", "O", "B-B", "B-B"]
  )


def test_columns_of_a_custom_task_are_read_by_role(tmp_path):
  path = files.write_text(
    tmp_path / "own.csv",
    'n,first,second,same\n7,"a\nb",c,yes\n8,d,"e ""f""",no',
  )
  flags = dict(columns="text=first,pair=second,label=same,id=n")
  examples = read_examples("same", path, **flags)
  assert examples[0] == {"id": "7", "texts": ["a\nb", "c"], "label": "yes"}
  assert examples[1]["texts"] == ["d", 'e "f"']
  task = task_inputs.find_task("same", **flags)
  assert task_inputs.read(task, [Input("train", path)]).task.labels == (
    "no",
    "yes",
  )
  path = files.write_jsonl(tmp_path / "o.jsonl", [{"x": "a", "y": 3}])
  flags = dict(kind="regression", columns="text=x,label=y")
  assert read_examples("price", path, **flags)[0]["label"] == 3.0
  lines = [{"w": ["a", "b"], "t": ["B-Z", "O"]}, {"w": ["c"], "t": ["O"]}]
  path = files.write_jsonl(tmp_path / "t.jsonl", lines)
  task = task_inputs.find_task("z", "tagging", "words=w,tags=t")
  contents = task_inputs.read(task, [Input("train", path)])
  assert contents.task.labels == ("O", "B-Z", "I-Z")
  assert contents.splits["train"][0]["tags"] == ["B-Z", "O"]


# Each case has a task, the content of x.tsv, and a pattern of the error.
BAD_FILES = [
  (
    "sst2",
    "sentence\tlabel\na\t1\nb\t2",
    r"x\.tsv:3: label '2' is not one of 0, 1",
  ),
  ("sst2", "text\tlabel\na\t1", r"x\.tsv:2 has no column 'sentence'"),
  ("sst2", "sentence\tlabel\na\t", r"x\.tsv:2 has no label in column 'label'"),
  (
    "sst2",
    "sentence\tlabel\na\t1\tb",
    r"x\.tsv:2 has 3 columns, but the first line has 2",
  ),
  ("sst2", "a\ta\n", r"x\.tsv:1: two columns have the name 'a'"),
  ("sst2", "", r"x\.tsv: the file is empty"),
  ("sst2", "sentence\tlabel\n", r"x\.tsv has no examples"),
  (
    "stsb",
    "sentence1\tsentence2\tscore\na\tb\tx",
    r"label 'x' is not a number",
  ),
  ("stsb", "sentence1\tsentence2\tscore\na\tb\tnan", "is not a number"),
  (
    "stsb",
    "a cat\tb\n",
    r"x\.tsv:1 has 2 columns, but a .* needs 3 .* the names of its",
  ),
  (
    "stsb",
    "a\tb\t3\nc\td\n",
    r"x\.tsv:2 has 2 columns, but a .* needs 3 .*; mend the",
  ),
  ("wnut17", "a\tO\nb\tperson\n", r"x\.tsv:2: tag 'person' is not O, B-TYPE"),
  (
    "wnut17",
    "a\tO\nb\tB-animal\n",
    r"x\.tsv:2: tag 'B-animal' is not one of O, B-",
  ),
  ("wnut17", "a\tO\nb\n", r"x\.tsv:2 has 1 columns, but the first line has 2"),
  ("wnut17", "a\nb\n", r"x\.tsv:1 has no tags: the first"),
]


@pytest.mark.parametrize("name, content, message", BAD_FILES)
def test_bad_files_are_named(tmp_path, name, content, message):
  path = files.write_text(tmp_path / "x.tsv", content)
  with pytest.raises(ValueError, match=message):
    read_examples(name, path)


def test_bad_flags_and_custom_files_are_refused(tmp_path):
  with pytest.raises(ValueError, match="sst names no task; did you mean sst2"):
    task_inputs.find_task("sst")
  with pytest.raises(ValueError, match="is a published task"):
    task_inputs.find_task("sst2", columns="text=a,label=b")
  with pytest.raises(ValueError, match="it does not say text=COLUMN"):
    task_inputs.find_task("mine", columns="label=b")
  with pytest.raises(ValueError, match="is not ROLE=COLUMN"):
    task_inputs.find_task("mine", columns="text=a,tags=b")
  with pytest.raises(ValueError, match="write SPLIT=FILE"):
    task_inputs.parse_inputs(TASKS["sst2"], ["train.tsv"])
  with pytest.raises(ValueError, match="there is no file .*no.tsv"):
    read_examples("sst2", tmp_path / "no.tsv")
  path = files.write_jsonl(tmp_path / "a.jsonl", [{"x": "a", "y": "p"}] * 2)
  options = dict(columns="text=x,label=y")
  with pytest.raises(ValueError, match=r"has 1 labels \(p\)"):
    read_examples("mine", path, **options)
  path_of_three_labels = files.write_jsonl(
    tmp_path / "b.jsonl", [{"x": "a", "y": label} for label in "pqr"]
  )
  task = task_inputs.find_task("mine", **options)
  inputs = [Input("train", path_of_three_labels), Input("validation", path)]
  assert task_inputs.read(task, inputs).task.labels == ("p", "q", "r")
  files.write_jsonl(tmp_path / "a.jsonl", [{"x": "a", "y": "s"}])
  with pytest.raises(
    ValueError, match=r"a\.jsonl:1: label 's' is not in split"
  ):
    task_inputs.read(task, inputs)
  # The file has a label that --labels does not name.
  with pytest.raises(
    ValueError, match=r"b\.jsonl:3: label 'r' is not one of p, q"
  ):
    read_examples(
      "mine", path_of_three_labels, columns="text=x,label=y", labels=["p", "q"]
    )
  files.write_text(tmp_path / "a.jsonl", '{"x": "a"\n')
  with pytest.raises(ValueError, match=r"a\.jsonl:1 is not a JSON object"):
    read_examples("mine", path, **options)
  json_object = {"words": ["a", "b"], "tags": ["O"]}
  files.write_jsonl(tmp_path / "a.jsonl", [json_object])
  with pytest.raises(ValueError, match=r"a\.jsonl:1 has 1 tags for 2 words"):
    read_examples("mine", path, kind="tagging")
  vocab_path = files.write_wordpiece(tmp_path)
  with pytest.raises(ValueError, match="--length=5 leaves no space"):
    prepare_task.prepare(
      TASKS["sst2"],
      [Input("test", files.write_text(tmp_path / "s.tsv", "sentence\na"))],
      vocab_path,
      str(tmp_path / "out"),
      length=5,
    )
  assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not DATA_FOLDER, reason="BERT_JAX_TEST_DATA is not set")
def test_real_files_have_their_published_sizes():
  num_examples_by_file = {
    ("sst2", "sst2/train.tsv"): 67349,
    ("cola", "cola/in_domain_train.tsv"): 8551,
    ("rte", "rte/dev.tsv"): 277,
    ("stsb", "stsb/stsb-en-test.csv"): 1379,
    ("wnut17", "wnut17/wnut17train.conll"): 3394,
  }
  for (name, file_name), num_examples in num_examples_by_file.items():
    assert (
      len(read_examples(name, f"{DATA_FOLDER}/eval/{file_name}"))
      == num_examples
    )


def test_published_tasks_are_read_from_json_lines(tmp_path):
  squad_question = dict(id=7, question="who?", context="a cat")
  squad_question["answers"] = dict(text=["cat"], answer_start=[2])
  race_passage = dict(article="a", questions=["b", "_ d"], answers=["A", "C"])
  race_passage["options"] = [list("wxyz")] * 2
  race_question = dict(
    article="a", question="b", options=list("wxyz"), answer="D"
  )
  swag_sentence = dict(sent1="a", sent2="b", label=2) | {
    f"ending{number}": str(number) for number in range(4)
  }
  tagged_words = dict(words=["EU", "ran"], tags=["I-ORG", "O"])
  expected_by_task = {
    "squad": ([squad_question], [[dict(text="cat", answer_start=2)]]),
    "race": ([race_passage, race_question], ["A", "C", "D"]),
    "swag": ([swag_sentence], ["2"]),
    "conll2003": ([tagged_words], [["B-ORG", "O"]]),
  }
  for name, (json_objects, expected_values) in expected_by_task.items():
    path = files.write_jsonl(tmp_path / f"{name}.jsonl", json_objects)
    examples = read_examples(name, path)
    field = {"squad": "answers", "conll2003": "tags"}.get(name, "label")
    assert [example[field] for example in examples] == expected_values
    assert len({example["id"] for example in examples}) == len(examples)
  # A .json file may have JSON lines, unless the task's files are JSON.
  path = files.write_jsonl(tmp_path / "a.json", [tagged_words])
  assert read_examples("conll2003", path)[0]["words"] == ["EU", "ran"]


@pytest.mark.parametrize(
  "name, line, message",
  [
    (
      "conll2003",
      {"tokens": ["a"]},
      r"1 has no list 'words'; a published task",
    ),
    ("wnut17", {"text": "a"}, r"1 has no list 'words'; .*give your task a new"),
    ("wnut17", {"words": ["a"], "tags": ["x"]}, r"1: tag 'x' is not O, B-TYPE"),
    ("swag", {"text": "a"}, r"1 has no column 'sent1'; the columns are text"),
    (
      "race",
      {"text": "a"},
      r"1 has no column 'article'; the columns are text, id",
    ),
    ("squad", {"text": "a"}, r"1 has no answers; training and validation"),
    (
      "boolq",
      {"text": "a"},
      r"1 has no column 'question'; the columns are text",
    ),
  ],
)
def test_json_lines_with_other_fields_are_refused(
  tmp_path, name, line, message
):
  path = files.write_jsonl(tmp_path / "a.jsonl", [line])
  with pytest.raises(ValueError, match=r"a\.jsonl:" + message):
    read_examples(name, path)
