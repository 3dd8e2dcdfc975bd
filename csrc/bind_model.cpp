// Python's view of the decoder: settings and tensors by name, forwards over arrays, results as arrays.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <limits>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "linear.h"
#include "model.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace headstart;

namespace {

using Rows = nb::ndarray<nb::numpy, const float, nb::ndim<2>>;

// A dictionary whose entries are taken one by one; what nobody takes is refused by name.
class Entries {
 public:
  Entries(const nb::dict& entries, std::string what) : entries_(entries), what_(std::move(what)) {}

  bool has(const std::string& name) const { return entries_.contains(name.c_str()); }

  template <class Value>
  Value take(const std::string& name) {
    if (!has(name)) throw std::invalid_argument(what_ + " '" + name + "' is missing");
    taken_.insert(name);
    Value value;
    if (!nb::try_cast<Value>(entries_[name.c_str()], value))
      throw std::invalid_argument(what_ + " '" + name + "' has the wrong type");
    return value;
  }

  void refuse_others() const {
    for (const auto& [key, value] : entries_) {
      std::string name;
      if (!nb::try_cast<std::string>(key, name) || !taken_.contains(name))
        throw std::invalid_argument(what_ + " '" + std::string(nb::str(key).c_str()) + "' is unknown");
    }
  }

 private:
  nb::dict entries_;
  std::string what_;
  std::set<std::string> taken_;
};

template <class Value>
std::vector<Value> list_of(const std::string& what, Entries& settings, const std::string& name) {
  const std::invalid_argument wrong("setting '" + name + "' must be a list of " + what);
  std::vector<Value> values;
  const auto list = settings.take<nb::object>(name);
  if (!nb::isinstance<nb::sequence>(list) && !nb::hasattr(list, "__iter__")) throw wrong;
  for (const nb::handle entry : nb::iter(list)) {
    Value value;
    if (!nb::try_cast<Value>(entry, value)) throw wrong;
    values.push_back(value);
  }
  return values;
}

CacheKind cache_kind(const std::string& name) {
  if (name == "float32") return CacheKind::float32;
  if (name == "bfloat16") return CacheKind::bfloat16;
  throw std::invalid_argument("kv_dtype is '" + name + "'; choose one of float32, bfloat16");
}

ModelSettings read_settings(const nb::dict& dict) {
  Entries settings(dict, "setting");
  ModelSettings read{.num_layers = settings.take<std::int64_t>("num_layers"),
                     .hidden_size = settings.take<std::int64_t>("hidden_size"),
                     .num_heads = settings.take<std::int64_t>("num_heads"),
                     .num_kv_heads = settings.take<std::int64_t>("num_kv_heads"),
                     .head_size = settings.take<std::int64_t>("head_size"),
                     .inner_size = settings.take<std::int64_t>("inner_size"),
                     .context_limit = settings.take<std::int64_t>("context_limit"),
                     .vocab_size = settings.take<std::int64_t>("vocab_size"),
                     .norm_epsilon = settings.take<float>("norm_epsilon"),
                     .inverse_frequencies = list_of<double>("numbers", settings, "inverse_frequencies"),
                     .windows = list_of<std::int64_t>("numbers", settings, "windows"),
                     .rotary = list_of<bool>("True or False", settings, "rotary"),
                     .cache_kind = cache_kind(settings.take<std::string>("kv_dtype")),
                     .reads_hidden = settings.has("reads_hidden") && settings.take<bool>("reads_hidden"),
                     .beside_embedding = false};
  read.beside_embedding = settings.has("beside_embedding") ? settings.take<bool>("beside_embedding") : read.reads_hidden;
  settings.refuse_others();
  return read;
}

std::shared_ptr<const Linear> matrix(Entries& tensors, const std::string& name) {
  return std::make_shared<const Linear>(nb::cast<const Linear&>(tensors.take<nb::handle_t<Linear>>(name)));
}

std::vector<float> vector(Entries& tensors, const std::string& name) {
  const auto values = tensors.take<Array<float>>(name);
  return {values.data(), values.data() + values.size()};
}

std::vector<float> optional_vector(Entries& tensors, const std::string& name) {
  if (!tensors.has(name)) return {};
  std::vector<float> values = vector(tensors, name);
  if (values.empty()) throw std::invalid_argument("tensor '" + name + "' is empty");
  return values;
}

Affine affine(Entries& tensors, const std::string& name) {
  return {matrix(tensors, name), optional_vector(tensors, name + "_bias")};
}

LayerWeights read_layer(Entries& tensors, const std::string& prefix, bool beside_embedding) {
  return {.attention_norm = vector(tensors, prefix + "attention_norm"),
          .mlp_norm = vector(tensors, prefix + "mlp_norm"),
          .embedding_norm = beside_embedding ? vector(tensors, prefix + "embedding_norm") : std::vector<float>{},
          .q_norm = optional_vector(tensors, prefix + "q_norm"),
          .k_norm = optional_vector(tensors, prefix + "k_norm"),
          .q = affine(tensors, prefix + "q"),
          .k = affine(tensors, prefix + "k"),
          .v = affine(tensors, prefix + "v"),
          .attention_output = affine(tensors, prefix + "attention_output"),
          .gate = affine(tensors, prefix + "gate"),
          .up = affine(tensors, prefix + "up"),
          .down = affine(tensors, prefix + "down")};
}

ModelWeights read_weights(const nb::dict& dict, const ModelSettings& settings) {
  Entries tensors(dict, "tensor");
  ModelWeights weights;
  weights.embedding = matrix(tensors, "embedding");
  weights.output = tensors.has("output") ? matrix(tensors, "output") : weights.embedding;
  weights.norm = vector(tensors, "norm");
  for (std::int64_t i = 0; i < settings.num_layers; ++i)
    weights.layers.push_back(read_layer(tensors, "layers." + std::to_string(i) + ".", settings.beside_embedding));
  tensors.refuse_others();
  return weights;
}

std::shared_ptr<Result> forward(Model& model, const Array<std::int64_t>& slots, const Array<std::int64_t>& row_starts, const Array<std::int32_t>& tokens,
                                const Array<std::int32_t>& parents, const Array<std::int64_t>& first_scored,
                                const std::optional<Array<float>>& hidden) {
  const Unlocked unlocked;
  const std::span<const float> given = hidden ? span(*hidden) : std::span<const float>{};
  return model.forward({span(slots), span(row_starts), span(tokens), span(parents), span(first_scored), given});
}

Rows rows(nb::handle owner, const float* values, std::int64_t num_rows, std::int64_t width, std::int64_t stride) {
  const std::size_t shape[] = {static_cast<std::size_t>(num_rows), static_cast<std::size_t>(width)};
  const std::int64_t strides[] = {stride, 1};
  return Rows(values, 2, shape, owner, strides);
}

nb::dict profile(Model& model) {
  const auto seconds = model.profile();
  nb::dict parts;
  parts["linear"] = seconds[static_cast<std::size_t>(Part::linear)];
  parts["attention"] = seconds[static_cast<std::size_t>(Part::attention)];
  parts["other"] = seconds[static_cast<std::size_t>(Part::other)];
  return parts;
}

}  // namespace

