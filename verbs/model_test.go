package verbs_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// modelWR is a request as the simple model sees it.
type modelWR struct {
	wrid     uint64
	op       verbs.Opcode
	recv     bool
	asked    bool // the caller set SendSignaled
	signaled bool // the device was told to complete it
	mrs      []int
	retired  bool // the ledger must have given its memory back
	told     bool // the caller knows that it is over
}

// TestLedgerModel drives one QP on a device that finishes sends and writes in
// order and READs whenever it likes, and holds the ledger against a model that
// is a plain list searched from end to end: what each region is in flight for,
// which Deregister is refused, and that each request ends exactly once, as a
// completion, by a later completion, or as an orphan. It takes 30 steps in each
// of its checks; `make model` takes over a million.
func TestLedgerModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		depth := rapid.SampledFrom([]int{2, 8}).Draw(rt, "depth")
		l := newLoop(func(c *driver.Caps) {
			c.SignalAbove = rapid.SampledFrom([]int{0, 64}).Draw(rt, "signalAbove")
		})
		dev, err := verbs.NewDevice(l, verbs.Config{})
		require.NoError(rt, err)
		pd, err := dev.AllocPD()
		require.NoError(rt, err)
		cq, err := dev.CreateCQ(verbs.CQConfig{Depth: 2 * depth})
		require.NoError(rt, err)

		var (
			mrs    []*verbs.MR // nil: deregistered
			qp     *verbs.QP
			lq     *loopQP
			wrs    []*modelWR // of the QP, in order of posting
			byWRID map[uint64]*modelWR
			byID   map[uint64]*modelWR // by the driver's wr_id
			last   map[bool]uint64     // newest request told by a completion, by queue
			failed bool
			next   uint64
			ended  = map[uint64]string{} // over all QPs: how each request ended
		)
		register := func() {
			m, err := pd.RegMR(make([]byte, 128), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
			require.NoError(rt, err)
			mrs = append(mrs, m)
		}
		create := func() {
			qp, err = pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 2, MaxRecvSGE: 2})
			require.NoError(rt, err)
			_, err := qp.Connect(context.Background(), "x:1", verbs.ConnParam{})
			require.NoError(rt, err)
			lq, wrs, failed = l.last(), nil, false
			byWRID, byID, last = map[uint64]*modelWR{}, map[uint64]*modelWR{}, map[bool]uint64{}
		}
		end := func(w *modelWR, how string) {
			require.Empty(rt, ended[w.wrid], "request %d ended as %s and again as %s", w.wrid, ended[w.wrid], how)
			ended[w.wrid] = how
			w.told = true
		}
		live := func(recv bool) (n int) {
			for _, w := range wrs {
				if w.recv == recv && !w.retired {
					n++
				}
			}
			return n
		}
		inFlight := func(m int) (n int) {
			for _, w := range wrs {
				for _, i := range w.mrs {
					if i == m && !w.retired {
						n++
					}
				}
			}
			return n
		}
		sges := func(rt *rapid.T, w *modelWR, most int) (gs []verbs.SGE) {
			for range rapid.IntRange(0, most).Draw(rt, "sges") {
				m := rapid.IntRange(0, len(mrs)-1).Draw(rt, "mr")
				if mrs[m] == nil {
					continue
				}
				n := rapid.SampledFrom([]uint32{0, 1, 32, 64}).Draw(rt, "len")
				gs = append(gs, verbs.SGE{MR: mrs[m], Offset: 64, Length: n})
				if n > 0 {
					w.mrs = append(w.mrs, m)
				}
			}
			return gs
		}
		register()
		create()

		closeQP := func(rt *rapid.T) {
			orphans, err := qp.Close()
			require.NoError(rt, err)
			for _, o := range orphans {
				w := byWRID[o.WRID]
				require.NotNil(rt, w, "orphan %d was refused", o.WRID)
				require.Equal(rt, w.recv, o.Recv)
				end(w, "orphan")
			}
			back := map[bool]int{}
			for _, w := range slices.Backward(wrs) {
				if back[w.recv]++; back[w.recv] <= depth { // the ledger remembers as far back as the queue is deep
					require.True(rt, w.told, "request %d (%v) has no end", w.wrid, w.op)
				}
				w.retired = true
			}
			again, err := qp.Close()
			require.NoError(rt, err)
			require.Empty(rt, again)
		}
		// poll compares what Poll hands out with what the device had completed.
		poll := func(rt *rapid.T, n int) int {
			l.mu.Lock()
			device := append([]driver.WC(nil), lq.send().wcs...)
			l.mu.Unlock()
			wcs := make([]verbs.WC, n)
			got, err := cq.Poll(wcs)
			require.NoError(rt, err)
			l.mu.Lock()
			device = device[:len(device)-len(lq.send().wcs)]
			l.mu.Unlock()
			out := 0
			for _, dwc := range device {
				c := byID[dwc.WRID]
				require.NotNil(rt, c, "completion of a request of an earlier QP")
				tell := c.asked || dwc.Status != driver.StatusSuccess
				for _, w := range wrs {
					if w == c {
						break
					}
					if w.recv == c.recv && !w.signaled {
						w.retired = true
					}
					if w.recv == c.recv && w.retired && tell && !w.told {
						end(w, "implied")
					}
				}
				c.retired = true
				if tell {
					require.Less(rt, out, got)
					require.Equal(rt, c.wrid, wcs[out].WRID)
					require.Equal(rt, c.op, wcs[out].Opcode)
					require.Equal(rt, dwc.Status, wcs[out].Status)
					out++
					end(c, "completion")
					last[c.recv] = max(last[c.recv], c.wrid)
				} else if c.wrid < last[c.recv] {
					end(c, "implied late") // a READ that nobody asked for, behind a completion that was told
				}
			}
			require.Equal(rt, out, got)
			return got
		}
		post := func(rt *rapid.T, n int) {
			var batch []verbs.SendWR
			var model []*modelWR
			for range n {
				next++
				w := &modelWR{
					wrid: next, asked: rapid.Bool().Draw(rt, "signaled"),
					op: rapid.SampledFrom([]verbs.Opcode{verbs.OpSend, verbs.OpWrite, verbs.OpRead}).Draw(rt, "op"),
				}
				wr := verbs.SendWR{WRID: w.wrid, Opcode: w.op, SGEs: sges(rt, w, 2)}
				if w.asked {
					wr.Flags = verbs.SendSignaled
				}
				batch, model = append(batch, wr), append(model, w)
			}
			l.mu.Lock()
			l.refuse = rapid.SampledFrom([]int{-1, -1, 0, 1, 2}).Draw(rt, "refuse")
			refuse := l.refuse
			before := len(lq.sq)
			l.mu.Unlock()
			room := depth - live(false)
			got, err := qp.PostSend(batch)
			l.mu.Lock()
			l.refuse = -1
			posted := lq.sq[before:]
			l.mu.Unlock()
			if failed {
				require.Zero(rt, got)
				require.ErrorIs(rt, err, verbs.ErrQPState)
				return
			}
			if got < n {
				require.ErrorIs(rt, err, verbs.ErrQueueFull)
			} else {
				require.NoError(rt, err)
			}
			if refuse >= 0 {
				require.LessOrEqual(rt, got, refuse)
				require.LessOrEqual(rt, got, room)
			} else {
				require.Equal(rt, min(n, room), got, "however far a READ is behind")
			}
			require.Len(rt, posted, got)
			for i, w := range model[:got] {
				w.signaled = posted[i].Flags&driver.SendSignaled != 0
				if w.asked || w.op == verbs.OpRead {
					require.True(rt, w.signaled)
				}
				wrs, byWRID[w.wrid], byID[posted[i].WRID] = append(wrs, w), w, w
			}
		}

		rt.Repeat(map[string]func(*rapid.T){
			"register": func(rt *rapid.T) {
				if len(mrs) > 6 {
					rt.Skip()
				}
				register()
			},
			"deregister": func(rt *rapid.T) {
				i := rapid.IntRange(0, len(mrs)-1).Draw(rt, "mr")
				if mrs[i] == nil || i == 0 {
					rt.Skip()
				}
				err := mrs[i].Deregister()
				if n := inFlight(i); n > 0 {
					var busy *verbs.BusyError
					require.ErrorAs(rt, err, &busy)
					require.Equal(rt, map[uint32]int{qp.QPN(): n}, busy.QPs)
					return
				}
				require.NoError(rt, err)
				_, err = qp.PostSend([]verbs.SendWR{{SGEs: []verbs.SGE{{MR: mrs[i], Length: 1}}}})
				require.Error(rt, err)
				mrs[i] = nil
			},
			"post send": func(rt *rapid.T) {
				post(rt, rapid.IntRange(1, 4).Draw(rt, "n"))
			},
			"overtake": func(rt *rapid.T) {
				for range 4 * depth {
					post(rt, 1)
					i := slices.IndexFunc(lq.sq, func(wr driver.SendWR) bool { return wr.Opcode != driver.OpRead })
					if i < 0 {
						break
					}
					lq.finish(i)
					poll(rt, 1)
				}
			},
			"post receive": func(rt *rapid.T) {
				next++
				w := &modelWR{wrid: next, op: verbs.OpRecv, recv: true, asked: true, signaled: true}
				got, err := qp.PostRecv([]verbs.RecvWR{{WRID: next, SGEs: sges(rt, w, 2)}})
				switch {
				case failed:
					require.ErrorIs(rt, err, verbs.ErrQPState)
				case live(true) == depth:
					require.ErrorIs(rt, err, verbs.ErrQueueFull)
				default:
					require.NoError(rt, err)
					require.Equal(rt, 1, got)
					wrs, byWRID[w.wrid], byID[lq.rq[len(lq.rq)-1].WRID] = append(wrs, w), w, w
				}
			},
			"finish": func(rt *rapid.T) {
				if len(lq.sq) == 0 {
					rt.Skip()
				}
				// The first that is no READ, or one of the READs before it:
				// a READ starts when everything before it has been sent.
				var may []int
				for i := range lq.sq {
					may = append(may, i)
					if lq.sq[i].Opcode != driver.OpRead {
						break
					}
				}
				i := rapid.SampledFrom(may).Draw(rt, "which")
				lq.finish(i)
			},
			"receive": func(rt *rapid.T) {
				if len(lq.rq) == 0 {
					rt.Skip()
				}
				lq.receive(driver.WC{})
			},
			"poll": func(rt *rapid.T) {
				n := rapid.IntRange(1, 5).Draw(rt, "n")
				poll(rt, n)
			},
			"set error": func(rt *rapid.T) {
				if failed {
					rt.Skip()
				}
				require.NoError(rt, qp.SetError())
				failed = true
			},
			"drain": func(rt *rapid.T) {
				if !failed {
					rt.Skip()
				}
				for poll(rt, 4) > 0 {
				}
				if live(false)+live(true) == 0 {
					require.NoError(rt, qp.Drain(context.Background()))
				}
			},
			"close": func(rt *rapid.T) {
				closeQP(rt)
				create()
			},
			"": func(rt *rapid.T) {
				for i, m := range mrs {
					if m != nil {
						require.Equal(rt, inFlight(i), m.InFlight(), "region %d", i)
						require.Equal(rt, inFlight(i), qp.References(m))
					}
				}
			},
		})

		closeQP(rt)
		for _, m := range mrs {
			if m != nil {
				require.NoError(rt, m.Deregister())
			}
		}
		require.NoError(rt, cq.Close())
		require.NoError(rt, pd.Close())
		require.Empty(rt, dev.Resources())
		require.Zero(rt, dev.Stats().StaleCompletions)
		require.NoError(rt, dev.Close())
	})
}
