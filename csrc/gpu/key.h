// Bytes that are the same for equal values: what an operation's description is known by.
#pragma once

#include <optional>
#include <string>
#include <type_traits>

namespace mixbit::gpu {

class Key {
 public:
  explicit Key(const char* operation) : bytes_(operation) {}

  template <class... Values>
  void add(const Values&... values) {
    (append(values), ...);
  }

  const std::string& text() const { return bytes_; }

 private:
  template <class T>
  void append(const T& value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);  // no padding
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }

  template <class T>
  void append(const std::optional<T>& value) {
    append(value.has_value());
    append(value.value_or(T{}));
  }

  std::string bytes_;
};

}  // namespace mixbit::gpu
