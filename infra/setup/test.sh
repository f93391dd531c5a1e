#!/usr/bin/env bash
# All tests, in two runs at once: those with servers wait much, and the others have the cores meanwhile. These
# come second, as nobody waits for their answers; what they say follows at the end.
set -uo pipefail
log=build/tests-without-servers.log
mkdir -p build
# The kernel shares the cores among sessions first (sched(7), autogroup), and within one by niceness.
setsid bash -c '{ echo 15 >/proc/self/autogroup; } 2>/dev/null; exec nice -n 15 pytest tests --ignore=tests/integration' \
  >"$log" 2>&1 &
without=$!
pytest tests/integration
served=$?
if ((served == 2)); then kill -TERM -- "-$without"; fi # Ctrl-C
wait "$without"
computed=$?
printf '\nTests without servers (%s):\n' "$log"
cat "$log"
exit $((served | computed))
