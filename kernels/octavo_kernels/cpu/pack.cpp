#include "pack.hpp"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "blocks.hpp"
#include "pack_quantised.hpp"

namespace octavo {

namespace {

bool is_float(const std::string& source) { return source == "F32" || source == "F16" || source == "BF16"; }

struct Job {
    const Kernels& kernels;
    const std::string& source;
    bool floats;
    WeightKind kind;
    const std::vector<Plane>* planes;
    std::size_t n, k;
    bool gate_up;
    std::uint8_t* out;
};

// The source of a packed output feature, or null for padding.
const std::uint8_t* source_row(const Job& job, std::size_t feature) {
    const std::vector<Plane>& planes = *job.planes;
    if (job.gate_up) {
        const Plane& plane = planes[feature % PANEL / 16];
        const std::size_t row = feature / PANEL * 16 + feature % 16;
        return row < plane.rows ? plane.data + row * plane.row_bytes : nullptr;
    }
    for (const Plane& plane : planes) {
        if (feature < plane.rows) return plane.data + feature * plane.row_bytes;
        feature -= plane.rows;
    }
    return nullptr;
}

// Groups of 4 bits, as the source has them.
void pack_nibbles(const Job& job, std::size_t panel) {
    const GroupReader read = group_reader(job.source);
    FourBitPanel packed(job.k / GROUP, job.out + panel * packed_bytes(U4, PANEL, job.k));
    for (std::size_t feature = 0; feature < PANEL; ++feature) {
        const std::uint8_t* row = source_row(job, panel * PANEL + feature);
        if (row == nullptr) continue;
        for (std::size_t g = 0; g < job.k / GROUP; ++g) {
            const GroupCode code = read(row, g);
            packed.set_group(g, feature, code.quants, code.scale[0], code.minimum[0]);
        }
    }
    packed.finish();
}

// Values to 4 or 8 bits; zero where there is no source.
void quantise_panel(const Job& job, std::size_t panel) {
    std::vector<float> values(PANEL * job.k);
    for (std::size_t feature = 0; feature < PANEL; ++feature) {
        const std::uint8_t* row = source_row(job, panel * PANEL + feature);
        if (row != nullptr) read_floats(job.source, row, job.k, values.data() + feature * job.k);
    }
    std::uint8_t* out = job.out + panel * packed_bytes(job.kind, PANEL, job.k);
    if (job.kind == U8) return pack_eight_bits(values.data(), job.k, out);
    const std::size_t groups = job.k / GROUP, bytes = NIBBLE_BYTES + PANEL * 4;
    std::vector<std::uint8_t> records(groups * bytes);
    job.kernels.quantize_weights(values.data(), static_cast<int>(job.k), records.data());
    FourBitPanel packed(groups, out);
    for (std::size_t g = 0; g < groups; ++g) packed.take_record(g, records.data() + g * bytes);
    packed.finish();
}

void pack_float_panel(const Job& job, std::size_t panel) {
    const bool bf16 = job.kind == BF16;
    const std::size_t width = bf16 ? (job.k + 1) / 2 * 2 : job.k;
    std::uint8_t* out = job.out + panel * width * PANEL * (bf16 ? 2 : 4);
    std::memset(out, 0, width * PANEL * (bf16 ? 2 : 4));
    std::vector<float> values(job.k);
    for (std::size_t feature = 0; feature < PANEL; ++feature) {
        const std::uint8_t* row = source_row(job, panel * PANEL + feature);
        if (row == nullptr) continue;
        read_floats(job.source, row, job.k, values.data());
        for (std::size_t i = 0; i < job.k; ++i) {
            if (bf16) {
                const std::uint16_t bits = float_to_bf16(values[i]);
                std::memcpy(out + ((i / 2 * PANEL + feature) * 2 + i % 2) * 2, &bits, 2);
            } else {
                std::memcpy(out + (i * PANEL + feature) * 4, &values[i], 4);
            }
        }
    }
}

}  // namespace

std::size_t packed_bytes(WeightKind kind, std::size_t n, std::size_t k) {
    const std::size_t panels = (n + PANEL - 1) / PANEL;
    if (kind == F32) return panels * k * PANEL * 4;
    if (kind == BF16) return panels * ((k + 1) / 2) * PANEL * 4;
    return panels * panel_bytes(kind, k / GROUP);
}

WeightKind choose_packing(const std::string& source, const std::string& target) {
    const std::string wanted = target.empty() ? source : target;
    if (is_float(source) || wanted == source) {
        if (wanted == "F32") return F32;
        if (wanted == "BF16") return BF16;
        if (wanted == "INT4" || wanted == "Q4_0" || wanted == "Q4_1" || wanted == "Q4_K") return U4;
        for (const char* eight : {"INT8", "Q5_0", "Q5_1", "Q6_K", "Q8_0"})
            if (wanted == eight) return U8;
    }
    throw std::invalid_argument(
        "Weights of kind " + source + " cannot be packed" + (target.empty() ? "" : " as " + target) +
        "; use F32, F16 or BF16 with a target of F32, BF16, INT8 or INT4, or one of Q8_0, Q4_0, Q4_1, "
        "Q5_0, Q5_1, Q4_K, Q6_K without one.");
}

void pack(const Kernels& kernels, const Parallel& parallel, const std::string& source, WeightKind kind,
          const std::vector<Plane>& planes, std::size_t k, bool gate_up, std::uint8_t* out) {
    std::size_t n = 0;
    for (const Plane& plane : planes) n += plane.rows;
    // Gate and up are padded to whole sixteens each.
    if (gate_up) n = (planes[0].rows + 15) / 16 * PANEL;
    Job job{kernels, source, is_float(source), kind, &planes, n, k, gate_up, out};
    auto call = [](void* pointer, int panel, int) {
        const Job& all = *static_cast<const Job*>(pointer);
        const auto at = static_cast<std::size_t>(panel);
        if (all.kind == F32 || all.kind == BF16) {
            pack_float_panel(all, at);
        } else if (all.kind == U4 && !all.floats) {
            pack_nibbles(all, at);
        } else {
            quantise_panel(all, at);
        }
    };
    parallel.run(parallel.pool, call, &job, static_cast<int>((n + PANEL - 1) / PANEL));
}

}  // namespace octavo
