#include "stack.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>

namespace headstart {

namespace {

constexpr std::int64_t kTaskQueries = 48;             // of one attention task, as long as their scores stay small
constexpr std::int64_t kTaskScores = std::int64_t{1} << 18;
constexpr std::int64_t kPartsPerWorker = 4;  // of a shared step: enough to even out, few enough to read weights in long runs
constexpr std::size_t kSections = 3;         // most matrices that read one input
constexpr std::size_t kGated = 2;            // the section of what gate and up, which may use two, become
constexpr std::int64_t kLine = 64;

std::int64_t round_up(std::int64_t size, std::int64_t unit) { return (size + unit - 1) / unit * unit; }

// Inputs of a row that can only be prepared together.
std::int64_t inputs_together(const Linear& matrix) { return matrix.activation() == Activation::bytes ? kBlock : 2; }

}  // namespace

// What all layers need to know about the rows of a pass.
struct Stack::Pass {
  Pass(const ModelSettings& settings, const Forest& forest, std::int64_t begin, std::int64_t end);

  std::int64_t num_rows() const { return static_cast<std::int64_t>(rows.size()); }
  const ForestRow& row(std::int64_t index) const { return rows[static_cast<std::size_t>(index)]; }
  // The row's place in the draft area, or -1 if it goes into the cache.
  std::int64_t draft_row(std::int64_t row) const {
    const VisibleRows& seen = visible[static_cast<std::size_t>(row)];
    return seen.num_drafted > 0 ? seen.drafted[seen.num_drafted - 1] : -1;
  }

  std::span<const ForestRow> rows;
  std::vector<std::int32_t> drafted;  // the rows' lists of ancestors, one behind another
  std::vector<VisibleRows> visible;
  std::vector<std::int64_t> scored;  // rows that get logits
  std::vector<AttentionShare> shares;
  std::int64_t task_queries = 0;  // most of one share
  std::int64_t most_positions = 0, most_drafted = 0, draft_rows = 0;

 private:
  void see(const Forest& forest, std::int64_t begin);
  void share_out(const ModelSettings& settings);
  void share_out(std::int64_t first, std::int64_t last, std::int64_t num_kv_heads, std::int64_t heads, std::int64_t heads_at_once);
};

Stack::Pass::Pass(const ModelSettings& settings, const Forest& forest, std::int64_t begin, std::int64_t end)
    : rows(forest.rows.begin() + begin, forest.rows.begin() + end) {
  see(forest, begin);
  share_out(settings);
}

void Stack::Pass::see(const Forest& forest, std::int64_t begin) {
  std::vector<std::size_t> starts;
  for (std::int64_t row = 0; row < num_rows(); ++row) {
    starts.push_back(drafted.size());
    forest.drafted_ancestors(begin + row, drafted);
    const auto count = static_cast<std::int64_t>(drafted.size() - starts.back());
    const std::int64_t num_cached = forest.num_cached(begin + row, count);
    visible.push_back({static_cast<std::int32_t>(num_cached), static_cast<std::int32_t>(count), nullptr});
    if (forest.scored(begin + row)) scored.push_back(row);
    most_positions = std::max(most_positions, num_cached + count);
    most_drafted = std::max(most_drafted, count);
    if (count > 0) draft_rows = std::max(draft_rows, std::int64_t{drafted.back()} + 1);
  }
  for (std::size_t row = 0; row < visible.size(); ++row) visible[row].drafted = drafted.data() + starts[row];
}

void Stack::Pass::share_out(const ModelSettings& settings) {
  const std::int64_t heads = settings.heads_per_kv_head();
  const std::int64_t queries = std::min(kTaskQueries, kTaskScores / std::max(most_positions, draft_rows));
  // Rows in so many parts that the workers get equally much; where there are fewer rows, query heads apart from each other.
  const std::int64_t workers = Pool::instance().num_threads();
  const auto num_parts = [workers](std::int64_t heads) { return workers / std::gcd(workers, heads); };
  const bool apart = num_rows() < num_parts(settings.num_kv_heads);
  const std::int64_t heads_at_once = apart ? 1 : heads, parts = num_parts(apart ? settings.num_heads : settings.num_kv_heads);
  const std::int64_t rows_at_once = std::clamp<std::int64_t>(queries / heads_at_once, 1, (num_rows() + parts - 1) / parts);
  for (std::int64_t first = 0, last; first < num_rows(); first = last) {
    last = first + 1;
    while (last < num_rows() && last - first < rows_at_once && row(last).tree == row(first).tree) ++last;
    share_out(first, last, settings.num_kv_heads, heads, heads_at_once);
  }
}

void Stack::Pass::share_out(std::int64_t first, std::int64_t last, std::int64_t num_kv_heads, std::int64_t heads,
                            std::int64_t heads_at_once) {
  for (std::int64_t kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
    for (std::int64_t head = 0; head < heads; head += heads_at_once) {
      shares.push_back({.tree = row(first).tree,
                        .row = static_cast<std::int32_t>(first),
                        .num_rows = static_cast<std::int32_t>(last - first),
                        .kv_head = static_cast<std::int32_t>(kv_head),
                        .first_head = static_cast<std::int32_t>(head),
                        .num_heads = static_cast<std::int32_t>(heads_at_once)});
      task_queries = std::max(task_queries, (last - first) * heads_at_once);
    }
  }
}

// One worker's way through a pass. All workers run the same steps; `share` divides each among them.
class Stack::Run {
 public:
  Run(Stack& stack, const Pass& pass, const std::vector<SlotCache*>& caches, const std::vector<std::int64_t>& watched,
      const float* given, float* states, float* hidden, float* logits, std::int64_t logits_stride, Profile* profile, Buffer& own)
      : stack_(stack),
        s_(stack.settings_),
        kernels_(stack.kernels_.stack),
        buffers_(stack.buffers_),
        pass_(pass),
        caches_(caches),
        watched_(watched),
        given_(given),
        states_(states),
        hidden_(hidden),
        logits_(logits),
        logits_stride_(logits_stride),
        profile_(profile) {
    carve(own);
  }

