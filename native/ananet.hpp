// ananet: prunes putative matches of keypoints between two images with ANA-Net (Ye et al., AAAI 2023).
//
// One header, C++17, no dependencies. It reads the weight files of the Python package and answers as the package does:
//
//     const auto pruner = ananet::Pruner::from_file("ananet-small.safetensors");
//     ananet::Matches matches;
//     matches.points0 = {{10, 20}, {30, 40}};                  // pixels; (0, 0) is the centre of the first one
//     matches.points1 = {{12, 20}, {33, 41}};
//     matches.image_size0 = matches.image_size1 = {640, 480};   // or K0 and K1
//     const ananet::Pruned kept = pruner(matches);              // kept.mask, kept.scores, kept.logits
//
// Compile with -O3 -march=native (or /O2 /arch:AVX2): vectors are as wide as the compiler may make them. A pruner runs in
// the thread that calls it, and several threads may call one pruner at the same time.
#pragma once

#if defined(__FAST_MATH__)
#error "ananet.hpp: expected exact arithmetic, got -ffast-math, which removes roundings and NaN"
#endif

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <new>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ananet {

// ---- what goes in, what comes out

/// Names the argument, what was expected and what came.
class InputError : public std::invalid_argument {
public:
    using std::invalid_argument::invalid_argument;
};

struct Point {
    double x = 0, y = 0;
};

struct Size {
    double width = 0, height = 0;
};

/// K = [[fx, skew, cx], [0, fy, cy], [0, 0, 1]].
struct Camera {
    double fx = 0, fy = 0, cx = 0, cy = 0, skew = 0;
};

/// N putative matches: what `ananet.Correspondences` holds. An empty vector stands for what is not known.
struct Matches {
    std::vector<Point> points0, points1;
    /// Pixels of both cameras; where they are missing, the image sizes say how large a coordinate is.
    std::optional<Camera> K0, K1;
    std::optional<Size> image_size0, image_size1;
    /// Descriptor distance to the nearest over that to the second nearest neighbour, in [0, 1].
    std::vector<float> ratio;
    /// 1 where the match is nearest in both directions, else 0.
    std::vector<std::uint8_t> mutual;
    /// Diameters in pixels.
    std::vector<float> keypoint_sizes0, keypoint_sizes1;
    /// Radians from the x axis towards the y axis.
    std::vector<float> angles0, angles1;
};

/// As the arguments of `ananet.load`.
struct Options {
    /// The probability above which a match is kept.
    double threshold = 0.4;
    /// Of matches that share a point but lie apart in the other image, the odds of all but the best are divided by this.
    double conflict_odds = 30;
    /// Groups of similar matches that are attended to; 0 for every match, nothing for as trained.
    std::optional<std::size_t> seeds;
    /// "right" or "line": which output of the weights decides; empty for the last.
    std::string label;
};

struct Pruned {
    /// Which matches to keep.
    std::vector<bool> mask;
    /// How likely each match is right, in [0, 1).
    std::vector<float> scores;
    /// The same before the sigmoid.
    std::vector<float> logits;

    /// Of the kept matches, best first.
    std::vector<std::size_t> indices() const {
        std::vector<std::size_t> kept;
        for (std::size_t i = 0; i < mask.size(); ++i)
            if (mask[i]) kept.push_back(i);
        std::stable_sort(kept.begin(), kept.end(), [this](auto a, auto b) { return logits[a] > logits[b]; });
        return kept;
    }
};

namespace detail {

using std::size_t;

// ---- constants of ananet.networks.input, .seeds, .consensus, ananet.core.conflicts and ananet.pruners

constexpr double FOCAL_GUESS = 0.7;
constexpr float MAX_COORDINATE = 2.0F;
constexpr double MAX_MARGIN = 0.5;
constexpr float USUAL_LOG_SIZE = -7.0F, MAX_LOG_SIZE = 8.0F;
constexpr double MAX_ANGLE = 2 * 3.141592653589793 + 0.01;
constexpr float APART = 0.005F;
constexpr double MAX_LOGIT = 10.0, MAX_DOUBT = 100.0;
constexpr int BITS = 13, FIRST_STEPS = 3;
constexpr size_t COMPARED = 32;
constexpr double SCALES[] = {5e-3, 2e-3, 1e-3}, MIN_WEIGHT = 1e-9;
constexpr float INLIER_DISTANCE = 1e-4F;
constexpr double TINY = std::numeric_limits<double>::min();
constexpr float SQRT2 = 1.4142135623730951F;
constexpr double LOG2E = 1.4426950408889634;
// Of batch norms and layer norms.
constexpr double EPS = 1e-5;
// Added to the scores of what must not be attended to; finite, so that nothing becomes NaN.
constexpr float HIDDEN = -1e30F;
// Of the attention map in memory at once: with keys and values it stays in the second-level cache of a core.
constexpr size_t BLOCK_BYTES = 256 * 1024;

inline std::string text(double value) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%g", value);
    return buffer;
}

[[noreturn]] inline void refuse(const std::string& message) { throw InputError(message); }

// ---- vectors of floats

#if defined(__AVX512F__)
constexpr size_t LANES = 16;
#elif defined(__AVX__) || !defined(__GNUC__)
constexpr size_t LANES = 8;
#else
constexpr size_t LANES = 4;
#endif
// A product is built from tiles of so many rows and columns, which just fit the registers.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr size_t ROWS = 12;
#else
constexpr size_t ROWS = 6;
#endif
constexpr size_t COLUMNS = 2 * LANES;
// Rows that go through layers together, in the first cache.
constexpr size_t PART = 96;
static_assert(PART % ROWS == 0);
// Products are added up in parts of so many terms, which stay in the first cache: one long sum in single precision would
// lose a digit.
constexpr size_t DEPTH = 128;

// Coefficients of 2^f for f in [-1/2, 1/2]: ln(2)^k / k!.
constexpr float POWER[] = {1.0F,          0.69314718F,   0.24022651F,   0.055504109F,
                           0.0096181291F, 0.0013333558F, 1.5403530e-4F, 1.5252734e-5F};
// Adding it rounds a float of less than 2^22 to a whole number, which its lowest bits then hold.
constexpr float ROUNDER = 12582912.0F;
// Below, 2^x is no normal number.
constexpr float MIN_EXPONENT = -126.0F;

#if defined(__GNUC__) && !defined(ANANET_PLAIN)

#define ANANET_INLINE inline __attribute__((always_inline))
#define ANANET_UNROLL _Pragma("GCC unroll 16")
using Floats = float __attribute__((vector_size(LANES * 4)));
using Ints = std::int32_t __attribute__((vector_size(LANES * 4)));

ANANET_INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }

/// Where a < b: a and its number in place of b and its number.
ANANET_INLINE void keep_smaller(Floats a, Ints number_a, Floats& b, Ints& number_b) {
    const Ints less = a < b;
    b = less ? a : b;
    number_b = less ? number_a : number_b;
}

ANANET_INLINE Floats power_of_two(Floats x) {
    x = larger(x, Floats{} + MIN_EXPONENT);
    const Floats shifted = x + ROUNDER;
    const Floats f = x - (shifted - ROUNDER);
    Floats result = Floats{} + POWER[7];
    for (int k = 6; k >= 0; --k) result = POWER[k] + f * result;
    return (Floats)((Ints)result + ((Ints)shifted << 23));
}

#else  // the plain reference

#define ANANET_INLINE inline
#define ANANET_UNROLL
template <typename T>
struct Lanes {
    T of[LANES] = {};
    T& operator[](size_t i) { return of[i]; }
    const T& operator[](size_t i) const { return of[i]; }
    Lanes& operator+=(const Lanes& b) { return *this = *this + b; }
    friend Lanes operator+(Lanes a, const Lanes& b) {
        for (size_t i = 0; i < LANES; ++i) a.of[i] += b.of[i];
        return a;
    }
    friend Lanes operator-(Lanes a, const Lanes& b) {
        for (size_t i = 0; i < LANES; ++i) a.of[i] -= b.of[i];
        return a;
    }
    friend Lanes operator*(Lanes a, const Lanes& b) {
        for (size_t i = 0; i < LANES; ++i) a.of[i] *= b.of[i];
        return a;
    }
    friend Lanes operator+(Lanes a, T b) {
        for (size_t i = 0; i < LANES; ++i) a.of[i] += b;
        return a;
    }
    friend Lanes operator-(Lanes a, T b) { return a + -b; }
    friend Lanes operator*(T b, Lanes a) {
        for (size_t i = 0; i < LANES; ++i) a.of[i] *= b;
        return a;
    }
};
using Floats = Lanes<float>;
using Ints = Lanes<std::int32_t>;

