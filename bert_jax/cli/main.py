"""Runs `bert_jax VERB --flag ...`, the only command of the package."""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from absl import logging

from bert_jax.cli import errors
from bert_jax.cli.flags import Parser
from bert_jax.messages import UserError, Watch, did_you_mean, name_flags

# The verbs are in the order of a project: prepare text, train, use the model,
# convert it.
VERBS = {
  "vocab": "train a vocabulary from text",
  "prepare": "tokenise text into a folder that training reads",
  "prepare-task": "encode a task's files into a folder that fine-tuning reads",
  "split-text": "write any text in BERT's format, one sentence on each line",
  "augment": "add variants to a task's training file (TinyBERT)",
  "config": "print every value of a run's config",
  "compile": "ask the TPU's compiler whether a run fits, without a TPU",
  "train": "pre-train, fine-tune or distil a model",
  "sweep": "run seeds and grids of a config, and compare them",
  "report": "lay runs side by side: a page with tables and curves",
  "fill-mask": "fill the masks of a text",
  "predict": "predict with any model that has a head",
  "evaluate": "evaluate a model on a split of a task",
  "submission": "pack predictions for GLUE's or SuperGLUE's server",
  "features": "write vectors of texts",
  "likelihood": "test what a pre-trained model knows: BLiMP, blanks to fill",
  "convert": "convert weights from published formats, and to them",
  "export": "write a fine-tuned model and its tokenizer into one file",
  "run-exported": "predict with an exported file",
}


def load_verb(name: str) -> ModuleType:
  """Imports and returns the module of one verb."""
  return importlib.import_module(f"bert_jax.cli.{name.replace('-', '_')}")


def parser_of(name: str) -> Parser:
  """Returns the parser of a verb's flags."""
  verb_module = load_verb(name)
  parser = Parser(
    f"bert_jax {name}",
    description=verb_module.HELP,
    example=verb_module.EXAMPLE,
    takes_stdout=getattr(verb_module, "TAKES_STDOUT", False),
    takes_config=getattr(verb_module, "TAKES_CONFIG", False),
  )
  verb_module.add_flags(parser)
  return parser


def overview() -> str:
  """Returns the help of the whole command: one line for each verb."""
  width = max(map(len, VERBS))
  lines = [f"  {name:{width}}  {summary}" for name, summary in VERBS.items()]
  return "\n".join(
    [
      "usage: bert_jax VERB --flag VALUE ...",
      "",
      "BERT-family encoders in JAX: pre-training, fine-tuning and study.",
      "",
      *lines,
      "",
      "bert_jax VERB --help shows the flags of a verb, and an example.",
    ]
  )


def execute(argv: Sequence[str]) -> None:
  """Runs a command line.

  Args:
    argv: the verb and its flags.

  Raises:
    SystemExit: the command failed, or the verb returned a status that is not 0.
  """
  name, *arguments = argv or ["--help"]
  args, continues, status = None, False, None
  try:
    try:
      if name in ("--help", "-h"):
        print(overview())
      elif name == "--version":
        print(importlib.metadata.version("bert_jax"))
      elif name not in VERBS:
        remedy = f"{did_you_mean(name, VERBS)} bert_jax --help shows all verbs."
        raise UserError(f"{name} is no verb{remedy}")
      else:
        verb_module = load_verb(name)
        continues = getattr(verb_module, "CONTINUES", False)
        logging.set_verbosity(getattr(verb_module, "VERBOSITY", logging.ERROR))
        with contextlib.ExitStack() as watch_stack:
          watch_stack.enter_context(Watch(f"bert_jax {name}"))
          args = parser_of(name).parse(arguments)
          if name == "train" or getattr(args, "input", None) == "-":
            # `train` makes its own watch, which prints on one host only. A
            # command that reads stdin may wait for the user, and prints no
            # lines then.
            watch_stack.close()
          watch_stack.enter_context(name_flags())
          status = verb_module.run(args)
    finally:
      sys.stdout.flush()
  except errors.REPORTED_ERRORS as e:
    errors.end_command(e, args, continues)
  if status:
    sys.exit(status)


def main() -> None:
  """Runs the command line of this process."""
  _skip_search_for_tpu()
  sys.excepthook = errors.report_uncaught
  threading.excepthook = errors.report_thread
  sys.unraisablehook = errors.report_unraisable
  signal.signal(signal.SIGTERM, _raise_interrupt)
  try:
    execute(sys.argv[1:])
  except errors.CommandStopped as e:
    print(e, file=sys.stderr, flush=True)
    # End at once: in an ordinary exit, threads of jax that still compute would
    # crash.
    os._exit(1)


def _raise_interrupt(number: int, frame: Any) -> None:
  """Treats SIGTERM as Ctrl-C."""
  raise KeyboardInterrupt


def _skip_search_for_tpu() -> None:
  """Selects the CPU on a machine with the TPU's compiler but without a TPU.

  Otherwise jax would ask libtpu for a TPU at every start, and libtpu would
  print many lines. If jax has another plugin (CUDA), or the user has set
  JAX_PLATFORMS, nothing is changed.
  """
  platforms = os.environ.get("JAX_PLATFORMS")
  devices = Path("/dev")
  chips = [*devices.glob("accel*"), *devices.glob("vfio/[0-9]*")]
  find_spec = importlib.util.find_spec
  if (
    not platforms
    and not chips
    and find_spec("libtpu")
    and not find_spec("jax_plugins")
  ):
    os.environ["JAX_PLATFORMS"] = "cpu"
