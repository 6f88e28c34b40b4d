#!/bin/sh
# Makes .venv, the environment that every `make` target runs in, and skips all of it when nothing changed.
#
# Four steps: a virtual environment, uv from pip, the packages of requirements.lock (each checked against
# its hash), the project itself. The file .venv/set-up-state holds the key of the last complete set-up, or
# "unfinished PROCESS" while one runs: an interrupted or failed set-up is therefore seen by the next call, which
# starts again from an empty .venv (downloads are kept in uv's cache). A failure names its step and shows
# the end of that step's output. Nothing is written outside the project but the caches of pip and uv.
#
# PYTHON=... chooses the interpreter; without it the first supported one on the PATH is taken.
set -eu
cd "$(dirname "$0")/.."
root=$(pwd -P)
state=.venv/set-up-state
log=.venv/set-up.log
wanted=${PYTHON:-}

die() {
    printf '%s\n' "$*" >&2
    exit 1
}

# The version of interpreter $1 as "3.11.7"; nothing when it does not run (a pyenv shim, a dangling link).
version() {
    "$1" -c 'import sys; print(".".join(map(str, sys.version_info[:3])))' 2>/dev/null || true
}

supported() {
    case $1 in 3.11.* | 3.12.* | 3.13.*) return 0 ;; *) return 1 ;; esac
}

# The interpreter to build .venv from. When $1 itself lives in a virtual environment (an activated .venv,
# perhaps the one about to be replaced), this is the one that environment came from.
base_interpreter() {
    "$1" -c 'import sys; print(getattr(sys, "_base_executable", None) or sys.executable)'
}

find_python() {
    if [ -n "$wanted" ]; then
        found=$(version "$wanted")
        supported "$found" ||
            die "set-up needs Python 3.11, 3.12 or 3.13, but PYTHON=$wanted is ${found:-not a Python that runs}"
        base_interpreter "$wanted"
        return
    fi
    seen=
    for name in python3 python3.13 python3.12 python3.11 python; do
        found=$(version "$name")
        if supported "$found"; then
            base_interpreter "$name"
            return
        fi
        seen="$seen${found:+, $name is $found}"
    done
    die "set-up needs Python 3.11, 3.12 or 3.13 and found none on the PATH${seen};" \
        "install one, or name it: make PYTHON=/path/to/python3.12 ..."
}

# What a complete set-up depends on, in one line.
key() {
    printf '%s %s %s\n' "$(cat requirements.lock pyproject.toml .ci/setup.sh | cksum)" "$1" "$root"
}

# True when .venv is whole, made for this folder (not copied or moved here) and of the wanted version.
usable() {
    case $was in unfinished*) return 1 ;; esac
    supported "$have" &&
        head -n 2 .venv/bin/pip 2>/dev/null | grep -qF "$root/.venv/bin/python" &&
        { [ -z "$wanted" ] || [ "$have" = "$(version "$wanted")" ]; }
}

# Copies a command's output to the log. Downloads are the only long wait, so the start of the large ones
# (100 MiB and more) and the end of each are shown too.
log_output() {
    while IFS= read -r line; do
        printf '%s\n' "$line" >>$log
        case $line in
            *Downloading*[0-9][0-9][0-9].*MiB* | *Downloaded*) printf '    %s\n' "${line#"${line%%[! ]*}"}" ;;
        esac
    done
}

# step NUMBER TITLE COMMAND...
step() {
    number=$1 title=$2
    shift 2
    printf 'set-up %s/4: %s\n' "$number" "$title"
    : >$log
    {
        status=0
        "$@" </dev/null 2>&1 || status=$?
        echo "$status" >$log.status
    } | log_output
    status=$(cat $log.status)
    rm -f $log.status
    [ "$status" = 0 ] && return
    printf "set-up failed at step %s/4 '%s' (exit status %s):\n" "$number" "$title" "$status" >&2
    grep -v '^[[:space:]]*$' $log | tail -n 12 | sed 's/^/    /' >&2
    die "all of its output is in $log; mend the cause, then run the same command again"
}

was=$(cat $state 2>/dev/null) || was=
have=$(version .venv/bin/python)
if [ -n "$have" ] && [ "$was" = "$(key "$have")" ]; then
    [ -z "$wanted" ] || [ "$have" = "$(version "$wanted")" ] && exit 0
fi
case $was in
    unfinished*) kill -0 "${was#unfinished }" 2>/dev/null &&
        die "another set-up (process ${was#unfinished }) is at work on .venv: wait for it to end," \
            "or remove $state if that process is something else" ;;
esac

if usable; then
    echo "unfinished $$" >$state
else
    python=$(find_python)
    # Emptied rather than removed: .venv may be a link to a larger disk.
    mkdir -p .venv && rm -rf .venv/* .venv/.[!.]* ||
        die "set-up cannot write to $root/.venv"
    echo "unfinished $$" >$state
    echo "set-up makes $root/.venv: about 6 GB, half of it downloaded when uv's cache is empty"
    step 1 "create .venv with Python $(version "$python")" "$python" -m venv .venv
    have=$(version .venv/bin/python)
fi

# uv at the version and hashes of the lock file, so that not even the installer is left to chance.
awk '/^[^ #]/ { keep = /^uv==/ } keep' requirements.lock >.venv/uv.lock
step 2 "install uv" .venv/bin/python -m pip install --require-hashes -r .venv/uv.lock
step 3 "install the locked packages" \
    .venv/bin/uv pip install --python .venv/bin/python --require-hashes -r requirements.lock
step 4 "install the project" \
    .venv/bin/uv pip install --python .venv/bin/python --no-deps -e .

key "$have" >$state
echo "set-up done: . .venv/bin/activate puts fedapp and flwr on your PATH"
