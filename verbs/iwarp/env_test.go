package iwarp

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

const testTimeout = 20 * time.Second

func testCtx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// end is one side of a connection under test: a device of its own with one of everything.
type end struct {
	t     testing.TB
	dev   *Device
	pd    driver.PD
	ch    driver.CompChannel
	scq   driver.CQ
	rcq   driver.CQ
	srq   driver.SRQ
	qp    driver.QP
	param driver.ConnParam
}

type endConfig struct {
	cfg      Config
	depth    int  // default 64
	sges     int  // default 4
	srq      bool // receives come from an SRQ
	cqDepth  int  // default 4*depth
	rq       int  // receive depth, default depth
	ord, ird int
}

func newEnd(t testing.TB, c endConfig) *end {
	t.Helper()
	dev, err := OpenDriver(c.cfg)
	require.NoError(t, err)
	e := &end{t: t, dev: dev, param: driver.ConnParam{IRD: c.ird, ORD: c.ord}}
	if c.depth == 0 {
		c.depth = 64
	}
	if c.sges == 0 {
		c.sges = 4
	}
	if c.cqDepth == 0 {
		c.cqDepth = 4 * c.depth
	}
	if c.rq == 0 {
		c.rq = c.depth
	}
	e.pd, err = dev.AllocPD()
	require.NoError(t, err)
	e.ch, err = dev.CreateCompChannel()
	require.NoError(t, err)
	e.scq, err = dev.CreateCQ(c.cqDepth, e.ch, 0)
	require.NoError(t, err)
	e.rcq, err = dev.CreateCQ(c.cqDepth, e.ch, 0)
	require.NoError(t, err)
	a := driver.QPAttr{SendCQ: e.scq, RecvCQ: e.rcq, MaxSendWR: c.depth, MaxRecvWR: c.rq, MaxSendSGE: c.sges, MaxRecvSGE: c.sges, MaxInline: 128}
	if c.srq {
		e.srq, err = e.pd.CreateSRQ(c.rq, c.sges)
		require.NoError(t, err)
		a.SRQ, a.MaxRecvWR = e.srq, 0
	}
	e.qp, err = e.pd.CreateQP(a)
	require.NoError(t, err)
	t.Cleanup(e.close)
	return e
}

// close destroys everything that is left, children first, and fails the test where that is refused.
func (e *end) close() {
	if e.qp != nil {
		require.NoError(e.t, e.qp.Destroy())
	}
	if e.srq != nil {
		require.NoError(e.t, e.srq.Destroy())
	}
	require.NoError(e.t, e.scq.Destroy())
	require.NoError(e.t, e.rcq.Destroy())
	require.NoError(e.t, e.ch.Close())
	require.NoError(e.t, e.pd.Dealloc())
	require.NoError(e.t, e.dev.Close())
}

// reg registers memory until the end of the test.
func (e *end) reg(mem []byte, acc driver.Access) driver.MR {
	e.t.Helper()
	m, err := e.pd.RegMR(mem, acc)
	require.NoError(e.t, err)
	e.t.Cleanup(func() { require.NoError(e.t, m.Deregister()) })
	return m
}

func (e *end) mem(n int, acc driver.Access) ([]byte, driver.MR) {
	e.t.Helper()
	mem := make([]byte, n)
	return mem, e.reg(mem, acc)
}

func sgeOf(m driver.MR, off, n int) driver.SGE {
	return driver.SGE{Addr: m.Addr() + uint64(off), Length: uint32(n), LKey: m.LKey()}
}

func (e *end) recv(id uint64, sges ...driver.SGE) {
	e.t.Helper()
	wrs := []driver.RecvWR{{WRID: id, SGEs: sges}}
	var n int
	var err error
	if e.srq != nil {
		n, err = e.srq.PostRecv(wrs)
	} else {
		n, err = e.qp.PostRecv(wrs)
	}
	require.NoError(e.t, err)
	require.Equal(e.t, 1, n)
}

func (e *end) post(wrs ...driver.SendWR) {
	e.t.Helper()
	n, err := e.qp.PostSend(wrs)
	require.NoError(e.t, err)
	require.Equal(e.t, len(wrs), n)
}

// wait polls c until it has n completions, asleep in between.
func (e *end) wait(c driver.CQ, n int) []driver.WC {
	e.t.Helper()
	ctx := testCtx(e.t)
	wcs := make([]driver.WC, n)
	got := 0
	for {
		require.NoError(e.t, c.ReqNotify(false))
		k, err := c.Poll(wcs[got:])
		require.NoError(e.t, err)
		if got += k; got == n {
			return wcs
		}
		if k > 0 {
			continue
		}
		_, err = e.ch.Wait(ctx)
		require.NoError(e.t, err, "have %d of %d completions", got, n)
	}
}

func (e *end) waitOK(c driver.CQ, n int) []driver.WC {
	e.t.Helper()
	wcs := e.wait(c, n)
	for _, wc := range wcs {
		require.Equal(e.t, driver.StatusSuccess, wc.Status, "wr %d %v", wc.WRID, wc.Opcode)
	}
	return wcs
}

func (e *end) event() driver.Event {
	e.t.Helper()
	ev, err := e.dev.NextEvent(testCtx(e.t))
	require.NoError(e.t, err)
	return ev
}

// connect joins two ends over loopback: a is the initiator.
func connect(t testing.TB, a, b *end, addr string) {
	t.Helper()
	ctx := testCtx(t)
	l, err := b.dev.Listen(ctx, addr)
	require.NoError(t, err)
	errc := make(chan error, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			err = req.Accept(ctx, b.qp, b.param)
		}
		errc <- err
	}()
	_, err = a.qp.Connect(ctx, l.Addr(), a.param)
	require.NoError(t, err)
	require.NoError(t, <-errc)
	require.NoError(t, l.Close())
}

func pair(t testing.TB, c endConfig) (a, b *end) {
	t.Helper()
	a, b = newEnd(t, c), newEnd(t, c)
	connect(t, a, b, "127.0.0.1:0")
	return a, b
}

func pattern(p []byte, seed int) {
	for i := range p {
		p[i] = byte(i*7 + i>>8*13 + seed)
	}
}

// variants are the kinds of connection there are.
var variants = []struct {
	name string
	cfg  Config
}{
	{"ours", Config{}},
	{"ours-crc", Config{CRC: CRCOn}},
	{"strict", Config{Strict: true, CRC: CRCOff}},
	{"strict-crc", Config{Strict: true}},
	{"v1", Config{Strict: true, MPARevision: 1}},
	{"small-segments", Config{SegmentSize: 4096}},
	{"bounce", Config{Dial: wrapDial, Listen: wrapListen}},
	{"bounce-strict-crc", Config{Dial: wrapDial, Listen: wrapListen, Strict: true}},
}
