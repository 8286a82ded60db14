package verbs_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// instant is a loop device whose requests are done when they are posted, and
// which allocates nothing.
type instant struct{ *loop }

type instantPD struct {
	driver.PD
	key driver.MR // the one scoped key
}

type instantQP struct {
	*loopQP
	cq *instantCQ
}

type instantCQ struct {
	driver.CQ
	wcs  [64]driver.WC
	n, i int
}

func (l instant) AllocPD() (driver.PD, error) {
	pd, err := l.loop.AllocPD()
	return &instantPD{pd, instantKey{}}, err
}

func (l instant) CreateCQ(depth int, ch driver.CompChannel, v int) (driver.CQ, error) {
	cq, err := l.loop.CreateCQ(depth, ch, v)
	return &instantCQ{CQ: cq}, err
}

type instantKey struct{}

func (instantKey) Addr() uint64      { return 1 }
func (instantKey) Length() uint64    { return 1 }
func (instantKey) LKey() uint32      { return 0 }
func (instantKey) RKey() uint32      { return 7 }
func (instantKey) Deregister() error { return nil }

func (p *instantPD) RegScoped(driver.MR, uint64, uint64, driver.Access, driver.QP) (driver.MR, error) {
	return p.key, nil
}

func (p *instantPD) CreateQP(a driver.QPAttr) (driver.QP, error) {
	q, err := p.PD.CreateQP(a)
	return &instantQP{q.(*loopQP), a.SendCQ.(*instantCQ)}, err
}

func (q *instantQP) PostSend(wrs []driver.SendWR) (int, error) {
	for i := range wrs {
		if wrs[i].Flags&driver.SendSignaled != 0 {
			q.cq.add(driver.WC{WRID: wrs[i].WRID, Opcode: wrs[i].Opcode, QPN: q.qpn})
		}
	}
	return len(wrs), nil
}

func (q *instantQP) PostRecv(wrs []driver.RecvWR) (int, error) {
	for i := range wrs {
		q.cq.add(driver.WC{WRID: wrs[i].WRID, Opcode: driver.OpRecv, QPN: q.qpn})
	}
	return len(wrs), nil
}

func (c *instantCQ) add(wc driver.WC) {
	c.wcs[c.n] = wc
	c.n++
}

func (c *instantCQ) Poll(wcs []driver.WC) (int, error) {
	n := copy(wcs, c.wcs[c.i:c.n])
	if c.i += n; c.i == c.n {
		c.i, c.n = 0, 0
	}
	return n, nil
}

func newInstant(t testing.TB) (*verbs.QP, *verbs.CQ) {
	dev, err := verbs.NewDevice(instant{newLoop(nil)}, verbs.Config{})
	require.NoError(t, err)
	pd, err := dev.AllocPD()
	require.NoError(t, err)
	cq, err := dev.CreateCQ(verbs.CQConfig{Depth: 256})
	require.NoError(t, err)
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendSGE: 2})
	require.NoError(t, err)
	_, err = qp.Connect(context.Background(), "x:1", verbs.ConnParam{})
	require.NoError(t, err)
	return qp, cq
}

// The core's share of a signalled request: post, poll, retire.
func BenchmarkPostPoll(b *testing.B) {
	qp, cq := newInstant(b)
	mr, err := qp.PD().RegMR(make([]byte, 64), verbs.AccessLocalWrite)
	require.NoError(b, err)
	wr := []verbs.SendWR{{Flags: verbs.SendSignaled, SGEs: []verbs.SGE{{MR: mr, Length: 8}}}}
	wcs := make([]verbs.WC, 16)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := qp.PostSend(wr); err != nil {
			b.Fatal(err)
		}
		if n, err := cq.Poll(wcs); n != 1 || err != nil {
			b.Fatal(n, err)
		}
	}
	_, err = qp.Close()
	require.NoError(b, err)
	require.NoError(b, mr.Deregister())
	require.NoError(b, cq.Close())
	require.NoError(b, qp.PD().Close())
	require.NoError(b, qp.Device().Close())
}
