"""Tests that a room imports only what its line in `ROOMS` allows.

docs/design.md has the reasons. Imports inside functions count. A string that
is the full name of a module of the package counts as an import, too.
"""

import ast
import importlib.util
import os
import pathlib
import subprocess
import sys
import tomllib
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "bert_jax"
ROOT_FILES = {"__init__.py", "__main__.py", "py.typed"} | {
  *("files.py", "messages.py", "hashing.py")
}
# The modules that users import or start, which belong to no room.
ENTRY_MODULES = ("bert_jax", "bert_jax.__main__")
MAX_NUM_ROOMS, MAX_NUM_LINES = 20, 900
# Only bert_jax.seqio_tasks needs these packages.
SEQIO_PACKAGES = (
  "seqio",
  "tensorflow",
  "tensorflow_datasets",
  "tensorflow_text",
)
# The functions of each verb in cli/. The verb's HELP says what they do.
VERB_FUNCTIONS = ("add_flags", "run")


class Room(NamedTuple):
  """Lists what a room may import besides its files and the standard library.

  Attributes:
    rooms: the names of rooms, all of which stand above this room in `ROOMS`.
    packages: the names of packages that a file may import at its top.
    lazy_packages: the names of packages that only functions may import, because
      most users lack them or should not wait for them.
  """

  rooms: str = ""
  packages: str = ""
  lazy_packages: str = ""


# A room imports only from the rooms that stand above it in this table.
ROOMS = {
  "root": Room(packages="etils filelock numpy"),
  "kernels": Room(packages="jax flax jaxtyping numpy"),
  "devices": Room("root", "jax flax numpy"),
  "text": Room("root", "etils numpy tokenizers", "sentencepiece"),
  "models": Room("root kernels", "jax flax jaxtyping numpy"),
  "objectives": Room("kernels models", "jax flax jaxtyping numpy"),
  "weights": Room(
    "root devices text models",
    "jax flax jaxtyping numpy ml_dtypes orbax etils tokenizers",
    "torch tensorflow h5py huggingface_hub safetensors",
  ),
  "corpus": Room(
    "root text",
    "etils numpy",
    "tensorflow_datasets pyarrow datasketch sentencex",
  ),
  "examples": Room("root text corpus", "etils numpy"),
  "tasks": Room(
    "root text examples",
    "etils numpy",
    "tensorflow_datasets sklearn scipy seqeval",
  ),
  "training": Room(
    "root devices text kernels models objectives weights corpus examples tasks",
    "etils jax flax jaxtyping ml_collections numpy optax",
    "matplotlib tensorboardX",
  ),
  "seqio_tasks": Room(
    "root text corpus examples tasks", "seqio tensorflow numpy"
  ),
  "use": Room(
    "root devices text models weights corpus tasks training",
    "jax flax jaxtyping ml_collections numpy optax etils tokenizers",
    "h5py matplotlib tqdm",
  ),
  "cli": Room(
    "root devices text models weights corpus examples tasks training use",
    "absl ml_collections",
  ),
}


# tasks/metrics.py loads the package of a metric by its name.
LOADED_BY_NAME = {"sklearn", "scipy", "seqeval"}


class Import(NamedTuple):
  """Describes an import in a file.

  Attributes:
    name: the full name of a module, or of a member of a module.
    line: the line in the file.
    is_eager: True if the import runs when the file is imported.
  """

  name: str
  line: int
  is_eager: bool


def module_of(path):
  """Returns the name under which a file of the package is imported."""
  name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
  return name.removesuffix(".__init__")


PATH_BY_MODULE = {
  module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))
}


def room_of(module):
  """Returns the room of a module; None for a module of `ENTRY_MODULES`."""
  if module in ENTRY_MODULES:
    return None
  path = PATH_BY_MODULE[module].relative_to(PACKAGE)
  return path.parts[0] if len(path.parts) > 1 else "root"


