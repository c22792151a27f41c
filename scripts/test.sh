#!/usr/bin/env bash
# Set up, then run the tests, on up to four cores at a time; arguments go to pytest:  bash scripts/test.sh [-k masks]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/setup.sh dev
"$python" -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal "$@"
