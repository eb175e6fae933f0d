"""The lengths to which rows are padded, called buckets.

The rows of a batch are padded to the smallest bucket that holds the longest of
them. A program is compiled for each bucket, so there are few buckets. An
exported model has the fewest, because all its programs are compiled in advance.
Features of texts have the most: they are computed for many texts at once, and
less padding saves more time than the compilations cost.
"""

# These are for training a task's model, and for predictions with it.
BUCKETS = (16, 32, 64, 128, 192, 256, 384, 512)
# These are for features of texts. Longer rows are padded to a multiple of 512.
FEATURE_BUCKETS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# These are for the programs of an exported model.
EXPORT_BUCKETS = (16, 32, 64, 128, 256, 512)
