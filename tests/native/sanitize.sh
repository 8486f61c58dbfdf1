#!/bin/sh
# The plugin under the sanitizers of CC, in all modes and versions: sh tests/native/sanitize.sh
set -eu
cd "$(dirname "$0")/../.."
OUT=$(mktemp -d)
trap 'rm -rf "$OUT"' EXIT
for kind in address,undefined thread; do
  FLAGS="-std=c11 -g -O1 -Wall -Wextra -Werror -fsanitize=$kind -fno-sanitize-recover=all -pthread"
  ${CC:-cc} $FLAGS -fvisibility=hidden -shared -fPIC -Wl,-z,nodelete -o "$OUT/plugin.so" \
    src/paceline/native/*.c
  ${CC:-cc} $FLAGS -Isrc/paceline/native -o "$OUT/harness" tests/native/harness.c -ldl
  for version in 4 5 6; do
    for mode in job "threads 20000" "communicators 1000" fork "cost 20"; do
      rm -rf "$OUT/run"
      # The leak checker hangs now and then in a child of fork, so it is off in that mode alone.
      case $mode in fork) leaks=0 ;; *) leaks=1 ;; esac
      echo "$kind v$version $mode: $(ASAN_OPTIONS=detect_leaks=$leaks PACELINE_RECORD=$OUT/run "$OUT/harness" "$OUT/plugin.so" $version $mode | tr '\n' ' ')"
    done
  done
done
