// The product of 16 rows of a matrix with up to 8 * NT columns (rows of activations), by one warp.
#pragma once
#include "blocks.cuh"

#ifndef NT
#define NT 1  // tiles of 8 activation rows: 1, 2 or 4
#endif
#ifndef TYPES
#define TYPES (1 << 12)  // bit i: the matrices may have ggml's type i; fewer types need fewer registers
#endif
#ifndef STAGED
#define STAGED 1  // 0: weights are too wide for the shared memory of this card and read where they lie
#endif
constexpr int COLUMNS = 8 * NT;
constexpr int FLOATS = 1 << F32 | 1 << F16 | 1 << BF16;
__device__ __forceinline__ bool is_float(int type) { return FLOATS >> type & 1; }

// Calls `visit` with the type as a compile-time number; no question is asked where TYPES leaves one.
template <int TYPE> struct Constant {
    static constexpr int value = TYPE;
};
template <int FROM = 0, class Visit> __device__ __forceinline__ void with_type(int type, Visit visit) {
    if constexpr (FROM < 32) {
        if constexpr ((u32)TYPES >> FROM & 1) {
            if ((u32)TYPES == 1u << FROM || type == FROM) return visit(Constant<FROM>{});
        }
        with_type<FROM + 1>(type, visit);
    }
}

// Calls `visit` with the number of tiles in use, or the next that code is made for: 1, 2 or 4. What depends on it asks nothing.
template <class Visit> __device__ __forceinline__ void with_live(int live, Visit visit) {
    if (NT == 1 || live == 1) return visit(Constant<1>{});
    if (NT == 2 || live == 2) return visit(Constant<NT < 2 ? 1 : 2>{});
    visit(Constant<NT < 4 ? 1 : 4>{});
}

// Bytes of a row of k values, one of TYPES.
__device__ __forceinline__ int row_size(int type, int k) {
    int bytes = 0;
    with_type(type, [&](auto kind) { bytes = row_bytes(kind.value, k); });
    return bytes;
}

#ifndef NEIGHBOURS
#define NEIGHBOURS 0  // 1: neighbouring columns are neighbouring rows, so that their scales are read together
#endif

// Which activations stand in which column, as one lane (4g+t) needs it: the rows of columns g, 2t and 2t+1 of each tile.
struct Columns {
    int live;  // tiles of 8 columns in use
    int row[NT], row0[NT], row1[NT];
};

// `rows` lists the activation rows of the columns; those beyond `count` repeat the last.
__device__ __forceinline__ Columns columns_of(int count, const int* rows) {
    int g = lane_id() >> 2, t = lane_id() & 3;
    Columns c;
    c.live = (count + 7) / 8;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        c.row[i] = rows[min(8 * i + g, count - 1)];
        c.row0[i] = rows[min(8 * i + 2 * t, count - 1)], c.row1[i] = rows[min(8 * i + 2 * t + 1, count - 1)];
    }
    return c;
}

// Column c is row c: neighbouring columns are neighbouring rows, and the compiler knows how far tiles lie apart.
__device__ __forceinline__ Columns columns_in_order(int live) {
    int g = lane_id() >> 2, t = lane_id() & 3;
    Columns c;
    c.live = live;
#pragma unroll
    for (int i = 0; i < NT; i++) c.row[i] = 8 * i + g, c.row0[i] = 8 * i + 2 * t, c.row1[i] = 8 * i + 2 * t + 1;
    return c;
}

// Brings blocks first .. end-1 of rows 0 .. 8 * tiles - 1 near, by threads `index`, `index` + `threads`, ...: one by one, as they
// are needed, each would take as long as all of them.
__device__ __forceinline__ void warm_blocks(const Acts& x, int tiles, int k, int first, int end, int index, int threads) {
    int pieces = (end - first) * 16;  // of 16 bytes, in eight rows
    for (int i = index; i < tiles * pieces; i += threads) warm(x.q + ((size_t)(i / pieces * (k / 32)) + first) * 256 + i % pieces * 16);
}

