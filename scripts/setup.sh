# Sourced by quickstart.sh and test.sh:  . scripts/setup.sh EXTRA
# Leaves $python, in .venv, with what pyproject.toml asks for under EXTRA, as constraints.txt pins it. Installs only
# when one of the two has changed or the folder was moved; an installation that was cut off is made again.

fail() { echo "$1" >&2; exit 1; }

supported() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
        if supported "$candidate"; then command -v "$candidate"; return; fi
    done
    candidate=${PYTHON:-python3}
    command -v "$candidate" >/dev/null && candidate="$candidate is $("$candidate" --version 2>&1)" || candidate+=" is not there"
    fail "Dragoman needs Python 3.10, 3.11, 3.12 or 3.13, but $candidate: install one, or name it: PYTHON=... bash $0"
}

make_environment() {
    local base
    base=$(find_python) || exit 1
    "$base" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$base cannot make virtual environments: install its venv module (Debian, Ubuntu: apt-get install python3-venv)."
    "$base" -m venv --clear .venv || fail "The virtual environment .venv could not be made with $base."
}

gpu() { command -v nvidia-smi >/dev/null && nvidia-smi --list-gpus 2>/dev/null | grep -q GPU; }

# PyPI's torch for Linux brings gigabytes of CUDA libraries: without a GPU, take a wheel at hand or the CPU index.
install_cpu_torch() {
    local torch
    torch=$(grep '^torch==' constraints.txt)
    "$python" -m pip install --quiet --no-deps --no-index "$torch" 2>/dev/null ||
        "$python" -m pip install --quiet --no-deps --retries 1 --timeout 15 \
            --index-url https://download.pytorch.org/whl/cpu "$torch" 2>/dev/null || true
}

install() {
    local needed=3 log=.venv/install.log
    gpu && needed=10
    [ "$(df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }')" -ge "$needed" ] ||
        fail "The disk of $PWD has less than $needed GB free, which the Python packages need: make room, then try again."
    touch .venv/installing
    echo "Installing Python packages into $PWD/.venv: a few minutes, once (details: $log)" >&2
    if ! gpu && [ "$(uname -s)" = Linux ]; then install_cpu_torch; fi
    if ! "$python" -m pip install --retries 2 --constraint constraints.txt --editable ".[$1]" 2>&1 |
        tee "$log" | { grep --line-buffered -oE 'Downloading [^ ]+ \([0-9.]+ (MB|GB)\)' || true; } >&2; then
        rm -f .venv/installing   # pip stopped by itself, so nothing is half-written
        grep -E '^ *ERROR' "$log" | tail -n 2 >&2 || true
        grep -q 'No space left' "$log" && fail "The disk is full: make room, then give this command again."
        grep -qE 'Connection|Temporary failure|timed out|from versions: none' "$log" &&
            fail "The packages could not be downloaded: check the network connection, then give this command again."
        fail "The packages could not be installed; the reason stands in $log."
    fi
}

set_up() {
    local wanted stamp=.venv/installed-$1
    python=$PWD/.venv/bin/python
    export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
    wanted=$(echo "$PWD" | cat - pyproject.toml constraints.txt | cksum)
    if [ -e .venv/installing ] || ! supported "$python" || ! "$python" -m pip --version >/dev/null 2>&1; then
        make_environment
    elif [ -n "${PYTHON:-}" ] && [ "$("$PYTHON" -V 2>&1)" != "$("$python" -V 2>&1)" ]; then
        make_environment
    elif [ "$wanted" = "$(cat "$stamp" 2>/dev/null)" ]; then
        return
    fi
    install "$1"
    echo "$wanted" >"$stamp"
    rm .venv/installing
}

set_up "$1"
