"""The lengths to which rows are padded, called buckets.

The rows of a batch are padded to the smallest bucket that holds the longest row
of the batch. A program is compiled for each bucket, so there are few buckets.
An exported model has the fewest buckets, because all its programs are compiled
in advance. Features of texts have the most buckets: they are computed for many
texts at once, so less padding saves more time than the compilations cost.
"""

# The buckets for training a task's model, and for predictions with this model.
BUCKETS = (16, 32, 64, 128, 192, 256, 384, 512)
# The buckets for features of texts. Longer rows are padded to multiples of 512.
FEATURE_BUCKETS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# The buckets for the programs of an exported model.
EXPORT_BUCKETS = (16, 32, 64, 128, 256, 512)
