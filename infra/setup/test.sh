#!/usr/bin/env bash
# The tests, in three runs at once, and how long each took. Those of the whole live loop wait most of their time and go
# first; those with single servers fill their pauses in two processes, and what only computes has the rest, in three.
# The two behind are shown at the end, also of a run that is cut off. `pytest` runs all of them one after the other.
# The names of failed tests are in build/tests-*.failed at once: a crash loses none.
set -uo pipefail
if [[ ${SWIFTQUEUE_TEST_ALL:-} == 1 ]]; then
  export PYTEST_ADDOPTS="-o faulthandler_timeout=18000 ${PYTEST_ADDOPTS:-}"
else
  export PYTEST_ADDOPTS="--long some ${PYTEST_ADDOPTS:-}"
fi
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
# The kernel shares the cores among sessions first (sched(7), autogroup), and within one by niceness.
behind() { # NICENESS NAME PATHS…: a run in a session of its own, shown at the end
  local niceness=$1
  shift
  setsid nice -n "$niceness" bash -c '{ echo "$0" >/proc/self/autogroup; } 2>/dev/null; tier "$@" --dist loadfile' "$niceness" "$@" \
    >"build/tests-$1.log" 2>&1 &
  runs+=($!)
}
runs=()
finish() { # end what still runs, and show the two behind
  local run log
  for run in "${runs[@]}"; do kill -TERM -- "-$run" 2>/dev/null; done
  for log in build/tests-{servers,computing}.log; do
    printf '\n%s:\n' "$log"
    cat "$log"
  done
  ((${#runs[@]} == 0)) || grep -s '^in ' build/tests-*.failed # cut off: what was under way
  grep -hs '^FAILED' build/tests-*.failed
}
trap finish EXIT
loop=(tests/integration/test_live_*.py tests/integration/test_loop_as_a_user.py tests/integration/test_two_nodes.py)
behind 5 servers -n 2 tests/integration "${loop[@]/#/--ignore=}"
behind 15 computing -n 3 tests --ignore=tests/integration
trap 'exit 130' INT # Ctrl-C reaches the first run alone, and ends all
trap 'exit 143' TERM
tier loop "${loop[@]}"
failed=$?
for run in "${runs[@]}"; do
  wait "$run" || failed=1
done
runs=()
exit "$failed"
