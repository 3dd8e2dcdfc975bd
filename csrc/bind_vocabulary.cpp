// The functions over a vocabulary for Python. Rows of logits are read where they lie (float32, a row's values next to each other).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "arrays.h"
#include "kernels/kernels.h"
#include "pool.h"
#include "table.h"
#include "unlocked.h"
#include "vocabulary.h"

namespace nb = nanobind;
using namespace headstart;

namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using LogitsRow = nb::ndarray<const float, nb::ndim<1>, nb::device::cpu>;

void require(bool valid, const char* message) {
  if (!valid) throw nb::value_error(message);
}

void check_index(std::int64_t index, std::size_t size, const char* name) {
  if (index >= 0 && index < static_cast<std::int64_t>(size)) return;
  const std::string problem = std::string(name) + " " + std::to_string(index) + " of the logits is outside their ";
  throw nb::index_error((problem + std::to_string(size)).c_str());
}

std::int64_t usable(std::int64_t id) {
  if (id == kUnusable) raise_unusable_logits();
  if (id == kAllBanned) raise("every_token_banned");
  return id;
}

// Chosen rows of an array of logits.
class Rows {
 public:
  Rows(const Logits& logits, const Array<std::int64_t>& rows) : logits_(logits), rows_(span(rows)) {
    require(logits.shape(1) > 0, "logits have no columns");
    require(logits.stride(1) == 1 || logits.shape(1) == 1, "the values of a row of logits must lie next to each other");
    for (const std::int64_t row : rows_)
      check_index(row, logits.shape(0), "row");
  }
  std::size_t size() const { return rows_.size(); }
  std::size_t num_columns() const { return logits_.shape(1); }
  std::span<const float> operator[](std::size_t i) const {
    return {logits_.data() + rows_[i] * logits_.stride(0), num_columns()};
  }

 private:
  const Logits& logits_;
  std::span<const std::int64_t> rows_;
};

template <class Value>
nb::object as_vector(std::vector<Value> source) {
  auto* values = new std::vector<Value>(std::move(source));
  nb::capsule owner(values, [](void* pointer) noexcept { delete static_cast<std::vector<Value>*>(pointer); });
  return nb::cast(nb::ndarray<nb::numpy, Value, nb::ndim<1>>(values->data(), {values->size()}, owner));
}

// Runs `function` on each row number without the GIL, on the threads of the pool; raises if one of them returns false.
template <class Function>
void each_row(std::size_t count, Function function) {
  std::atomic<bool> all_usable = true;
  {
    const Unlocked unlocked;
    const auto part = [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
      for (; begin < end; ++begin)
        if (!function(static_cast<std::size_t>(begin))) all_usable = false;
    };
    Pool& pool = Pool::instance();
    if (count > 1)
      pool.run([&](int) { pool.share(static_cast<std::ptrdiff_t>(count), 1, part); });
    else
      part(0, static_cast<std::ptrdiff_t>(count));
  }
  if (!all_usable) raise_unusable_logits();
}

// Each worker looks through a part of the row: the logits lie in the caches of all cores, since all have written them.
std::int64_t shared_argmax(std::span<const float> row) {
  constexpr std::size_t kLeast = 4096;  // a part that is worth a worker
  Pool& pool = Pool::instance();
  const std::size_t num_parts = std::min(static_cast<std::size_t>(pool.num_threads()), row.size() / kLeast);
  if (num_parts < 2) return argmax(row);
  const std::size_t size = (row.size() + num_parts - 1) / num_parts;
  std::vector<std::int64_t> best(num_parts);
  pool.run([&](int) {
    pool.share(static_cast<std::ptrdiff_t>(num_parts), 1, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
      for (; begin < end; ++begin) {
        const std::size_t first = static_cast<std::size_t>(begin) * size;
        const std::int64_t found = argmax(row.subspan(first, std::min(size, row.size() - first)));
        best[static_cast<std::size_t>(begin)] = found == kUnusable ? found : found + static_cast<std::int64_t>(first);
      }
    });
  });
  if (std::find(best.begin(), best.end(), kUnusable) != best.end()) return argmax(row);  // a part may be without a finite number
  return *std::max_element(best.begin(), best.end(), [&](std::int64_t a, std::int64_t b) {
    return row[static_cast<std::size_t>(a)] < row[static_cast<std::size_t>(b)];  // the first of equals
  });
}

