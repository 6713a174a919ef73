// Mixture of experts: routing (with the block coreset of a preview), gate and up with SwiGLU, down with the weighted sum.
// Work is grouped by expert, so that an expert's weights are read once for all rows that use it. Experts are reached
// through a table of pointers; the shared expert is one more entry, which every row uses.
#include "tile.cuh"

constexpr int MAX_EXPERTS = 512;
constexpr int MAX_PICKS = 16;  // experts of one row

// The outcome of routing. A slot is one pair (expert, row); the slots of an expert lie together.
struct Route {
    int count;                        // distinct experts, the shared one last
    int expert[MAX_EXPERTS + 1];
    int first[MAX_EXPERTS + 2];       // slots of entry i: first[i] .. first[i + 1] - 1
    int row[MAX_ROWS * (MAX_PICKS + 1)];
    float weight[MAX_ROWS * (MAX_PICKS + 1)];
};

struct RouteArgs {
    const float* logits;  // [rows, experts + 1], the shared expert's gate last
    Route* route;
    const Pass* pass;
    int experts, picks;
    float top_p;          // mass of experts kept (coreset); not below 2: all
};

// The top picks of one row by one warp: softmax over the kept experts, best first, ties to the lower index.
__device__ __forceinline__ void pick(int* ids, float* p, const float* logits, const u32* kept, int experts, int picks) {
    float mine[MAX_EXPERTS / 32], top = -INFINITY, sum = 0;
    int lane = lane_id();
#pragma unroll
    for (int i = 0; i < MAX_EXPERTS / 32; i++) {
        if (32 * i >= experts) break;
        int e = 32 * i + lane;
        mine[i] = e < experts && (kept[i] >> lane & 1) ? logits[e] : -INFINITY;
        top = fmaxf(top, mine[i]);
    }
    top = lanes_max(top);
#pragma unroll
    for (int i = 0; i < MAX_EXPERTS / 32; i++) {
        if (32 * i >= experts) break;
        mine[i] = mine[i] == -INFINITY ? -1.0f : expf(mine[i] - top);
        sum += fmaxf(mine[i], 0.0f);
    }
    sum = lanes_sum(sum);
    for (int k = 0; k < picks; k++) {
        float best = -1.0f;
        int at = 0;
#pragma unroll
        for (int i = 0; i < MAX_EXPERTS / 32; i++) {
            if (32 * i >= experts) break;
            if (mine[i] > best) best = mine[i], at = i;
        }
        u32 bits = best < 0 ? 0 : __float_as_uint(best) + 1, high = __reduce_max_sync(FULL, bits);
        u32 winner = __reduce_min_sync(FULL, bits == high ? (u32)(32 * at + lane) : 0xffffffffu);
        if (high == 0) winner = 0;  // fewer experts are kept than picked: a pick of weight 0
        if (lane == 0) ids[k] = winner, p[k] = high == 0 ? 0.0f : __uint_as_float(high - 1) / sum;
#pragma unroll
        for (int i = 0; i < MAX_EXPERTS / 32; i++) {
            if (32 * i >= experts) break;
            if ((int)winner == 32 * i + lane) mine[i] = -1.0f;
        }
    }
    __syncwarp();
}

// Marks in users[e] which rows picked expert e, bit by bit; picks of weight 0 do not count.
__device__ __forceinline__ void mark_users(u32* users, const int (*ids)[MAX_PICKS], const float (*p)[MAX_PICKS], int n, int picks) {
    users[threadIdx.x] = 0;
    __syncthreads();
    for (int r = warp_id(); r < n; r += MAX_EXPERTS / 32)
        if (lane_id() < picks && p[r][lane_id()] > 0) atomicOr(users + ids[r][lane_id()], 1u << r);
    __syncthreads();
}

// The probability with which row r picked expert e.
__device__ __forceinline__ float picked(const int* ids, const float* p, int e, int picks) {
    float v = 0;
    for (int k = 0; k < picks; k++)
        if (ids[k] == e && p[k] > 0) v = p[k];
    return v;
}

