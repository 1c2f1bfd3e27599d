#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "gpu/host.h"
#include "gpu/source.h"
#include "mlx/allocator.h"
#include "mlx/backend/metal/device.h"

namespace mixbit::gpu {

namespace {

constexpr size_t kMaxPrograms = 4096;  // prompts of every length would pile up
constexpr int64_t kAlignment = 16;     // bytes, see launch_plan.h

struct Kernel {
  MTL::ComputePipelineState* pipeline = nullptr;  // the device owns it
  std::string fault;                              // why it must not run
  bool tried = false;
};

// A plan with its kernels.
struct Program {
  LaunchPlan plan;
  std::vector<Kernel*> kernels;  // of each launch
};

// All that was compiled in this process, for whatever stream: there is one Metal device.
struct Store {
  std::mutex mutex;  // for everything but a kernel's pipeline, which stays as it was made
  std::unordered_map<std::string, Kernel> kernels;
  std::unordered_map<std::string, std::shared_ptr<const Program>> programs;
};

Store& store() {
  static Store* all = new Store;  // never destroyed: other threads may still run at exit
  return *all;
}

Device describe(mx::metal::Device& device) {
  return {device.get_architecture_gen(), device.get_architecture().back()};
}

MTL::ComputePipelineState* compile(const Launch& launch, mx::metal::Device& device) {
  const std::string source = library_source(metal_folder(), launch);
  const std::string name = "mixbit_" + launch.kernel + "_" + content_hash(source);
  MTL::Library* library = device.get_library(name, [&] { return source; });
  return device.get_kernel(launch.kernel, library);
}

// As much of a compiler's message as a warning should have.
std::string beginning(const std::string& text) {
  constexpr size_t kLength = 400;
  return text.size() <= kLength ? text : text.substr(0, kLength) + " …";
}

Kernel compile_or_tell(const Launch& launch, mx::metal::Device& device) {
  Kernel kernel;
  try {
    kernel.pipeline = compile(launch, device);
  } catch (const std::exception& error) {
    kernel.fault =
        "the Metal kernel " + launch.kernel + " cannot be had: " + beginning(error.what());
    return kernel;
  }
  const size_t threads = size_t{launch.threads[0]} * launch.threads[1] * launch.threads[2];
  if (kernel.pipeline->maxTotalThreadsPerThreadgroup() < threads) {
    kernel.fault = "this GPU has no room for " + std::to_string(threads) +
                   " threads of the Metal kernel " + launch.kernel;
  }
  return kernel;
}

// The caller holds the store's mutex.
std::shared_ptr<const Program> find_or_make(const Description& operation,
                                            mx::metal::Device& device) {
  Store& all = store();
  const auto known = all.programs.find(operation.key);
  if (known != all.programs.end()) {
    return known->second;
  }
  const auto pool = NS::TransferPtr(NS::AutoreleasePool::alloc()->init());
  auto program = std::make_shared<Program>();
  program->plan = operation.plan(describe(device));
  for (const Launch& launch : program->plan.launches) {
    const auto [kernel, is_new] = all.kernels.try_emplace(launch.family + "/" + launch.kernel);
    if (is_new) {
      kernel->second = compile_or_tell(launch, device);
    }
    program->kernels.push_back(&kernel->second);
  }
  if (all.programs.size() >= kMaxPrograms) {
    all.programs.clear();
  }
  all.programs.emplace(operation.key, program);
  return program;
}

// Throws NoKernel for a program that must not run. The caller holds the store's mutex.
void check(const Program& program) {
  for (const Kernel* kernel : program.kernels) {
    if (!kernel->fault.empty()) {
      throw NoKernel(kernel->fault);
    }
  }
}

std::string outcome(const std::function<std::string(const Device&)>& trial,
                    mx::metal::Device& device) {
  try {
    return trial(describe(device));
  } catch (const std::exception& error) {
    return error.what();
  }
}

bool is_aligned(const mx::array& array) {
  return array.offset() % kAlignment == 0;
}

// Gives outputs memory. It must come before anything else takes hold of the inputs.
void place(std::vector<mx::array>& outputs, const std::vector<mx::array>& inputs,
           const std::optional<InPlace>& in_place) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool may = in_place && in_place->output == i;
    if (may && inputs[in_place->input].is_donatable() && is_aligned(inputs[in_place->input])) {
      outputs[i].copy_shared_buffer(inputs[in_place->input]);
    } else {
      outputs[i].set_data(mx::allocator::malloc(outputs[i].nbytes()));
    }
  }
}

