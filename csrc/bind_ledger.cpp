// Python's view of the ledger and of its steps.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "ledger.h"
#include "tuples.h"

namespace nb = nanobind;
using namespace headstart;

namespace {

using Numbers = std::map<std::string, double>;

double number(const Numbers& numbers, const char* name) {
  const auto found = numbers.find(name);
  if (found == numbers.end()) throw std::invalid_argument(std::string("the ledger's settings lack ") + name);
  return found->second;
}

// Everything that src/headstart/plan/ has chosen stands there, and comes here by its name.
LedgerSettings read_settings(Rows rows, std::vector<double> seconds, const Numbers& given, std::vector<double> edges, std::vector<double> priors,
                             std::array<double, kSituations - 1> sure) {
  const auto get = [&](const char* name) { return number(given, name); };
  return {
      .cost = {std::move(rows), std::move(seconds), get("context"), get("row_position_seconds"), get("slower"), get("faster"), get("scale_gain"),
               get("knot_gain"), get("stale_gain"), get("stale_steps"), get("least_share"), get("most_correction")},
      .chances = {std::move(edges), std::move(priors), get("forget"), get("most")},
      .members = {sure, get("cost_forget"), get("least_variance"), get("least_slope"), get("most_over_cost"), get("gain_step"), get("probe_step"),
                  get("pooled_step"), get("first_steps"), get("probe_share"), get("nearly"), get("min_probe_steps"), get("max_doublings"),
                  get("untried"), get("less_where_sure"), get("hit_rate"), get("most_least_reach"), get("passes_step"), get("first_size"),
                  get("spare_size"), get("growth"), get("size_step")},
      .own_prior = get("own_prior"),
      .own_forget = get("own_forget"),
      .plain_steps = get("plain_steps"),
      .plain_steps_clear = get("plain_steps_clear"),
      .clear = get("clear"),
      .min_reach = get("min_reach"),
      .worth_weighing = get("worth_weighing"),
      .waking = get("waking"),
      .margin = get("margin"),
      .max_timed_rows = get("max_timed_rows"),
      .smoothing = get("smoothing"),
      .certain = get("certain"),
  };
}

nb::dict described(const Member& member) {
  const auto [fixed, each] = member.cost.line();
  const Earnings& own = member.earnings;
  nb::dict found;
  found["cost_ms"] = 1000 * (fixed + each);
  found["cost_ms_fixed"] = 1000 * fixed;
  found["cost_ms_per_sequence"] = 1000 * each;
  found["calls"] = own.num_calls;
  found["asked"] = own.num_asked;
  found["probes"] = own.num_probes;
  found["without_choice"] = own.num_obeyed;
  found["propose_ms"] = 1000 * own.seconds;
  found["verified"] = own.num_verified;
  found["accepted"] = own.num_accepted;
  found["saved_ms"] = 1000 * own.saved_seconds;
  found["is_on"] = member.is_on();
  return found;
}

void bind_step(nb::module_& module) {
  nb::class_<Step>(module, "Step", "A step of a ledger.")
      .def_prop_ro("has_asked", &Step::has_asked)
      .def_prop_ro("has_offers", &Step::has_offers)
      .def_prop_ro("num_drafted", &Step::num_drafted)
      .def("due", &Step::due, "Places of the members that may be asked.")
      .def("choose",
           [](Step& self, std::int64_t place) {
             const Call call = self.choose(place);
             return nb::make_tuple(as_tuple(call.entries), as_tuple(call.sizes), call.least_reach);
           },
           nb::arg("place"), "For which sequences this member is asked, how many nodes each, and when its levels end.")
      .def("told",
           [](Step& self, std::int64_t place, const std::vector<double>& first_estimates, double seconds, std::int64_t num_passes) {
             self.told(place, first_estimates, seconds, num_passes);
           },
           nb::arg("place"), nb::arg("first_estimates"), nb::arg("seconds"), nb::arg("num_passes"), "It said something, and took so long.")
      .def("worth_offering", &Step::worth_offering, "Entries of which somebody said something that might be worth a row.")
      .def("limits_of", [](const Step& self, std::int64_t entry) { return nb::make_tuple(self.size_of(entry), self.offered_from()); },
           nb::arg("entry"), "Nodes that the entry's offer may have, and the reach that they must have.")
      .def("offer",
           [](Step& self, std::int64_t entry, const std::vector<const Walk*>& walks, Rows bits) {
             if (std::find(walks.begin(), walks.end(), nullptr) != walks.end()) throw std::invalid_argument("a walk is None");
             self.offer(entry, walks, std::move(bits));
           },
           nb::arg("entry"), nb::arg("walks"), nb::arg("bits"), "Make one tree of these members' walks.")
      .def("offer_grown",
           [](Step& self, std::int64_t entry, Rows tokens, Rows parents, std::vector<double> probabilities,
              const std::vector<std::vector<double>>& estimates, Rows bits) {
             Grown grown{std::move(tokens), std::move(parents), std::move(probabilities), {}};
             for (const std::vector<double>& row : estimates) grown.estimates.insert(grown.estimates.end(), row.begin(), row.end());
             self.offer(entry, std::move(grown), std::move(bits));
           },
           nb::arg("entry"), nb::arg("tokens"), nb::arg("parents"), nb::arg("probabilities"), nb::arg("estimates"), nb::arg("bits"),
           "Take a tree that was grown elsewhere.")
      .def("pass_by", &Step::pass, "Nobody's nodes earn anything.")
      .def("share_out", &Step::share_out, nb::arg("overhead"), "Give the nodes of all sequences their rows.")
      .def("draft",
           [](const Step& self, std::int64_t entry) -> nb::object {
             const auto draft = self.draft(entry);
             if (!draft) return nb::none();
             return nb::make_tuple(as_tuple(draft->tokens), as_tuple(draft->parents), as_tuple(draft->probabilities));
           },
           nb::arg("entry"), nb::sig("def draft(self, entry: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]] | None"),
           "Tokens, parents and chances of what a sequence was given.")
      .def("observe",
           [](Step& self, const Rows& keys, const std::vector<Rows>& tokens, double seconds) { self.observe(keys, tokens, seconds); },
           nb::arg("keys"), nb::arg("tokens"), nb::arg("seconds"), "What these sequences committed.")
      .def("estimates",
           [](const Step& self, std::int64_t key, std::int64_t place) -> nb::object {
             const auto estimates = self.estimates(key, place);
             if (!estimates) return nb::none();
             return as_tuple(*estimates);
           },
           nb::arg("key"), nb::arg("place"), nb::sig("def estimates(self, key: int, place: int) -> tuple[float, ...] | None"),
           "What a member said of the rows of a draft, behind a 1 for the root.")
      .def("was_asked", &Step::was_asked, nb::arg("place"), "Whether this member was.")
      .def("charge", &Step::charge, nb::arg("seconds"), "Charge those who were asked for what drafting took beside their calls.");
}

}  // namespace

