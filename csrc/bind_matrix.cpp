// Python's view of the packed matrices, of the thread pool and of the instruction sets.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "arrays.h"
#include "kernels/kernels.h"
#include "linear.h"
#include "pool.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace headstart;

namespace {

using NewRows = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

NewRows new_rows(std::unique_ptr<float[]> values, std::size_t num_rows, std::size_t width) {
  float* data = values.get();
  nb::capsule owner(values.release(), [](void* p) noexcept { delete[] static_cast<float*>(p); });
  return NewRows(data, {num_rows, width}, owner);
}

struct Aligned {
  static constexpr std::align_val_t kAlignment{64};
  void operator()(std::uint8_t* p) const { ::operator delete[](p, kAlignment); }
};
std::unique_ptr<std::uint8_t[], Aligned> aligned(std::size_t size) {
  return std::unique_ptr<std::uint8_t[], Aligned>(static_cast<std::uint8_t*>(::operator new[](std::max<std::size_t>(size, 1), Aligned::kAlignment)));
}

Linear pack(const Array<std::uint8_t>& source, const std::string& source_kind, const std::string& kind, std::int64_t outputs, std::int64_t inputs,
            const std::optional<Array<std::int64_t>>& order) {
  const auto from = source_kind_named(source_kind);
  const auto to = kind_named(kind);
  if (order && order->size() == 0) throw std::invalid_argument("`order` is empty");
  const Unlocked unlocked;
  return Linear(span(source), from, to, outputs, inputs, order ? span(*order) : std::span<const std::int64_t>());
}

NewRows product(const Linear& matrix, const Array<float, 2>& x, const std::optional<Array<float>>& bias) {
  const auto num_rows = static_cast<std::int64_t>(x.shape(0));
  if (x.shape(1) != static_cast<std::size_t>(matrix.inputs()))
    throw std::invalid_argument("rows of " + std::to_string(x.shape(1)) + " numbers for a matrix of " + std::to_string(matrix.inputs()) +
                                " inputs");
  if (bias && bias->size() != static_cast<std::size_t>(matrix.outputs()))
    throw std::invalid_argument("a bias of " + std::to_string(bias->size()) + " numbers for " + std::to_string(matrix.outputs()) +
                                " outputs");
  auto y = std::make_unique_for_overwrite<float[]>(x.shape(0) * static_cast<std::size_t>(matrix.outputs()));
  {
    const Unlocked unlocked;
    const std::size_t stride = matrix.prepared_bytes();
    const auto prepared = aligned(x.shape(0) * stride);
    Pool& pool = Pool::instance();
    const std::int64_t chunk = std::max<std::int64_t>(1, matrix.num_groups() / (8 * pool.num_threads()));
    pool.run([&](int) {
      pool.share(num_rows, 1, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (; begin < end; ++begin)
          matrix.prepare(x.data() + begin * matrix.inputs(), prepared.get() + static_cast<std::size_t>(begin) * stride);
      });
      pool.share(matrix.num_groups(), chunk, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
        matrix.apply(prepared.get(), num_rows, begin, end, y.get() + begin * matrix.group_outputs(), matrix.outputs(), bias ? bias->data() : nullptr, false);
      });
    });
  }
  return new_rows(std::move(y), x.shape(0), static_cast<std::size_t>(matrix.outputs()));
}

NewRows read_rows(const Linear& matrix, const Array<std::int64_t>& ids) {
  const auto width = static_cast<std::size_t>(matrix.inputs());
  auto values = std::make_unique_for_overwrite<float[]>(ids.size() * width);
  for (std::size_t i = 0; i < ids.size(); ++i) matrix.row(ids.data()[i], values.get() + i * width);
  return new_rows(std::move(values), ids.size(), width);
}

Linear select_rows(const Linear& matrix, const Array<std::int64_t>& ids) {
  const Unlocked unlocked;
  return matrix.select(span(ids));
}

}  // namespace

void bind_matrix(nb::module_& module) {
  module.def("isa", [] { return std::string(kernels().isa); }, "The instruction set in use.");
  module.def(
      "available_isas",
      [] {
        std::vector<std::string> names;
        for (const auto name : available_isas()) names.emplace_back(name);
        return names;
      },
      "Instruction sets that this machine can run, best first.");
  module.def("choose_isa", [](const std::string& name) { choose_isa(name); }, nb::arg("name"),
             "Use another instruction set for what is built from now on.");
  module.def("num_threads", [] { return Pool::instance().num_threads(); }, "Threads of the engine's pool.");
  module.def("set_num_threads", [](int count) { Pool::instance().set_num_threads(count); }, nb::arg("count"),
             "Change the pool's size, from the next call on.");

  nb::class_<Linear>(module, "Matrix", "A weight matrix [outputs, inputs], packed for the kernels of the instruction set in use.")
      .def("__init__",
           [](Linear* self, const Array<std::uint8_t>& source, const std::string& source_kind, const std::string& kind, std::int64_t outputs,
              std::int64_t inputs, const std::optional<Array<std::int64_t>>& order) {
             new (self) Linear(pack(source, source_kind, kind, outputs, inputs, order));
           },
           nb::arg("source").noconvert(), nb::arg("source_kind"), nb::arg("kind"), nb::arg("outputs"), nb::arg("inputs"),
           nb::arg("order") = nb::none())
      .def_prop_ro("shape", [](const Linear& self) { return std::make_tuple(self.outputs(), self.inputs()); })
      .def_prop_ro("kind", [](const Linear& self) { return std::string(name_of(source_kind(self.kind()))); })
      .def_prop_ro("num_bytes", &Linear::num_bytes)
      .def("linear", &product, nb::arg("x"), nb::arg("bias") = nb::none(), "x [n, inputs] -> x W^T + bias [n, outputs].")
      .def("rows", &read_rows, nb::arg("ids"), "Rows of the matrix as float32 [n, inputs].")
      .def("select", &select_rows, nb::arg("ids"), "Rows of the matrix as a matrix of the same kind, bit for bit.");
}
