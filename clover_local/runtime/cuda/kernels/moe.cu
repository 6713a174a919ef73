// Mixture of experts: routing (with the block coreset of a preview), gate and up with SwiGLU, down with the weighted sum.
// Work is grouped by expert, so that an expert's weights are read once for all rows that use it. Experts are reached
// through tables of pointers, so each may lie anywhere the card can read. The shared expert, which every row uses, is one
// more entry; its gate and up are computed with the router, before anybody knows the others.
#include "tile.cuh"

#ifndef EXPERTS
#define EXPERTS 256
#endif
#ifndef HIDDEN
#define HIDDEN 2048
#define WIDTH 512  // channels of an expert
#endif
constexpr int MAX_EXPERTS = 512;
constexpr int MAX_PICKS = 16;  // experts of one row
constexpr int GROUPS = (EXPERTS + 31) / 32;
constexpr int STRIDE = COLUMNS + 1;  // of an expert's chances: threads of neighbouring experts meet no bank twice

// The outcome of routing. A slot is one pair (expert, row); the slots of an expert lie together.
struct Route {
    int count;                        // distinct experts, the shared one last
    int expert[MAX_EXPERTS + 1];
    int first[MAX_EXPERTS + 2];       // slots of entry i: first[i] .. first[i + 1] - 1
    int row[MAX_ROWS * (MAX_PICKS + 1)];
    float weight[MAX_ROWS * (MAX_PICKS + 1)];
    const u8* gate[MAX_EXPERTS + 1];  // the entries' matrices
    const u8* up[MAX_EXPERTS + 1];
    const u8* down[MAX_EXPERTS + 1];
};

struct RouteArgs {
    const float* logits;  // [rows, ld]: experts, then the shared expert's gate
    Route* route;
    const Pass* pass;
    const u8* const* gate;  // [experts + 1], the shared expert last
    const u8* const* up;
    const u8* const* down;
    const u32* resident;  // bits of the experts that drafts may use
    u32* usage;           // [experts]: rows that picked each; counted by causal passes
    int picks, ld;
    int preview;
    float top_p;          // mass of experts a preview keeps (coreset); not below 2: all
};

// The top picks of one row by one warp among all experts, or (LISTED) `count` of them in ascending order: softmax over them,
// best first, ties to the lower one. Writes each pick's probability, or its share of the row's picks, to
// chance[expert * STRIDE + row].
template <bool LISTED>
__device__ __forceinline__ void pick(float* chance, int row, const float* logits, const u16* experts, int count, int picks, bool shares) {
    float mine[GROUPS], top = -INFINITY, sum = 0, p = 0;
    int lane = lane_id(), id = 0;
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        mine[i] = -INFINITY;
        if (LISTED && 32 * i >= count) break;
        if (32 * i + lane < (LISTED ? count : EXPERTS)) mine[i] = logits[LISTED ? experts[32 * i + lane] : 32 * i + lane];
        top = fmaxf(top, mine[i]);
    }
    top = lanes_max(top);
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        if (LISTED && 32 * i >= count) break;
        mine[i] = mine[i] == -INFINITY ? -1.0f : expf(mine[i] - top);
        sum += fmaxf(mine[i], 0.0f);
    }
    sum = lanes_sum(sum);
    for (int k = 0; k < picks; k++) {
        float best = -1.0f;
        int at = 0;
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            if (LISTED && 32 * i >= count) break;
            if (mine[i] > best) best = mine[i], at = i;
        }
        u32 bits = best < 0 ? 0 : __float_as_uint(best) + 1, high = __reduce_max_sync(FULL, bits);
        if (high == 0) break;  // fewer candidates than picks
        u32 winner = __reduce_min_sync(FULL, bits == high ? (u32)(32 * at + lane) : 0xffffffffu);
        if (lane == k) id = winner, p = __uint_as_float(high - 1) / sum;
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            if (LISTED && 32 * i >= count) break;
            if ((int)winner == 32 * i + lane) mine[i] = -1.0f;
        }
    }
    float all = lanes_sum(p);
    if (p > 0) chance[(LISTED ? experts[id] : id) * STRIDE + row] = shares ? p / all : p;
}

