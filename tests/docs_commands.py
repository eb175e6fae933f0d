"""Runs every command that README and docs print, at a small size.

  python tests/docs_commands.py [--only WORD] [--keep FOLDER]

Each command is taken from the page as it is printed. It runs in a folder with
small versions of the files that it names. This program adds flags that make the
sizes and step counts small. Some commands are not run:

* The extras of pip commands and the targets of make commands are looked up in
  pyproject.toml and in the Makefile. `git clone` is not checked.
* The flags of benchmarks that need a GPU or much time are only parsed.
* Commands that need the TPU's compiler may fail if libtpu is not installed.
* Commands that need ELMo's test data or pandas are left out if these are not
  there.
"""

import argparse
import importlib.util
import io
import json
import lzma
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator
from typing import NamedTuple

import tiny_tasks

from bert_jax.cli import configs
from bert_jax.training import config as config_lib
from bert_jax.use import blimp
from bert_jax.weights.run_config import flatten

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ("README.md", *sorted(f"docs/{p.name}" for p in ROOT.glob("docs/*.md")))
_CODE_BLOCK_PATTERN = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.S | re.M)
_INLINE_COMMAND_PATTERN = re.compile(
  r"`((?:bert_jax [a-z-]+ -|python |pip install |make )[^`]+)`", re.S
)
# A placeholder in the commands -> the word that replaces it.
REPLACEMENTS = {
  "PATH": "runs/mine",
  "MODEL": "runs/mine",
  "BERT": "runs/mine",
  "PRETRAINED": "runs/mine",
  "RUN_OR_FOLDER": "runs/sst2",
  "DIR_OR_RUN": "runs/mine",
  "VOCAB": "vocab.txt",
  "bert-base-uncased-vocab.txt": "vocab.txt",
  "FOLDER": "bilm",
  "REPOSITORY": "REPOSITORY",
  "configs/FILE.py:NAME": "configs/bert.py:tiny",
  "SLICE": "v5e:2x2",
}
# A text in a program of a page -> its replacement. An earlier command of the
# pages wrote an ELMo model into the folder DIR.
PROGRAM_REPLACEMENTS = {
  '"DIR"': '"runs/mine"',
  '"runs/elmo_original"': '"DIR"',
  "steps=2700": "steps=20",
}
# A folder in `runs` that no command makes -> the kind of its task.
FINE_TUNED_KINDS = {"ner": "tagging", "squad": "span"}
# Programs whose flags are only parsed, because they need a GPU or much time.
PARSE_ONLY_PROGRAMS = (
  "train_step",
  "elmo_step",
  "inference",
  "kernels",
  "teacher_student",
)
# This code starts the program that it gets as its first argument, and ends it
# as soon as the program has parsed its flags.
PARSE_ONLY_CODE = """
import argparse, runpy, sys
parse = argparse.ArgumentParser.parse_args
def only(self, *a, **k):
  parse(self, *a, **k)
  sys.exit(0)
argparse.ArgumentParser.parse_args = only
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# This code runs before a program of a page. It defines names that the program
# uses.
PRELUDE_CODE = """
import numpy as np
PATH, texts = "runs/mine", ["Some text here.", "Some more."]
ids = np.ones((1, 4), np.int32)
"""
# The values of a config and the sizes of a model that make a run small.
SMALL_VALUES = {
  "total_steps": 2,
  "batch_size": 8,
  "micro_batches": 1,
  "log.every": 1,
  "evaluate.every": 2,
  "evaluate.examples": 8,
  "checkpoint.every": 2,
  "data.length": 32,
  "data.max_predictions": 5,
  "data.streams": 0,
}
SMALL_SIZES = {
  "hidden": 32,
  "embedding_size": 32,
  "num_layers": 4,
  "heads": 2,
  "mlp": 64,
  "unroll": 1,
}


class Command(NamedTuple):
  """Holds a command of a page.

  Attributes:
    page: the page's path.
    text: the command, on one line.
    is_program: True for a block of Python code, False for a command line.
  """

  page: str
  text: str
  is_program: bool = False


class Outcome(NamedTuple):
  """Holds the outcome of a command.

  Attributes:
    command: the command as the page prints it.
    command_run: the command that was run, with small sizes; empty if none was
      run.
    seconds: the time that the command took; 0 if it was not run.
    error: the last lines of the command's output if it failed, or what
      `check_install` found; None if all is well.
  """

  command: Command
  command_run: str
  seconds: float
  error: str | None


def all_commands() -> list[Command]:
  """Returns the commands of all pages, in order, without repetitions."""
  command_by_text: dict[tuple[str, str], Command] = {}
  for page in PAGES:
    for command in _commands_of_page(
      page, (ROOT / page).read_text(encoding="utf-8")
    ):
      command_by_text.setdefault(
        (command.text, page if command.is_program else ""), command
      )
  return list(command_by_text.values())


def _commands_of_page(page: str, text: str) -> Iterator[Command]:
  # Each entry has a position in the page, a language and a text.
  found_blocks = []
  for match in _CODE_BLOCK_PATTERN.finditer(text):
    found_blocks.append((match.start(), match[2], match[3]))
  text_without_blocks = _CODE_BLOCK_PATTERN.sub(
    lambda match: " " * len(match[0]), text
  )
  for match in _INLINE_COMMAND_PATTERN.finditer(text_without_blocks):
    found_blocks.append((match.start(), "inline", " ".join(match[1].split())))
  for _, language, content in sorted(found_blocks):
    if language == "python":
      yield Command(page, content, is_program=True)
      continue
    for line in content.replace("\\\n", " ").split("\n"):
      line = " ".join(line.partition("  #")[0].split())
      prefixes = ("bert_jax ", "python ", "pip install", "make", "PYTHONPATH=")
      prefixes += ("git clone",)
      if line.startswith(prefixes):
        yield Command(page, line)


def make_folder(folder: pathlib.Path) -> None:
  """Writes small versions of the files that the commands name."""
  rng = random.Random(0)
  words = ["some", "text", "of", "words", "here", "more", "the", "cat", "sat"]
  words += [f"w{i}" for i in range(200)]

  def sentence() -> str:
    return " ".join(rng.choices(words, k=rng.randint(4, 12))) + " ."

  def document() -> list[str]:
    return [sentence() for _ in range(rng.randint(8, 20))]

  for name in ("text", "web", "runs", "data"):
    (folder / name).mkdir()
  for name in ("configs", "benchmarks", "tests", "bert_jax"):
    (folder / name).symlink_to(ROOT / name)
  for name in ("text/a.txt", "text/b.txt"):
    documents = ("\n".join(document()) for _ in range(60))
    (folder / name).write_text("\n\n".join(documents) + "\n")
  json_lines = [
    json.dumps({"text": " ".join(document())}) + "\n" for _ in range(80)
  ]
  for name in ("wiki-valid.jsonl.xz", "wiki-train-01-of-05.jsonl.xz"):
    (folder / name).write_bytes(lzma.compress("".join(json_lines).encode()))
  _write_zst(folder / "web" / "a.jsonl.zst", "".join(json_lines).encode())
  labelled_lines = [f"{sentence()}\t{i % 2}" for i in range(24)]
  for name in ("train.tsv", "dev.tsv"):
    lines = ["sentence\tlabel", *labelled_lines, ""]
    (folder / name).write_text("\n".join(lines))
  json_text_lines = [json.dumps({"text": sentence()}) + "\n" for _ in range(5)]
  for name in ("texts.jsonl", "in.jsonl"):
    (folder / name).write_text("".join(json_text_lines))
  (folder / "texts.txt").write_text("\n".join(sentence() for _ in range(5)))
  cloze_question = {"text": "Some [MASK] of words .", "answer": "text"}
  (folder / "blanks.jsonl").write_text(json.dumps(cloze_question) + "\n")
  vector_lines = [f"{word} {rng.random()} {rng.random()}\n" for word in words]
  (folder / "glove.txt").write_text("".join(vector_lines))
  for name, kind in FINE_TUNED_KINDS.items():
    tiny_tasks.write_fine_tuned(folder / "runs" / name, kind)
  (folder / "runs" / "one").mkdir()
  prediction_lines = [
    "index\tprediction",
    *(f"{i}\t{i % 2}" for i in range(1821)),
    "",
  ]
  (folder / "runs" / "one" / "SST-2.tsv").write_text(
    "\n".join(prediction_lines)
  )
  _write_blimp(folder / "blimp.tar.xz")
  test_data_folder = os.environ.get("BERT_JAX_TEST_DATA", "")
  if test_data_folder:
    (folder / "bilm").symlink_to(f"{test_data_folder}/elmo_fixtures/bilm")


def _write_blimp(path: pathlib.Path) -> None:
  """Writes as many files as BLiMP has, each with one pair."""
  with tarfile.open(path, "w:xz") as archive:
    for number in range(blimp.NUM_FILES):
      pair = {"sentence_good": "some text .", "sentence_bad": "text some ."}
      pair |= {"UID": f"uid_{number}", "linguistics_term": "quantifiers"}
      content = (json.dumps(pair) + "\n").encode()
      info = tarfile.TarInfo(f"data/uid_{number}.jsonl")
      info.size = len(content)
      archive.addfile(info, io.BytesIO(content))


def _write_zst(path: pathlib.Path, content: bytes) -> None:
  import pyarrow as pa

  with (
    pa.OSFile(str(path), "wb") as compressed_file,
    pa.CompressedOutputStream(compressed_file, "zstd") as zstd_stream,
  ):
    zstd_stream.write(content)


def small_flags(path: str) -> list[str]:
  """Returns flags of `bert_jax train` that make a config's run small."""
  config = configs.load_defaults(path)
  flat_config = flatten(config)
  value_by_key = {
    key: setting for key, setting in SMALL_VALUES.items() if key in flat_config
  }
  if config_lib.trains_on_task(config):
    value_by_key.pop("data.max_predictions", None)
  for key in flat_config:
    if key.startswith("phases.") and key.endswith(".length"):
      value_by_key[key] = 48
    if key.startswith("phases.") and key.endswith(".max_predictions"):
      value_by_key[key] = 7
  model_by_section = {"model": config["model"]}
  if "teacher" in config:
    model_by_section["teacher.model"] = config["teacher"]["model"]
  for section, model in model_by_section.items():
    settable_names = configs._encoder_attributes(model)
    sizes = {
      name: number
      for name, number in SMALL_SIZES.items()
      if name in settable_names
    }
    if path.partition(":")[0].endswith("small.py"):
      # Some of configs/small.py are students. Their configs list the layers of
      # the teacher that a student copies, so they keep the number of layers.
      del sizes["num_layers"]
    value_by_key |= {
      f"{section}.{name}": setting for name, setting in sizes.items()
    }
  return [f"--config.{key}={setting}" for key, setting in value_by_key.items()]


