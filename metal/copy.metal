// Moves an array to where it begins at a boundary that the other kernels can rely on. One thread an
// element.
#include <metal_stdlib>

using namespace metal;

template <typename T>
[[kernel]] void copy(device T* to [[buffer(0)]], const device T* from [[buffer(1)]],
                     uint i [[thread_position_in_grid]]) {
  to[i] = from[i];
}
