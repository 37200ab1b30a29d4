// What predicts beside the network, and what comes after it: kNN and the mixer.
//
// All arrays are the caller's, in C order, and none is kept. Nothing is allocated but one scratch row of the mixer, so
// calls of several threads do not meet. What a row gives does not depend on the rows beside it, on where its numbers
// lie or on how many rows come at once: one row at a time and a whole chunk give the same bits.
//
// Layout, with the letters of the Python side:
//   kNN         x (n, stride) float32, of which the first W are compared; past keys (P, W) float32, oldest first, with
//               labels (P,) int64. Column c < P is a past example, column P + i is row i of x. Row i may use the
//               columns lo[i] <= c < hi[i]. The result is (n, K) float32, log-probabilities.
//   mixer       log-probabilities (M, n, K) float32 of M experts; R products of them; log-weights (M + R,) and
//               exponents (R, M) float64. What experts and products say of one row is (M + 2 R, K) float64.
//
// Free class ids, from num_seen on, have no label yet. All of them together weigh as one label (labels.py).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <new>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

// elements of two vectors by their numbers, those of the second counted on from the first's
#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (i8){__VA_ARGS__})
#endif

namespace {

typedef float f8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));
typedef double d4 __attribute__((vector_size(32)));
typedef int64_t l4 __attribute__((vector_size(32)));
// the same anywhere in memory; a memcpy of 32 bytes becomes a detour through the stack
typedef float f8_at __attribute__((vector_size(32), aligned(4), may_alias));
typedef double d4_at __attribute__((vector_size(32), aligned(8), may_alias));

constexpr double INF = std::numeric_limits<double>::infinity();

// ---- kNN ----

constexpr int MOST_NEAREST = 64;
constexpr int BLOCK = 64;  // distances that are looked at together

inline f8 load(const float* at) { return *reinterpret_cast<const f8_at*>(at); }

// Eight numbers from `at` on, with 0 for those that the mask leaves out; `end` is where the numbers of the array end.
inline f8 load_tail(const float* at, const float* end, i8 mask) {
    f8 v = {};
    if (end - at >= 8) {
        v = load(at);
    } else {
        for (int i = 0; i < end - at; i++) v[i] = at[i];
    }
    return reinterpret_cast<f8>(reinterpret_cast<i8>(v) & mask);
}

// Up to four numbers; the others stay as they are in `rest`.
inline d4 load(const double* at, int64_t count, d4 rest) {
    if (count >= 4) return *reinterpret_cast<const d4_at*>(at);
    for (int64_t i = 0; i < count; i++) rest[i] = at[i];
    return rest;
}

