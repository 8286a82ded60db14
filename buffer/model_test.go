package buffer

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The arena against a model that has no caches, chunks lists or leases: it
// knows which buffers are live, and from their places which chunks are in use.

const (
	modelChunk  = 64 << 10
	modelChunks = 7 // one of them is the reserve
	modelQuota  = 3 * modelChunk
)

// held is one reference, as the model sees it.
type held struct {
	b     RDMABuffer
	fill  byte
	owner Owner
}

// get is a Get or GetList that was started in a goroutine.
type get struct {
	n      int64
	list   bool
	owner  Owner
	cancel context.CancelFunc
	done   bool
	b      RDMABuffer
	l      *List
	err    error
}

type model struct {
	a *Arena
	// elastic: begins with the first region, and adds and gives up the other
	elastic bool
	quota   Owner
	refs    []held
	posted  []held
	lists   []*List
	owners  map[*List]Owner
	waits   []*get // in order of arrival
	stale   []RDMABuffer
}

// live are the slots in use, with their owners, and whether they are posted.
func (m *model) live() (owners map[uint32]Owner, posted map[uint32]bool) {
	owners, posted = map[uint32]Owner{}, map[uint32]bool{}
	for _, h := range m.refs {
		owners[h.b.num()] = h.owner
	}
	for _, h := range m.posted {
		owners[h.b.num()] = h.owner
		posted[h.b.num()] = true
	}
	for _, l := range m.lists {
		for b := range l.Buffers() {
			owners[b.num()] = m.owners[l]
		}
	}
	return owners, posted
}

// fits says whether the arena has to be able to give slots of these sizes to o
// now: nobody waits.
func (m *model) fits(o Owner, sizes ...int) bool {
	synctest.Wait() // the keeper may be adding memory
	owners, _ := m.live()
	used := map[uint32]int{} // chunk: live slots
	class := map[uint32]int{}
	var spent int64
	for s, so := range owners {
		c := s >> m.a.chunkShift
		used[c]++
		class[c] = m.a.sizes[m.a.chunks[c].class]
		if so == m.quota && o == m.quota {
			spent += int64(class[c])
		}
	}
	need := map[int]int{}
	for _, size := range sizes {
		need[size]++
		spent += int64(size)
	}
	if o == m.quota && spent > modelQuota {
		return false
	}
	free := 0
	for c := range uint32(modelChunks) {
		if m.a.regions[c>>(m.a.rgnShift-m.a.chunkShift)].state != regionLive || m.a.chunks[c].pool == poolReserve && o != Control {
			continue
		}
		if used[c] == 0 {
			free++
		} else {
			need[class[c]] -= modelChunk/class[c] - used[c]
		}
	}
	for size, n := range need {
		if per := modelChunk / size; n > 0 {
			free -= (n + per - 1) / per
		}
	}
	return free >= 0
}

func (m *model) sizesOf(n int64) []int {
	var sizes []int
	for ; n >= modelChunk; n -= modelChunk {
		sizes = append(sizes, modelChunk)
	}
	if n > 0 {
		cl, _ := m.a.classFor(int(n))
		sizes = append(sizes, m.a.sizes[cl])
	}
	return sizes
}

func (m *model) add(t require.TestingT, b RDMABuffer, n int, o Owner) {
	require.Equal(t, n, b.Len())
	require.Zero(t, m.a.offset(b.num())%Page)
	h := held{b: b, fill: byte(len(m.refs)*7 + n), owner: o}
	m.write(h)
	m.refs = append(m.refs, h)
}

func (m *model) write(h held) {
	p := h.b.Bytes()
	p[0], p[len(p)-1] = h.fill, h.fill
}

// settle takes over what the waiting Gets have got, and checks everything.
func (m *model) settle(t *rapid.T) {
	synctest.Wait()
	waits := m.waits[:0]
	for _, g := range m.waits {
		switch {
		case !g.done:
			waits = append(waits, g)
		case g.err != nil:
			require.ErrorIs(t, g.err, context.Canceled)
		case g.list:
			require.Equal(t, g.n, g.l.Len())
			m.lists = append(m.lists, g.l)
			m.owners[g.l] = g.owner
		default:
			m.add(t, g.b, int(g.n), g.owner)
		}
	}
	m.waits = waits
	owners, posted := m.live()
	want := Account{}
	for i := range m.a.regions {
		if m.a.regions[i].state == regionLive {
			want.Total += m.a.cfg.regionBytes(i)
		}
	}
	if !m.elastic {
		require.EqualValues(t, modelChunks*modelChunk, want.Total)
	}
	for s := range owners {
		size := int64(m.a.sizes[m.a.chunks[s>>m.a.chunkShift].class])
		if posted[s] {
			want.Posted += size
		} else {
			want.Held += size
		}
	}
	for _, w := range m.gathered() { // what a waiter has gathered counts as held
		want.Held += w
	}
	want.Free = want.Total - want.Held - want.Posted
	require.Equal(t, want, m.a.Account())
}

