#!/usr/bin/env bash
# Installs Debian or Ubuntu packages where that may be done: as root, or with a sudo that asks for no password.
# Where it may not, says which line to run, and what goes on without them, and ends well. Says and does nothing
# when all is there. `make setup` and `make setup-tests` run it.
#
#   infra/setup/debian.sh "WHAT THEY ARE FOR" "WHAT HAPPENS WITHOUT" PACKAGE...
set -uo pipefail
purpose=$1 otherwise=$2
shift 2
packages=("$@")

without() {
  echo "setup: $1; $otherwise"
  exit 0
}

command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
  without "no Debian packages here (needed for $purpose: ${packages[*]})"
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
echo "setup: installing Debian packages for $purpose: ${missing[*]}"
run() { "${may[@]}" env DEBIAN_FRONTEND=noninteractive "$@" 2>&1; }
# The lists of packages are fetched only if those at hand do not do.
said=$(run "${install[@]}") || { run apt-get update >/dev/null; said=$(run "${install[@]}"); } ||
  without "$(tail -n 1 <<<"$said") (tried: ${install[*]})"