def parse_file(path):
  return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(tree):
  """Yields every import in a file; a string with a module's name counts."""
  nodes_in_functions = {
    id(node)
    for function in ast.walk(tree)
    if isinstance(function, ast.FunctionDef | ast.Lambda)
    for node in ast.walk(function)
  }
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f"line {node.lineno}: a relative import"
      names = [f"{node.module}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Constant) and node.value in PATH_BY_MODULE:
      if node.value in ENTRY_MODULES:
        continue  # The package's name in a message, or to read its version.
      yield Import(node.value, node.lineno, False)
      continue
    else:
      continue
    for name in names:
      yield Import(name, node.lineno, id(node) not in nodes_in_functions)


def imported_module(name):
  """Returns the module of bert_jax that an import names, or None."""
  if name.partition(".")[0] != "bert_jax":
    return None
  module = name if name in PATH_BY_MODULE else name.rpartition(".")[0]
  assert module in PATH_BY_MODULE, f"there is no {name}"
  return module


# Each entry has a module, one of its imports, and the module of bert_jax that
# this import names (None for another package).
IMPORTS = [
  (module, imported, imported_module(imported.name))
  for module, path in PATH_BY_MODULE.items()
  for imported in imports_of(parse_file(path))
]


def describe_import(module, imported):
  path = PATH_BY_MODULE[module].relative_to(ROOT)
  return f"{path}:{imported.line} imports {imported.name}"


def test_the_root_holds_only_entry_modules_and_three_files():
  entries = {path.name: path for path in PACKAGE.iterdir()}
  entries.pop("__pycache__", None)
  folders = {name for name, path in entries.items() if path.is_dir()}
  assert entries.keys() - folders <= ROOT_FILES
  assert folders == ROOMS.keys() - {"root"}
  assert len(ROOMS) <= MAX_NUM_ROOMS
  assert {room_of(module) for module in PATH_BY_MODULE} == {None, *ROOMS}


def test_the_installation_has_every_folder_with_python_files():
  """The folder `configs` is installed as bert_jax.configs."""
  text = (ROOT / "pyproject.toml").read_text()
  packages = tomllib.loads(text)["tool"]["setuptools"]["packages"]
  folders = {module_of(path.parent) for path in PATH_BY_MODULE.values()}
  assert {*packages} == folders | {"bert_jax.configs"}


def test_rooms_import_only_rooms_above_them_in_the_table():
  names = list(ROOMS)
  for i, room in enumerate(ROOMS.values()):
    assert set(room.rooms.split()) <= set(names[:i])


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_exactly_what_its_table_line_lists(room):
  table_line = ROOMS[room]
  packages, lazy_packages = (
    set(table_line.packages.split()),
    set(table_line.lazy_packages.split()),
  )
  allowed_rooms, used_imports = {room, *table_line.rooms.split()}, set()
  wrong_imports = []
  for module, imported, target in IMPORTS:
    if room_of(module) != room:
      continue
    top_level_name = imported.name.partition(".")[0]
    if target is not None:
      used_imports.add(room_of(target))
      is_allowed = room_of(target) in allowed_rooms
    elif top_level_name in sys.stdlib_module_names:
      continue
    else:
      used_imports.add(top_level_name)
      is_allowed = top_level_name in packages or (
        top_level_name in lazy_packages and not imported.is_eager
      )
    if not is_allowed:
      wrong_imports.append(describe_import(module, imported))
  assert not wrong_imports, "\n".join(wrong_imports)
  unused_names = (
    (allowed_rooms | packages | lazy_packages)
    - used_imports
    - {room}
    - LOADED_BY_NAME
  )
  assert not unused_names, f"{room}: the table has more than its files import"


def test_no_circle_between_files():
  imported_by_module = {module: set() for module in PATH_BY_MODULE}
  for module, _, target in IMPORTS:
    if target not in (None, module):
      imported_by_module[module].add(target)
  visited, path = set(), []

  def visit(module):
    assert module not in path, [*path[path.index(module) :], module]
    if module not in visited:
      path.append(module)
      for target in sorted(imported_by_module[module]):
        visit(target)
      visited.add(path.pop())

  for module in PATH_BY_MODULE:
    visit(module)


def test_no_file_imports_an_entry_module():
  wrong_imports = [
    describe_import(module, imported)
    for module, imported, target in IMPORTS
    if target is not None
    and target in ENTRY_MODULES
    and module not in ENTRY_MODULES
  ]
  assert not wrong_imports, "\n".join(wrong_imports)


def test_modules_of_the_package_are_not_put_together_from_strings():
  """The tests above do not see imports whose names are put together.

  An f-string may begin with "bert_jax." only for modules of the file's room.
  """
  for path in PATH_BY_MODULE.values():
    room = f"bert_jax.{path.parent.name}."
    for node in ast.walk(parse_file(path)):
      if isinstance(node, ast.JoinedStr) and node.values:
        first_part = node.values[0]
        text = (
          str(first_part.value) if isinstance(first_part, ast.Constant) else ""
        )
        is_allowed = not text.startswith("bert_jax.") or text.startswith(room)
        assert is_allowed, f"{path}:{node.lineno}"


def test_configs_need_ml_collections_alone():
  for path in sorted((ROOT / "configs").rglob("*.py")):
    for imported in imports_of(parse_file(path)):
      top_level_name = imported.name.partition(".")[0]
      if top_level_name not in sys.stdlib_module_names | {
        "ml_collections",
        "configs",
      }:
        assert imported.name.startswith("bert_jax.configs"), (
          f"{path}:{imported.line}"
        )


def test_importing_the_models_needs_jax_flax_and_jaxtyping_alone():
  """A process that lacks all other packages of `ROOMS` imports the models."""
  allowed_packages = {"jax", "flax", "jaxtyping", "numpy"}
  other_packages = {
    name
    for room in ROOMS.values()
    for name in f"{room.packages} {room.lazy_packages}".split()
  }
  # flax imports these packages, and they are installed with it.
  missing_packages = (
    other_packages - allowed_packages - {"optax", "orbax", "absl", "ml_dtypes"}
  )
  code = (
    "import sys\n"
    f"sys.modules |= dict.fromkeys({sorted(missing_packages)!r})\n"
    "import bert_jax.models\n"
  )
  process = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
  )
  assert process.returncode == 0, process.stderr