nb::object argmax_rows(const Logits& logits, const Array<std::int64_t>& rows) {
  const Rows chosen(logits, rows);
  std::vector<std::int64_t> ids(chosen.size());
  if (ids.size() == 1) {
    {
      const Unlocked unlocked;
      ids[0] = shared_argmax(chosen[0]);
    }
    if (ids[0] == kUnusable) raise_unusable_logits();
  } else {
    each_row(chosen.size(), [&](std::size_t i) { return (ids[i] = argmax(chosen[i])) != kUnusable; });
  }
  return as_vector(std::move(ids));
}

std::size_t width(std::int64_t k, const Rows& rows) {
  require(k >= 1, "k must be 1 or more");
  return std::min(static_cast<std::size_t>(k), rows.num_columns());
}

// Ids [n, min(k, V)] of the largest logits, and what `find` says of them.
template <class Value, bool (*find)(std::span<const float>, std::span<std::int64_t>, std::span<Value>)>
nb::object largest_of_rows(const Logits& logits, const Array<std::int64_t>& rows, std::int64_t k) {
  const Rows chosen(logits, rows);
  Table<std::int64_t> ids(chosen.size(), width(k, chosen));
  Table<Value> values(chosen.size(), width(k, chosen));
  each_row(chosen.size(), [&](std::size_t i) { return find(chosen[i], ids[i], values[i]); });
  return nb::make_tuple(std::move(ids).release(), std::move(values).release());
}

void check_ids(std::span<const std::int64_t> ids, std::size_t num_columns) {
  for (const std::int64_t id : ids) check_index(id, num_columns, "token");
}

nb::object log_softmax_rows(const Logits& logits, const Array<std::int64_t>& rows, const Array<std::int64_t, 2>& ids) {
  const Rows chosen(logits, rows);
  require(ids.shape(0) == chosen.size(), "ids must have one row for each of the rows");
  const std::size_t width = ids.shape(1);
  check_ids({ids.data(), ids.size()}, chosen.num_columns());
  Table<double> values(chosen.size(), width);
  each_row(chosen.size(), [&](std::size_t i) { return log_softmax(chosen[i], {ids.data() + i * width, width}, values[i].data()); });
  return std::move(values).release();
}

PickPlan checked_plan(const LogitsRow& logits, const Array<std::int64_t>& ids, const Array<double>& values, double temperature,
                      std::int64_t k, double top_p, double log_min_p, std::uint64_t key) {
  require(logits.shape(0) > 0, "logits have no columns");
  require(logits.stride(0) == 1 || logits.shape(0) == 1, "the values of a row of logits must lie next to each other");
  require(ids.shape(0) == values.shape(0), "ids and values must have the same length");
  require(temperature >= 0 && std::isfinite(temperature), "temperature must be a finite number, 0 or more");
  require(k >= 0, "top_k must be 0 or more");
  require(top_p > 0 && top_p <= 1, "top_p must be above 0 and at most 1");
  require(log_min_p <= 0, "log_min_p must be at most 0");
  const PickPlan plan{span(ids), span(values), temperature, k, top_p, log_min_p, key};
  check_ids(plan.ids, logits.shape(0));
  for (std::size_t i = 0; i < plan.ids.size(); ++i) {
    require(i == 0 || plan.ids[i - 1] < plan.ids[i], "ids must ascend");
    const double value = plan.values[i];
    require(std::abs(value) <= 1e300 || value == -INFINITY, "values must be minus infinity or at most 1e300 in size");
  }
  return plan;
}

