package fault

import (
	"context"
	"errors"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

// device is something to test on.
type device struct {
	open func(t testing.TB, narrow bool) *verbs.Device
	addr string // to listen on
}

// onDevices runs f on the user-space adapter, or on the device that the
// environment names: see package env.
func onDevices(t *testing.T, f func(t *testing.T, d device)) {
	if name := env.Device(); name != "" {
		t.Run(name, func(t *testing.T) {
			f(t, device{addr: env.ListenAddr(), open: func(t testing.TB, _ bool) *verbs.Device { return env.Open(t) }})
		})
		return
	}
	t.Run("iwarp", func(t *testing.T) {
		f(t, device{addr: env.ListenAddr(), open: func(t testing.TB, narrow bool) *verbs.Device {
			cfg := iwarp.Config{Linger: 50 * time.Millisecond}
			if narrow {
				cfg.Dial, cfg.Listen = dialNarrow, listenNarrow
			}
			d, err := iwarp.Open(cfg)
			require.NoError(t, err)
			return d
		}})
	})
}

// narrow makes a message come in many pieces, so that whatever happens beside it
// happens in its middle.
func narrow(c net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	tcp := c.(*net.TCPConn)
	return c, errors.Join(tcp.SetReadBuffer(64<<10), tcp.SetWriteBuffer(32<<10))
}

func dialNarrow(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	return narrow(d.DialContext(ctx, "tcp", addr))
}

type narrowListener struct{ net.Listener }

func (l narrowListener) Accept() (net.Conn, error) { return narrow(l.Listener.Accept()) }

func listenNarrow(ctx context.Context, addr string) (net.Listener, error) {
	var c net.ListenConfig
	l, err := c.Listen(ctx, "tcp", addr)
	return narrowListener{l}, err
}

// end is one end of a connection, with an account of its requests.
type end struct {
	t   testing.TB
	dev *verbs.Device
	pd  *verbs.PD
	ch  *verbs.CompChannel
	cq  *verbs.CQ
	qp  *verbs.QP

	posted map[uint64]bool // requests that have not come back
	failed bool            // one has failed
}

func (d device) newEnd(t testing.TB, narrow bool) *end {
	e := &end{t: t, dev: d.open(t, narrow), posted: map[uint64]bool{}}
	var err error
	e.pd, err = e.dev.AllocPD()
	require.NoError(t, err)
	e.ch, err = e.dev.CreateCompChannel()
	require.NoError(t, err)
	e.cq, err = e.dev.CreateCQ(verbs.CQConfig{Depth: 256, Channel: e.ch})
	require.NoError(t, err)
	e.qp, err = e.pd.CreateQP(verbs.QPConfig{SendCQ: e.cq, MaxSendWR: 32, MaxRecvWR: 32})
	require.NoError(t, err)
	return e
}

// memory is pinned and registered.
func (e *end) memory(n int, acc verbs.Access) ([]byte, *verbs.MR) {
	mem := make([]byte, n)
	var pin runtime.Pinner
	pin.Pin(&mem[0])
	e.t.Cleanup(pin.Unpin)
	mr, err := e.pd.RegMR(mem, acc)
	require.NoError(e.t, err)
	return mem, mr
}

// connect connects two ends. false: siw has picked a port for one of them that an
// earlier connection is not done with, and they have to be closed.
func (d device) connect(t testing.TB, x, y *end) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ln, err := y.dev.Listen(ctx, d.addr)
	require.NoError(t, err)
	accepted := make(chan error, 1)
	go func() { // ends when the connection is made or ctx ends
		req, err := ln.Accept(ctx)
		if err == nil {
			err = req.Accept(ctx, y.qp, verbs.ConnParam{})
		}
		accepted <- err
	}()
	_, err = x.qp.Connect(ctx, ln.Addr(), verbs.ConnParam{})
	if env.Device() != "" && errors.Is(err, syscall.EADDRNOTAVAIL) {
		cancel()
		require.Error(t, <-accepted)
		require.NoError(t, ln.Close())
		return false
	}
	require.NoError(t, err)
	require.NoError(t, <-accepted)
	require.NoError(t, ln.Close())
	return true
}

// send posts a request that is signalled. It returns false if it was refused.
func (e *end) send(wr verbs.SendWR) bool {
	wr.Flags |= verbs.SendSignaled
	n, err := e.qp.PostSend([]verbs.SendWR{wr})
	return e.accepted(n, err, wr.WRID)
}

func (e *end) recv(wr verbs.RecvWR) bool {
	n, err := e.qp.PostRecv([]verbs.RecvWR{wr})
	return e.accepted(n, err, wr.WRID)
}

func (e *end) accepted(n int, err error, id uint64) bool {
	if n == 1 {
		require.False(e.t, e.posted[id])
		e.posted[id] = true
		return true
	}
	require.Error(e.t, err)
	ok := errors.Is(err, verbs.ErrClosed) || errors.Is(err, verbs.ErrQPState) || errors.Is(err, verbs.ErrInvalid)
	require.True(e.t, ok, "%v", err)
	e.failed = true
	return false
}

// wait polls until the request id has come back; false if it failed, or another
// did, or nothing comes any more: some devices complete nothing after a
// violation, and some do not tell the peer.
func (e *end) wait(id uint64, peer *end, polled func()) bool {
	until := time.Now().Add(5 * time.Second)
	for e.posted[id] {
		if e.poll() > 0 {
			polled()
			continue
		}
		require.NoError(e.t, e.cq.ReqNotify(false))
		if e.poll() > 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		_, err := e.ch.Wait(ctx)
		cancel()
		if err == nil {
			continue
		}
		require.ErrorIs(e.t, err, context.DeadlineExceeded)
		// What it has done before it failed has had the time to come.
		if over := peer.failed; over || time.Now().After(until) {
			e.failed = true
			return false
		}
		for peer.poll() > 0 {
			polled()
		}
	}
	return !e.failed
}

func (e *end) poll() int {
	var wcs [16]verbs.WC
	n, err := e.cq.Poll(wcs[:])
	require.NoError(e.t, err)
	for i := range wcs[:n] {
		require.True(e.t, e.posted[wcs[i].WRID], "request %d has come back twice, or was never posted", wcs[i].WRID)
		delete(e.posted, wcs[i].WRID)
		e.failed = e.failed || wcs[i].Status != verbs.StatusSuccess
	}
	return n
}

// closeQP ends the connection. Every request comes back exactly once.
func (e *end) closeQP() {
	for e.poll() > 0 {
	}
	orphans, err := e.qp.Close()
	require.NoError(e.t, err)
	for _, o := range orphans {
		require.True(e.t, e.posted[o.WRID], "request %d has come back twice, or was never posted", o.WRID)
		delete(e.posted, o.WRID)
	}
	require.Empty(e.t, e.posted, "requests are lost")
}

// close closes the rest: nothing may be left.
func (e *end) close() {
	require.NoError(e.t, e.cq.Close())
	require.NoError(e.t, e.ch.Close())
	require.NoError(e.t, e.pd.Close())
	require.NoError(e.t, e.dev.Close())
}
