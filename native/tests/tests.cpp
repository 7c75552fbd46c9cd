// Tests of ananet.hpp: what Python stored, the layers against plain loops, wrong input, broken files, threads.
//
//     python tools/export_packages.py                     # stores answers in build/packages/answers
//     tests build/packages/answers [--most N]             # leaves out cases with more than N matches
#include "../ananet.hpp"

#include <cstring>
#include <functional>
#include <iostream>
#include <random>
#include <thread>

namespace {

using ananet::detail::Json;
using ananet::detail::Safetensors;
using ananet::detail::size_t;

int failures = 0;

void expect(bool right, const std::string& what) {
    if (right) return;
    ++failures;
    std::cerr << "FAILED: " << what << "\n";
}

template <typename... Parts>
std::string join(Parts... parts) {
    std::string result;
    for (const std::string& part : {std::string(parts)...}) result += part;
    return result;
}

// ---- stored answers

std::string folder;

Safetensors stored(const std::string& name) {
    const std::string bytes = ananet::detail::read_file(folder + "/" + name);
    return Safetensors(bytes.data(), bytes.size(), name);
}

ananet::Matches matches_of(const Safetensors& file, const std::vector<Json>& given) {
    ananet::Matches matches;
    for (const Json& one : given) {
        const std::string& name = one.text;
        const std::vector<float>& x = file.tensors.at(name).numbers;
        const auto points = [&](std::vector<ananet::Point>& to) {
            for (size_t i = 0; i < x.size(); i += 2) to.push_back({x[i], x[i + 1]});
        };
        const auto camera = [&] { return ananet::Camera{x[0], x[4], x[2], x[5], x[1]}; };
        if (name == "points0") points(matches.points0);
        if (name == "points1") points(matches.points1);
        if (name == "K0") matches.K0 = camera();
        if (name == "K1") matches.K1 = camera();
        if (name == "image_size0") matches.image_size0 = {x[0], x[1]};
        if (name == "image_size1") matches.image_size1 = {x[0], x[1]};
        if (name == "ratio") matches.ratio = x;
        if (name == "mutual") matches.mutual.assign(x.begin(), x.end());
        if (name == "keypoint_sizes0") matches.keypoint_sizes0 = x;
        if (name == "keypoint_sizes1") matches.keypoint_sizes1 = x;
        if (name == "angles0") matches.angles0 = x;
        if (name == "angles1") matches.angles1 = x;
    }
    return matches;
}

// Scores may differ so much, or this many times as much as Python's differ from double precision; masks may where scores
// are so near the threshold.
constexpr double TOLERANCE = 2e-4, TIMES = 5;
// Where a match is as near to one group as to another, rounding decides, and all scores change a little.
constexpr double GROUPED_MEAN = 0.02, GROUPED_SHARE = 0.01;

void check_answers(double most) {
    const Json index = ananet::detail::read_json(ananet::detail::read_file(folder + "/index.json"), "index.json");
    const Safetensors answers = stored("answers.safetensors");
    int cases = 0;
    double largest = 0;
    for (const Json& each : index.list) {
        const auto number = [&](const char* name) { return each.object.at(name).number; };
        const auto flag = [&](const char* name) { return each.object.at(name).boolean; };
        const double count = number("count");
        if (count > most) continue;
        ananet::Options options;
        options.threshold = number("threshold");
        options.conflict_odds = number("conflict_odds");
        options.label = each.object.at("label").text;
        if (each.object.at("seeds").kind == Json::Kind::number) options.seeds = static_cast<size_t>(number("seeds"));
        const std::string& weights = each.object.at("weights").text;
        const auto pruner = ananet::Pruner::from_file(folder + "/" + weights + ".safetensors", options);
        const auto file = stored("matches-" + std::to_string(static_cast<int>(count)) + ".safetensors");
        const ananet::Pruned found = pruner(matches_of(file, each.object.at("given").list));

        const std::string& key = each.object.at("answer").text;
        const std::vector<float>& logits = answers.tensors.at(key).numbers;
        const size_t total = logits.size();
        const std::string what = join("case ", key, ", ", weights, ", ", std::to_string(total), " matches");
        expect(found.mask.size() == total && found.scores.size() == total, what + ": sizes");
        const double tolerance = std::max(TOLERANCE, TIMES * number("rounding"));
        double worst = 0, mean = 0;
        size_t wrong = 0;
        for (size_t i = 0; i < total; ++i) {
            const double score = 1 / (1 + std::exp(-static_cast<double>(logits[i])));
            const double difference = std::abs(static_cast<double>(found.scores[i]) - score);
            expect(difference <= 1, what + ": a score is no number");
            worst = std::max(worst, difference);
            mean += difference / static_cast<double>(total);
            const bool borderline = std::abs(score - options.threshold) <= tolerance;
            wrong += (score > options.threshold) != found.mask[i] && !borderline;
        }
        ++cases;
        if (std::getenv("ANANET_VERBOSE"))
            std::cerr << what << (flag("grouped") ? ", grouped" : "") << ": worst " << worst << ", mean " << mean << ", "
                      << wrong << " decisions, Python's rounding " << number("rounding") << "\n";
        if (flag("undetermined")) continue;
        if (flag("grouped")) {
            expect(mean <= GROUPED_MEAN, join(what, ": scores differ by ", std::to_string(mean), " on average"));
            expect(static_cast<double>(wrong) <= GROUPED_SHARE * static_cast<double>(total),
                   join(what, ": ", std::to_string(wrong), " decisions differ"));
            continue;
        }
        largest = std::max(largest, worst);
        expect(worst <= tolerance, join(what, ": scores differ by up to ", std::to_string(worst)));
        expect(wrong == 0, join(what, ": ", std::to_string(wrong), " decisions differ"));
    }
    expect(cases > 0, "index.json: no cases");
    std::cout << cases << " stored answers; where groups do not depend on rounding, scores differ by at most " << largest << "\n";
}

// ---- layers against plain loops

void check_layers() {
    using namespace ananet::detail;
    std::mt19937 random(0);
    std::normal_distribution<float> normal;
    for (const size_t rows : {size_t{1}, size_t{13}, size_t{96}})
        for (const size_t depth : {size_t{1}, size_t{7}, size_t{33}})
            for (const size_t columns : {size_t{1}, COLUMNS - 1, COLUMNS, 2 * COLUMNS + 3}) {
                Matrix a(rows, depth), b(columns, depth), c(rows, columns);
                for (Matrix* matrix : {&a, &b})
                    for (size_t i = 0; i < matrix->rows; ++i)
                        for (size_t k = 0; k < depth; ++k) matrix->row(i)[k] = normal(random);
                Packed packed(depth, columns);
                pack_rows(packed, b.row(0), b.stride);
                for (size_t j = 0; j < columns; ++j) packed.bias[j] = normal(random);
                multiply<true>(a.row(0), a.stride, rows, packed, c.row(0), c.stride);
                float worst = 0;
                for (size_t i = 0; i < rows; ++i)
                    for (size_t j = 0; j < columns; ++j) {
                        double exact = packed.bias[j];
                        for (size_t k = 0; k < depth; ++k) exact += static_cast<double>(a.row(i)[k]) * b.row(j)[k];
                        worst = std::max(worst, std::abs(c.row(i)[j] - static_cast<float>(std::max(exact, 0.0))));
                    }
                expect(worst < 1e-5F, join("product of ", std::to_string(rows), " x ", std::to_string(depth), " x ",
                                           std::to_string(columns), " is off by ", std::to_string(worst)));
            }
    for (float x = -130; x < 20; x += 0.37F) {
        float result[LANES];
        store(result, power_of_two(load(Numbers(LANES, x).data())));
        const float exact = std::exp2(std::max(x, MIN_EXPONENT));
        expect(std::abs(result[0] - exact) <= 4e-7F * exact, "2^x at " + text(x));
    }
    const std::pair<std::uint16_t, float> halves[] = {{0, 0.0F}, {0x3c00, 1.0F}, {0xc000, -2.0F}, {1, 5.9604645e-8F},
                                                     {0x7bff, 65504.0F}, {0x3555, 0.33325195F}};
    for (const auto& [half, value] : halves) expect(half_to_float(half) == value, "half " + text(value));
    // A matrix with known eigenvectors: Q diag(1, 2, 3) Q^T with Householder's Q.
    const double v[] = {1 / 3.0, 2 / 3.0, 2 / 3.0};
    std::array<std::array<double, 3>, 3> q{}, symmetric{};
    for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 3; ++j) q[i][j] = (i == j) - 2 * v[i] * v[j];
    for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 3; ++j)
            for (int k = 0; k < 3; ++k) symmetric[i][j] += (k + 1) * q[i][k] * q[j][k];
    const auto vector = smallest_eigenvector(symmetric);
    double along = 0;
    for (int i = 0; i < 3; ++i) along += vector[i] * q[i][0];
    expect(std::abs(std::abs(along) - 1) < 1e-12, "eigenvector");
}

