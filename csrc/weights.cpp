#include "weights.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "mlx/primitives.h"

namespace mixbit {

using cpu::WeightKind;

namespace {

// Whether values follow each other in the order of the indices. MLX's flag is false where a
// dimension of one was moved, as in a convolution's weight from PyTorch.
bool in_order(const mx::array& a) {
  int64_t step = 1;
  for (int i = a.ndim() - 1; i >= 0; --i) {
    if (a.shape(i) != 1 && a.strides(i) != step) {
      return false;
    }
    step *= a.shape(i);
  }
  return true;
}

// Whether `a` lies, or will lie, row after row: what our primitives write does, also reshaped.
bool is_row_contiguous(const mx::array& a) {
  const mx::array* source = &a;
  while (source->has_primitive() && std::string_view(source->primitive().name()) == "Reshape") {
    source = &source->inputs()[0];
  }
  if (source->status() != mx::array::Status::unscheduled) {
    return source->flags().row_contiguous || in_order(*source);
  }
  return source->has_primitive() &&
         std::string_view(source->primitive().name()).starts_with("Mixbit");
}

bool one_of(int value, std::initializer_list<int> values) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

mx::Shape scales_shape(const WeightFormat& format, const mx::array& w) {
  mx::Shape shape = w.shape();
  shape.back() = static_cast<int>(format.in_dims(shape.back()) / format.group_size);
  return shape;
}

}  // namespace

const char* mode_name(WeightKind kind) {
  switch (kind) {
    case WeightKind::mxfp4:
      return "mxfp4";
    case WeightKind::mxfp8:
      return "mxfp8";
    case WeightKind::nvfp4:
      return "nvfp4";
    default:
      return "affine";
  }
}

void refuse(std::string_view op, const std::string& what) {
  throw std::invalid_argument("[" + std::string(op) + "] " + what);
}

std::vector<mx::array> packed_arrays(std::string_view op, const WeightFormat& format,
                                     const mx::array& w, const mx::array& scales,
                                     const std::optional<mx::array>& biases) {
  std::vector<mx::array> arrays{w, scales};
  if (biases) {
    arrays.push_back(*biases);
  }
  if (static_cast<int>(arrays.size()) != format.num_arrays()) {
    refuse(op, std::string("mode '") + mode_name(format.kind) +
                   (biases ? "' takes no biases." : "' needs biases."));
  }
  return arrays;
}

int WeightFormat::num_arrays() const {
  return kind == WeightKind::dense ? 1 : kind == WeightKind::affine ? 3 : 2;
}

int64_t WeightFormat::in_dims(int64_t columns) const {
  // Multiply first: 3-, 5- and 6-bit codes straddle words.
  return kind == WeightKind::dense ? columns : columns * 32 / bits;
}

WeightFormat packed_format(std::string_view op, int bits, int group_size, const std::string& mode) {
  std::ostringstream got;
  got << "; got bits=" << bits << ", group_size=" << group_size << ".";
  if (mode == "affine") {
    if (!one_of(bits, {2, 3, 4, 5, 6, 8}) || !one_of(group_size, {32, 64, 128})) {
      refuse(op, "mode 'affine' takes bits 2, 3, 4, 5, 6 or 8 and group_size 32, 64 or 128" +
                     got.str());
    }
    return {WeightKind::affine, bits, group_size};
  }
  for (const WeightFormat& fp :
       {WeightFormat{WeightKind::mxfp4, 4, 32}, WeightFormat{WeightKind::mxfp8, 8, 32},
        WeightFormat{WeightKind::nvfp4, 4, 16}}) {
    if (mode != mode_name(fp.kind)) {
      continue;
    }
    if (bits != fp.bits || group_size != fp.group_size) {
      refuse(op, "mode '" + mode + "' takes bits " + std::to_string(fp.bits) + " and group_size " +
                     std::to_string(fp.group_size) + got.str());
    }
    return fp;
  }
  refuse(op, "unknown mode '" + mode + "'; it is one of affine, mxfp4, mxfp8, nvfp4.");
}

void check_floating(std::string_view op, std::string_view name, const mx::array& a) {
  if (a.dtype() != mx::float32 && a.dtype() != mx::float16 && a.dtype() != mx::bfloat16) {
    refuse(op, std::string(name) + " must be float32, float16 or bfloat16.");
  }
}

void check_weight(std::string_view op, const WeightFormat& format, const mx::array& x,
                  const std::vector<mx::array>& arrays, int leading) {
  const mx::array& w = arrays[0];
  if (static_cast<int>(w.ndim()) != leading + 2) {
    refuse(op, "the weight must have " + std::to_string(leading + 2) +
                   " dimensions; its shape is " + shape_string(w.shape()) + ".");
  }
  if (x.ndim() == 0 || format.in_dims(w.shape(-1)) != x.shape(-1)) {
    std::ostringstream text;
    text << "x of shape " << shape_string(x.shape()) << " does not fit a weight of shape "
         << shape_string(w.shape());
    if (format.kind != WeightKind::dense) {
      text << ", which holds rows of " << format.in_dims(w.shape(-1)) << " values of "
           << format.bits << " bits";
    }
    refuse(op, text.str() + ".");
  }
  if (format.kind == WeightKind::dense) {
    return check_floating(op, "the weight", w);
  }
  if (w.dtype() != mx::uint32) {
    refuse(op, "a packed weight must be uint32.");
  }
  if (x.shape(-1) % format.group_size != 0) {
    refuse(op, "the last dimension of x, " + std::to_string(x.shape(-1)) +
                   ", is not a multiple of group_size " + std::to_string(format.group_size) + ".");
  }
  const mx::Shape expected = scales_shape(format, w);
  for (size_t i = 1; i < arrays.size(); ++i) {
    const char* name = i == 1 ? "scales" : "biases";
    if (arrays[i].shape() != expected) {
      refuse(op, std::string(name) + " must have shape " + shape_string(expected) + "; got " +
                     shape_string(arrays[i].shape()) + ".");
    }
  }
  if (format.kind == WeightKind::affine) {
    check_floating(op, "scales", arrays[1]);
    if (arrays[2].dtype() != arrays[1].dtype()) {
      refuse(op, "scales and biases must have the same dtype.");
    }
  } else if (arrays[1].dtype() != mx::uint8) {
    refuse(op, "scales of an fp mode must be uint8.");
  }
}

mx::array row_contiguous(const mx::array& a, mx::StreamOrDevice s) {
  return is_row_contiguous(a) ? a : mx::contiguous(a, false, s);
}

void release_inputs_of_siblings(const std::vector<mx::array>& inputs,
                                std::vector<mx::array>& outputs) {
  for (mx::array& output : outputs) {
    if (&output.inputs() != &inputs && !output.is_tracer()) {
      output.inputs().clear();
    }
  }
}

cpu::Element element_of(const mx::Dtype& dtype) {
  return dtype == mx::float32   ? cpu::Element::f32
         : dtype == mx::float16 ? cpu::Element::f16
                                : cpu::Element::bf16;
}

mx::Dtype dtype_of(cpu::Element element) {
  return element == cpu::Element::f32   ? mx::float32
         : element == cpu::Element::f16 ? mx::float16
                                        : mx::bfloat16;
}

cpu::Element weight_element(const WeightFormat& format, const mx::array* arrays) {
  switch (format.kind) {
    case WeightKind::dense:
      return element_of(arrays[0].dtype());
    case WeightKind::affine:
      return element_of(arrays[1].dtype());
    default:
      return cpu::Element::f32;
  }
}

cpu::Weights weights_of(const WeightFormat& format, const mx::array* arrays, size_t index) {
  auto matrix = [&](int i) -> const void* {
    const mx::array& a = arrays[i];
    const size_t bytes = a.itemsize() * a.shape(-1) * a.shape(-2);
    return a.data<char>() + index * bytes;
  };
  cpu::Weights w{
      format.kind, format.bits, format.group_size, weight_element(format, arrays), matrix(0),
      nullptr,     nullptr};
  if (format.num_arrays() > 1) {
    w.scales = matrix(1);
  }
  if (format.num_arrays() > 2) {
    w.biases = matrix(2);
  }
  return w;
}

std::string shape_string(const mx::Shape& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

mx::Shape swapped(const mx::Shape& shape) {
  return {shape[0], shape[2], shape[1], shape[3]};
}

}  // namespace mixbit
