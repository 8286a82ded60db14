package messenger

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// adversary is somebody who means harm, against a server on a stream. Each ends
// in an error that says what was tried, and in a counter; the server goes on, and
// an innocent who uses it meanwhile notices nothing.
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
	if strings.HasPrefix(r.Message, "session ") {
		return nil // its reset tells, and comes when all that was received has been handled
	}
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
	p.auth, p.modes, p.target = v.cfg.Auth[len(v.cfg.Auth)-1:], v.cfg.Modes, v.m.wireAddrs()[0]
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

func adversaries() []adversary {
	secure := func() Config { return secured(Config{}) }
	crc := func() Config {
		cfg := secure()
		cfg.Modes = []Mode{ModeCRC}
		return cfg
	}
	none := func() Config { return Config{Auth: []Auth{AuthNone{}}} }
	auth := func(s Stats) uint64 { return s.AuthFailures }
	forged := func(s Stats) uint64 { return s.ForgedRecords }
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
		{"offers no method that counts", secure(), func(t *testing.T, v *victim) {
			p := v.params()
			p.auth, p.modes = []Auth{AuthNone{}}, []Mode{ModeCRC}
			c := v.dial()
			require.ErrorIs(t, converse(c, newHandshake(p)), ErrAuth)
			c.Close()
		}, ErrAuth, auth},
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
		{"authenticates for ever", Config{Auth: []Auth{endless{}, AuthNone{}}}, func(t *testing.T, v *victim) {
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
		{"authenticates with 4 KB for ever", Config{Auth: []Auth{endless{}, AuthNone{}}}, func(t *testing.T, v *victim) {
			const each = 4000
			c := v.dial()
			b := msgr2.Banner{Supported: ownFeatures | 1, Required: 1}.Append(nil)
			b = append(b, msgr2.AppendControl(nil, &msgr2.Hello{Entity: msgr2.EntityClient})...)
			b = append(b, msgr2.AppendControl(nil, &msgr2.AuthRequest{Method: msgr2.AuthMethod(endless{}.Method()), Modes: []uint32{1}})...)
			for range maxTranscript/each + 1 { // fewer than the rounds that it may take
				b = append(b, msgr2.AppendControl(nil, &msgr2.AuthRequestMore{Payload: make([]byte, each)})...)
			}
			write(t, c, b)
			closedByPeer(t, c)
			require.Eventually(t, func() bool { return strings.Contains(v.said.String(), "more than 65536 bytes before authentication") }, patience, time.Millisecond)
		}, ErrProtocol, protocol},
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
			x := &innocent{}
			v.m.SetPolicy(MDS, StatefulServer())
			v.m.AddDispatcher(&handler{dispatch: x.takes(echo), reset: func(c *Connection) { v.said.add(c.Err()) }})
			require.NoError(t, v.m.Bind(soon(t), anyAddr(SchemeTCP)))
			end := x.beside(t, v.m, cfg)
			before := a.count(v.m.Stats())
			a.try(t, v)
			require.Eventually(t, func() bool {
				found := false
				for _, err := range v.said.all() {
					found = found || errors.Is(err, a.want)
				}
				return found && a.count(v.m.Stats()) > before
			}, patience, time.Millisecond, "the server says %v", &v.said)
			end(cfg.KeepaliveTimeout == 0) // else a busy machine may be late
			// The server goes on, for whoever comes then and is honest.
			if a.cfg.MaxHalfOpenPerHost == 0 {
				err := converse(v.dial(), newHandshake(v.params()))
				for tries := 0; err != nil && cfg.ConnectTimeout > 0 && tries < 20; tries++ { // on a busy machine it may be too short
					err = converse(v.dial(), newHandshake(v.params()))
				}
				require.NoError(t, err)
			}
		})
	}
}
