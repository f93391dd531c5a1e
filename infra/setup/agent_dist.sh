#!/usr/bin/env bash
# The built agent as a Debian package and as a tar with the same files, in a folder (default: build/dist). Whoever
# installs it needs neither this checkout nor Python. The tar is for other systems that have the libraries.
set -euo pipefail
umask 022 # whoever packs it may have a stricter one, which dpkg-deb refuses
cd "$(dirname "$0")/../.."
out=${1:-build/dist}
agent=serving/agent/_build/swiftqueue-agent
[[ -x $agent ]] || { echo "agent-dist: $agent is not built; make setup builds it, or says why not"; exit 1; }
command -v dpkg-shlibdeps >/dev/null || { echo "agent-dist: dpkg-dev is needed; on Debian: apt-get install dpkg-dev"; exit 1; }
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
commit=$(git describe --always --abbrev=12 --exclude='*' --dirty=+dirty 2>/dev/null || echo unknown)
architecture=$(dpkg --print-architecture)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
root=$stage/root
install -D -m 755 "$agent" "$root/usr/bin/swiftqueue-agent"
strip "$root/usr/bin/swiftqueue-agent"
install -D -m 644 infra/setup/swiftqueue-agent.service "$root/usr/lib/systemd/system/swiftqueue-agent.service"
install -D -m 644 infra/setup/swiftqueue-agent.default "$root/etc/default/swiftqueue-agent"
install -D -m 644 LICENSE "$root/usr/share/doc/swiftqueue-agent/copyright"
# The libraries that it is linked with name their packages.
mkdir -p "$stage/debian"
printf 'Source: swiftqueue\n\nPackage: swiftqueue-agent\nArchitecture: any\n' >"$stage/debian/control"
needs=$(cd "$stage" && dpkg-shlibdeps -O --ignore-missing-info "$root/usr/bin/swiftqueue-agent" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
mkdir -p "$root/DEBIAN"
echo /etc/default/swiftqueue-agent >"$root/DEBIAN/conffiles"
cat >"$root/DEBIAN/control" <<END
Package: swiftqueue-agent
Version: $version
Architecture: $architecture
Maintainer: The SwiftQueue maintainers <swiftqueue@example.org>
Depends: $needs
Section: net
Priority: optional
Description: answers a sender which L4S queue each of its packets should take
 It asks a Triton server, or computes a model in its own process, and decides in
 time or leaves the default marking. Built from commit $commit.
END
mkdir -p "$out"
name=swiftqueue-agent_${version}_$architecture
dpkg-deb --root-owner-group --build "$root" "$out/$name.deb" >/dev/null
tar --owner=0 --group=0 --exclude=./DEBIAN -C "$root" -czf "$out/$name.tar.gz" .
ls "$out/$name".*
