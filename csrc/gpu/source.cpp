#include "gpu/source.h"

#include <dlfcn.h>

#include <cstdio>
#include <fstream>
#include <set>
#include <stdexcept>

namespace mixbit::gpu {

namespace {

constexpr char kInclude[] = "#include \"";

// Appends a file, and in the place of each `#include "..."` that file, unless it was there before.
void append(std::string& text, std::set<std::string>& done, const std::string& folder,
            const std::string& name) {
  if (!done.insert(name).second) {
    return;
  }
  std::ifstream file(folder + "/" + name);
  if (!file) {
    throw std::runtime_error("the Metal source " + folder + "/" + name +
                             " cannot be read; reinstall mixbit");
  }
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, sizeof(kInclude) - 1, kInclude) == 0) {
      const size_t begin = sizeof(kInclude) - 1;
      append(text, done, folder, line.substr(begin, line.find('"', begin) - begin));
    } else if (line != "#pragma once") {  // means nothing outside a header
      text += line + "\n";
    }
  }
}

}  // namespace

std::string metal_folder() {
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&metal_folder), &info);
  const std::string library = info.dli_fname;
  return library.substr(0, library.rfind('/') + 1) + "metal";
}

std::string library_source(const std::string& folder, const Launch& launch) {
  std::string text;
  std::set<std::string> done;
  append(text, done, folder, launch.family + ".metal");
  return text + launch.instantiation + "\n";
}

std::string content_hash(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char c : text) {
    hash = (hash ^ c) * 0x100000001b3u;
  }
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

}  // namespace mixbit::gpu
