//go:build ibverbs && linux && cgo

package ibverbs

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// testDevice opens the device that the environment names: the tests here are
// for a real device and are run where there is one (make test-vm).
func testDevice(t *testing.T) (*device, string) {
	t.Helper()
	name, addr := os.Getenv("ARGONAUT_RDMA_DEVICE"), os.Getenv("ARGONAUT_RDMA_ADDR")
	if name == "" {
		t.Skip("no RDMA device: ARGONAUT_RDMA_DEVICE is not set")
	}
	d, err := open(Config{Device: name, Addr: addr})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d, addr
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// end is one end of a connection, with memory of its own.
type end struct {
	t   *testing.T
	pd  driver.PD
	ch  driver.CompChannel
	cq  driver.CQ
	qp  driver.QP
	mr  driver.MR
	mem []byte
}

func newEnd(t *testing.T, d *device) *end {
	t.Helper()
	e := &end{t: t}
	var err error
	e.mem, err = unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(e.mem)) })
	e.pd, err = d.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.pd.Dealloc()) })
	e.mr, err = e.pd.RegMR(e.mem, driver.AccessLocalWrite|driver.AccessRemoteRead|driver.AccessRemoteWrite)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.mr.Deregister()) })
	e.ch, err = d.CreateCompChannel()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.ch.Close()) })
	e.cq, err = d.CreateCQ(64, e.ch, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.cq.Destroy()) })
	e.qp, err = e.pd.CreateQP(driver.QPAttr{
		SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.qp.Destroy()) })
	state, err := e.qp.State()
	require.NoError(t, err)
	require.Equal(t, driver.QPStateInit, state)
	return e
}

func (e *end) sge(off, n int) []driver.SGE {
	return []driver.SGE{{Addr: e.mr.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}}
}

func (e *end) recv(id uint64, off, n int) {
	e.t.Helper()
	done, err := e.qp.PostRecv([]driver.RecvWR{{WRID: id, SGEs: e.sge(off, n)}})
	require.NoError(e.t, err)
	require.Equal(e.t, 1, done)
}

func (e *end) send(wr driver.SendWR) {
	e.t.Helper()
	done, err := e.qp.PostSend([]driver.SendWR{wr})
	require.NoError(e.t, err)
	require.Equal(e.t, 1, done)
}

// next waits for one completion, on the channel.
func (e *end) next(ctx context.Context) driver.WC {
	e.t.Helper()
	var wcs [1]driver.WC
	for {
		n, err := e.cq.Poll(wcs[:])
		require.NoError(e.t, err)
		if n == 1 {
			require.Equal(e.t, e.qp.QPN(), wcs[0].QPN)
			return wcs[0]
		}
		require.NoError(e.t, e.cq.ReqNotify(false))
		n, err = e.cq.Poll(wcs[:])
		require.NoError(e.t, err)
		if n == 1 {
			return wcs[0]
		}
		got, err := e.ch.Wait(ctx)
		require.NoError(e.t, err)
		require.Equal(e.t, e.cq, got)
	}
}

// connect connects two ends, with receives of 4 KiB posted on both.
func connect(t *testing.T, ctx context.Context, d *device, addr string) (client, server *end) {
	t.Helper()
	l, err := d.Listen(ctx, net.JoinHostPort(addr, "0"))
	require.NoError(t, err)
	client, server = newEnd(t, d), newEnd(t, d)
	for i := range 4 {
		client.recv(uint64(100+i), i*4096, 4096)
		server.recv(uint64(100+i), i*4096, 4096)
	}
	accepted := make(chan error, 1)
	go func() { // ends with Accept, which ctx bounds
		accepted <- func() error {
			r, err := l.Accept(ctx)
			if err != nil {
				return err
			}
			p := r.Param()
			if string(p.PrivateData[:5]) != "hello" || p.IRD != 5 || p.ORD != 3 {
				return errors.Join(errors.New("wrong parameters"), r.Reject(nil))
			}
			return r.Accept(ctx, server.qp, driver.ConnParam{PrivateData: []byte("welcome")})
		}()
	}()
	answer, err := client.qp.Connect(ctx, l.Addr(), driver.ConnParam{PrivateData: []byte("hello"), IRD: 3, ORD: 5})
	require.NoError(t, err)
	require.NoError(t, <-accepted)
	require.Equal(t, "welcome", string(answer.PrivateData[:7]))
	require.Equal(t, 3, answer.IRD)
	require.Equal(t, 5, answer.ORD)
	require.NoError(t, l.Close())
	require.Equal(t, client.qp.LocalAddr(), server.qp.RemoteAddr())
	require.Equal(t, client.qp.RemoteAddr(), server.qp.LocalAddr())
	for _, e := range []*end{client, server} {
		state, err := e.qp.State()
		require.NoError(t, err)
		require.Equal(t, driver.QPStateRTS, state)
	}
	return client, server
}

