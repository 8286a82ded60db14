package messenger

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
	"github.com/argonaut-rdma/argonaut/test/env"
)

// adversary is somebody who means harm, against a server on a stream. Each ends
// in an error that says what was tried, and in a counter; the server goes on.
type adversary struct {
	name  string
	cfg   Config // the server's
	try   func(t *testing.T, v *victim)
	want  error
	count func(Stats) uint64
}

// victim is the server, and what it says.
type victim struct {
	t    *testing.T
	m    *Messenger
	cfg  Config
	said syncSlice[error]
}

// Enabled, Handle, WithAttrs and WithGroup make it the handler of the server's
// log, from which it takes the errors.
func (v *victim) Enabled(context.Context, slog.Level) bool { return true }
func (v *victim) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok {
			v.said.add(err)
		}
		return true
	})
	return nil
}
func (v *victim) WithAttrs([]slog.Attr) slog.Handler { return v }
func (v *victim) WithGroup(string) slog.Handler      { return v }

func (v *victim) dial() net.Conn {
	c, err := net.Dial("tcp", v.m.Addrs()[0].HostPort())
	require.NoError(v.t, err)
	v.t.Cleanup(func() { c.Close() })
	return c
}

// params is an honest client's side.
func (v *victim) params() hsParams {
	p := scriptParams([]string{"client", "expect=4", "own"})
	p.auth, p.modes, p.target = v.cfg.Auth, v.cfg.Modes, v.m.wireAddrs()[0]
	p.name = EntityName{Client, 7}
	return p
}

// enter runs an honest handshake.
func (v *victim) enter() (net.Conn, *handshake) {
	c, h := v.dial(), newHandshake(v.params())
	require.NoError(v.t, converse(c, h))
	return c, h
}

func write(t *testing.T, c net.Conn, b []byte) {
	_, err := c.Write(b)
	require.NoError(t, err)
}

// sealedMessage is a message of an open session.
func sealedMessage(t *testing.T, h *handshake, seq uint64) []byte {
	p := msgr2.MessagePreamble(5, 0, 0)
	b, err := h.shield.tx.AppendSecure(nil, &p, (&msgr2.Header{Seq: seq, Type: 1}).Append(nil), []byte("front"), nil, nil, false)
	require.NoError(t, err)
	return b
}

// between is a man in the middle: it passes units of a handshake on, changed.
func (v *victim) between(change func(fromClient bool, n int, unit []byte) []byte) error {
	c, h := v.dial(), newHandshake(v.params())
	defer c.Close()
	return converse(&middle{Conn: c, change: change}, h)
}

// middle changes what is written, unit by unit: converse writes one at a time.
type middle struct {
	net.Conn
	n      int
	change func(fromClient bool, n int, unit []byte) []byte
}

func (m *middle) Write(p []byte) (int, error) {
	q := m.change(true, m.n, bytes.Clone(p))
	m.n++
	_, err := m.Conn.Write(q)
	return len(p), err
}

// reencode changes a frame of crc mode and makes its checksums right again.
func reencode(unit []byte, tag msgr2.Tag, change func(msgr2.Frame)) []byte {
	var p msgr2.Preamble
	if p.Decode(unit, msgr2.Limits{}) != nil || p.Tag != tag {
		return unit
	}
	f := msgr2.New(tag)
	if f.Decode(unit[msgr2.PreambleLen:]) != nil {
		return unit
	}
	change(f)
	return msgr2.AppendControl(nil, f)
}

