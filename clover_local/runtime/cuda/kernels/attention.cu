// Full attention after its projections: norms, rope and the KV write; flash attention in splits of the context;
// their combination with the output gate. Rows see the committed tokens and, causally or both ways, the block.
#include "common.cuh"

#ifndef HEAD
#define HEAD 256
#endif
constexpr int WARPS = 4;
constexpr int STRIDE = HEAD + 8;  // halves; rows of 16 bytes in shared memory that meet no bank twice
constexpr int SUM_STRIDE = HEAD + 8;  // floats
constexpr int TOKENS = 16;        // of one step of a warp
constexpr int STEP = WARPS * TOKENS;  // of one step of a block
constexpr int MAX_SPLITS = 64;

struct PrepareArgs {
    const float* y;       // [rows, ld]: per query head [query, gate] | keys | values
    const float* q_norm;  // [HEAD]
    const float* k_norm;  // [HEAD]
    u16* q;               // [kv heads, n * group, HEAD] halves, scaled by 1/sqrt(HEAD)
    u16* keys;            // [context, kv heads * HEAD] halves
    u16* values;
    const Pass* pass;
    int heads, kv_heads, ld, rotated;
    float eps, log2_theta;
};

// What a lane turns of a head: pairs lane, lane + 32, ... of values `rotated` / 2 apart.
constexpr int TURNS = HEAD / 64;

// Norm and rope of one head by one warp; `head` lies in shared memory.
__device__ __forceinline__ void norm_rope(float* head, const float* x, const float (&weight)[HEAD / 32], const float2 (&turn)[TURNS], const PrepareArgs& a) {
    float v[HEAD / 32], sum = 0;
#pragma unroll
    for (int i = 0; i < HEAD / 32; i++) v[i] = x[32 * i + lane_id()], sum += v[i] * v[i];
    float scale = rsqrtf(lanes_sum(sum) / HEAD + a.eps);
#pragma unroll
    for (int i = 0; i < HEAD / 32; i++) head[32 * i + lane_id()] = v[i] * scale * weight[i];
    __syncwarp();
    int half = a.rotated / 2;
#pragma unroll
    for (int j = 0; j < TURNS; j++) {
        int i = 32 * j + lane_id();
        if (i >= half) break;
        float u = head[i], w = head[i + half];
        head[i] = u * turn[j].x - w * turn[j].y, head[i + half] = w * turn[j].x + u * turn[j].y;
    }
    __syncwarp();
}

// Grid: rows x heads / WARPS. A warp a head: query heads, then key heads, then value heads.
KERNEL(attention_prepare, 32 * WARPS, PrepareArgs) {
    __shared__ float scratch[WARPS][HEAD];
    int r = blockIdx.x, n = a.pass->n, group = a.heads / a.kv_heads, h = blockIdx.y * WARPS + warp_id();
    bool used = r < n && h < a.heads + 2 * a.kv_heads;
    int position = a.pass->past + r, kv = h - a.heads;
    float weight[HEAD / 32];
    float2 turn[TURNS];
#pragma unroll
    for (int i = 0; i < HEAD / 32; i++) weight[i] = (kv < 0 ? a.q_norm : a.k_norm)[32 * i + lane_id()];
#pragma unroll
    for (int j = 0; j < TURNS; j++) {
        int i = 32 * j + lane_id();
        if (2 * i < a.rotated) sincosf(position * exp2f(-a.log2_theta * (2 * i) / a.rotated), &turn[j].y, &turn[j].x);
    }
    wait_for_previous();
    if (!used) return;
    float* head = scratch[warp_id()];
    const float* y = a.y + (size_t)r * a.ld;
    if (kv < 0) {
        norm_rope(head, y + (size_t)h * 2 * HEAD, weight, turn, a);
        u16* q = a.q + ((size_t)(h / group) * n * group + r * group + h % group) * HEAD;
        for (int i = lane_id(); i < HEAD; i += 32) q[i] = float_to_half(head[i] * rsqrtf((float)HEAD));
    } else {
        const float* x = y + (size_t)a.heads * 2 * HEAD + (size_t)kv * HEAD;  // values follow the keys
        bool key = kv < a.kv_heads;
        size_t at = ((size_t)position * a.kv_heads + (key ? kv : kv - a.kv_heads)) * HEAD;
        if (key) norm_rope(head, x, weight, turn, a);
        for (int i = lane_id(); i < HEAD; i += 32) (key ? a.keys : a.values)[at + i] = float_to_half(key ? head[i] : x[i]);
    }
}

