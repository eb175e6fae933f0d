"""Converts published weights into converted folders, and back."""

from bert_jax.messages import Progress, UserError, note
from bert_jax.text import model_tokenizer
from bert_jax.weights import bilm, checkpoint, hf, model_folder, runs, tf1

# Published format -> the function that reads it.
READERS = {"hf": hf.read, "tf1": tf1.read, "bilm": bilm.read}


def from_published(
  source_format: str,
  path: str,
  output: str,
  family: str | None = None,
  tower: str | None = None,
) -> None:
  """Reads a published format and writes a converted folder.

  Args:
    source_format: a key of `READERS`.
    path: a folder of that format, a TF1 checkpoint or an HDF5 file of ELMo.
    output: the folder to write, which must be new or empty.
    family: "bert", "roberta", ... . None is allowed only with the format "hf":
      the family is then found from the folder's config.json or its arrays.
    tower: for ELECTRA: "discriminator", "generator" or "both"; None takes all
      towers that the input has.

  Raises:
    UserError: the input is not a model of that format, or the output exists and
      is not empty.
  """
  model_folder.check_new_folder(output)
  if family is None and source_format == "hf":
    family = hf.find_family(path)
  if family is None:
    raise UserError(f"--from {source_format} needs --family=NAME.")
  with Progress(f"converting {path}") as progress:
    progress.describe("reading")
    weights = READERS[source_format](path, family, tower)
    progress.describe("writing")
    model_folder.write(output, weights)
  _note_pieces_without_vector(path, weights)


def to_published(
  path: str, output: str, family: str | None = None, tower: str | None = None
) -> None:
  """Reads a run or a converted folder and writes a transformers folder.

  Args:
    path: a run's folder (also RUN@best, RUN@STEP), or a converted folder.
    output: the folder to write, which must be new or empty.
    family: the family that the model must have; None allows any.
    tower: as in `from_published`.

  Raises:
    UserError: the model cannot be read or is not of this family, or the output
      exists and is not empty.
  """
  model_folder.check_new_folder(output)
  # Index 1 is the part after the @ in RUN@best and RUN@STEP, or None.
  is_run = checkpoint.split_path(path)[1] or runs.is_run(path)
  with Progress(f"converting {path}") as progress:
    progress.describe("reading")
    weights = (runs.read if is_run else model_folder.read)(path)
    model_family = weights.config["family"]
    if family not in (None, model_family):
      raise UserError(
        f"family={family}: the model in {path} is of the family {model_family}."
      )
    progress.describe("writing")
    hf.write(output, weights, tower)
  _note_pieces_without_vector(path, weights)


def _note_pieces_without_vector(
  path: str, weights: model_folder.Weights
) -> None:
  """Prints which of the tokenizer's pieces have no vector in the word table."""
  if weights.config["family"] == "elmo":
    return  # ELMo reads characters, so it has no word table.
  num_rows = weights.config["model"]["vocab_size"]
  message = model_tokenizer.read_missing_rows_message(
    weights.tokenizer_files, num_rows, path
  )
  if message:
    note(f"note: {message}")
