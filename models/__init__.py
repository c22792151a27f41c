"""The mathematics: attention, the Transformer, its loss and the search. Knows nothing of files, text or Lightning."""
