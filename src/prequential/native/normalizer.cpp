// What comes before the network: features at mean 0 and deviation 1, and their differences from a moving average.
//
// All arrays are the caller's, in C order, and none is kept; the statistics move on in place. Rows that come one by one
// and rows that come at once give the same bits: each number is computed by itself, in loops without branches that the
// compiler makes vectors of.
//
//   normalizer  x (n, W) float64; statistics (3, columns) float64, where columns is W, or 2 W if features are also
//               given by the latest examples; the result is (n, columns) float32.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <new>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// The features of a normalizer that have shown few values yet, and these values; all of it moves on in place.
struct Start {
    const int64_t* features;  // (k,)
    double* first;            // (k,) the first value of each
    double* same;             // (k,) how often it came; 0: there is none yet
    double* others;           // (START, k) those that differ from it, in their order; null: stop before the next one
    int64_t* filled;          // (k,) how many these are; room: the start is over
    const uint8_t* cut;       // (k,) whether some of them were left out at the last look
    int64_t k;
    int64_t room;    // START: with so many of them, a start is over
    uint64_t looks;  // bit i: with the i-th of them, they are looked at together
    double spread;   // those are broken that are so many times as far from the median as 7 of 8 are
};

// What became of values that were left out, of all features; it moves on in place.
struct LeftOut {
    int64_t* run;     // (W,) how many there were lately, in eighths
    double* last;     // (W,) the last of them
    double* value;    // (W,) the one that recurs most
    double* repeats;  // (W,) how often it came
    double* lead;     // (W,) by how much it leads
    int64_t level;    // with a run of so much, more is to be done
};

struct Limits {
    double far;    // how many deviations from the mean are far
    double most;   // the largest value
    double clip;   // the largest result
    double shown;  // what a value that is left out looks like
};

// Counts a value of one feature among those left out, of which the most frequent is kept.
void take_out(const LeftOut& left, int64_t c, double x) {
    const bool fresh = left.lead[c] == 0, again = !fresh && left.value[c] == x;
    if (fresh) left.value[c] = x;
    left.repeats[c] = fresh ? 1.0 : left.repeats[c] + (again ? 1.0 : 0.0);
    left.lead[c] = std::max(left.lead[c] + (fresh || again ? 1.0 : -1.0), 0.0);
    left.run[c] += x != left.last[c] ? 7 : 0;
    left.last[c] = x;
}

constexpr int64_t MOST_ROOM = 62;

// Sorts few numbers; unlike std::sort, it stays within them where some are NaN, as a damaged file may have them.
void sort_few(double* values, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        const double value = values[i];
        int64_t at = i;
        for (; at > 0 && values[at - 1] > value; at--) values[at] = values[at - 1];
        values[at] = value;
    }
}

// Whether some of the first values of starting feature j are broken, with `value` as the next of them: `_broken` in
// outliers.py, which goes on to say which. The median is that of all values, each as often as it came; then each
// distance from it counts once.
bool any_broken(const Start& s, int64_t j, double value) {
    const int64_t others = s.filled[j] + 1, n = others + 1;
    double sorted[MOST_ROOM + 2], distance[MOST_ROOM + 2];
    for (int64_t i = 0; i + 1 < others; i++) sorted[i] = s.others[i * s.k + j];
    sorted[others - 1] = value;
    sorted[others] = s.first[j];
    sort_few(sorted, n);
    const double half = (s.same[j] + static_cast<double>(others)) / 2;
    double median = sorted[0], reached = 0;
    for (int64_t i = 0; i < n; i++) {  // none of the others equals the first value
        reached += sorted[i] == s.first[j] ? s.same[j] : 1.0;
        median = sorted[i];
        if (reached >= half) break;
    }
    for (int64_t i = 0; i < n; i++) distance[i] = std::fabs(sorted[i] - median);
    sort_few(distance, n);
    int64_t different = distance[0] > 0;
    for (int64_t i = 1; i < n; i++) different += distance[i] > distance[i - 1];
    if (different < 7) return false;
    const int64_t most = (7 * different + 7) / 8;  // 7 of 8, rounded up
    int64_t i = 0;
    for (int64_t count = distance[0] > 0; count < most;) {
        i++;
        count += distance[i] > distance[i - 1];
    }
    return distance[n - 1] > s.spread * distance[i];
}

// Ends the start of feature j, none of whose first values is broken: their range is that of the feature.
void end_start(const Start& s, int64_t j, double* low, double* high) {
    double least = s.first[j], most = least;
    for (int64_t i = 0; i < s.room; i++) {
        least = std::min(least, s.others[i * s.k + j]);
        most = std::max(most, s.others[i * s.k + j]);
    }
    low[s.features[j]] = least;
    high[s.features[j]] = most;
}

