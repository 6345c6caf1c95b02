#!/usr/bin/env bash
# Run `make test-all` several times, each in one piece, the last one beside four busy processes, and print the totals of
# each: a test that passes only on a quiet machine, or only mostly, shows here. Fails if a run fails.
#   scripts/repeat_tests.sh [RUNS]          3 by default; logs are in .cache/repeat-tests/
#   TARGET=test scripts/repeat_tests.sh     another target of the Makefile
set -uo pipefail
cd "$(dirname "$0")/.."
runs=${1:-3} target=${TARGET:-test-all}
logs=.cache/repeat-tests
mkdir -p "$logs"
busy=()
trap 'kill "${busy[@]}" 2>/dev/null' EXIT
failed=0
for run in $(seq "$runs"); do
  beside=""
  if [ "$run" = "$runs" ]; then
    for _ in 1 2 3 4; do
      (while :; do :; done) &
      busy+=($!)
    done
    beside=" beside four busy processes"
  fi
  SECONDS=0
  if make "$target" >"$logs/$run.log" 2>&1; then ended="passed"; else ended="FAILED"; failed=1; fi
  totals=$(grep -E '^=+ .*(passed|failed|error).* in ' "$logs/$run.log" | tail -n 1)
  echo "run $run of $runs$beside $ended after ${SECONDS} s: ${totals:-no totals, see $logs/$run.log}"
done
exit "$failed"
