package messenger

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

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

// Somebody in the middle who takes encryption, or a feature, out of what a client
// offers gets no connection: the server signs what it has received, and the client
// sees that it is not what it has sent. It is the one who says so, and counts it.
func TestDowngradeIsNoticed(t *testing.T) {
	for _, x := range []struct {
		name   string
		modes  []Mode
		change func(n int, u []byte) []byte
	}{
		{"encryption", []Mode{ModeSecure, ModeCRC}, func(_ int, u []byte) []byte {
			return reencode(u, msgr2.TagAuthRequest, func(f msgr2.Frame) { f.(*msgr2.AuthRequest).Modes = []uint32{uint32(ModeCRC)} })
		}},
		{"a feature", []Mode{ModeCRC}, func(n int, u []byte) []byte {
			if n == 0 {
				u[msgr2.BannerPrefixLen+7] &^= 0x20 // NO_DATA_CRC
				u[msgr2.BannerPrefixLen+6] ^= 1
			}
			return u
		}},
		{"nothing", []Mode{ModeSecure, ModeCRC}, func(_ int, u []byte) []byte { return u }},
	} {
		t.Run(x.name, func(t *testing.T) {
			cfg := secured(Config{Name: EntityName{OSD, 0}})
			cfg.Modes = x.modes
			server := newMessenger(t, cfg)
			require.NoError(t, server.Bind(soon(t), anyAddr(SchemeTCP)))
			ccfg := secured(Config{Name: EntityName{Client, 7}})
			ccfg.Modes = x.modes
			ccfg.DialStream = func(ctx context.Context, addr string) (net.Conn, error) {
				var d net.Dialer
				c, err := d.DialContext(ctx, "tcp", addr)
				return &middle{Conn: c, change: func(_ bool, n int, u []byte) []byte { return x.change(n, u) }}, err
			}
			client := newMessenger(t, ccfg)
			c, err := client.ConnectTo(OSD, server.Addrs())
			require.NoError(t, err)
			if x.name == "nothing" { // the one in the middle is not what fails
				require.NoError(t, c.Ready(soon(t)))
				require.Equal(t, ModeSecure, c.Mode())
				return
			}
			require.Eventually(t, func() bool { return c.Err() != nil }, patience, time.Millisecond)
			require.ErrorIs(t, c.Err(), ErrAuth)
			require.ErrorIs(t, c.Err(), errSignature)
			require.NotZero(t, client.Stats().AuthFailures)
			require.NotEqual(t, StateOpen, c.State())
			require.Zero(t, server.Stats().ConnectionsCreated+client.Stats().ConnectionsCreated)
			require.Eventually(t, func() bool { return server.Stats().HandshakesFailed > 0 }, patience, time.Millisecond)
		})
	}
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

// A handler that writes a received message anew, to send it on, keeps its middle.
func TestGrowLeavesTheMiddle(t *testing.T) {
	m := NewMessage(1)
	defer m.Release()
	m.growParts(4, 8)
	copy(m.Middle, "received")
	m.Grow(12)
	m.Front = append(m.Front, "twelve bytes"...)
	require.Equal(t, "received", string(m.Middle))
}
