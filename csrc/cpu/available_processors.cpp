#include "cpu/available_processors.h"

#include <algorithm>
#include <thread>

#ifdef __APPLE__
#include <sys/sysctl.h>
#else
#include <sched.h>

#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#endif

namespace mixbit::cpu {

#ifdef __APPLE__

int available_processors() {
  int count = 0;
  size_t size = sizeof(count);
  if (sysctlbyname("hw.perflevel0.logicalcpu", &count, &size, nullptr, 0) == 0 && count > 0) {
    return count;
  }
  return static_cast<int>(std::thread::hardware_concurrency());
}

#else

namespace {

constexpr double kNoQuota = std::numeric_limits<double>::infinity();

// Time of processors over elapsed time, both in µs. Where there is no quota, version 2 says "max",
// which is no number, and version 1 says -1.
double quota_of(std::istream& quota, std::istream& period) {
  double allowed = 0, elapsed = 0;
  const bool known = quota >> allowed && period >> elapsed;
  return known && allowed > 0 && elapsed > 0 ? allowed / elapsed : kNoQuota;
}

double quota_of_folder(const std::filesystem::path& folder, bool is_version_2) {
  if (is_version_2) {
    std::ifstream both(folder / "cpu.max");
    return quota_of(both, both);
  }
  std::ifstream quota(folder / "cpu.cfs_quota_us"), period(folder / "cpu.cfs_period_us");
  return quota_of(quota, period);
}

bool lists_cpu(const std::string& controllers) {
  std::istringstream names(controllers);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == "cpu") {
      return true;
    }
  }
  return false;
}

}  // namespace

double quota_processors(const std::filesystem::path& root) {
  double least = kNoQuota;
  std::ifstream groups(root / "proc/self/cgroup");
  // hierarchy:controllers:path, with no controllers named for version 2
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_version_2 = controllers.empty();
    if (!is_version_2 && !lists_cpu(controllers)) {
      continue;
    }
    const std::filesystem::path mount =
        root / (is_version_2 ? "sys/fs/cgroup" : "sys/fs/cgroup/cpu");
    // A group may use no more than those around it. In a container the path can be the host's, of
    // which only the top is to be seen.
    std::filesystem::path group = std::filesystem::path(line.substr(second + 1)).relative_path();
    for (;; group = group.parent_path()) {
      least = std::min(least, quota_of_folder(mount / group, is_version_2));
      if (group.empty()) {
        break;
      }
    }
  }
  return least;
}

int available_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int count = static_cast<int>(std::thread::hardware_concurrency());
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    count = CPU_COUNT(&set);
  }
  return static_cast<int>(std::min<double>(count, quota_processors() + 0.5));
}

#endif

}  // namespace mixbit::cpu
