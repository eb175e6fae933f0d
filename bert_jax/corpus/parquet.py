"""Reads texts of Parquet files, a few rows at a time.

In this module, a row is a row of a Parquet file, and has one text. One
decompressed page of the column must fit into memory. Writers make pages of
1 MB, and larger pages if a single text is larger.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

from bert_jax.corpus import lines
from bert_jax.messages import DamagedFile, UserError


def read_texts(path: str, errors: str) -> Iterator[tuple[str, str, int]]:
  """Yields (text, layout, position) for each document of a file.

  The position estimates how many bytes of the file have been read.

  Args:
    path: the file.
    errors: see `sources.find_sources`.

  Raises:
    UserError: the file is damaged, or it has no column of texts. The message
      names the file and the row.
  """
  try:
    import pyarrow as pa
    import pyarrow.parquet as pq
  except ImportError as e:
    raise UserError(
      f"{path}: reading Parquet needs the package pyarrow; run"
      " `pip install pyarrow`."
    ) from e
  if path.lower().endswith(lines.COMPRESSED_EXTENSIONS):
    raise UserError(f"{path}: decompress it; Parquet compresses by itself.")
  size = pathlib.Path(path).stat().st_size
  row_number = num_nulls = 0
  try:
    with pq.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
      _check_column(path, file.schema_arrow, pa)
      num_rows = file.metadata.num_rows
      for group_index in range(file.metadata.num_row_groups):
        for batch in file.iter_batches(
          batch_size=_rows_per_batch(file.metadata.row_group(group_index)),
          row_groups=[group_index],
          columns=["text"],
        ):
          for cell in batch.column(0):
            row_number += 1
            text = _cell_text(cell, f"{path}: row {row_number}", errors)
            num_nulls += text is None
            for document, layout in lines.cut_text(text or ""):
              yield document, layout, size * row_number // num_rows
  except OSError as e:
    # pyarrow raises an OSError without an errno if the file is damaged.
    if e.errno is not None:
      raise
    raise _unreadable_error(path, row_number, e) from e
  except pa.ArrowMemoryError:
    # This error is also a MemoryError, which `sources.read_file` handles.
    raise
  except pa.ArrowException as e:
    raise _unreadable_error(path, row_number, e) from e
  lines.note_null_rows(path, num_nulls, row_number)


def _unreadable_error(
  path: str, row_number: int, error: Exception
) -> DamagedFile:
  """Returns the error for a damaged file.

  Args:
    path: the file.
    row_number: the number of the last row that was read.
    error: the library's error.
  """
  message = " ".join(str(error).split()).rstrip(".")
  return DamagedFile(
    f"{path} is not a readable Parquet file after row {row_number} ({message})."
    " Get the file again."
  )


def _check_column(path: str, schema: Any, pa: Any) -> None:
  """Raises UserError unless exactly one column is `text` and it has strings."""
  num_text_columns = schema.names.count("text")
  if num_text_columns > 1:
    raise UserError(f"{path}: {num_text_columns} columns have the name `text`.")
  if not num_text_columns:
    raise UserError(
      f"{path} has no column `text`; its columns are {', '.join(schema.names)}."
    )
  column_type = cell_type = schema.field(schema.names.index("text")).type
  if pa.types.is_dictionary(column_type):
    cell_type = column_type.value_type
  check_names = "is_string", "is_large_string", "is_string_view"
  if not any(
    getattr(pa.types, check_name)(cell_type) for check_name in check_names
  ):
    raise UserError(
      f"{path}: the column `text` holds {column_type}, not strings."
    )


def _rows_per_batch(group: Any) -> int:
  """Returns how many rows make a batch of about `MAX_CHARS` bytes, at most 8.

  The limit of 8 is for dictionary columns. In a dictionary column, the mean
  size of a row says nothing about the longest row. Batches of more than 8 rows
  would save less than two microseconds for each row.
  """
  column_names = [
    group.column(i).path_in_schema for i in range(group.num_columns)
  ]
  column = group.column(column_names.index("text"))
  row_bytes = max(column.total_uncompressed_size // max(group.num_rows, 1), 1)
  return min(max(lines.MAX_CHARS // row_bytes, 1), 8)


def _cell_text(cell: Any, location: str, errors: str) -> str | None:
  """Returns the text of a cell; None if the cell is null.

  Args:
    cell: the library's value of the cell.
    location: the file and the row's number, for messages.
    errors: see `sources.find_sources`.
  """
  buffer = cell.as_buffer() if hasattr(cell, "as_buffer") else None
  if buffer is not None and buffer.size > 4 * lines.MAX_RECORD_CHARS:
    raise UserError(
      f"{location}: the text has {buffer.size:,} bytes; split it into several."
    )
  try:
    return cell.as_py()
  except UnicodeDecodeError as e:
    if errors == "replace":
      return e.object.decode("utf-8", "replace")
    raise UserError(
      f"{location}: the text is not UTF-8 at its byte {e.start};"
      f" {lines.remedy_for_bytes('correct it', lines.REPLACEMENT)}."
    ) from e
