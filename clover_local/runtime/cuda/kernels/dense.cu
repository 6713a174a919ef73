// Matrices that every row meets: up to five behind one input, each of its own type. A block computes 16 rows of a
// quantized matrix on tensor cores, or a few rows of a float matrix in f32; its warps share the inputs.
#define NEIGHBOURS 1  // column c is row c
#include "tile.cuh"

#ifndef WARPS
#define WARPS 4
#endif
#ifndef INPUTS
#define INPUTS 2048  // inputs
#endif
constexpr int THREADS = 32 * WARPS;
constexpr int FLOAT_ROWS = WARPS > 4 ? 2 : 4;
constexpr int HELD = 2;               // rows of which a thread holds its share, from before the kernel ahead has ended
constexpr int LOADS = 512 / THREADS;  // of four values per row and thread
constexpr int OUTPUTS = 16 * COLUMNS / THREADS > 0 ? 16 * COLUMNS / THREADS : 1;  // of a thread in a tile
constexpr int CHUNK = 4 * THREADS * LOADS;

struct Segment {
    const u8* data;
    int type, rows;
    int tile;  // first block of the launch that works on it
    int out;   // column of the output where row 0 goes
};

struct DenseArgs {
    Segment segments[5];
    Acts x;           // [rows, INPUTS]
    float* out;       // [rows, ld]
    const Pass* pass;
    int count, ld;
    int add;          // 1: out += product (the residual)
};

__device__ __forceinline__ void quantized_tile(const DenseArgs& a, const Segment& m, int row0, u8* memory) {
    int bytes = row_size(m.type, INPUTS), warp = warp_id(), n = a.pass->n;
    if (STAGED) stage(memory, m.data + (size_t)row0 * bytes, bytes, min(16, m.rows - row0), threadIdx.x, THREADS);
    commit_copies();
    wait_for_previous();
    int row = threadIdx.x % 16, column = threadIdx.x / 16, columns_used = row0 + row < m.rows ? n : 0;
    float* out = a.out + m.out + row0 + row;
    float before[OUTPUTS], acc[NT][4];
#pragma unroll
    for (int i = 0; i < OUTPUTS; i++) {
        int c = column + THREADS / 16 * i;
        before[i] = a.add && c < columns_used ? out[(size_t)c * a.ld] : 0.0f;
    }
    clear(acc);
    if (WARPS > 1 && INPUTS % (256 * WARPS) == 0)
        for (int i = 0; i < (n + 7) / 8; i++) warm_blocks(a.x, i, INPUTS, warp * (INPUTS / 32 / WARPS), (warp + 1) * (INPUTS / 32 / WARPS));
    Columns columns = columns_of(COLUMNS, nullptr, 0, INPUTS);
    columns.live = (n + 7) / 8;
    if (STAGED) {
        await_copies<0>();
        __syncthreads();
        multiply_staged(acc, m.type, memory, INPUTS, warp, WARPS, a.x, columns);
    } else {
        multiply(acc, m.type, m.data, m.rows, row0, INPUTS, warp, WARPS, a.x, columns);
    }
    float* partial = (float*)(memory + (STAGED ? 16 * staged_stride(bytes) : 0));
    store_tile(partial + warp * 16 * COLUMNS, acc);
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

// Adds the products of two rows of a float matrix, over one chunk of the inputs, to the warp's sums [COLUMNS][FLOAT_ROWS].
template <int TYPE>
__device__ __forceinline__ void float_rows(const DenseArgs& a, const Segment& m, int row0, int base, float* sums, bool wait) {
    int n = a.pass->n, bytes = row_bytes(TYPE, INPUTS);
    float4 w[HELD][LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++)
#pragma unroll
        for (int r = 0; r < HELD; r++) {
            int at = base + 4 * (threadIdx.x + THREADS * i);
            w[r][i] = make_float4(0, 0, 0, 0);
            if (at < INPUTS) w[r][i] = load_floats<TYPE>(m.data + (size_t)min(row0 + r, m.rows - 1) * bytes, at);
        }
    if (wait) wait_for_previous();
#pragma unroll LOADS > 2 ? 2 : 4
    for (int c = 0; c < n; c++) {
        float v[HELD] = {};
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int at = base + 4 * (threadIdx.x + THREADS * i);
            float4 x = make_float4(0, 0, 0, 0);
            if (at < INPUTS) x = *(const float4*)(a.x.f + (size_t)c * INPUTS + at);
#pragma unroll
            for (int r = 0; r < HELD; r++) v[r] += w[r][i].x * x.x + w[r][i].y * x.y + w[r][i].z * x.z + w[r][i].w * x.w;
        }
        float sum = lanes_sum2(v), *p = sums + c * FLOAT_ROWS + lane_id() / 16;
        if (lane_id() % 16 == 0) *p = base ? *p + sum : sum;
    }
}

template <int TYPE> __device__ __forceinline__ void float_tile(const DenseArgs& a, const Segment& m, int row0, float* partial) {
    int n = a.pass->n;
    for (int base = 0; base < INPUTS; base += CHUNK)
#pragma unroll
        for (int r = 0; r < FLOAT_ROWS; r += HELD)
            float_rows<TYPE>(a, m, row0 + r, base, partial + warp_id() * COLUMNS * FLOAT_ROWS + r, base + r == 0);
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

RESIDENT_KERNEL(dense, THREADS, (NT == 1 ? 24 : 16) / WARPS, DenseArgs) {
    DYNAMIC_SHARED(u8, memory);  // a tile of 16 rows, then the sums of every warp
    int s = 0, tile = blockIdx.x;
    while (s + 1 < a.count && tile >= a.segments[s + 1].tile) s++;
    const Segment& m = a.segments[s];
    tile -= m.tile;
    if (!is_float(m.type)) {
        if constexpr ((TYPES & ~FLOATS) != 0) quantized_tile(a, m, 16 * tile, memory);
        return;
    }
    if constexpr (TYPES >> F32 & 1)
        if (m.type == F32) float_tile<F32>(a, m, FLOAT_ROWS * tile, (float*)memory);
    if constexpr (TYPES >> F16 & 1)
        if (m.type == F16) float_tile<F16>(a, m, FLOAT_ROWS * tile, (float*)memory);
    if constexpr (TYPES >> BF16 & 1)
        if (m.type == BF16) float_tile<BF16>(a, m, FLOAT_ROWS * tile, (float*)memory);
}
