package iwarp

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// The table against a map: a tag names its region from set to release, and nothing afterwards.
func TestSTagTableModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 40).Draw(t, "limit")
		table := newStagTable(limit)
		live := map[uint32]*region{}
		gone := map[uint32]bool{}
		var tags []uint32
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "alloc") {
				stag, ok := table.alloc()
				if !ok {
					require.GreaterOrEqual(t, len(live), limit-1) // index 0 is never given out
					continue
				}
				require.NotZero(t, stag)
				require.NotContains(t, live, stag)
				r := &region{stag: stag}
				require.Nil(t, table.lookup(stag))
				table.set(stag, r)
				live[stag] = r
				delete(gone, stag)
				tags = append(tags, stag)
			} else if len(tags) > 0 {
				i := rapid.IntRange(0, len(tags)-1).Draw(t, "which")
				table.release(tags[i])
				delete(live, tags[i])
				gone[tags[i]] = true
				tags = append(tags[:i], tags[i+1:]...)
			}
			for stag, r := range live {
				require.Same(t, r, table.lookup(stag))
				require.Nil(t, table.lookup(stag^0x80))
			}
			for stag := range gone {
				require.Nil(t, table.lookup(stag))
			}
		}
	})
}

func TestSTagsDoNotFollowEachOther(t *testing.T) {
	table := newStagTable(1 << 20)
	seen := map[uint32]bool{}
	near := 0
	var last uint32
	for range 5000 {
		stag, ok := table.alloc()
		require.True(t, ok)
		require.False(t, seen[stag>>8])
		seen[stag>>8] = true
		if d := stag>>8 - last>>8; d+16 < 32 {
			near++
		}
		last = stag
	}
	require.Less(t, near, 10)
	require.Nil(t, table.lookup(rand.Uint32()&^0xff)) // one guess of 2^32 against 5000
}

// close returns when the last use has ended, and no use begins after it.
func TestRegionClose(t *testing.T) {
	for range 200 {
		r := new(region)
		r.init(nil, 0, 0, nil, nil)
		var users atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for r.acquire() {
					users.Add(1)
					users.Add(-1)
					r.release()
				}
			})
		}
		r.close()
		require.Zero(t, users.Load())
		wg.Wait()
		require.True(t, r.closed())
	}
}

func TestRegionBounds(t *testing.T) {
	r := new(region)
	r.init(make([]byte, 100), 1000, 0, nil, nil)
	for _, tc := range []struct {
		addr, n, off uint64
		ok           bool
	}{
		{1000, 100, 0, true}, {1099, 1, 99, true}, {1100, 0, 100, true}, {999, 1, 0, false}, {1000, 101, 0, false}, {1100, 1, 0, false},
		{1050, ^uint64(0), 0, false}, {^uint64(0), 2, 0, false}, {0, 1001, 0, false},
	} {
		off, ok := r.offset(tc.addr, tc.n)
		require.Equal(t, tc.ok, ok, "%+v", tc)
		require.Equal(t, tc.off, off, "%+v", tc)
	}
}

func TestRegistrationCostsNoPages(t *testing.T) {
	e := newEnd(t, endConfig{})
	small, big := make([]byte, 4096), make([]byte, 128<<20) // never touched: it costs no memory either
	cost := func(mem []byte) time.Duration {
		best := time.Hour
		for range 20 {
			begin := time.Now()
			m, err := e.pd.RegMR(mem, driver.AccessLocalWrite)
			d := time.Since(begin)
			require.NoError(t, err)
			require.NoError(t, m.Deregister())
			best = min(best, d)
		}
		return best
	}
	s, b := cost(small), cost(big)
	require.Less(t, b, 20*s+20*time.Microsecond, "4 KiB take %v, 128 MiB %v", s, b)
	m, err := e.pd.RegMR(big[1:8192], driver.AccessLocalWrite)
	require.NoError(t, err)
	require.LessOrEqual(t, e.dev.Stats().Pages, int64(3), "head and tail included")
	require.GreaterOrEqual(t, e.dev.Stats().Pages, int64(2))
	require.NoError(t, m.Deregister())
	require.Zero(t, e.dev.Stats().Pages)
}

func TestPinRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &pinner{}
		cover := map[uint64]int{}
		for range rapid.IntRange(0, 8).Draw(t, "ranges") {
			lo := rapid.Uint64Range(0, 12).Draw(t, "lo")
			n := rapid.Uint64Range(1, 6).Draw(t, "n")
			p.ranges = append(p.ranges, pinRange{lo * pageSize, (lo + n) * pageSize})
			for i := lo; i < lo+n; i++ {
				cover[i]++
			}
		}
		left := map[uint64]bool{}
		for _, g := range p.uncovered(pinRange{2 * pageSize, 15 * pageSize}) {
			for a := g.lo / pageSize; a < g.hi/pageSize; a++ {
				require.False(t, left[a], "twice")
				left[a] = true
			}
		}
		for i := uint64(2); i < 15; i++ {
			require.Equal(t, cover[i] == 0, left[i], "page %d", i)
		}
	})
}

// A window or scoped key holds its region; what the driver is told twice changes nothing.
func TestDeregisterIsRefusedUnderKeys(t *testing.T) {
	e := newEnd(t, endConfig{})
	m, err := e.pd.RegMR(make([]byte, 100), driver.AccessLocalWrite)
	require.NoError(t, err)
	s, err := e.pd.RegScoped(m, 10, 20, driver.AccessRemoteWrite, e.qp)
	require.NoError(t, err)
	require.Equal(t, m.Addr()+10, s.Addr())
	require.Error(t, m.Deregister())
	require.NoError(t, s.Deregister())
	require.NoError(t, s.Deregister())
	require.NoError(t, m.Deregister())
	_, err = e.pd.RegScoped(m, 10, 20, driver.AccessRemoteWrite, e.qp)
	require.ErrorIs(t, err, driver.ErrInvalid)
}

// A scoped key is one object: it is made for each payload that a peer fetches.
func TestScopedKeyIsOneObject(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	e := newEnd(t, endConfig{})
	m, err := e.pd.RegMR(make([]byte, 4096), driver.AccessLocalWrite)
	require.NoError(t, err)
	require.LessOrEqual(t, testing.AllocsPerRun(1000, func() {
		k, err := e.pd.RegScoped(m, 0, 100, driver.AccessRemoteRead, e.qp)
		if err != nil || k.Deregister() != nil {
			t.Fatal(err)
		}
	}), 1.0)
	require.NoError(t, m.Deregister())
}