inline Floats larger(Floats a, const Floats& b) {
    for (size_t i = 0; i < LANES; ++i) a[i] = std::max(a[i], b[i]);
    return a;
}

inline void keep_smaller(const Floats& a, const Ints& number_a, Floats& b, Ints& number_b) {
    for (size_t i = 0; i < LANES; ++i)
        if (a[i] < b[i]) b[i] = a[i], number_b[i] = number_a[i];
}

inline Floats power_of_two(Floats x) {
    for (size_t i = 0; i < LANES; ++i) x[i] = std::exp2(std::max(x[i], MIN_EXPONENT));
    return x;
}

#endif

ANANET_INLINE Floats load(const float* from) {
    Floats x;
    std::memcpy(static_cast<void*>(&x), from, sizeof x);
    return x;
}

ANANET_INLINE void store(float* to, const Floats& x) { std::memcpy(to, &x, sizeof x); }

ANANET_INLINE float sum(const Floats& x) {
    float of[LANES];
    store(of, x);
    for (size_t half = LANES / 2; half; half /= 2)
        for (size_t i = 0; i < half; ++i) of[i] += of[i + half];
    return of[0];
}

ANANET_INLINE float largest(const Floats& x) {
    float of[LANES];
    store(of, x);
    for (size_t half = LANES / 2; half; half /= 2)
        for (size_t i = 0; i < half; ++i) of[i] = std::max(of[i], of[i + half]);
    return of[0];
}

inline void add(float* to, const float* x, size_t n) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) store(to + i, load(to + i) + load(x + i));
    for (; i < n; ++i) to[i] += x[i];
}

template <typename T>
struct Aligned {
    using value_type = T;
    static constexpr std::align_val_t BYTES{64};
    Aligned() = default;
    template <typename U>
    Aligned(const Aligned<U>&) {}
    T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), BYTES)); }
    void deallocate(T* p, size_t) { ::operator delete(p, BYTES); }
    friend bool operator==(const Aligned&, const Aligned&) { return true; }
    friend bool operator!=(const Aligned&, const Aligned&) { return false; }
};

using Numbers = std::vector<float, Aligned<float>>;

constexpr size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/// Row after row, both rounded up to whole tiles.
struct Matrix {
    size_t rows = 0, columns = 0, stride = 0;
    Numbers numbers;

    Matrix() = default;
    Matrix(size_t rows, size_t columns)
        : rows(rows), columns(columns), stride(round_up(columns, COLUMNS)), numbers(round_up(rows, ROWS) * stride) {}
    float* row(size_t i) { return numbers.data() + i * stride; }
    const float* row(size_t i) const { return numbers.data() + i * stride; }
};

// ---- products

/// The second factor of a product, [depth x columns] in panels of COLUMNS columns, and what is added to each column.
struct Packed {
    size_t depth = 0, columns = 0;
    Numbers numbers, bias;

    Packed() = default;
    Packed(size_t depth, size_t columns)
        : depth(depth), columns(columns), numbers(round_up(columns, COLUMNS) * depth), bias(round_up(columns, COLUMNS)) {}
    size_t stride() const { return bias.size(); }
    const float* panel(size_t first_column) const { return numbers.data() + first_column * depth; }
    float& at(size_t k, size_t column) {
        return numbers[column / COLUMNS * COLUMNS * depth + k * COLUMNS + column % COLUMNS];
    }
};

/// The transpose of rows [columns x depth].
inline void pack_rows(Packed& packed, const float* rows, size_t stride) {
    for (size_t first = 0; first < packed.columns; first += COLUMNS) {
        float* to = packed.numbers.data() + first * packed.depth;
        for (size_t c = 0; c < std::min(COLUMNS, packed.columns - first); ++c)
            for (size_t k = 0; k < packed.depth; ++k) to[k * COLUMNS + c] = rows[(first + c) * stride + k];
    }
}

/// Rows [depth x columns] as they are.
inline void pack_columns(Packed& packed, const float* rows, size_t stride) {
    for (size_t first = 0; first < packed.columns; first += COLUMNS) {
        float* to = packed.numbers.data() + first * packed.depth;
        const size_t wide = std::min(COLUMNS, packed.columns - first);
        for (size_t k = 0; k < packed.depth; ++k) std::copy_n(rows + k * stride + first, wide, to + k * COLUMNS);
    }
}

/// Adds a product to `plus`, which may be the result `c` itself.
template <bool RELU>
ANANET_INLINE void multiply_tile(const float* a, size_t a_stride, const float* b, size_t depth, const float* plus,
                                 size_t plus_stride, float* c, size_t c_stride) {
    Floats sums[ROWS][2] = {};
    for (size_t k = 0; k < depth; ++k) {
        const Floats left = load(b + k * COLUMNS), right = load(b + k * COLUMNS + LANES);
        ANANET_UNROLL
        for (size_t r = 0; r < ROWS; ++r) {
            const float x = a[r * a_stride + k];
            sums[r][0] += x * left;
            sums[r][1] += x * right;
        }
    }
    ANANET_UNROLL
    for (size_t r = 0; r < ROWS; ++r) {
        sums[r][0] += load(plus + r * plus_stride);
        sums[r][1] += load(plus + r * plus_stride + LANES);
        if (RELU) sums[r][0] = larger(sums[r][0], Floats{}), sums[r][1] = larger(sums[r][1], Floats{});
        store(c + r * c_stride, sums[r][0]);
        store(c + r * c_stride + LANES, sums[r][1]);
    }
}

/// c = a b + bias, [rows x depth] times [depth x columns]; writes whole tiles.
template <bool RELU = false>
void multiply(const float* a, size_t a_stride, size_t rows, const Packed& b, float* c, size_t c_stride) {
    for (size_t column = 0; column < b.columns; column += COLUMNS)
        for (size_t first = 0; first < b.depth; first += DEPTH) {
            const size_t depth = std::min(DEPTH, b.depth - first);
            const float* panel = b.panel(column) + first * COLUMNS;
            for (size_t row = 0; row < rows; row += ROWS) {
                const float* from = a + row * a_stride + first;
                float* to = c + row * c_stride + column;
                const float* plus = first ? to : b.bias.data() + column;
                const size_t plus_stride = first ? c_stride : 0;
                if (RELU && first + depth == b.depth)
                    multiply_tile<true>(from, a_stride, panel, depth, plus, plus_stride, to, c_stride);
                else
                    multiply_tile<false>(from, a_stride, panel, depth, plus, plus_stride, to, c_stride);
            }
        }
}

inline float dot(const float* a, const float* b, size_t n) {
    Floats sums{};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) sums += load(a + i) * load(b + i);
    float total = sum(sums);
    for (; i < n; ++i) total += a[i] * b[i];
    return total;
}

inline float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// ---- JSON and safetensors

struct Json {
    enum class Kind { null, boolean, number, text, list, object } kind = Kind::null;
    bool boolean = false;
    double number = 0;
    std::string text;
    std::vector<Json> list;
    std::map<std::string, Json> object;
};

/// Reads JSON text; `what` names it in errors.
class JsonReader {
public:
    JsonReader(const std::string& source, const std::string& what) : source(source), what(what) {}

    Json read() {
        Json value = any(0);
        skip();
        if (at != source.size()) fail();
        return value;
    }

private:
    const std::string& source;
    const std::string& what;
    size_t at = 0;
    static constexpr int MAX_DEPTH = 50;

    [[noreturn]] void fail() const { refuse(what + ": expected JSON, got something else at byte " + std::to_string(at)); }

    void skip() {
        while (at < source.size() && std::strchr(" \t\r\n", source[at]) && source[at]) ++at;
    }

    bool take(char wanted) {
        skip();
        if (at >= source.size() || source[at] != wanted) return false;
        ++at;
        return true;
    }

    void need(char wanted) {
        if (!take(wanted)) fail();
    }

    bool word(const char* wanted) {
        const size_t length = std::strlen(wanted);
        if (source.compare(at, length, wanted) != 0) return false;
        at += length;
        return true;
    }

    Json any(int depth) {
        if (depth > MAX_DEPTH) fail();
        Json value;
        if (take('{')) {
            value.kind = Json::Kind::object;
            if (take('}')) return value;
            do {
                need('"');
                std::string name = quoted();
                need(':');
                value.object[std::move(name)] = any(depth + 1);
            } while (take(','));
            need('}');
        } else if (take('[')) {
            value.kind = Json::Kind::list;
            if (take(']')) return value;
            do value.list.push_back(any(depth + 1));
            while (take(','));
            need(']');
        } else if (take('"')) {
            value.kind = Json::Kind::text;
            value.text = quoted();
        } else if (word("true") || word("false")) {
            value.kind = Json::Kind::boolean;
            value.boolean = source[at - 2] == 'u';
        } else if (!word("null")) {
            value.kind = Json::Kind::number;
            char* end = nullptr;
            value.number = std::strtod(source.c_str() + at, &end);
            const size_t length = static_cast<size_t>(end - (source.c_str() + at));
            if (length == 0) fail();
            at += length;
        }
        return value;
    }

