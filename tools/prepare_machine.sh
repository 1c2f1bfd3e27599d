#!/usr/bin/env bash
# See that this machine can build mixbit: Python >= 3.11 with venv and headers, and a C++ compiler.
# With "kernels" as second argument: that it can run kernels of other processors on its own, Metal's
# with clang 19 and arm64's with qemu; with "macos": that it can link for macOS; with "browser": that
# it has one that runs without a screen.
# On Debian missing packages are installed when that is allowed; otherwise one sentence names them.
set -euo pipefail
python=${1:-python3}

fail() {
  echo "mixbit setup: $1" >&2
  exit 1
}

if [ "$(uname -s)" = Darwin ]; then
  xcode-select -p >/dev/null 2>&1 ||
    fail "the Xcode command-line tools are missing; run: xcode-select --install"
fi

missing=()
have() { command -v "$1" >/dev/null 2>&1; }
have "$python" || missing+=(python3)
if have "$python"; then
  "$python" -c '' 2>/dev/null || fail "$python does not run; name another one (make PYTHON=python3.12 …)."
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old; Python 3.11 or newer is needed (make PYTHON=python3.12 …)."
  "$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
  headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  [ -f "$headers/Python.h" ] || missing+=(python3-dev)
fi
have "${CXX:-c++}" || missing+=(g++)
have_llvm() {
  have "$1-19" || [ -x "/usr/lib/llvm-19/bin/$1" ] ||
    [ -x "/opt/homebrew/opt/llvm@19/bin/$1" ] || [ -x "/usr/local/opt/llvm@19/bin/$1" ]
}
if [ "${2:-}" = kernels ] && ! { have_llvm clang++ && have_llvm llvm-symbolizer; }; then
  [ "$(uname -s)" != Darwin ] ||
    fail "clang 19, which runs Metal kernels on the CPU in tests, is missing; run: brew install llvm@19"
  missing+=(clang-19 llvm-19)
fi
if [ "${2:-}" = kernels ] && [ "$(uname -sm)" = "Linux x86_64" ]; then
  have aarch64-linux-gnu-g++ || missing+=(g++-aarch64-linux-gnu)
  have qemu-aarch64 || missing+=(qemu-user)
fi
if [ "${2:-}" = macos ] && [ "$(uname -s)" != Darwin ]; then
  have ld64.lld-19 || missing+=(lld-19)
fi
have_browser() {
  have chromium || have chromium-browser || have google-chrome ||
    [ -d "/Applications/Google Chrome.app" ] || [ -d /Applications/Chromium.app ]
}
if [ "${2:-}" = browser ] && ! have_browser; then
  [ "$(uname -s)" != Darwin ] ||
    fail "a browser that tests can look at pages with is missing; run: brew install --cask chromium"
  missing+=(chromium)
fi
[ ${#missing[@]} -eq 0 ] && exit 0

if have apt-get; then
  sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    sudo=(sudo -n)
    "${sudo[@]}" true 2>/dev/null ||
      fail "these packages are missing: ${missing[*]}; run: sudo apt-get install ${missing[*]}"
  fi
  "${sudo[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" ||
    fail "apt-get cannot install ${missing[*]}; install them by hand and run make again."
  exit 0
fi
fail "these are missing: ${missing[*]} (Debian's names); install them and run make again."
