// Matrices that every row meets: up to five behind one input, each of its own type. A block computes 16 rows of a
// quantized matrix on tensor cores, or a few rows of a float matrix in f32, then its next ones; its warps share the inputs.
#define NEIGHBOURS 1  // column c is row c
#include "tile.cuh"

#ifndef WARPS
#define WARPS 8
#endif
#ifndef INPUTS
#define INPUTS 2048
#endif
#ifndef X_GRAIN
#define X_GRAIN 8  // blocks of activations that share a scale
#endif
#ifndef FLOAT_ROWS
#define FLOAT_ROWS 2  // rows of a float matrix that a block computes at once
#endif
#ifndef BUFFERS
#define BUFFERS 2  // tiles of a block that are on their way or at work
#endif
#ifndef RESIDENT
#define RESIDENT 1  // blocks that share a multiprocessor
#endif
#ifndef REUSED
#define REUSED 0  // 1: blocks have several tiles
#endif
constexpr int THREADS = 32 * WARPS;
constexpr int LOADS = 512 / THREADS;  // of four values per row and thread
constexpr int OUTPUTS = 16 * COLUMNS / THREADS > 0 ? 16 * COLUMNS / THREADS : 1;  // of a thread in a tile
constexpr int CHUNK = 4 * THREADS * LOADS;
constexpr int STEPS = (INPUTS + 255) / 256;

// Types whose fragments take activations in the order of 16. Where a warp has one step of tiles that are all of one order, and
// there are few columns, its activations come to registers at once and stay there.
constexpr int SIXTEENS = 1 << Q6_K | 1 << Q3_K;
constexpr bool ALL_BY16 = (TYPES & ~FLOATS & ~SIXTEENS) == 0, NONE_BY16 = (TYPES & SIXTEENS) == 0;
constexpr bool KEPT = (REUSED || NT == 1) && STEPS <= WARPS && INPUTS % 256 == 0 && NT <= 2 && X_GRAIN > 1 && (ALL_BY16 || NONE_BY16);

struct Segment {
    const u8* data;
    int type, rows;
    int tile;  // number of its first tile
    int out;   // column of the output where row 0 goes
};

struct DenseArgs {
    Segment segments[5];
    Acts x;           // [rows, INPUTS]
    float* out;       // [rows, ld]
    const Pass* pass;
    int count, ld;
    int tiles;        // of all segments
    int add;          // 1: out += product (the residual)
};

// One tile of the launch: rows row0 .. of a segment.
struct Tile {
    const Segment* matrix;
    int row0;
};

__device__ __forceinline__ Tile tile_of(const DenseArgs& a, int tile) {
    int s = 0;
    while (s + 1 < a.count && tile >= a.segments[s + 1].tile) s++;
    const Segment& m = a.segments[s];
    return {&m, (tile - m.tile) * (is_float(m.type) ? FLOAT_ROWS : 16)};
}

// Starts the copy of a tile's rows, if there is such a tile and it is quantized.
__device__ __forceinline__ void fetch(const DenseArgs& a, u8* to, int index) {
    if (STAGED && index < a.tiles) {
        Tile tile = tile_of(a, index);
        const Segment& m = *tile.matrix;
        stage<16, THREADS, INPUTS>(to, m.data, m.type, tile.row0, m.rows, threadIdx.x);
    }
    commit_copies();
}

// The activations of a warp's step, as its fragments take them; or else they come near.
struct Kept {
    uint2 v[KEPT ? NT : 1][8];
};

__device__ __forceinline__ void keep(Kept& kept, const Acts& x, const Columns& columns, int n) {
    if constexpr (!KEPT) {
        int warp = warp_id(), first = warp * STEPS / WARPS, end = (warp + 1) * STEPS / WARPS;
        warm_blocks(x, (n + 7) / 8, INPUTS, 8 * first, min(8 * end, INPUTS / 32), lane_id(), 32);
    } else {
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int b = 0; b < 8; b++)
                if (warp_id() < STEPS) kept.v[i][b] = load_operand<ALL_BY16>(x, INPUTS, columns.row[i], 8 * warp_id() + b);
    }
}

// The warp's share of a tile's product.
__device__ __forceinline__ void multiply(float (&acc)[NT][4], const DenseArgs& a, const Tile& tile, const u8* staged, const Columns& columns, const Kept& kept) {
    const Segment& m = *tile.matrix;
    int bytes = row_size(m.type, INPUTS), warp = warp_id();
    Rows rows = STAGED ? rows_of_tile(staged, bytes) : rows_of_matrix(m.data, bytes, tile.row0, m.rows);
    with_type(m.type, [&](auto kind) {
        constexpr int TYPE = kind.value;
        if constexpr (!(FLOATS >> TYPE & 1)) {
            if constexpr (!KEPT) multiply_quantized<TYPE, X_GRAIN, NT>(acc, rows, INPUTS, warp * STEPS / WARPS, (warp + 1) * STEPS / WARPS, a.x, columns);
            else if (warp < STEPS)
                multiply_grouped<TYPE, X_GRAIN, NT>(acc, rows.lower, rows.upper, warp, INPUTS, a.x, columns, [&](int i, int block) { return kept.v[i][block]; });
        }
    });
}