  void run() {
    embed();
    for (std::int64_t layer = 0; layer < s_.num_layers; ++layer) {
      const LayerWeights& weights = stack_.weights_.layers[static_cast<std::size_t>(layer)];
      hand_out(layer);
      attention_block(layer, weights);
      mlp_block(weights);
    }
    hand_out(s_.num_layers);
    score();
  }

 private:
  template <std::size_t N>
  using Affines = std::array<const Affine*, N>;

  std::int64_t num_rows() const { return pass_.num_rows(); }
  std::int64_t qkv_size() const { return s_.query_size() + 2 * s_.kv_size(); }
  std::int64_t element_bytes() const { return s_.cache_kind == CacheKind::bfloat16 ? 2 : 4; }
  float* residual(std::int64_t row) const { return buffers_.residual.as<float>() + row * s_.hidden_size; }

  void mark(Part part) {
    if (profile_) profile_->mark(part);
  }

  // Buffers of this worker alone.
  void carve(Buffer& own) {
    std::int64_t size = 0;
    const auto place = [&size](std::int64_t bytes) {
      const std::int64_t offset = size;
      size += round_up(bytes, kLine);
      return offset;
    };
    const std::int64_t queries = pass_.task_queries;
    scratch_.stride = round_up(pass_.most_positions, kPanelPositions) + kPanelPositions;
    scratch_.draft_stride = round_up(pass_.draft_rows, kPanelPositions);
    const std::int64_t row = place(std::max(s_.attention_inputs(), s_.head_size) * 4);
    const std::int64_t key = place(s_.head_size * 4), value = place(s_.head_size * 4);
    const std::int64_t packed = place(queries * s_.head_size * element_bytes());
    const std::int64_t scores = place(queries * scratch_.stride * 4);
    const std::int64_t probabilities = place(queries * scratch_.stride * element_bytes());
    const std::int64_t totals = place(queries * 4), sums = place(queries * s_.head_size * 4);
    std::int64_t width = 0;
    for (const LayerWeights& weights : stack_.weights_.layers) {
      const GatePieces pieces = gate_pieces(weights);
      width = std::max(width, pieces.chunk * pieces.unit);
    }
    const std::int64_t gates = place(num_rows() * width * 4), ups = place(num_rows() * width * 4);
    const std::int64_t draft_scores = place(queries * scratch_.draft_stride * 4);
    const std::int64_t gathered = place((pass_.most_drafted + 2 * kMostBlock) * s_.head_size * element_bytes());
    own.reserve(static_cast<std::size_t>(size));
    const auto floats = [&own](std::int64_t offset) { return reinterpret_cast<float*>(own.data() + offset); };
    row_ = floats(row);
    gates_ = floats(gates);
    ups_ = floats(ups);
    key_ = own.data() + key;
    value_ = own.data() + value;
    scratch_.queries = own.data() + packed;
    scratch_.scores = floats(scores);
    scratch_.probabilities = own.data() + probabilities;
    scratch_.totals = floats(totals);
    scratch_.sums = floats(sums);
    scratch_.draft_scores = floats(draft_scores);
    scratch_.gathered_values = own.data() + gathered;
  }