// A lane's operand of a block of 32 activations of a row: its share, in the order that a type's fragments have.
template <bool BY16> __device__ __forceinline__ uint2 load_operand(const Acts& x, int k, int row, int block) {
    const i8* b = x.q + (size_t)block_index(row, k / 32, block) * 32;
    int t = lane_id() & 3;
    if constexpr (BY16) return {*(const u32*)(b + 4 * t), *(const u32*)(b + 16 + 4 * t)};
    return *(const uint2*)(b + 8 * t);
}

constexpr int MAGIC = 0x4b400000;  // 1.5 * 2^23: an integer added to its bits is that integer as a float
__device__ __forceinline__ float from_magic(int c) { return __int_as_float(c) - 12582912.0f; }

// acc += scale of the row * scale of the column * product of whole numbers, for the four results of a lane.
__device__ __forceinline__ void add_scaled(float (&acc)[4], const int (&c)[4], float row0, float row1, float2 column) {
    acc[0] += row0 * from_magic(c[0]) * column.x, acc[1] += row0 * from_magic(c[1]) * column.y;
    acc[2] += row1 * from_magic(c[2]) * column.x, acc[3] += row1 * from_magic(c[3]) * column.y;
}

// One block of 32 inputs of both rows with one tile of columns. `d` and `z`: (scale, scale * sum) of columns 2t, 2t+1.
template <int TYPE>
__device__ __forceinline__ void multiply_block(float (&acc)[4], float (&low)[4], const Fragment& f0, const Fragment& f1, int s,
                                               uint2 v, float2 d, float2 z) {
    using L = Lane<TYPE>;
    if constexpr (L::BY16) {
        int c[4] = {MAGIC, MAGIC, MAGIC, MAGIC}, e[4] = {MAGIC, MAGIC, MAGIC, MAGIC};
        mma_s8_k16(c, f0.words[s][0], f1.words[s][0], v.x);
        mma_s8_k16(e, f0.words[s][1], f1.words[s][1], v.y);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const Fragment& f = i < 2 ? f0 : f1;
            acc[i] += (f.scale[s][0] * from_magic(c[i]) + f.scale[s][1] * from_magic(e[i])) * (i % 2 ? d.y : d.x);
        }
    } else {
        int c[4] = {MAGIC, MAGIC, MAGIC, MAGIC};
        mma_s8_k32(c, f0.words[s][0], f1.words[s][0], f0.words[s][1], f1.words[s][1], v.x, v.y);
        add_scaled(acc, c, f0.scale[s][0], f1.scale[s][0], d);
        if constexpr (L::MIN == MIN_WORDS) {
            int e[4] = {MAGIC, MAGIC, MAGIC, MAGIC};
            mma_s8_k32(e, f0.mins[s][0], f1.mins[s][0], f0.mins[s][1], f1.mins[s][1], v.x, v.y);
            add_scaled(low, e, f0.min[s], f1.min[s], d);
        } else if constexpr (L::MIN) {
            low[0] += f0.min[s] * z.x, low[1] += f0.min[s] * z.y, low[2] += f1.min[s] * z.x, low[3] += f1.min[s] * z.y;
        }
    }
}

// A block's own scale and minimum, where a fragment comes without them.
template <int TYPE> __device__ __forceinline__ void complete(const Lane<TYPE>& w, Fragment& f) {
    if constexpr (LATE<TYPE>)
#pragma unroll
        for (int s = 0; s < 2; s++) {
            f.scale[s][0] *= w.d, f.scale[s][1] *= w.d;
            if constexpr (Lane<TYPE>::MIN) f.min[s] *= w.m;
        }
}