// Keeps the experts of most mass over the rows while the mass before them is below top_p (the first always).
__device__ __forceinline__ void choose_coreset(u32* kept, float* mass, const u32* users, const int (*ids)[MAX_PICKS],
                                               const float (*p)[MAX_PICKS], int experts, int picks, float top_p) {
    int e = threadIdx.x;
    float own = 0, total = 0, before = 0;
    for (u32 rows = users[e]; rows; rows &= rows - 1) {
        int r = __ffs(rows) - 1;
        own += picked(ids[r], p[r], e, picks);
    }
    mass[e] = own;
    __syncthreads();
    if (e < (experts + 31) / 32 * 32)
        for (int f = 0; f < experts; f++) {
            float other = mass[f];
            total += other;
            if (other > own || (other == own && f < e)) before += other;
        }
    bool keep = own > 0 && (before == 0.0f || before < top_p * total);
    u32 bits = __ballot_sync(FULL, keep);
    if (lane_id() == 0) kept[warp_id()] = bits;
    __syncthreads();
}

// Exclusive prefix sum over the first MAX_EXPERTS threads of two small counts; `sums` has 2 x 16 entries.
__device__ __forceinline__ int2 scan(int a, int b, int (*sums)[MAX_EXPERTS / 32]) {
    int x = a, y = b;
    for (int o = 1; o < 32; o *= 2) {
        int u = __shfl_up_sync(FULL, x, o), v = __shfl_up_sync(FULL, y, o);
        if (lane_id() >= o) x += u, y += v;
    }
    if (lane_id() == 31) sums[0][warp_id()] = x, sums[1][warp_id()] = y;
    __syncthreads();
    int2 r = {x - a, y - b};
    for (int w = 0; w < warp_id(); w++) r.x += sums[0][w], r.y += sums[1][w];
    __syncthreads();
    return r;
}

// One block of MAX_EXPERTS threads: a warp a row to pick, then a thread an expert to group.
KERNEL(moe_route, MAX_EXPERTS, RouteArgs) {
    __shared__ int ids[MAX_ROWS][MAX_PICKS];
    __shared__ float p[MAX_ROWS][MAX_PICKS];
    __shared__ float mass[MAX_EXPERTS];
    __shared__ u32 users[MAX_EXPERTS];
    __shared__ u32 kept[MAX_EXPERTS / 32];
    __shared__ int sums[2][MAX_EXPERTS / 32];
    wait_for_previous();
    int n = a.pass->n, e = threadIdx.x, ld = a.experts + 1;
    if (e < MAX_EXPERTS / 32) kept[e] = FULL;
    __syncthreads();
    for (int again = 0; again <= (a.top_p < 2.0f); again++) {
        for (int r = warp_id(); r < n; r += MAX_EXPERTS / 32) pick(ids[r], p[r], a.logits + (size_t)r * ld, kept, a.experts, a.picks);
        __syncthreads();
        mark_users(users, ids, p, n, a.picks);
        if (a.top_p < 2.0f && !again) choose_coreset(kept, mass, users, ids, p, a.experts, a.picks, a.top_p);
    }
    int used = __popc(users[e]);
    int2 at = scan(used, used > 0, sums);
    Route* out = a.route;
    if (used) {
        out->expert[at.y] = e, out->first[at.y] = at.x;
        int slot = at.x;
        for (u32 rows = users[e]; rows; rows &= rows - 1) {
            int r = __ffs(rows) - 1;
            float sum = 0;
            for (int j = 0; j < a.picks; j++) sum += p[r][j];
            out->row[slot] = r, out->weight[slot++] = picked(ids[r], p[r], e, a.picks) / sum;
        }
    }
    if (e == MAX_EXPERTS - 1) {  // the last thread knows the totals
        int distinct = at.y + (used > 0), slots = at.x + used;
        out->count = distinct + 1, out->expert[distinct] = a.experts;
        out->first[distinct] = slots, out->first[distinct + 1] = slots + n;
        sums[0][0] = slots;
    }
    __syncthreads();
    if (e < n) {
        out->row[sums[0][0] + e] = e;
        out->weight[sums[0][0] + e] = sigmoid(a.logits[(size_t)e * ld + a.experts]);
    }
}