void bind_model(nb::module_& module) {
  using WithoutLock = nb::call_guard<Unlocked>;
  nb::class_<Result>(module, "Result", "Logits and hidden states of a forward's scored rows, in order of entries and rows.")
      .def_ro("num_rows", &Result::num_rows)
      .def_prop_ro("logits", [](nb::handle_t<Result> self) {
        const Result& result = nb::cast<const Result&>(self);
        return rows(self, result.logits(), result.num_rows, result.vocab_size, result.logits_stride);
      }, "[num_rows, vocab_size], read-only; rows may be further apart than vocab_size.")
      .def_prop_ro("hidden", [](nb::handle_t<Result> self) {
        const Result& result = nb::cast<const Result&>(self);
        return rows(self, result.hidden(), result.num_rows, result.hidden_size, result.hidden_size);
      }, "[num_rows, hidden_size], read-only: the normalised states that the output matrix reads; of a model that reads_hidden its "
         "own output before that norm.")
      .def_prop_ro("states", [](nb::handle_t<Result> self) {
        const Result& result = nb::cast<const Result&>(self);
        return rows(self, result.states(), result.all_rows, result.state_size, result.state_size);
      }, "[all rows, watched layers * hidden_size], read-only: residual streams before the watched layers, of every row.");

  nb::class_<Model>(module, "Model", "A decoder of the Llama family with a cache for each slot.")
      .def("__init__",
           [](Model* self, const nb::dict& settings, const nb::dict& tensors) {
             const ModelSettings read = read_settings(settings);
             check(read);
             new (self) Model(read, read_weights(tensors, read));
           },
           nb::arg("settings"), nb::arg("tensors"))
      .def("open", &Model::open, WithoutLock(), "A slot with an empty cache.")
      .def("close", &Model::close, WithoutLock(), nb::arg("slot"), "Free a slot.")
      .def("fork", &Model::fork, WithoutLock(), nb::arg("slot"), "A new slot with the same committed rows.")
      .def("length", &Model::length, WithoutLock(), nb::arg("slot"), "Committed rows of a slot.")
      .def("keep",
           [](Model& self, std::int64_t slot, const Array<std::int64_t>& path) {
             const Unlocked unlocked;
             self.keep(slot, span(path));
           },
           nb::arg("slot"), nb::arg("path"), "Commit a path of the slot's last forward, from row 0 on; forget its other rows.")
      .def("watch",
           [](Model& self, const Array<std::int64_t>& layers) {
             const Unlocked unlocked;
             self.watch(span(layers));
           },
           nb::arg("layers"),
           "Hand out the residual streams before these layers with every forward; the number of layers stands for the end.")
      .def("cache_bytes", &Model::cache_bytes, WithoutLock(), "Bytes that the caches of all open slots hold.")
      .def("forward", &forward, nb::arg("slots"), nb::arg("row_starts"), nb::arg("tokens"), nb::arg("parents"),
           nb::arg("first_scored"), nb::arg("hidden") = nb::none(),
           "Compute trees of rows, one a slot: slots [n], row_starts [n + 1], tokens and parents [R], first_scored [n]; hidden "
           "[R * hidden_size] for a model that reads_hidden.")
      .def("enable_profile", &Model::enable_profile, WithoutLock(), nb::arg("on"),
           "Start (or stop) counting where forwards spend time.")
      .def("profile", &profile, "Seconds since then in linear layers, attention and everything else, as one worker saw them.");
}
