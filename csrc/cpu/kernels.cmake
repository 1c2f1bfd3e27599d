# The kernels, written once and compiled for each instruction set of the target processor by a
# kernels_<isa>.cpp; dispatch.cpp chooses at run time. Sets kernel_sources.
set(kernel_sources
    ${CMAKE_CURRENT_LIST_DIR}/kernels_portable.cpp ${CMAKE_CURRENT_LIST_DIR}/dispatch.cpp
    ${CMAKE_CURRENT_LIST_DIR}/processor.cpp)

# Its vectors are wider than the processor's, which only functions that others call could mind.
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels_portable.cpp
                            PROPERTIES COMPILE_OPTIONS -Wno-psabi)

function(_isa name)
  set(source ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/kernels_${name}.cpp)
  set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${ARGN}")
  list(PREPEND kernel_sources ${source})
  set(kernel_sources ${kernel_sources} PARENT_SCOPE)
endfunction()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(_avx2 -mavx2 -mfma -mf16c)
  # GCC's AVX-512 header reads undefined registers on purpose and warns about itself.
  set(_avx512 ${_avx2} -mavx512f -mavx512bw -mavx512vl
              $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>
              $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  _isa(avx2 ${_avx2})
  _isa(avx512 ${_avx512})
  _isa(avx512vnni ${_avx512} -mavx512vnni -mavx512vbmi)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  # Below -O3 GCC 12 puts sums that are still wanted and the codes of the next unit into one place on
  # the stack (its bug 90348).
  set(_neon $<$<CXX_COMPILER_ID:GNU>:-fstack-reuse=none>)
  _isa(neon ${_neon})
  _isa(neon_dotprod ${_neon} -march=armv8.2-a+dotprod)
  _isa(neon_i8mm ${_neon} -march=armv8.2-a+dotprod+i8mm)
endif()