// Counts the values of a row that are left out, and lets those of the other features be forgotten.
void count_left_out(
    const LeftOut& left, const double* x, const double* is_far, bool any_far, int64_t width, double most
) {
    int64_t* run = left.run;
    if (!any_far) {
        for (int64_t c = 0; c < width; c++) run[c] -= (run[c] > 0) & (x[c] == x[c]);
        return;
    }
    for (int64_t c = 0; c < width; c++) {
        if (is_far[c] > 0) {
            take_out(left, c, std::min(std::max(x[c], -most), most));
        } else {
            run[c] -= run[c] > 0 && x[c] == x[c] ? 1 : 0;
        }
    }
}

// Which values of a row are far outside their feature's range: 1 or 0 each. Returns whether any is.
bool find_far(
    const double* __restrict x, int64_t width, const double* __restrict count, const double* __restrict mean,
    const double* __restrict square, const double* __restrict low, const double* __restrict high, const Limits& limits,
    double* __restrict is_far
) {
    const double far = limits.far * limits.far, most = limits.most;
    int64_t any = 0;
    for (int64_t c = 0; c < width; c++) {
        const double value = std::min(std::max(x[c], -most), most), d = value - mean[c];
        // a comparison with NaN is false: what is missing is not far
        const double outside = value < low[c] ? 1.0 : value > high[c] ? 1.0 : 0.0;
        is_far[c] = d * d * count[c] > far * square[c] ? outside : 0.0;
    }
    for (int64_t c = 0; c < width; c++) any |= is_far[c] > 0 ? 1 : 0;
    return any > 0;
}

struct Row {
    const double* x;
    const double* is_far;  // 1: the value is left out
    int64_t width;
    const Limits& limits;
};

struct Bounds {
    const double* floor;  // null: statistics take every value as it is
    const double* ceiling;
};

struct Statistics {
    double* count;
    double* mean;
    double* square;
};

// Moves the statistics on by a row and normalizes it by them. In short loops without branches, of which the compiler
// makes vectors.
void move_on(const Row& row, const Bounds& bounds, const Statistics& statistics, float* __restrict out) {
    constexpr int64_t PART = 128;
    double value[PART], taken[PART], counts[PART], scaled[PART];
    const double most = row.limits.most, clip = row.limits.clip, shown = row.limits.shown;
    for (int64_t at = 0; at < row.width; at += PART, out += PART) {
        const int64_t size = std::min(PART, row.width - at);
        const double* __restrict x = row.x + at;
        const double* __restrict is_far = row.is_far + at;
        double* __restrict count = statistics.count + at;
        double* __restrict mean = statistics.mean + at;
        double* __restrict square = statistics.square + at;
        for (int64_t c = 0; c < size; c++) {
            const double within = std::min(std::max(x[c], -most), most);
            value[c] = x[c] == x[c] ? within : 0.0;
            counts[c] = x[c] == x[c] ? 1.0 - is_far[c] : 0.0;
        }
        for (int64_t c = 0; c < size; c++) {
            taken[c] = bounds.floor == nullptr
                ? value[c]
                : std::min(std::max(value[c], bounds.floor[at + c]), bounds.ceiling[at + c]);
        }
        for (int64_t c = 0; c < size; c++) {
            const double shift = count[c] > 0 ? mean[c] : taken[c];
            const double distance = taken[c] - shift;
            const double step = counts[c] > 0 ? distance : 0.0;
            count[c] += counts[c];
            const double total = std::max(count[c], 1.0);
            const double grown = square[c] + step * step - step * step / total;
            square[c] = grown > 0 ? grown : 0.0;
            mean[c] = shift + step / total;
        }
        for (int64_t c = 0; c < size; c++) {
            const double deviation = std::sqrt(square[c] / std::max(count[c], 1.0));
            const double least = 1e-9 * std::fabs(mean[c]);  // below that it is rounding, not variation
            const double quotient = (value[c] - mean[c]) / (deviation > least ? deviation : 1.0);
            const double clipped = std::min(std::max(quotient, -clip), clip);
            scaled[c] = deviation > least ? clipped : 0.0;
        }
        for (int64_t c = 0; c < size; c++) {
            const double known = x[c] == x[c] ? scaled[c] : 0.0;
            const double side = known > 0 ? shown : known < 0 ? -shown : 0.0;
            out[c] = static_cast<float>(is_far[c] > 0 ? side : known);
        }
    }
}

}  // namespace

