// Python's view of chances, offers and budgets.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

#include "offer.h"
#include "step_cost.h"
#include "tuples.h"

namespace nb = nanobind;
using namespace headstart;

namespace {

Grown read_grown(Rows tokens, Rows parents, std::vector<double> probabilities, const std::vector<std::vector<double>>& estimates) {
  Grown grown{std::move(tokens), std::move(parents), std::move(probabilities), {}};
  for (const std::vector<double>& row : estimates) grown.estimates.insert(grown.estimates.end(), row.begin(), row.end());
  return grown;
}

nb::tuple as_tuples(const Draft& draft) { return nb::make_tuple(as_tuple(draft.tokens), as_tuple(draft.parents), as_tuple(draft.probabilities)); }

}  // namespace

void bind_plan(nb::module_& module) {
  nb::class_<Chances>(module, "Chances", "What all sequences have shown of estimates, by kind.")
      .def("__init__",
           [](Chances* self, std::vector<double> edges, std::vector<double> priors, double forget, double most) {
             new (self) Chances({std::move(edges), std::move(priors), forget, most});
           },
           nb::arg("edges"), nb::arg("priors"), nb::arg("forget"), nb::arg("most"))
      .def_prop_ro("most", &Chances::most)
      .def("scaled", &Chances::scaled, nb::arg("kind"), nb::arg("depth"), nb::arg("estimate"),
           "The chance of a node at this depth once its parent is committed.")
      .def("observe", &Chances::observe, nb::arg("kind"), nb::arg("depth"), nb::arg("estimate"), nb::arg("is_hit"), nb::arg("factor") = 1.0,
           "A node with a committed parent was committed itself, or not.");
  nb::class_<OwnChances>(module, "OwnChances", "What one sequence has shown beside that.")
      .def(nb::init<double, double>(), nb::arg("prior"), nb::arg("forget"))
      .def("factor", &OwnChances::factor, nb::arg("kind"), "What to scale a kind's chances by.")
      .def("observe", &OwnChances::observe, nb::arg("kind"), nb::arg("chance"), nb::arg("is_hit"), "A node with this chance was committed or not.");
  nb::class_<Offer>(module, "Offer", "What the members offer together for one sequence.")
      .def("__init__",
           [](Offer* self, Rows tokens, Rows parents, std::vector<double> probabilities, const std::vector<std::vector<double>>& estimates,
              Rows bits) {
             new (self) Offer(read_grown(std::move(tokens), std::move(parents), std::move(probabilities), estimates), std::move(bits));
           },
           nb::arg("tokens"), nb::arg("parents"), nb::arg("probabilities"), nb::arg("estimates"), nb::arg("bits"))
      .def_static("grown",
                  [](std::int64_t root, const std::vector<const Walk*>& walks, Rows bits, std::int64_t max_nodes, std::int64_t max_depth,
                     double least_reach, double certain) {
                    if (std::find(walks.begin(), walks.end(), nullptr) != walks.end()) throw std::invalid_argument("a walk is None");
                    return Offer(grow(root, walks, {max_nodes, max_depth, least_reach, certain}), std::move(bits));
                  },
                  nb::arg("root"), nb::arg("walks"), nb::arg("bits"), nb::arg("max_nodes"), nb::arg("max_depth"), nb::arg("least_reach"),
                  nb::arg("certain"), "The likeliest paths of what the walks say.")
      .def_prop_ro("reaches", [](const Offer& self) { return as_tuple(self.reaches()); })
      .def("weigh", &Offer::weigh, nb::arg("chances"), nb::arg("own"), "Find every node's kind, chance and reach.")
      .def("draft", [](const Offer& self, const Rows& rows) { return as_tuples(self.draft(rows)); }, nb::arg("rows"),
           "Tokens, parents and chances of these rows, the root before them.")
      .def("estimates", [](const Offer& self, const Rows& rows, std::int64_t bit) { return as_tuple(self.estimates(rows, bit)); }, nb::arg("rows"),
           nb::arg("bit"), "What a member said of these rows, behind a 1 for the root.")
      .def("share",
           [](const Offer& self, const Rows& rows, std::int64_t bit, std::int64_t cheaper) {
             const Share share = self.share(rows, bit, cheaper);
             return nb::make_tuple(share.reach, share.num_own, share.num_named);
           },
           nb::arg("rows"), nb::arg("bit"), nb::arg("cheaper"),
           "The reaches, summed, and the number of rows that a member named and no cheaper one; the number of all it named.")
      .def("learn",
           [](const Offer& self, const Rows& committed, Chances& chances, OwnChances& own) { return self.learn(committed, chances, own); },
           nb::arg("committed"), nb::arg("chances"), nb::arg("own"), "Judge all nodes whose parent was committed; the rows that were right.");
  nb::class_<StepCost>(module, "StepCost", "Seconds of a step by its rows, as well as they are known now.")
      .def("__init__",
           [](StepCost* self, Rows rows, std::vector<double> seconds, double context, double row_position_seconds, double slower, double faster,
              double scale_gain, double knot_gain, double stale_gain, double stale_steps, double least_share, double most_correction) {
             new (self) StepCost({std::move(rows), std::move(seconds), context, row_position_seconds, slower, faster, scale_gain, knot_gain,
                                  stale_gain, stale_steps, least_share, most_correction});
           },
           nb::arg("rows"), nb::arg("seconds"), nb::arg("context"), nb::arg("row_position_seconds"), nb::kw_only(), nb::arg("slower"),
           nb::arg("faster"), nb::arg("scale_gain"), nb::arg("knot_gain"), nb::arg("stale_gain"), nb::arg("stale_steps"), nb::arg("least_share"),
           nb::arg("most_correction"))
      .def_prop_ro("num_steps", &StepCost::num_steps)
      .def_prop_ro("scale", &StepCost::scale)
      .def("seconds", &StepCost::seconds, nb::arg("rows"), nb::arg("positions").none() = nb::none(),
           "T(rows) behind so many cached positions a row (None: as profiled).")
      .def("range", &StepCost::range, nb::arg("first"), nb::arg("last"), nb::arg("positions").none() = nb::none(),
           "T of first to last rows.")
      .def("num_steps_unseen", &StepCost::num_steps_unseen, nb::arg("rows"), "Steps since one with about so many rows was timed.")
      .def("observe", &StepCost::observe, nb::arg("rows"), nb::arg("seconds"), nb::arg("positions").none() = nb::none(),
           "A step with so many rows took so long.");
  module.def("allot",
             [](const std::vector<std::vector<double>>& reaches, double num_tokens, const std::vector<double>& seconds, double margin) {
               Budget budget = allot(reaches, num_tokens, seconds, margin);
               return nb::make_tuple(std::move(budget.rows), budget.num_tokens, budget.seconds);
             },
             nb::arg("reaches"), nb::arg("num_tokens"), nb::arg("seconds"), nb::arg("margin"),
             "The rows to verify of each tree, the tokens that the step will give, and its seconds.");
}
