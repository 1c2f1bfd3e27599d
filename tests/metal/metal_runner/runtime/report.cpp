// What a launch did, as JSON for Python.
#include <dlfcn.h>

#include "buffers.h"
#include "findings.h"
#include "traffic.h"

namespace runner {

namespace {

const char* const kSpaceNames[kSpaces] = {"device", "constant", "threadgroup", "thread"};
const char* const kWidthNames[kWidths] = {"1", "2", "4", "8", "16", "other"};

class Json {
 public:
  void open(const char* bracket) { value(), text_ += bracket, first_ = true; }
  void close(const char* bracket) { text_ += bracket, first_ = false; }
  void key(const char* name) { string(name), text_ += ':', first_ = true; }
  void string(const std::string& value_text) {
    value(), text_ += '"';
    for (char c : value_text) {
      if (c == '"' || c == '\\')
        text_ += '\\';
      text_ += c;
    }
    text_ += '"';
  }
  void number(uint64_t n) { value(), text_ += std::to_string(n); }
  void member(const char* name, uint64_t n) { key(name), number(n); }
  const char* text() const { return text_.c_str(); }

 private:
  void value() {
    if (!first_)
      text_ += ',';
    first_ = false;
  }
  std::string text_;
  bool first_ = true;
};

// An instruction's address within its library; places in the source are left out.
uint64_t within_library(uint64_t address) {
  Dl_info info;
  bool code = address > 0xffffffff && dladdr((void*)address, &info);
  return code ? address - (uint64_t)info.dli_fbase : 0;
}

void write_space(Json& json, const SpaceTraffic& space) {
  json.open("{");
  json.member("bytes_loaded", space.bytes_loaded);
  json.member("bytes_stored", space.bytes_stored);
  json.member("joined_loads", space.joined_loads);
  for (bool store : {false, true}) {
    json.key(store ? "stores" : "loads"), json.open("{");
    for (int i = 0; i < kWidths; i++) {
      uint64_t n = (store ? space.stores : space.loads)[i];
      if (n)
        json.member(kWidthNames[i], n);
    }
    json.close("}");
  }
  json.close("}");
}

void write_buffer(Json& json, const Buffer& buffer) {
  uint64_t touched = 0, lines = 0;
  uintptr_t last_line = 0;
  for (size_t i = 0; i < buffer.touched.size(); i++) {
    if (!buffer.touched[i])
      continue;
    touched++;
    uintptr_t line = (buffer.first - buffer.map_first + i) / 128 + 1;
    lines += line != last_line;
    last_line = line;
  }
  json.open("{");
  json.member("index", buffer.index);
  json.member("bytes", buffer.end - buffer.first);
  json.member("bytes_loaded", buffer.loaded);
  json.member("bytes_stored", buffer.stored);
  json.member("bytes_touched", touched);
  json.member("lines", lines);
  json.close("}");
}

void write_site(Json& json, uint64_t address, const Site& site) {
  json.open("{");
  json.member("address", within_library(address));
  json.key("space"), json.string(kSpaceNames[site.space]);
  json.member("store", site.store);
  json.member("width", site.width);
  json.member("simd_accesses", site.simd_accesses);
  json.member("lanes", site.lanes);
  json.member("bytes", site.bytes);
  json.member("lines", site.lines);
  json.member("sectors", site.sectors);
  json.close("}");
}

void write_finding(Json& json, const Finding& finding) {
  json.open("{");
  json.key("kind"), json.string(finding.kind);
  json.key("text"), json.string(finding.text);
  json.member("count", finding.count);
  json.key("place"), json.string(finding.place.file ? name_of(finding.place) : "");
  json.member("address", within_library(finding.address));
  json.member("other_address", within_library(finding.other_address));
  json.close("}");
}

}  // namespace

}  // namespace runner

using namespace runner;

extern "C" const char* runner_report() {
  static Json json;
  json = Json();
  json.open("{");
  json.member("threads", traffic.threads);
  json.member("simdgroups", traffic.simdgroups);
  json.member("threadgroups", traffic.threadgroups);
  json.member("threadgroup_barriers", traffic.threadgroup_barriers);
  json.member("simdgroup_barriers", traffic.simdgroup_barriers);
  json.member("atomics", traffic.atomics);
  json.member("threadgroup_bytes", machine.arena_peak);
  json.key("simd_functions"), json.open("{");
  for (const auto& [name, n] : simd_functions)
    json.member(name.c_str(), n);
  json.close("}");
  json.key("spaces"), json.open("{");
  for (int i = 0; i < kSpaces; i++)
    json.key(kSpaceNames[i]), write_space(json, traffic.spaces[i]);
  json.close("}");
  json.key("buffers"), json.open("[");
  for (const Buffer* buffer : buffers)
    write_buffer(json, *buffer);
  json.close("]");
  json.key("sites"), json.open("[");
  for (const auto& [address, site] : sites)
    write_site(json, address, site);
  json.close("]");
  json.key("findings"), json.open("[");
  for (const auto& [key, finding] : findings)
    write_finding(json, finding);
  json.close("]");
  json.close("}");
  return json.text();
}
