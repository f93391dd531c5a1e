#!/usr/bin/env bash
# All tests, in two runs at once. Those with servers wait half of their time; what only computes has the cores
# meanwhile, in a session that comes behind the others, and is shown at the end. `pytest` runs all of them one
# after the other.
set -uo pipefail
log=build/tests-without-servers.log
mkdir -p build
# The kernel shares the cores among sessions first (sched(7), autogroup), and within one by niceness.
setsid bash -c '{ echo 15 >/proc/self/autogroup; } 2>/dev/null; exec nice -n 15 pytest tests --ignore=tests/integration' \
  >"$log" 2>&1 &
without=$!
trap 'kill -TERM -- "-$without" 2>/dev/null' EXIT
pytest tests/integration
served=$?
if ((served != 2)); then wait "$without"; fi # 2: Ctrl-C
computed=$?
printf '\nTests without servers (%s):\n' "$log"
cat "$log"
exit $((served | computed))
