package conn

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/conn/internal/wire"
	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

const eventOnly = "devices of the kernel tell of violations by an event alone"

// TestViolationBeforeItsEvent: an access that our device has refused is known as
// that, though all that is seen of it are flushed completions and refused posts,
// in the middle of traffic of ours. A transfer of ours that it cuts off is not
// what was refused.
func TestViolationBeforeItsEvent(t *testing.T) {
	env.UserSpace(t, eventOnly)
	for _, write := range []bool{false, true} {
		late := &verbstest.Script{Event: func(e *driver.Event) bool { return e.Type != driver.EventQPAccessErr }}
		busy := make(chan struct{}, 1) // has a token when something has come
		p := newPair(t, nodeConfig{Config: Config{OnMessage: func(*Conn, Message) {
			select {
			case busy <- struct{}{}:
			default:
			}
		}}}, nodeConfig{device: openFaulty(t, late)})
		needKeys(t, p.b.dev)
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		l, _ := p.b.list(10_000)
		defer l.Release()
		bad, err := p.ba.Grant(ctx, l, write)
		require.NoError(t, err)
		require.NoError(t, p.ba.Revoke(ctx, bad))
		far, _ := p.a.list(10_000)
		defer far.Release()
		good, err := p.ab.Grant(ctx, far, false)
		require.NoError(t, err)

		ended := make(chan error, 2)
		go func() { // ends with the connection
			var err error
			for err == nil {
				err = p.ba.Send(ctx, Message{Head: []byte("busy")})
			}
			ended <- err
		}()
		go func() { // likewise
			var err error
			for err == nil {
				err = p.ba.Read(ctx, l, good[0], 0)
			}
			ended <- err
		}()
		get(t, busy)
		if write {
			if err := p.ab.Write(ctx, bad[0], 0, far); err != nil {
				require.NotErrorIs(t, err, context.DeadlineExceeded)
			}
		} else {
			require.ErrorIs(t, p.ab.Read(ctx, far, bad[0], 0), ErrAccess)
		}
		f := get(t, p.b.faults)
		require.ErrorIs(t, f.err, ErrViolation)
		require.Equal(t, f.err, p.ba.Err())
		var fe *FaultError
		require.ErrorAs(t, f.err, &fe)
		require.Equal(t, FaultPeer, fe.Kind)
		for range 2 {
			err := get(t, ended)
			require.ErrorIs(t, err, ErrViolation)
			require.False(t, errors.Is(err, ErrAccess), "nobody has refused ours: %v", err)
		}
		get(t, p.ab.Done())
		get(t, p.ba.Done())
	}
}

// TestViolationAfterGoodbye: a peer that has been told goodbye, and reaches for
// memory instead of an answer, has not ended the connection gracefully.
func TestViolationAfterGoodbye(t *testing.T) {
	env.UserSpace(t, eventOnly)
	n := newNode(t, nodeConfig{Config: Config{DrainTimeout: wait}})
	r := newRawPeer(t)
	_, err := r.connect(n.listen(), rawHello(nil))
	require.NoError(t, err)
	c := get(t, n.accepted)
	r.send(rawPacket(wire.Packet{Epoch: rawEpoch}))
	over := make(chan error, 1)
	go func() { over <- c.Shutdown(t.Context()) }() // ends with the connection
	for said := false; !said; {
		wc := r.poll()
		require.Equal(t, verbs.StatusSuccess, wc.Status)
		for b := r.mem[wc.WRID*rawSize:][wire.PacketLen:wc.ByteLen]; len(b) > 0; {
			rec, n, err := wire.ParseRecord(b)
			require.NoError(t, err)
			said = said || rec.Type == wire.Goodbye
			b = b[n:]
		}
	}
	_, err = r.qp.PostSend([]verbs.SendWR{{
		WRID: 1 << 33, Opcode: verbs.OpWrite, Flags: verbs.SendSignaled, RemoteAddr: 4096, RKey: 0x12345678,
		SGEs: []verbs.SGE{{MR: r.mr, Length: 100}},
	}})
	require.NoError(t, err)
	f := get(t, n.faults)
	require.Same(t, c, f.c)
	require.ErrorIs(t, f.err, ErrViolation)
	require.NoError(t, get(t, over))
}

