# Compiles for arm64 macOS on Linux. MACOS_TOOLCHAIN is the folder that toolchain.py made.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_OSX_DEPLOYMENT_TARGET "14.0" CACHE STRING "")

set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES MACOS_TOOLCHAIN)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY) # nothing to link or run

set(CMAKE_CXX_COMPILER "${MACOS_TOOLCHAIN}/bin/clang++")
set(CMAKE_AR "${MACOS_TOOLCHAIN}/bin/ar" CACHE FILEPATH "")
set(CMAKE_RANLIB "${MACOS_TOOLCHAIN}/bin/ranlib" CACHE FILEPATH "")
# CMake asks for one, but BUILD_WITH_INSTALL_RPATH leaves it nothing to do: fail if it is called.
set(CMAKE_INSTALL_NAME_TOOL /bin/false CACHE FILEPATH "")

# Both ways to name the linker are needed: without the first, clang leaves out -platform_version.
# libc++ is the system's, as in libmlx: a second copy would have exception types of its own.
set(_link "-fuse-ld=lld --ld-path=${MACOS_TOOLCHAIN}/bin/ld64.lld -nostdlib")
string(APPEND _link " -L${MACOS_TOOLCHAIN}/lib")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "${_link}")
set(CMAKE_MODULE_LINKER_FLAGS_INIT "${_link}")
set(CMAKE_CXX_STANDARD_LIBRARIES "-lc++.1 -lSystem" CACHE STRING "")

# The build machine's Python headers behind a pyconfig.h that corrects them.
set(Python_INCLUDE_DIR "${MACOS_TOOLCHAIN}/include/python;${MACOS_TOOLCHAIN}/include/python-host")
set(SKBUILD_SOSABI abi3) # FindPython would report the build machine's suffix

set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
