package messenger

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
	"github.com/argonaut-rdma/argonaut/test/env"
)

// rawRDMA is a peer that speaks to a server's queue pair with frames of its own.
type rawRDMA struct {
	*conn.Conn
	arena *buffer.Arena
	got   chan []byte
	gone  chan error
}

func dialRaw(t *testing.T, m *Messenger) *rawRDMA {
	t.Helper()
	r := &rawRDMA{arena: newArena(t), got: make(chan []byte, 16), gone: make(chan error, 1)}
	dev := env.Open(t)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	ep, err := conn.NewEndpoint(dev, r.arena, conn.Config{
		OnMessage: func(_ *conn.Conn, m conn.Message) {
			if m.Payload != nil {
				m.Payload.Release()
			}
			r.got <- bytes.Clone(m.Head)
		},
		OnFault: func(_ *conn.Conn, err error) { r.gone <- err },
	})
	require.NoError(t, err)
	t.Cleanup(func() { ep.Close() })
	for _, a := range m.Addrs() {
		if a.Scheme() == schemeDevice {
			r.Conn, err = ep.Dial(soon(t), a.HostPort())
			require.NoError(t, err)
			return r
		}
	}
	t.Fatal("the server does not listen")
	return nil
}

// enter runs the handshake; it needs the server's address in p.
func (r *rawRDMA) enter(t *testing.T, p hsParams) *handshake {
	t.Helper()
	p.heads = true
	h := newHandshake(p)
	for _, u := range h.start() {
		require.NoError(t, r.Send(soon(t), conn.Message{Head: u}))
	}
	for !h.done() {
		out, err := h.input(receiveOne(t, r.got, "frame"))
		require.NoError(t, err)
		for _, u := range out {
			require.NoError(t, r.Send(soon(t), conn.Message{Head: u}))
		}
	}
	return h
}

// The adversaries of a queue pair.
func TestAdversariesOnRDMA(t *testing.T) {
	for _, a := range []struct {
		name  string
		try   func(t *testing.T, r *rawRDMA, h func() *handshake)
		want  error
		count func(Stats) uint64
	}{
		{"sends payload before it is authenticated", func(t *testing.T, r *rawRDMA, _ func() *handshake) {
			l, err := r.arena.GetList(soon(t), 8<<20, buffer.Anonymous)
			require.NoError(t, err)
			require.NoError(t, r.Send(soon(t), conn.Message{Head: msgr2.Banner{Supported: 1, Required: 1}.Append(nil), Payload: l}))
		}, ErrProtocol, func(s Stats) uint64 { return s.ProtocolErrors }},
		{"sends a large frame before it is authenticated", func(t *testing.T, r *rawRDMA, _ func() *handshake) {
			require.NoError(t, r.Send(soon(t), conn.Message{Head: msgr2.Banner{Supported: 1, Required: 1}.Append(nil)}))
			big := msgr2.AppendControl(nil, &msgr2.AuthRequest{Payload: make([]byte, 5000)})
			require.NoError(t, r.Send(soon(t), conn.Message{Head: big}))
		}, msgr2.ErrTooLarge, func(s Stats) uint64 { return s.ProtocolErrors }},
		{"changes a sealed head", func(t *testing.T, r *rawRDMA, enter func() *handshake) {
			h := enter()
			b, err := h.shield.sealHead(message(&msgr2.Header{Seq: 1, Type: 1}, []byte("x")), nil)
			require.NoError(t, err)
			b[9] ^= 1
			require.NoError(t, r.Send(soon(t), conn.Message{Head: b}))
		}, ErrForged, func(s Stats) uint64 { return s.ForgedRecords }},
		{"changes sealed data", func(t *testing.T, r *rawRDMA, enter func() *handshake) {
			require.NoError(t, r.Send(soon(t), r.sealed(t, enter(), 300_000, func(b []byte) { b[200_000] ^= 1 })))
		}, ErrForged, func(s Stats) uint64 { return s.ForgedRecords }},
		{"swaps sealed records", func(t *testing.T, r *rawRDMA, enter func() *handshake) {
			require.NoError(t, r.Send(soon(t), r.sealed(t, enter(), 300_000, func(b []byte) {
				one := bytes.Clone(b[:65536])
				copy(b, b[65536:2*65536])
				copy(b[65536:], one)
			})))
		}, ErrForged, func(s Stats) uint64 { return s.ForgedRecords }},
		{"sends the data of an earlier frame", func(t *testing.T, r *rawRDMA, enter func() *handshake) {
			h := enter()
			var old []byte
			require.NoError(t, r.Send(soon(t), r.sealed(t, h, 100_000, func(b []byte) { old = bytes.Clone(b) })))
			require.NoError(t, r.Send(soon(t), r.sealed(t, h, 100_000, func(b []byte) { copy(b, old) })))
		}, ErrForged, func(s Stats) uint64 { return s.ForgedRecords }},
		{"sends data without its tags", func(t *testing.T, r *rawRDMA, enter func() *handshake) {
			m := r.sealed(t, enter(), 100_000, func([]byte) {})
			short := r.sealed(t, enter(), 10, func([]byte) {})
			m.Payload, short.Payload = short.Payload, m.Payload
			m.Payload.Release()
			require.NoError(t, r.Send(soon(t), short))
		}, ErrForged, func(s Stats) uint64 { return s.ForgedRecords }},
	} {
		t.Run(a.name, func(t *testing.T) {
			v := &victim{t: t}
			cfg := secured(Config{Name: EntityName{OSD, 0}, Logger: slog.New(v)})
			v.m = newMessenger(t, cfg)
			x := &innocent{}
			v.m.SetPolicy(MDS, StatefulServer())
			v.m.AddDispatcher(&handler{dispatch: x.takes(echo), reset: func(c *Connection) { v.said.add(c.Err()) }})
			require.NoError(t, v.m.Bind(soon(t), anyAddr(schemeDevice)))
			end := x.beside(t, v.m, cfg)
			r := dialRaw(t, v.m)
			var h *handshake
			a.try(t, r, func() *handshake {
				if h == nil {
					p := scriptParams([]string{"client", "expect=4", "own"})
					p.auth, p.modes, p.target = cfg.Auth, cfg.Modes, v.m.wireAddrs()[0]
					h = r.enter(t, p)
				}
				return h
			})
			receiveOne(t, r.gone, "end of the connection")
			require.Eventually(t, func() bool {
				for _, err := range v.said.all() {
					if errors.Is(err, a.want) {
						return a.count(v.m.Stats()) > 0
					}
				}
				return false
			}, patience, time.Millisecond, "%v", v.said.all())
			end(true)
			require.LessOrEqual(t, v.m.Stats().MessagesReceived, x.calls+1)
			require.Eventually(t, func() bool { return v.m.Stats().DispatchBytes == 0 }, patience, time.Millisecond)
		})
	}
}

