// Attention of a few rows of one slot, for the query heads that share a key-value head.
//
// A score is one dot product over the head in ascending pairs, wherever its key lies; so scores of draft rows are computed in the
// draft area and then put at their ancestors' positions. From there on everything runs by position: the softmax sums its lane
// (position mod 16) block after block, and values are added in ascending positions, from the cache as far as it reaches and then
// from a gathered copy. A row's numbers depend on its own positions alone, never on its neighbours or on where keys were stored.
//
// Probabilities are rounded to the cache's type before they meet the values, and their sum is that of the rounded ones. A position
// that a row does not see has a probability of zero; where even zero times garbage could do harm (behind a row's last position)
// the gathered copy holds zeros.

#include "kernels/stack_kernels.h"

namespace headstart::HEADSTART_ISA {

struct CachedBfloat16 {
  using Element = std::uint16_t;
  static constexpr int kStep = 2;   // inputs that one product takes
  static constexpr int kBlock = 2;  // positions whose values are added at a time
  static P load(const Element* p) { return load_pairs(p); }
  static P broadcast(const Element* p) { return broadcast_pair(p); }
  static F dot(F sum, P a, P b) { return dot_pairs(sum, a, b); }
  static F load_rounded(const Element* p) { return load_bf16(p); }
  static void store_rounded(Element* p, F x) { store_normal_bf16(p, x); }
};

struct CachedFloat32 {
  using Element = float;
  static constexpr int kStep = 1, kBlock = 1;
  static F load(const Element* p) { return HEADSTART_ISA::load(p); }
  static F broadcast(const Element* p) { return set1(*p); }
  static F dot(F sum, F a, F b) { return fma(a, b, sum); }
  static F load_rounded(const Element* p) { return HEADSTART_ISA::load(p); }
  static void store_rounded(Element* p, F x) { HEADSTART_ISA::store(p, x); }
};

// sums[row][column of sixteen] += x[row] times w[column], `count` products in ascending order.
template <class Cached>
struct Product {
  using Element = typename Cached::Element;
  const Element* x;
  std::ptrdiff_t x_stride;
  const Element* w;
  std::ptrdiff_t step;    // from one product to the next
  std::ptrdiff_t column;  // from one column to the next
  std::ptrdiff_t count;
  float* sums;
  std::ptrdiff_t sums_stride;
  bool add;  // to what the sums hold

  template <int kRows, int kColumns>
  void tile(std::ptrdiff_t row, std::ptrdiff_t first_column) const {
    F acc[kRows][kColumns];
    float* out = sums + row * sums_stride + first_column * kLanes;
    for (int r = 0; r < kRows; ++r)
      for (int c = 0; c < kColumns; ++c) acc[r][c] = add ? HEADSTART_ISA::load(out + r * sums_stride + c * kLanes) : zero();
    const Element* left = x + row * x_stride;
    const Element* right = w + first_column * column;
    for (std::ptrdiff_t i = 0; i < count; ++i, left += Cached::kStep, right += step) {
      decltype(Cached::load(right)) loaded[kColumns];
      for (int c = 0; c < kColumns; ++c) loaded[c] = Cached::load(right + c * column);
      for (int r = 0; r < kRows; ++r) {
        const auto spread = Cached::broadcast(left + r * x_stride);
        for (int c = 0; c < kColumns; ++c) acc[r][c] = Cached::dot(acc[r][c], loaded[c], spread);
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int c = 0; c < kColumns; ++c) HEADSTART_ISA::store(out + r * sums_stride + c * kLanes, acc[r][c]);
  }

  template <int kRows, int kColumns>
  void columns(std::ptrdiff_t row, std::ptrdiff_t begin, std::ptrdiff_t end) const {
    for (; begin + kColumns <= end; begin += kColumns) tile<kRows, kColumns>(row, begin);
    if constexpr (kColumns > 1) {
      if (begin < end) columns<kRows, kColumns - 1>(row, begin, end);
    }
  }

  template <int kRows>
  void rows(std::ptrdiff_t begin, std::ptrdiff_t end, std::ptrdiff_t num_columns) const {
    for (; begin + kRows <= end; begin += kRows) columns<kRows, kAttentionColumns>(begin, 0, num_columns);
    if constexpr (kRows > 1) {
      if (begin < end) rows<kRows - 1>(begin, end, num_columns);
    }
  }

  // As many sums as in a tile of the matrix kernels, but wide rather than high: few queries must still fill the pipeline.
  static constexpr int kAttentionColumns = kPanelTile > 1 ? 4 : 2;
  static constexpr int kAttentionRows = kRowTile * kPanelTile / kAttentionColumns;

  void run(std::ptrdiff_t num_rows, std::ptrdiff_t num_columns) const { rows<kAttentionRows>(0, num_rows, num_columns); }
};

template <class Cached>
struct Attention {
  using Element = typename Cached::Element;
  static constexpr std::ptrdiff_t kStep = Cached::kStep, kBlock = Cached::kBlock;
  static constexpr std::ptrdiff_t kBorder = kBlock > kPanelPositions ? kBlock : kPanelPositions;

