package verbstest

import (
	"context"
	"runtime"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// rawEnd is one end of a connection made below the core.
type rawEnd struct {
	*env
	caps   driver.Caps
	dev    driver.Device
	pd     driver.PD
	sq, rq driver.CQ
	qp     driver.QP
}

// rawMemory is a region made below the core.
type rawMemory struct {
	mr driver.MR
	b  []byte
}

func (m rawMemory) sge(off, n int) driver.SGE {
	return driver.SGE{Addr: m.mr.Addr() + uint64(off), Length: uint32(n), LKey: m.mr.LKey()}
}

func (e *env) rawEnd(d *verbs.Device) *rawEnd {
	e.Helper()
	x := &rawEnd{env: e, caps: d.Caps(), dev: d.Driver()}
	var err error
	x.pd, err = x.dev.AllocPD()
	require.NoError(e, err)
	e.later(phasePD, x.pd.Dealloc)
	for _, cq := range []*driver.CQ{&x.sq, &x.rq} {
		*cq, err = x.dev.CreateCQ(16, nil, 0)
		require.NoError(e, err)
		e.later(phaseCQ, (*cq).Destroy)
	}
	x.qp, err = x.pd.CreateQP(driver.QPAttr{SendCQ: x.sq, RecvCQ: x.rq, MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2})
	require.NoError(e, err)
	e.later(phaseQP, x.qp.Destroy)
	return x
}

// rawPair connects two ends below the core: a dialed, b accepted.
func (e *env) rawPair() (a, b *rawEnd) {
	e.Helper()
	a, b = e.rawEnd(e.dialer()), e.rawEnd(e.acceptor())
	l, err := b.dev.Listen(e.ctx, e.cfg.ListenAddr)
	require.NoError(e, err)
	g, ctx := errgroup.WithContext(e.ctx)
	g.Go(func() error {
		r, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		return r.Accept(ctx, b.qp, driver.ConnParam{IRD: 4, ORD: 4})
	})
	g.Go(func() error {
		_, err := a.qp.Connect(ctx, e.cfg.dialAddr(e.T, l.Addr()), driver.ConnParam{IRD: 4, ORD: 4})
		return err
	})
	require.NoError(e, g.Wait())
	require.NoError(e, l.Close())
	return a, b
}

func (x *rawEnd) mem(n int, acc driver.Access) rawMemory {
	x.Helper()
	return x.memIn(x.pd, n, acc)
}

func (x *rawEnd) memIn(pd driver.PD, n int, acc driver.Access) rawMemory {
	x.Helper()
	b := make([]byte, n)
	guardFill(b)
	mr, err := pd.RegMR(b, acc)
	require.NoError(x, err)
	x.later(phaseMR, mr.Deregister)
	return rawMemory{mr, b}
}

// next polls cq until it has a completion.
func (x *rawEnd) next(ctx context.Context, cq driver.CQ) driver.WC {
	x.Helper()
	var wc [1]driver.WC
	for {
		n, err := cq.Poll(wc[:])
		require.NoError(x, err)
		if n == 1 {
			return wc[0]
		}
		require.NoError(x, ctx.Err(), "no completion came")
		runtime.Gosched()
	}
}

// errState waits until the device has put the QP of x to ERR.
func (x *rawEnd) errState() {
	x.Helper()
	for {
		s, err := x.qp.State()
		require.NoError(x, err)
		if s == driver.QPStateErr {
			return
		}
		require.NoError(x, x.ctx.Err(), "the QP is in %v, not in ERR", s)
		runtime.Gosched()
	}
}
