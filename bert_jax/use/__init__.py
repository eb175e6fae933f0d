"""Uses of a trained model, as functions for notebooks."""
