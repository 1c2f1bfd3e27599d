// Stands in front of every translated source.
#pragma once
#include "apple_private.h"
#include "atomics.h"
#include "matrices.h"

namespace runner {

// Arguments of a kernel, which convert to whatever its parameter is declared as.
struct Pointer {
  void* at;
  template <class T>
  operator T*() const {
    return (T*)at;
  }
};
struct Reference {
  void* at;
  template <class T>
  operator T&() const {
    return *(T*)at;
  }
};
struct Position {
  const unsigned* of;
  operator uint() const { return of[0]; }
  operator ushort() const { return ushort(of[0]); }
  operator int() const { return int(of[0]); }
  operator ulong() const { return of[0]; }
  template <class T>
  operator metal::vec<T, 2>() const {
    return metal::vec<T, 2>(T(of[0]), T(of[1]));
  }
  template <class T>
  operator metal::vec<T, 3>() const {
    return metal::vec<T, 3>(T(of[0]), T(of[1]), T(of[2]));
  }
};

template <class T>
T& local_variable();  // for the address space check
template <class T>
inline T& threadgroup_variable(unsigned id, runner_string name) {
  return *(T*)runner_threadgroup_variable(id, sizeof(T), name);
}

}  // namespace runner

#define double runner_MSL_has_no_double