    std::string quoted() {
        std::string result;
        while (at < source.size() && source[at] != '"') {
            char c = source[at++];
            if (c == '\\') {
                if (at >= source.size()) fail();
                c = source[at++];
                static const std::string letters = "bfnrt", meant = "\b\f\n\r\t";
                if (c == 'u') {
                    // Names and settings are ASCII; anything else is a part of a description.
                    if (at + 4 > source.size()) fail();
                    const long code = std::strtol(source.substr(at, 4).c_str(), nullptr, 16);
                    at += 4;
                    c = code < 128 ? static_cast<char>(code) : '?';
                } else if (const size_t found = letters.find(c); found != std::string::npos) {
                    c = meant[found];
                }
            }
            result += c;
        }
        need('"');
        return result;
    }
};

inline Json read_json(const std::string& source, const std::string& what) { return JsonReader(source, what).read(); }

inline float half_to_float(std::uint16_t half) {
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    float value = exponent == 31 ? (mantissa ? NAN : INFINITY)
                  : exponent     ? std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25)
                                 : std::ldexp(static_cast<float>(mantissa), -24);
    return half >> 15 ? -value : value;
}

struct Tensor {
    std::vector<size_t> shape;
    std::vector<float> numbers;
};

/// A file of named tensors (https://github.com/huggingface/safetensors); numbers become single precision.
class Safetensors {
public:
    std::map<std::string, std::string> metadata;
    std::map<std::string, Tensor> tensors;

    Safetensors(const char* data, size_t size, const std::string& name) {
        std::uint64_t length = 0;
        if (size < 8) refuse(name + ": expected a safetensors file, got " + std::to_string(size) + " bytes");
        for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(data[i]);
        if (length > size - 8) refuse(name + ": expected a safetensors file, got a header longer than the file");
        const Json header = read_json(std::string(data + 8, static_cast<size_t>(length)), name);
        if (header.kind != Json::Kind::object) refuse(name + ": expected a safetensors header of names, got none");
        const char* numbers = data + 8 + length;
        const size_t left = size - 8 - static_cast<size_t>(length);
        for (const auto& [key, entry] : header.object) {
            if (key == "__metadata__")
                for (const auto& [what, value] : entry.object) metadata[what] = value.text;
            else
                tensors[key] = tensor(entry, numbers, left, name + ": " + key);
        }
    }

private:
    static size_t whole(const Json& value, const std::string& what) {
        if (value.kind != Json::Kind::number || value.number < 0 || value.number > 9e15 ||
            value.number != std::floor(value.number))
            refuse(what + ": expected whole numbers in the header, got something else");
        return static_cast<size_t>(value.number);
    }

    static const Json& part(const Json& entry, const char* name, const std::string& what) {
        const auto found = entry.object.find(name);
        if (found == entry.object.end()) refuse(what + ": expected " + name + " in the header, got none");
        return found->second;
    }

    static Tensor tensor(const Json& entry, const char* data, size_t size, const std::string& what) {
        Tensor result;
        size_t count = 1;
        for (const Json& side : part(entry, "shape", what).list) {
            result.shape.push_back(whole(side, what));
            if (result.shape.back() > 0 && count > size / result.shape.back())
                refuse(what + ": expected a tensor within the file, got a larger shape");
            count *= result.shape.back();
        }
        const std::string& type = part(entry, "dtype", what).text;
        const size_t bytes = type == "F16" ? 2 : type == "F32" ? 4 : type == "I64" ? 8 : 0;
        if (bytes == 0) refuse(what + ": expected numbers of type F16 or F32, got " + type);
        const auto& offsets = part(entry, "data_offsets", what).list;
        if (offsets.size() != 2) refuse(what + ": expected two data_offsets, got " + std::to_string(offsets.size()));
        const size_t first = whole(offsets[0], what), last = whole(offsets[1], what);
        if (first > last || last > size || last - first != count * bytes)
            refuse(what + ": expected data that fits shape and file, got offsets " + std::to_string(first) + " to " +
                   std::to_string(last));
        if (bytes == 8) return result;  // counters of batches
        result.numbers.resize(count);
        for (size_t i = 0; i < count; ++i) {
            if (bytes == 4) {
                std::memcpy(&result.numbers[i], data + first + 4 * i, 4);
            } else {
                std::uint16_t half;
                std::memcpy(&half, data + first + 2 * i, 2);
                result.numbers[i] = half_to_float(half);
            }
            if (!std::isfinite(result.numbers[i])) refuse(what + ": expected finite numbers, got NaN or infinity");
        }
        return result;
    }
};

inline std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(file), {}};
    if (!file) refuse("weights: no file " + path);
    return bytes;
}

// ---- settings

struct Settings {
    std::vector<std::string> side;
    std::string form = "linear";
    size_t blocks = 5, width = 128, heads = 4, seeds = 0;
    bool second_order = true, learnable_normalization = true, share_kv = true, feedback = false, right = false;

    static Settings read(const std::string& source, const std::string& file) {
        const std::string what = file + ": settings";
        const Json json = read_json(source, what);
        Settings settings;
        const std::map<std::string, bool*> flags = {
            {"second_order", &settings.second_order}, {"learnable_normalization", &settings.learnable_normalization},
            {"share_kv", &settings.share_kv},         {"feedback", &settings.feedback},
            {"right", &settings.right}};
        struct Range {
            size_t* value;
            double least, most;
        };
        const std::map<std::string, Range> sizes = {{"blocks", {&settings.blocks, 1, 100}},
                                                    {"width", {&settings.width, 1, 4096}},
                                                    {"heads", {&settings.heads, 1, 4096}},
                                                    {"seeds", {&settings.seeds, 0, 1 << 20}}};
        for (const auto& [name, value] : json.object) {
            if (name == "name") {
                if (value.text != "ananet") refuse(what + ": expected the network ananet, got " + value.text);
            } else if (name == "form") {
                settings.form = value.text;
            } else if (name == "side") {
                for (const Json& one : value.list) settings.side.push_back(one.text);
            } else if (const auto flag = flags.find(name); flag != flags.end()) {
                if (value.kind != Json::Kind::boolean) refuse(what + "." + name + ": expected true or false");
                *flag->second = value.boolean;
            } else if (const auto size = sizes.find(name); size != sizes.end()) {
                const auto [to, least, most] = size->second;
                if (value.kind != Json::Kind::number || !(value.number >= least && value.number <= most) ||
                    value.number != std::floor(value.number))
                    refuse(what + "." + name + ": expected a whole number from " + ananet::detail::text(least) + " to " +
                           ananet::detail::text(most) + ", got " + ananet::detail::text(value.number));
                *to = static_cast<size_t>(value.number);
            } else {
                refuse(what + ": expected settings that this version knows, got " + name);
            }
        }
        settings.check(what);
        return settings;
    }

    size_t channels() const {
        size_t total = 0;
        for (const auto& name : side) total += name == "size" || name == "angle" ? 2 : 1;
        return total;
    }

private:
    void check(const std::string& what) const {
        if (second_order && form != "linear" && form != "quadratic")
            refuse(what + ".form: expected linear or quadratic, got " + form + "; use Python for the cubic form");
        if (width % heads) refuse(what + ".width: expected a multiple of heads (" + std::to_string(heads) + "), got " +
                                  std::to_string(width));
        const std::set<std::string> known = {"ratio", "mutual", "size", "angle"};
        if (std::set<std::string>(side.begin(), side.end()).size() < side.size())
            refuse(what + ".side: expected different names");
        for (const auto& name : side)
            if (!known.count(name)) refuse(what + ".side: expected ratio, mutual, size or angle, got " + name);
    }
};

// ---- layers

/// Linear layers with ReLU after each but the last; batch norms are multiplied in.
struct Mlp {
    std::vector<Packed> layers;

    /// [rows x width], for at most PART rows; `to` may be `from`.
    void run(const float* from, size_t from_stride, size_t rows, float* to, size_t to_stride, Numbers (&memory)[2]) const {
        size_t widest = 0;
        for (const Packed& layer : layers) widest = std::max(widest, layer.stride());
        for (Numbers& one : memory)
            if (one.size() < PART * widest) one.resize(PART * widest);
        for (size_t n = 0; n + 1 < layers.size(); ++n) {
            float* next = memory[n % 2].data();
            multiply<true>(from, from_stride, rows, layers[n], next, layers[n].stride());
            from = next, from_stride = layers[n].stride();
        }
        multiply(from, from_stride, rows, layers.back(), to, to_stride);
    }
};