def make_small(words: list[str]) -> list[str] | None:
  """Returns the small version of a command; None to parse its flags only."""
  program = " ".join(words[2:4]) if words[1] == "-m" else words[1]
  if program.rpartition("/")[2].removesuffix(".py") in PARSE_ONLY_PROGRAMS:
    return None
  if program == "bert_jax vocab":
    words = [*words, "--size", "300"]
  if program in ("bert_jax train", "bert_jax compile"):
    path = words[words.index("--config") + 1]
    flags = small_flags(str(ROOT / path) if "/" in path else path)
    page_flags = {word.partition("=")[0] for word in words}
    replaced_flags = ("--config.total_steps", "--config.batch_size")
    replaced_flags += ("--config.evaluate.every",)
    # Steps and sizes are small, even if the page sets them.
    words = [
      word for word in words if word.partition("=")[0] not in replaced_flags
    ]
    words += [
      flag
      for flag in flags
      if flag.partition("=")[0] not in page_flags - {*replaced_flags}
    ]
  if program == "bert_jax compile":
    words[words.index("--topology") + 1] = "v5e:2x2"
  if program == "benchmarks/data.py":
    words += ["--seconds", "0.05", "--length", "32", "--batch", "8"]
  if program == "benchmarks/exported.py":
    words += ["--rows", "2", "--lengths", "32", "--steps", "1"]
    words += ["--windows", "1"]
  if program == "benchmarks/tokenise.py":
    words += ["--rounds", "1", "--megabytes", "0.01"]
  return words


