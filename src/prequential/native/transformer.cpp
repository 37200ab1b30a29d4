// The transformers of models/pi.py and models/two_token.py for vectors on a CPU in float32: predictions, passes, gradient
// steps and the EMA, all of it in place on torch's own tensors.
//
// kernels.h has products and elementwise functions, model.h what a pass is given, blocks.h, pairs.h and heads.h the pass
// over panels of 16 tokens, one_example.h the pass over one token, training.h what follows a pass in a gradient step. This
// file puts them together, and has the functions that transformer.py calls.
#include "one_example.h"
#include "training.h"

namespace prequential {
namespace {

// What one of several threads does of a pass that is prepared.
void forward_backward(Pass &pass, const Share &share) {
  const bool pairs = pass.plan.in_pairs;
  embed(pass, share);
  if (pass.net.label_tokens) embed_tokens(pass, share);
  if (pass.net.rotates()) fill_rotations(pass, share);
  for (int l = 0; l < pass.net.L; l++) block_forward(pass, l, share);
  if (pairs) take_x_tokens(pass, share);
  heads(pass, share);
  if (!pass.train) return;
  if (pairs) put_x_tokens(pass, share);
  for (int l = pass.net.L - 1; l >= 0; l--) block_backward(pass, l, share);
  if (pairs) {
    split_gradient(pass, share);
  } else if (pass.d_embedded) {
    const long wide = (long)pass.net.D * PANEL;
    for (long i = share.first * wide; i < share.last * wide; i += 8)
      store(pass.d_h + i, load(pass.d_h + i) + load(pass.d_embedded + i));
  }
}

// Memory of the calling thread, for passes without gradients.
Arena &arena_of_thread() {
  static thread_local Arena mine;
  return mine;
}

// Memory for a training call, which is kept for the next one, in whatever thread that is.
class Lease {
 public:
  explicit Lease(size_t count) {
    {
      std::unique_lock<std::mutex> lock(mutex());
      for (auto &kept = pool(); mine_.size() < count && !kept.empty(); kept.pop_back())
        mine_.push_back(std::move(kept.back()));
    }
    while (mine_.size() < count) mine_.push_back(std::make_unique<Arena>());
  }
  ~Lease() {
    std::unique_lock<std::mutex> lock(mutex());
    for (; !mine_.empty() && pool().size() < MOST; mine_.pop_back()) pool().push_back(std::move(mine_.back()));
  }
  Lease(const Lease &) = delete;
  Lease &operator=(const Lease &) = delete;
  Arena &operator[](size_t i) { return *mine_[i]; }