// Exclusive prefix sums of two small counts over the experts' threads; `sums` has 2 x GROUPS entries. All threads call it.
__device__ __forceinline__ int2 scan(int a, int b, int (*sums)[GROUPS]) {
    int x = a, y = b, warp = warp_id();
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        int u = __shfl_up_sync(FULL, x, o), v = __shfl_up_sync(FULL, y, o);
        if (lane_id() >= o) x += u, y += v;
    }
    if (warp < GROUPS && lane_id() == 31) sums[0][warp] = x, sums[1][warp] = y;
    __syncthreads();
    int2 r = {x - a, y - b};
#pragma unroll
    for (int w = 0; w < GROUPS; w++)
        if (w < warp) r.x += sums[0][w], r.y += sums[1][w];
    __syncthreads();
    return r;
}

struct Mass {
    float mass;
    int expert;
};

// The experts whose bits are set, in ascending order; returns how many there are. All threads call it.
__device__ __forceinline__ int list_kept(u16* experts, const u32* kept, int (*sums)[GROUPS]) {
    int e = threadIdx.x;
    bool set = e < EXPERTS && (kept[e / 32] >> e % 32 & 1);
    int at = scan(0, set, sums).y;
    if (set) experts[at] = e;
    if (e == EXPERTS - 1) sums[0][0] = at + set;
    __syncthreads();
    int count = sums[0][0];
    __syncthreads();
    return count;
}

// Keeps the experts of most mass over the rows while the mass before them is below top_p (the first always; 2: all), at
// most `budget` of them (0: any number).
__device__ __forceinline__ void choose_coreset(u32* kept, Mass* used, int (*sums)[GROUPS], const float* chance, int n,
                                               float top_p, int budget) {
    int e = threadIdx.x;
    float own = 0;
    if (e < EXPERTS)
        for (int r = 0; r < n; r++) own += chance[e * STRIDE + r];
    int at = scan(0, own > 0, sums).y;
    if (own > 0) used[at] = {own, e};
    if (e < GROUPS) kept[e] = 0;
    int count = 0;
    if (e == EXPERTS - 1) sums[0][0] = at + (own > 0);
    __syncthreads();
    count = sums[0][0];
    for (int i = threadIdx.x / 4; i < (count + 7) / 8 * 8; i += blockDim.x / 4) {  // whole warps, four lanes an expert
        Mass one = i < count ? used[i] : Mass{0, 0};
        float total = 0, before = 0;
        int rank = 0;
        for (int j = threadIdx.x % 4; j < count; j += 4) {
            Mass other = used[j];
            total += other.mass;
            if (other.mass > one.mass || (other.mass == one.mass && other.expert < one.expert)) before += other.mass, rank++;
        }
        total = lanes_sum<4>(total), before = lanes_sum<4>(before), rank = (int)lanes_sum<4>((float)rank);
        bool keep = i < count && (rank == 0 || before < top_p * total) && (budget == 0 || rank < budget);
        if (keep && threadIdx.x % 4 == 0) atomicOr(kept + one.expert / 32, 1u << one.expert % 32);
    }
    __syncthreads();
}