func adversaries() []adversary {
	secure := func() Config { return secured(Config{}) }
	crc := func() Config {
		cfg := secure()
		cfg.Modes = []Mode{ModeCRC}
		return cfg
	}
	both := func() Config {
		cfg := secure()
		cfg.Modes = []Mode{ModeSecure, ModeCRC}
		return cfg
	}
	none := func() Config { return Config{Auth: []Auth{AuthNone{}}} }
	auth := func(s Stats) uint64 { return s.AuthFailures }
	forged := func(s Stats) uint64 { return s.ForgedRecords }
	failed := func(s Stats) uint64 { return s.HandshakesFailed }
	protocol := func(s Stats) uint64 { return s.ProtocolErrors }
	signature := func(sum [32]byte) func(*testing.T, *victim) {
		return func(t *testing.T, v *victim) {
			require.Error(t, v.between(func(_ bool, _ int, u []byte) []byte {
				return reencode(u, msgr2.TagAuthSignature, func(f msgr2.Frame) { f.(*msgr2.AuthSignature).Sum = sum })
			}))
		}
	}
	// after runs an honest handshake, and what is done then.
	after := func(do func(t *testing.T, c net.Conn, h *handshake)) func(*testing.T, *victim) {
		return func(t *testing.T, v *victim) {
			c, h := v.enter()
			do(t, c, h)
			closedByPeer(t, c)
		}
	}
	return []adversary{
		{"knows another key", secure(), func(t *testing.T, v *victim) {
			p := v.params()
			p.auth = []Auth{sharedKey{"guess"}}
			err := converse(v.dial(), newHandshake(p))
			require.ErrorIs(t, err, ErrForged, "the client notices too")
		}, ErrForged, forged},
		{"knows another key and is not encrypted", crc(), func(t *testing.T, v *victim) {
			p := v.params()
			p.auth = []Auth{sharedKey{"guess"}}
			h := newHandshake(p)
			require.Error(t, converse(v.dial(), h))
		}, ErrAuth, auth},
		{"signs with zeros, as if there were no key", crc(), signature([32]byte{}), ErrAuth, auth},
		{"signs with a guess", crc(), signature([32]byte{1, 2, 3}), ErrAuth, auth},
		{"takes encryption out of what the client offers", both(), func(t *testing.T, v *victim) {
			// The client notices: the server has signed what it did not send.
			require.ErrorIs(t, v.between(func(_ bool, _ int, u []byte) []byte {
				return reencode(u, msgr2.TagAuthRequest, func(f msgr2.Frame) { f.(*msgr2.AuthRequest).Modes = []uint32{1} })
			}), ErrAuth)
		}, io.EOF, failed},
		{"takes features out of the client's banner", crc(), func(t *testing.T, v *victim) {
			require.ErrorIs(t, v.between(func(_ bool, n int, u []byte) []byte {
				if n == 0 {
					u[msgr2.BannerPrefixLen+7] &^= 0x20 // NO_DATA_CRC
					u[msgr2.BannerPrefixLen+6] ^= 1
				}
				return u
			}), ErrAuth)
		}, io.EOF, failed},
		{"offers no method that counts", secure(), func(t *testing.T, v *victim) {
			p := v.params()
			p.auth, p.modes = []Auth{AuthNone{}}, []Mode{ModeCRC}
			c := v.dial()
			require.ErrorIs(t, converse(c, newHandshake(p)), ErrAuth)
			c.Close()
		}, io.EOF, failed},
		{"says in its ident that it is another", secure(), func(t *testing.T, v *victim) {
			h := newHandshake(v.params())
			h.p.name.Num = 8
			h.p.auth = []Auth{renamed{v.cfg.Auth[0], EntityName{Client, 7}}}
			require.Error(t, converse(v.dial(), h))
		}, ErrAuth, auth},
		{"has no number of its own, and takes one", secure(), func(t *testing.T, v *victim) {
			h := newHandshake(v.params())
			h.p.name.Num = 0
			h.p.auth = []Auth{renamed{v.cfg.Auth[0], EntityName{Client, -1}}}
			require.Error(t, converse(v.dial(), h))
		}, ErrAuth, auth},
		{"replays the handshake of another", secure(), func(t *testing.T, v *victim) {
			var sent syncSlice[[]byte]
			h := newHandshake(v.params())
			require.NoError(t, converse(&middle{Conn: v.dial(), change: func(_ bool, _ int, u []byte) []byte {
				sent.add(u)
				return u
			}}, h))
			c := v.dial()
			for _, u := range sent.all() {
				write(t, c, u)
			}
			closedByPeer(t, c)
		}, ErrForged, forged},
		{"replays the handshake of another, not encrypted", crc(), func(t *testing.T, v *victim) {
			var sent syncSlice[[]byte]
			h := newHandshake(v.params())
			require.NoError(t, converse(&middle{Conn: v.dial(), change: func(_ bool, _ int, u []byte) []byte {
				sent.add(u)
				return u
			}}, h))
			c := v.dial()
			for _, u := range sent.all() {
				write(t, c, u)
			}
			closedByPeer(t, c)
		}, ErrAuth, auth},
		{"sends messages before it is authenticated", secure(), func(t *testing.T, v *victim) {
			c := v.dial()
			write(t, c, msgr2.Banner{Supported: 1, Required: 1}.Append(nil))
			write(t, c, message(&msgr2.Header{Seq: 1, Type: 1}, []byte("front")))
			closedByPeer(t, c)
		}, ErrProtocol, protocol},
		{"announces 3 GiB before it is authenticated", secure(), func(t *testing.T, v *victim) {
			c := v.dial()
			p := msgr2.ControlPreamble(msgr2.TagAuthRequest, 3<<30)
			write(t, c, p.Append(msgr2.Banner{Supported: 1, Required: 1}.Append(nil)))
			closedByPeer(t, c)
		}, msgr2.ErrTooLarge, protocol},
		{"sends 4 KiB and one byte before it is authenticated", secure(), func(t *testing.T, v *victim) {
			c := v.dial()
			p := msgr2.ControlPreamble(msgr2.TagAuthRequest, 4<<10+1)
			write(t, c, p.Append(msgr2.Banner{Supported: 1, Required: 1}.Append(nil)))
			closedByPeer(t, c)
		}, msgr2.ErrTooLarge, protocol},
		{"authenticates for ever", Config{Auth: []Auth{endless{}}}, func(t *testing.T, v *victim) {
			c := v.dial()
			b := msgr2.Banner{Supported: ownFeatures | 1, Required: 1}.Append(nil)
			b = append(b, msgr2.AppendControl(nil, &msgr2.Hello{Entity: msgr2.EntityClient})...)
			b = append(b, msgr2.AppendControl(nil, &msgr2.AuthRequest{Method: msgr2.AuthMethod(endless{}.Method()), Modes: []uint32{1}})...)
			for range 2 * maxAuthTries {
				b = append(b, msgr2.AppendControl(nil, &msgr2.AuthRequestMore{})...)
			}
			write(t, c, b)
			closedByPeer(t, c)
		}, ErrAuth, auth},
		{"tries method after method", secure(), func(t *testing.T, v *victim) {
			c := v.dial()
			b := msgr2.Banner{Supported: 1, Required: 1}.Append(nil)
			b = append(b, msgr2.AppendControl(nil, &msgr2.Hello{Entity: msgr2.EntityClient})...)
			for i := range 2 * maxAuthRequests {
				b = append(b, msgr2.AppendControl(nil, &msgr2.AuthRequest{Method: msgr2.AuthMethod(i)})...)
			}
			write(t, c, b)
			closedByPeer(t, c)
		}, ErrAuth, auth},
		{"says nothing", Config{ConnectTimeout: 100 * time.Millisecond}, func(t *testing.T, v *victim) {
			closedByPeer(t, v.dial())
		}, ErrTimeout, func(s Stats) uint64 { return s.HandshakeTimeouts }},
		{"says a byte at a time", Config{ConnectTimeout: 200 * time.Millisecond}, func(t *testing.T, v *victim) {
			c := v.dial()
			banner := msgr2.Banner{Supported: 1, Required: 1}
			for _, x := range banner.Append(nil) {
				if _, err := c.Write([]byte{x}); err != nil {
					break
				}
				time.Sleep(20 * time.Millisecond) // the pace of the peer is what is tested
			}
			closedByPeer(t, c)
		}, ErrTimeout, func(s Stats) uint64 { return s.HandshakeTimeouts }},
		{"opens one connection after another", Config{MaxHalfOpenPerHost: 3}, func(t *testing.T, v *victim) {
			for range 3 {
				v.dial()
			}
			require.Eventually(t, func() bool { return v.m.Stats().HalfOpen == 3 }, patience, time.Millisecond)
			closedByPeer(t, v.dial())
		}, ErrBusy, func(s Stats) uint64 { return s.HandshakesRefusedPerHost }},
		{"changes a sealed message", secure(), after(func(t *testing.T, c net.Conn, h *handshake) {
			b := sealedMessage(t, h, 1)
			b[len(b)-20] ^= 1
			write(t, c, b)
		}), ErrForged, forged},
		{"changes a sealed preamble", secure(), after(func(t *testing.T, c net.Conn, h *handshake) {
			b := sealedMessage(t, h, 1)
			b[2] ^= 0x40
			write(t, c, b)
		}), ErrForged, forged},
		{"cuts a sealed record", secure(), after(func(t *testing.T, c net.Conn, h *handshake) {
			b := sealedMessage(t, h, 1)
			write(t, c, append(b[:len(b)-16], sealedMessage(t, h, 2)...))
		}), ErrForged, forged},
		{"ends in the middle of a record", secure(), after(func(t *testing.T, c net.Conn, h *handshake) {
			b := sealedMessage(t, h, 1)
			write(t, c, b[:len(b)-1])
			require.NoError(t, c.(*net.TCPConn).CloseWrite())
		}), io.ErrUnexpectedEOF, func(s Stats) uint64 { return s.Faults }},
		{"sends sealed messages in another order", secure(), after(func(t *testing.T, c net.Conn, h *handshake) {
			one, two := sealedMessage(t, h, 1), sealedMessage(t, h, 2)
			write(t, c, append(two, one...))
		}), ErrForged, forged},
		{"sends a sealed message twice", secure(), after(func(t *testing.T, c net.Conn, h *handshake) {
			b := sealedMessage(t, h, 1)
			write(t, c, append(bytes.Clone(b), b...))
		}), ErrForged, forged},
		{"leaves a sealed message out", secure(), after(func(t *testing.T, c net.Conn, h *handshake) {
			sealedMessage(t, h, 1)
			write(t, c, sealedMessage(t, h, 2))
		}), ErrForged, forged},
		{"sends a sealed message of another connection", secure(), func(t *testing.T, v *victim) {
			_, h := v.enter()
			c, _ := v.enter()
			write(t, c, sealedMessage(t, h, 1))
			closedByPeer(t, c)
		}, ErrForged, forged},
		{"goes on in the clear", secure(), after(func(t *testing.T, c net.Conn, _ *handshake) {
			write(t, c, message(&msgr2.Header{Seq: 1, Type: 1}, bytes.Repeat([]byte("x"), 100)))
		}), ErrForged, forged},
		{"has the key and announces 3 GiB", secure(), after(func(t *testing.T, c net.Conn, h *handshake) {
			p := msgr2.MessagePreamble(5, 0, 3<<30)
			first := p.Append(nil)
			first = append(first, (&msgr2.Header{Seq: 1, Type: 1}).Append(nil)...)
			first = append(first, make([]byte, msgr2.PreambleLen+msgr2.InlineLen-len(first))...)
			b, err := h.shield.tx.Seal(first, 0)
			require.NoError(t, err)
			write(t, c, b)
		}), msgr2.ErrTooLarge, protocol},
		{"reads grants that it was not given", none(), func(t *testing.T, v *victim) {
			c, _ := v.enter()
			var front []byte
			front = AppendGrants(front, []Grant{{Addr: 4096, Len: 64, RKey: 1, Epoch: 1}})
			write(t, c, message(&msgr2.Header{Seq: 1, Type: typePull, TID: 1}, front))
			require.Eventually(t, func() bool { return v.m.Stats().BadGrants == 1 }, patience, time.Millisecond)
			b := []byte{1, 2, 3}
			write(t, c, message(&msgr2.Header{Seq: 2, Type: typePull, TID: 2}, b))
			closedByPeer(t, c)
		}, ErrProtocol, func(s Stats) uint64 { return s.BadGrants }},
		{"asks and does not read", Config{Auth: none().Auth, KeepaliveInterval: 20 * time.Millisecond, KeepaliveTimeout: 300 * time.Millisecond},
			func(t *testing.T, v *victim) {
				c, _ := v.enter()
				require.NoError(t, c.(*net.TCPConn).SetReadBuffer(4096))
				front := make([]byte, 64<<10)
				for i := 0; ; i++ { // until the server, which sends it all back, has had enough
					if _, err := c.Write(message(&msgr2.Header{Seq: uint64(i + 1), Type: 1, TID: uint64(i + 1), Flags: flagCall}, front)); err != nil {
						return
					}
				}
			}, ErrTimeout, func(s Stats) uint64 { return s.Faults }},
		{"guesses the cookies of a session", none(), func(t *testing.T, v *victim) {
			p := v.params()
			h := newHandshake(p)
			c := v.dial()
			err := converse(&middle{Conn: c, change: func(_ bool, _ int, u []byte) []byte {
				var pre msgr2.Preamble
				if pre.Decode(u, msgr2.Limits{}) != nil || pre.Tag != msgr2.TagClientIdent {
					return u
				}
				return msgr2.AppendControl(nil, &msgr2.SessionReconnect{Addrs: msgr2.AddrVec{theirAddr}, ClientCookie: 1, ServerCookie: 2, MsgSeq: 3})
			}}, h)
			require.Error(t, err, "a client that has not asked for a session's end does not take it")
			c.Close()
		}, nil, failed},
	}
}