 private:
  static constexpr size_t MOST = 32;
  std::vector<std::unique_ptr<Arena>> mine_;
  // never destroyed: threads may still train when a process ends
  static std::mutex &mutex() {
    static std::mutex &only = *new std::mutex;
    return only;
  }
  static std::vector<std::unique_ptr<Arena>> &pool() {
    static auto &only = *new std::vector<std::unique_ptr<Arena>>(make_pool());
    return only;
  }
  static std::vector<std::unique_ptr<Arena>> make_pool() {
    std::vector<std::unique_ptr<Arena>> empty;
    empty.reserve(MOST);  // so that giving back cannot fail
    return empty;
  }
};

constexpr int ALONE = 3;  // so many examples to predict are computed one by one; more, in panels

Error forward(const Net &net, const Stream &s, Arena &arena, int threads) {
  Pass pass(net, s, arena, false);
  if (Error error = pass.plan.make(net, s)) return error;
  if (s.length == 1 && (net.label_tokens || !pass.plan.any_unlabeled)) {
    forward_one(pass);
    return OK;
  }
  if (!s.y && !s.visible && s.length <= ALONE && !s.new_keys && !s.new_example_keys) {
    std::vector<float> log_probs((size_t)net.num_heads_out * net.NC);
    for (int t = 0; t < s.length; t++) {
      Stream one = s;
      one.length = 1, one.log_probs = log_probs.data();
      if (s.x) one.x = s.x + (long)t * net.F;
      if (s.num_seen) one.num_seen = s.num_seen + t;
      Pass of_one(net, one, arena, false);
      if (Error error = of_one.plan.make(net, one)) return error;
      forward_one(of_one);
      for (int head = 0; s.log_probs && head < net.num_heads_out; head++)
        std::memcpy(s.log_probs + ((long)head * s.length + t) * net.NC, &log_probs[(size_t)head * net.NC],
                    sizeof(float) * net.NC);
    }
    return OK;
  }
  pass.prepare();
  in_threads(std::min(threads, (int)pass.strips.size()), [&](int part, int parts, Barrier &barrier) {
    NoDenormals guard;
    forward_backward(pass, pass.share(part, parts, barrier));
  });
  return OK;
}

// What `transformer_train` is given beside the streams.
struct Training {
  Step step;
  const Net *average;  // null: there is none
  float part;          // of the way that it moves towards the parameters after the last step
  int threads;
  bool split;
};

// One step on the streams of some passes. `last`: the average follows.
bool take_step(const Net &net, const std::vector<std::unique_ptr<Pass>> &passes, Lease &memory, const Training &given,
               bool last) {
  const int count = (int)passes.size();
  size_t most = 1;
  for (const auto &pass : passes) pass->prepare(), most = std::max(most, pass->strips.size());
  Trainer trainer(net, passes, given.step, memory[count]);
  // all memory is taken: nothing fails from here on
  std::atomic<int> next{0};
  std::atomic<bool> all_finite{true};
  // all threads on one stream after the other, or each on streams of its own
  const bool together = given.split && count < given.threads && (size_t)count < most;
  in_threads(std::min<int>(given.threads, together ? most : count), [&](int part, int parts, Barrier &barrier) {
    NoDenormals guard;
    Barrier nobody(1);
    if (together)
      for (const auto &pass : passes) forward_backward(*pass, pass->share(part, parts, barrier));
    else
      for (int s; (s = next++) < count;) forward_backward(*passes[s], passes[s]->share(0, 1, nobody));
    barrier.wait();
    if (!trainer.sum_gradients(part, parts)) all_finite = false;
    barrier.wait();
    if (all_finite) trainer.move(part, parts);
    if (last && given.average) trainer.follow(*given.average, given.part, part, parts);
  });
  if (all_finite) trainer.count_step();
  return all_finite;
}

Error train(const Net &net, const Stream *streams, const int32_t *sizes, int num_steps, const Training &given,
            int32_t *finite, double *loss) {
  int most = 0;
  for (int i = 0; i < num_steps; i++) {
    if (sizes[i] < 1) return BAD_STREAM;
    most = std::max(most, (int)sizes[i]);
  }
  Lease memory(most + 1);
  std::vector<std::vector<std::unique_ptr<Pass>>> steps(num_steps);
  for (int i = 0; i < num_steps; i++)
    for (int s = 0; s < sizes[i]; s++, streams++) {
      steps[i].push_back(std::make_unique<Pass>(net, *streams, memory[s], true));
      if (!streams->y) return BAD_STREAM;
      if (Error error = steps[i][s]->plan.make(net, *streams)) return error;
      steps[i][s]->loss_weight = 1.0f / ((float)sizes[i] * streams->length);
    }
  for (int i = 0; i < num_steps; i++) {
    finite[i] = take_step(net, steps[i], memory, given, i == num_steps - 1);
    loss[i] = 0;
    for (const auto &pass : steps[i]) {
      loss[i] += pass->loss();
      if (int64_t *to = pass->stream.new_example_labels) std::copy_n(pass->stream.y, pass->stream.length, to);
    }
    steps[i].clear();
  }
  return OK;
}

// The tokens of an example of the 2-token transformer that was predicted: that of x as it is, and that of y.
Error append_tokens(const Net &net, int64_t y, const float *x_keys, const float *x_values, float *keys, float *values,
                    int64_t block_stride, int64_t past) {
  const int K = net.K;
  if (past < 0 || past > 1 << 24 || block_stride < (past + 2) * K) return BAD_STREAM;
  if (net.rotates() && std::min<int64_t>(past, net.C) + 1 >= net.model.rotary_length) return TOO_LONG;
  try {
    NoDenormals guard;
    label_token_one(net, arena_of_thread(), y, keys - past * K, values - past * K, block_stride, (int)past, x_keys,
                    x_values, K, keys + K, values + K, block_stride);
  } catch (const std::exception &) {
    return NO_MEMORY;
  }
  for (int l = 0; l < net.L; l++) {
    std::memcpy(keys + l * block_stride, x_keys + (long)l * K, sizeof(float) * K);
    std::memcpy(values + l * block_stride, x_values + (long)l * K, sizeof(float) * K);
  }
  return OK;
}

Error check_average(const Net &average, const Net &net) {
  if (average.check(false) || average.count != net.count) return BAD_MODEL;
  for (int i = 0; i < net.count; i++)
    if (average.model.parameters[i].size != net.model.parameters[i].size) return BAD_MODEL;
  return OK;
}

}  // namespace
}  // namespace prequential

