"""The lengths of batches, called buckets. Rows are padded to the next bucket.

A program is compiled for each bucket, so there are few. An exported model has
the fewest, because it compiles all of them in advance. Features of texts have
the most, because one pass over many texts is worth more compilations.
"""

# For training a task's model, and for predictions with it.
BUCKETS = (16, 32, 64, 128, 192, 256, 384, 512)
# For features of texts. Longer rows are padded to a multiple of the last one.
FEATURE_BUCKETS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# For the programs of an exported model.
EXPORT_BUCKETS = (16, 32, 64, 128, 256, 512)