// Normalizes consecutive rows, each by the statistics of what came before and of itself, which move on in place. It
// stops before the first row that does more than that: one with which some of the first values of a feature are
// found broken, or are looked at again after some were, or one with values that are left out (more than `far`
// deviations from the mean and outside low..high), where left is null or the feature is at a new level by it. Where
// a start ends, the feature's low and high are set, and what follows goes by them. floor and ceiling (W,) bound what
// the statistics of the latest examples take; null: nothing does. What is left out looks like `shown` deviations.
// Returns how many rows were done, or -1 for sizes that cannot be. The statistics are (3, columns): counts, means
// and sums of squared distances from these.
EXPORT int64_t prequential_normalize(
    const double* x, int64_t n, int64_t width, int64_t columns, double* statistics, double* low, double* high,
    const double* floor, const double* ceiling, const Start* start, const LeftOut* left,
    const Limits* limits, float* out
) {
    if (n < 0 || width < 0 || (columns != width && columns != 2 * width) || start->k < 0) return -1;
    const double most = limits->most;
    double *count = statistics, *mean = count + columns, *square = mean + columns;
    double few[512];  // for most tables, nothing is allocated
    std::vector<double> many;
    try {
        many.resize(width > 512 ? static_cast<size_t>(width) : 0);
    } catch (const std::bad_alloc&) {
        return -1;
    }
    double* is_far = width > 512 ? many.data() : few;
    const Start& s = *start;
    if (s.k > 0 && (s.room < 1 || s.room > MOST_ROOM)) return -1;
    for (int64_t j = 0; j < s.k; j++) {
        if (s.features[j] < 0 || s.features[j] >= width || s.filled[j] < 0 || s.filled[j] >= s.room) return -1;
    }
    for (int64_t i = 0; i < n; i++, x += width, out += columns) {
        const bool any_far = find_far(x, width, count, mean, square, low, high, *limits, is_far);
        bool stops = false;
        if (any_far && left == nullptr) return i;
        for (int64_t c = 0; any_far && c < width; c++) {
            const double value = std::min(std::max(x[c], -most), most);
            stops |= is_far[c] > 0 && left->run[c] + (value != left->last[c] ? 7 : 0) >= left->level;
        }
        for (int64_t j = 0; j < s.k; j++) {
            const double value = std::min(std::max(x[s.features[j]], -most), most);
            if (value != value || s.filled[j] == s.room || (s.same[j] > 0 && value == s.first[j])) continue;
            const bool look = s.same[j] > 0 && ((s.looks >> (s.filled[j] + 1)) & 1);
            stops = stops || s.others == nullptr || (look && (s.cut[j] || any_broken(s, j, value)));
        }
        if (stops) return i;
        for (int64_t j = 0; j < s.k; j++) {
            const double value = std::min(std::max(x[s.features[j]], -most), most);
            if (value != value || s.filled[j] == s.room) continue;
            if (s.same[j] == 0) s.first[j] = value;
            if (value == s.first[j]) {
                s.same[j] += 1;
            } else {
                s.others[s.filled[j]++ * s.k + j] = value;
                if (s.filled[j] == s.room) end_start(s, j, low, high);
            }
        }
        if (left != nullptr) count_left_out(*left, x, is_far, any_far, width, most);
        const Row row = {x, is_far, width, *limits};
        move_on(row, {nullptr, nullptr}, {count, mean, square}, out);
        if (columns > width) {
            move_on(row, {floor, ceiling}, {count + width, mean + width, square + width}, out + width);
        }
    }
    return n;
}

// ---- the moving average ----

// Rows (n, width) and their differences from the moving average of each feature, side by side (n, 2 width). The state
// (3, width) has how many values came, their average and the average distance from it; it moves on with every row.
// A value moves the average as if it were at most `bound` average distances away. NaN: not measured.
EXPORT int prequential_widen(
    const double* x, int64_t n, int64_t width, double* state, double rate, double bound, double* out
) {
    if (n < 0 || width < 0) return 1;
    double *count = state, *mean = count + width, *distance = mean + width;
    for (int64_t i = 0; i < n; i++, x += width, out += 2 * width) {
        for (int64_t c = 0; c < width; c++) {
            const double value = x[c];
            const bool measured = value == value;
            if (measured && count[c] == 0) mean[c] = value;
            const double difference = value - mean[c];
            out[c] = value;
            out[width + c] = difference;
            if (!measured) continue;
            count[c] += 1;
            const double speed = std::max(rate, 1 / count[c]), far = std::fabs(difference);
            const double moved = std::min(far, bound * distance[c]);
            const double step = speed * (difference < 0 ? -moved : moved);
            mean[c] += step;
            const double change = speed * ((distance[c] > 0 ? moved : far) - distance[c]);
            distance[c] += change;
        }
    }
    return 0;
}