std::int64_t pick_row(const LogitsRow& logits, const Array<std::int64_t>& ids, const Array<double>& values, double temperature,
                      std::int64_t k, double top_p, double log_min_p, std::uint64_t key) {
  const PickPlan plan = checked_plan(logits, ids, values, temperature, k, top_p, log_min_p, key);
  std::int64_t id;
  {
    const Unlocked unlocked;
    id = pick({logits.data(), logits.shape(0)}, plan);
  }
  return usable(id);
}

nb::object distribution_of_row(const LogitsRow& logits, const Array<std::int64_t>& ids, const Array<double>& values,
                               double temperature, std::int64_t k, double top_p, double log_min_p, std::uint64_t key) {
  const PickPlan plan = checked_plan(logits, ids, values, temperature, k, top_p, log_min_p, key);
  std::vector<double> probabilities(logits.shape(0));
  std::int64_t problem;
  {
    const Unlocked unlocked;
    problem = distribution({logits.data(), logits.shape(0)}, plan, probabilities);
  }
  usable(problem);
  return as_vector(std::move(probabilities));
}

nb::object elementwise(const Array<double>& x, void (*function)(const double*, std::int64_t, double*)) {
  std::vector<double> values(x.shape(0));
  function(x.data(), std::ssize(values), values.data());
  return as_vector(std::move(values));
}

nb::object gumbel(std::uint64_t key, const Array<std::int64_t>& ids) {
  std::vector<double> noise(ids.shape(0));
  kernels().vocabulary.gumbel(key, ids.data(), std::ssize(noise), noise.data());
  return as_vector(std::move(noise));
}

}  // namespace

void bind_vocabulary(nb::module_& module) {
  using namespace nb::literals;
  module.def("argmax", &argmax_rows, nb::arg("logits").noconvert(), "rows"_a,
             "Ids [n] of the largest of logits [S, V] in each of rows [n], ties to the lowest id.");
  module.def("top_k", &largest_of_rows<float, top_k>, nb::arg("logits").noconvert(), "rows"_a, "k"_a,
             "Ids and values [n, min(k, V)] of the largest logits, largest first, ties to the lowest id.");
  module.def("top_probabilities", &largest_of_rows<double, top_probabilities>, nb::arg("logits").noconvert(), "rows"_a, "k"_a,
             "Like top_k, with softmax probabilities (float64) for values.");
  module.def("log_softmax", &log_softmax_rows, nb::arg("logits").noconvert(), "rows"_a, "ids"_a,
             "Log-probabilities [n, k] of ids [n, k]: headstart.sampling.log_softmax to the last bit.");
  module.def("pick", &pick_row, nb::arg("logits").noconvert(), "ids"_a, "values"_a, "temperature"_a, "top_k"_a, "top_p"_a,
             "log_min_p"_a, "key"_a, "The plain sampler's token from raw logits [V] and a headstart.sampling.Plan.");
  module.def("distribution", &distribution_of_row, nb::arg("logits").noconvert(), "ids"_a, "values"_a, "temperature"_a, "top_k"_a,
             "top_p"_a, "log_min_p"_a, "key"_a, "Probabilities [V] that pick draws from, of the same arguments.");
  module.def("log", [](const Array<double>& x) { return elementwise(x, kernels().vocabulary.log); }, "x"_a, "headstart.arithmetic.log.");
  module.def("exp", [](const Array<double>& x) { return elementwise(x, kernels().vocabulary.exp); }, "x"_a, "headstart.arithmetic.exp.");
  module.def("total", [](const Array<double>& x) { return total(span(x)); }, "x"_a, "headstart.arithmetic.total.");
  module.def("gumbel", &gumbel, "key"_a, "ids"_a, "headstart.sampling.gumbel of a noise key.");
}