// TestWriteWithImmediate: a write with immediate data takes a receive of ours as a
// packet does, though it puts nothing into it, and may be longer than it.
func TestWriteWithImmediate(t *testing.T) {
	for _, cfg := range []Config{{}, {noSRQ: true}} {
		n := newNode(t, nodeConfig{Config: cfg})
		needKeys(t, n.dev)
		r := newRawPeer(t)
		_, err := r.connect(n.listen(), rawHello(nil))
		require.NoError(t, err)
		env.Need(t, r.qp.Features().Imm, "it has no immediate data")
		c := get(t, n.accepted)
		r.send(rawPacket(wire.Packet{Epoch: rawEpoch}, wire.Record{Type: wire.Msg, Head: 2}, "hi"))
		n.expect(c, "hi", nil)
		size := n.cfg.RecvSize + 1
		l, _ := n.list(size)
		defer l.Release()
		gs, err := c.Grant(t.Context(), l, true)
		require.NoError(t, err)
		_, err = r.qp.PostSend([]verbs.SendWR{{
			WRID: 1 << 33, Opcode: verbs.OpWriteWithImm, Flags: verbs.SendSignaled, RemoteAddr: gs[0].Addr, RKey: gs[0].RKey,
			SGEs: []verbs.SGE{{MR: r.mr, Offset: uint64(len(r.mem) - size), Length: uint32(size)}},
		}})
		require.NoError(t, err)
		n.violated(t, c)
	}
}

// TestPacketBeforeTheDialers: a packet that comes while Dial has not looked at the
// acceptor's hello is of nobody whom anything is known of.
func TestPacketBeforeTheDialers(t *testing.T) {
	env.UserSpace(t, "whether an acceptor's first packet is held back is the kernel's")
	dialing, on := make(chan struct{}), make(chan struct{})
	script := &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
		if c.Op != verbstest.CallConnect {
			return verbstest.Fault{}
		}
		close(dialing)
		return verbstest.Fault{Wait: on}
	}}
	n := newNode(t, nodeConfig{device: openFaulty(t, script), Config: Config{
		Admit: func(*Conn, []byte, int64) bool { t.Error("a message of a peer that is not known yet"); return true },
	}})
	r := newRawPeer(t)
	l, err := r.dev.Listen(t.Context(), env.ListenAddr())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	done := make(chan error, 1)
	go func() { // ends with the connection
		_, err := n.Dial(t.Context(), l.Addr())
		done <- err
	}()
	get(t, dialing)
	var c *Conn
	n.mu.Lock()
	for c = range n.conns {
	}
	n.mu.Unlock()
	c.mu.Lock() // Dial can not take up what the acceptor has said
	close(on)
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	req, err := l.Accept(ctx)
	require.NoError(t, err)
	h, err := wire.ParseHello(req.PrivateData())
	require.NoError(t, err)
	ours := rawHello(func(o *wire.Hello) { o.Epoch = h.Epoch })
	require.NoError(t, req.Accept(ctx, r.qp, verbs.ConnParam{PrivateData: ours, IRD: 8, ORD: 8}))
	r.send(rawPacket(wire.Packet{}, wire.Record{Type: wire.Msg, Head: 2}, "hi"))
	require.Eventually(t, func() bool { return c.Stats().PacketsReceived == 1 }, wait, time.Millisecond)
	c.mu.Unlock()
	if err := get(t, done); err != nil { // it may be the faster one
		require.ErrorIs(t, err, ErrProtocol)
	}
	get(t, c.Done())
	require.ErrorIs(t, c.Err(), ErrProtocol)
}

// TestOwnFault: a request of ours that is wrong is our fault, and not the peer's
// refusal of it, though no completion says so.
func TestOwnFault(t *testing.T) {
	env.UserSpace(t, "devices of the kernel do not know whose fault it was")
	f := verbstest.NewFaulty(env.OpenDriver(t), nil)
	p := newPair(t, nodeConfig{}, nodeConfig{device: env.Core(t, f)})
	needKeys(t, p.b.dev)
	p.b.expect(p.ba, "on", p.a.send(p.ab, "on"))
	// Behind the back of the core, which would refuse it.
	_, err := f.QPs()[0].PostSend([]driver.SendWR{{Opcode: driver.OpSend, SGEs: []driver.SGE{{Addr: 1, Length: 1, LKey: 1}}}})
	require.NoError(t, err)
	x := get(t, p.b.faults)
	require.Same(t, p.ba, x.c)
	var fe *FaultError
	require.ErrorAs(t, x.err, &fe)
	require.Equal(t, FaultLocal, fe.Kind, "%v", x.err)
	require.NotErrorIs(t, refused(x.err), ErrAccess)
	get(t, p.ba.Done())
}
