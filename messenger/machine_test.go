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
			f.Add(honest, client, secure, false, byte(0))
			f.Add(honest, client, secure, true, byte(0))
			for _, sessions := range fuzzedSessions {
				f.Add(honest, client, secure, false, sessions)
				f.Add(append(bytes.Repeat([]byte{0}, 6), 1, 0, 0, 0, 1, 0, 0, 0), client, secure, false, sessions)
			}
			for _, op := range []byte{1, 2, 3, 40, 80, 120, 200} {
				f.Add(append(bytes.Repeat([]byte{0}, 4), op, 0, 0, 0, 0), client, secure, false, byte(0))
				f.Add(append(bytes.Repeat([]byte{0}, 7), op, op+1, 0, 0, 0), client, secure, false, byte(hasClient|hasServer))
			}
		}
	}
	f.Fuzz(func(t *testing.T, ops []byte, client, secure, heads bool, sessions byte) {
		cw, sw := sessionWords(sessions)
		cp, sp := scriptParams(append([]string{"client", "expect=4", "own"}, cw...)), scriptParams(append([]string{"server", "own"}, sw...))
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
				fillFrame(frame, mode, uint64(op/20))
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
				checkSession(t, h, client, sessions)
				break
			}
		}
	})
}

// The sessions of a fuzzed handshake: bits of one byte.
const (
	hasClient = 1 << iota // the client has one, and asks to go on with it
	hasServer             // the server has one
	isStandby             // it is in standby, else open
	accepting             // a transport of it is being taken in, else as isStandby
	otherOne              // its cookies are others than the client's
	laterSeq              // it knows of a later attempt of the client's: RETRY
	laterAll              // it knows of a later attempt of the client's at anything: RETRY_GLOBAL
	sentLess              // the client has received more than the server has sent
)

var fuzzedSessions = []byte{
	hasClient, hasServer, hasServer | isStandby, hasServer | accepting, hasClient | hasServer, hasClient | hasServer | isStandby,
	hasClient | hasServer | accepting, hasClient | hasServer | otherOne, hasClient | hasServer | laterSeq,
	hasClient | hasServer | laterAll, hasClient | hasServer | sentLess, hasClient | hasServer | laterSeq | laterAll | isStandby,
}

// sessionWords are those of scriptParams.
func sessionWords(b byte) (client, server []string) {
	if b == 0 {
		return nil, nil
	}
	client, server = []string{"lossless"}, []string{"lossless"}
	if b&hasClient != 0 {
		client = append(client, "cc=5", "sc=6", "cs=3", "in=4", "out=9")
	}
	if b&hasServer != 0 {
		state := "state=open"
		switch {
		case b&accepting != 0:
			state = "state=accepting"
		case b&isStandby != 0:
			state = "state=standby"
		}
		server = append(server, state)
		for _, w := range []struct {
			bit      byte
			not, yes string
		}{{otherOne, "cc=5", "cc=7"}, {laterSeq, "cs=2", "cs=8"}, {laterAll, "pgs=1", "pgs=50"}, {sentLess, "out=6", "out=2"}} {
			if b&w.bit != 0 {
				server = append(server, w.yes)
			} else {
				server = append(server, w.not)
			}
		}
		server = append(server, "sc=6", "in=9")
	}
	return client, server
}

// fillFrame gives a frame that is sent out of turn something to say: v is small.
func fillFrame(f msgr2.Frame, mode Mode, v uint64) {
	switch f := f.(type) {
	case *msgr2.AuthRequest:
		f.Method, f.Modes = msgr2.AuthMethod(sharedKeyMethod), []uint32{uint32(mode)}
	case *msgr2.ClientIdent:
		f.Addrs, f.Target, f.Cookie, f.GlobalSeq, f.Supported = msgr2.AddrVec{theirAddr}, ourAddr, v%9, v, baseFeatures
	case *msgr2.ServerIdent:
		f.Addrs, f.Cookie, f.GlobalSeq, f.Supported = msgr2.AddrVec{ourAddr}, v, v, baseFeatures
	case *msgr2.SessionReconnect:
		f.Addrs, f.ClientCookie, f.ServerCookie = msgr2.AddrVec{theirAddr}, v%9, 6
		f.GlobalSeq, f.ConnectSeq, f.MsgSeq = v, v, v
	case *msgr2.SessionReconnectOK:
		f.MsgSeq = v
	case *msgr2.SessionRetry:
		f.ConnectSeq = v << (v % 64)
	case *msgr2.SessionRetryGlobal:
		f.GlobalSeq = v << (v % 64)
	case *msgr2.SessionReset:
		f.Full = v&1 != 0
	}
}

// checkSession checks which session a handshake of h has ended with.
func checkSession(t *testing.T, h *handshake, client bool, sessions byte) {
	s := h.p.session.(*scriptSession).s
	require.LessOrEqual(t, s.Acked, s.OutSeq, "nobody has received what was never sent")
	if !h.result.resumed {
		return
	}
	// Of a server the client has proved that it knows its cookie; of a client it is
	// the session that it has asked for.
	require.NotZero(t, s.ClientCookie, "there was one")
	if client {
		require.NotZero(t, sessions&hasClient)
		return
	}
	require.NotZero(t, sessions&hasServer)
	if sessions&accepting != 0 {
		require.Zero(t, sessions&otherOne, "the one that is being taken in is of another session")
		before := uint64(1)
		if sessions&laterAll != 0 {
			before = 50
		}
		require.Greater(t, s.PeerGlobalSeq, before, "the client has given up the one that is being taken in")
	}
}