// ---- wrong input

void refuses(const std::string& message, const std::function<void()>& call) {
    try {
        call();
    } catch (const ananet::InputError& error) {
        expect(std::string(error.what()).find(message) != std::string::npos, join("expected '", message, "', got '", error.what(), "'"));
        return;
    }
    expect(false, join("expected an InputError with '", message, "', got none"));
}

void check_errors() {
    const std::string small = folder + "/ananet-small.safetensors";
    const auto pruner = ananet::Pruner::from_file(small);
    expect(pruner({}).mask.empty(), "nothing is kept of nothing");
    const auto with = [&](const std::function<void(ananet::Matches&)>& change) {
        return [&pruner, change] {
            ananet::Matches matches;
            matches.points0 = matches.points1 = {{1, 2}, {3, 4}};
            matches.image_size0 = matches.image_size1 = ananet::Size{640, 480};
            change(matches);
            pruner(matches);
        };
    };
    using M = ananet::Matches&;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    with([](M) {})();
    refuses("expected the same number of rows, got 2 and 1", with([](M m) { m.points1.pop_back(); }));
    refuses("points1: expected finite numbers, got NaN or infinity in row 1", with([&](M m) { m.points1[1].y = nan; }));
    refuses("got neither", with([](M m) { m.image_size0 = m.image_size1 = {}; }));
    refuses("image_size0 and image_size1: expected both or neither, image_size1 is missing", with([](M m) { m.image_size1 = {}; }));
    refuses("K0 and K1: expected both or neither, K0 is missing", with([](M m) { m.K1 = ananet::Camera{500, 500, 320, 240}; }));
    refuses("K0: expected positive focal lengths, got fx=-5", with([](M m) { m.K0 = m.K1 = ananet::Camera{-5, 5, 0, 0}; }));
    refuses("image_size0: expected (width, height) in pixels, got (0, 480)", with([](M m) { m.image_size0->width = 0; }));
    refuses("ratio: expected 2 values, one for each match, got 1", with([](M m) { m.ratio = {0.5F}; }));
    refuses("ratio: expected values in [0, 1], got 1.5 in row 1", with([](M m) { m.ratio = {0.5F, 1.5F}; }));
    refuses("mutual: expected 0 or 1, got 7", with([](M m) { m.mutual = {1, 7}; }));
    refuses("angles1: expected radians", with([](M m) { m.angles0 = {0, 0}, m.angles1 = {0, 90}; }));
    refuses("keypoint_sizes0: expected positive", with([](M m) { m.keypoint_sizes0 = {0, 1}, m.keypoint_sizes1 = {1, 1}; }));
    refuses("keypoint_sizes0 and keypoint_sizes1: expected both", with([](M m) { m.keypoint_sizes0 = {1, 1}; }));
    const auto load = [&](const std::function<void(ananet::Options&)>& change) {
        return [&small, change] {
            ananet::Options options;
            change(options);
            ananet::Pruner::from_file(small, options);
        };
    };
    using O = ananet::Options&;
    refuses("threshold: expected a probability between 0 and 1, got 1", load([](O o) { o.threshold = 1; }));
    refuses("conflict_odds: expected a number of at least 1, got 0.5", load([](O o) { o.conflict_odds = 0.5; }));
    refuses("label: expected line or right of these weights, got wrong", load([](O o) { o.label = "wrong"; }));
    refuses("weights: no file nowhere", [] { ananet::Pruner::from_file("nowhere"); });
}

