#!/usr/bin/env bash
# Installs what the C++ sender agent needs from Debian or Ubuntu, where that may be done: as root, or with a
# sudo that asks for no password. Where it may not, says which line to run and ends well: the Python client
# does the agent's work. Says and does nothing when all is there. `make setup` runs it.
#
#   infra/setup/debian.sh [PACKAGE...]      (default: those of the agent)
set -uo pipefail
packages=("$@")
[ $# -gt 0 ] || packages=(g++ libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libcli11-dev prometheus-cpp-dev)

without() {
  echo "setup: $1; the C++ sender agent is left out, the Python client (serving/client.py) does its work"
  exit 0
}

command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
  without "no Debian packages here (needed: gRPC, protobuf, CLI11 and prometheus-cpp for C++)"
missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

install=(apt-get install -y --no-install-recommends "${missing[@]}")
may=()
if [ "$(id -u)" -ne 0 ]; then
  { command -v sudo && sudo -n true; } >/dev/null 2>&1 || without "to have it, run: sudo ${install[*]}"
  may=(sudo -n)
fi
echo "setup: installing Debian packages for the C++ sender agent: ${missing[*]}"
run() { "${may[@]}" env DEBIAN_FRONTEND=noninteractive "$@" 2>&1; }
# The lists of packages are fetched only if those at hand do not do.
said=$(run "${install[@]}") || { run apt-get update >/dev/null; said=$(run "${install[@]}"); } ||
  without "$(tail -n 1 <<<"$said") (tried: ${install[*]})"