struct AttentionArgs {
    const u16* q;       // as above
    const u16* keys;
    const u16* values;
    float* partial;     // [splits, kv heads, width * group, HEAD]
    float2* stats;      // [splits, kv heads, width * group]: maximum and sum; sum 0 where a split saw nothing
    const float* y;     // [rows, ld], for the gate
    Acts out;           // [rows, heads * HEAD], a scale for 128 values or a head
    const Pass* pass;
    int heads, kv_heads, ld, splits;
    int width;          // rows the graph is made for
    int causal;
};

__device__ __forceinline__ u32 pack_halves(float a, float b) { return float_to_half(a) | (u32)float_to_half(b) << 16; }

// Logits of 16 queries and 16 tokens. Operand registers take HEAD in the order 8t + {0,1 | 2,3} and {4,5 | 6,7} of each 32.
__device__ __forceinline__ void scores(float (&s)[2][4], const u16* q, const u16* keys, int token0, int length, size_t row) {
    int g = lane_id() >> 2, t = lane_id() & 3;
    const u16* k0 = keys + (size_t)min(token0 + g, length - 1) * row + 8 * t;
    const u16* k1 = keys + (size_t)min(token0 + g + 8, length - 1) * row + 8 * t;
#pragma unroll
    for (int i = 0; i < HEAD / 32; i++) {
        uint4 upper = *(const uint4*)(q + g * STRIDE + 32 * i + 8 * t), lower = *(const uint4*)(q + (g + 8) * STRIDE + 32 * i + 8 * t);
        uint4 b0 = *(const uint4*)(k0 + 32 * i), b1 = *(const uint4*)(k1 + 32 * i);
        mma_f16_k16(s[0], upper.x, lower.x, upper.y, lower.y, b0.x, b0.y);
        mma_f16_k16(s[0], upper.z, lower.z, upper.w, lower.w, b0.z, b0.w);
        mma_f16_k16(s[1], upper.x, lower.x, upper.y, lower.y, b1.x, b1.y);
        mma_f16_k16(s[1], upper.z, lower.z, upper.w, lower.w, b1.z, b1.w);
    }
}

struct Softmax {
    float top[2], sum[2];  // of queries g and g + 8
};

// Masks the logits, moves the running maximum and turns them into weights; returns what older sums shrink by.
__device__ __forceinline__ float2 weigh(float (&s)[2][4], Softmax& m, int token0, const int (&last)[2]) {
    int t = lane_id() & 3;
    float shrink[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = m.top[half];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float& v = s[i / 2][2 * half + i % 2];
            if (token0 + 8 * (i / 2) + 2 * t + i % 2 > last[half]) v = -INFINITY;
            top = fmaxf(top, v);
        }
        top = lanes_max<4>(top);
        float base = top == -INFINITY ? 0.0f : top, sum = 0;
        shrink[half] = expf(m.top[half] - base);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float& v = s[i / 2][2 * half + i % 2];
            v = expf(v - base);
            sum += v;
        }
        m.sum[half] = m.sum[half] * shrink[half] + lanes_sum<4>(sum);
        m.top[half] = top;
    }
    return make_float2(shrink[0], shrink[1]);
}

// out += weights[16 queries, 16 tokens] * values[16 tokens, HEAD], the values in the warp's shared memory.
__device__ __forceinline__ void add_values(float (&out)[HEAD / 8][4], const float (&w)[2][4], const u16* tile) {
    u32 a0 = pack_halves(w[0][0], w[0][1]), a1 = pack_halves(w[0][2], w[0][3]);
    u32 a2 = pack_halves(w[1][0], w[1][1]), a3 = pack_halves(w[1][2], w[1][3]);
    const u16* row = tile + (lane_id() % 16) * STRIDE + (lane_id() / 16) * 8;  // tiles: tokens 0-7, 8-15, next 8 columns
#pragma unroll
    for (int i = 0; i < HEAD / 16; i++) {
        u32 b[4];
        load_transposed(b, row + 16 * i);
        mma_f16_k16(out[2 * i], a0, a1, a2, a3, b[0], b[1]);
        mma_f16_k16(out[2 * i + 1], a0, a1, a2, a3, b[2], b[3]);
    }
}

