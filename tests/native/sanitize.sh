#!/bin/sh
# The plugin under the sanitizers of CC, in all modes and versions: sh tests/native/sanitize.sh
# With PYTHON (one that has paceline) the pause, too.
set -eu
cd "$(dirname "$0")/../.."
OUT=$(mktemp -d)
trap 'rm -rf "$OUT"' EXIT
for kind in address,undefined thread; do
  FLAGS="-std=c11 -g -O1 -Wall -Wextra -Werror -fsanitize=$kind -fno-sanitize-recover=all -pthread"
  ${CC:-cc} $FLAGS -fvisibility=hidden -shared -fPIC -Wl,-z,nodelete -o "$OUT/plugin.so" \
    src/paceline/native/*.c
  cp "$OUT/plugin.so" "$OUT/plugin.so.copy"
  ${CC:-cc} $FLAGS -Isrc/paceline/native -o "$OUT/harness" tests/native/harness.c -ldl
  ${CC:-cc} $FLAGS -Isrc/paceline/native -o "$OUT/network" tests/native/network.c -ldl
  # The shim is linked in: a preloaded one would come before the sanitizer.
  N=src/paceline/native
  ${CC:-cc} -std=c11 -I$N -shared -fPIC -o "$OUT/libnccl.so.2" tests/native/fake_nccl.c
  ${CC:-cc} $FLAGS -I$N -DLINKED -o "$OUT/shimmed" tests/native/shim_job.c \
    tests/native/framework.c $N/shim/shim.c $N/crc.c $N/pause.c $N/ring.c $N/sampling.c $N/writer.c \
    -L"$OUT" -l:libnccl.so.2 -Wl,-rpath,"$OUT" -ldl
  echo "$kind shim: $(PACELINE_RECORD=$OUT/shim timeout 120 "$OUT/shimmed" linked 4 300 | tr '\n' ' ')"
  rm -rf "$OUT/shim"
  for version in 4 5 6 7; do
    for mode in job "threads 20000" "communicators 1000" "group 1000" fork "exec 1" "cost 20" "fuzz 50000" twice; do
      [ "$mode $version" != "twice 4" ] || continue
      rm -rf "$OUT/run"
      # The leak checker hangs now and then in a child of fork, so it is off in these modes alone.
      case $mode in fork | exec*) leaks=0 ;; *) leaks=1 ;; esac
      echo "$kind v$version $mode: $(ASAN_OPTIONS=detect_leaks=$leaks PACELINE_RECORD=$OUT/run timeout 120 "$OUT/harness" "$OUT/plugin.so" $version $mode | tr '\n' ' ')"
    done
  done
  for version in 4 7; do
    for what in "" evaluates; do
      rm -rf "$OUT/run"
      ASAN_OPTIONS=detect_leaks=0 PACELINE_NCCL_EVERY=5 PACELINE_NCCL_POLL_MS=20 \
        PACELINE_RECORD=$OUT/run timeout 120 "$OUT/harness" "$OUT/plugin.so" $version sampled 100 $what \
        >"$OUT/said"
      echo "$kind v$version sampled $what: $(grep -c '^steps' "$OUT/said") ranks"
    done
    rm -rf "$OUT/run"
    ASAN_OPTIONS=detect_leaks=0 PACELINE_NCCL_EVENTS=0xdf PACELINE_RECORD=$OUT/run \
      timeout 120 "$OUT/network" "$OUT/plugin.so" $version rail 1
    echo "$kind v$version network: $(ls "$OUT"/run/*.nccl | wc -l) processes"
  done
  # A pause that is held, one whose asker is killed, and an end in the middle of one.
  [ -n "${PYTHON:-}" ] || continue
  for ending in held killed ended; do
    rm -rf "$OUT/run"
    PACELINE_RECORD=$OUT/run "$OUT/harness" "$OUT/plugin.so" 6 pause 600000 >"$OUT/said" &
    job=$!
    sleep 2
    "$PYTHON" tests/pause_asker.py "$OUT/run" \
      '{"hold_s": 3, "arrive_s": 10, "answer_s": 20, "silent_s": 3}' >"$OUT/asked" &
    asker=$!
    case $ending in
      held) wait $asker; grep -q '"undisturbed": true' "$OUT/asked" ;;
      killed) sleep 2; kill -9 $asker; sleep 5 ;;
      ended) sleep 2 ;;
    esac
    kill -TERM $job
    wait $job
    wait $asker || true
    echo "$kind pause, $ending: $(grep -c '^rank' "$OUT/said") ranks ended"
  done
done