func TestSendReadFlushDisconnect(t *testing.T) {
	d, addr := testDevice(t)
	ctx := testContext(t)
	client, server := connect(t, ctx, d, addr)

	copy(client.mem[1<<16:], "from the client")
	client.send(driver.SendWR{WRID: 1, Opcode: driver.OpSend, Flags: driver.SendSignaled, SGEs: client.sge(1<<16, 15)})
	wc := client.next(ctx)
	require.Equal(t, driver.WC{WRID: 1, Opcode: driver.OpSend, QPN: client.qp.QPN(), ByteLen: wc.ByteLen}, wc)
	wc = server.next(ctx)
	require.Equal(t, driver.WC{WRID: 100, Opcode: driver.OpRecv, QPN: server.qp.QPN(), ByteLen: 15}, wc)
	require.Equal(t, "from the client", string(server.mem[:15]))

	copy(client.mem[1<<17:], "fetched by the server")
	server.send(driver.SendWR{
		WRID: 2, Opcode: driver.OpRead, Flags: driver.SendSignaled, SGEs: server.sge(1<<18, 21),
		RemoteAddr: client.mr.Addr() + 1<<17, RKey: client.mr.RKey(),
	})
	wc = server.next(ctx)
	require.Equal(t, driver.StatusSuccess, wc.Status)
	require.Equal(t, driver.OpRead, wc.Opcode)
	require.Equal(t, "fetched by the server", string(server.mem[1<<18:1<<18+21]))

	// The peer's going is reported, and flushes what is outstanding.
	require.NoError(t, client.qp.Disconnect())
	gone := map[driver.QP]bool{}
	for len(gone) < 2 {
		ev, err := d.NextEvent(ctx)
		require.NoError(t, err)
		require.Equal(t, driver.EventDisconnected, ev.Type)
		gone[ev.QP] = true
	}
	require.Equal(t, map[driver.QP]bool{client.qp: true, server.qp: true}, gone)
	for i := range 4 {
		wc = client.next(ctx)
		require.Equal(t, uint64(100+i), wc.WRID)
		require.Equal(t, driver.StatusWRFlushErr, wc.Status)
	}
	for i := range 3 {
		wc = server.next(ctx)
		require.Equal(t, uint64(101+i), wc.WRID)
		require.Equal(t, driver.StatusWRFlushErr, wc.Status)
	}
	for _, e := range []*end{client, server} {
		state, err := e.qp.State()
		require.NoError(t, err)
		require.Equal(t, driver.QPStateErr, state)
	}
}

func TestSetStateErrTellsThePeer(t *testing.T) {
	d, addr := testDevice(t)
	ctx := testContext(t)
	client, server := connect(t, ctx, d, addr)
	require.NoError(t, client.qp.SetState(driver.QPStateErr))
	for i := range 4 {
		wc := client.next(ctx)
		require.Equal(t, uint64(100+i), wc.WRID)
		require.Equal(t, driver.StatusWRFlushErr, wc.Status)
		wc = server.next(ctx)
		require.Equal(t, uint64(100+i), wc.WRID)
		require.Equal(t, driver.StatusWRFlushErr, wc.Status)
	}
}

func TestPeerDestroyedIsReported(t *testing.T) {
	d, addr := testDevice(t)
	ctx := testContext(t)
	l, err := d.Listen(ctx, net.JoinHostPort(addr, "0"))
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	server := newEnd(t, d)
	other := newEndQP(t, server)
	destroyed := make(chan error, 1)
	go func() { // ends with the destruction
		_, err := other.Connect(ctx, l.Addr(), driver.ConnParam{})
		destroyed <- errors.Join(err, other.Destroy())
	}()
	server.recv(1, 0, 16)
	r, err := l.Accept(ctx)
	require.NoError(t, err)
	require.NoError(t, r.Accept(ctx, server.qp, driver.ConnParam{}))
	ev, err := d.NextEvent(ctx)
	require.NoError(t, err)
	require.Equal(t, driver.Event{Type: driver.EventDisconnected, QP: server.qp}, ev)
	require.NoError(t, <-destroyed)
	require.Equal(t, driver.StatusWRFlushErr, server.next(ctx).Status)
}

