"""The run: text -> trained model -> text."""

import os

# Read by torch at its first tensor: what is large is put into pages of 2 MiB, on Linux and on a CPU. Logits are as large
# again at every step of a search, and to be given fresh pages of 4 KiB for them takes a tenth of the time.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
