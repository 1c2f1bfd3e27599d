// How many processors this process may use.
#pragma once

#include <filesystem>

namespace mixbit::cpu {

// On macOS the performance cores; elsewhere those of its affinity, or fewer by its CPU quota.
int available_processors();

#ifndef __APPLE__
// The least CPU quota of the process's control group and of those around it, in processors;
// infinity without one. Control groups of version 1 and 2 are read below `root`, which is the
// file system's but in tests.
double quota_processors(const std::filesystem::path& root = "/");
#endif

}  // namespace mixbit::cpu
