package iwarp

import (
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp/internal/wire"
)

// What is no MPA request costs the listener a slot until its deadline at most, and hides no good request.
func TestListenerRefusesNonsense(t *testing.T) {
	const deadline = 300 * time.Millisecond
	e := newEnd(t, endConfig{cfg: Config{HandshakeTimeout: deadline, Backlog: 4}})
	l, err := e.dev.Listen(testCtx(t), "127.0.0.1:0")
	require.NoError(t, err)
	markers := hello{frame: wire.MPAFrame{Rev: 2, Enhanced: true, Markers: true}}
	long := wire.AppendMPA(nil, wire.MPAFrame{Rev: 1, PrivateDataLen: 4096})
	half := appendHello(&hello{frame: wire.MPAFrame{Rev: 2, Enhanced: true}, private: make([]byte, 100)})[:60]
	for name, tc := range map[string]struct {
		b   []byte
		cut bool // less than a request: the deadline ends it
	}{
		"silence": {cut: true}, "half a key": {b: []byte("MPA ID R"), cut: true}, "half a request": {b: half, cut: true},
		"http": {b: []byte("GET / HTTP/1.1\r\nHost: example\r\n\r\n")}, "markers": {b: appendHello(&markers)},
		"too much private data": {b: long}, "a reply": {b: wire.AppendMPA(nil, wire.MPAFrame{Reply: true, Rev: 2})},
		"revision 9": {b: wire.AppendMPA(nil, wire.MPAFrame{Rev: 9})}, "garbage": {b: make([]byte, 100)},
	} {
		begin := time.Now()
		c, err := net.Dial("tcp", l.Addr())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		_, err = c.Write(tc.b)
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(testTimeout)))
		n, err := c.Read(make([]byte, 100))
		require.Zero(t, n, name)
		require.NotNil(t, err, name)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, name)
		if tc.cut {
			require.GreaterOrEqual(t, time.Since(begin), deadline, name)
		}
	}
	require.EqualValues(t, 9, e.dev.Stats().HandshakeFailures)
	require.NoError(t, l.Close())
}

// fakeListener answers one MPA request with what answer makes of it.
func fakeListener(t *testing.T, times int, answer func(h *hello) []byte) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends with the listener or after so many connections
		for range times {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d := Device{}
			h, err := d.readHello(c, false)
			if err == nil {
				_, _ = c.Write(answer(h))
				_, _ = io.Copy(io.Discard, c)
			}
			_ = c.Close()
		}
	}()
	return l.Addr().String()
}

func TestRepliesThatAreRefused(t *testing.T) {
	reply := func(h hello) []byte {
		h.frame.Reply = true
		return appendHello(&h)
	}
	for _, tc := range []struct {
		name   string
		answer func(h *hello) []byte
		is     error
	}{
		{"markers", func(*hello) []byte { return reply(hello{frame: wire.MPAFrame{Rev: 2, Enhanced: true, Markers: true}}) }, driver.ErrProtocol},
		{"garbage", func(*hello) []byte { return make([]byte, 64) }, driver.ErrProtocol},
		{"a request", func(h *hello) []byte { return appendHello(h) }, driver.ErrProtocol},
		{"more READs than our IRD", func(*hello) []byte {
			return reply(hello{frame: wire.MPAFrame{Rev: 2, Enhanced: true}, enh: wire.Enhanced{IRD: 1, ORD: 100}})
		}, driver.ErrProtocol},
		{"rejection", func(*hello) []byte {
			return reply(hello{frame: wire.MPAFrame{Rev: 2, Enhanced: true, Reject: true}, private: []byte("no")})
		}, driver.ErrRefused},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := strictEnd(t)
			_, err := e.qp.Connect(testCtx(t), fakeListener(t, 1, tc.answer), driver.ConnParam{IRD: 2})
			require.ErrorIs(t, err, tc.is)
			st, err := e.qp.State()
			require.NoError(t, err)
			require.Equal(t, driver.QPStateErr, st)
		})
	}
}

// A peer that knows MPA revision 1 only is tried again with it.
func TestFallsBackToRevision1(t *testing.T) {
	e := strictEnd(t)
	addr := fakeListener(t, 2, func(h *hello) []byte {
		if h.frame.Rev == 2 {
			return wire.AppendMPA(nil, wire.MPAFrame{Reply: true, Reject: true, Rev: 1})
		}
		return append(wire.AppendMPA(nil, wire.MPAFrame{Reply: true, Rev: 1, PrivateDataLen: 2}), "ok"...)
	})
	p, err := e.qp.Connect(testCtx(t), addr, driver.ConnParam{ORD: 3})
	require.NoError(t, err)
	require.Equal(t, "ok", string(p.PrivateData))
	require.Equal(t, 3, p.ORD)
}

