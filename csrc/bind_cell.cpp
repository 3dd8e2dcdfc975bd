// Python's view of the cell of sequential heads.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "arrays.h"
#include "cell.h"
#include "cell_draft.h"
#include "table.h"
#include "tuples.h"
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

// Keys, temperature, top-k, top-p, the logarithm of min-p, vocabulary and sharpness, or nothing.
using Noise = std::optional<std::tuple<std::vector<std::uint64_t>, double, std::int64_t, double, double, std::int64_t, double>>;

std::optional<Coupling> as_coupling(const Noise& noise) {
  if (!noise) return {};
  const auto& [keys, temperature, top_k, top_p, log_min_p, vocab_size, sharpness] = *noise;
  return Coupling{keys, temperature, top_k, top_p, log_min_p, vocab_size, sharpness};
}

nb::tuple whole_draft(const Cell& cell, const Array<float, 2>& hidden, const std::vector<std::int64_t>& roots, const std::vector<std::int64_t>& max_nodes,
                      const std::vector<std::int64_t>& num_levels, const std::vector<double>& least_reach,
                      const std::vector<std::vector<double>>& factors, std::int64_t num_ranks, double least_node_reach, double certain,
                      const std::optional<Array<std::int64_t>>& base_ids, const std::vector<Noise>& noises, std::int64_t num_candidates) {
  const std::size_t count = roots.size();
  for (const std::size_t size : {hidden.shape(0), max_nodes.size(), num_levels.size(), least_reach.size(), factors.size()})
    if (size != count) throw std::invalid_argument("every list has one entry a sequence");
  if (!noises.empty() && noises.size() != count) throw std::invalid_argument("noises has one entry a sequence, or none");
  std::vector<DraftRequest> requests;
  for (std::size_t i = 0; i < count; ++i)
    requests.push_back({roots[i], max_nodes[i], num_levels[i], least_reach[i], factors[i], noises.empty() ? std::nullopt : as_coupling(noises[i])});
  Drafts drafts;
  {
    const Unlocked unlocked;
    drafts = draft(cell, {hidden.data(), hidden.size()}, requests, {num_ranks, num_candidates, least_node_reach, certain},
                   base_ids ? span(*base_ids) : std::span<const std::int64_t>());
  }
  if (!drafts.usable) raise_unusable_logits();
  nb::list trees;
  for (const LevelTree& tree : drafts.trees)
    trees.append(nb::make_tuple(as_tuple(tree.tokens), as_tuple(tree.parents), as_tuple(tree.probabilities)));
  return nb::make_tuple(trees, drafts.num_passes);
}

}  // namespace

void bind_cell(nb::module_& module) {
  nb::class_<Cell>(module, "Cell", "The cell of sequential heads over packed matrices: a level of a draft in one call.")
      .def("__init__",
           [](Cell* self, const Linear& embedding, const Linear& inner, const Linear& project, const Linear& output,
              const std::vector<std::vector<float>>& biases) { new (self) Cell(embedding, inner, project, output, biases); },
           nb::arg("embedding"), nb::arg("inner"), nb::arg("project"), nb::arg("output"), nb::arg("biases"))
      .def("level", &level, nb::arg("parents"), nb::arg("tokens"), nb::arg("depth"), nb::arg("k"),
           "States [n, D] of a level's nodes, and ids and probabilities [n, k] of their likeliest children.")
      .def("draft", &whole_draft, nb::arg("hidden"), nb::arg("roots"), nb::arg("max_nodes"), nb::arg("num_levels"), nb::arg("least_reach"),
           nb::arg("factors"), nb::arg("num_ranks"), nb::arg("least_node_reach"), nb::arg("certain"), nb::arg("base_ids") = nb::none(),
           nb::arg("noises") = std::vector<Noise>(), nb::arg("num_candidates") = 0,
           "Tokens, parents and probabilities of the likeliest or coupled tree of each sequence, and the passes that were made.");
}
