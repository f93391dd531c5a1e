#!/usr/bin/env bash
# The tests, in two lanes at once, and how long each run took. What is timed goes first: the whole live loop, which waits
# much of its time, and after it what asks single servers and the test bed. Behind them what only computes has the time that
# is left; it is shown at the end, also of a run that is cut off. `pytest` runs all of them one after the other.
# The names of failed tests are in build/tests-*.failed at once: a crash loses none.
set -uo pipefail
if [[ ${SWIFTQUEUE_TEST_ALL:-} == 1 ]]; then
  export PYTEST_ADDOPTS="-o faulthandler_timeout=18000 ${PYTEST_ADDOPTS:-}"
else
  export PYTEST_ADDOPTS="--long some ${PYTEST_ADDOPTS:-}"
fi
unset PYTHONDONTWRITEBYTECODE # of a container: each of a hundred processes would compile our modules and tests anew
mkdir -p build
rm -f build/tests-*.failed
tier() { # NAME PATHS…: one run, and how long it took
  local name=$1 code
  shift
  SECONDS=0
  SWIFTQUEUE_TEST_FAILURES=build/tests-$name.failed pytest ${memory:+"--basetemp=$memory/$name"} "$@"
  code=$?
  printf 'tests-%s: %d min %02d s, exit code %d\n' "$name" $((SECONDS / 60)) $((SECONDS % 60)) "$code"
  ((code < 128)) || printf 'tests-%s: the interpreter ended in %s\n' "$name" "$(tail -n 1 "build/tests-$name.failed")"
  return "$code"
}
export -f tier
# A disk syncs slowly while all write to it, and no test is about the disk's speed: they write to memory, where it has
# room and takes programs too (docker mounts it without). Short names, for the paths of sockets.
memory=
if (($(df --output=avail /dev/shm 2>/dev/null | tail -n 1) > 4 << 20)); then
  memory=$(mktemp -d /dev/shm/sq.XXXX)
  chmod 1777 "$memory" # some tests become another user
  if cp "$(type -P true)" "$memory" && "$memory/true"; then
    export memory TMPDIR=$memory
  else
    rm -r "$memory"
    memory=
  fi
fi
computing=
finish() { # end what still runs, show the run behind, and free the memory
  [[ -z $computing ]] || kill -TERM -- "-$computing" 2>/dev/null
  printf '\nbuild/tests-computing.log:\n'
  cat build/tests-computing.log
  [[ -z $computing ]] || grep -s '^in ' build/tests-*.failed # cut off: what was under way
  grep -hs '^FAILED' build/tests-*.failed
  [[ -z $memory ]] || rm -rf "$memory"
}
trap finish EXIT
loop=(tests/integration/test_live_*.py tests/integration/test_loop_as_a_user.py tests/integration/test_two_nodes.py)
# The kernel shares the cores among sessions first (sched(7), autogroup), and within one by niceness.
setsid nice -n 15 bash -c '{ echo 15 >/proc/self/autogroup; } 2>/dev/null; tier computing -n 2 tests $(ls -d studies 2>/dev/null) --ignore=tests/integration --ignore=tests/testbed \
  $(printf -- "--ignore=%s " studies/*/tests/integration) --dist loadfile' \
  >build/tests-computing.log 2>&1 &
computing=$!
trap 'exit 130' INT # Ctrl-C reaches the first run alone, and ends all
trap 'exit 143' TERM
tier loop "${loop[@]}"
failed=$?
tier servers -n 2 tests/integration tests/testbed $(ls -d studies/*/tests/integration 2>/dev/null) "${loop[@]/#/--ignore=}" --dist loadfile || failed=1
wait "$computing" || failed=1
computing=
exit "$failed"
