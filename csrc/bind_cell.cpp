// Python's view of the cell of sequential heads.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "arrays.h"
#include "cell.h"
#include "table.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace headstart;

namespace {

nb::object level(const Cell& cell, const Array<float, 2>& parents, const Array<std::int64_t>& tokens, std::int64_t depth, std::int64_t k) {
  if (parents.shape(0) != tokens.size() || parents.shape(1) != static_cast<std::size_t>(cell.width()) || tokens.size() == 0)
    throw std::invalid_argument("parents must be one row of " + std::to_string(cell.width()) + " numbers a token, and at least one");
  if (k < 1) throw std::invalid_argument("k must be 1 or more");
  const auto best = static_cast<std::size_t>(std::min(k, cell.num_outputs()));
  Table<float> states(tokens.size(), parents.shape(1));
  Table<std::int64_t> ids(tokens.size(), best);
  Table<double> probabilities(tokens.size(), best);
  bool usable;
  {
    const Unlocked unlocked;
    usable = cell.run({parents.data(), parents.size()}, span(tokens), depth, static_cast<std::int64_t>(best), states.data(), ids.data(),
                      probabilities.data());
  }
  if (!usable) raise_unusable_logits();
  return nb::make_tuple(std::move(states).release(), std::move(ids).release(), std::move(probabilities).release());
}

}  // namespace

void bind_cell(nb::module_& module) {
  nb::class_<Cell>(module, "Cell", "The cell of sequential heads over packed matrices: a level of a draft in one call.")
      .def("__init__",
           [](Cell* self, const Linear& embedding, const Linear& inner, const Linear& project, const Linear& output,
              const std::vector<std::vector<float>>& biases) { new (self) Cell(embedding, inner, project, output, biases); },
           nb::arg("embedding"), nb::arg("inner"), nb::arg("project"), nb::arg("output"), nb::arg("biases"))
      .def("level", &level, nb::arg("parents"), nb::arg("tokens"), nb::arg("depth"), nb::arg("k"),
           "States [n, D] of a level's nodes, and ids and probabilities [n, k] of their likeliest children.");
}