// ---- files that are not what they should be

void check_files() {
    const std::string whole = ananet::detail::read_file(folder + "/random-first-order.safetensors");
    const auto load = [](const std::string& bytes) { return [bytes] { ananet::Pruner::from_memory(bytes.data(), bytes.size()); }; };
    const auto with = [&](const std::string& from, const std::string& to) {
        std::string bytes = whole;
        const size_t at = bytes.find(from);
        expect(at != std::string::npos && from.size() == to.size(), "the header holds " + from);
        return load(bytes.replace(at, from.size(), to));
    };
    refuses("expected a safetensors file, got 3 bytes", load("abc"));
    refuses("a header longer than the file", load(whole.substr(0, 50)));
    refuses("expected JSON", with("{\"", "[\""));
    refuses("expected the network ananet, got ananot", with("\\\"ananet\\\"", "\\\"ananot\\\""));
    refuses("got no such tensor", with("\"head.bias\"", "\"head.bies\""));
    refuses("expected numbers of type F16 or F32, got F64", with("F32", "F64"));
    refuses("expected settings that this version knows, got widht", with("\\\"width\\\"", "\\\"widht\\\""));
    refuses("expected a multiple of heads", with("\\\"heads\\\": 2", "\\\"heads\\\": 3"));
    refuses("expected a whole number from 1 to 100, got 0", with("\\\"blocks\\\": 1", "\\\"blocks\\\": 0"));
    refuses("expected linear or quadratic, got linea_",
            [&] {
                std::string bytes = whole;
                const std::string off = "\\\"second_order\\\": false", on = "\\\"second_order\\\":  true";
                bytes.replace(bytes.find(off), off.size(), on);
                const size_t form = bytes.find("\\\"linear\\\"");
                bytes.replace(form + 7, 1, "_");
                load(bytes)();
            });
    // Whatever is cut off or changed in the header, there is an InputError or a pruner, and nothing else.
    std::mt19937 random(0);
    std::uint64_t header = 0;
    for (int i = 7; i >= 0; --i) header = header << 8 | static_cast<unsigned char>(whole[static_cast<size_t>(i)]);
    for (int i = 0; i < 2000; ++i) {
        std::string bytes = whole;
        if (i % 4 == 0) bytes.resize(random() % bytes.size());
        for (size_t n = 0; n < 1 + random() % 3 && !bytes.empty(); ++n)
            bytes[random() % std::min(bytes.size(), static_cast<size_t>(8 + header))] = static_cast<char>(random());
        try {
            ananet::Pruner::from_memory(bytes.data(), bytes.size());
        } catch (const ananet::InputError&) {
        }
    }
}