  template <class Part>
  void share_rows(std::int64_t count, Part&& part) {
    pool_.share(count, 1, [&part](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) part(row);
    });
  }

  // Matrices that read the same input share its prepared form where they want the same.
  template <std::size_t N>
  static std::size_t section(const Affines<N>& readers, std::size_t reader) {
    std::size_t first = 0;
    while (readers[first]->matrix->activation() != readers[reader]->matrix->activation()) ++first;
    return first;
  }

  std::byte* prepared(std::size_t section) const {
    return buffers_.prepared.data() + section * (buffers_.prepared.size() / kSections);
  }

  std::byte* prepared_row(const Linear& reader, std::size_t section, std::int64_t row) const {
    return prepared(section) + row * static_cast<std::int64_t>(reader.prepared_bytes());
  }

  template <std::size_t N>
  void prepare(const Affines<N>& readers, const float* x, std::int64_t row) {
    for (std::size_t i = 0; i < N; ++i) {
      const Linear& matrix = *readers[i]->matrix;
      if (section(readers, i) == i) matrix.prepare(x, prepared_row(matrix, i, row));
    }
  }

  struct Output {
    float* y;  // of the reader's first output
    std::int64_t stride;
    bool add;
  };

  void apply(const Affine& affine, std::size_t section, std::int64_t rows, std::int64_t begin, std::int64_t end,
             const Output& output) const {
    affine.matrix->apply(prepared(section), rows, begin, end, output.y, output.stride, affine.bias_data(), output.add);
  }

  template <std::size_t N>
  void multiply(const Affines<N>& readers, std::int64_t rows, const std::array<Output, N>& outputs, std::size_t first_section = 0) {
    std::int64_t total = 0;
    for (const Affine* reader : readers) total += reader->matrix->num_groups();
    pool_.share(total, pool_.even_chunk(total, kPartsPerWorker), [&](std::int64_t begin, std::int64_t end) {
      std::int64_t start = 0;
      for (std::size_t i = 0; i < N; ++i) {
        const std::int64_t count = readers[i]->matrix->num_groups();
        const std::int64_t from = std::max(begin - start, std::int64_t{0}), to = std::min(end - start, count);
        const Output& whole = outputs[i];
        const Output output{whole.y + from * readers[i]->matrix->group_outputs(), whole.stride, whole.add};
        if (from < to) apply(*readers[i], first_section + section(readers, i), rows, from, to, output);
        start += count;
      }
    });
    mark(Part::linear);
  }