struct ExpertArgs {
    const u8* const* gate;  // [experts + 1], the shared expert last
    const u8* const* up;
    const u8* const* down;
    int gate_type[2], up_type[2], down_type[2];  // of the routed and of the shared experts
    Acts x;                 // [rows, hidden]
    Acts act;               // [slots, width]
    float* residual;        // [rows, hidden]
    const Route* route;
    const Pass* pass;
    int experts, hidden, width;
};

// act = silu(gate x) * (up x) for 32 channels of one expert at a time, quantized. A persistent grid.
RESIDENT_KERNEL(moe_gate_up, 256, NT == 1 ? 3 : 2, ExpertArgs) {
    __shared__ float partial[8][16 * COLUMNS];  // warp 4k + i: half k of the inputs; gate, gate, up, up
    wait_for_previous();
    const Route& route = *a.route;
    int tiles = a.width / 32, items = route.count * tiles, warp = warp_id(), part = warp & 3;
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        int entry = item / tiles, tile = item % tiles, e = route.expert[entry], shared = e == a.experts;
        int first = route.first[entry], count = route.first[entry + 1] - first;
        float acc[NT][4];
        clear(acc);
        multiply(acc, (part < 2 ? a.gate_type : a.up_type)[shared], (part < 2 ? a.gate : a.up)[e], a.width,
                 32 * tile + 16 * (part & 1), a.hidden, warp / 4, 2, a.x, columns_of(count, route.row + first, 0));
        store_tile(partial[warp], acc);
        __syncthreads();
        for (int c = warp; c < count; c += 8) {
            int lane = lane_id(), which = lane / 16, at = lane % 16 * COLUMNS + c;
            float gate = partial[which][at] + partial[4 + which][at], up = partial[2 + which][at] + partial[6 + which][at];
            store_acts1(a.act, (size_t)(first + c) * a.width + 32 * tile + lane, silu(gate) * up);
        }
        __syncthreads();
    }
}

// residual += sum over a row's experts of weight * (down act). A block owns 16 channels of all rows; its warps share the
// (expert, step) pairs and are added up in a fixed order.
constexpr int DOWN_WARPS = NT == 1 ? 24 : 16;  // one block a multiprocessor: there are few, and each reads much

KERNEL(moe_down, 32 * DOWN_WARPS, ExpertArgs) {
    __shared__ float sums[DOWN_WARPS][16 * COLUMNS];
    wait_for_previous();
    const Route& route = *a.route;
    int row0 = 16 * blockIdx.x, warp = warp_id(), g = lane_id() >> 2, t = lane_id() & 3, steps = (a.width + 255) / 256;
    for (int i = lane_id(); i < 16 * COLUMNS; i += 32) sums[warp][i] = 0;
    __syncwarp();
    for (int item = warp; item < route.count * steps; item += DOWN_WARPS) {
        int entry = item / steps, e = route.expert[entry], first = route.first[entry], count = route.first[entry + 1] - first;
        float acc[NT][4];
        clear(acc);
        multiply(acc, a.down_type[e == a.experts], a.down[e], a.hidden, row0, a.width, item % steps, steps, a.act,
                 columns_of(count, nullptr, first));
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                int column = 8 * i + 2 * t + c % 2;
                if (column >= count) continue;
                int at = (g + 8 * (c / 2)) * COLUMNS + route.row[first + column];
                sums[warp][at] += route.weight[first + column] * acc[i][c];
            }
        __syncwarp();
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 16 * a.pass->n; i += blockDim.x) {
        int row = i % 16, r = i / 16;
        if (row0 + row >= a.hidden) continue;
        float v = 0;
#pragma unroll
        for (int w = 0; w < DOWN_WARPS; w++) v += sums[w][row * COLUMNS + r];
        a.residual[(size_t)r * a.hidden + row0 + row] += v;
    }
}