struct LayerNorm {
    Numbers weight, bias;

    /// In place, on rows of any stride.
    void run(float* rows, size_t stride, size_t count) const {
        const size_t width = weight.size(), whole = width / LANES * LANES;
        for (size_t r = 0; r < count; ++r) {
            float* x = rows + r * stride;
            Floats sums{};
            float mean = 0, variance = 0;
            for (size_t i = 0; i < whole; i += LANES) sums += load(x + i);
            for (size_t i = whole; i < width; ++i) mean += x[i];
            mean = (mean + sum(sums)) / static_cast<float>(width);
            sums = Floats{};
            for (size_t i = 0; i < whole; i += LANES) {
                const Floats centred = load(x + i) - mean;
                sums += centred * centred;
            }
            for (size_t i = whole; i < width; ++i) variance += (x[i] - mean) * (x[i] - mean);
            variance = (variance + sum(sums)) / static_cast<float>(width);
            const float scale = 1 / std::sqrt(variance + static_cast<float>(EPS));
            for (size_t i = 0; i < whole; i += LANES)
                store(x + i, scale * (load(x + i) - mean) * load(&weight[i]) + load(&bias[i]));
            for (size_t i = whole; i < width; ++i) x[i] = (x[i] - mean) * scale * weight[i] + bias[i];
        }
    }
};

/// A linear layer before it is packed, in double precision.
struct Plain {
    size_t out = 0, in = 0;
    std::vector<double> weight, bias;

    Packed packed(double scale = 1) const {
        Packed result(in, out);
        for (size_t o = 0; o < out; ++o) {
            result.bias[o] = static_cast<float>(bias[o] * scale);
            for (size_t i = 0; i < in; ++i) result.at(i, o) = static_cast<float>(weight[o * in + i] * scale);
        }
        return result;
    }
};

/// Takes tensors of a weight file by name, and says which one is missing, has another shape, or was not asked for.
class Weights {
public:
    Weights(const Safetensors& file, std::string name) : file(file), name(std::move(name)) {}

    const std::vector<float>& take(const std::string& key, const std::vector<size_t>& shape) {
        const auto found = file.tensors.find(key);
        if (found == file.tensors.end()) refuse(name + ": expected " + key + ", got no such tensor");
        if (found->second.shape != shape || found->second.numbers.size() != product(shape))
            refuse(name + ": " + key + ": expected shape " + shown(shape) + " of F16 or F32, got " +
                   shown(found->second.shape));
        taken.insert(key);
        return found->second.numbers;
    }

    Plain linear(const std::string& key, size_t out, size_t in) {
        const auto &weight = take(key + ".weight", {out, in}), &bias = take(key + ".bias", {out});
        return {out, in, {weight.begin(), weight.end()}, {bias.begin(), bias.end()}};
    }

    std::vector<Plain> folded(const std::string& key, const std::vector<size_t>& widths) {
        std::vector<Plain> layers;
        for (size_t n = 0; n + 1 < widths.size(); ++n) {
            layers.push_back(linear(key + ".linears." + std::to_string(n), widths[n + 1], widths[n]));
            if (n + 2 == widths.size()) break;
            const std::string norm = key + ".norms." + std::to_string(n);
            Plain& layer = layers.back();
            const auto &scale = take(norm + ".weight", {layer.out}), &shift = take(norm + ".bias", {layer.out});
            const auto& mean = take(norm + ".running_mean", {layer.out});
            const auto& variance = take(norm + ".running_var", {layer.out});
            for (size_t o = 0; o < layer.out; ++o) {
                const double factor = scale[o] / std::sqrt(variance[o] + EPS);
                layer.bias[o] = (layer.bias[o] - mean[o]) * factor + shift[o];
                for (size_t i = 0; i < layer.in; ++i) layer.weight[o * layer.in + i] *= factor;
            }
        }
        return layers;
    }

    Mlp mlp(const std::string& key, const std::vector<size_t>& widths) {
        Mlp result;
        for (const Plain& layer : folded(key, widths)) result.layers.push_back(layer.packed());
        return result;
    }

    LayerNorm layer_norm(const std::string& key, size_t width) {
        const auto &weight = take(key + ".weight", {width}), &bias = take(key + ".bias", {width});
        return {{weight.begin(), weight.end()}, {bias.begin(), bias.end()}};
    }

    void check_all_taken() const {
        const std::string counter = ".num_batches_tracked";
        for (const auto& [key, tensor] : file.tensors) {
            const bool counts = key.size() > counter.size() &&
                                key.compare(key.size() - counter.size(), counter.size(), counter) == 0;
            if (!counts && !taken.count(key)) refuse(name + ": expected tensors that the settings name, got " + key);
        }
    }

private:
    const Safetensors& file;
    std::string name;
    std::set<std::string> taken;

    static size_t product(const std::vector<size_t>& shape) {
        return std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>());
    }

    static std::string shown(const std::vector<size_t>& shape) {
        std::string result;
        for (const size_t side : shape) result += (result.empty() ? "(" : ", ") + std::to_string(side);
        return result.empty() ? "()" : result + ")";
    }
};

// ---- groups of similar matches (ananet.networks.seeds, ananet.attention.seeded)

struct Seeds {
    std::vector<size_t> group;  // of every match
    Numbers weights;            // how many matches are in each group
};

/// Groups of neighbours on a space-filling curve through the four coordinates.
inline Seeds first_seeds(const Matrix& matches, size_t count) {
    struct Place {
        std::int64_t place;
        float sum;
        size_t index;
    };
    const size_t total = matches.rows;
    std::vector<Place> places(total);
    for (size_t i = 0; i < total; ++i) {
        const float* x = matches.row(i);
        Place& at = places[i] = {0, 0, i};
        std::int64_t cells[4];
        for (int d = 0; d < 4; ++d) {
            const double cell = (static_cast<double>(x[d]) / MAX_COORDINATE + 1) * (1 << (BITS - 1));
            cells[d] = static_cast<std::int64_t>(std::clamp(cell, 0.0, static_cast<double>((1 << BITS) - 1)));
        }
        for (int bit = BITS - 1; bit >= 0; --bit)
            for (const std::int64_t cell : cells) at.place = at.place << 1 | (cell >> bit & 1);
        for (size_t channel = 0; channel < matches.columns; ++channel) at.sum += x[channel];
    }
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
        if (a.place != b.place) return a.place < b.place;
        return a.sum != b.sum ? a.sum < b.sum : a.index < b.index;
    });
    count = std::min(count, total);
    Seeds seeds{std::vector<size_t>(total), Numbers(count)};
    for (size_t rank = 0; rank < total; ++rank) {
        const size_t group = total > count ? rank * count / total : rank;
        seeds.group[places[rank].index] = group;
        ++seeds.weights[group];
    }
    return seeds;
}

/// [m x width] means of the first features of groups; 0 for empty ones.
inline Matrix group_means(const Matrix& features, size_t width, const Seeds& seeds) {
    Matrix means(seeds.weights.size(), width);
    for (size_t i = 0; i < features.rows; ++i) add(means.row(seeds.group[i]), features.row(i), width);
    for (size_t g = 0; g < means.rows; ++g)
        for (size_t c = 0; c < width; ++c) means.row(g)[c] /= std::max(seeds.weights[g], 1.0F);
    return means;
}

/// Steps of k-means: every match moves to the group whose mean is nearest.
inline void move_seeds(Seeds& seeds, const Matrix& features, int steps, Numbers& memory) {
    const size_t groups = seeds.weights.size(), compared = std::min(COMPARED, features.columns);
    if (features.rows <= groups) return;
    Packed points(compared, features.rows);
    pack_rows(points, features.row(0), features.stride);
    if (memory.size() < round_up(groups, ROWS) * COLUMNS) memory.resize(round_up(groups, ROWS) * COLUMNS);
    for (; steps > 0; --steps) {
        // |x - c|^2 but for |x|^2, which is the same for all groups.
        Matrix means = group_means(features, compared, seeds);
        Numbers offset(groups);
        for (size_t g = 0; g < groups; ++g) {
            offset[g] = seeds.weights[g] > 0 ? dot(means.row(g), means.row(g), compared) : -HIDDEN;
            for (size_t c = 0; c < compared; ++c) means.row(g)[c] *= -2;
        }
        std::fill(seeds.weights.begin(), seeds.weights.end(), 0.0F);
        for (size_t column = 0; column < features.rows; column += COLUMNS) {
            for (size_t g = 0; g < groups; g += ROWS)
                multiply_tile<false>(means.row(g), means.stride, points.panel(column), compared, points.bias.data(), 0,
                                     &memory[g * COLUMNS], COLUMNS);
            Floats least[2] = {load(&memory[0]) + offset[0], load(&memory[LANES]) + offset[0]};
            Ints at[2] = {}, now{};
            for (size_t g = 1; g < groups; ++g) {
                now = now + 1;
                keep_smaller(load(&memory[g * COLUMNS]) + offset[g], now, least[0], at[0]);
                keep_smaller(load(&memory[g * COLUMNS + LANES]) + offset[g], now, least[1], at[1]);
            }
            for (size_t i = column; i < std::min(column + COLUMNS, features.rows); ++i) {
                seeds.group[i] = static_cast<size_t>(at[(i - column) / LANES][(i - column) % LANES]);
                ++seeds.weights[seeds.group[i]];
            }
        }
    }
}