  // Residual stream: the tokens' embeddings, or the states that were given; and the angles of each row's position.
  void embed() {
    const std::int64_t half = s_.head_size / 2;
    share_rows(num_rows(), [&](std::int64_t row) {
      const ForestRow& place = pass_.row(row);
      if (s_.reads_hidden)
        std::copy_n(given_ + row * s_.hidden_size, s_.hidden_size, residual(row));
      else
        stack_.weights_.embedding->row(place.token, residual(row));
      float* cosines = buffers_.cosines.as<float>() + row * half;
      float* sines = buffers_.sines.as<float>() + row * half;
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = place.position * s_.inverse_frequencies[static_cast<std::size_t>(i)];
        cosines[i] = static_cast<float>(std::cos(angle));
        sines[i] = static_cast<float>(std::sin(angle));
      }
    });
    mark(Part::other);
  }

  // Copies the residual stream in front of a layer, if it is watched.
  void hand_out(std::int64_t layer) {
    const auto width = static_cast<std::int64_t>(watched_.size()) * s_.hidden_size;
    for (std::size_t place = 0; place < watched_.size(); ++place) {
      if (watched_[place] != layer) continue;
      float* first = states_ + static_cast<std::int64_t>(place) * s_.hidden_size;
      share_rows(num_rows(), [&](std::int64_t row) { std::copy_n(residual(row), s_.hidden_size, first + row * width); });
    }
  }

  template <std::size_t N>
  void normalise(const std::vector<float>& norm, const Affines<N>& readers) {
    share_rows(num_rows(), [&](std::int64_t row) {
      kernels_.rms_norm(residual(row), norm.data(), s_.norm_epsilon, s_.hidden_size, row_);
      prepare(readers, row_, row);
    });
    mark(Part::other);
  }

  template <std::size_t N>
  void normalise_beside_embedding(const LayerWeights& weights, const Affines<N>& readers) {
    share_rows(num_rows(), [&](std::int64_t row) {
      stack_.weights_.embedding->row(pass_.row(row).token, row_);
      kernels_.rms_norm(row_, weights.embedding_norm.data(), s_.norm_epsilon, s_.hidden_size, row_);
      kernels_.rms_norm(residual(row), weights.attention_norm.data(), s_.norm_epsilon, s_.hidden_size, row_ + s_.hidden_size);
      prepare(readers, row_, row);
    });
    mark(Part::other);
  }

  void attention_block(std::int64_t layer, const LayerWeights& weights) {
    const Affines<3> readers{&weights.q, &weights.k, &weights.v};
    if (s_.beside_embedding)
      normalise_beside_embedding(weights, readers);
    else
      normalise(weights.attention_norm, readers);
    float* qkv = buffers_.qkv.as<float>();
    multiply(readers, num_rows(),
             {Output{qkv, qkv_size(), false}, Output{qkv + s_.query_size(), qkv_size(), false},
              Output{qkv + s_.query_size() + s_.kv_size(), qkv_size(), false}});
    share_rows(num_rows(), [&](std::int64_t row) { place_row(layer, weights, row); });
    mark(Part::other);
    attend(layer, *weights.attention_output.matrix);
    multiply(Affines<1>{&weights.attention_output}, num_rows(), {Output{residual(0), s_.hidden_size, true}});
  }

  // Normalises a row's heads and turns them, if the layer is a rotary one; queries are rounded for the scores, keys and values go into the cache.
  void place_row(std::int64_t layer, const LayerWeights& weights, std::int64_t row) {
    float* queries = buffers_.qkv.as<float>() + row * qkv_size();
    float* keys = queries + s_.query_size();
    const float* values = keys + s_.kv_size();
    const bool rotary = s_.rotary[static_cast<std::size_t>(layer)];
    for (std::int64_t head = 0; head < s_.num_heads; ++head) turn(weights.q_norm, rotary, row, queries + head * s_.head_size);
    round(queries, s_.query_size(), buffers_.queries.data() + row * s_.query_size() * element_bytes());
    SlotCache& cache = *caches_[static_cast<std::size_t>(pass_.row(row).tree)];
    const std::int64_t draft_row = pass_.draft_row(row), position = pass_.row(row).position;
    for (std::int64_t head = 0; head < s_.num_kv_heads; ++head) {
      float* key = keys + head * s_.head_size;
      turn(weights.k_norm, rotary, row, key);
      round(key, s_.head_size, key_);
      round(values + head * s_.head_size, s_.head_size, value_);
      if (draft_row >= 0)
        cache.write_draft(layer, head, draft_row, key_, value_);
      else
        cache.write(layer, head, position, key_, value_);
    }
  }

  void turn(const std::vector<float>& norm, bool rotary, std::int64_t row, float* head) {
    const std::int64_t half = s_.head_size / 2;
    if (!norm.empty()) kernels_.rms_norm(head, norm.data(), s_.norm_epsilon, s_.head_size, head);
    if (rotary) kernels_.rotate(head, buffers_.cosines.as<float>() + row * half, buffers_.sines.as<float>() + row * half, half);
  }

  void round(const float* x, std::int64_t size, std::byte* y) {
    if (s_.cache_kind == CacheKind::bfloat16)
      kernels_.narrow(x, size, reinterpret_cast<std::uint16_t*>(y));
    else
      std::memcpy(y, x, static_cast<std::size_t>(size) * sizeof(float));
  }

  void attend(std::int64_t layer, const Linear& output) {
    const auto kernel = s_.cache_kind == CacheKind::bfloat16 ? kernels_.attend_bfloat16 : kernels_.attend_float32;
    const bool by_head = s_.head_size % inputs_together(output) == 0;  // whoever computes heads prepares them
    share_rows(static_cast<std::int64_t>(pass_.shares.size()), [&](std::int64_t index) {
      const AttentionShare& share = pass_.shares[static_cast<std::size_t>(index)];
      kernel(task(layer, share));
      const std::int64_t begin = first_head(share) * s_.head_size, end = begin + share.num_heads * s_.head_size;
      for (std::int64_t row = share.row; by_head && row < share.row + share.num_rows; ++row) prepare_attended(output, row, begin, end);
    });
    mark(Part::attention);
    if (by_head) return;
    share_rows(num_rows(), [&](std::int64_t row) { prepare_attended(output, row, 0, s_.query_size()); });
    mark(Part::other);
  }

  void prepare_attended(const Linear& output, std::int64_t row, std::int64_t begin, std::int64_t end) const {
    output.prepare(buffers_.attended.as<float>() + row * s_.query_size() + begin, begin, end, prepared_row(output, 0, row));
  }

  std::int64_t first_head(const AttentionShare& share) const { return share.kv_head * s_.heads_per_kv_head() + share.first_head; }

  AttentionTask task(std::int64_t layer, const AttentionShare& share) const {
    const std::int64_t place = share.row * s_.query_size() + first_head(share) * s_.head_size;
    return {.key_values = caches_[static_cast<std::size_t>(share.tree)]->view(layer, share.kv_head),
            .rows = pass_.visible.data() + share.row,
            .num_rows = share.num_rows,
            .num_heads = share.num_heads,
            .head_size = static_cast<std::int32_t>(s_.head_size),
            .window = static_cast<std::int32_t>(s_.windows[static_cast<std::size_t>(layer)]),
            .scale = 1.0f / std::sqrt(static_cast<float>(s_.head_size)),
            .queries = buffers_.queries.data() + place * element_bytes(),
            .output = buffers_.attended.as<float>() + place,
            .row_stride = s_.query_size(),
            .scratch = scratch_};
  }

  void mlp_block(const LayerWeights& weights) {
    normalise(weights.mlp_norm, Affines<2>{&weights.gate, &weights.up});
    gate(weights);
    multiply(Affines<1>{&weights.down}, num_rows(), {Output{residual(0), s_.hidden_size, true}}, kGated);
  }

  // The columns of gate and up in units that end where groups of both and inputs that are prepared together end.
  struct GatePieces {
    std::int64_t unit, num_units, chunk;
  };
  GatePieces gate_pieces(const LayerWeights& weights) const {
    const Linear &gate = *weights.gate.matrix, &up = *weights.up.matrix;
    const std::int64_t unit = std::lcm(std::lcm(gate.group_outputs(), up.group_outputs()), inputs_together(*weights.down.matrix));
    const std::int64_t num_units = (s_.inner_size + unit - 1) / unit;
    return {unit, num_units, pool_.even_chunk(num_units, kPartsPerWorker)};
  }

  // Gate and up of the same columns, their product and its prepared form stay with one worker, which writes over the same memory for
  // each such piece: it stays in the core's cache, while a place for whole rows would be pushed out by a layer's weights.
  void gate(const LayerWeights& weights) {
    const Affines<2> readers{&weights.gate, &weights.up};
    const Linear &gate = *weights.gate.matrix, &up = *weights.up.matrix, &down = *weights.down.matrix;
    const auto [unit, num_units, chunk] = gate_pieces(weights);
    const std::int64_t width = chunk * unit;
    const auto groups = [&](const Linear& matrix, std::int64_t unit_index) {
      return std::min(unit_index * unit / matrix.group_outputs(), matrix.num_groups());
    };
    pool_.share(num_units, chunk, [&](std::int64_t begin, std::int64_t end) {
      apply(weights.gate, section(readers, 0), num_rows(), groups(gate, begin), groups(gate, end), {gates_, width, false});
      apply(weights.up, section(readers, 1), num_rows(), groups(up, begin), groups(up, end), {ups_, width, false});
      mark(Part::linear);
      const std::int64_t first = begin * unit, last = std::min(end * unit, s_.inner_size);
      for (std::int64_t row = 0; row < num_rows(); ++row) {
        float* gated = ups_ + row * width;
        kernels_.swiglu(gates_ + row * width, gated, last - first);
        down.prepare(gated, first, last, prepared_row(down, kGated, row));
      }
      mark(Part::other);
    });
    mark(Part::linear);
  }

  void score() {
    const auto count = static_cast<std::int64_t>(pass_.scored.size());
    if (count == 0) return;
    const Affine output{stack_.weights_.output, {}};
    const Affines<1> reader{&output};
    share_rows(count, [&](std::int64_t i) {
      const float* last = residual(pass_.scored[static_cast<std::size_t>(i)]);
      float* hidden = hidden_ + i * s_.hidden_size;
      float* normalised = s_.reads_hidden ? row_ : hidden;
      kernels_.rms_norm(last, stack_.weights_.norm.data(), s_.norm_epsilon, s_.hidden_size, normalised);
      prepare(reader, normalised, i);
      if (s_.reads_hidden) std::copy_n(last, s_.hidden_size, hidden);
    });
    mark(Part::other);
    multiply(reader, count, {Output{logits_, logits_stride_, false}});
  }

  Stack& stack_;
  const ModelSettings& s_;
  const StackKernels& kernels_;
  const PassBuffers& buffers_;
  const Pass& pass_;
  const std::vector<SlotCache*>& caches_;
  const std::vector<std::int64_t>& watched_;
  const float* given_;
  float* states_;
  float* hidden_;
  float* logits_;
  std::int64_t logits_stride_;
  Profile* profile_;  // the first worker's
  Pool& pool_ = Pool::instance();

  float *row_, *gates_, *ups_;
  std::byte *key_, *value_;
  AttentionScratch scratch_;
};

