// Runs the CPU kernels and their scheduling, without Python and MLX, and prints JSON: the
// instruction set, what failed, and a fingerprint of what is the same bits everywhere: integer
// products, tiles of logits, searched scales and codes. Arguments name the groups of tests to run;
// without any it is all of them.
#include <cstdio>
#include <exception>

#include "harness.h"

namespace {

struct Group {
  const char* name;
  void (*run)(native::Report&);
};

constexpr Group kGroups[] = {
    {"elements", native::test_elements},
    {"matmul", native::test_matmul},
    {"delta_net", native::test_delta_net},
    {"attention", native::test_attention},
    {"kl_divergence", native::test_kl_divergence},
    {"quantize_search", native::test_quantize_search},
    {"threads", native::test_threads},
    {"fork", native::test_fork},
};

bool is_wanted(const char* name, int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], name) == 0) {
      return true;
    }
  }
  return argc == 1;
}

}  // namespace

int main(int argc, char** argv) {
  native::Report report;
  const char* isa = nullptr;
  try {
    isa = mixbit::cpu::kernels().name;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  for (const Group& group : kGroups) {
    if (is_wanted(group.name, argc, argv)) {
      group.run(report);
    }
  }
  std::printf("{\"isa\": \"%s\", \"integers\": \"%016llx\", \"failures\": [", isa,
              static_cast<unsigned long long>(report.integers));
  for (size_t i = 0; i < report.failures.size(); ++i) {
    std::printf("%s\"%s\"", i == 0 ? "" : ", ", report.failures[i].c_str());
  }
  std::printf("]}\n");
  return report.failures.empty() ? 0 : 1;
}