// renamed is a method whose client authenticates under another name than it
// says afterwards.
type renamed struct {
	Auth
	name EntityName
}

func (r renamed) Client(i AuthInfo) AuthStep {
	i.Self = r.name
	return r.Auth.Client(i)
}

// endless is a method that is never satisfied.
type endless struct{}

func (endless) Method() uint32           { return 0x4000_0003 }
func (endless) Keyed() bool              { return false }
func (endless) Client(AuthInfo) AuthStep { return endless{}.step }
func (endless) Server(AuthInfo) AuthStep { return endless{}.step }
func (endless) step([]byte, bool) ([]byte, AuthResult, error) {
	return []byte("go on"), AuthResult{}, nil
}

func TestAdversaries(t *testing.T) {
	for _, a := range adversaries() {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			v := &victim{t: t}
			cfg := a.cfg
			cfg.Name, cfg.Logger = EntityName{OSD, 0}, slog.New(v)
			if cfg.Auth == nil {
				cfg.Auth = []Auth{AuthNone{}}
			}
			if cfg.Modes == nil {
				cfg.Modes = []Mode{ModeCRC}
			}
			v.cfg = cfg
			v.m = newMessenger(t, cfg)
			v.m.AddDispatcher(&handler{dispatch: echo, reset: func(c *Connection) { v.said.add(c.Err()) }})
			require.NoError(t, v.m.Bind(soon(t), anyAddr(SchemeTCP)))
			before := a.count(v.m.Stats())
			a.try(t, v)
			require.Eventually(t, func() bool {
				found := a.want == nil
				for _, err := range v.said.all() {
					found = found || errors.Is(err, a.want)
				}
				return found && a.count(v.m.Stats()) > before
			}, patience, time.Millisecond, "the server says %v", &v.said)
			// The server goes on, for whoever is honest.
			if a.cfg.MaxHalfOpenPerHost == 0 && a.name != "authenticates for ever" {
				h := newHandshake(v.params())
				require.NoError(t, converse(v.dial(), h))
			}
		})
	}
}

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
			v.m.AddDispatcher(&handler{dispatch: echo, reset: func(c *Connection) { v.said.add(c.Err()) }})
			require.NoError(t, v.m.Bind(soon(t), anyAddr(schemeDevice)))
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
			require.LessOrEqual(t, v.m.Stats().MessagesReceived, uint64(1))
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