  const AttentionTask& task;
  const std::ptrdiff_t size = task.head_size;
  const std::ptrdiff_t num_queries = static_cast<std::ptrdiff_t>(task.num_rows) * task.num_heads;
  const std::ptrdiff_t stride = task.scratch.stride;
  Element* const queries = static_cast<Element*>(task.scratch.queries);
  Element* const probabilities = static_cast<Element*>(task.scratch.probabilities);
  Element* const gathered = static_cast<Element*>(task.scratch.gathered_values);
  std::ptrdiff_t base = 0;  // position of the first score: a border of panels and blocks

  static std::ptrdiff_t least(std::ptrdiff_t a, std::ptrdiff_t b) { return a < b ? a : b; }
  static std::ptrdiff_t most(std::ptrdiff_t a, std::ptrdiff_t b) { return a > b ? a : b; }
  static std::ptrdiff_t floor_block(std::ptrdiff_t position) { return position / kBlock * kBlock; }
  static std::ptrdiff_t ceil_block(std::ptrdiff_t position) { return floor_block(position + kBlock - 1); }

  std::ptrdiff_t end(const VisibleRows& row) const { return row.num_cached + row.num_drafted; }
  std::ptrdiff_t first(const VisibleRows& row) const { return task.window > 0 ? most(0, end(row) - task.window) : 0; }

  const Element* keys(std::ptrdiff_t position) const {
    const std::byte* chunk = task.key_values.chunks[position / kChunkPositions] + task.key_values.keys;
    return reinterpret_cast<const Element*>(chunk) + position % kChunkPositions * size;
  }
  const Element* values(std::ptrdiff_t position) const {
    const std::byte* chunk = task.key_values.chunks[position / kChunkPositions] + task.key_values.values;
    return reinterpret_cast<const Element*>(chunk) + position % kChunkPositions * size;
  }

  void run() {
    pack_queries();
    base = first(task.rows[0]);
    std::ptrdiff_t num_cached = 0, num_drafted = 0;
    for (int r = 0; r < task.num_rows; ++r) {
      const VisibleRows& row = task.rows[r];
      base = least(base, first(row));
      num_cached = most(num_cached, row.num_cached);
      if (row.num_drafted > 0) num_drafted = most(num_drafted, row.drafted[row.num_drafted - 1] + 1);
    }
    base = base / kBorder * kBorder;
    score_cached(num_cached);
    if (num_drafted > 0) score_drafted(num_drafted);
    weigh_values();
  }

  void pack_queries() {
    const std::ptrdiff_t width = task.num_heads * size;
    for (int r = 0; r < task.num_rows; ++r)
      __builtin_memcpy(queries + r * width, static_cast<const Element*>(task.queries) + r * task.row_stride,
                       static_cast<std::size_t>(width) * sizeof(Element));
  }