// The array itself, or a copy of it where it does not begin as kernels want it.
mx::array aligned(const mx::array& array, mx::metal::Device& device,
                  mx::metal::CommandEncoder& encoder) {
  if (is_aligned(array)) {
    return array;
  }
  mx::array copy(array.shape(), array.dtype(), nullptr, {});
  copy.set_data(mx::allocator::malloc(array.nbytes()));
  encoder.add_temporary(copy);
  static MTL::ComputePipelineState* kernel =
      compile(make_launch("copy", "copy", {"uchar"}), device);
  encoder.set_compute_pipeline_state(kernel);
  encoder.set_output_array(copy, 0);
  encoder.set_input_array(array, 1);
  encoder.dispatch_threads(MTL::Size(array.nbytes(), 1, 1), MTL::Size(256, 1, 1));
  return copy;
}

mx::array allocated(size_t bytes, mx::metal::CommandEncoder& encoder) {
  // In words of 8 bytes, of which an int counts enough.
  mx::array temporary({static_cast<int>((bytes + 7) / 8)}, mx::uint64, nullptr, {});
  temporary.set_data(mx::allocator::malloc(temporary.nbytes()));
  encoder.add_temporary(temporary);
  return temporary;
}

MTL::Size size_of(const std::array<uint32_t, 3>& extent) {
  return MTL::Size(extent[0], extent[1], extent[2]);
}

}  // namespace

void require(const Description& operation, const mx::Stream& stream,
             const std::function<std::string(const Device&)>& trial) {
  mx::metal::Device& device = mx::metal::device(stream.device);
  Store& all = store();
  std::unique_lock lock(all.mutex);
  const auto program = find_or_make(operation, device);
  if (program->kernels.empty()) {
    throw NoKernel("");
  }
  check(*program);
  const auto tried = [](const Kernel* kernel) { return kernel->tried; };
  if (std::all_of(program->kernels.begin(), program->kernels.end(), tried)) {
    return;
  }
  lock.unlock();  // the trial comes through run()
  const std::string fault = outcome(trial, device);
  lock.lock();
  for (size_t i = 0; i < program->kernels.size(); ++i) {
    Kernel& kernel = *program->kernels[i];
    if (!kernel.tried && !fault.empty()) {
      kernel.fault = "the Metal kernel " + program->plan.launches[i].kernel +
                     " failed its trial on this GPU: " + fault;
    }
    kernel.tried = true;
  }
  check(*program);
}

void run(const Description& operation, const mx::Stream& stream,
         const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  mx::metal::Device& device = mx::metal::device(stream.device);
  mx::metal::CommandEncoder& encoder = mx::metal::get_command_encoder(stream);
  std::shared_ptr<const Program> program;
  {
    std::scoped_lock lock(store().mutex);
    program = find_or_make(operation, device);
    check(*program);
  }
  if (program->kernels.empty()) {
    // Only a function compiled without shapes gets here: require() let another shape pass.
    throw NoKernel("this GPU has no Metal kernel for this shape; compile with shapeless=False");
  }
  place(outputs, inputs, operation.in_place);
  std::vector<mx::array> bound;
  for (const mx::array& input : inputs) {
    bound.push_back(aligned(input, device, encoder));
  }
  std::vector<mx::array> temporaries;
  for (size_t bytes : program->plan.temporaries) {
    temporaries.push_back(allocated(bytes, encoder));
  }
  for (size_t i = 0; i < program->kernels.size(); ++i) {
    const Launch& launch = program->plan.launches[i];
    encoder.set_compute_pipeline_state(program->kernels[i]->pipeline);
    for (const Binding& b : launch.buffers) {
      const int buffer = static_cast<int>(b.buffer);
      if (b.role == Binding::Role::input) {
        encoder.set_input_array(bound[b.index], buffer);
      } else {
        // An output to the encoder is what may be written: it waits for earlier readers and
        // writers.
        auto& written = b.role == Binding::Role::output ? outputs : temporaries;
        encoder.set_output_array(written[b.index], buffer);
      }
    }
    encoder.set_bytes(launch.params.data(), static_cast<int>(launch.params.size()), kParamsBuffer);
    encoder.dispatch_threadgroups(size_of(launch.threadgroups), size_of(launch.threads));
  }
}

}  // namespace mixbit::gpu
