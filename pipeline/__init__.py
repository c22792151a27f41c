"""The run: text -> trained model -> text."""