// Two connections of the same peers have nothing of their keys in common.
func TestKeysAreNew(t *testing.T) {
	ca := newCA(t, "test")
	for _, auth := range []Auth{sharedKey{"abc"}, ca.method(ca.issue(nil, "osd.*", "client.*"))} {
		var secrets [][]byte
		for range 2 {
			cp, sp := scriptParams([]string{"client", "expect=4", "own"}), scriptParams([]string{"server", "own"})
			ended := make(chan struct{})
			cp.auth, sp.auth, cp.ended, sp.ended = []Auth{auth}, []Auth{auth}, ended, ended
			cp.target = ourAddr
			ch, sh := newHandshake(cp), newHandshake(sp)
			for toS := ch.start(); len(toS) > 0; {
				var next [][]byte
				for _, u := range toS {
					out, err := sh.input(u)
					require.NoError(t, err)
					for _, u := range out {
						out, err := ch.input(u)
						require.NoError(t, err)
						next = append(next, out...)
					}
				}
				toS = next
			}
			require.True(t, ch.done() && sh.done())
			close(ended)
			require.Equal(t, ch.authResult.Secret, sh.authResult.Secret)
			require.Equal(t, ch.authResult.SessionKey, sh.authResult.SessionKey)
			secrets = append(secrets, ch.authResult.Secret, ch.authResult.SessionKey)
		}
		for i, a := range secrets {
			for _, b := range secrets[:i] {
				require.NotEqual(t, a[:16], b[:16], fmt.Sprintf("method %#x", auth.Method()))
			}
		}
	}
}

