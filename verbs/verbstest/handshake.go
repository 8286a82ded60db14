package verbstest

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

var handshakeTests = []subtest{
	{"PrivateData", privateData},
	{"PrivateDataTooLong", privateDataTooLong},
	{"Reject", reject},
	{"NobodyListens", nobodyListens},
	{"ConnectDeadline", connectDeadline},
	{"ListenerClosed", listenerClosed},
	{"AcceptDeadline", acceptDeadline},
	{"DialerGone", dialerGone},
	{"AcceptorSendsFirst", acceptorSendsFirst},
	{"ReadLimits", readLimits},
	{"ConnectTwice", connectTwice},
	{"ManyConnect", manyConnect},
	{"BadAddresses", badAddresses},
}

// privateData carries data of every length both ways.
func privateData(e *env) {
	most := e.caps().MaxPrivateData
	require.GreaterOrEqual(e, most, 40, "too little for any handshake")
	idle := e.acceptor().Stats()
	l, addr := e.listen(e.acceptor())
	require.Equal(e, idle.Listeners+1, e.acceptor().Stats().Listeners)
	for _, n := range []int{0, 1, 3, 40, most - 1, most} {
		a, b := e.end("a", e.dialer(), pairOpts{}), e.end("b", e.acceptor(), pairOpts{})
		there, back := make([]byte, n), make([]byte, n)
		fill(there, 1)
		fill(back, 2)
		got := make(chan []byte, 1)
		var g errgroup.Group
		g.Go(func() error {
			r, err := l.Accept(e.ctx)
			if err != nil {
				return err
			}
			got <- r.PrivateData()
			if r.RemoteAddr() == "" || r.LocalAddr() == "" {
				return fmt.Errorf("a request without addresses: %q %q", r.LocalAddr(), r.RemoteAddr())
			}
			if n := b.dev.Stats().ConnRequests; n != idle.ConnRequests+1 {
				return fmt.Errorf("%d requests are live, %d before this one", n, idle.ConnRequests)
			}
			return r.Accept(e.ctx, b.qp, driver.ConnParam{PrivateData: back})
		})
		answer, err := a.qp.Connect(e.ctx, addr, driver.ConnParam{PrivateData: there})
		require.NoError(e, err)
		require.NoError(e, g.Wait())
		require.Equal(e, idle.ConnRequests, b.dev.Stats().ConnRequests, "it has been accepted")
		e.privateIs(<-got, there)
		e.privateIs(answer.PrivateData, back)
		require.Equal(e, a.qp.Features(), b.qp.Features(), "the ends do not agree")
		require.NotEmpty(e, a.qp.LocalAddr())
		require.Equal(e, addr, a.qp.RemoteAddr())
		require.Equal(e, driver.QPStateRTS, a.qp.State())
		a.fence(b)
		b.fence(a)
		require.NoError(e, closeQP(a.qp))
		require.NoError(e, closeQP(b.qp))
	}
}

// privateIs compares private data: RoCE and InfiniBand pad it with zeros, and
// somebody's own may trail it.
func (e *env) privateIs(got, sent []byte) {
	e.Helper()
	require.GreaterOrEqual(e, len(got), len(sent))
	require.NoError(e, sameBytes(got[:len(sent)], sent))
	if e.cfg.PrivateDataTrails {
		return
	}
	if e.caps().Transport == driver.TransportIWARP {
		require.Len(e, got, len(sent))
	}
	for _, b := range got[len(sent):] {
		require.Zero(e, b)
	}
}