// ---- attention

/// Memory that blocks of an attention map reuse.
struct Memory {
    Numbers map, product, hidden[2];
};

/// The attention of `rows` queries to all keys of one head, in blocks of rows.
///
/// Queries are scaled by log2(e) / sqrt(d), so that softmax takes powers of two; the bias of the keys is log2 of how
/// many matches each stands for.
///
/// @param values [keys x d]; none for column moments alone.
/// @param output [rows x d], not touched without values.
/// @param moments of columns, sum_k w_k a_ki and sum_k w_k a_ki^2, are added to these; each may be null.
/// @param row_weights how many rows each stands for; null for one each.
inline void attend(const float* queries, size_t stride, size_t rows, const Packed& keys, const Packed* values,
                   float* output, size_t output_stride, float* moment1, float* moment2, const float* row_weights,
                   Memory& memory) {
    const size_t wide = keys.stride();
    const size_t height = std::clamp(BLOCK_BYTES / (wide * sizeof(float)) / ROWS, size_t{1}, PART / ROWS) * ROWS;
    if (memory.map.size() < height * wide) memory.map.resize(height * wide);
    float* map = memory.map.data();
    float inverse[PART], weight[PART];
    for (size_t top = 0; top < rows; top += height) {
        const size_t count = std::min(height, rows - top);
        multiply(queries + top * stride, stride, count, keys, map, wide);
        for (size_t r = 0; r < count; ++r) {
            float* row = map + r * wide;
            Floats most_left = load(row), most_right = load(row + LANES);
            for (size_t j = COLUMNS; j < wide; j += COLUMNS) {
                most_left = larger(most_left, load(row + j));
                most_right = larger(most_right, load(row + j + LANES));
            }
            const float most = largest(larger(most_left, most_right));
            Floats sums[2] = {};
            for (size_t j = 0; j < wide; j += COLUMNS) {
                const Floats left = power_of_two(load(row + j) - most);
                const Floats right = power_of_two(load(row + j + LANES) - most);
                store(row + j, left), store(row + j + LANES, right);
                sums[0] += left, sums[1] += right;
            }
            inverse[r] = 1 / sum(sums[0] + sums[1]);
            weight[r] = inverse[r] * (row_weights ? row_weights[top + r] : 1.0F);
        }
        if (moment1)
            for (size_t j = 0; j < wide; j += COLUMNS) {
                Floats left{}, right{};
                for (size_t r = 0; r < count; ++r) {
                    left += weight[r] * load(map + r * wide + j);
                    right += weight[r] * load(map + r * wide + j + LANES);
                }
                store(moment1 + j, load(moment1 + j) + left);
                store(moment1 + j + LANES, load(moment1 + j + LANES) + right);
            }
        if (moment2)
            for (size_t j = 0; j < wide; j += LANES) {
                Floats total{};
                for (size_t r = 0; r < count; ++r) {
                    const Floats a = load(map + r * wide + j);
                    total += weight[r] * inverse[r] * (a * a);
                }
                store(moment2 + j, load(moment2 + j) + total);
            }
        if (!values) continue;
        const size_t value_stride = values->stride();
        if (memory.product.size() < height * value_stride) memory.product.resize(height * value_stride);
        multiply(map, wide, count, *values, memory.product.data(), value_stride);
        for (size_t r = 0; r < count; ++r)
            for (size_t c = 0; c < values->columns; ++c)
                output[(top + r) * output_stride + c] = memory.product[r * value_stride + c] * inverse[r];
    }
}

/// One ANA block: first-order attention and second-order context of one map join the features.
class Block {
public:
    Block(Weights& weights, const std::string& name, const Settings& settings) : settings(settings) {
        const size_t width = settings.width, head = width / settings.heads;
        query = weights.linear(name + ".query", width, width).packed(LOG2E / std::sqrt(static_cast<double>(head)));
        key = weights.linear(name + ".key", width, width).packed();
        if (!settings.share_kv) value = weights.linear(name + ".value", width, width).packed();
        const Plain output = weights.linear(name + ".output", width, width);
        if (settings.second_order) {
            const std::string encoder = name + ".second_order";
            alpha.assign(settings.heads, 1.0F);
            if (settings.learnable_normalization) alpha = weights.take(encoder + ".alpha", {settings.heads});
            context = weights.mlp(encoder + ".encoder", {settings.heads, 32, 64, width, width});
            context_norm = weights.layer_norm(encoder + ".norm", width);
        }
        // [x || O a + o] W^T + b = [x || a] [Wx || Wa O]^T + (b + Wa o): the output projection O, o is multiplied in.
        std::vector<Plain> layers = weights.folded(name + ".merge", {2 * width, width, width});
        Plain& first = layers[0];
        for (size_t o = 0; o < width; ++o) {
            double* row = &first.weight[o * 2 * width];
            const std::vector<double> attended(row + width, row + 2 * width);
            std::fill(row + width, row + 2 * width, 0.0);
            for (size_t k = 0; k < width; ++k) {
                first.bias[o] += attended[k] * output.bias[k];
                for (size_t i = 0; i < width; ++i) row[width + i] += attended[k] * output.weight[k * width + i];
            }
        }
        for (const Plain& layer : layers) merge.layers.push_back(layer.packed());
        norm = weights.layer_norm(name + ".norm", width);
    }

    /// Features [N x width] in place; without seeds, all matches attend to all.
    void run(Matrix& features, const Seeds* seeds, Memory& memory) const {
        const size_t total = features.rows, width = settings.width, heads = settings.heads, head = width / heads;
        const Matrix keys = layer(features, key, memory);
        Matrix seed_queries, seed_keys, seed_values;
        Numbers seed_weights;
        if (seeds) {
            Matrix means = group_means(features, width, *seeds);
            seed_weights = used(means, *seeds);
            seed_queries = layer(means, query, memory), seed_keys = layer(means, key, memory);
            if (!settings.share_kv) seed_values = layer(means, value, memory);
        }
        // What is attended to: all matches, or the seeds.
        const Matrix& attended_keys = seeds ? seed_keys : keys;
        Matrix own_values;
        if (!settings.share_kv && !seeds) own_values = layer(features, value, memory);
        const Matrix& values = settings.share_kv ? attended_keys : seeds ? seed_values : own_values;

        const bool quadratic = settings.form == "quadratic";
        const size_t moments = !settings.second_order ? 0 : quadratic ? 2 : 1;
        const size_t padded = round_up(total, COLUMNS);
        Numbers columns(moments * heads * padded);
        auto moment = [&](size_t which, size_t h) {
            return moments > which ? &columns[(which * heads + h) * padded] : nullptr;
        };
        std::vector<Packed> to_keys(heads), to_values(heads);
        for (size_t h = 0; h < heads; ++h) {
            to_values[h] = Packed(attended_keys.rows, head);
            pack_columns(to_values[h], values.row(0) + h * head, values.stride);
            to_keys[h] = packed_keys(attended_keys, h, seeds ? &seed_weights : nullptr);
            if (seeds && moments)
                attend(seed_queries.row(0) + h * head, seed_queries.stride, seed_queries.rows, packed_keys(keys, h, nullptr),
                       nullptr, nullptr, 0, moment(0, h), moment(1, h), seed_weights.data(), memory);
        }
        Matrix queries, attended;
        if (!seeds) {
            // The context of a match needs the rows of all others.
            queries = layer(features, query, memory), attended = Matrix(total, width);
            for (size_t h = 0; h < heads; ++h)
                attend(queries.row(0) + h * head, queries.stride, total, to_keys[h], &to_values[h],
                       attended.row(0) + h * head, attended.stride, moment(0, h), moment(1, h), nullptr, memory);
        } else {
            queries = Matrix(PART, width);
        }

        Matrix joined(PART, 2 * width), normalized(PART, heads), enhanced(PART, width);
        for (size_t top = 0; top < total; top += PART) {
            const size_t rows = std::min(PART, total - top);
            if (seeds) {
                multiply(features.row(top), features.stride, rows, query, queries.row(0), queries.stride);
                for (size_t h = 0; h < heads; ++h)
                    attend(queries.row(0) + h * head, queries.stride, rows, to_keys[h], &to_values[h],
                           joined.row(0) + width + h * head, joined.stride, nullptr, nullptr, nullptr, memory);
            } else {
                for (size_t r = 0; r < rows; ++r) std::copy_n(attended.row(top + r), width, joined.row(r) + width);
            }
            for (size_t r = 0; r < rows; ++r) std::copy_n(features.row(top + r), width, joined.row(r));
            if (moments) {
                for (size_t r = 0; r < rows; ++r)
                    for (size_t h = 0; h < heads; ++h) {
                        const float c = moment(0, h)[top + r];
                        const float less = quadratic ? moment(1, h)[top + r] : c * c / static_cast<float>(total);
                        normalized.row(r)[h] = sigmoid(alpha[h] * SQRT2 * (c - less));
                    }
                context.run(normalized.row(0), normalized.stride, rows, enhanced.row(0), enhanced.stride, memory.hidden);
                context_norm.run(enhanced.row(0), enhanced.stride, rows);
                for (size_t r = 0; r < rows; ++r) add(joined.row(r), enhanced.row(r), width);
            }
            // Whole tiles are written: into memory of the part's own, since the next rows are still needed.
            merge.run(joined.row(0), joined.stride, rows, enhanced.row(0), enhanced.stride, memory.hidden);
            norm.run(enhanced.row(0), enhanced.stride, rows);
            for (size_t r = 0; r < rows; ++r) std::copy_n(enhanced.row(r), width, features.row(top + r));
        }
    }

private:
    Settings settings;
    Packed query, key, value;
    std::vector<float> alpha;
    Mlp context, merge;
    LayerNorm context_norm, norm;

