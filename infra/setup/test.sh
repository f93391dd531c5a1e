#!/usr/bin/env bash
# The tests, in two runs at once, and how long each took. Those with servers wait half of their time; what only
# computes has the cores meanwhile, in a session that comes behind the others, and is shown at the end. `pytest` runs
# all of them one after the other. The names of failed tests are in build/tests-*.failed at once: a crash loses none.
set -uo pipefail
mkdir -p build
rm -f build/tests-*.failed
tier() { # NAME PATHS…: one run, and how long it took
  local name=$1 code
  shift
  SECONDS=0
  SWIFTQUEUE_TEST_FAILURES=build/tests-$name.failed pytest "$@"
  code=$?
  printf 'tests-%s: %d min %02d s, exit code %d\n' "$name" $((SECONDS / 60)) $((SECONDS % 60)) "$code"
  ((code < 128)) || printf 'tests-%s: the interpreter ended in %s\n' "$name" "$(tail -n 1 "build/tests-$name.failed")"
  return "$code"
}
export -f tier
log=build/tests-without-servers.log
# The kernel shares the cores among sessions first (sched(7), autogroup), and within one by niceness.
setsid nice -n 15 bash -c '{ echo 15 >/proc/self/autogroup; } 2>/dev/null
  tier without-servers tests --ignore=tests/integration' >"$log" 2>&1 &
without=$!
trap 'kill -TERM -- "-$without" 2>/dev/null' EXIT
tier with-servers tests/integration
served=$?
if ((served != 2)); then wait "$without"; fi # 2: Ctrl-C
computed=$?
printf '\nTests without servers (%s):\n' "$log"
cat "$log"
grep -hs '^FAILED' build/tests-*.failed
exit $((served | computed))