// One block: a warp a row to pick, then a thread an expert to group.
KERNEL(moe_route, 1024, RouteArgs) {
    DYNAMIC_SHARED(float, chance);  // [EXPERTS][STRIDE], 0: not picked
    __shared__ Mass used[EXPERTS];
    __shared__ u32 kept[GROUPS];
    __shared__ u16 experts[EXPERTS];
    __shared__ int sums[2][GROUPS];
    int e = threadIdx.x, n = a.pass->n, warps = blockDim.x / 32, budget = a.preview ? a.pass->budget : 0;
    int picks = a.preview && a.pass->picks ? a.pass->picks : a.picks;
    float top_p = budget ? 2.0f : a.top_p;
    bool coreset = a.preview && (top_p < 2.0f || budget), limited = a.preview && a.pass->resident;
    const u8 *gate = nullptr, *up = nullptr, *down = nullptr;
    if (e <= EXPERTS) gate = a.gate[e], up = a.up[e], down = a.down[e];
    for (int i = e; i < EXPERTS * STRIDE; i += blockDim.x) chance[i] = 0;
    if (e < GROUPS && limited) kept[e] = a.resident[e];
    __syncthreads();
    int count = limited ? list_kept(experts, kept, sums) : EXPERTS;
    wait_for_previous();
    float shared_gate = e < n ? a.logits[(size_t)e * a.ld + EXPERTS] : 0.0f;
    for (int r = warp_id(); r < n; r += warps) {
        const float* logits = a.logits + (size_t)r * a.ld;
        if (limited) pick<true>(chance, r, logits, experts, count, picks, !coreset);
        else pick<false>(chance, r, logits, experts, count, picks, !coreset);
    }
    __syncthreads();
    if (coreset) {
        choose_coreset(kept, used, sums, chance, n, top_p, budget);
        for (int i = e; i < EXPERTS * STRIDE; i += blockDim.x) chance[i] = 0;
        count = list_kept(experts, kept, sums);
        for (int r = warp_id(); r < n; r += warps) pick<true>(chance, r, a.logits + (size_t)r * a.ld, experts, count, picks, true);
        __syncthreads();
    }
    int users = 0;
    if (e < EXPERTS)
        for (int r = 0; r < n; r++) users += chance[e * STRIDE + r] > 0;
    int2 at = scan(users, users > 0, sums);
    Route* out = a.route;
    if (users) {
        out->expert[at.y] = e, out->first[at.y] = at.x;
        out->gate[at.y] = gate, out->up[at.y] = up, out->down[at.y] = down;
        int slot = at.x;
        for (int r = 0; r < n; r++) {
            float share = chance[e * STRIDE + r];
            if (share > 0) out->row[slot] = r, out->weight[slot++] = share;
        }
        if (a.usage && !a.preview) a.usage[e] += users;
    }
    if (e == EXPERTS - 1) sums[0][0] = at.x + users, sums[1][0] = at.y + (users > 0);
    __syncthreads();
    int slots = sums[0][0], distinct = sums[1][0];
    if (e == EXPERTS) {
        out->count = distinct + 1, out->expert[distinct] = EXPERTS;
        out->gate[distinct] = gate, out->up[distinct] = up, out->down[distinct] = down;
        out->first[distinct] = slots, out->first[distinct + 1] = slots + n;
    }
    if (e < n) out->row[slots + e] = e, out->weight[slots + e] = sigmoid(shared_gate);
}

struct ExpertArgs {
    Acts x;               // [rows, hidden]
    Acts act;             // [slots, width]
    const float* shared;  // [rows, ld]: gate and up of the shared expert, side by side
    float* residual;      // [rows, hidden]
    const Route* route;
    const Pass* pass;
    int gate_type, up_type;
    int down_type[2];     // of the routed and of the shared experts
    int ld;
};

// 32 channels of the shared expert, whose matrices have been multiplied already.
__device__ __forceinline__ void finish_shared(const ExpertArgs& a, int tile, int first) {
    int n = a.pass->n, at = 32 * tile + lane_id();
    for (int c = warp_id(); c < n; c += blockDim.x / 32) {
        const float* row = a.shared + (size_t)c * a.ld;
        store_acts1(a.act, first + c, WIDTH, at, silu(row[at]) * row[WIDTH + at]);
    }
}

#ifndef STAGED_X
#define STAGED_X 0  // 1: activations pass through shared memory too, all of them and once
#endif

// One item of moe_gate_up: 32 channels of one entry.
struct Item {
    int entry, tile, first, count;
};

__device__ __forceinline__ Item item_of(const Route& route, int item, int tiles) {
    int entry = item / tiles, first = route.first[entry];
    return {entry, item % tiles, first, route.first[entry + 1] - first};
}

// Starts the copies of an item's rows of the gate and of the up matrix.
__device__ __forceinline__ void fetch_item(const ExpertArgs& a, const Route& route, u8* gate_rows, u8* up_rows, int item, int items, int tiles) {
    if (item < items) {
        int entry = item / tiles, row0 = 32 * (item % tiles), gate = row_size(a.gate_type, HIDDEN), up = row_size(a.up_type, HIDDEN);
        stage(gate_rows, route.gate[entry] + (size_t)row0 * gate, gate, 32, threadIdx.x, 256);
        stage(up_rows, route.up[entry] + (size_t)row0 * up, up, 32, threadIdx.x, 256);
    }
    commit_copies();
}

// act of 32 channels from the sums of all warps (4k + i: half k of the inputs; gate, gate, up, up).
__device__ __forceinline__ void finish_routed(const ExpertArgs& a, const Item& item, const float* partial) {
    constexpr int TILE = 16 * COLUMNS;
    int lane = lane_id();
    for (int c = warp_id(); c < item.count; c += 8) {
        const float* p = partial + lane / 16 * TILE + lane % 16 * COLUMNS + c;
        float g = p[0] + p[4 * TILE], u = p[2 * TILE] + p[6 * TILE];
        store_acts1(a.act, item.first + c, WIDTH, 32 * item.tile + lane, silu(g) * u);
    }
}

