"""Prints what share of a task's batches is padding, for three kinds of batches.

  python benchmarks/task_padding.py data/sst2 data/stsb

The arguments are folders that `bert_jax prepare-task` made. The batches are
those of the first epoch of the split `train`, or of the first split if there
is no `train`.
"""

import argparse
import sys

from bert_jax.tasks import batches


def main() -> None:
  """Prints a line for each folder."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("folders", nargs="+", metavar="FOLDER")
  parser.add_argument("--batch-size", type=int, default=32)
  options = parser.parse_args()
  for path in options.folders:
    folder = batches.open_folder(path)
    split_names = list(folder.meta["splits"])
    split_name = "train" if "train" in split_names else split_names[0]
    split = batches.open_split(folder, split_name)
    max_length = folder.meta["length"]
    shares = [
      batches.Batches(
        split.task,
        split.rows,
        split.pad,
        options.batch_size,
        group_by_length=is_grouped,
        buckets=lengths,
      ).padding()
      for lengths, is_grouped in (
        ([max_length], False),
        (split.buckets, False),
        (split.buckets, True),
      )
    ]
    print(
      f"{path} ({split_name}): rows of {max_length} {shares[0]:.2f},"
      f" a few lengths {shares[1]:.2f}, a few lengths and"
      f" group_by_length {shares[2]:.2f}"
    )


if __name__ == "__main__":
  sys.exit(main())
