// What the native tests share: numbers that are the same on every machine, memory with a guard page
// behind it, and a record of what went wrong.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "cpu/kernels.h"

namespace native {

using namespace mixbit::cpu;

// Failures so far, and a fingerprint (FNV-1a) of results that are the same bits everywhere.
struct Report {
  std::vector<std::string> failures;
  uint64_t integers = 0xcbf29ce484222325;

  void digest(const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
      integers = (integers ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3;
    }
  }

  template <class... Parts>
  void expect(bool holds, const Parts&... parts) {
    if (!holds) {
      std::ostringstream text;
      (text << ... << parts);
      failures.push_back(text.str());
    }
  }
};

// splitmix64
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  double uniform(double low, double high) {
    return low + (high - low) * (static_cast<double>(bits() >> 11) * 0x1p-53);
  }
  // Near enough to a normal distribution, and without a library function.
  double normal() {
    double sum = 0;
    for (int i = 0; i < 12; ++i) {
      sum += uniform(-0.5, 0.5);
    }
    return sum;
  }

 private:
  uint64_t state_;
};

// Memory that ends where a page begins that nobody may touch. The bytes before it hold a pattern.
class Guarded {
 public:
  explicit Guarded(size_t bytes) : bytes_(bytes) {
    const size_t page = sysconf(_SC_PAGESIZE);
    mapped_ = (bytes + 2 * page) / page * page;
    mapping_ = static_cast<uint8_t*>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(mapping_ + mapped_ - page, page, PROT_NONE);
    front_ = mapped_ - page - bytes;
    std::memset(mapping_, 0xa5, front_);
  }
  Guarded(Guarded&& other) noexcept
      : mapping_(other.mapping_),
        mapped_(other.mapped_),
        front_(other.front_),
        bytes_(other.bytes_) {
    other.mapping_ = nullptr;
  }
  ~Guarded() {
    if (mapping_ != nullptr) {
      munmap(mapping_, mapped_);
    }
  }

  void* data() const { return mapping_ + front_; }
  size_t bytes() const { return bytes_; }
  bool intact() const {
    for (size_t i = 0; i < front_; ++i) {
      if (mapping_[i] != 0xa5) {
        return false;
      }
    }
    return true;
  }

 private:
  uint8_t* mapping_;
  size_t mapped_, front_, bytes_;
};

// An array of one of the element types, and its values in fp64.
class Array {
 public:
  Array(Element e, size_t count) : element(e), count(count), memory_(count * size_of(e)) {}

  static Array normal(Random& random, Element e, size_t count, double scale = 1) {
    Array a(e, count);
    for (size_t i = 0; i < count; ++i) {
      a.set(i, scale * random.normal());
    }
    return a;
  }
  static Array uniform(Random& random, Element e, size_t count, double low, double high) {
    Array a(e, count);
    for (size_t i = 0; i < count; ++i) {
      a.set(i, random.uniform(low, high));
    }
    return a;
  }

  void set(size_t i, double value) { store_element(data(), element, i, static_cast<float>(value)); }
  double operator[](size_t i) const { return load_element(data(), element, i); }
  void* data() const { return memory_.data(); }
  float* floats() const { return static_cast<float*>(data()); }
  size_t bytes() const { return memory_.bytes(); }
  bool intact() const { return memory_.intact(); }

  Element element;
  size_t count;

 private:
  Guarded memory_;
};

inline const char* name_of(Element e) {
  return e == Element::f32 ? "f32" : e == Element::f16 ? "f16" : "bf16";
}

// Half a unit in the last place, and for fp32 what sums of a thousand terms lose.
inline double tolerance(Element e) {
  return e == Element::f32 ? 1e-6 : e == Element::f16 ? 5e-4 : 4e-3;
}

// Largest error against the largest value; infinite if a value is not finite.
inline double relative_error(const Array& got, const std::vector<double>& want) {
  double error = 0, largest = 1e-30;
  for (size_t i = 0; i < want.size(); ++i) {
    if (!std::isfinite(got[i])) {
      return INFINITY;
    }
    error = std::fmax(error, std::fabs(got[i] - want[i]));
    largest = std::fmax(largest, std::fabs(want[i]));
  }
  return error / largest;
}

void test_elements(Report& report);
void test_matmul(Report& report);
void test_delta_net(Report& report);
void test_attention(Report& report);
void test_kl_divergence(Report& report);
void test_quantize_search(Report& report);
void test_threads(Report& report);
void test_fork(Report& report);

}  // namespace native