// act = silu(gate x) * (up x) for 32 channels of one expert at a time, quantized. A persistent grid.
RESIDENT_KERNEL(moe_gate_up, 256, 2, ExpertArgs) {
    DYNAMIC_SHARED(u8, memory);  // 32 rows of the gate and of the up matrix; the sums of every warp; activations
    wait_for_previous();
    const Route& route = *a.route;
    int tiles = WIDTH / 32, items = (route.count - 1) * tiles, warp = warp_id(), up = warp >> 1 & 1, half = warp & 1;
    u8* up_rows = memory + 32 * staged_stride(row_size(a.gate_type, HIDDEN));
    float *partial = (float*)(STAGED ? up_rows + 32 * staged_stride(row_size(a.up_type, HIDDEN)) : memory), acc[NT][4];
    if (STAGED) fetch_item(a, route, memory, up_rows, blockIdx.x, items, tiles);
    Acts x = a.x;
    if (STAGED_X) {
        u8* to = (u8*)(partial + 8 * 16 * COLUMNS);
        int values = (a.pass->n + 7) / 8 * 8 * HIDDEN, scales = values / 32 * 8;
        x.q = (i8*)to, x.s = (float2*)(to + COLUMNS * HIDDEN);
        for (int i = 16 * threadIdx.x; i < values; i += 16 * 256) copy_async(x.q + i, a.x.q + i);
        for (int i = 16 * threadIdx.x; i < scales; i += 16 * 256) copy_async((u8*)x.s + i, (const u8*)a.x.s + i);
        commit_copies();
    }
    for (int tile = gridDim.x - 1 - blockIdx.x; tile < tiles; tile += gridDim.x) finish_shared(a, tile, route.first[route.count - 1]);
    for (int at = blockIdx.x; at < items; at += gridDim.x) {
        Item item = item_of(route, at, tiles);
        Columns columns = columns_of(item.count, route.row + item.first, 0, HIDDEN);
        int type = up ? a.up_type : a.gate_type;
        clear(acc);
        if (STAGED) {
            await_copies<0>();
            __syncthreads();
            const u8* rows = (up ? up_rows : memory) + 16 * half * staged_stride(row_size(type, HIDDEN));
            multiply_staged(acc, type, rows, HIDDEN, warp / 4, 2, x, columns);
        } else {
            const u8* matrix = up ? route.up[item.entry] : route.gate[item.entry];
            multiply(acc, type, matrix, WIDTH, 32 * item.tile + 16 * half, HIDDEN, warp / 4, 2, x, columns);
        }
        store_tile(partial + warp * 16 * COLUMNS, acc);
        __syncthreads();
        if (STAGED) fetch_item(a, route, memory, up_rows, at + gridDim.x, items, tiles);
        finish_routed(a, item, partial);
        if (!STAGED) __syncthreads();
    }
    if (STAGED) await_copies<0>();
}

// residual += sum over a row's experts of weight * (down act). A block owns 16 channels of all rows. Each of its warps takes
// routed experts in turn, its next one on the way while it works; one more warp takes the shared expert.
#ifndef DOWN_WARPS
#define DOWN_WARPS 15
#endif
constexpr int TEAMS = DOWN_WARPS + 1;

// The slots of one entry, and the rows and weights of the columns a lane holds results of.
struct Slots {
    int first, count, row[NT][2];
    float weight[NT][2];
};

__device__ __forceinline__ Slots slots_of(const Route& route, int first, int count) {
    Slots s;
    s.first = first, s.count = count;
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            int column = 8 * i + 2 * (lane_id() & 3) + c;
            s.row[i][c] = column < count ? route.row[first + column] : -1;
            s.weight[i][c] = column < count ? route.weight[first + column] : 0.0f;
        }
    return s;
}

// Starts the copy of 16 rows of a down matrix by one warp.
__device__ __forceinline__ void fetch_down(u8* to, const u8* matrix, int bytes, int row0) {
    if (STAGED && matrix) stage(to, matrix + (size_t)row0 * bytes, bytes, min(16, HIDDEN - row0), lane_id(), 32);
    commit_copies();
}

