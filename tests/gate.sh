#!/usr/bin/env bash
# What `make quick`, `make test`, `make docs`, `make services` and `make stress` run. At its end it says how long each part took.
#
#   BIN=.venv/bin WORKERS=3 tests/gate.sh quick|test|docs|services|stress
#
# Exit status 1 if a part failed, whatever came after it.
set -uo pipefail
cd "$(dirname "$0")/.."

# Byte code that is not kept is compiled again by every process of the tests: a third of all their work.
unset PYTHONDONTWRITEBYTECODE

what=${1:-test}
case $what in
  quick | test | docs | services | stress) ;;
  *) echo "quick, test, docs, services or stress, not $what" >&2 && exit 2 ;;
esac
took=() failed=0 busy=()
folder=$(mktemp -d)
trap 'kill "${busy[@]}" 2>/dev/null; rm -rf "$folder"' EXIT

below() { # pid: the processes that it started, and theirs
  local child
  for child in $(pgrep -P "$1"); do
    below "$child"
    echo "$child"
  done
}

# Ctrl-C ends the part that runs, what runs beside it, and no further part begins.
trap 'trap "" INT TERM; kill $(below $$) 2>/dev/null; exit 130' INT TERM

note() { # seconds, status, name
  took+=("$(printf '%5d s  %s%s' "$1" "$3" "$([ "$2" = 0 ] || echo '  FAILED')")")
  [ "$2" = 0 ] || failed=1
}

run() { # name, command
  local name=$1 begin=$SECONDS status=0
  shift
  "$@" || status=$?
  note $((SECONDS - begin)) "$status" "$name"
  return "$status"
}

finish() {
  printf '%s\n' '' 'How long each part took:' "${took[@]}" "$(printf '%5d s  in all' $SECONDS)"
  exit $failed
}

lint() { "$BIN/ruff" check . && "$BIN/ruff" format --check .; }

beside() { # name, command: beside the tests, which wait for processes and timers half of their time
  local name=$1 begin=$SECONDS status=0
  shift
  "$@" >"$folder/$name" 2>&1 || status=$?
  echo "$((SECONDS - begin)) $status" >"$folder/$name-took"
}

types() { "$BIN/mypy" --strict src; }

docs() { # the whole site anew: what a build keeps, it does not warn of again
  "$BIN/python" docs/make_gallery.py &&
    "$BIN/python" -m sphinx --fail-on-warning --keep-going -q -E -a -b html docs docs/_build/html &&
    echo "the site: docs/_build/html/index.html"
}

tests() { # arguments of pytest; in files, as tests of a file share what they are made of
  "$BIN/python" -m pytest -q -n "$WORKERS" --dist loadfile --no-loadscope-reorder "$@"
}

run 'lint' lint || finish
case $what in
  quick) run 'tests that take seconds' tests -m 'not alone and not slow and not services' ;;
  test)
    { beside types types; beside docs docs; } &
    run 'tests (beside mypy and the site)' tests -m 'not alone and not services'
    wait $!
    for part in types docs; do
      cat "$folder/$part"
      read -r seconds status <"$folder/$part-took"
      note "$seconds" "$status" "$part (beside the tests)"
    done
    run 'tests that measure time' "$BIN/python" -m pytest -q -m alone
    ;;
  docs) run 'docs' docs ;;
  services) run 'tests with a browser or PostgreSQL' tests -m services ;;
  stress)
    for _ in 1 2 3 4 5 6 7 8; do
      "$BIN/python" -c 'while True: pass' &
      busy+=($!)
    done
    run 'tests beside 8 busy processes' tests -m 'not alone'
    ;;
esac
finish
