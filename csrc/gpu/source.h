// The text of a Metal library, from the files that mixbit ships.
#pragma once

#include <string>

#include "gpu/launch_plan.h"

namespace mixbit::gpu {

// The folder metal/ beside this library's file.
std::string metal_folder();

// The launch's family with its headers in place, each once, and the launch's kernel behind it: what
// the device compiles, which knows no folders. Throws std::runtime_error naming a missing file.
MIXBIT_API std::string library_source(const std::string& folder, const Launch& launch);

// Sixteen hexadecimal digits (FNV-1a): devices know a library by its name only, so the name says
// what is in it.
MIXBIT_API std::string content_hash(const std::string& text);

}  // namespace mixbit::gpu
