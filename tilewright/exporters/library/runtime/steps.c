/* Memory of steps: blocks that values share, and that their slots use again. A slot has the address of a tensor, its
   block (0 where the memory is someone else's), the blocks that wait to be used again, and the dims. */

#if defined(TW_FREESTANDING)
#error "sizes of this model follow from values: its memory comes from the C library"
#endif

enum { FRAME_ARENA = 7, FRAME_SHAPES = 12 };
#define ABSURD ((int64_t)1 << 46)

typedef struct memory {
  int64_t users, bytes;
  int64_t *list; /* where it goes when nobody uses it any more */
  struct memory *next;
} memory;

static int64_t word_of(const void *at) { return (int64_t)(intptr_t)at; }

static void *address_of(int64_t word) { return (void *)(intptr_t)word; }

/* Where the flag is with which a loop goes on. */
static inline int64_t step_true(void) {
  static const unsigned char flag = 1;
  return word_of(&flag);
}

static void step_release(memory *of) {
  if (!of || --of->users) return;
  of->next = address_of(*of->list);
  *of->list = word_of(of);
}

static void step_drop(int64_t *slot) {
  step_release(address_of(slot[SLOT_BLOCK]));
  slot[SLOT_BLOCK] = 0;
}

static void *step_allocated(int64_t bytes) {
  return bytes < 0 || bytes > ABSURD || (uint64_t)bytes > PTRDIFF_MAX ? NULL : aligned_alloc(ALIGNMENT, aligned((size_t)bytes));
}

/* The sum of two sizes; more than there is where one of them is. */
static inline int64_t step_sum(int64_t a, int64_t b) { return a < 0 || b < 0 || a > ABSURD || b > ABSURD ? ABSURD + 1 : a + b; }

static memory *step_block(int64_t *list, int64_t bytes) {
  int64_t more = 0;
  for (memory *first; (first = address_of(*list)) != NULL;) {
    *list = word_of(first->next);
    if (first->bytes >= bytes) {
      first->users = 1;
      return first;
    }
    free(first);
    more = bytes / 2; /* a value that grows will grow on */
  }
  if (bytes > ABSURD) return NULL;
  memory *made = step_allocated(bytes + more + ALIGNMENT);
  if (made) *made = (memory){1, bytes + more, list, NULL};
  return made;
}

/* A block of its own for a value; null without memory. */
static void *step_take(int64_t *slot, int64_t bytes) {
  step_drop(slot);
  memory *made = step_block(slot + SLOT_FREE, bytes);
  if (!made) return NULL;
  slot[SLOT_BLOCK] = word_of(made);
  slot[SLOT_DATA] = word_of((unsigned char *)made + ALIGNMENT);
  return address_of(slot[SLOT_DATA]);
}

/* The block of a value that nobody needs any more, where it alone has it. */
static inline void *step_inherit(int64_t *slot, int64_t *before, int64_t bytes) {
  const memory *of = address_of(before[SLOT_BLOCK]);
  if (!of || of->users != 1) return step_take(slot, bytes);
  step_drop(slot);
  slot[SLOT_BLOCK] = before[SLOT_BLOCK];
  slot[SLOT_DATA] = before[SLOT_DATA];
  before[SLOT_BLOCK] = 0;
  return address_of(slot[SLOT_DATA]);
}

/* What a value refers to, which `step_put` gives to another. */
static inline void step_keep(int64_t *kept, const int64_t *slot, int rank) {
  memory *of = address_of(slot[SLOT_BLOCK]);
  if (of) of->users++;
  for (int k = 0; k < SLOT_DIMS + rank; k++) kept[k] = slot[k];
}

static inline void step_put(int64_t *slot, const int64_t *kept, int rank) {
  step_drop(slot);
  slot[SLOT_DATA] = kept[SLOT_DATA];
  slot[SLOT_BLOCK] = kept[SLOT_BLOCK];
  for (int k = 0; k < rank; k++) slot[SLOT_DIMS + k] = kept[SLOT_DIMS + k];
}

static void step_free(int64_t *slot) {
  for (memory *first; (first = address_of(slot[SLOT_FREE])) != NULL;) {
    slot[SLOT_FREE] = word_of(first->next);
    free(first);
  }
}

/* Memory whose address and size are at `at` becomes large enough; what was there is lost. */
static inline int step_reserve(int64_t *at, int64_t bytes) {
  if ((uint64_t)at[1] >= (uint64_t)bytes) return 1; /* what is below 0 is more than there is */
  free(address_of(at[0]));
  at[0] = word_of(step_allocated(bytes));
  at[1] = at[0] ? bytes : 0;
  return at[0] != 0;
}

/* The product of sizes; more than there is where that is no number. */
static inline int64_t step_bytes(int64_t element, const int64_t *dims, int rank) {
  int64_t total = element;
  int is_absurd = 0;
  for (int k = 0; k < rank; k++)
    if (dims[k] == 0) return 0;
  for (int k = 0; k < rank; k++) {
    is_absurd |= dims[k] < 0 || total > ABSURD / dims[k];
    if (!is_absurd) total *= dims[k];
  }
  return is_absurd ? ABSURD * 2 : total;
}

/* Puts a tensor behind others, which have one axis more. */
static inline int32_t step_append(int64_t *rows, const int64_t *row, int rank, int64_t trip, int64_t bytes) {
  for (int k = 0; k < rank; k++) {
    if (trip && rows[SLOT_DIMS + 1 + k] != row[SLOT_DIMS + k]) return STEPS_ROWS_DIFFER;
    rows[SLOT_DIMS + 1 + k] = row[SLOT_DIMS + k];
  }
  memory *of = address_of(rows[SLOT_BLOCK]);
  if (bytes > ABSURD / (trip + 1)) return STEPS_NO_MEMORY;
  if (!of || of->bytes < (trip + 1) * bytes) {
    memory *larger = step_block(rows + SLOT_FREE, 2 * (trip + 1) * bytes);
    if (!larger) return STEPS_NO_MEMORY;
    unsigned char *to = (unsigned char *)larger + ALIGNMENT;
    if (trip * bytes > 0) memcpy(to, address_of(rows[SLOT_DATA]), (size_t)(trip * bytes));
    step_release(of);
    rows[SLOT_BLOCK] = word_of(larger);
    rows[SLOT_DATA] = word_of(to);
  }
  if (bytes) memcpy((unsigned char *)address_of(rows[SLOT_DATA]) + trip * bytes, address_of(row[SLOT_DATA]), (size_t)bytes);
  rows[SLOT_DIMS] = trip + 1;
  return STEPS_DONE;
}

static int64_t now(void);

/* Asks from time to time whether to go on. */
static inline int step_poll(int64_t *frame, int64_t loop, int64_t trip) {
  if (now() < frame[FRAME_NEXT_POLL]) return 1;
  int32_t (*poll)(int64_t) = (int32_t (*)(int64_t))(intptr_t)frame[FRAME_POLL];
  frame[FRAME_LOOP] = loop;
  frame[FRAME_TRIP] = trip;
  poll(0);
  frame[FRAME_NEXT_POLL] = now() + frame[FRAME_INTERVAL];
  return frame[FRAME_LOOP] == -1;
}