def check_install(command: Command) -> str | None:
  """Returns an error about the extras or targets of a command, or None."""
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  makefile = (ROOT / "Makefile").read_text()
  for extras in re.findall(r"\[([\w,]+)\]", command.text):
    for extra in extras.split(","):
      if extra not in project["optional-dependencies"]:
        return f"pyproject.toml has no extra {extra}"
  if command.text.startswith("make"):
    for target in command.text.split()[1:]:
      if not re.search(rf"^{re.escape(target)}:", makefile, re.M):
        return f"the Makefile has no target {target}"
  return None


def setup_commands() -> list[Command]:
  """Returns commands that make files and models for the pages' commands."""
  run_flags = "--config.data.path=data/mine --config.teacher.path=runs/mine"
  setup_lines = [
    "bert_jax vocab --input 'text/*.txt' --size 300 --output vocab.txt",
    "bert_jax prepare --input 'text/*.txt' --vocab vocab.txt"
    " --output data/mine --heldout 0.05",
    "bert_jax train --config configs/bert.py:base --workdir runs/mine"
    " --config.data.path=data/mine",
    "bert_jax convert --to hf --model runs/mine --output HF_FOLDER",
    "bert_jax train --config configs/tinybert.py:4x312 --workdir"
    f" runs/tinybert_4x312 {run_flags}",
  ]
  return [Command("set up", line) for line in setup_lines]


