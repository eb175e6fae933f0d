"""The lengths of batches: rows are padded to the next one.

A length is a compilation, so there are few; fewer still where all of them are
compiled before the first row is known (an exported program), and more where one
pass over many texts pays for them (features of texts).
"""

# Training and predicting with a task's model.
BUCKETS = (16, 32, 64, 128, 192, 256, 384, 512)
# Features of texts; longer rows are padded to a multiple of the last.
FEATURE_BUCKETS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# The programs of an exported model.
EXPORT_BUCKETS = (16, 32, 64, 128, 256, 512)