  void score_panels(const Element* panels, std::ptrdiff_t num_positions, float* scores, std::ptrdiff_t scores_stride) const {
    const Product<Cached> product{queries,      size,   panels,        kPanelPositions * kStep, kPanelPositions * size,
                                  size / kStep, scores, scores_stride, false};
    product.run(num_queries, (num_positions + kPanelPositions - 1) / kPanelPositions);
  }

  void score_cached(std::ptrdiff_t num_cached) const {
    for (std::ptrdiff_t from = base; from < num_cached;) {
      const std::ptrdiff_t to = least(num_cached, (from / kChunkPositions + 1) * kChunkPositions);
      score_panels(keys(from), to - from, task.scratch.scores + (from - base), stride);
      from = to;
    }
  }

  // Scores of draft rows, each put at its position.
  void score_drafted(std::ptrdiff_t num_drafted) const {
    float* drafted = task.scratch.draft_scores;
    score_panels(reinterpret_cast<const Element*>(task.key_values.draft_keys), num_drafted, drafted, task.scratch.draft_stride);
    for (std::ptrdiff_t query = 0; query < num_queries; ++query) {
      const VisibleRows& row = task.rows[query / task.num_heads];
      const float* from = drafted + query * task.scratch.draft_stride;
      for (std::ptrdiff_t depth = most(0, base - row.num_cached); depth < row.num_drafted; ++depth)
        task.scratch.scores[query * stride + row.num_cached + depth - base] = from[row.drafted[depth]];
    }
  }

  // Rounded e^(score - largest score) by position, zero where the row does not see; returns their sum.
  float softmax(std::ptrdiff_t query) const {
    const VisibleRows& row = task.rows[query / task.num_heads];
    const float* scores = task.scratch.scores + query * stride;
    Element* weights = probabilities + query * stride;
    const std::ptrdiff_t from = first(row) - base, to = end(row) - base;
    const std::ptrdiff_t begin = from / kBorder * kBorder, behind = (to + kBorder - 1) / kBorder * kBorder;
    const F scale = set1(task.scale), lowest = set1(-__builtin_inff());
    F peaks = lowest;
    for (std::ptrdiff_t i = begin; i < to; i += kLanes)
      peaks = max(peaks, seen(mul(load(scores + i), scale), i, from, to, -__builtin_inff()));
    const F peak = set1(reduce_max(peaks));
    F sum = zero();
    for (std::ptrdiff_t i = begin; i < behind; i += kLanes) {
      const F weight = exponential(sub(mul(load(scores + i), scale), peak));
      Cached::store_rounded(weights + i, seen(weight, i, from, to, 0.0f));
      sum = add(sum, Cached::load_rounded(weights + i));
    }
    return reduce_sum(sum);
  }

  static F seen(F x, std::ptrdiff_t block, std::ptrdiff_t from, std::ptrdiff_t to, float fill) {
    if (to - block < kLanes) x = first_lanes(x, static_cast<int>(to - block), fill);
    if (from > block) x = last_lanes(x, static_cast<int>(from - block), fill);
    return x;
  }

  void weigh_values() const {
    for (std::ptrdiff_t query = 0; query < num_queries; ++query) task.scratch.totals[query] = softmax(query);
    for (std::ptrdiff_t i = 0; i < num_queries * size; i += kLanes) store(task.scratch.sums + i, zero());
    add_cached_values();
    for (int r = 0; r < task.num_rows; ++r) add_last_values(r);
    for (std::ptrdiff_t query = 0; query < num_queries; ++query) write(query);
  }

  // The blocks that all rows see go through the kernel together, what is before and behind them row by row.
  void add_cached_values() const {
    std::ptrdiff_t begin = 0, end = floor_block(task.rows[0].num_cached);
    for (int r = 0; r < task.num_rows; ++r) {
      begin = most(begin, floor_block(first(task.rows[r])));
      end = least(end, floor_block(task.rows[r].num_cached));
    }
    if (begin > end) begin = end;
    for (int r = 0; r < task.num_rows; ++r) {
      const std::ptrdiff_t whole = floor_block(task.rows[r].num_cached);
      add_values(r * task.num_heads, task.num_heads, floor_block(first(task.rows[r])), begin < end ? begin : whole);
    }
    if (begin == end) return;
    add_values(0, num_queries, begin, end);
    for (int r = 0; r < task.num_rows; ++r)
      add_values(r * task.num_heads, task.num_heads, end, floor_block(task.rows[r].num_cached));
  }