// Values 256 * step ... of the two rows a lane holds, activations with a scale for every block.
template <int TYPE, int LIVE>
__device__ __forceinline__ void multiply_step(float (&acc)[NT][4], const u8* row0, const u8* row1, int step, int k,
                                              const Acts& x, const Columns& columns) {
    constexpr bool AFTER = LATE<TYPE> && LIVE == 1;  // few columns: the block's scale goes to the sums, not to the weights
    int t = lane_id() & 3, pairs = WHOLE<TYPE> ? 4 : min(4, (k - 256 * step) / 64);
    Lane<TYPE> w0, w1;
    w0.load(row0, step, t, pairs);
    w1.load(row1, step, t, pairs);
    float sum[4] = {}, low[4] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (j >= pairs) break;
        Fragment f0, f1;
        w0.get(j, f0);
        w1.get(j, f1);
        if (!AFTER) complete<TYPE>(w0, f0), complete<TYPE>(w1, f1);
#pragma unroll
        for (int i = 0; i < LIVE; i++) {
            if (LIVE > 1 && i >= columns.live) break;  // a fence for the compiler too: it would run out of registers
            float(&to)[4] = AFTER ? sum : acc[i];
#pragma unroll
            for (int s = 0; s < 2; s++) {
                int block = 8 * step + 2 * j + s;
                float2 u = x.s[block_index(columns.row0[i], k / 32, block)], v = x.s[block_index(columns.row1[i], k / 32, block)];
                if (!AFTER) low[0] = low[1] = low[2] = low[3] = 0;
                multiply_block<TYPE>(to, low, f0, f1, s, load_operand<Lane<TYPE>::BY16>(x, k, columns.row[i], block),
                                     make_float2(u.x, v.x), make_float2(u.y, v.y));
                if (!AFTER && Lane<TYPE>::MIN) to[0] -= low[0], to[1] -= low[1], to[2] -= low[2], to[3] -= low[3];
            }
        }
    }
    if constexpr (AFTER) {
        acc[0][0] += w0.d * sum[0], acc[0][1] += w0.d * sum[1], acc[0][2] += w1.d * sum[2], acc[0][3] += w1.d * sum[3];
        if constexpr (Lane<TYPE>::MIN)
            acc[0][0] -= w0.m * low[0], acc[0][1] -= w0.m * low[1], acc[0][2] -= w1.m * low[2], acc[0][3] -= w1.m * low[3];
    }
}

// One block of 32 inputs of both rows with one tile, in whole numbers: sum += whole scale of the row * product.
template <int TYPE>
__device__ __forceinline__ void multiply_whole(int (&sum)[4], int (&low)[4], const Lane<TYPE>& w0, const Lane<TYPE>& w1, const Fragment& f0,
                                               const Fragment& f1, int s, int block, uint2 v) {
    using L = Lane<TYPE>;
    if constexpr (TYPE == Q2_K) {
        mma_s8_k32(sum, f0.words[s][0], f1.words[s][0], f0.words[s][1], f1.words[s][1], v.x, v.y);
        mma_s8_k32(low, f0.mins[s][0], f1.mins[s][0], f0.mins[s][1], f1.mins[s][1], v.x, v.y);
    } else {
#pragma unroll
        for (int h = 0; h < (L::BY16 ? 2 : 1); h++) {
            int c[4] = {}, scale0 = w0.whole(block, h), scale1 = w1.whole(block, h);
            if constexpr (L::BY16) mma_s8_k16(c, f0.words[s][h], f1.words[s][h], h ? v.y : v.x);
            else mma_s8_k32(c, f0.words[s][0], f1.words[s][0], f0.words[s][1], f1.words[s][1], v.x, v.y);
            sum[0] += scale0 * c[0], sum[1] += scale0 * c[1], sum[2] += scale1 * c[2], sum[3] += scale1 * c[3];
        }
    }
}

// Sums of the bytes of blocks: minima of one row (from pair `pair` of blocks on) times those of one column.
template <int PAIRS> __device__ __forceinline__ int multiply_minima(const u32 (&minima)[2], const u32 (&sums)[PAIRS], int pair) {
    int r = MAGIC;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        u32 word = minima[(pair + p) >> 1];
        r = (pair + p) & 1 ? __dp2a_hi((int)sums[p], (int)word, r) : __dp2a_lo((int)sums[p], (int)word, r);
    }
    return r;
}

// The sums of the bytes of 2 * PAIRS blocks of a row, two to a word.
template <int PAIRS> __device__ __forceinline__ void load_sums(u32 (&sums)[PAIRS], const Acts& x, int k, int row, int step, int pair) {
    const u32* p = (const u32*)(x.sum + (size_t)block_index(row, groups_of(k, 8), step) * 8) + pair;
    if constexpr (PAIRS == 4) {
        uint4 v = *(const uint4*)p;
        sums[0] = v.x, sums[1] = v.y, sums[2] = v.z, sums[3] = v.w;
    } else {
#pragma unroll
        for (int i = 0; i < PAIRS; i++) sums[i] = p[i];
    }
}

