// The build machine's pyconfig.h, corrected for arm64 macOS.
#pragma once
#include_next <pyconfig.h>
// Linux feature-test macros hide Darwin's own names.
#undef _POSIX_C_SOURCE
#undef _XOPEN_SOURCE
#undef _XOPEN_SOURCE_EXTENDED
#undef _GNU_SOURCE
#define _DARWIN_C_SOURCE 1
// Sizes that differ from x86-64 Linux.
#undef SIZEOF_LONG_DOUBLE
#define SIZEOF_LONG_DOUBLE 8
#undef ALIGNOF_MAX_ALIGN_T
#define ALIGNOF_MAX_ALIGN_T 8
#undef SIZEOF_PTHREAD_T
#define SIZEOF_PTHREAD_T 8
#undef SIZEOF_PTHREAD_KEY_T
#define SIZEOF_PTHREAD_KEY_T 8
#undef PTHREAD_KEY_T_IS_COMPATIBLE_WITH_INT
