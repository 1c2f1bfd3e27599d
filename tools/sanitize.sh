#!/usr/bin/env bash
# Build mixbit with the address and undefined-behaviour sanitizers into an environment of its own and
# run the tests of the native code in it.
set -euo pipefail
python=$1/python
environment=build/sanitize
[ -d "$environment" ] || "$python" -m venv "$environment"
"$environment/bin/pip" install --disable-pip-version-check -q 'pip>=25.1'
"$environment/bin/pip" install --disable-pip-version-check -q --group build --group test
"$environment/bin/pip" install --disable-pip-version-check -q . \
  -Cbuild-dir=build/sanitize-objects -Ccmake.define.MIXBIT_SANITIZE=address,undefined
cxx=${CXX:-c++}
# Leak checking is off: the interpreter itself keeps memory until the end. Compiling is left out, as
# MLX starts a compiler, which does not run with the library preloaded.
LD_PRELOAD="$("$cxx" -print-file-name=libasan.so) $("$cxx" -print-file-name=libubsan.so)" \
  ASAN_OPTIONS=detect_leaks=0 \
  "$environment/bin/pytest" -q -k 'not compile' \
  tests/test_kernels.py tests/test_ops.py tests/test_native_module.py