// The same for activations of which GRAIN blocks share a scale: whole numbers are added up where the scales of the weights
// are whole. `operand(i, block)`: the lane's activations of tile i, block 0..7 of the step.
template <int TYPE, int GRAIN, int LIVE, class Operand>
__device__ __forceinline__ void multiply_grouped(float (&acc)[NT][4], const u8* row0, const u8* row1, int step, int k, const Acts& x,
                                                 const Columns& columns, Operand operand) {
    using L = Lane<TYPE>;
    constexpr int PAIRS = GRAIN / 2;
    int t = lane_id() & 3, pairs = WHOLE<TYPE> ? 4 : min(4, (k - 256 * step) / 64);
    L w0, w1;
    w0.load(row0, step, t, pairs);
    w1.load(row1, step, t, pairs);
    int sum[LIVE][4], low[LIVE][4];
    float part[LIVE][4];  // where scales are no whole numbers
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (j >= pairs) break;
        if (j % PAIRS == 0)
#pragma unroll
            for (int i = 0; i < LIVE; i++)
#pragma unroll
                for (int c = 0; c < 4; c++) sum[i][c] = low[i][c] = 0, part[i][c] = 0;
        Fragment f0, f1;
        w0.get(j, f0);
        w1.get(j, f1);
        int group = (8 * step + 2 * j) / GRAIN;
#pragma unroll
        for (int i = 0; i < LIVE; i++) {
#pragma unroll
            for (int s = 0; s < 2; s++) {
                uint2 v = operand(i, 2 * j + s);
                if constexpr (WHOLE<TYPE>) {
                    multiply_whole<TYPE>(sum[i], low[i], w0, w1, f0, f1, s, 2 * j + s, v);
                } else {
                    int c[4] = {MAGIC, MAGIC, MAGIC, MAGIC};
                    mma_s8_k32(c, f0.words[s][0], f1.words[s][0], f0.words[s][1], f1.words[s][1], v.x, v.y);
                    const float scale[2] = {f0.scale[s][0], f1.scale[s][0]};
#pragma unroll
                    for (int e = 0; e < 4; e++) part[i][e] += scale[e / 2] * from_magic(c[e]);
                    if constexpr (L::MIN) {
                        const float min[2] = {f0.min[s], f1.min[s]};
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            int row = e % 2 ? columns.row1[i] : columns.row0[i];
                            part[i][e] -= min[e / 2] * x.sum[block_index(row, groups_of(k, 8), step) * 8 + 2 * j + s];
                        }
                    }
                }
            }
            if ((j + 1) % PAIRS != 0 && j + 1 != pairs) continue;
            int at0 = block_index(columns.row0[i], groups_of(k, GRAIN), group), at1 = block_index(columns.row1[i], groups_of(k, GRAIN), group);
            float scale[2];
            if (NEIGHBOURS) {
                float2 both = *(const float2*)(x.scale + at0);
                scale[0] = both.x, scale[1] = both.y;
            } else {
                scale[0] = x.scale[at0], scale[1] = x.scale[at1];
            }
            if constexpr (WHOLE<TYPE>) {
                float d[2] = {w0.d, w1.d};
#pragma unroll
                for (int e = 0; e < 4; e++) part[i][e] = d[e / 2] * (float)sum[i][e];
                if constexpr (L::MIN) {
                    float m[2] = {w0.m, w1.m};
                    if constexpr (L::MIN == MIN_WORDS) {
#pragma unroll
                        for (int e = 0; e < 4; e++) part[i][e] -= m[e / 2] * (float)low[i][e];
                    } else {
                        u32 sums[2][PAIRS];
                        load_sums<PAIRS>(sums[0], x, k, columns.row0[i], step, j + 1 - PAIRS);
                        load_sums<PAIRS>(sums[1], x, k, columns.row1[i], step, j + 1 - PAIRS);
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            part[i][e] -= m[e / 2] * from_magic(multiply_minima<PAIRS>((e < 2 ? w0 : w1).scales.min, sums[e % 2], j + 1 - PAIRS));
                    }
                }
            }
#pragma unroll
            for (int e = 0; e < 4; e++) acc[i][e] += scale[e % 2] * part[i][e];
        }
    }
}