func privateDataTooLong(e *env) {
	a := e.end("a", e.dialer(), pairOpts{})
	l, addr := e.listen(e.acceptor())
	_, err := a.qp.Connect(e.ctx, addr, driver.ConnParam{PrivateData: make([]byte, a.caps.MaxPrivateData+1)})
	require.ErrorIs(e, err, verbs.ErrInvalid)
	// The listener has seen nothing of it.
	p := pair{e.end("a", e.dialer(), pairOpts{}), e.end("b", e.acceptor(), pairOpts{})}
	connected := make(chan error, 1)
	go func() { // ends with the connection
		_, err := p.a.qp.Connect(e.ctx, addr, driver.ConnParam{PrivateData: []byte{42}})
		connected <- err
	}()
	r, err := l.Accept(e.ctx)
	require.NoError(e, err)
	e.privateIs(r.PrivateData(), []byte{42})
	err = r.Accept(e.ctx, p.b.qp, driver.ConnParam{PrivateData: make([]byte, p.b.caps.MaxPrivateData+1)})
	require.ErrorIs(e, err, verbs.ErrInvalid)
	require.ErrorIs(e, r.Reject(make([]byte, p.b.caps.MaxPrivateData+1)), verbs.ErrInvalid)
	require.NoError(e, r.Accept(e.ctx, p.b.qp, driver.ConnParam{}), "wrong arguments have changed nothing")
	require.ErrorIs(e, r.Reject(nil), verbs.ErrClosed, "a request is ended once")
	require.NoError(e, <-connected)
}

// reject refuses requests, with reasons of every length.
func reject(e *env) {
	most := e.caps().MaxPrivateData
	l, addr := e.listen(e.acceptor())
	for _, n := range []int{0, 1, 40, most} {
		a := e.end("a", e.dialer(), pairOpts{})
		a.postRecv(verbs.RecvWR{WRID: 0})
		reason := make([]byte, n)
		fill(reason, 3)
		var g errgroup.Group
		g.Go(func() error {
			r, err := l.Accept(e.ctx)
			if err != nil {
				return err
			}
			return r.Reject(reason)
		})
		_, err := a.qp.Connect(e.ctx, addr, driver.ConnParam{})
		require.NoError(e, g.Wait())
		require.ErrorIs(e, err, verbs.ErrRefused)
		var rejected *verbs.RejectError
		require.ErrorAs(e, err, &rejected)
		e.privateIs(rejected.PrivateData, reason)
		require.Equal(e, driver.QPStateErr, a.qp.State())
		e.flushes(a, 0, 1)
	}
}

func nobodyListens(e *env) {
	l, addr := e.listen(e.acceptor())
	require.NoError(e, l.Close())
	a := e.end("a", e.dialer(), pairOpts{})
	a.postRecv(verbs.RecvWR{WRID: 0})
	_, err := a.qp.Connect(e.ctx, addr, driver.ConnParam{})
	require.ErrorIs(e, err, verbs.ErrRefused)
	require.Equal(e, driver.QPStateErr, a.qp.State())
	e.flushes(a, 0, 1)
	_, err = a.qp.Connect(e.ctx, addr, driver.ConnParam{})
	require.ErrorIs(e, err, verbs.ErrQPState, "a QP in ERR can only be closed")
}

// connectDeadline dials a listener that never accepts.
func connectDeadline(e *env) {
	_, addr := e.listen(e.acceptor())
	a := e.end("a", e.dialer(), pairOpts{})
	ctx, cancel := context.WithTimeout(e.ctx, 50*time.Millisecond)
	defer cancel()
	_, err := a.qp.Connect(ctx, addr, driver.ConnParam{})
	require.ErrorIs(e, err, context.DeadlineExceeded)
	require.Equal(e, driver.QPStateErr, a.qp.State())
	a = e.end("a", e.dialer(), pairOpts{})
	ctx, cancel = context.WithCancel(e.ctx)
	connected := make(chan error, 1)
	go func() { // ends with the cancel
		_, err := a.qp.Connect(ctx, addr, driver.ConnParam{})
		connected <- err
	}()
	cancel()
	require.ErrorIs(e, <-connected, context.Canceled)
	// Closing the QP ends it as well.
	a = e.end("a", e.dialer(), pairOpts{})
	go func() { // ends with the QP
		_, err := a.qp.Connect(e.ctx, addr, driver.ConnParam{})
		connected <- err
	}()
	require.NoError(e, closeQP(a.qp))
	require.ErrorIs(e, <-connected, verbs.ErrClosed)
}

