#!/usr/bin/env bash
# All tests, in two runs at once: those with servers wait much, and the others have the cores meanwhile. These
# come second (nice), as nobody waits for their answers; what they say follows at the end.
set -uo pipefail
set -m # or the background run would ignore an interrupt
log=build/tests-without-servers.log
mkdir -p build
nice -n 10 pytest tests --ignore=tests/integration >"$log" 2>&1 &
without=$!
pytest tests/integration
served=$?
if ((served == 2)); then kill -INT -- "-$without"; fi # Ctrl-C
wait "$without"
computed=$?
printf '\nTests without servers (%s):\n' "$log"
cat "$log"
exit $((served | computed))