// newEndQP makes one more QP on the objects of e; the caller destroys it.
func newEndQP(t *testing.T, e *end) driver.QP {
	q, err := e.pd.CreateQP(driver.QPAttr{
		SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1,
	})
	require.NoError(t, err)
	return q
}

// A queue pair is destroyed once, whatever becomes of its identifier.
func TestDestroyLeavesIdentifier(t *testing.T) {
	d, _ := testDevice(t)
	q := newEndQP(t, newEnd(t, d)).(*qp)
	gone := make(chan struct{})
	close(gone)
	q.id = &cmID{dev: d, destroyed: true, gone: gone, goneErr: errors.New("injected")}
	require.NoError(t, q.Destroy())
	require.NoError(t, q.Destroy())
}

func TestRejectAndNobodyListens(t *testing.T) {
	d, addr := testDevice(t)
	ctx := testContext(t)
	l, err := d.Listen(ctx, net.JoinHostPort(addr, "0"))
	require.NoError(t, err)
	rejected := make(chan error, 1)
	go func() { // ends with Accept
		r, err := l.Accept(ctx)
		if err == nil {
			err = r.Reject([]byte("go away"))
		}
		rejected <- err
	}()
	e := newEnd(t, d)
	_, err = e.qp.Connect(ctx, l.Addr(), driver.ConnParam{})
	require.NoError(t, <-rejected)
	var reject *driver.RejectError
	require.ErrorAs(t, err, &reject)
	require.Equal(t, "go away", string(reject.PrivateData[:7]))
	state, err := e.qp.State()
	require.NoError(t, err)
	require.Equal(t, driver.QPStateErr, state)

	require.NoError(t, l.Close())
	_, err = l.Accept(ctx)
	require.ErrorIs(t, err, driver.ErrClosed)
	q := newEndQP(t, e)
	defer func() { require.NoError(t, q.Destroy()) }()
	_, err = q.Connect(ctx, l.Addr(), driver.ConnParam{})
	require.ErrorIs(t, err, driver.ErrRefused)
	require.False(t, errors.As(err, &reject))
}

func TestConnectEndsWithContext(t *testing.T) {
	d, addr := testDevice(t)
	ctx := testContext(t)
	l, err := d.Listen(ctx, net.JoinHostPort(addr, "0"))
	require.NoError(t, err)
	e := newEnd(t, d)
	short, cancel := context.WithCancel(ctx)
	accepted := make(chan driver.ConnRequest, 1)
	go func() { // ends with Accept
		defer close(accepted)
		if r, err := l.Accept(ctx); err == nil {
			accepted <- r
		}
		cancel() // the peer does not answer, and the dialer gives up
	}()
	_, err = e.qp.Connect(short, l.Addr(), driver.ConnParam{})
	require.ErrorIs(t, err, context.Canceled)
	r := <-accepted
	require.NotNil(t, r)
	err = r.Accept(ctx, newEnd(t, d).qp, driver.ConnParam{})
	t.Logf("accepting a dialer that has gone: %v", err)
	require.NoError(t, l.Close())
}

func TestCompChannelWakeCloseAndContext(t *testing.T) {
	d, _ := testDevice(t)
	ch, err := d.CreateCompChannel()
	require.NoError(t, err)
	ctx := testContext(t)

	ch.Wake()
	q, err := ch.Wait(ctx)
	require.NoError(t, err)
	require.Nil(t, q)

	type result struct {
		q   driver.CQ
		err error
	}
	wait := func(ctx context.Context) chan result {
		c := make(chan result, 1)
		go func() { // ends with Wait
			q, err := ch.Wait(ctx)
			c <- result{q, err}
		}()
		return c
	}
	for range 100 {
		c := wait(ctx)
		ch.Wake()
		require.Equal(t, result{}, <-c)
	}
	short, cancel := context.WithCancel(ctx)
	c := wait(short)
	cancel()
	require.ErrorIs(t, (<-c).err, context.Canceled)

	c = wait(ctx)
	require.NoError(t, ch.Close())
	require.ErrorIs(t, (<-c).err, driver.ErrClosed)
}

