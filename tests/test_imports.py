"""Imports point one way; what runs on GPU images needs no TensorFlow."""

import ast
import glob
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "bert_jax"
FOLDERS = ("bert_jax", "configs", "benchmarks", "tests")
# A file is one subject that a reader opens once.
MAX_LINES = 600
STANDARD = sys.stdlib_module_names
# The part of the package: what it may import beside the standard library.
MODELS = {"jax", "flax", "jaxtyping", "numpy", "bert_jax.models"}
OBJECTIVES = {"jax", "flax", "jaxtyping", "bert_jax.models"} | {
  "bert_jax.objectives"
}
CORE = {"jax", "flax", "optax", "jaxtyping", "numpy"}
# Of these, each reads files of its own kind: only inside of functions.
READERS = {"torch", "tensorflow", "h5py"}
CONVERT = CORE - {"optax"} | {"ml_dtypes", "tokenizers", "absl"} | READERS
CONVERT |= {
  f"bert_jax.{part}"
  for part in ("models", "convert", "checkpoint", "logs", "data")
}
ALLOWED = {
  "models": MODELS,
  "objectives": OBJECTIVES,
  "convert": CONVERT,
  "optim.py": CORE,
  "sharding.py": CORE,
  "metrics.py": CORE,
  "state.py": CORE | {"bert_jax.devices.sharding", "bert_jax.objectives"},
}
# These, and only inside of functions what their users may lack.
SEQIO = {"seqio", "tensorflow", "tensorflow_datasets", "tensorflow_text"}
SEQIO_FILES = (
  "tasks.py",
  "seqio_source.py",
  "seqio_vocabulary.py",
  "seqio_tasks.py",
)
LAZY_FILES = ("sources.py", "lines.py", "parquet.py", "tf1.py")
# Nothing in the package imports what stands above it.
TOP = ("configs", "experiments", "notebooks", "tests", "benchmarks")
COMMANDS = (
  *("main", "prepare", "train_vocab", "fill_mask", "predict", "sweep"),
  *("extract_features", "zero_shot", "export_program", "run_exported"),
  "augment",
)


def sources(*folders):
  return sorted(p for f in folders for p in (ROOT / f).rglob("*.py"))


def imports(tree):
  """Yields (full name of a module or of a member of one, node)."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for alias in node.names:
        yield alias.name, node
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, "relative import"
      for alias in node.names:
        yield f"{node.module}.{alias.name}", node


def parse(path):
  return ast.parse(path.read_text(encoding="utf-8"))


def within(name, allowed):
  return any(name == a or name.startswith(a + ".") for a in allowed)


@pytest.mark.parametrize("part", ALLOWED)
def test_a_part_imports_only_what_is_below_it(part):
  path = PACKAGE / part
  files = sources(f"bert_jax/{part}") if path.is_dir() else [path]
  assert files
  for file in files:
    for name, node in imports(parse(file)):
      assert within(name, ALLOWED[part] | STANDARD), (
        f"{file}:{node.lineno} imports {name}"
      )


def test_conversion_needs_only_the_reader_of_what_it_reads():
  for file in sources("bert_jax/convert"):
    tree = parse(file)
    for name, node in imports(tree):
      if within(name, READERS):
        where = f"{file}:{node.lineno} imports {name}"
        assert node not in tree.body, where


def test_data_knows_no_model_and_only_some_files_know_seqio():
  for file in sources("bert_jax"):
    tree = parse(file)
    for name, node in imports(tree):
      where = f"{file}:{node.lineno} imports {name}"
      if file.parent.name == "data":
        assert not within(name, ["jax", "flax", "optax"]), where
        if within(name, ["bert_jax"]):
          assert name == "bert_jax" or within(name, ["bert_jax.corpus"]), where
      if within(name, SEQIO) and file.name not in SEQIO_FILES:
        assert file.name in LAZY_FILES and node not in tree.body, where
      files = [f"bert_jax.corpus.{f.removesuffix('.py')}" for f in SEQIO_FILES]
      if within(name, files) and file.name not in SEQIO_FILES:
        assert file.name == "loader.py" and node not in tree.body, where


def test_nothing_imports_what_stands_above():
  commands = [f"bert_jax.{command}" for command in COMMANDS]
  for file in sources("bert_jax"):
    for name, node in imports(parse(file)):
      where = f"{file}:{node.lineno} imports {name}"
      assert not within(name, TOP), where
      assert not within(name, commands), where


@pytest.mark.parametrize(
  "modules",
  [
    "bert_jax.models",
    "bert_jax.training.train, bert_jax.examples.loader, bert_jax.cli.prepare,"
    " bert_jax.use.fill_mask, bert_jax.cli.train, bert_jax.cli.vocab,"
    " bert_jax.weights.model_folder",
  ],
)
def test_neither_tensorflow_nor_seqio_is_loaded(modules):
  code = (
    f"import sys, {modules}\n"
    f"print(sorted(sys.modules.keys() & {tuple(SEQIO)!r}))"
  )
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.strip() == "[]"


def test_files_are_one_subject():
  for file in sources(*FOLDERS):
    count = len(file.read_text(encoding="utf-8").splitlines())
    assert count <= MAX_LINES, f"{file} has {count} lines"


def public(body):
  """Yields (argument list, node) of public functions and methods."""
  for node in body:
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
      for arguments, method in public(node.body):
        static = any(
          d.id == "staticmethod"
          for d in method.decorator_list
          if isinstance(d, ast.Name)
        )
        yield arguments[0 if static else 1 :], method
    elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
      args = node.args
      yield args.posonlyargs + args.args + args.kwonlyargs, node


def test_public_functions_are_annotated_and_documented():
  """One-liners, commands' `main` and Flax's `setup` speak for themselves."""
  for file in sources("bert_jax"):
    tree = parse(file)
    assert ast.get_docstring(tree), f"{file} has no docstring"
    for arguments, node in public(tree.body):
      where = f"{file}:{node.lineno} {node.name}"
      if node.name == "setup":
        continue
      short = len(node.body) == 1 or node.name == "main"
      assert short or ast.get_docstring(node), f"{where} has no docstring"
      assert node.returns, f"{where}: no annotation of what it returns"
      for argument in arguments:
        assert argument.annotation, f"{where}: {argument.arg} is not annotated"


@pytest.mark.parametrize(
  "environment, platforms",
  [
    ({}, "cpu"),
    ({"JAX_PLATFORMS": "cuda,cpu"}, "cuda,cpu"),
    ({"WITHOUT": "libtpu"}, ""),
  ],
)
def test_commands_look_for_no_tpu(tmp_path, environment, platforms):
  """Where libtpu is installed, no chip is there and nobody asked for one."""
  if glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*"):
    pytest.skip("this machine may have a TPU")
  if importlib.util.find_spec("jax_plugins"):
    pytest.skip("jax has a plugin for another accelerator")
  if environment.pop("WITHOUT", None) is None:
    (tmp_path / "libtpu").mkdir()
    (tmp_path / "libtpu" / "__init__.py").write_text("")
  elif importlib.util.find_spec("libtpu"):
    pytest.skip("libtpu is installed")
  (tmp_path / "sitecustomize.py").write_text(
    "import atexit, os\n"
    "atexit.register(lambda: print(os.environ.get('JAX_PLATFORMS', '')))\n"
  )
  kept = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
  path = os.pathsep.join([str(tmp_path), str(ROOT)])
  done = subprocess.run(
    [sys.executable, "-m", "bert_jax", "split-text", "--help"],
    env=kept | {"PYTHONPATH": path} | environment,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.splitlines()[-1] == platforms