    static Matrix layer(const Matrix& x, const Packed& linear, Memory&) {
        Matrix result(x.rows, linear.columns);
        multiply(x.row(0), x.stride, x.rows, linear, result.row(0), result.stride);
        return result;
    }

    /// Moves the means of groups that have members to the front, and returns their weights.
    static Numbers used(Matrix& means, const Seeds& seeds) {
        Numbers weights;
        for (size_t g = 0; g < means.rows; ++g) {
            if (seeds.weights[g] == 0) continue;
            std::copy_n(means.row(g), means.columns, means.row(weights.size()));
            weights.push_back(seeds.weights[g]);
        }
        means.rows = weights.size();
        return weights;
    }

    Packed packed_keys(const Matrix& keys, size_t h, const Numbers* weights) const {
        const size_t head = settings.width / settings.heads;
        Packed packed(head, keys.rows);
        pack_rows(packed, keys.row(0) + h * head, keys.stride);
        if (weights)
            for (size_t g = 0; g < keys.rows; ++g) packed.bias[g] = std::log2((*weights)[g]);
        std::fill(packed.bias.begin() + static_cast<std::ptrdiff_t>(keys.rows), packed.bias.end(), HIDDEN);
        return packed;
    }
};

// ---- the geometry that believed matches agree on (ananet.networks.consensus)

using Matrix3 = std::array<std::array<double, 3>, 3>;

/// Similarity that moves weighted points to mean 0 and mean squared norm 2.
inline Matrix3 hartley(const Matrix& matches, size_t first, const std::vector<double>& weights) {
    double x = 0, y = 0, spread = 0;
    for (size_t i = 0; i < matches.rows; ++i) x += weights[i] * matches.row(i)[first], y += weights[i] * matches.row(i)[first + 1];
    for (size_t i = 0; i < matches.rows; ++i) {
        const double dx = matches.row(i)[first] - x, dy = matches.row(i)[first + 1] - y;
        spread += weights[i] * (dx * dx + dy * dy);
    }
    const double scale = std::sqrt(2 / std::max(spread, 1e-12));
    return {{{scale, 0, -scale * x}, {0, scale, -scale * y}, {0, 0, 1}}};
}

