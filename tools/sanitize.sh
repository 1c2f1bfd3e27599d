#!/usr/bin/env bash
# Run the native code under sanitizers: the kernels and the thread pool in a program of their own
# under all three, then mixbit with the address and undefined-behaviour ones, built into an
# environment of its own.
set -euo pipefail
bin=$1
sanitized() { # name, sanitizers
  local folder=build/sanitize-$1
  PATH="$PWD/$bin:$PATH" cmake -S tests/native -B "$folder" -G Ninja -DMIXBIT_SANITIZE="$2" >/dev/null
  PATH="$PWD/$bin:$PATH" cmake --build "$folder"
  for isa in $("$bin/python" -c 'from mixbit import _core; print(*_core.isas())'); do
    # A forked child of several threads may start threads of its own.
    TSAN_OPTIONS=die_after_fork=0 MIXBIT_ISA=$isa MIXBIT_NUM_THREADS=4 "$folder/kernel_tests"
  done
}
sanitized native-address address,undefined
sanitized native-thread thread

environment=build/sanitize
[ -d "$environment" ] || "$bin/python" -m venv "$environment"
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