// listenerClosed closes a listener that somebody waits on, with requests that
// nobody has taken and one that somebody has.
func listenerClosed(e *env) {
	l, addr := e.listen(e.acceptor())
	p := pair{e.end("a", e.dialer(), pairOpts{}), e.end("b", e.acceptor(), pairOpts{})}
	var g errgroup.Group
	g.Go(func() error { _, err := p.a.qp.Connect(e.ctx, addr, driver.ConnParam{}); return err })
	taken, err := l.Accept(e.ctx)
	require.NoError(e, err)
	waiting := make(chan error, 1)
	go func() { _, err := l.Accept(e.ctx); waiting <- err }() // ends with the listener
	require.NoError(e, l.Close())
	require.ErrorIs(e, <-waiting, verbs.ErrClosed)
	_, err = l.Accept(e.ctx)
	require.ErrorIs(e, err, verbs.ErrClosed)
	require.NoError(e, l.Close())
	require.NoError(e, taken.Accept(e.ctx, p.b.qp, driver.ConnParam{}), "a request that was handed out lives on")
	require.NoError(e, g.Wait())
	p.a.fence(p.b)
	// A request that was not taken is refused.
	l2, addr2 := e.listen(e.acceptor())
	a := e.end("a", e.dialer(), pairOpts{})
	refused := make(chan error, 1)
	go func() { // ends with the listener
		_, err := a.qp.Connect(e.ctx, addr2, driver.ConnParam{})
		refused <- err
	}()
	select {
	case err := <-refused:
		e.Fatalf("connected to nobody: %v", err)
	case <-time.After(20 * time.Millisecond): // so that it has mostly been sent; both orders are right
	}
	require.NoError(e, l2.Close())
	require.ErrorIs(e, <-refused, verbs.ErrRefused)
}

func acceptDeadline(e *env) {
	l, _ := e.listen(e.acceptor())
	ctx, cancel := context.WithTimeout(e.ctx, 20*time.Millisecond)
	defer cancel()
	_, err := l.Accept(ctx)
	require.ErrorIs(e, err, context.DeadlineExceeded)
}

// dialerGone accepts a request whose sender has given up.
func dialerGone(e *env) {
	l, addr := e.listen(e.acceptor())
	a, b := e.end("a", e.dialer(), pairOpts{}), e.end("b", e.acceptor(), pairOpts{})
	b.postRecv(verbs.RecvWR{WRID: 0})
	ctx, cancel := context.WithCancel(e.ctx)
	connected := make(chan error, 1)
	go func() { // ends with the cancel
		_, err := a.qp.Connect(ctx, addr, driver.ConnParam{})
		connected <- err
	}()
	r, err := l.Accept(e.ctx)
	require.NoError(e, err)
	cancel()
	require.ErrorIs(e, <-connected, context.Canceled)
	require.NoError(e, closeQP(a.qp))
	// Accept may fail, or succeed and the connection be gone at once.
	if err := r.Accept(e.ctx, b.qp, driver.ConnParam{}); err != nil {
		require.Equal(e, driver.QPStateErr, b.qp.State())
	}
	b.gone()
	e.flushes(b, 0, 1)
	// Rejecting one is no error that matters, and no crash.
	a = e.end("a", e.dialer(), pairOpts{})
	ctx, cancel = context.WithCancel(e.ctx)
	go func() { // ends with the cancel
		_, err := a.qp.Connect(ctx, addr, driver.ConnParam{})
		connected <- err
	}()
	r, err = l.Accept(e.ctx)
	require.NoError(e, err)
	cancel()
	require.ErrorIs(e, <-connected, context.Canceled)
	_ = r.Reject(nil)
}