func (m *model) gathered() (sizes []int64) {
	m.a.mu.Lock()
	defer m.a.mu.Unlock()
	for i := range m.a.lines {
		for w := m.a.lines[i].first; w != nil; w = w.next {
			if w.want() > 1 {
				for _, s := range w.got {
					sizes = append(sizes, int64(m.a.sizes[m.a.chunks[s.slot>>m.a.chunkShift].class]))
				}
			}
		}
	}
	return sizes
}

func (m *model) owner(t *rapid.T) Owner {
	return rapid.SampledFrom([]Owner{Anonymous, Anonymous, m.quota, Control}).Draw(t, "owner")
}

func take[T any](t *rapid.T, from *[]T) T {
	if len(*from) == 0 {
		t.Skip("none")
	}
	i := rapid.IntRange(0, len(*from)-1).Draw(t, "which")
	x := (*from)[i]
	*from = append((*from)[:i:i], (*from)[i+1:]...)
	return x
}

func pick[T any](t *rapid.T, from []T) T {
	if len(from) == 0 {
		t.Skip("none")
	}
	return from[rapid.IntRange(0, len(from)-1).Draw(t, "which")]
}

// noDeadline hides the deadline of a test, which a bubble may not ask for.
type noDeadline struct{ rapid.TB }

// Logf says nothing of checks that have passed.
func (t noDeadline) Logf(format string, args ...any) {
	if t.Failed() {
		t.TB.Logf(format, args...)
	}
}

// TestArenaModel takes some thousand steps. ARGONAUT_MODEL_STEPS is how many it
// takes at least instead, of each mode, as `make model` has it.
func TestArenaModel(t *testing.T) {
	steps := 1
	if v := os.Getenv("ARGONAUT_MODEL_STEPS"); v != "" {
		var err error
		steps, err = strconv.Atoi(v)
		require.NoError(t, err)
	}
	bothModes(t, func(t *testing.T, mode func(*Arena) *Arena) {
		taken := 0
		for taken < steps && !t.Failed() {
			// A check ends after 24 hours, which pass quickly in a bubble.
			synctest.Test(t, func(t *testing.T) {
				rapid.Check(noDeadline{t}, func(rt *rapid.T) { runModel(t, rt, mode, &taken) })
			})
		}
		t.Logf("%d steps", taken)
	})
}