using namespace prequential;

// Every function gives 0, or the number of what is wrong with its arguments; then it has changed nothing.
extern "C" {

const char *transformer_error(int error) {
  switch (error) {
    case OK: return "";
    case BAD_MODEL: return "the parameters do not fit the sizes of the model";
    case BAD_STREAM: return "the sizes of examples and past do not fit each other";
    case BAD_LABEL: return "a class id is not one of the model's";
    case BAD_VISIBLE: return "an example would see itself or a later one";
    case TOO_LONG: return "examples are further apart than the rotary embedding reaches";
    case NO_MEMORY: return "there is not enough memory";
  }
  return "unknown";
}

// A pass without gradients over one stream. The result is the same for any number of threads, here and in a step.
int transformer_forward(const Model *model, const Stream *stream, int threads) {
  try {
    if (!model || !stream || threads < 1) return BAD_MODEL;
    const Net net(*model);
    if (Error error = net.check(false)) return error;
    NoDenormals guard;
    return forward(net, *stream, arena_of_thread(), threads);
  } catch (const std::exception &) {
    return NO_MEMORY;
  }
}

// Gradient steps one after the other; the number i is on the next sizes[i] streams together, on the mean over streams
// of their mean losses; of each example it is the sum over all heads. Where a gradient is not finite, finite[i] is 0 and
// the step is not taken. After the last one the parameters of `average`, if there is one, move towards those of the
// model. Threads share streams; with `split`, where there are fewer of these, also the tokens of one stream, for which
// they have to wait for each other in every block. Everything is checked before the first step.
int transformer_train(const Model *model, const Stream *streams, const int32_t *sizes, int num_steps, const Step *step,
                      const Model *average, double part, int threads, int split, int32_t *finite, double *loss) {
  try {
    if (!model || !streams || !sizes || !step || !finite || !loss) return BAD_MODEL;
    if (num_steps < 1 || threads < 1) return BAD_STREAM;
    const Net net(*model), of_average(average ? *average : *model);
    if (Error error = net.check(true)) return error;
    if (average)
      if (Error error = check_average(of_average, net)) return error;
    const Training given = {*step, average ? &of_average : nullptr, (float)part, threads, split != 0};
    return train(net, streams, sizes, num_steps, given, finite, loss);
  } catch (const std::exception &) {
    return NO_MEMORY;
  }
}

// The parameters of `average` move towards those of `model` by this part of the way.
int transformer_lerp(const Model *average, const Model *model, double part) {
  if (!average || !model) return BAD_MODEL;
  const Net from(*model), to(*average);
  if (from.check(false) || check_average(to, from)) return BAD_MODEL;
  NoDenormals guard;
  for (int i = 0; i < from.count; i++)
    lerp(average->parameters[i].value, model->parameters[i].value, model->parameters[i].size, (float)part);
  return OK;
}

// Writes an example that was predicted to a KV cache, now with its label y. What the prediction gave of it are keys and
// values (L, K) and example keys (W); `keys` and `values` are rows of the first block, the other blocks' `block_stride`
// further on. In the 2-token transformer they are two rows, and its token for y sees the so many `past` ones before them.
int transformer_append(const Model *model, int64_t y, const float *new_keys, const float *new_values,
                       const float *new_example_keys, float *keys, float *values, int64_t block_stride, int64_t past,
                       float *example_keys, int64_t *example_labels) {
  if (!model) return BAD_MODEL;
  const Net net(*model);
  if (Error error = net.check(false)) return error;
  if (y < 0 || y >= net.NC) return BAD_LABEL;
  if (net.W && (!new_example_keys || !example_keys || !example_labels)) return BAD_STREAM;
  if (net.attention && net.L) {
    if (!new_keys || !new_values || !keys || !values || block_stride < net.K) return BAD_STREAM;
    if (net.label_tokens)
      if (Error error = append_tokens(net, y, new_keys, new_values, keys, values, block_stride, past)) return error;
    for (int l = 0; net.label_tables && l < net.L; l++)
      for (int k = 0; k < net.K; k++) {
        keys[l * block_stride + k] = new_keys[l * net.K + k] + net.block(l, KEY_LABELS)[y * net.K + k];
        values[l * block_stride + k] = new_values[l * net.K + k] + net.block(l, VALUE_LABELS)[y * net.K + k];
      }
  }
  if (net.W) {
    std::memcpy(example_keys, new_example_keys, sizeof(float) * net.W);
    *example_labels = y;
  }
  return OK;
}
}
