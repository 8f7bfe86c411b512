#!/usr/bin/env bash
# Chromium and its driver for `make test-pages`, by Debian's packages, where they are missing.
set -euo pipefail
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
  exit 0
fi
if ! command -v apt-get >/dev/null; then
  echo "chromium is missing and so is apt-get: the tests of pages will be SKIPPED. Install chromium and chromedriver." >&2
  exit 0
fi
root=""
if [ "$(id -u)" -ne 0 ]; then
  root="sudo"
fi
$root apt-get update -qq
DEBIAN_FRONTEND=noninteractive $root apt-get install -y -qq chromium chromium-driver >/dev/null
