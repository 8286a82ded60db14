package verbstest

import (
	"errors"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

var limitTests = []subtest{
	{"LimitsExhausted", limitsExhausted},
	{"CQOverrun", cqOverrun},
}

// reachable is the largest limit that is worth creating objects up to.
const reachable = 1 << 12

// limitsExhausted makes objects of each kind until the device has no more: the
// next is ErrLimit, costs nothing, and works when one has gone.
func limitsExhausted(e *env) {
	open := e.cfg.OpenLimited
	if open == nil {
		open = e.cfg.Open
	}
	d := e.open(open)
	c := d.Caps()
	pd := e.allocPD(d)
	cq := e.queue(d, 16).cq
	mem := make([]byte, 3*max(c.PageSize, 1))
	closer := func(p phase, err error, f func() error) (func() error, error) {
		if err != nil {
			return nil, err
		}
		e.later(p, f)
		return f, nil
	}
	tried := 0
	for _, k := range []struct {
		name  string
		limit int
		ok    bool
		make  func() (func() error, error)
	}{
		{"PD", c.MaxPD, true, func() (func() error, error) {
			x, err := d.AllocPD()
			return closer(phasePD, err, func() error { return x.Close() })
		}},
		{"CQ", c.MaxCQ, true, func() (func() error, error) {
			x, err := d.CreateCQ(verbs.CQConfig{Depth: 1})
			return closer(phaseCQ, err, func() error { return x.Close() })
		}},
		{"MR", c.MaxMR, true, func() (func() error, error) {
			x, err := pd.RegMR(mem[:1], accLocal)
			return closer(phaseMR, err, func() error { return x.Deregister() })
		}},
		{"QP", c.MaxQP, true, func() (func() error, error) {
			q, err := d.CreateCQ(verbs.CQConfig{Depth: 2})
			if err != nil {
				return nil, err
			}
			x, err := pd.CreateQP(verbs.QPConfig{SendCQ: q, MaxSendWR: 1, MaxRecvWR: 1})
			if err != nil {
				require.NoError(e, q.Close())
			}
			return closer(phaseQP, err, func() error {
				if err := closeQP(x); err != nil {
					return err
				}
				return q.Close()
			})
		}},
		{"SRQ", c.MaxSRQ, c.SRQ, func() (func() error, error) {
			x, err := pd.CreateSRQ(verbs.SRQConfig{MaxWR: 1})
			return closer(phaseSRQ, err, func() error { _, err := x.Close(); return err })
		}},
		{"MW", c.MaxMW, c.MW2, func() (func() error, error) {
			x, err := pd.AllocMW()
			return closer(phaseWindow, err, func() error { return x.Close() })
		}},
		{"pages", int(min(c.MaxPages, reachable+1)), c.MaxPages > 0, func() (func() error, error) {
			x, err := pd.RegMR(mem, accLocal) // three pages or four, as they lie
			return closer(phaseMR, err, func() error { return x.Deregister() })
		}},
	} {
		if !k.ok || k.limit <= 0 || k.limit > reachable {
			e.Logf("%s: limit %d left alone", k.name, k.limit)
			continue
		}
		tried++
		before := d.Stats()
		var made []func() error
		for {
			f, err := k.make()
			if err != nil {
				require.ErrorIs(e, err, verbs.ErrLimit, k.name)
				break
			}
			made = append(made, f)
			require.LessOrEqual(e, len(made), k.limit, "more %ss than the device has", k.name)
		}
		require.NotEmpty(e, made, k.name)
		full := d.Stats()
		_, err := k.make()
		require.ErrorIs(e, err, verbs.ErrLimit, k.name)
		require.NoError(e, made[0]())
		f, err := k.make()
		require.NoError(e, err, "%s: after one was given back", k.name)
		made[0] = f
		now := d.Stats()
		require.Equal(e, liveObjects(full), liveObjects(now), k.name)
		for _, f := range made {
			require.NoError(e, f())
		}
		require.Equal(e, liveObjects(before), liveObjects(d.Stats()), k.name)
		e.Logf("%s: %d made, then ErrLimit", k.name, len(made))
	}
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: c.MaxSGE, MaxRecvSGE: c.MaxSGE, MaxInline: c.MaxInline})
	require.NoError(e, err, "what the capabilities say is what can be had")
	require.NoError(e, closeQP(qp))
	if c.MaxMRSize < 1<<26 {
		_, err := pd.RegMR(make([]byte, c.MaxMRSize+1), accLocal)
		require.Error(e, err)
		tried++
	}
	e.need(tried > 0, "no limit of this device is small enough to reach")
}

func liveObjects(s verbs.Stats) [7]int {
	return [7]int{s.PDs, s.MRs, s.MWs, s.CQs, s.SRQs, s.QPs, int(s.BytesRegistered)}
}

// cqOverrun overruns a CQ that was made to allow it: the event says so, the
// core counts it, and the QPs of that CQ come down with everything given back
// exactly once.
func cqOverrun(e *env) {
	const depth, posted = 4, 60
	overrun := make(chan verbs.Event, 16)
	var cq *verbs.CQ
	var ch *verbs.CompChannel
	p := e.pair(pairOpts{depth: 64, with: func(x *end, c *verbs.QPConfig) {
		if x.name != "a" {
			return
		}
		var err error
		ch, err = x.dev.CreateCompChannel()
		require.NoError(e, err)
		e.later(phaseChannel, ch.Close)
		cq, err = x.dev.CreateCQ(verbs.CQConfig{Depth: depth, Channel: ch, AllowOverrun: true, OnEvent: func(ev verbs.Event) {
			select {
			case overrun <- ev:
			default:
			}
		}})
		require.NoError(e, err)
		e.later(phaseCQ, cq.Close)
		x.sq = &queue{e: e, cq: cq, ch: ch}
		c.SendCQ = cq
	}})
	remote, src := p.b.mem(8, accWrite), p.a.mem(8, accLocal)
	for i := range uint64(posted) {
		if _, err := p.a.qp.PostSend([]verbs.SendWR{remote.to(signaled(i, driver.OpWrite, src.sge(0, 8)), 0)}); err != nil {
			// The overrun may be known already, and the QP retired.
			require.True(e, errors.Is(err, verbs.ErrQPState) || errors.Is(err, verbs.ErrClosed), "%v", err)
			break
		}
	}
	select {
	case ev := <-overrun:
		require.Equal(e, driver.EventCQErr, ev.Type)
		require.Equal(e, cq, ev.CQ)
	case <-e.ctx.Done():
		e.Fatal("no CQ_ERR event")
	}
	require.NotZero(e, p.a.dev.Stats().CQOverruns)
	posts := p.a.dev.Stats().SendsPosted
	back := map[uint64]int{}
	orphans, err := p.a.qp.Close()
	require.NoError(e, err)
	for _, o := range orphans {
		back[o.WRID]++
	}
	require.NotEmpty(e, orphans, "completions were lost: their requests are orphans")
	var wcs [8]verbs.WC
	for {
		n, err := cq.Poll(wcs[:])
		for _, wc := range wcs[:n] {
			back[wc.WRID]++
		}
		if n == 0 || err != nil {
			break
		}
	}
	require.Len(e, back, int(posts)-1) // one was the connection's first
	for wrid, times := range back {
		require.Equal(e, 1, times, "request %d came back more than once", wrid)
	}
	require.Zero(e, src.mr.InFlight())
	require.NoError(e, src.mr.Deregister())
}