// The first `busy` warps of a block hold partial sums of the same 16 queries: merge them and write the block's share.
__device__ __forceinline__ void merge_warps(const AttentionArgs& a, float (&out)[HEAD / 8][4], Softmax m, float* sum,
                                            float2 (*stats)[16], size_t first, int queries, int busy) {
    int g = lane_id() >> 2, t = lane_id() & 3, warp = warp_id();
    if (t == 0) stats[warp][g] = make_float2(m.top[0], m.sum[0]), stats[warp][g + 8] = make_float2(m.top[1], m.sum[1]);
    __syncthreads();  // also: nobody needs the value tiles any more, `sum` lies over them
    float scale[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = -INFINITY;
        for (int w = 0; w < busy; w++) top = fmaxf(top, stats[w][g + 8 * half].x);
        scale[half] = m.top[half] == -INFINITY ? 0.0f : expf(m.top[half] - top);
    }
    for (int w = 0; w < busy; w++) {
        if (w == warp)
#pragma unroll
            for (int i = 0; i < HEAD / 4; i++) {
                float2* p = (float2*)(sum + (g + 8 * (i & 1)) * SUM_STRIDE + 8 * (i / 2) + 2 * t);
                float2 v = w ? *p : make_float2(0, 0);
                *p = make_float2(v.x + out[i / 2][2 * (i & 1)] * scale[i & 1], v.y + out[i / 2][2 * (i & 1) + 1] * scale[i & 1]);
            }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < min(16, queries) * HEAD / 4; i += 32 * WARPS) {
        int row = i / (HEAD / 4), column = 4 * (i % (HEAD / 4));
        *(float4*)(a.partial + first * HEAD + 4 * i) = *(const float4*)(sum + row * SUM_STRIDE + column);
    }
    if ((int)threadIdx.x < min(16, queries)) {
        float top = -INFINITY, total = 0;
        for (int w = 0; w < busy; w++) top = fmaxf(top, stats[w][threadIdx.x].x);
        for (int w = 0; w < busy; w++)
            if (stats[w][threadIdx.x].x > -INFINITY) total += stats[w][threadIdx.x].y * expf(stats[w][threadIdx.x].x - top);
        a.stats[first + threadIdx.x] = make_float2(top, total);
    }
}

// Grid: (tiles of 16 queries * kv heads) x splits.
KERNEL(attention, 32 * WARPS, AttentionArgs) {
    __shared__ __align__(16) u16 q[16 * STRIDE];
    __shared__ __align__(16) u16 tiles[WARPS][TOKENS * STRIDE];
    __shared__ float2 stats[WARPS][16];
    wait_for_previous();
    int n = a.pass->n, past = a.pass->past, length = past + n, group = a.heads / a.kv_heads, queries = n * group;
    int kv = blockIdx.x % a.kv_heads, query0 = blockIdx.x / a.kv_heads * 16, split = blockIdx.y, warp = warp_id();
    if (query0 >= queries) return;
    size_t row = (size_t)a.kv_heads * HEAD, first = ((size_t)split * a.kv_heads + kv) * a.width * group + query0;
    if (split * STEP >= length) {  // nothing for the first warp, so nothing for any
        if ((int)threadIdx.x < min(16, queries - query0)) a.stats[first + threadIdx.x] = make_float2(-INFINITY, 0);
        return;
    }
    for (int i = threadIdx.x; i < 16 * HEAD / 8; i += 32 * WARPS) {
        int r = i / (HEAD / 8), c = i % (HEAD / 8);
        copy_async(q + r * STRIDE + 8 * c, a.q + ((size_t)kv * queries + min(query0 + r, queries - 1)) * HEAD + 8 * c);
    }
    commit_copies();
    u16* tile = tiles[warp];
    auto fetch_values = [&](int token0) {
        for (int i = lane_id(); i < TOKENS * HEAD / 8; i += 32) {
            int r = i / (HEAD / 8), c = i % (HEAD / 8);
            copy_async(tile + r * STRIDE + 8 * c, a.values + min(token0 + r, length - 1) * row + (size_t)kv * HEAD + 8 * c);
        }
        commit_copies();
    };
    int token0 = split * STEP + warp * TOKENS;
    if (token0 < length) fetch_values(token0);
    else commit_copies();
    await_copies<1>();
    __syncthreads();
    float out[HEAD / 8][4];
#pragma unroll
    for (int i = 0; i < HEAD / 8; i++) out[i][0] = out[i][1] = out[i][2] = out[i][3] = 0;
    Softmax m = {{-INFINITY, -INFINITY}, {0, 0}};
    int last[2];
#pragma unroll
    for (int half = 0; half < 2; half++) last[half] = a.causal ? past + (query0 + lane_id() / 4 + 8 * half) / group : length - 1;
    for (; token0 < length; token0 += a.splits * STEP) {
        float s[2][4] = {};
        scores(s, q, a.keys + (size_t)kv * HEAD, token0, length, row);
        float2 shrink = weigh(s, m, token0, last);
#pragma unroll
        for (int i = 0; i < HEAD / 8; i++) out[i][0] *= shrink.x, out[i][1] *= shrink.x, out[i][2] *= shrink.y, out[i][3] *= shrink.y;
        await_copies<0>();
        __syncwarp();
        add_values(out, s, tile);
        __syncwarp();
        if (token0 + a.splits * STEP < length) fetch_values(token0 + a.splits * STEP);
    }
    int busy = min(WARPS, (length - split * STEP + TOKENS - 1) / TOKENS);  // these saw a token
    merge_warps(a, out, m, (float*)tiles, stats, first, queries - query0, busy);
}