// The product of one entry, weighted, to the warp's sums [16][COLUMNS] by row of the pass.
__device__ __forceinline__ void add_expert(const ExpertArgs& a, const Slots& slots, int type, const u8* matrix, const u8* tile, int row0, float* sums) {
    float acc[NT][4];
    clear(acc);
    Columns columns = columns_of(slots.count, nullptr, slots.first, WIDTH);
    if (STAGED) multiply_staged(acc, type, tile, WIDTH, 0, 1, a.act, columns);
    else multiply(acc, type, matrix, HIDDEN, row0, WIDTH, 0, 1, a.act, columns);
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (slots.row[i][c % 2] >= 0) sums[((lane_id() >> 2) + 8 * (c / 2)) * COLUMNS + slots.row[i][c % 2]] += slots.weight[i][c % 2] * acc[i][c];
    __syncwarp();
}

KERNEL(moe_down, 32 * TEAMS, ExpertArgs) {
    DYNAMIC_SHARED(u8, memory);  // two tiles a warp, one of the shared expert, the sums of every warp
    const Route& route = *a.route;  // complete: every block of the kernel ahead has waited for it
    int row0 = 16 * blockIdx.x, warp = warp_id(), lane = lane_id(), routed = route.count - 1, n = a.pass->n;
    int bytes = row_size(a.down_type[0], WIDTH), shared_bytes = row_size(a.down_type[1], WIDTH);
    int size = STAGED ? 16 * staged_stride(bytes) : 0;
    u8 *tiles = memory + 2 * warp * size, *shared_tile = memory + DOWN_WARPS * 2 * size;
    float* all = (float*)(shared_tile + (STAGED ? 16 * staged_stride(shared_bytes) : 0));
    float* sums = all + warp * 16 * COLUMNS;
    for (int i = lane; i < 16 * COLUMNS; i += 32) sums[i] = 0;
    // Lane i knows the warp's entry number i: one read for all of them. More than 32 come in further rounds.
    for (int base = warp; base < (warp < DOWN_WARPS ? routed : 0); base += 32 * DOWN_WARPS) {
        int own = min(base + DOWN_WARPS * lane, routed), first = route.first[own], end = route.first[own + 1];
        u64 matrix = own < routed ? (u64)route.down[own] : 0;
        auto matrix_of = [&](int i) { return (const u8*)(i < 32 ? __shfl_sync(FULL, matrix, i) : 0); };
        fetch_down(tiles, matrix_of(0), bytes, row0);
        fetch_down(tiles + size, matrix_of(1), bytes, row0);
        if (base == warp) wait_for_previous();
        for (int i = 0; i < 32 && base + DOWN_WARPS * i < routed; i++) {
            int at = __shfl_sync(FULL, first, i);
            Slots slots = slots_of(route, at, __shfl_sync(FULL, end, i) - at);
            for (int tile = at / 8; tile <= (at + slots.count - 1) / 8; tile++) warm_blocks(a.act, tile, WIDTH, 0, WIDTH / 32);
            await_copies<1>();
            __syncwarp();
            add_expert(a, slots, a.down_type[0], matrix_of(i), tiles + (i & 1) * size, row0, sums);
            fetch_down(tiles + (i & 1) * size, matrix_of(i + 2), bytes, row0);
        }
        await_copies<0>();
    }
    if (warp == DOWN_WARPS) {
        const u8* matrix = route.down[routed];
        int at = route.first[routed];
        fetch_down(shared_tile, matrix, shared_bytes, row0);
        Slots slots = slots_of(route, at, n);
        wait_for_previous();
        for (int tile = at / 8; tile <= (at + n - 1) / 8; tile++) warm_blocks(a.act, tile, WIDTH, 0, WIDTH / 32);
        await_copies<0>();
        __syncwarp();
        add_expert(a, slots, a.down_type[1], matrix, shared_tile, row0, sums);
    } else if (warp >= routed) {
        wait_for_previous();
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 16 * n; i += blockDim.x) {
        int row = i % 16, r = i / 16;
        if (row0 + row >= HIDDEN) continue;
        float v = 0;
#pragma unroll
        for (int w = 0; w < TEAMS; w++) v += all[(w * 16 + row) * COLUMNS + r];
        a.residual[(size_t)r * HIDDEN + row0 + row] += v;
    }
}