// runModel is one arena's life. It adds the steps that it takes to steps.
func runModel(tb testing.TB, t *rapid.T, mode func(*Arena) *Arena, steps *int) {
	cfg := Config{
		Budget: modelChunks * modelChunk, Classes: []int{4 << 10, 16 << 10, modelChunk}, RegionSize: 4 * modelChunk,
		Reserve: modelChunk, Trace: rapid.Bool().Draw(t, "trace"), Scrub: rapid.Bool().Draw(t, "scrub"),
	}
	elastic := rapid.Bool().Draw(t, "elastic")
	if elastic {
		cfg.Initial, cfg.ShrinkAfter = 4*modelChunk, time.Minute
	}
	a, err := New(cfg)
	require.NoError(t, err)
	mode(a)
	m := &model{a: a, elastic: elastic, quota: a.Owner("quota", modelQuota), owners: map[*List]Owner{}}
	defer func() { // whatever happened, no goroutine stays
		for _, g := range m.waits {
			g.cancel()
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = a.Close(ctx)
		synctest.Wait()
	}()
	size := func() int { return rapid.IntRange(1, modelChunk).Draw(t, "n") }
	small := func() int { return rapid.IntRange(1, 20<<10).Draw(t, "n") }
	wait := func(g *get) {
		ctx, cancel := context.WithCancel(context.Background())
		g.cancel = cancel
		m.waits = append(m.waits, g)
		go func() { // ends when served or cancelled, at the latest at the end of the run
			if g.list {
				g.l, g.err = a.GetList(ctx, g.n, g.owner)
			} else {
				g.b, g.err = a.Get(ctx, int(g.n), g.owner)
			}
			g.done = true
		}()
	}
	tryGet := func(n int) {
		o := m.owner(t)
		b, ok := a.TryGet(n, o)
		if !ok && elastic { // it grows now
			synctest.Wait()
			b, ok = a.TryGet(n, o)
		}
		if len(m.waits) == 0 {
			require.Equal(t, m.fits(o, m.sizesOf(int64(n))...), ok)
		}
		if ok {
			m.add(t, b, n, o)
		}
	}
	t.Repeat(map[string]func(*rapid.T){
		"TryGet":      func(*rapid.T) { tryGet(size()) },
		"TryGetSmall": func(*rapid.T) { tryGet(small()) },
		"TryGetList": func(*rapid.T) {
			o, n := m.owner(t), int64(rapid.IntRange(1, 4*modelChunk).Draw(t, "n"))
			l, ok := a.TryGetList(n, o)
			if !ok && elastic {
				synctest.Wait()
				l, ok = a.TryGetList(n, o)
			}
			if len(m.waits) == 0 {
				require.Equal(t, m.fits(o, m.sizesOf(n)...), ok)
			}
			if ok {
				require.Equal(t, n, l.Len())
				m.lists = append(m.lists, l)
				m.owners[l] = o
			}
		},
		"Get": func(*rapid.T) { wait(&get{n: int64(size()), owner: m.owner(t)}) },
		"GetList": func(*rapid.T) {
			wait(&get{n: int64(rapid.IntRange(1, modelQuota).Draw(t, "n")), owner: m.owner(t), list: true})
		},
		"Cancel": func(*rapid.T) { pick(t, m.waits).cancel() },
		"Retain": func(*rapid.T) {
			h := pick(t, m.refs)
			h.b = h.b.Retain()
			m.refs = append(m.refs, h)
		},
		"Slice": func(*rapid.T) {
			h := pick(t, m.refs)
			i := rapid.IntRange(0, h.b.Len()).Draw(t, "i")
			v := h.b.Slice(i, h.b.Len())
			require.Equal(t, h.b.Len()-i, v.Len())
			if v.Len() > 0 {
				require.Equal(t, h.fill, v.Bytes()[v.Len()-1])
			}
		},
		"Read": func(*rapid.T) {
			h := pick(t, m.refs)
			require.Equal(t, h.fill, h.b.Bytes()[0])
			require.Equal(t, h.fill, h.b.Bytes()[h.b.Len()-1])
		},
		"Release": func(*rapid.T) { m.release(take(t, &m.refs).b) },
		"ReleaseMany": func(*rapid.T) {
			for range min(10, len(m.refs)) {
				m.release(take(t, &m.refs).b)
			}
		},
		"ReleaseList": func(*rapid.T) {
			l := take(t, &m.lists)
			delete(m.owners, l)
			l.Release()
		},
		"Post": func(*rapid.T) {
			h := pick(t, m.refs)
			h.b.RetainPosted()
			m.posted = append(m.posted, h)
		},
		"Complete": func(*rapid.T) {
			h := take(t, &m.posted)
			require.Equal(t, h.fill, h.b.Bytes()[0])
			h.b.ReleasePosted()
			m.outdated(h.b)
		},
		"SwitchTrace": func(*rapid.T) { a.SetTrace(!a.Tracing()) },
		"Lasting":     func(*rapid.T) { a.Lasting(m.quota) },
		"Idle": func(*rapid.T) {
			time.Sleep(3 * time.Minute)
			synctest.Wait()
			owners, _ := m.live()
			used := false
			for s := range owners {
				used = used || s>>a.rgnShift == 1
			}
			if r := &a.regions[1]; elastic && len(m.waits) == 0 && !used && !r.kept.Load() && a.freeChunks*modelChunk >= int(a.cfg.RegionSize) {
				require.Equal(t, regionNone, r.state, "an idle region is given up")
			}
			if used {
				require.Equal(t, regionLive, a.regions[1].state)
			}
		},
		"Stale": func(*rapid.T) {
			b := pick(t, m.stale)
			for _, use := range []func(){func() { b.Release() }, func() { b.Retain() }, func() { b.Bytes() }, b.RetainPosted, b.ReleasePosted} {
				require.Panics(t, use)
			}
		},
		"": func(*rapid.T) {
			*steps++
			m.settle(t)
			check(tb, a)
		},
	})
	m.finish(t)
}

// release gives b back, and remembers it if that was the last reference.
func (m *model) release(b RDMABuffer) {
	b.Release()
	m.outdated(b)
}

func (m *model) outdated(b RDMABuffer) {
	owners, _ := m.live()
	if _, ok := owners[b.num()]; !ok {
		m.stale = append(m.stale, b)
	}
}

// finish closes the arena with its buffers still held, then gives them back.
func (m *model) finish(t *rapid.T) {
	var leak *LeakError
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	m.settle(t)
	waits := m.waits
	owners, _ := m.live()
	err := m.a.Close(ctx)
	synctest.Wait()
	for _, g := range waits {
		require.True(t, g.done)
		require.ErrorIs(t, g.err, ErrClosed)
		g.cancel()
	}
	if len(owners) == 0 {
		require.NoError(t, err)
		return
	}
	require.True(t, errors.As(err, &leak), "%v", err)
	// With tracing, at present or for a while, a slot is listed once for each
	// reference that has a stack.
	traced := slices.ContainsFunc(leak.Holders, func(h Holder) bool { return h.Stack != "" })
	if !m.a.cfg.Trace && !traced {
		require.Len(t, leak.Holders, len(owners))
	}
	_, ok := m.a.TryGet(1, Control)
	require.False(t, ok)
	for _, h := range m.refs {
		h.b.Release()
	}
	for _, h := range m.posted {
		h.b.ReleasePosted()
	}
	for _, l := range m.lists {
		l.Release()
	}
	require.NoError(t, m.a.Close(ctx))
	require.NoError(t, m.a.Close(ctx))
}