void bind_ledger(nb::module_& module) {
  bind_step(module);
  nb::class_<Ledger>(module, "Ledger", "What auto knows and how it decides by it.")
      .def("__init__",
           [](Ledger* self, std::int64_t num_members, Rows rows, std::vector<double> seconds, const Numbers& numbers, std::vector<double> edges,
              std::vector<double> priors, std::array<double, kSituations - 1> sure) {
             new (self) Ledger(read_settings(std::move(rows), std::move(seconds), numbers, std::move(edges), std::move(priors), sure), num_members);
           },
           nb::arg("num_members"), nb::arg("rows"), nb::arg("seconds"), nb::arg("numbers"), nb::arg("edges"), nb::arg("priors"), nb::arg("sure"))
      .def_prop_ro("num_timed", &Ledger::num_timed)
      .def("seconds", &Ledger::seconds, nb::arg("rows"), "T(rows) as it is now.")
      .def("begin",
           [](Ledger& self, std::int64_t number, Rows keys, Rows roots, Rows max_nodes, Rows max_depths, std::int64_t num_rows, double positions) {
             return new Step(self, number,
                             {std::move(keys), std::move(roots), std::move(max_nodes), std::move(max_depths), num_rows, positions});
           },
           nb::arg("number"), nb::arg("keys"), nb::arg("roots"), nb::arg("max_nodes"), nb::arg("max_depths"), nb::arg("num_rows"),
           nb::arg("positions"), nb::rv_policy::take_ownership, nb::keep_alive<0, 1>(), "The step of this number.")
      .def("is_idle", &Ledger::is_idle, nb::arg("place"), nb::arg("number"), "Whether a member is off in a step, or must wait.")
      .def("is_untried", [](const Ledger& self, std::int64_t place, const Rows& keys) { return self.is_untried(place, keys); }, nb::arg("place"),
           nb::arg("keys"), "Whether it waits for a place in one of these texts where it can show what it is worth.")
      .def("tried", [](Ledger& self, std::int64_t place, double seconds) { self.member(place).cost.observe(1, seconds); }, nb::arg("place"),
           nb::arg("seconds"), "A call before the first step took so long.")
      .def("obeyed",
           [](Ledger& self, std::int64_t place, std::int64_t num_sequences, double seconds) { self.member(place).obeyed(num_sequences, seconds); },
           nb::arg("place"), nb::arg("num_sequences"), nb::arg("seconds"), "A member was asked because there is no choice.")
      .def("followed",
           [](Ledger& self, std::int64_t place, std::int64_t num_verified, std::int64_t num_accepted) {
             Earnings& own = self.member(place).earnings;
             own.num_verified += num_verified;
             own.num_accepted += num_accepted;
           },
           nb::arg("place"), nb::arg("num_verified"), nb::arg("num_accepted"), "What became of such drafts.")
      .def("forget", &Ledger::forget, nb::arg("key"), "The sequence left.")
      .def("num_sequences", &Ledger::num_sequences, "Of which something is held.")
      .def("describe", [](const Ledger& self, std::int64_t place) { return described(self.member(place)); }, nb::arg("place"),
           "A member's costs and earnings.");
}
