#!/usr/bin/env bash
# All tests, in four runs at once. Those with servers wait half of their time, the live loop's most of all. What only
# computes has the cores meanwhile, in sessions that come behind the others. The runs in the background are shown at
# the end. `pytest` runs all of them one after the other.
set -uo pipefail
mkdir -p build
live=(tests/integration/test_{live,ingest}*.py)
simulated=(tests/simulation tests/pipelines)

sessions=()
behind() { # NAME NICENESS PYTEST-ARGUMENT...
  local name=$1
  shift
  # The kernel shares the cores among sessions first (sched(7), autogroup), and within one by niceness.
  setsid bash -c '{ echo "$0" >/proc/self/autogroup; } 2>/dev/null; exec nice -n "$0" pytest "$@"' "$@" \
    >"build/tests-$name.log" 2>&1 &
  sessions+=("$!:$name")
}
stop() { for session in "${sessions[@]}"; do kill -TERM -- "-${session%%:*}"; done 2>/dev/null; }
trap stop EXIT

behind live 5 "${live[@]}"
behind simulated 15 "${simulated[@]}"
behind computed 15 tests --ignore=tests/integration "${simulated[@]/#/--ignore=}"
pytest tests/integration "${live[@]/#/--ignore=}"
failed=$?
if ((failed == 2)); then exit 2; fi # Ctrl-C
for session in "${sessions[@]}"; do
  wait "${session%%:*}" || failed=1
  printf '\nTests, %s (build/tests-%s.log):\n' "${session#*:}" "${session#*:}"
  cat "build/tests-${session#*:}.log"
done
exit "$failed"