def run_command(command: Command, folder: pathlib.Path) -> Outcome:
  """Runs a command of a page in a folder that `make_folder` filled."""
  start = time.monotonic()
  text = command.text
  if not command.is_program and not re.match(
    r"(\w+=\S+ )?(python|bert_jax) ", text
  ):
    return Outcome(command, "", 0.0, check_install(command))
  if "elmo_original" in text and not (folder / "bilm").exists():
    return Outcome(command, "", 0.0, None)
  has_pandas = importlib.util.find_spec("pandas") is not None
  if command.is_program and "import pandas" in text and not has_pandas:
    # tests/use/test_model.py runs these programs with a stand-in for pandas.
    return Outcome(command, "", 0.0, None)
  environment = os.environ | {"JAX_PLATFORMS": "cpu"}
  import_paths = [str(ROOT), environment.get("PYTHONPATH", "")]
  environment["PYTHONPATH"] = os.pathsep.join(filter(None, import_paths))
  if command.is_program:
    for old, new in PROGRAM_REPLACEMENTS.items():
      text = text.replace(old, new)
    arguments = [sys.executable, "-c", PRELUDE_CODE + text]
  else:
    words = shlex.split(text)
    while "=" in words[0]:
      words = words[1:]
    if words[0] == "bert_jax":
      words = ["python", "-m", *words]
    words = [_replace_placeholder(word) for word in words]
    if "benchmarks/exported.py" in words:
      words[words.index("DIR")] = "runs/sst2"
    if "bilm" in words and not (folder / "bilm").exists():
      return Outcome(command, "", 0.0, None)
    if "uncased_L-12_H-768_A-12" in words:
      _write_tf1(folder / "uncased_L-12_H-768_A-12")
    words = _make_room_for_output(words, folder)
    small_words = make_small(words)
    if small_words is None:
      words = words[1:]
      arguments = [sys.executable, "-c", PARSE_ONLY_CODE, *words]
    else:
      arguments = [sys.executable, *small_words[1:]]
      arguments = _expand_patterns(arguments, folder)
  process = subprocess.run(
    arguments, cwd=folder, env=environment, capture_output=True, text=True
  )
  seconds = time.monotonic() - start
  error = None
  # A command that needs the TPU's compiler reads its flags before it fails.
  lacks_compiler = (
    "the TPU compiler, libtpu, is not installed" in process.stderr
  )
  if process.returncode and not lacks_compiler:
    lines = (process.stderr or process.stdout).strip().splitlines()
    error = "\n".join(lines[-6:]) or f"exit status {process.returncode}"
  return Outcome(command, shlex.join(arguments[1:]), seconds, error)


