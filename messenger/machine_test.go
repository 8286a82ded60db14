package messenger

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// A handshake as a state machine, in both roles, against a peer that has the
// keys: it says what an honest one would, or again, or leaves it out, or any
// other frame at any time, sealed where frames are. Nothing panics, what is kept
// is bounded, an error is final, and nobody is let in who has not signed.
func FuzzHandshakeMachine(f *testing.F) {
	honest := bytes.Repeat([]byte{0}, 24)
	for _, client := range []bool{true, false} {
		for _, secure := range []bool{true, false} {
			f.Add(honest, client, secure, false)
			f.Add(honest, client, secure, true)
			for _, op := range []byte{1, 2, 3, 40, 80, 120, 200} {
				f.Add(append(bytes.Repeat([]byte{0}, 4), op, 0, 0, 0, 0), client, secure, false)
			}
		}
	}
	f.Fuzz(func(t *testing.T, ops []byte, client, secure, heads bool) {
		cp, sp := scriptParams([]string{"client", "expect=4", "own"}), scriptParams([]string{"server", "own"})
		mode := ModeCRC
		if secure {
			mode = ModeSecure
		}
		for _, p := range []*hsParams{&cp, &sp} {
			p.auth, p.modes, p.heads = []Auth{sharedKey{"k"}}, []Mode{mode}, heads
		}
		cp.target = ourAddr
		h, q := newHandshake(sp), newHandshake(cp)
		if client {
			h, q = q, h
		}
		var toH [][]byte // what the honest peer would say
		say := func(units [][]byte) {
			for _, u := range units {
				out, _ := q.input(bytes.Clone(u))
				toH = append(toH, out...)
			}
		}
		say(h.start())
		toH = append(toH, q.start()...)
		signed, last := false, []byte(nil)
		for _, op := range ops {
			var unit []byte
			switch {
			case op == 0 && len(toH) > 0:
				unit, toH = toH[0], toH[1:]
				last = bytes.Clone(unit)
				if h.at == hsSignature {
					signed = true // the honest peer's
				}
			case op == 1:
				unit = bytes.Clone(last)
			case op == 2 && len(toH) > 0:
				toH = toH[1:]
				continue
			case op == 3:
				unit = []byte("ceph v2\n")
			default:
				tag := msgr2.Tag(1 + op%20)
				if tag == msgr2.TagMessage {
					unit = message(&msgr2.Header{Seq: 1}, nil)
					break
				}
				frame := msgr2.New(tag)
				if r, ok := frame.(*msgr2.AuthRequest); ok {
					r.Method, r.Modes = msgr2.AuthMethod(sharedKeyMethod), []uint32{uint32(mode)}
				}
				if q.shield != nil {
					unit = q.shield.control(frame, heads)
				} else {
					unit = msgr2.AppendControl(nil, frame)
				}
			}
			broken := h.broken
			out, err := h.input(unit)
			if broken != nil {
				require.Equal(t, broken, err, "an error is final")
			}
			require.LessOrEqual(t, len(h.received), maxTranscript)
			require.LessOrEqual(t, h.tries, maxAuthTries+1)
			if h.at >= hsIdent {
				require.True(t, signed, "let in without a signature")
			}
			say(out)
			if h.done() {
				break
			}
		}
	})
}