// ---- one pruner, many threads

void check_threads() {
    const auto pruner = ananet::Pruner::from_file(folder + "/ananet-small.safetensors");
    std::vector<Json> given(4);
    const char* names[] = {"points0", "points1", "image_size0", "image_size1"};
    for (size_t i = 0; i < 4; ++i) given[i].text = names[i];
    const ananet::Matches matches = matches_of(stored("matches-100.safetensors"), given);
    const ananet::Pruned alone = pruner(matches);
    std::vector<ananet::Pruned> found(4);
    std::vector<std::thread> threads;
    for (ananet::Pruned& one : found) threads.emplace_back([&] { one = pruner(matches); });
    for (std::thread& thread : threads) thread.join();
    for (const ananet::Pruned& one : found) expect(one.logits == alone.logits, "threads get the same answers");
    const auto order = alone.indices();
    for (size_t i = 0; i < order.size(); ++i) {
        expect(alone.mask[order[i]], "indices are of kept matches");
        expect(i == 0 || alone.logits[order[i - 1]] >= alone.logits[order[i]], "indices come best first");
    }
}

}  // namespace

int main(int count, char** words) {
    if (count < 2) {
        std::cerr << "expected the folder of stored answers (python tools/export_packages.py)\n";
        return 2;
    }
    folder = words[1];
    const bool limited = count > 3 && std::string(words[2]) == "--most";
    check_layers();
    check_errors();
    check_files();
    check_threads();
    check_answers(limited ? std::atof(words[3]) : INFINITY);
    std::cout << (failures ? std::to_string(failures) + " failures" : "all passed") << "\n";
    return failures ? 1 : 0;
}