// acceptorSendsFirst has the accepting end send at once: it may (the device
// holds it back where its protocol needs that).
func acceptorSendsFirst(e *env) {
	p := pair{e.end("a", e.dialer(), pairOpts{}), e.end("b", e.acceptor(), pairOpts{})}
	p.a.postRecv(verbs.RecvWR{WRID: 1})
	require.NoError(e, p.tryConnect(e.ctx, driver.ConnParam{}))
	p.b.post(signaled(2, driver.OpSend))
	p.a.fence(p.b) // on MPA the acceptor is silent until the dialer has spoken
	p.a.rq.good(1, driver.OpRecv)
	p.b.sq.good(2, driver.OpSend)
}

// readLimits connects with IRD and ORD of one and of the most: READs work both
// ways, more of them than may be outstanding.
func readLimits(e *env) {
	c := e.caps()
	for _, k := range []int{1, min(c.MaxIRD, c.MaxORD)} {
		p := e.pair(pairOpts{depth: 32, param: driver.ConnParam{IRD: k, ORD: k}})
		for _, dir := range []pair{p, {p.b, p.a}} {
			src, dst := dir.b.mem(32*100, accRead), dir.a.sink(32*100)
			fill(src.b, uint64(k))
			dir.a.fence(dir.b)
			for i := range 32 {
				dir.a.post(src.to(signaled(uint64(i), driver.OpRead, dst.sge(i*100, 100)), i*100))
			}
			for i := range 32 {
				dir.a.sq.good(uint64(i), driver.OpRead)
			}
			require.NoError(e, sameBytes(dst.b, src.b))
		}
	}
	a := e.end("a", e.dialer(), pairOpts{})
	l, addr := e.listen(e.acceptor())
	_, err := a.qp.Connect(e.ctx, addr, driver.ConnParam{IRD: c.MaxIRD + 1})
	require.Error(e, err)
	a = e.end("a", e.dialer(), pairOpts{})
	_, err = a.qp.Connect(e.ctx, addr, driver.ConnParam{ORD: -1})
	require.ErrorIs(e, err, verbs.ErrInvalid)
	require.NoError(e, l.Close())
}

func connectTwice(e *env) {
	p := e.pair(pairOpts{})
	_, addr := e.listen(e.acceptor())
	_, err := p.a.qp.Connect(e.ctx, addr, driver.ConnParam{})
	require.ErrorIs(e, err, verbs.ErrQPState)
	p.a.fence(p.b) // and it is still connected
	p.b.fence(p.a)
}

// manyConnect has many dial one listener at once.
func manyConnect(e *env) {
	const n = 24
	l, addr := e.listen(e.acceptor())
	g, ctx := errgroup.WithContext(e.ctx)
	byTag := make([]*end, n)
	var as []*end
	for i := range n {
		a := e.end("a", e.dialer(), pairOpts{depth: 4})
		b := e.end("b", e.acceptor(), pairOpts{depth: 4})
		as = append(as, a)
		g.Go(func() error {
			_, err := a.qp.Connect(ctx, addr, driver.ConnParam{PrivateData: []byte{byte(i)}})
			return err
		})
		g.Go(func() error {
			r, err := l.Accept(ctx)
			if err != nil {
				return err
			}
			byTag[r.PrivateData()[0]] = b
			return r.Accept(ctx, b.qp, driver.ConnParam{})
		})
	}
	require.NoError(e, g.Wait())
	for i, a := range as {
		require.NotNil(e, byTag[i])
		a.fence(byTag[i])
	}
}

func badAddresses(e *env) {
	for _, addr := range []string{"", "nonsense", "127.0.0.1", "127.0.0.1:notaport", "127.0.0.1:70000", ":::"} {
		a := e.end("a", e.dialer(), pairOpts{})
		_, err := a.qp.Connect(e.ctx, addr, driver.ConnParam{})
		require.Error(e, err, "%q", addr)
		_, err = a.dev.Listen(e.ctx, addr)
		require.Error(e, err, "%q", addr)
	}
	_, addr := e.listen(e.acceptor())
	_, _, err := net.SplitHostPort(addr)
	require.NoError(e, err)
	_, err = e.acceptor().Listen(e.ctx, addr)
	require.Error(e, err, "the address is in use")
}