/// A unit eigenvector of the smallest eigenvalue of a symmetric matrix, by Jacobi's rotations.
template <size_t N>
std::array<double, N> smallest_eigenvector(std::array<std::array<double, N>, N> a) {
    std::array<std::array<double, N>, N> vectors{};
    for (size_t i = 0; i < N; ++i) vectors[i][i] = 1;
    for (int sweep = 0; sweep < 60; ++sweep) {
        double off = 0, all = 0;
        for (size_t i = 0; i < N; ++i)
            for (size_t j = 0; j < N; ++j) (i == j ? all : off) += a[i][j] * a[i][j];
        if (!(off > 1e-32 * all)) break;
        for (size_t p = 0; p < N; ++p)
            for (size_t q = p + 1; q < N; ++q) {
                if (a[p][q] == 0) continue;
                const double theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
                const double t = (theta < 0 ? -1 : 1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
                const double c = 1 / std::sqrt(t * t + 1), s = t * c;
                for (size_t k = 0; k < N; ++k) {
                    const double x = a[k][p], y = a[k][q];
                    a[k][p] = c * x - s * y, a[k][q] = s * x + c * y;
                }
                for (size_t k = 0; k < N; ++k) {
                    const double x = a[p][k], y = a[q][k];
                    a[p][k] = c * x - s * y, a[q][k] = s * x + c * y;
                    const double u = vectors[k][p], v = vectors[k][q];
                    vectors[k][p] = c * u - s * v, vectors[k][q] = s * u + c * v;
                }
            }
    }
    size_t least = 0;
    for (size_t i = 1; i < N; ++i)
        if (a[i][i] < a[least][least]) least = i;
    std::array<double, N> result;
    for (size_t i = 0; i < N; ++i) result[i] = vectors[i][least];
    return result;
}

/// [N] squared symmetric epipolar distance, at most 1, to a robust weighted eight-point solution.
inline std::vector<float> distance_to_consensus(const Matrix& matches, const std::vector<double>& belief) {
    const size_t total = matches.rows;
    std::vector<double> prior(total), weights(total);
    double all = 0;
    for (size_t i = 0; i < total; ++i) {
        const double square = belief[i] * belief[i], fourth = square * square;
        all += prior[i] = fourth * fourth + MIN_WEIGHT * (belief[i] > 0);
    }
    for (size_t i = 0; i < total; ++i) weights[i] = prior[i] / std::max(all, MIN_WEIGHT);
    const Matrix3 T0 = hartley(matches, 0, weights), T1 = hartley(matches, 2, weights);

    // The equation of a match is the outer product of its points p1 and p0, so the normal matrix holds sums of products
    // of two numbers of p1 and two of p0: 6 x 6 different ones.
    constexpr int PAIRS[3][3] = {{0, 1, 2}, {1, 3, 4}, {2, 4, 5}};
    auto solve = [&] {
        double sums[6][8] = {};
        for (size_t i = 0; i < total; ++i) {
            const float* m = matches.row(i);
            const double x0 = T0[0][0] * m[0] + T0[0][2], y0 = T0[1][1] * m[1] + T0[1][2];
            const double x1 = T1[0][0] * m[2] + T1[0][2], y1 = T1[1][1] * m[3] + T1[1][2], w = weights[i];
            const double first[8] = {x0 * x0, x0 * y0, x0, y0 * y0, y0, 1, 0, 0};
            const double second[6] = {w * x1 * x1, w * x1 * y1, w * x1, w * y1 * y1, w * y1, w};
            for (int r = 0; r < 6; ++r)
                for (int c = 0; c < 8; ++c) sums[r][c] += second[r] * first[c];
        }
        std::array<std::array<double, 9>, 9> normal{};
        for (int r = 0; r < 9; ++r)
            for (int c = 0; c < 9; ++c) normal[r][c] = sums[PAIRS[r / 3][c / 3]][PAIRS[r % 3][c % 3]];
        double trace = 0;
        for (int r = 0; r < 9; ++r) trace += normal[r][r];
        for (auto& row : normal)
            for (double& value : row) value /= std::max(trace, 1e-30);
        const auto v = smallest_eigenvector(normal);
        Matrix3 E{};  // T1^T V T0
        for (int r = 0; r < 3; ++r)
            for (int c = 0; c < 3; ++c)
                for (int i = 0; i < 3; ++i)
                    for (int j = 0; j < 3; ++j) E[r][c] += T1[i][r] * v[3 * i + j] * T0[j][c];
        return E;
    };
    // p1^T E p0, and the squared normal lengths of the epipolar lines in both images.
    auto residual = [&](const Matrix3& E, size_t i) {
        const float* m = matches.row(i);
        const double p0[] = {m[0], m[1], 1}, p1[] = {m[2], m[3], 1};
        double line0[3] = {}, line1[3] = {}, value = 0;
        for (int r = 0; r < 3; ++r)
            for (int c = 0; c < 3; ++c) line1[r] += E[r][c] * p0[c], line0[c] += E[r][c] * p1[r];
        for (int r = 0; r < 3; ++r) value += p1[r] * line1[r];
        return std::array<double, 3>{value, line0[0] * line0[0] + line0[1] * line0[1],
                                     line1[0] * line1[0] + line1[1] * line1[1]};
    };
    for (const double scale : SCALES) {
        const Matrix3 E = solve();
        double sum = 0;
        for (size_t i = 0; i < total; ++i) {
            const auto [value, normal0, normal1] = residual(E, i);
            const double scaled = value / scale;
            // Cauchy's weight of the Sampson distance, over the gradient that turns algebraic residuals into distances.
            sum += weights[i] = prior[i] / std::max(normal0 + normal1 + scaled * scaled, TINY);
        }
        for (double& weight : weights) weight /= std::max(sum, TINY);
    }
    const Matrix3 E = solve();
    const double least = 16 * std::sqrt(TINY);
    std::vector<float> distance(total);
    for (size_t i = 0; i < total; ++i) {
        const auto [value, normal0, normal1] = residual(E, i);
        const double squared = value * value * (1 / std::max(normal0, least) + 1 / std::max(normal1, least));
        distance[i] = static_cast<float>(std::min(squared, 1.0));
    }
    return distance;
}

/// Tells features how far their matches lie from the geometry of the matches that are believed so far.
class Feedback {
public:
    Feedback(Weights& weights, size_t width)
        : head(weights.linear("feedback.head", 1, width)), encoder(weights.mlp("feedback.encoder", {2, 16, 32, width})) {
        direction.assign(head.weight.begin(), head.weight.end());
    }

    void run(Matrix& features, const Matrix& matches, Memory& memory) const {
        std::vector<double> belief(features.rows);
        for (size_t i = 0; i < features.rows; ++i)
            belief[i] = sigmoid(dot(features.row(i), direction.data(), direction.size()) + static_cast<float>(head.bias[0]));
        const std::vector<float> distance = distance_to_consensus(matches, belief);
        Matrix shown(PART, 2), told(PART, features.columns);
        for (size_t top = 0; top < features.rows; top += PART) {
            const size_t rows = std::min(PART, features.rows - top);
            for (size_t r = 0; r < rows; ++r) {
                const float d = distance[top + r];
                shown.row(r)[0] = (std::log10(std::clamp(d, 1e-8F, 1.0F)) + 4) / 2;
                shown.row(r)[1] = std::exp(-d / INLIER_DISTANCE);
            }
            encoder.run(shown.row(0), shown.stride, rows, told.row(0), told.stride, memory.hidden);
            for (size_t r = 0; r < rows; ++r) add(features.row(top + r), told.row(r), features.columns);
        }
    }

private:
    Plain head;
    Numbers direction;
    Mlp encoder;
};

// ---- the network

class Network {
public:
    Settings settings;

    Network(const Safetensors& file, const std::string& name) {
        const auto found = file.metadata.find("settings");
        if (found == file.metadata.end()) refuse(name + ": expected weights of ananet, got a file without settings");
        settings = Settings::read(found->second, name);
        Weights weights(file, name);
        const size_t width = settings.width;
        encoder = weights.mlp("encoder", {4, 16, 32, 64, width, width});
        if (settings.channels()) side_encoder = weights.mlp("side_encoder", {settings.channels(), 16, 32, width});
        for (size_t n = 0; n < settings.blocks; ++n)
            blocks.emplace_back(weights, "blocks." + std::to_string(n), settings);
        if (settings.feedback) feedback.emplace(weights, width);
        head = weights.linear("head", settings.right ? 2 : 1, width);
        weights.check_all_taken();
    }

    /// [N] logits of matches [N x channels], N at least 1.
    /// @param output which of the outputs, "line" or "right".
    std::vector<float> score(const Matrix& matches, size_t seed_count, size_t output) const {
        Memory memory;
        const size_t total = matches.rows, width = settings.width;
        Matrix features(total, width), side(PART, settings.channels()), told(PART, width);
        for (size_t top = 0; top < total; top += PART) {
            const size_t rows = std::min(PART, total - top);
            encoder.run(matches.row(top), matches.stride, rows, features.row(top), features.stride, memory.hidden);
            if (!settings.channels()) continue;
            for (size_t r = 0; r < rows; ++r) std::copy_n(matches.row(top + r) + 4, side.columns, side.row(r));
            side_encoder.run(side.row(0), side.stride, rows, told.row(0), told.stride, memory.hidden);
            for (size_t r = 0; r < rows; ++r) add(features.row(top + r), told.row(r), width);
        }
        std::optional<Seeds> seeds;
        if (seed_count) seeds = first_seeds(matches, seed_count);
        for (size_t n = 0; n < blocks.size(); ++n) {
            if (feedback && n + 1 == blocks.size()) feedback->run(features, matches, memory);
            if (seeds) move_seeds(*seeds, features, n == 0 ? FIRST_STEPS : 1, memory.map);
            blocks[n].run(features, seeds ? &*seeds : nullptr, memory);
        }
        const Numbers direction(head.weight.begin() + static_cast<std::ptrdiff_t>(output * width),
                                head.weight.begin() + static_cast<std::ptrdiff_t>((output + 1) * width));
        std::vector<float> logits(total);
        for (size_t i = 0; i < total; ++i)
            logits[i] = dot(features.row(i), direction.data(), width) + static_cast<float>(head.bias[output]);
        return logits;
    }

private:
    Mlp encoder, side_encoder;
    std::vector<Block> blocks;
    std::optional<Feedback> feedback;
    Plain head;
};

// ---- input (ananet.core.correspondences, ananet.networks.input)

template <typename T, typename Wrong>
void check_each(const std::string& name, const std::vector<T>& values, size_t count, const char* expected, Wrong wrong) {
    if (values.empty()) return;
    if (values.size() != count)
        refuse(name + ": expected " + std::to_string(count) + " values, one for each match, got " +
               std::to_string(values.size()));
    for (size_t i = 0; i < count; ++i)
        if (wrong(values[i])) refuse(name + ": expected " + expected + ", got " + text(values[i]) + " in row " + std::to_string(i));
}

inline void check_points(const std::string& name, const std::vector<Point>& points) {
    for (size_t i = 0; i < points.size(); ++i)
        if (!std::isfinite(points[i].x) || !std::isfinite(points[i].y))
            refuse(name + ": expected finite numbers, got NaN or infinity in row " + std::to_string(i));
}

inline void check_camera(const std::string& name, const std::optional<Camera>& K) {
    if (!K) return;
    for (const double value : {K->fx, K->fy, K->cx, K->cy, K->skew})
        if (!std::isfinite(value)) refuse(name + ": expected finite numbers, got NaN or infinity");
    if (!(K->fx > 0 && K->fy > 0))
        refuse(name + ": expected positive focal lengths, got fx=" + text(K->fx) + ", fy=" + text(K->fy));
}

inline void check_size(const std::string& name, const std::optional<Size>& size) {
    if (size && !(size->width > 0 && size->height > 0 && std::isfinite(size->width) && std::isfinite(size->height)))
        refuse(name + ": expected (width, height) in pixels, got (" + text(size->width) + ", " + text(size->height) + ")");
}

inline void check_both(const std::string& name, bool first, bool second) {
    if (first != second) refuse(name + "0 and " + name + "1: expected both or neither, " + name + (first ? "1" : "0") + " is missing");
}

inline void check(const Matches& matches) {
    const size_t count = matches.points0.size();
    if (matches.points1.size() != count)
        refuse("points0 and points1: expected the same number of rows, got " + std::to_string(count) + " and " +
               std::to_string(matches.points1.size()));
    check_points("points0", matches.points0);
    check_points("points1", matches.points1);
    check_both("K", matches.K0.has_value(), matches.K1.has_value());
    check_both("image_size", matches.image_size0.has_value(), matches.image_size1.has_value());
    check_both("keypoint_sizes", !matches.keypoint_sizes0.empty(), !matches.keypoint_sizes1.empty());
    check_both("angles", !matches.angles0.empty(), !matches.angles1.empty());
    check_camera("K0", matches.K0);
    check_camera("K1", matches.K1);
    check_size("image_size0", matches.image_size0);
    check_size("image_size1", matches.image_size1);
    check_each("ratio", matches.ratio, count, "values in [0, 1]", [](float x) { return !(x >= 0 && x <= 1); });
    check_each("mutual", matches.mutual, count, "0 or 1", [](int x) { return x > 1; });
    const auto no_size = [](float x) { return !(x > 0 && std::isfinite(x)); };
    check_each("keypoint_sizes0", matches.keypoint_sizes0, count, "positive numbers of pixels", no_size);
    check_each("keypoint_sizes1", matches.keypoint_sizes1, count, "positive numbers of pixels", no_size);
    const auto no_angle = [](float x) { return !(std::abs(x) <= MAX_ANGLE); };
    check_each("angles0", matches.angles0, count, "radians from -2 pi to 2 pi", no_angle);
    check_each("angles1", matches.angles1, count, "radians from -2 pi to 2 pi", no_angle);
    if (count && !matches.K0 && !matches.image_size0)
        refuse("expected camera matrices (K0, K1) or image sizes (image_size0, image_size1), got neither");
}

/// Stands in for a camera where only the image size is known.
inline Camera camera(const std::optional<Camera>& K, const std::optional<Size>& size) {
    if (K) return *K;
    const double focal = FOCAL_GUESS * std::max(size->width, size->height);
    return {focal, focal, size->width / 2, size->height / 2, 0};
}

inline std::pair<float, float> normalized(const Point& point, const Camera& K) {
    const double y = (point.y - K.cy) / K.fy, x = (point.x - K.cx - K.skew * y) / K.fx;
    return {static_cast<float>(x), static_cast<float>(y)};
}

inline bool within_view(const Point& point, float x, float y, const std::optional<Size>& size) {
    if (!(std::abs(x) <= MAX_COORDINATE && std::abs(y) <= MAX_COORDINATE)) return false;
    if (!size) return true;
    const double margin = MAX_MARGIN * std::max(size->width, size->height);
    return point.x >= -margin && point.x <= size->width + margin && point.y >= -margin && point.y <= size->height + margin;
}

/// The channels of side input of match i; 0 where something is not known.
inline void side_input(const Matches& matches, size_t i, const std::vector<std::string>& side, float focal0, float focal1, float* to) {
    for (const std::string& name : side) {
        if (name == "ratio") {
            *to++ = matches.ratio.empty() ? 0 : 1 - matches.ratio[i];
        } else if (name == "mutual") {
            *to++ = matches.mutual.empty() ? 0 : matches.mutual[i] * 2.0F - 1;
        } else if (name == "size" && !matches.keypoint_sizes0.empty()) {
            const float log0 = std::log2(matches.keypoint_sizes0[i] / focal0), log1 = std::log2(matches.keypoint_sizes1[i] / focal1);
            *to++ = std::clamp(log1 - log0, -MAX_LOG_SIZE, MAX_LOG_SIZE);
            *to++ = std::clamp(std::max(log0, log1) - USUAL_LOG_SIZE, -MAX_LOG_SIZE, MAX_LOG_SIZE);
        } else if (name == "angle" && !matches.angles0.empty()) {
            const float turn = matches.angles1[i] - matches.angles0[i];
            *to++ = std::cos(turn), *to++ = std::sin(turn);
        } else {
            *to++ = 0, *to++ = 0;
        }
    }
}

// ---- conflicting matches (ananet.core.conflicts)

/// Lowers the logit of every match that shares a point with a better one and lies apart from it in the other image.
inline void penalize_conflicts(std::vector<float>& logits, const Matrix& matches, double odds) {
    if (odds == 1) return;
    const float doubt = static_cast<float>(std::min(std::log(odds), MAX_DOUBT));
    const size_t total = matches.rows;
    std::vector<size_t> order(total);
    std::vector<bool> outdone(total);
    for (const size_t here : {size_t{0}, size_t{2}}) {
        const size_t there = 2 - here;
        std::iota(order.begin(), order.end(), size_t{0});
        // Matches of one point follow each other, the best first.
        std::sort(order.begin(), order.end(), [&](size_t i, size_t j) {
            const float *a = matches.row(i) + here, *b = matches.row(j) + here;
            if (a[0] != b[0]) return a[0] < b[0];
            if (a[1] != b[1]) return a[1] < b[1];
            return logits[i] != logits[j] ? logits[i] > logits[j] : i < j;
        });
        size_t best = 0;
        for (const size_t i : order) {
            const float *a = matches.row(i), *b = matches.row(best);
            if (a[here] != b[here] || a[here + 1] != b[here + 1]) best = i;
            const float dx = a[there] - matches.row(best)[there], dy = a[there + 1] - matches.row(best)[there + 1];
            if (std::sqrt(dx * dx + dy * dy) > APART) outdone[i] = true;
        }
    }
    for (size_t i = 0; i < total; ++i)
        if (outdone[i]) logits[i] -= doubt;
}

}  // namespace detail

