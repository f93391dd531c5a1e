#!/bin/sh
# Runs one round as a Ray job of the training cluster until a time of day, whenever Ray started it.
#   sh infra/k8s/round.sh UNTIL    # in seconds since 1970 (round.yaml)
set -eu
left_s=$(($1 - $(date +%s)))
if [ "$left_s" -le 0 ]; then  # `timeout 0` would be no limit
  echo "round: it was started when its time was over" >&2
  exit 1
fi
exec timeout --kill-after=5 "$left_s" swiftqueue schedule --rounds 1 --telemetry /state/telemetry
