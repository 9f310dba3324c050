// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
//
// A KV session through a devdax mapping. `session DEVICE open` opens session 0, stores lines and loads them again; `look` tells what poison, and
// what its clearing, did to them; `count` makes stores and loads under the kernel's counters; `close` closes it. `places.h` is made from the device's
// configuration.

#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "places.h"

#define WORDS (8 * LINES)  // of 64 bits
static volatile uint8_t *base;

static volatile uint64_t *at(uint64_t offset) { return (volatile uint64_t *)(base + offset); }
static uint64_t reg(uint64_t offset) { return *at(REGISTER_BASE + offset); }
static void set(uint64_t offset, uint64_t value) { *at(REGISTER_BASE + offset) = value; }

// What is stored as word i: four raw 16-bit elements, none of which is a NaN.
static uint64_t pattern(unsigned i) { return 0x3c003c013c023c03ull + 0x0001000100010001ull * i; }

static int idle(const char *what) {
    for (int i = 0; i < 10000; i++)
        if (!(reg(STATE) & STATE_BUSY)) return 0;
    printf("kelp: failed session %s never ends\n", what);
    return 1;
}

static int opened(void) {
    const uint64_t identity = reg(IDENTITY);
    printf("kelp: identity %#llx %d\n", (unsigned long long)identity, identity == IDENTITY_VALUE);
    printf("kelp: absent %d\n", *at(LINE(0)) == ~0ull);
    for (unsigned i = 0; i < sizeof OPEN / sizeof *OPEN; i++) set(OPEN[i][0], OPEN[i][1]);
    if (idle("open") || !(reg(STATE) & STATE_OPEN)) return puts("kelp: failed session does not open"), 1;
    for (unsigned i = 0; i < WORDS; i++) *at(LINE(i / 8) + 8 * (i % 8)) = pattern(i);
    unsigned differing = 0;
    for (unsigned i = 0; i < WORDS; i++) differing += *at(LINE(i / 8) + 8 * (i % 8)) != pattern(i);
    printf("kelp: words %u\nkelp: words_differing %u\n", WORDS, differing);
    FILE *out = fopen("/tmp/line", "w");
    fprintf(out, "%llu\n", (unsigned long long)LINE(0));
    fclose(out);
    return differing != 0;
}

static int looked(void) {
    unsigned lost = 0, zero = 0, other = 0;
    for (unsigned i = 0; i < WORDS; i++) {
        const uint64_t word = *at(LINE(i / 8) + 8 * (i % 8));
        lost += word == ~0ull;
        zero += word == 0;
        other += word && word != ~0ull && word != pattern(i);
    }
    printf("kelp: lost %u\nkelp: zero %u\nkelp: other %u\n", lost, zero, other);
    return 0;
}

// Counters of the kernel's driver, on processor 0: loads and stores of 8 bytes are a request each.
static int counted(void) {
    enum { LOADS = 200, STORES = 300, EVENTS = sizeof COUNTED / sizeof *COUNTED };
    int files[EVENTS], type, wrong = 0;
    FILE *in = fopen("/sys/bus/event_source/devices/cxl_pmu_mem0.0/type", "r");
    if (!in || fscanf(in, "%d", &type) != 1) return puts("kelp: uncounted no cxl_pmu_mem0.0"), 1;
    for (int i = 0; i < EVENTS; i++) {
        struct perf_event_attr attributes = {.type = type, .size = sizeof attributes, .config = COUNTED[i].config};
        files[i] = syscall(SYS_perf_event_open, &attributes, -1, 0, -1, 0);
        if (files[i] < 0) return printf("kelp: uncounted %s %m\n", COUNTED[i].name), 1;
    }
    uint64_t before[EVENTS], after[EVENTS];
    for (int i = 0; i < EVENTS; i++) wrong |= read(files[i], &before[i], 8) != 8;
    for (int i = 0; i < STORES; i++) *at(LINE(i % LINES)) = pattern(8 * (i % LINES));
    for (int i = 0; i < LOADS; i++) (void)*at(LINE(i % LINES));
    for (int i = 0; i < EVENTS; i++) wrong |= read(files[i], &after[i], 8) != 8;
    for (int i = 0; i < EVENTS; i++) {
        const int expected = COUNTED[i].store ? STORES : LOADS;
        printf("kelp: counted %s %lld %d\n", COUNTED[i].name, (long long)(after[i] - before[i]), expected);
    }
    return wrong;
}

static int closed(void) {
    set(COMMAND, COMMAND_CLOSE);
    if (idle("close")) return 1;
    printf("kelp: closed %d\n", *at(LINE(0)) == ~0ull);
    return 0;
}

int main(int count, char **arguments) {
    if (count != 3) return puts("kelp: failed session DEVICE open|look|count|close"), 1;
    const int file = open(arguments[1], O_RDWR);
    if (file < 0) return printf("kelp: failed open of %s: %m\n", arguments[1]), 1;
    base = mmap(0, MAPPED, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (base == MAP_FAILED) return printf("kelp: failed mmap of %s: %m\n", arguments[1]), 1;
    switch (arguments[2][0]) {
        case 'o': return opened();
        case 'l': return looked();
        default: return strcmp(arguments[2], "count") ? closed() : counted();
    }
}