// A post of more than the queue takes says how many it has taken: these complete,
// in order, and no other.
func TestPartialPost(t *testing.T) {
	d, addr := testDevice(t)
	ctx := testContext(t)
	client, server := connect(t, ctx, d, addr)
	fence := func(id uint64) { // what was posted before has arrived
		client.send(driver.SendWR{WRID: id, Opcode: driver.OpSend, Flags: driver.SendSignaled})
		require.Equal(t, driver.StatusSuccess, server.next(ctx).Status)
	}
	fence(1) // on iWARP the server is silent until the client has spoken
	require.EqualValues(t, 1, client.next(ctx).WRID)
	wrs := make([]driver.SendWR, 200)
	for i := range wrs {
		client.mem[1<<16+i] = byte(i + 1)
		wrs[i] = driver.SendWR{
			WRID: uint64(1000 + i), Opcode: driver.OpWrite, Flags: driver.SendSignaled, SGEs: client.sge(1<<16+i, 1),
			RemoteAddr: server.mr.Addr() + 1<<16 + uint64(i), RKey: server.mr.RKey(),
		}
	}
	n, err := client.qp.PostSend(wrs)
	t.Logf("%d taken: %v", n, err)
	require.ErrorIs(t, err, driver.ErrQueueFull)
	require.GreaterOrEqual(t, n, 16, "the depth that was asked for")
	require.Less(t, n, 60, "a queue much deeper than that: the CQ may overrun")
	for i := range n {
		wc := client.next(ctx)
		require.Equal(t, driver.StatusSuccess, wc.Status)
		require.EqualValues(t, 1000+i, wc.WRID)
	}
	fence(2)
	require.EqualValues(t, 2, client.next(ctx).WRID, "the rest was not posted")
	require.Equal(t, client.mem[1<<16:1<<16+n], server.mem[1<<16:1<<16+n])
	require.Equal(t, make([]byte, 200-n), server.mem[1<<16+n:1<<16+200])

	// The same for receives, of which two are posted still.
	recvs := make([]driver.RecvWR, 200)
	for i := range recvs {
		recvs[i] = driver.RecvWR{WRID: uint64(2000 + i), SGEs: server.sge(1<<18+i*8, 8)}
	}
	n, err = server.qp.PostRecv(recvs)
	t.Logf("%d taken: %v", n, err)
	require.ErrorIs(t, err, driver.ErrQueueFull)
	require.GreaterOrEqual(t, n, 14)
	require.Less(t, n, 60)
	require.NoError(t, server.qp.SetState(driver.QPStateErr))
	for _, want := range []uint64{102, 103} {
		require.Equal(t, want, server.next(ctx).WRID)
	}
	for i := range n {
		wc := server.next(ctx)
		require.Equal(t, driver.StatusWRFlushErr, wc.Status)
		require.EqualValues(t, 2000+i, wc.WRID)
	}
	var wcs [1]driver.WC
	k, err := server.cq.Poll(wcs[:])
	require.NoError(t, err)
	require.Zero(t, k, "%+v", wcs)
}

func TestPostAndPollDoNotAllocate(t *testing.T) {
	d, addr := testDevice(t)
	ctx := testContext(t)
	client, server := connect(t, ctx, d, addr)
	send := []driver.SendWR{{Opcode: driver.OpSend, Flags: driver.SendSignaled, SGEs: client.sge(1<<16, 64)}}
	recv := []driver.RecvWR{{SGEs: server.sge(0, 4096)}}
	wcs := make([]driver.WC, 8)
	poll := func(e *end) {
		for {
			n, err := e.cq.Poll(wcs)
			if n > 0 || err != nil {
				return
			}
			_ = e.cq.ReqNotify(false)
			if n, err = e.cq.Poll(wcs); n > 0 || err != nil {
				return
			}
			if _, err := e.ch.Wait(ctx); err != nil {
				return
			}
		}
	}
	require.Zero(t, testing.AllocsPerRun(200, func() {
		if n, _ := client.qp.PostSend(send); n != 1 {
			panic("send queue full")
		}
		poll(client)
		poll(server)
		if n, _ := server.qp.PostRecv(recv); n != 1 {
			panic("receive queue full")
		}
	}))
}
