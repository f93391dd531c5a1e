#!/usr/bin/env bash
# Saves a page of a local server as a small PNG, by headless Chromium (Debian: apt-get install chromium).
#   infra/monitoring/screenshot.sh URL FILE.png [WIDTH,HEIGHT [KEEP]]        KEEP: number of leftmost pixels to keep
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: $0 URL FILE.png [WIDTH,HEIGHT [KEEP]]" >&2; exit 2; }
url=$1 file=$2 size=${3:-1280,800} keep=${4:-100000}
command -v chromium >/dev/null || { echo "chromium is not installed; on Debian: apt-get install chromium" >&2; exit 1; }
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
# Chromium's sandbox cannot be set up by root; the pages are our own, on loopback.
sandbox=$([ "$(id -u)" = 0 ] && echo --no-sandbox || true)
chromium --headless $sandbox --disable-gpu --hide-scrollbars --no-first-run --user-data-dir="$profile" \
  --window-size="$size" --virtual-time-budget=20000 --timeout=60000 --screenshot="$file" "$url" 2>/dev/null
# 64 colours are enough for a page, and need a third of the bytes.
"$(dirname "$0")/../../.venv/bin/python" - "$file" "$keep" <<'PYTHON'
import sys

from PIL import Image

page = Image.open(sys.argv[1]).convert("RGB")
page = page.crop((0, 0, min(page.width, int(sys.argv[2])), page.height))
page.quantize(64).save(sys.argv[1], optimize=True)
PYTHON
echo "$file: $(stat -c %s "$file") bytes"