__device__ __forceinline__ void quantized_tile(const DenseArgs& a, const Tile& tile, const u8* staged, float* partial, const Columns& columns, const Kept& kept) {
    const Segment& m = *tile.matrix;
    int row = threadIdx.x % 16, column = threadIdx.x / 16, columns_used = tile.row0 + row < m.rows ? a.pass->n : 0;
    float* out = a.out + m.out + tile.row0 + row;
    float before[OUTPUTS], acc[NT][4];
#pragma unroll
    for (int i = 0; i < OUTPUTS; i++) {
        int c = column + THREADS / 16 * i;
        before[i] = a.add && c < columns_used ? out[(size_t)c * a.ld] : 0.0f;
    }
    clear(acc);
    multiply(acc, a, tile, staged, columns, kept);
    store_tile(partial + warp_id() * 16 * COLUMNS, acc);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < OUTPUTS; i++) {
        int c = column + THREADS / 16 * i;
        if (c >= columns_used) break;
        float v = before[i];
#pragma unroll
        for (int p = 0; p < WARPS; p++) v += partial[(p * 16 + row) * COLUMNS + c];
        out[(size_t)c * a.ld] = v;
    }
}

// Adds the products of the rows of a float matrix, over one chunk of the inputs, to the warp's sums [COLUMNS][FLOAT_ROWS]. The
// first chunk of the rows is read before the kernel ahead has ended.
template <int TYPE>
__device__ __forceinline__ void float_rows(const DenseArgs& a, const Segment& m, int row0, int base, float* sums, bool wait) {
    int n = a.pass->n, bytes = row_bytes(TYPE, INPUTS);
    float4 w[FLOAT_ROWS][LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++)
#pragma unroll
        for (int r = 0; r < FLOAT_ROWS; r++) {
            int at = base + 4 * (threadIdx.x + THREADS * i);
            w[r][i] = make_float4(0, 0, 0, 0);
            if (at < INPUTS) w[r][i] = load_floats<TYPE>(m.data + (size_t)min(row0 + r, m.rows - 1) * bytes, at);
        }
    if (wait) wait_for_previous();
#pragma unroll LOADS > 2 ? 2 : 4
    for (int c = 0; c < n; c++) {
        float v[FLOAT_ROWS] = {};
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int at = base + 4 * (threadIdx.x + THREADS * i);
            float4 x = make_float4(0, 0, 0, 0);
            if (at < INPUTS) x = *(const float4*)(a.x.f + (size_t)c * INPUTS + at);
#pragma unroll
            for (int r = 0; r < FLOAT_ROWS; r++) v[r] += w[r][i].x * x.x + w[r][i].y * x.y + w[r][i].z * x.z + w[r][i].w * x.w;
        }
        constexpr int LANES = 32 / FLOAT_ROWS;
        float sum = lanes_sums<FLOAT_ROWS>(v), *p = sums + c * FLOAT_ROWS + lane_id() / LANES;
        if (lane_id() % LANES == 0) *p = base ? *p + sum : sum;
    }
}

template <int TYPE> __device__ __forceinline__ void float_tile(const DenseArgs& a, const Segment& m, int row0, float* partial, bool wait) {
    int n = a.pass->n;
    for (int base = 0; base < INPUTS; base += CHUNK)
        float_rows<TYPE>(a, m, row0, base, partial + warp_id() * COLUMNS * FLOAT_ROWS, wait && base == 0);
    __syncthreads();
    for (int i = threadIdx.x; i < FLOAT_ROWS * n; i += THREADS) {
        int r = i % FLOAT_ROWS, c = i / FLOAT_ROWS;
        if (row0 + r >= m.rows) continue;
        float* out = a.out + (size_t)c * a.ld + m.out + row0 + r;
        float v = a.add ? *out : 0.0f;
#pragma unroll
        for (int p = 0; p < WARPS; p++) v += partial[(p * COLUMNS + c) * FLOAT_ROWS + r];
        *out = v;
    }
}

RESIDENT_KERNEL(dense, THREADS, RESIDENT, DenseArgs) {
    DYNAMIC_SHARED(u8, memory);  // tiles of 16 rows, then the sums of every warp
    int size = 0, buffer = 0;
    if (STAGED)
        for (int s = 0; s < a.count; s++)
            if (!is_float(a.segments[s].type)) size = max(size, 16 * staged_stride(row_size(a.segments[s].type, INPUTS)));
    float* partial = (float*)(memory + BUFFERS * size);
#pragma unroll
    for (int i = 0; i < BUFFERS; i++) fetch(a, memory + i * size, blockIdx.x + i * gridDim.x);
    if (blockIdx.x >= a.tiles) return wait_for_previous();
    bool wait = !is_float(tile_of(a, blockIdx.x).matrix->type);  // rows of a float matrix are read before it
    if (wait) wait_for_previous();
    Columns columns = columns_in_order(NT);
    Kept kept;
    bool first = true, ready = false;
    for (int index = blockIdx.x; index < a.tiles; index += gridDim.x) {
        Tile tile = tile_of(a, index);
        int type = tile.matrix->type;
        if (!is_float(type)) {
            if constexpr ((TYPES & ~FLOATS) != 0) {
                if (!ready) keep(kept, a.x, columns, a.pass->n), ready = true;
                if (STAGED) await_copies<BUFFERS - 1>();
                __syncthreads();
                quantized_tile(a, tile, memory + buffer * size, partial, columns, kept);
            }
        } else {
            bool after = first && !wait;
            if (!first) __syncthreads();  // the sums of the tile before have been read
            if constexpr (TYPES >> F32 & 1)
                if (type == F32) float_tile<F32>(a, *tile.matrix, tile.row0, partial, after);
            if constexpr (TYPES >> F16 & 1)
                if (type == F16) float_tile<F16>(a, *tile.matrix, tile.row0, partial, after);
            if constexpr (TYPES >> BF16 & 1)
                if (type == BF16) float_tile<BF16>(a, *tile.matrix, tile.row0, partial, after);
        }
        first = false;
        fetch(a, memory + buffer * size, index + BUFFERS * gridDim.x);
        buffer = buffer + 1 == BUFFERS ? 0 : buffer + 1;
    }
    await_copies<0>();
}
