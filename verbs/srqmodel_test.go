package verbs_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// TestSRQModel drives an SRQ with several QPs that come and go, on a device that
// takes its entries in any order, and holds the slot table against a set: what
// each region is in flight for, and that each entry comes back exactly once,
// from Poll or from a Close.
func TestSRQModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const depth = 8
		l := newLoop(nil)
		dev, err := verbs.NewDevice(l, verbs.Config{})
		require.NoError(rt, err)
		pd, err := dev.AllocPD()
		require.NoError(rt, err)
		cq, err := dev.CreateCQ(verbs.CQConfig{Depth: 64})
		require.NoError(rt, err)
		srq, err := pd.CreateSRQ(verbs.SRQConfig{MaxWR: depth, MaxSGE: 2})
		require.NoError(rt, err)
		var mrs [3]*verbs.MR
		for i := range mrs {
			mrs[i], err = pd.RegMR(make([]byte, 64), verbs.AccessLocalWrite)
			require.NoError(rt, err)
		}
		type conn struct {
			qp *verbs.QP
			lq *loopQP
		}
		var (
			qps    []conn
			ls     *loopSRQ
			next   uint64
			posted = map[uint64][]int{} // entries that have not come back, and their regions
			taken  int                  // completions in the CQ
		)
		create := func() {
			qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, SRQ: srq, MaxSendWR: 4})
			require.NoError(rt, err)
			_, err = qp.Connect(context.Background(), "x:1", verbs.ConnParam{})
			require.NoError(rt, err)
			qps = append(qps, conn{qp, l.last()})
			ls = l.last().attr.SRQ.(*loopSRQ)
		}
		create()
		back := func(id uint64) {
			require.Contains(rt, posted, id, "came back twice, or was never posted")
			delete(posted, id)
		}
		inFlight := func(m int) (n int) {
			for _, ms := range posted {
				for _, i := range ms {
					if i == m {
						n++
					}
				}
			}
			return n
		}
		closeQP := func(i int) {
			orphans, err := qps[i].qp.Close()
			require.NoError(rt, err)
			for _, o := range orphans {
				require.True(rt, o.Recv)
				back(o.WRID)
				taken--
			}
			qps = append(qps[:i], qps[i+1:]...)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"post": func(rt *rapid.T) {
				var wrs []verbs.RecvWR
				var ms [][]int
				for range rapid.IntRange(1, 4).Draw(rt, "n") {
					next++
					wr := verbs.RecvWR{WRID: next}
					var m []int
					for range rapid.IntRange(0, 2).Draw(rt, "sges") {
						i := rapid.IntRange(0, len(mrs)-1).Draw(rt, "mr")
						wr.SGEs = append(wr.SGEs, verbs.SGE{MR: mrs[i], Length: 1})
						m = append(m, i)
					}
					wrs, ms = append(wrs, wr), append(ms, m)
				}
				l.mu.Lock()
				l.refuse = rapid.SampledFrom([]int{-1, -1, 0, 1, 2}).Draw(rt, "refuse")
				want := len(wrs)
				if l.refuse >= 0 {
					want = min(want, l.refuse)
				}
				l.mu.Unlock()
				want = min(want, depth-len(posted))
				n, err := srq.PostRecv(wrs)
				l.mu.Lock()
				l.refuse = -1
				l.mu.Unlock()
				require.Equal(rt, want, n)
				if n < len(wrs) {
					require.ErrorIs(rt, err, verbs.ErrQueueFull)
				} else {
					require.NoError(rt, err)
				}
				for i := range n {
					posted[wrs[i].WRID] = ms[i]
				}
			},
			"receive": func(rt *rapid.T) {
				if len(ls.wrs) == 0 || len(qps) == 0 {
					rt.Skip()
				}
				i := rapid.IntRange(0, len(ls.wrs)-1).Draw(rt, "entry")
				ls.wrs[0], ls.wrs[i] = ls.wrs[i], ls.wrs[0]
				c := rapid.SampledFrom(qps).Draw(rt, "qp")
				status := rapid.SampledFrom([]driver.WCStatus{driver.StatusSuccess, driver.StatusWRFlushErr}).Draw(rt, "status")
				c.lq.receive(driver.WC{Status: status})
				taken++
			},
			"poll": func(rt *rapid.T) {
				wcs := make([]verbs.WC, rapid.IntRange(1, 4).Draw(rt, "n"))
				n, err := cq.Poll(wcs)
				require.NoError(rt, err)
				require.Equal(rt, min(len(wcs), taken), n)
				for _, wc := range wcs[:n] {
					require.Equal(rt, verbs.OpRecv, wc.Opcode)
					back(wc.WRID)
				}
				taken -= n
			},
			"create": func(rt *rapid.T) {
				if len(qps) == 3 {
					rt.Skip()
				}
				create()
			},
			"close": func(rt *rapid.T) {
				if len(qps) == 0 {
					rt.Skip()
				}
				closeQP(rapid.IntRange(0, len(qps)-1).Draw(rt, "qp"))
			},
			"": func(rt *rapid.T) {
				require.Equal(rt, len(posted), srq.Posted())
				for i, m := range mrs {
					require.Equal(rt, inFlight(i), m.InFlight())
				}
			},
		})
		for len(qps) > 0 {
			closeQP(0)
		}
		require.Zero(rt, taken)
		orphans, err := srq.Close()
		require.NoError(rt, err)
		for _, o := range orphans {
			back(o.WRID)
		}
		require.Empty(rt, posted)
		for _, m := range mrs {
			require.NoError(rt, m.Deregister())
		}
		require.NoError(rt, cq.Close())
		require.NoError(rt, pd.Close())
		require.Zero(rt, dev.Stats().StaleCompletions)
		require.NoError(rt, dev.Close())
	})
}
