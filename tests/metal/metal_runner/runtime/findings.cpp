#include "findings.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace runner {

Findings findings;

std::string format(const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

std::string name_of(const Thread& thread) {
  const unsigned* group = thread.position.threadgroup_position_in_grid;
  return format("thread %u (simdgroup %u, lane %u) of threadgroup (%u, %u, %u)", thread.index(),
                thread.simdgroup(), thread.lane(), group[0], group[1], group[2]);
}

std::string name_of(const Place& place) {
  const char* slash = strrchr(place.file, '/');
  return format("%s:%u", slash ? slash + 1 : place.file, place.site & kLineMask);
}

}  // namespace runner