// A peer-to-peer initiator gets the ready-to-receive message of its choice that we know.
func TestPeerToPeerReply(t *testing.T) {
	for _, tc := range []struct{ offer, want wire.Enhanced }{
		{wire.Enhanced{PeerToPeer: true, RTRSend: true, RTRWrite: true, RTRRead: true}, wire.Enhanced{PeerToPeer: true, RTRWrite: true}},
		{wire.Enhanced{PeerToPeer: true, RTRRead: true}, wire.Enhanced{PeerToPeer: true, RTRRead: true}},
		{wire.Enhanced{}, wire.Enhanced{}},
	} {
		e := strictEnd(t)
		h := v2Hello()
		h.enh = tc.offer
		h.enh.IRD, h.enh.ORD = 1, 1
		p, reply := dialPeer(t, e, h)
		reply.enh.IRD, reply.enh.ORD = 0, 0
		require.Equal(t, tc.want, reply.enh)
		if tc.want.RTRRead { // an empty READ is answered by an empty response, without a look at its key
			b := make([]byte, wire.ReadReqLen)
			p.send(wire.Header{Op: wire.OpReadReq, QN: wire.QNReadReq, MSN: 1, Last: true}, b)
			h, body := p.next()
			require.Equal(t, wire.OpReadResp, h.Op)
			require.True(t, h.Last)
			require.Empty(t, body)
		}
	}
}

// A peer that answers no READ at all: a READ fails at once instead of waiting for ever.
func TestPeerWithoutIRD(t *testing.T) {
	e := strictEnd(t)
	addr := fakeListener(t, 1, func(h *hello) []byte {
		return appendHello(&hello{frame: wire.MPAFrame{Reply: true, Rev: 2, Enhanced: true}, enh: wire.Enhanced{IRD: 0, ORD: 1}})
	})
	p, err := e.qp.Connect(testCtx(t), addr, driver.ConnParam{})
	require.NoError(t, err)
	require.Zero(t, p.ORD)
	e.post(driver.SendWR{WRID: 5, Opcode: driver.OpRead, RemoteAddr: 1, RKey: 1})
	wc := e.wait(e.scq, 1)[0]
	require.EqualValues(t, 5, wc.WRID)
	require.Equal(t, driver.StatusLocQPOpErr, wc.Status)
}

// A request of revision 2 without the enhanced prefix gets a reply without it.
func TestReplyMirrorsPrefix(t *testing.T) {
	for _, f := range []wire.MPAFrame{{Rev: 1}, {Rev: 2}, {Rev: 2, Enhanced: true}} {
		e := strictEnd(t)
		e.param.PrivateData = []byte("welcome")
		_, reply := dialPeer(t, e, hello{frame: f, enh: wire.Enhanced{IRD: 1, ORD: 1}})
		require.Equal(t, f.Rev, reply.frame.Rev)
		require.Equal(t, f.Enhanced, reply.frame.Enhanced)
		require.Equal(t, "welcome", string(reply.private))
	}
}

// A QP is in RTS before its goroutines start: what the peer sends at once may be answered at once.
func TestRTSBeforeAnythingIsReceived(t *testing.T) {
	a, b := newEnd(t, endConfig{}), newEnd(t, endConfig{})
	l, err := b.dev.Listen(testCtx(t), "127.0.0.1:0")
	require.NoError(t, err)
	connected := make(chan error, 1)
	go func() { // ends with the connection
		_, err := a.qp.Connect(testCtx(t), l.Addr(), a.param)
		connected <- err
	}()
	req, err := l.Accept(testCtx(t))
	require.NoError(t, err)
	b.dev.mu.Lock() // no goroutine of a QP starts
	unlock := sync.OnceFunc(b.dev.mu.Unlock)
	defer unlock()
	accepted := make(chan error, 1)
	go func() { accepted <- req.Accept(testCtx(t), b.qp, b.param) }() // ends with the connection
	require.Eventually(t, func() bool {
		st, _ := b.qp.State()
		return st == driver.QPStateRTS
	}, testTimeout, time.Millisecond)
	unlock()
	require.NoError(t, <-accepted)
	require.NoError(t, <-connected)
	require.NoError(t, l.Close())
}