// Grid: heads x rows; a thread four values of the head. Joins the splits, applies the gate, quantizes.
KERNEL(attention_combine, HEAD / 4 < 32 ? 32 : HEAD / 4, AttentionArgs) {
    __shared__ float weights[MAX_SPLITS];
    constexpr int LANES = HEAD / 4 < 32 ? HEAD / 4 : 32, EARLY = 8;  // splits that are read before their weights are known
    wait_for_previous();
    int h = blockIdx.x, r = blockIdx.y, c = 4 * threadIdx.x, group = a.heads / a.kv_heads;
    if (r >= a.pass->n) return;
    bool live = c < HEAD;
    if (!live) c = 0;
    int used = min(a.splits, (a.pass->past + a.pass->n + STEP - 1) / STEP);
    size_t query = (size_t)(h / group) * a.width * group + r * group + h % group, step = (size_t)a.kv_heads * a.width * group;
    float4 gate = *(const float4*)(a.y + (size_t)r * a.ld + (size_t)h * 2 * HEAD + HEAD + c), early[EARLY];
    const float* partial = a.partial + query * HEAD + c;
#pragma unroll
    for (int s = 0; s < EARLY; s++) early[s] = s < used ? *(const float4*)(partial + s * step * HEAD) : make_float4(0, 0, 0, 0);
    if (warp_id() == 0) {
        int s = lane_id();
        float2 low = {-INFINITY, 0}, high = {-INFINITY, 0};
        if (s < used) low = a.stats[s * step + query];
        if (s + 32 < used) high = a.stats[(s + 32) * step + query];
        float top = lanes_max(fmaxf(low.x, high.x));
        float u = low.y > 0 ? expf(low.x - top) : 0.0f, v = high.y > 0 ? expf(high.x - top) : 0.0f;
        float total = lanes_sum(u * low.y + v * high.y);
        weights[s] = u / total, weights[s + 32] = v / total;
    }
    __syncthreads();
    float v[4] = {};
    auto add = [&](float weight, float4 part) { v[0] += weight * part.x, v[1] += weight * part.y, v[2] += weight * part.z, v[3] += weight * part.w; };
#pragma unroll
    for (int s = 0; s < EARLY; s++) add(weights[s], early[s]);
#pragma unroll 4
    for (int s = EARLY; s < used; s++) add(weights[s], *(const float4*)(partial + s * step * HEAD));
    v[0] *= sigmoid(gate.x), v[1] *= sigmoid(gate.y), v[2] *= sigmoid(gate.z), v[3] *= sigmoid(gate.w);
    store_acts<LANES, 4>(a.out, r, a.heads * HEAD, h * HEAD + c, v, live);
}