// Whatever a man in the middle changes of what comes before the signatures, and
// however well: the two do not come together.
func FuzzManInTheMiddle(f *testing.F) {
	f.Add(uint8(0), uint16(9), uint8(1), true, false)
	f.Add(uint8(2), uint16(40), uint8(2), true, true)
	f.Add(uint8(1), uint16(33), uint8(4), false, true)
	f.Fuzz(func(t *testing.T, unit uint8, at uint16, flip uint8, toServer, secure bool) {
		cp, sp := scriptParams([]string{"client", "expect=4", "own", "modes=secure,crc"}), scriptParams([]string{"server", "own", "modes=secure,crc"})
		if !secure {
			cp.modes, sp.modes = []Mode{ModeCRC}, []Mode{ModeCRC}
		}
		cp.auth, sp.auth, cp.target = []Auth{sharedKey{"k"}}, []Auth{sharedKey{"k"}}, ourAddr
		cp.limits, sp.limits = msgr2.Limits{Front: 1 << 20, Data: 1 << 30}, msgr2.Limits{Front: 1 << 16, Data: 1 << 20}
		c, s := newHandshake(cp), newHandshake(sp)
		changed := false
		count := map[bool]int{}
		// pass gives a unit to the other side, perhaps changed.
		pass := func(u []byte, server bool) (out [][]byte, err error) {
			from, to := s, c
			if server {
				from, to = c, s
			}
			u = bytes.Clone(u)
			n := count[server]
			count[server]++
			if server == toServer && n == int(unit%4) && flip != 0 && !signed(u) && from.broken == nil {
				was := bytes.Clone(u)
				u[int(at)%len(u)] ^= flip
				fixChecksums(u) // also undoes a change of a checksum
				changed = !bytes.Equal(u, was)
			}
			return to.input(u)
		}
		toS, toC := c.start(), s.start()
		for len(toS)+len(toC) > 0 && c.broken == nil && s.broken == nil {
			var nextS, nextC [][]byte
			for _, u := range toS {
				out, _ := pass(u, true)
				nextC = append(nextC, out...)
			}
			for _, u := range toC {
				out, _ := pass(u, false)
				nextS = append(nextS, out...)
			}
			toS, toC = nextS, nextC
		}
		require.Equal(t, !changed, c.done() && s.done(), "client: %v, server: %v", c.broken, s.broken)
	})
}

// signed reports whether a unit is behind the signatures, or is one.
func signed(u []byte) bool {
	var p msgr2.Preamble
	if bytes.HasPrefix(u, []byte("ceph v2")) {
		return false
	}
	return p.Decode(u, msgr2.Limits{}) != nil || p.Tag >= msgr2.TagAuthSignature
}

// fixChecksums makes those of a changed control frame right.
func fixChecksums(u []byte) {
	if bytes.HasPrefix(u, []byte("ceph v2")) || len(u) < msgr2.PreambleLen {
		return
	}
	binary.LittleEndian.PutUint32(u[msgr2.PreambleLen-4:], msgr2.CRC(0, u[:msgr2.PreambleLen-4]))
	if len(u) > msgr2.PreambleLen+4 {
		end := len(u) - 4
		binary.LittleEndian.PutUint32(u[end:], msgr2.CRC(msgr2.CRCSeed, u[msgr2.PreambleLen:end]))
	}
}
