// Matrices that every row meets: up to five behind one input, each of its own type.
#include "tile.cuh"

#ifndef TILES
#define TILES 1  // tiles of 16 rows to a block; more share what they read of the activations
#endif
constexpr int KSPLIT = 8 / TILES;  // warps that share the inputs of a tile

struct Segment {
    const u8* data;
    int type, rows;
    int tile;  // first tile of 16 rows within the launch
    int out;   // column of the output where row 0 goes
};

struct DenseArgs {
    Segment segments[5];
    Acts x;           // [rows, k]
    float* out;       // [rows, ld]
    const Pass* pass;
    int count, k, ld;
    int add;          // 1: out += product (the residual)
};

RESIDENT_KERNEL(dense, 256, NT == 1 ? 3 : 2, DenseArgs) {
    __shared__ float partial[8][16 * COLUMNS];
    int warp = warp_id(), tile = blockIdx.x * TILES + warp / KSPLIT;
    int s = 0;
    while (s + 1 < a.count && tile >= a.segments[s + 1].tile) s++;
    Segment m = a.segments[s];
    int row0 = 16 * (tile - m.tile);
    if (row0 < m.rows) {  // weights do not depend on earlier kernels: bring them into L2 while those finish
        int bytes = row_bytes(m.type, a.k), length = min(16, m.rows - row0) * bytes;
        const u8* p = m.data + (size_t)row0 * bytes;
        for (int at = 128 * (threadIdx.x % (32 * KSPLIT)); at < length; at += 128 * 32 * KSPLIT) prefetch(p + at);
    }
    wait_for_previous();
    int n = a.pass->n;
    float acc[NT][4];
    clear(acc);
    if (row0 < m.rows) multiply(acc, m.type, m.data, m.rows, row0, a.k, warp % KSPLIT, KSPLIT, a.x, columns_of(n, nullptr, 0));
    store_tile(partial[warp], acc);
    __syncthreads();
    for (int i = threadIdx.x; i < TILES * 16 * n; i += blockDim.x) {
        int row = i % 16, rest = i / 16, c = rest % n, which = rest / n;
        int t = blockIdx.x * TILES + which, at = 0;
        while (at + 1 < a.count && t >= a.segments[at + 1].tile) at++;
        const Segment& o = a.segments[at];
        int r = 16 * (t - o.tile) + row;
        if (r >= o.rows) continue;
        float v = 0;
#pragma unroll
        for (int p = 0; p < KSPLIT; p++) v += partial[which * KSPLIT + p][row * COLUMNS + c];
        float* out = a.out + (size_t)c * a.ld + o.out + r;
        *out = a.add ? *out + v : v;
    }
}
