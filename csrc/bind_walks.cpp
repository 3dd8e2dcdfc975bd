// Python's view of the walks and of the draft that grows from them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "copying.h"
#include "tuples.h"
#include "walks.h"

namespace nb = nanobind;
using namespace headstart;

namespace {

nb::dict as_dict(const Children& children) {
  nb::dict found;
  for (const Child& child : children) found[nb::int_(child.token)] = child.probability;
  return found;
}

Children from_dict(const nb::dict& given) {
  Children children;
  for (const auto& [token, probability] : given) children.push_back({nb::cast<std::int64_t>(token), nb::cast<double>(probability)});
  return children;
}

nb::tuple grown(std::int64_t root, const std::vector<const Walk*>& walks, std::int64_t max_nodes, std::int64_t max_depth, double least_reach,
                double certain) {
  if (std::find(walks.begin(), walks.end(), nullptr) != walks.end()) throw std::invalid_argument("a walk is None");
  const Grown found = grow(root, walks, {max_nodes, max_depth, least_reach, certain});
  const std::span<const double> estimates = found.estimates;
  nb::object rows = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(found.tokens.size())));
  for (std::size_t row = 0; row < found.tokens.size(); ++row)
    PyTuple_SET_ITEM(rows.ptr(), static_cast<Py_ssize_t>(row),
                     as_tuple(estimates.subspan(row * walks.size(), walks.size())).release().ptr());
  return nb::make_tuple(as_tuple(found.tokens), as_tuple(found.parents), as_tuple(found.probabilities), rows);
}

std::vector<Children> read_guesses(const std::vector<nb::dict>& guesses) {
  std::vector<Children> read;
  for (const nb::dict& children : guesses) read.push_back(from_dict(children));
  return read;
}

}  // namespace

void bind_walks(nb::module_& module) {
  nb::class_<Place>(module, "Place", "Where a walk stands.");
  nb::class_<Walk>(module, "Walk", "What one guesser knows of one sequence in one step.")
      .def("start", &Walk::start, "Where it stands at the root; None: it has nothing to say.")
      .def("children", [](const Walk& self, const Place& state) { return as_dict(self.children(state)); }, nb::arg("state"),
           "Tokens that may follow, with their probabilities.")
      .def("beside", [](const Walk& self, const Place& state, const nb::dict& children) { return as_dict(self.beside(state, from_dict(children))); },
           nb::arg("state"), nb::arg("children"), "Its own children, as they weigh beside those of others.")
      .def("step", &Walk::step, nb::arg("state"), nb::arg("token"), "Where it stands behind a drafted token.")
      .def("draws", [](const Walk&, const Place&) { return nb::make_tuple(); }, nb::arg("state"), "Nothing: no child is drawn.")
      .def("first_estimate",
           [](const Walk& self) {
             double best = 0.0;
             if (const State state = self.start())
               for (const Child& child : self.children(*state)) best = std::max(best, child.probability);
             return best;
           },
           "Of the likeliest first token.");
  nb::class_<TreeWalk, Walk>(module, "TreeWalk", "A finished tree.")
      .def(nb::init<std::vector<std::int64_t>, const std::vector<std::int64_t>&, std::vector<double>>(), nb::arg("tokens"), nb::arg("parents"),
           nb::arg("probabilities"));
  nb::class_<DepthWalk, Walk>(module, "DepthWalk", "Parallel guesses by depth.")
      .def("__init__",
           [](DepthWalk* self, const std::vector<nb::dict>& guesses, double behind_any_path) {
             new (self) DepthWalk(read_guesses(guesses), behind_any_path);
           },
           nb::arg("guesses"), nb::arg("behind_any_path"));
  nb::class_<Copying, Walk>(module, "Copying", "Suffix matching over one text as it grows.")
      .def("__init__",
           [](Copying* self, const std::vector<std::int64_t>& prompt, std::int64_t latest, std::int64_t most_matches, std::int64_t tail,
              std::vector<std::int64_t> classes, std::vector<double> prior, double prior_weight, double weight_of_noise, double noise_of_others) {
             new (self) Copying({latest, most_matches, tail, std::move(classes), std::move(prior), prior_weight, weight_of_noise, noise_of_others},
                                prompt);
           },
           nb::arg("prompt"), nb::kw_only(), nb::arg("latest"), nb::arg("most_matches"), nb::arg("tail"), nb::arg("classes"), nb::arg("prior"),
           nb::arg("prior_weight"), nb::arg("weight_of_noise"), nb::arg("noise_of_others"))
      .def_prop_ro("num_tokens", &Copying::num_tokens)
      .def("extend", [](Copying& self, const std::vector<std::int64_t>& tokens) { self.extend(tokens); }, nb::arg("tokens"),
           "Tokens that were committed.")
      .def("weigh_by", &Copying::weigh_by, nb::arg("key").none(), "Weigh the root's children by the noise of this key; None: do not.");
  module.def("grow", &grown, nb::arg("root"), nb::arg("walks"), nb::arg("max_nodes"), nb::arg("max_depth"), nb::arg("least_reach"),
             nb::arg("certain"), "Tokens, parents, probabilities and each walk's estimates, one a row, of the likeliest paths of what walks say.");
}