// Peers that connect and say nothing take half of a transport at most; who is
// honest still gets in.
func TestHalfOpenOnRDMA(t *testing.T) {
	m := newMessenger(t, Config{Name: EntityName{OSD, 0}})
	m.AddDispatcher(&handler{dispatch: echo})
	require.NoError(t, m.Bind(soon(t), anyAddr(schemeDevice)))
	half := m.endpoints[schemeDevice].Capacity() / 2
	require.Greater(t, half, 2)
	silent := []*rawRDMA{}
	for range half - 1 {
		silent = append(silent, dialRaw(t, m))
	}
	require.Eventually(t, func() bool { return m.Stats().HalfOpen == half-1 }, patience, time.Millisecond)
	c, err := newMessenger(t, Config{}).ConnectTo(OSD, m.Addrs())
	require.NoError(t, err)
	require.NoError(t, c.Ready(soon(t)))
	require.Eventually(t, func() bool { return m.Stats().HalfOpen == half-1 }, patience, time.Millisecond) // the server knows, too
	silent = append(silent, dialRaw(t, m))
	require.Eventually(t, func() bool { return m.Stats().HalfOpen == half }, patience, time.Millisecond)
	_, err = silent[0].Endpoint().Dial(soon(t), m.Addrs()[0].HostPort())
	require.ErrorIs(t, err, conn.ErrRefused)
	require.EqualValues(t, 1, m.Stats().HandshakesRefused)
	silent[0].Close()
	require.Eventually(t, func() bool { return m.Stats().HalfOpen == half-1 }, patience, time.Millisecond)
	dialRaw(t, m)
}

// A peer that has not authenticated has two receive buffers, and the rest with its
// session.
func TestHalfOpenPeersHaveTwoReceives(t *testing.T) {
	peers := 100
	if env.Device() != "" { // emulated: they come slowly, and may stay half open for so long only
		peers = 20
	}
	small := func(cfg conn.Config) conn.Config {
		cfg.RecvSize, cfg.SendDepth, cfg.OpDepth, cfg.RecvBuffers = 4<<10, 8, 4, -1
		return cfg
	}
	dev, a := env.Open(t), newArena(t)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	m := newMessenger(t, Config{Name: EntityName{OSD, 0}, Arena: a, MaxHalfOpenPerHost: 2 * peers, ConnectTimeout: patience, Transports: []Transport{{
		Scheme: schemeDevice,
		Open:   func(cfg conn.Config) (*conn.Endpoint, error) { return conn.NewEndpoint(dev, a, small(cfg)) },
	}}})
	m.AddDispatcher(&handler{dispatch: echo})
	require.NoError(t, m.Bind(soon(t), anyAddr(schemeDevice)))
	ep := m.endpoints[schemeDevice]
	theirDev := env.Open(t)
	t.Cleanup(func() { require.NoError(t, theirDev.Close()) })
	theirs, err := conn.NewEndpoint(theirDev, newArena(t), small(conn.Config{}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, theirs.Close()) })
	for range peers {
		_, err := theirs.Dial(soon(t), m.Addrs()[0].HostPort())
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return m.Stats().HalfOpen == peers }, patience, time.Millisecond)
	require.Eventually(t, func() bool { return ep.Stats().RecvPosted == 2*peers }, patience, time.Millisecond)
	c, err := newMessenger(t, Config{}).ConnectTo(OSD, m.Addrs())
	require.NoError(t, err)
	r, err := c.Call(soon(t), NewMessage(1))
	require.NoError(t, err)
	r.Release()
	require.Eventually(t, func() bool { return ep.Stats().RecvPosted == 2*peers+16 }, patience, time.Millisecond)
}

// sealed is a frame with n bytes of data, changed on their way.
func (r *rawRDMA) sealed(t *testing.T, h *handshake, n int64, change func([]byte)) conn.Message {
	t.Helper()
	src, _ := randomList(t, r.arena, n)
	defer src.Release()
	dst, err := r.arena.GetList(soon(t), n, buffer.Anonymous)
	require.NoError(t, err)
	tags := h.shield.sealData(dst, src)
	b := bytesOf(dst)
	change(b)
	dst.CopyFrom(b)
	seq := h.shield.txData + 1
	head, p, e := msgr2.AppendMessageHead(nil, &msgr2.Header{Seq: seq, Type: 1}, nil, nil, int(n))
	head, err = h.shield.sealHead(msgr2.AppendMessageTail(head, &p, e, 0), tags)
	require.NoError(t, err)
	h.shield.txData++
	return conn.Message{Head: bytes.Clone(head), Payload: dst}
}