// The sums of eight vectors as one vector, each added up in the same order.
inline f8 sums(const f8* v) {
    f8 half[4];  // (0, 4), (1, 5), (2, 6), (3, 7): elements 0-3 and 4-7 added up
    for (int i = 0; i < 4; i++) {
        const f8 low = SHUFFLE(v[i], v[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        const f8 high = SHUFFLE(v[i], v[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
        half[i] = low + high;
    }
    f8 quarter[2];  // (0, 1, 4, 5), (2, 3, 6, 7)
    for (int i = 0; i < 2; i++) {
        const f8 a = half[2 * i], b = half[2 * i + 1];
        const f8 low = SHUFFLE(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
        const f8 high = SHUFFLE(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
        quarter[i] = low + high;
    }
    const f8 a = quarter[0], b = quarter[1];
    const f8 low = SHUFFLE(a, b, 0, 2, 8, 10, 4, 6, 12, 14);
    const f8 high = SHUFFLE(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
    return low + high;
}

// Examples to compare with: rows of `width` numbers, `stride` apart.
struct Keys {
    const float* rows;
    int64_t stride;
    const float* end;  // of the last row's numbers
};

// One x to compare with many rows: its whole vectors, and what is left of it as one with zeros.
struct Query {
    const float* x;
    int width, whole;  // numbers, and how many of them are in whole vectors
    i8 mask = {};
    f8 tail = {};

    Query(const float* x_, int width_) : x(x_), width(width_), whole(width_ & ~7) {
        for (int w = whole; w < width; w++) {
            mask[w - whole] = -1;
            tail[w - whole] = x[w];
        }
    }

    // Its squared distance from a key, as eight numbers that are still to be added up.
    inline f8 distance(const float* key, const float* end) const {
        f8 acc = {};
        for (int w = 0; w < whole; w += 8) {
            const f8 d = load(x + w) - load(key + w);
            acc += d * d;
        }
        if (whole < width) {
            const f8 d = tail - load_tail(key + whole, end, mask);
            acc += d * d;
        }
        return acc;
    }
};

// Squared distances from `count` (at most BLOCK) rows from `first` on.
void distances(const Query& query, const Keys& keys, int64_t first, int count, float* out) {
    f8 total[8];
    int start = 0;
    const float* key = keys.rows + first * keys.stride;
    for (; start + 8 <= count; start += 8) {
#pragma GCC unroll 8
        for (int r = 0; r < 8; r++, key += keys.stride) total[r] = query.distance(key, keys.end);
        *reinterpret_cast<f8_at*>(out + start) = sums(total);
    }
    if (start < count) {
        for (int r = 0; r < 8; r++, key += keys.stride) {
            total[r] = start + r < count ? query.distance(key, keys.end) : f8{};
        }
        *reinterpret_cast<f8_at*>(out + start) = sums(total);  // out has room for whole vectors
    }
}

// The nearest examples so far, nearest first; of equally near ones those that came first, which are the latest.
struct Nearest {
    int most, count = 0;
    float distance[MOST_NEAREST];
    int64_t label[MOST_NEAREST], column[MOST_NEAREST];
    float worst = std::numeric_limits<float>::infinity();  // what is not below it is not among them

    explicit Nearest(int most_) : most(most_) {}

    void take(float d, int64_t of, int64_t at) {
        int i = count < most ? count++ : most - 1;
        for (; i > 0 && distance[i - 1] > d; i--) {
            distance[i] = distance[i - 1];
            label[i] = label[i - 1];
            column[i] = column[i - 1];
        }
        distance[i] = d;
        label[i] = of;
        column[i] = at;
        if (count == most) worst = distance[most - 1];
    }
};

// Compares x with the rows lo..hi-1, the latest first; row 0 is column `base`.
void search(
    const Query& query, const Keys& keys, const int64_t* labels, int64_t lo, int64_t hi, int64_t base, Nearest& found
) {
    alignas(32) float d[BLOCK];
    for (int64_t stop = hi; stop > lo;) {
        const int64_t start = std::max(lo, stop - BLOCK);
        const int count = static_cast<int>(stop - start);
        distances(query, keys, start, count, d);
        for (int i = count; i < BLOCK; i++) d[i] = std::numeric_limits<float>::infinity();
        f8 least = load(d);
        for (int i = 8; i < BLOCK; i += 8) {
            const f8 v = load(d + i);
            least = v < least ? v : least;  // a NaN in v hides nothing, and one in `least` stays
        }
        // most blocks have nothing nearer; the comparison is so that a NaN does not skip its block
        bool any = false;
        for (int i = 0; i < 8; i++) any |= !(least[i] >= found.worst);
        if (any) {
            for (int i = count - 1; i >= 0; i--) {
                if (d[i] < found.worst) found.take(d[i], labels[start + i], base + start + i);
            }
        }
        stop = start;
    }
}

// The log-probabilities (K,) that labels of the nearest examples give; false where a label is none of the K.
bool vote(const Nearest& found, double prior_weight, double sharpness, int64_t num_seen, int64_t K, float* out) {
    double mean = 0, total = 0, weight[MOST_NEAREST];
    for (int i = 0; i < found.count; i++) mean += found.distance[i];
    mean = mean / std::max(found.count, 1) + 1e-9;
    for (int i = 0; i < found.count; i++) {
        weight[i] = std::exp(-sharpness * found.distance[i] / mean);
        total += weight[i];
    }
    const double scale = 1 / (total * (1 + prior_weight / std::max(found.count, 1)) + 1e-9);
    double rest = 1;
    for (int i = 0; i < found.count; i++) {
        if (found.label[i] < 0 || found.label[i] >= K) return false;
        weight[i] *= scale;
        rest -= weight[i];
    }
    // what is left goes to the prior: equal for the labels seen, and as much as for one of these for all others
    num_seen = std::min(num_seen, K);
    const int64_t free = K - num_seen;
    const double seen = rest / static_cast<double>(free ? num_seen + 1 : K);
    const double unseen = free ? seen / static_cast<double>(free) : 0;
    std::fill(out, out + num_seen, static_cast<float>(std::log(seen)));
    std::fill(out + num_seen, out + K, static_cast<float>(std::log(unseen)));
    bool counted[MOST_NEAREST] = {};
    for (int i = 0; i < found.count; i++) {
        if (counted[i]) continue;
        double p = weight[i];
        for (int j = i + 1; j < found.count; j++) {
            if (found.label[j] != found.label[i]) continue;
            p += weight[j];
            counted[j] = true;
        }
        out[found.label[i]] = static_cast<float>(std::log(p + (found.label[i] < num_seen ? seen : unseen)));
    }
    return true;
}

// ---- mixer ----

// exp of four numbers, none of them above 709; within 1 ulp of std::exp. What is below -708 gives 0.
inline d4 vexp(d4 x) {
    constexpr double ROUND = 6755399441055744.0;  // 1.5 * 2^52: with it, the nearest whole number is in the low bits
    const l4 tiny = x < -708.0;
    const d4 bounded = tiny ? (d4{} - 708.0) : x;
    const d4 shifted = bounded * 1.4426950408889634 + ROUND;
    const d4 n = shifted - ROUND;
    d4 r = bounded - n * 0.693147180369123816490;
    r = r - n * 1.90821492927058770002e-10;
    d4 p = r * (1.0 / 6227020800.0) + (1.0 / 479001600.0);
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    const l4 power = (reinterpret_cast<l4>(shifted) << 52) + (l4{} + (int64_t{1023} << 52));
    const d4 made = p * reinterpret_cast<d4>(power);
    return tiny ? d4{} : made;
}

// log of four normal numbers above 0; within 2 ulp of std::log.
inline d4 vlog(d4 x) {
    const l4 bits = reinterpret_cast<l4>(x);
    l4 exponent = (bits >> 52) - 1023;
    d4 m = reinterpret_cast<d4>((bits & 0x000fffffffffffffLL) | 0x3ff0000000000000LL);  // in [1, 2)
    const l4 large = m > 1.4142135623730951;
    m = large ? m * 0.5 : m;
    exponent -= large;  // -1 where it is
    const d4 t = (m - 1.0) / (m + 1.0), t2 = t * t;
    d4 p = t2 * (1.0 / 21.0) + 1.0 / 19.0;
    p = p * t2 + 1.0 / 17.0;
    p = p * t2 + 1.0 / 15.0;
    p = p * t2 + 1.0 / 13.0;
    p = p * t2 + 1.0 / 11.0;
    p = p * t2 + 1.0 / 9.0;
    p = p * t2 + 1.0 / 7.0;
    p = p * t2 + 1.0 / 5.0;
    p = p * t2 + 1.0 / 3.0;
    const d4 e = __builtin_convertvector(exponent, d4);
    return e * 0.693147180369123816490 + (2.0 * t + (2.0 * t * t2 * p + e * 1.90821492927058770002e-10));
}

// exp(x - most) of n numbers, and their sum.
double sum_exp(const double* x, int64_t n, double most, double* out) {
    d4 total = {};
    for (int64_t k = 0; k < n; k += 4) {
        const d4 made = vexp(load(x + k, n - k, d4{} - INF) - most);
        for (int64_t i = 0; i < 4 && k + i < n; i++) out[k + i] = made[i];
        total += made;
    }
    return (total[0] + total[1]) + (total[2] + total[3]);
}

// The mixture of parts (J, up to four lanes), K apart, where all of them are too small for their sum.
d4 log_mixture(const double* parts, int64_t K, int64_t J, const double* log_weights, int64_t lanes) {
    d4 most = d4{} - INF, total = {};
    for (int64_t j = 0; j < J; j++) {
        const d4 v = load(parts + j * K, lanes, d4{}) + log_weights[j];
        most = v > most ? v : most;
    }
    for (int64_t j = 0; j < J; j++) total += vexp(load(parts + j * K, lanes, d4{}) + log_weights[j] - most);
    for (int64_t i = 0; i < lanes; i++) most[i] += std::log(total[i]);
    return most;
}

struct Rates {
    double share;            // how much of its weight a part keeps
    bool slows_share;        // whether it keeps more where labels are late
    const double* prior;     // (M + R,) how the rest is spread over all parts, whatever they sum to
    const double* learning;  // (R,) of the exponents
    double lowest, largest;  // log-probabilities are at least, exponents at most so large
};

struct Shape {
    int64_t M, R, K;
    int64_t num_seen;  // class ids from here on count together as one label; -1: each on its own
    int64_t free() const { return num_seen < 0 ? 0 : std::max<int64_t>(K - num_seen, 0); }
};

// What all parts say and their mixture (K,), of one row whose experts lie `stride` apart. `parts` gets (M + 2 R, K):
// the logarithms of experts and products, and the probabilities of the products.
void mix_row(
    const Shape& s, const float* log_probs, int64_t stride, const double* log_weights, const double* exponents,
    double lowest, double* parts, double* mixed
) {
    const int64_t M = s.M, R = s.R, K = s.K, first_free = s.free() ? s.num_seen : K;
    const double log_free = s.free() ? std::log(static_cast<double>(s.free())) : 0.0;
    const double part_of_free = s.free() ? 1.0 / static_cast<double>(s.free()) : 1.0;
    for (int64_t m = 0; m < M; m++) {
        const float* from = log_probs + m * stride;
        double* to = parts + m * K;
        for (int64_t k = 0; k < first_free; k++) to[k] = from[k];
        for (int64_t k = first_free; k < K; k++) to[k] = from[k] + log_free;
    }
    for (int64_t r = 0; r < R; r++) {
        double *product = parts + (M + r) * K, *probs = parts + (M + R + r) * K;
        std::fill(product, product + K, 0.0);
        for (int64_t m = 0; m < M; m++) {
            const double exponent = exponents[r * M + m];
            const double* of = parts + m * K;
            for (int64_t k = 0; k < K; k++) product[k] += exponent * (of[k] > lowest ? of[k] : lowest);
        }
        double most = -INF;
        for (int64_t k = 0; k < K; k++) most = product[k] > most ? product[k] : most;
        const double of_seen = sum_exp(product, first_free, most, probs);
        const double of_free = sum_exp(product + first_free, K - first_free, most, probs + first_free);
        const double total = of_seen + of_free * part_of_free, log_total = most + std::log(total);
        for (int64_t k = 0; k < K; k++) product[k] -= log_total;
        for (int64_t k = 0; k < K; k++) probs[k] /= total;
    }
    double few[16];  // the weights of the products, where these are not many
    for (int64_t r = 0; r < std::min<int64_t>(R, 16); r++) few[r] = std::exp(log_weights[M + r]);
    for (int64_t k = 0; k < K; k += 4) {
        const int64_t lanes = std::min<int64_t>(4, K - k);
        d4 total = {};
        for (int64_t m = 0; m < M; m++) total += vexp(load(parts + m * K + k, lanes, d4{}) + log_weights[m]);
        for (int64_t r = 0; r < R; r++) {
            total += load(parts + (M + R + r) * K + k, lanes, d4{}) * (r < 16 ? few[r] : std::exp(log_weights[M + r]));
        }
        bool tiny = false;
        for (int64_t i = 0; i < lanes; i++) tiny |= !(total[i] > 1e-290);
        d4 made = vlog(total);
        if (tiny) made = log_mixture(parts + k, K, M + R, log_weights, lanes);
        for (int64_t i = 0; i < lanes; i++) mixed[k + i] = made[i] - (k + i >= first_free ? log_free : 0.0);
    }
}

// Weights and exponents after the label `y`, of which the parts are what `mix_row` gave.
void learn_row(
    const Shape& s, const double* parts, int64_t y, double speed, const Rates& rates, double* log_weights,
    double* exponents
) {
    const int64_t M = s.M, R = s.R, K = s.K, first_free = s.free() ? s.num_seen : K;
    const double part_of_free = s.free() ? 1.0 / static_cast<double>(s.free()) : 1.0;
    for (int64_t r = 0; r < R; r++) {
        const double* probs = parts + (M + R + r) * K;
        double* of = exponents + r * M;
        for (int64_t first = 0; first < M; first += 8) {
            const int64_t count = std::min<int64_t>(8, M - first);
            d4 expected[8] = {};
            for (int64_t k = 0; k < K; k += 4) {
                d4 p = load(probs + k, K - k, d4{});
                for (int64_t i = std::max<int64_t>(first_free - k, 0); i < 4; i++) p[i] *= part_of_free;
                for (int64_t m = 0; m < count; m++) {
                    const d4 b = load(parts + (first + m) * K + k, K - k, d4{});
                    expected[m] += p * (b > rates.lowest ? b : (d4{} + rates.lowest));
                }
            }
            for (int64_t m = 0; m < count; m++) {
                const d4 e = expected[m];
                const double gained = std::max(parts[(first + m) * K + y], rates.lowest);
                const double gradient = gained - ((e[0] + e[1]) + (e[2] + e[3]));
                const double moved = of[first + m] + rates.learning[r] * speed * gradient;
                of[first + m] = std::min(std::max(moved, -rates.largest), rates.largest);
            }
        }
    }
    const double share = rates.slows_share ? 1 - (1 - rates.share) * speed : rates.share;
    double most = -INF, total = 0, all = 0;
    for (int64_t j = 0; j < M + R; j++) {
        all += rates.prior[j];
        log_weights[j] += speed * parts[j * K + y];
        most = std::max(most, log_weights[j]);
    }
    for (int64_t j = 0; j < M + R; j++) {
        log_weights[j] = std::exp(log_weights[j] - most);
        total += log_weights[j];
    }
    for (int64_t j = 0; j < M + R; j++) {
        log_weights[j] = std::log(log_weights[j] * (share / total) + (1 - share) * rates.prior[j] / all);
    }
}

}  // namespace

// Log-probabilities (n, K) of the labels of the nearest examples. own_labels may be null where no row is a neighbor
// of another; without lo and hi each row uses all of the past. `at` (n, nearest) gets the columns, -1 where there are
// fewer, unless it is null. 0: done; 1: sizes or ranges that cannot be; 2: a label that is none of the K.
EXPORT int prequential_knn(
    const float* x, int64_t n, int64_t stride, int width, const float* past_keys, const int64_t* past_labels,
    int64_t past, const int64_t* own_labels, const int64_t* lo, const int64_t* hi, int nearest, double prior_weight,
    double sharpness, const int64_t* num_seen, int64_t num_classes, float* out, int64_t* at
) {
    if (n < 0 || width < 1 || stride < width || past < 0 || num_classes < 1 || nearest < 1 || nearest > MOST_NEAREST)
        return 1;
    const Keys of_past = {past_keys, width, past_keys + past * width};
    const Keys of_own = {x, stride, x + (n ? (n - 1) * stride + width : 0)};
    for (int64_t i = 0; i < n; i++) {
        const int64_t stop = hi ? hi[i] : past;
        if (num_seen[i] < 0 || stop > past + (own_labels ? n : 0)) return 1;
        Nearest found(nearest);
        const Query query(x + i * stride, width);
        const int64_t from = lo ? std::max<int64_t>(lo[i], 0) : 0;
        if (stop > past) search(query, of_own, own_labels, std::max<int64_t>(from - past, 0), stop - past, past, found);
        search(query, of_past, past_labels, from, std::min(stop, past), 0, found);
        if (!vote(found, prior_weight, sharpness, num_seen[i], num_classes, out + i * num_classes)) return 2;
        for (int j = 0; at && j < nearest; j++) at[i * nearest + j] = j < found.count ? found.column[j] : -1;
    }
    return 0;
}

// The gradient (W + 1,) of the mean loss of n labeled examples under the votes of their neighbors, by the logarithms
// of the scales of the features and of the sharpness; `LearnedMetric.gradient` has the formulas. Example i is row
// first + i of keys (room, W) with labels (room,); its k neighbors are ages[i] (k,) rows before it, 0: there is none.
// prior (n,) is the probability of its label where neighbors say nothing. 1: sizes or rows that cannot be.
EXPORT int prequential_metric_gradient(
    const float* keys, const int64_t* labels, int64_t room, int width, int64_t first, int64_t n, int k,
    const int64_t* ages, const double* prior, double prior_weight, double sharpness, double* gradient
) {
    if (width < 1 || n < 1 || k < 1 || k > MOST_NEAREST || first < 0 || first + n > room) return 1;
    std::fill(gradient, gradient + width + 1, 0.0);
    for (int64_t i = 0; i < n; i++, ages += k) {
        const int64_t row = first + i;
        const float* x = keys + row * width;
        double d[MOST_NEAREST], vote[MOST_NEAREST], total = 0, all = 0, right = 0, moment = 0;
        int found = 0;
        for (int j = 0; j < k; j++) {
            if (ages[j] < 0 || ages[j] > row) return 1;
            d[j] = 0;
            if (!ages[j]) continue;
            const float* key = x - ages[j] * width;
            for (int w = 0; w < width; w++) {
                const float apart = x[w] - key[w];
                d[j] += static_cast<double>(apart * apart);
            }
            total += d[j];
            found++;
        }
        if (!found) continue;
        const double mean = total / found + 1e-9;
        for (int j = 0; j < k; j++) {
            vote[j] = ages[j] ? std::exp(-sharpness * d[j] / mean) : 0.0;
            all += vote[j];
        }
        for (int j = 0; j < k; j++) {
            vote[j] /= std::max(all, 1e-300);
            if (ages[j] && labels[row - ages[j]] == labels[row]) right += vote[j];
        }
        const double share = 1 / (1 + prior_weight / found);
        const double p = std::max(share * right + (1 - share) * prior[i], 1e-300);
        for (int j = 0; j < k; j++) {  // from here on, the gradient by the logarithm of the vote
            const double same = ages[j] && labels[row - ages[j]] == labels[row] ? 1.0 : 0.0;
            vote[j] *= -share * (same - right) / p;
            moment += vote[j] * d[j] / mean;
        }
        for (int j = 0; j < k; j++) {
            if (!ages[j]) continue;
            const float* key = x - ages[j] * width;
            const double by_distance = -sharpness * (vote[j] - moment / found) / mean;
            for (int w = 0; w < width; w++) {
                const float apart = x[w] - key[w];
                gradient[w] += 2 * by_distance * static_cast<double>(apart * apart);
            }
        }
        gradient[width] -= sharpness * moment;
    }
    for (int w = 0; w <= width; w++) gradient[w] /= static_cast<double>(n);
    return 0;
}

// Multiplies rows (n, W) by factors (W,).
EXPORT void prequential_scale_rows(float* rows, int64_t n, int64_t width, const float* factor) {
    for (int64_t i = 0; i < n; i++, rows += width) {
        for (int64_t w = 0; w < width; w++) rows[w] *= factor[w];
    }
}

// The mixture (n, K) of n rows, each by weights of its own if weight_rows is n, or by the same if it is 1. `parts`
// (n, M + 2 R, K) gets what all parts said, as `mix_row` has it, or is null. num_seen may be null. 1: no memory, or
// sizes that cannot be.
EXPORT int prequential_mix(
    int64_t M, int64_t R, int64_t n, int64_t K, const float* log_probs, const int64_t* num_seen, int64_t weight_rows,
    const double* log_weights, const double* exponents, double lowest, double* parts, double* mixed
) {
    if (M < 1 || R < 0 || n < 0 || K < 1 || (weight_rows != 1 && weight_rows != n)) return 1;
    std::vector<double> scratch;
    if (parts == nullptr) {
        try {
            scratch.resize(static_cast<size_t>((M + 2 * R) * K));
        } catch (const std::bad_alloc&) {
            return 1;
        }
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t version = weight_rows == 1 ? 0 : i;
        mix_row(
            {M, R, K, num_seen ? num_seen[i] : -1}, log_probs + i * K, n * K, log_weights + version * (M + R),
            exponents + version * R * M, lowest, parts ? parts + i * (M + 2 * R) * K : scratch.data(), mixed + i * K
        );
    }
    return 0;
}

// Moves log_weights (M + R,) and exponents (R, M) on by one label; `parts` is what `prequential_mix` gave for its
// row.
EXPORT int prequential_mix_learn(
    int64_t M, int64_t R, int64_t K, const double* parts, int64_t y, int64_t num_seen, double speed, double share,
    int slows_share, const double* prior, const double* learning_rates, double lowest, double largest, double* log_weights, double* exponents
) {
    if (M < 1 || R < 0 || K < 1 || y < 0 || y >= K) return 1;
    const Rates rates = {share, slows_share != 0, prior, learning_rates, lowest, largest};
    learn_row({M, R, K, num_seen}, parts, y, speed, rates, log_weights, exponents);
    return 0;
}

// The mixture (n, K) of consecutive rows with labels y (n,), each by the weights after the labels before it. Row i of
// log_weights (n + 1, M + R) and exponents (n + 1, R, M) are those before row i; the first is given, the others are
// made.
EXPORT int prequential_mix_sequence(
    int64_t M, int64_t R, int64_t n, int64_t K, const float* log_probs, const int64_t* num_seen, const int64_t* y,
    const double* speed, double share, int slows_share, const double* prior, const double* learning_rates, double lowest,
    double largest,
    double* log_weights, double* exponents, double* mixed
) {
    if (M < 1 || R < 0 || n < 0 || K < 1) return 1;
    std::vector<double> parts;
    try {
        parts.resize(static_cast<size_t>((M + 2 * R) * K));
    } catch (const std::bad_alloc&) {
        return 1;
    }
    const Rates rates = {share, slows_share != 0, prior, learning_rates, lowest, largest};
    for (int64_t i = 0; i < n; i++) {
        if (y[i] < 0 || y[i] >= K) return 1;
        const Shape shape = {M, R, K, num_seen ? num_seen[i] : -1};
        double *before = log_weights + i * (M + R), *powers = exponents + i * R * M;
        mix_row(shape, log_probs + i * K, n * K, before, powers, lowest, parts.data(), mixed + i * K);
        double *after = before + (M + R), *moved = powers + R * M;
        std::copy(before, before + (M + R), after);
        std::copy(powers, powers + R * M, moved);
        learn_row(shape, parts.data(), y[i], speed ? speed[i] : 1.0, rates, after, moved);
    }
    return 0;
}