// Four neighbouring values of a float row.
template <int TYPE> __device__ __forceinline__ float4 load_floats(const u8* row, int at) {
    if (TYPE == F32) return *(const float4*)(row + (size_t)at * 4);
    uint2 v = *(const uint2*)(row + (size_t)at * 2);
    u16 h[4] = {(u16)v.x, (u16)(v.x >> 16), (u16)v.y, (u16)(v.y >> 16)};
    if (TYPE == BF16) return make_float4(bf16_to_float(h[0]), bf16_to_float(h[1]), bf16_to_float(h[2]), bf16_to_float(h[3]));
    return make_float4(half_to_float(h[0]), half_to_float(h[1]), half_to_float(h[2]), half_to_float(h[3]));
}

// A float as the sum of two of 10 mantissa bits each; the rest is below 2^-21 of it.
__device__ __forceinline__ void split_float(float v, u32& high, u32& low) {
    high = __float_as_uint(v) & 0xffffe000u;
    low = __float_as_uint(v - __uint_as_float(high)) & 0xffffe000u;
}

// Float types: f32 activations, three tf32 products for one f32 product.
template <int TYPE>
__device__ __forceinline__ void multiply_step_float(float (&acc)[NT][4], const u8* row0, const u8* row1, int step, int k,
                                                    const Acts& x, const Columns& columns) {
    int t = lane_id() & 3, sixteens = min(16, (k - 256 * step) / 16);
#pragma unroll 4
    for (int j = 0; j < sixteens; j++) {
        int at = 256 * step + 16 * j + 4 * t;
        float4 v0 = load_floats<TYPE>(row0, at), v1 = load_floats<TYPE>(row1, at);
        float p0[4] = {v0.x, v0.y, v0.z, v0.w}, p1[4] = {v1.x, v1.y, v1.z, v1.w};
        u32 h0[4], l0[4], h1[4], l1[4];
#pragma unroll
        for (int e = 0; e < 4; e++) split_float(p0[e], h0[e], l0[e]), split_float(p1[e], h1[e], l1[e]);
#pragma unroll
        for (int i = 0; i < NT; i++) {
            if (i >= columns.live) break;
            float4 v = *(const float4*)(x.f + (size_t)columns.row[i] * k + at);
            float b[4] = {v.x, v.y, v.z, v.w};
            u32 hb[4], lb[4];
#pragma unroll
            for (int e = 0; e < 4; e++) split_float(b[e], hb[e], lb[e]);
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                mma_tf32_k8(acc[i], h0[e], h1[e], h0[e + 1], h1[e + 1], lb[e], lb[e + 1]);
                mma_tf32_k8(acc[i], l0[e], l1[e], l0[e + 1], l1[e + 1], hb[e], hb[e + 1]);
                mma_tf32_k8(acc[i], h0[e], h1[e], h0[e + 1], h1[e + 1], hb[e], hb[e + 1]);
            }
        }
    }
}

// Rows g and g+8 of a tile of 16, as a lane reads them.
struct Rows {
    const u8 *lower, *upper;
};

// Adds the products of steps first .. end-1 (256 inputs each) of 16 rows with the columns to acc. A lane holds c[i][0..3]:
// (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1). GRAIN blocks of the activations share a scale.
template <int TYPE, int GRAIN, int LIVE>
__device__ __forceinline__ void multiply_quantized(float (&acc)[NT][4], const Rows& rows, int k, int first, int end, const Acts& x,
                                                   const Columns& columns) {
    for (int step = first; step < end; step++) {
        if constexpr (GRAIN == 1) multiply_step<TYPE, LIVE>(acc, rows.lower, rows.upper, step, k, x, columns);
        else
            multiply_grouped<TYPE, GRAIN, LIVE>(acc, rows.lower, rows.upper, step, k, x, columns, [&](int i, int block) {
                return load_operand<Lane<TYPE>::BY16>(x, k, columns.row[i], 8 * step + block);
            });
    }
}

