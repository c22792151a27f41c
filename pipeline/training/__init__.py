"""Stage 2: batches to checkpoints, and to the model that is shipped."""