Stack::Stack(const ModelSettings& settings, const ModelWeights& weights)
    : settings_(settings), weights_(weights), kernels_(kernels()), worker_buffers_(Pool::kMostThreads) {}

void Stack::reserve(std::int64_t num_rows) {
  if (num_rows <= buffers_.capacity) return;
  std::size_t prepared = weights_.output->prepared_bytes();
  for (const LayerWeights& layer : weights_.layers)
    for (const Affine* affine : {&layer.q, &layer.k, &layer.v, &layer.attention_output, &layer.gate, &layer.up, &layer.down})
      prepared = std::max(prepared, affine->matrix->prepared_bytes());
  const ModelSettings& s = settings_;
  const auto floats = [num_rows](std::int64_t size) { return Buffer(static_cast<std::size_t>(num_rows * size) * sizeof(float)); };
  PassBuffers grown(num_rows);
  grown.residual = floats(s.hidden_size);
  grown.qkv = floats(s.query_size() + 2 * s.kv_size());
  grown.queries = floats(s.query_size());
  grown.attended = floats(s.query_size());
  grown.prepared = Buffer(kSections * static_cast<std::size_t>(num_rows) * prepared);
  grown.cosines = floats(s.head_size / 2);
  grown.sines = floats(s.head_size / 2);
  buffers_ = std::move(grown);
}

void Stack::run(const Forest& forest, const std::vector<SlotCache*>& caches, const std::vector<std::int64_t>& watched,
                Result& result, Profile& profile) {
  reserve(std::min(kPassRows, round_up(forest.num_rows(), 8)));
  profile.start();
  std::int64_t num_scored = 0;
  for (std::int64_t begin = 0; begin < forest.num_rows(); begin += kPassRows) {
    const Pass pass(settings_, forest, begin, std::min(begin + kPassRows, forest.num_rows()));
    const float* given = settings_.reads_hidden ? forest.hidden.data() + begin * settings_.hidden_size : nullptr;
    float* states = result.states() + begin * result.state_size;
    float* hidden = result.hidden() + num_scored * settings_.hidden_size;
    float* logits = result.logits() + num_scored * result.logits_stride;
    Pool::instance().run([&](int worker) {
      Buffer& own = worker_buffers_[static_cast<std::size_t>(worker)];
      Run(*this, pass, caches, watched, given, states, hidden, logits, result.logits_stride, worker == 0 ? &profile : nullptr, own).run();
    });
    num_scored += static_cast<std::int64_t>(pass.scored.size());
  }
}

}  // namespace headstart