  // Positions [from, to) of the cache, whole blocks, for some queries.
  void add_values(std::ptrdiff_t query, std::ptrdiff_t count, std::ptrdiff_t from, std::ptrdiff_t to) const {
    while (from < to) {
      const std::ptrdiff_t until = least(to, (from / kChunkPositions + 1) * kChunkPositions);
      add_run(query, count, from, until, values(from));
      from = until;
    }
  }

  void add_run(std::ptrdiff_t query, std::ptrdiff_t count, std::ptrdiff_t from, std::ptrdiff_t to, const Element* run) const {
    const Product<Cached> product{probabilities + query * stride + (from - base),
                                  stride,
                                  run,
                                  size * kStep,
                                  kLanes * kStep,
                                  ceil_block(to - from) / kStep,
                                  task.scratch.sums + query * size,
                                  size,
                                  true};
    product.run(count, size / kLanes);
  }

  // Behind the last whole block of the cache: a copy in the cache's layout, by position, with zeros behind the row's own.
  void add_last_values(std::ptrdiff_t r) const {
    const VisibleRows& row = task.rows[r];
    const std::ptrdiff_t from = most(floor_block(first(row)), floor_block(row.num_cached)), to = end(row);
    if (from >= to) return;
    Element* const nothing = gathered + (ceil_block(to) - from) * size;
    __builtin_memset(nothing, 0, static_cast<std::size_t>(size) * sizeof(Element));
    for (std::ptrdiff_t position = from; position < ceil_block(to); position += kStep) {
      Element* copy = gathered + (position - from) * size;
      if (position + kStep <= row.num_cached)
        __builtin_memcpy(copy, values(position), static_cast<std::size_t>(kStep * size) * sizeof(Element));
      else
        gather(row, position, nothing, copy);
    }
    add_run(r * task.num_heads, task.num_heads, from, to, gathered);
  }

  // kStep positions, of which the last at least is not in the cache.
  void gather(const VisibleRows& row, std::ptrdiff_t position, const Element* nothing, Element* __restrict copy) const {
    const Element* rows[kStep];
    for (std::ptrdiff_t i = 0; i < kStep; ++i) {
      const std::ptrdiff_t depth = most(0, position + i - row.num_cached);
      rows[i] = depth < row.num_drafted ? drafted_values(row.drafted[depth]) : nothing;
    }
    for (std::ptrdiff_t i = 0; i < size; ++i)
      for (std::ptrdiff_t j = 0; j < kStep; ++j) copy[i * kStep + j] = rows[j][i];
    if (position >= row.num_cached) return;
    const Element* cached = values(position);  // the first of its block
    for (std::ptrdiff_t i = 0; i < size; ++i) copy[i * kStep] = cached[i * kStep];
  }

  const Element* drafted_values(std::ptrdiff_t draft_row) const {
    return reinterpret_cast<const Element*>(task.key_values.draft_values) + draft_row * size;
  }

  void write(std::ptrdiff_t query) const {
    const F scale = set1(1.0f / task.scratch.totals[query]);
    float* out = task.output + query / task.num_heads * task.row_stride + query % task.num_heads * size;
    for (std::ptrdiff_t i = 0; i < size; i += kLanes) store(out + i, mul(load(task.scratch.sums + query * size + i), scale));
  }
};

inline void attend_float32(const AttentionTask& task) { Attention<CachedFloat32>{task}.run(); }
inline void attend_bfloat16(const AttentionTask& task) { Attention<CachedBfloat16>{task}.run(); }

constexpr StackKernels stack_kernels{&rms_norm, &rotate, &swiglu, &narrow_all, &attend_float32, &attend_bfloat16};

}  // namespace headstart::HEADSTART_ISA