// The same for any type.
template <int GRAIN>
__device__ __forceinline__ void multiply_rows(float (&acc)[NT][4], int type, const Rows& rows, int k, int first, int end, const Acts& x,
                                              const Columns& columns) {
    with_type(type, [&](auto kind) {
        constexpr int TYPE = kind.value;
        if constexpr (FLOATS >> TYPE & 1)
            for (int step = first; step < end; step++) multiply_step_float<TYPE>(acc, rows.lower, rows.upper, step, k, x, columns);
        else if constexpr (GRAIN == 1 && !WHOLE<TYPE>) multiply_quantized<TYPE, GRAIN, NT>(acc, rows, k, first, end, x, columns);
        else
            with_live(columns.live, [&](auto live) { multiply_quantized<TYPE, GRAIN, live.value>(acc, rows, k, first, end, x, columns); });
    });
}

// Weights on their way through shared memory: rows as they lie in the matrix, or 32 bytes apart where too many would
// start in the same bank.
__device__ __forceinline__ int staged_stride(int bytes) { return bytes % 64 ? bytes : bytes + 32; }

// Starts the copy of up to ROWS neighbouring rows of BYTES bytes by THREADS threads, of which this one is number `index`.
template <int BYTES, int ROWS, int THREADS> __device__ __forceinline__ void stage_rows(u8* to, const u8* from, int rows, int index) {
    if constexpr (BYTES % 64) {
        int total = BYTES * min(rows, ROWS), whole = total & ~15;
#pragma unroll 4
        for (int i = 0; i < BYTES * ROWS; i += 16 * THREADS)
            if (i + 16 * index < whole) copy_async(to + 16 * index + i, from + 16 * index + i);
        if (index == 0)
            for (int i = whole; i < total; i += 2) *(u16*)(to + i) = *(const u16*)(from + i);
    } else {
        int row0 = index / 32, at = 16 * (index % 32);
        to += row0 * (BYTES + 32) + at, from += row0 * BYTES + at;
#pragma unroll
        for (int row = 0; row < ROWS; row += THREADS / 32)
#pragma unroll
            for (int i = 0; i < BYTES; i += 512)
                if (row + row0 < rows && i + at < BYTES) copy_async(to + row * (BYTES + 32) + i, from + row * BYTES + i);
    }
}
template <int ROWS, int THREADS, int K> __device__ __forceinline__ void stage(u8* to, const u8* matrix, int type, int row0, int rows, int index) {
    with_type(type, [&](auto kind) {
        constexpr int BYTES = row_bytes(kind.value, K);
        if constexpr (!(FLOATS >> kind.value & 1)) stage_rows<BYTES, ROWS, THREADS>(to, matrix + (size_t)row0 * BYTES, rows - row0, index);
    });
}

// Where they lie: in a matrix of `rows` rows, whose last one stands for those beyond, or in the tile that `stage` brought to
// shared memory.
__device__ __forceinline__ Rows rows_of_matrix(const u8* data, int bytes, int row0, int rows) {
    int g = lane_id() >> 2;
    return {data + (size_t)min(row0 + g, rows - 1) * bytes, data + (size_t)min(row0 + g + 8, rows - 1) * bytes};
}
__device__ __forceinline__ Rows rows_of_tile(const u8* tile, int bytes) {
    int g = lane_id() >> 2, stride = staged_stride(bytes);
    return {tile + g * stride, tile + (g + 8) * stride};
}

__device__ __forceinline__ void clear(float (&acc)[NT][4]) {
#pragma unroll
    for (int i = 0; i < NT; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
}

// A warp's 16 x COLUMNS results to shared memory, [row][column].
__device__ __forceinline__ void store_tile(float* tile, const float (&acc)[NT][4]) {
    int g = lane_id() >> 2, t = lane_id() & 3;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        float* p = tile + g * COLUMNS + 8 * i + 2 * t;
        p[0] = acc[i][0], p[1] = acc[i][1];
        p[8 * COLUMNS] = acc[i][2], p[8 * COLUMNS + 1] = acc[i][3];
    }
}

// Adds them to what another warp has stored.
__device__ __forceinline__ void add_tile(float* tile, const float (&acc)[NT][4]) {
    int g = lane_id() >> 2, t = lane_id() & 3;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        float* p = tile + g * COLUMNS + 8 * i + 2 * t;
        p[0] += acc[i][0], p[1] += acc[i][1];
        p[8 * COLUMNS] += acc[i][2], p[8 * COLUMNS + 1] += acc[i][3];
    }
}