def _replace_placeholder(word: str) -> str:
  """Replaces a word that is a placeholder, or has one after "="."""
  if word in REPLACEMENTS:
    return REPLACEMENTS[word]
  flag, equal, word_after = word.partition("=")
  return f"{flag}={REPLACEMENTS.get(word_after, word_after)}" if equal else word


def _make_room_for_output(words: list[str], folder: pathlib.Path) -> list[str]:
  """Makes room for an output, because several commands write to one name.

  If later commands need the earlier output, the new one gets another name.
  Otherwise the earlier output is removed.
  """
  is_training = words[1:4] == ["-m", "bert_jax", "train"]
  for flag in ("--output", *(["--workdir"] if is_training else [])):
    if flag in words:
      path = folder / words[words.index(flag) + 1]
      outputs_needed_later = (
        "runs/mine",
        "runs/sst2",
        "HF_FOLDER",
        "vocab.txt",
        "data/mine",
      )
      if (
        str(path.relative_to(folder)) in outputs_needed_later and path.exists()
      ):
        words = list(words)
        words[words.index(flag) + 1] += f"_{len(list(path.parent.iterdir()))}"
      elif path.is_dir() and flag == "--output":
        shutil.rmtree(path)
  return words


def _expand_patterns(words: list[str], folder: pathlib.Path) -> list[str]:
  """Expands patterns of paths in a `submission` command, as a shell does."""
  expanded = []
  for word in words:
    is_pattern = "*" in word and "submission" in words
    expanded += (
      sorted(str(path) for path in folder.glob(word)) if is_pattern else [word]
    )
  return expanded


def _write_tf1(path: pathlib.Path) -> None:
  sys.path.insert(0, str(ROOT / "tests"))
  import tf1_releases

  if not path.exists():
    arrays = tf1_releases.random_arrays(tf1_releases.bert_shapes())
    tf1_releases.save_checkpoint(str(path), "bert_model.ckpt", arrays)
    tf1_releases.write_json(path / "bert_config.json", tf1_releases.BERT_CONFIG)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces += [f"w{i}" for i in range(tf1_releases.VOCAB_SIZE - len(pieces))]
    (path / "vocab.txt").write_text("\n".join(pieces) + "\n")


def run_all(folder: pathlib.Path, only: str = "") -> Iterator[Outcome]:
  """Yields the outcomes of the set-up, and of commands that contain `only`."""
  first_commands = []
  if not (folder / "text").exists():
    make_folder(folder)
    first_commands = setup_commands()
  for command in [*first_commands, *all_commands()]:
    if only in command.text or command.page == "set up":
      yield run_command(command, folder)
      # Other commands train on data/wiki, so link it to this prepared folder.
      if command.text.startswith("bert_jax prepare --input 'text"):
        wiki_folder = folder / "data" / "wiki"
        if not wiki_folder.exists():
          wiki_folder.symlink_to(folder / "data" / "mine")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--only", default="", help="commands with this word")
  parser.add_argument(
    "--keep", help="run in this folder, keep it, and use what it has already"
  )
  args = parser.parse_args()
  num_failed = 0
  with tempfile.TemporaryDirectory() as temporary_folder:
    folder = pathlib.Path(args.keep or temporary_folder)
    folder.mkdir(exist_ok=True)
    for outcome in run_all(folder, args.only):
      num_failed += outcome.error is not None
      state = (
        "FAILED"
        if outcome.error
        else "ran"
        if outcome.command_run
        else "compared"
      )
      line = " ".join(outcome.command.text.split())[:110]
      print(
        f"{state:8} {outcome.seconds:5.1f} s  {outcome.command.page}: {line}"
      )
      if outcome.error:
        print(f"  {outcome.command_run}\n  {outcome.error}")
      sys.stdout.flush()
  sys.exit(f"error: {num_failed} commands failed." if num_failed else 0)


if __name__ == "__main__":
  main()
