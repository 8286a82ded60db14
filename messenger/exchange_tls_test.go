package messenger

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// A handshake with method tls is as in testdata/exchange/tls_*.txt. TLS's own bytes
// are other ones each time, and TLS's business: of its frames it is what stands
// around them, and which records are in them; what the keys of the session go
// into, signatures and secure mode, is its frames' order and sizes; the rest is its
// bytes, as in TestExchangeIsGolden.
func TestTLSExchangeIsGolden(t *testing.T) {
	ca := newCA(t, "test")
	auth := func(me *speaker) Auth {
		return ca.method(ca.issue(nil, map[string]string{"client": "client.*", "server": "osd.3"}[me.name]))
	}
	for _, scheme := range []string{SchemeTCP, SchemeIWARP} {
		for _, mode := range []Mode{ModeCRC, ModeSecure} {
			name := fmt.Sprintf("tls_%s_%v", scheme, mode)
			t.Run(name, func(t *testing.T) {
				var out strings.Builder
				fmt.Fprintf(&out, "# A handshake of two peers of this project over %s, with certificates, %v mode.\n", scheme, mode)
				c, s := &speaker{name: "client"}, &speaker{name: "server"}
				spoke := map[*speaker]bool{}
				goldenHandshake(t, scheme, mode, auth, c, s, func(x *speaker, u []byte) {
					what, payload := describeTLS(t, u)
					switch {
					case payload != nil:
						fmt.Fprintf(&out, "\n%s: %s %s\n", x.name, what, tlsPayload(t, payload, !spoke[x]))
						spoke[x] = true
					case strings.HasPrefix(what, "AUTH_SIGNATURE"), strings.HasPrefix(what, "SEALED"):
						fmt.Fprintf(&out, "\n%s: %s, %d bytes\n", x.name, strings.Fields(what)[0], len(u))
					default:
						hexLines(&out, x.name, what, u)
					}
				})
				require.Equal(t, s.h.authResult.SessionKey, c.h.authResult.SessionKey)
				require.Equal(t, s.h.authResult.Secret, c.h.authResult.Secret)
				require.Equal(t, EntityName{OSD, 3}, c.h.result.verified)
				require.Equal(t, mode == ModeSecure, c.h.shield != nil)
				requireGolden(t, name, out.String())
			})
		}
	}
}

// describeTLS is describe, of frames of the method without its payload, which it
// returns.
func describeTLS(t *testing.T, u []byte) (what string, payload []byte) {
	t.Helper()
	var p msgr2.Preamble
	if p.Decode(u, msgr2.Limits{}) != nil {
		return describe(t, u), nil
	}
	b, err := p.CheckSegZero(u[msgr2.PreambleLen:])
	require.NoError(t, err)
	f := msgr2.New(p.Tag)
	require.NoError(t, f.Decode(b))
	switch f := f.(type) {
	case *msgr2.AuthRequest:
		return fmt.Sprintf("%v method=%#x modes=%v", p.Tag, uint32(f.Method), f.Modes), f.Payload
	case *msgr2.AuthRequestMore:
		return p.Tag.String(), f.Payload
	case *msgr2.AuthReplyMore:
		return p.Tag.String(), f.Payload
	case *msgr2.AuthDone:
		return fmt.Sprintf("%v global_id=%d mode=%v", p.Tag, f.GlobalID, f.Mode), f.Payload
	}
	return describe(t, u), nil
}

// tlsPayload is a payload of the method: its flags, in the first one of a side its
// number, and of which types its TLS records are, however many there are of a type.
func tlsPayload(t *testing.T, b []byte, first bool) string {
	t.Helper()
	s := fmt.Sprintf("flags=%d", b[0])
	if b = b[1:]; first {
		s += fmt.Sprintf(" number=%d", int64(binary.LittleEndian.Uint64(b)))
		b = b[8:]
	}
	var types []string
	for len(b) > 0 {
		require.GreaterOrEqual(t, len(b), 5)
		n := 5 + int(binary.BigEndian.Uint16(b[3:]))
		require.GreaterOrEqual(t, len(b), n, "records are whole")
		types = append(types, map[byte]string{20: "change_cipher_spec", 22: "handshake", 23: "application_data"}[b[0]])
		b = b[n:]
	}
	return s + fmt.Sprintf(" records=%v", slices.Compact(types))
}

// Who keeps to PROTOCOL.md, with a TLS of its own, is understood in either role, and
// comes to the same keys. Its constants are the document's.
func TestTLSAsDocumented(t *testing.T) {
	ca := newCA(t, "test")
	for _, client := range []bool{true, false} {
		t.Run(map[bool]string{true: "client", false: "server"}[client], func(t *testing.T) {
			const number = 7
			ended := make(chan struct{})
			defer close(ended)
			// They: TLS, and its payloads.
			theirs := ca.issue(nil, "client.7", "osd.7")
			cfg := &tls.Config{
				MinVersion: tls.VersionTLS13, NextProtos: []string{"argonaut-msgr2"}, InsecureSkipVerify: true,
				Certificates: []tls.Certificate{*theirs}, ClientAuth: tls.RequireAnyClientCert, SessionTicketsDisabled: true,
			}
			pipe := &tlsPipe{want: make(chan struct{}), feed: make(chan struct{}), ended: ended}
			they, ours := tls.Server(pipe, cfg), EntityName{Client, 9}
			if client {
				they, ours = tls.Client(pipe, cfg), EntityName{OSD, 3}
			}
			over := make(chan error, 1)
			go func() { over <- they.HandshakeContext(t.Context()) }() // ends with the handshake, or with ended
			done := false
			say := func(first bool) []byte {
				select {
				case <-pipe.want:
				case err := <-over:
					require.NoError(t, err)
					done = true
				}
				b := []byte{0}
				if first {
					b = binary.LittleEndian.AppendUint64(b, number)
				}
				b = append(b, pipe.out...)
				pipe.out = nil
				return b
			}
			hear := func(b []byte, first bool) {
				require.Zero(t, b[0], "it is all there")
				if b = b[1:]; first {
					require.EqualValues(t, ours.Num, binary.LittleEndian.Uint64(b))
					b = b[8:]
				}
				if len(b) > 0 && !done {
					pipe.in = append(pipe.in, b...)
					pipe.feed <- struct{}{}
				}
			}
			// We: the method.
			method := ca.method(ca.issue(nil, ours.String()))
			var r AuthResult
			if client {
				step := method.Server(AuthInfo{Self: ours, Peer: Client, Ended: ended})
				for first := true; !r.Done; first = false {
					var out []byte
					var err error
					out, r, err = step(say(first), false)
					require.NoError(t, err)
					hear(out, first)
				}
				require.True(t, done, "it has nothing more to say, nor to hear")
				require.Equal(t, EntityName{Client, number}, r.Peer)
			} else {
				step := method.Client(AuthInfo{Self: ours, Peer: OSD, Ended: ended})
				var in []byte
				<-pipe.want // it waits for the client
				for first := true; !done; first = false {
					out, _, err := step(in, false)
					require.NoError(t, err)
					hear(out, first)
					in = say(first)
				}
				var err error
				_, r, err = step(in, true)
				require.NoError(t, err)
				require.True(t, r.Done)
				require.Equal(t, EntityName{OSD, number}, r.Peer)
			}
			state := they.ConnectionState()
			keys, err := state.ExportKeyingMaterial("EXPORTER-argonaut-msgr2", nil, 96)
			require.NoError(t, err)
			require.Equal(t, keys[:32], r.SessionKey)
			require.Equal(t, keys[32:], r.Secret)
		})
	}
}
