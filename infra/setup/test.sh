#!/usr/bin/env bash
# All tests, in three runs at once: those with servers wait half of their time, the live loop's most of all. What
# only computes has the cores meanwhile, in a session that comes behind the others. The runs in the background are
# shown at the end. `pytest` runs all of them one after the other.
set -uo pipefail
mkdir -p build
live=(tests/integration/test_{live,ingest}*.py)

behind() { # LOG NICENESS PYTEST-ARGUMENT...
  local log=$1
  shift
  # The kernel shares the cores among sessions first (sched(7), autogroup), and within one by niceness.
  setsid bash -c '{ echo "$0" >/proc/self/autogroup; } 2>/dev/null; exec nice -n "$0" pytest "$@"' "$@" >"$log" 2>&1 &
}
behind build/tests-without-servers.log 15 tests --ignore=tests/integration
without=$!
behind build/tests-live.log 0 "${live[@]}"
loop=$!
trap 'kill -TERM -- "-$without" "-$loop" 2>/dev/null' EXIT
pytest tests/integration "${live[@]/#/--ignore=}"
failed=$?
if ((failed == 2)); then exit 2; fi # Ctrl-C
for run in "$loop:live loop:build/tests-live.log" "$without:without servers:build/tests-without-servers.log"; do
  IFS=: read -r session name log <<<"$run"
  wait "$session" || failed=1
  printf '\nTests, %s (%s):\n' "$name" "$log"
  cat "$log"
done
exit "$failed"
