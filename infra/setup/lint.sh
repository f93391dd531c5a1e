#!/usr/bin/env bash
# Every static check; the first that fails stops it. `make format` mends what can be mended.
set -euo pipefail
cd "$(dirname "$0")/../.."
! git grep -nE "^(<<<<<<<|>>>>>>>) " -- . || { echo "lint: a merge was left half done, above"; exit 1; }
ruff check .
ruff format --check --quiet .
mypy
python infra/setup/prose.py
git ls-files '*.h' '*.cc' | xargs --no-run-if-empty clang-format --dry-run --Werror
codespell $(git ls-files '*.md' '*.py' '*.cc' '*.h' '*.yaml' '*.toml' 'Makefile' '*.sh')
echo "lint: the locks are whole; known vulnerabilities of what they name: make audit (needs the net)"