// ---- the pruner

/// A trained network that scores matches, as `ananet.load(name, device="cpu")` gives it.
class Pruner {
public:
    /// A weight file of the Python package: ananet, ananet-small, or any that `ananet.networks.save_network` wrote.
    static Pruner from_file(const std::string& path, const Options& options = {}) {
        const std::string bytes = detail::read_file(path);
        return Pruner(bytes.data(), bytes.size(), options, path);
    }

    /// The same bytes, from anywhere.
    static Pruner from_memory(const void* data, std::size_t size, const Options& options = {}) {
        return Pruner(static_cast<const char*>(data), size, options, "weights");
    }

    /// What the network reads beside points, some of ratio, mutual, size, angle; each may be missing.
    const std::vector<std::string>& side() const { return network.settings.side; }

    Pruned operator()(const Matches& matches) const {
        detail::check(matches);
        const std::size_t total = matches.points0.size();
        Pruned result;
        const float decision = static_cast<float>(decision_);
        result.logits.assign(total, static_cast<float>(std::min(-detail::MAX_LOGIT, decision_)));
        std::vector<std::size_t> seen;
        const detail::Matrix input = total ? visible(matches, seen) : detail::Matrix();
        if (!seen.empty()) {
            std::vector<float> logits = network.score(input, seeds, output);
            detail::penalize_conflicts(logits, input, conflict_odds);
            for (std::size_t i = 0; i < seen.size(); ++i)
                result.logits[seen[i]] = std::isnan(logits[i]) ? decision : logits[i];
        }
        result.mask.resize(total);
        result.scores.resize(total);
        for (std::size_t i = 0; i < total; ++i) {
            result.mask[i] = result.logits[i] > decision;
            // A sigmoid reaches 1 in single precision; a probability should not.
            result.scores[i] = std::min(detail::sigmoid(result.logits[i]), 1 - 5.9604645e-8F);
        }
        return result;
    }

private:
    detail::Network network;
    double decision_ = 0, conflict_odds = 1;
    std::size_t seeds = 0, output = 0;

    Pruner(const char* data, std::size_t size, const Options& options, const std::string& name)
        : network(detail::Safetensors(data, size, name), name), conflict_odds(options.conflict_odds) {
        const double p = options.threshold;
        if (!(p > 0 && p < 1)) detail::refuse("threshold: expected a probability between 0 and 1, got " + detail::text(p));
        if (!(conflict_odds >= 1))
            detail::refuse("conflict_odds: expected a number of at least 1, got " + detail::text(conflict_odds));
        decision_ = std::log(p / (1 - p));
        seeds = options.seeds.value_or(network.settings.seeds);
        const bool right = network.settings.right;
        const std::string& label = options.label;
        if (!label.empty() && label != "line" && !(right && label == "right"))
            detail::refuse("label: expected line" + std::string(right ? " or right" : "") + " of these weights, got " + label);
        output = right && label != "line";
    }

    /// Normalised matches that may be seen in both images, with their side input; `seen` are their numbers.
    ///
    /// Attention looks at all matches, so one far outside the training data would spoil the results of the others.
    detail::Matrix visible(const Matches& matches, std::vector<std::size_t>& seen) const {
        const Camera K0 = detail::camera(matches.K0, matches.image_size0);
        const Camera K1 = detail::camera(matches.K1, matches.image_size1);
        const float focal0 = static_cast<float>((K0.fx + K0.fy) / 2), focal1 = static_cast<float>((K1.fx + K1.fy) / 2);
        detail::Matrix input(matches.points0.size(), 4 + network.settings.channels());
        for (std::size_t i = 0; i < matches.points0.size(); ++i) {
            const auto [x0, y0] = detail::normalized(matches.points0[i], K0);
            const auto [x1, y1] = detail::normalized(matches.points1[i], K1);
            if (!detail::within_view(matches.points0[i], x0, y0, matches.image_size0) ||
                !detail::within_view(matches.points1[i], x1, y1, matches.image_size1))
                continue;
            float* row = input.row(seen.size());
            // Adding 0 makes -0 and 0 the same.
            row[0] = x0 + 0.0F, row[1] = y0 + 0.0F, row[2] = x1 + 0.0F, row[3] = y1 + 0.0F;
            detail::side_input(matches, i, network.settings.side, focal0, focal1, row + 4);
            seen.push_back(i);
        }
        input.rows = seen.size();
        return input;
    }
};

}  // namespace ananet