def source_files(*folders):
  return sorted(
    path for folder in folders for path in (ROOT / folder).rglob("*.py")
  )


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
    f"print(sorted(sys.modules.keys() & {SEQIO_PACKAGES!r}))"
  )
  process = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
  )
  assert process.returncode == 0, process.stderr
  assert process.stdout.strip() == "[]"


def test_no_file_is_too_long():
  """A longer file is about two subjects, and should become two files."""
  for file in source_files("bert_jax", "configs", "benchmarks", "tests"):
    num_lines = len(file.read_text(encoding="utf-8").splitlines())
    assert num_lines <= MAX_NUM_LINES, f"{file} has {num_lines} lines"


def public_functions(body):
  """Yields (argument list, node) of public functions and methods."""
  for node in body:
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
      for arguments, method in public_functions(node.body):
        is_static = any(
          decorator.id == "staticmethod"
          for decorator in method.decorator_list
          if isinstance(decorator, ast.Name)
        )
        yield arguments[0 if is_static else 1 :], method
    elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
      parameters = node.args
      yield (
        parameters.posonlyargs + parameters.args + parameters.kwonlyargs,
        node,
      )


def test_public_functions_are_annotated_and_documented():
  """Functions of one statement, and those of a verb, need no docstring.

  Flax's `setup` is not checked.
  """
  for file in source_files("bert_jax"):
    tree = parse_file(file)
    assert ast.get_docstring(tree), f"{file} has no docstring"
    for arguments, node in public_functions(tree.body):
      location = f"{file}:{node.lineno} {node.name}"
      if node.name == "setup":
        continue
      is_short = len(node.body) == 1 or node.name in VERB_FUNCTIONS
      assert is_short or ast.get_docstring(node), f"{location} has no docstring"
      assert node.returns, f"{location}: no annotation of what it returns"
      for argument in arguments:
        assert argument.annotation, (
          f"{location}: {argument.arg} is not annotated"
        )


@pytest.mark.parametrize(
  "environment, expected_platforms",
  [
    ({}, "cpu"),
    ({"JAX_PLATFORMS": "cuda,cpu"}, "cuda,cpu"),
    ({"WITHOUT": "libtpu"}, ""),
  ],
)
def test_commands_use_the_cpu_if_there_is_no_tpu(
  tmp_path, environment, expected_platforms
):
  """Commands choose the CPU if libtpu is installed but there is no TPU.

  If JAX_PLATFORMS is set, or libtpu is not installed, commands do not set it.
  """
  devices = pathlib.Path("/dev")
  if [*devices.glob("accel*"), *devices.glob("vfio/[0-9]*")]:
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
  variables = {
    name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"
  }
  python_path = os.pathsep.join([str(tmp_path), str(ROOT)])
  process = subprocess.run(
    [sys.executable, "-m", "bert_jax", "split-text", "--help"],
    env=variables | {"PYTHONPATH": python_path} | environment,
    capture_output=True,
    text=True,
  )
  assert process.returncode == 0, process.stderr
  assert process.stdout.splitlines()[-1] == expected_platforms
