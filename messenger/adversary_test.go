package messenger

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// rawServer is a server and a way to talk to it with bytes of one's own.
func rawServer(t *testing.T, cfg Config) (*Messenger, func() net.Conn) {
	t.Helper()
	cfg.Name = EntityName{OSD, 0}
	if cfg.Auth == nil {
		cfg.Auth = []Auth{AuthNone{}} // the bytes of these tests are of crc mode
	}
	m := newMessenger(t, cfg)
	m.AddDispatcher(&handler{dispatch: echo})
	require.NoError(t, m.Bind(soon(t), anyAddr(SchemeTCP)))
	return m, func() net.Conn {
		c, err := net.Dial("tcp", m.Addrs()[0].HostPort())
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
}

// closedByPeer waits until the server closes c.
func closedByPeer(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	_, err := io.Copy(io.Discard, c)
	if ne, ok := errors.AsType[net.Error](err); ok {
		require.False(t, ne.Timeout(), "the server keeps the connection")
	}
}

// handshakeRaw runs the client's side of the handshake over c.
func handshakeRaw(t *testing.T, c net.Conn, m *Messenger) {
	t.Helper()
	handshakeOver(t, c, m, Config{})
}

// handshakeOver is handshakeRaw with the methods and modes of cfg. It returns the
// handshake, with the keys.
func handshakeOver(t *testing.T, c net.Conn, m *Messenger, cfg Config) *handshake {
	t.Helper()
	p := scriptParams([]string{"client", "expect=4", "own"})
	if cfg.Auth != nil {
		p.auth, p.modes = cfg.Auth, cfg.Modes
	}
	p.target = m.wireAddrs()[0]
	h := newHandshake(p)
	require.NoError(t, converse(c, h))
	return h
}

// converse runs a handshake over c until its end.
func converse(c net.Conn, h *handshake) error {
	for _, u := range h.start() {
		if _, err := c.Write(u); err != nil {
			return err
		}
	}
	for !h.done() {
		raw := make([]byte, h.prefixLen())
		if _, err := io.ReadFull(c, raw); err != nil {
			return err
		}
		n, err := h.unitLen(raw)
		if err != nil {
			return err
		}
		raw = append(raw, make([]byte, n-len(raw))...)
		if _, err := io.ReadFull(c, raw[h.prefixLen():]); err != nil {
			return err
		}
		out, err := h.input(raw)
		for _, u := range out {
			if _, err := c.Write(u); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func TestWrongInputIsRefusedAndTheServerGoesOn(t *testing.T) {
	m, dial := rawServer(t, Config{})
	unhex := func(s string) []byte {
		b, err := hex.DecodeString(s)
		require.NoError(t, err)
		return b
	}
	banner := msgr2.Banner{Supported: 1, Required: 1}.Append(nil)
	huge := msgr2.MessagePreamble(1<<30, 1<<30, 1<<31)
	before := map[string][]byte{
		"garbage":         unhex("00112233445566778899aabbccddeeff00112233"),
		"HTTP":            []byte("GET / HTTP/1.1\r\nHost: node\r\n\r\n"),
		"msgr v1":         []byte("ceph v027\x00\x00\x00\x00\x00"),
		"wrong version":   msgr2.Banner{Supported: 0, Required: 0}.Append(nil),
		"wrong frame":     append(append([]byte{}, banner...), msgr2.AppendControl(nil, &msgr2.Wait{})...),
		"4 GiB announced": append(append([]byte{}, banner...), huge.Append(nil)...),
	}
	n := uint64(0)
	for name, in := range before {
		t.Run(name, func(t *testing.T) {
			c := dial()
			_, err := c.Write(in)
			require.NoError(t, err)
			closedByPeer(t, c)
			n++
			require.Eventually(t, func() bool { return m.Stats().HandshakesFailed == n && m.Stats().HalfOpen == 0 }, patience, time.Millisecond)
		})
	}
	open := map[string][]byte{
		"4 GiB after the handshake": huge.Append(nil),
		"handshake again":           msgr2.AppendControl(nil, &msgr2.Hello{}),
		"reserved type":             message(&msgr2.Header{Seq: 1, Type: 0xffff}, nil),
		"bad pull":                  message(&msgr2.Header{Seq: 1, Type: typePull}, []byte{1, 2, 3}),
		"extension beyond front":    message(&msgr2.Header{Seq: 1, Type: 1, Reserved: 9}, []byte{1, 2, 3}),
	}
	for name, in := range open {
		t.Run(name, func(t *testing.T) {
			c := dial()
			handshakeRaw(t, c, m)
			_, err := c.Write(in)
			require.NoError(t, err)
			closedByPeer(t, c)
		})
	}
	client := newMessenger(t, Config{Auth: []Auth{AuthNone{}}})
	c, err := client.ConnectTo(OSD, m.Addrs())
	require.NoError(t, err)
	r, err := c.Call(soon(t), NewMessage(1))
	require.NoError(t, err)
	r.Release()
}

// message is a whole message frame without data.
func message(h *msgr2.Header, front []byte) []byte {
	b, p, e := msgr2.AppendMessageHead(nil, h, front, nil, 0)
	return msgr2.AppendMessageTail(b, &p, e, 0)
}

func TestHalfAHandshakeAndSilence(t *testing.T) {
	m, dial := rawServer(t, Config{ConnectTimeout: 100 * time.Millisecond})
	silent, half := dial(), dial()
	_, err := half.Write(msgr2.Banner{Supported: 1, Required: 1}.Append(nil))
	require.NoError(t, err)
	closedByPeer(t, silent)
	closedByPeer(t, half)
	require.Eventually(t, func() bool { return m.Stats().HandshakesFailed == 2 }, patience, time.Millisecond)
}

func TestHalfOpenPeersAreBounded(t *testing.T) {
	m, dial := rawServer(t, Config{MaxHalfOpen: 3})
	for range 3 {
		dial()
	}
	require.Eventually(t, func() bool { return m.Stats().HalfOpen == 3 }, patience, time.Millisecond)
	closedByPeer(t, dial())
	require.EqualValues(t, 1, m.Stats().HandshakesRefused)
}

func TestFlippedBitsAreNoticed(t *testing.T) {
	m, dial := rawServer(t, Config{})
	frame := message(&msgr2.Header{Seq: 1, Type: 1}, []byte("front"))
	// The last 8 bytes are the checksums of segments that the frame has not.
	for at := msgr2.PreambleLen; at < len(frame)-8; at += 5 {
		c := dial()
		handshakeRaw(t, c, m)
		bad := append([]byte(nil), frame...)
		bad[at] ^= 4
		_, err := c.Write(bad)
		require.NoError(t, err)
		closedByPeer(t, c)
	}
	require.NotZero(t, m.Stats().ChecksumErrors)
	require.Zero(t, m.Stats().MessagesReceived)
}

func TestDuplicatesAndAbortedFrames(t *testing.T) {
	m, dial := rawServer(t, Config{})
	c := dial()
	handshakeRaw(t, c, m)
	h := msgr2.Header{Seq: 1, Type: 1, TID: 5, Flags: flagCall}
	b, p, e := msgr2.AppendMessageHead(nil, &msgr2.Header{Seq: 1, Type: 1}, []byte("gone"), nil, 0)
	e.Aborted = true
	_, err := c.Write(msgr2.AppendMessageTail(b, &p, e, 0))
	require.NoError(t, err)
	for range 3 {
		_, err := c.Write(message(&h, []byte("once")))
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		st := m.Stats()
		return st.MessagesReceived == 1 && st.Duplicates == 2
	}, patience, time.Millisecond)
}

// A peer that announces payload and does not send it costs memory for what it
// announced at most, and is gone with its connection.
func TestSlowPeerHoldsNoMoreThanItAnnounced(t *testing.T) {
	m, dial := rawServer(t, Config{})
	c := dial()
	handshakeRaw(t, c, m)
	b, _, _ := msgr2.AppendMessageHead(nil, &msgr2.Header{Seq: 1, Type: 1}, nil, nil, 1<<20)
	_, err := c.Write(b)
	require.NoError(t, err)
	arena := m.cfg.Arena
	require.Eventually(t, func() bool { return arena.Account().Held >= 1<<20 }, patience, time.Millisecond)
	c.Close()
	require.Eventually(t, func() bool { return arena.Account().Held == 0 && m.Stats().DispatchBytes == 0 }, patience, time.Millisecond)
}

func TestManyClientsComeAndGo(t *testing.T) {
	m, _ := rawServer(t, Config{Workers: 1})
	client := newMessenger(t, Config{Workers: 1, Auth: []Auth{AuthNone{}}}) // few, as the pools keep theirs
	before := runtime.NumGoroutine()
	for range 100 {
		c, err := client.ConnectTo(OSD, m.Addrs())
		require.NoError(t, err)
		r, err := c.Call(soon(t), NewMessage(1))
		require.NoError(t, err)
		r.Release()
		c.MarkDown()
	}
	require.Eventually(t, func() bool {
		return m.Stats().Open == 0 && client.Stats().Open == 0 && runtime.NumGoroutine() <= before+8
	}, patience, 5*time.Millisecond)
}

// A peer that calls twice by one number, and leaves: neither handler is left waiting.
func TestTwoCallsOfOneNumber(t *testing.T) {
	m, dial := rawServer(t, Config{})
	began, ended := make(chan struct{}), make(chan struct{}, 2)
	m.AddDispatcherFront(&handler{dispatch: func(ctx context.Context, x *Message) bool {
		began <- struct{}{}
		<-ctx.Done()
		x.Release()
		ended <- struct{}{}
		return true
	}})
	c := dial()
	handshakeRaw(t, c, m)
	call := func(seq uint64) {
		_, err := c.Write(message(&msgr2.Header{Seq: seq, Type: 1, TID: 5, Flags: flagCall}, []byte("x")))
		require.NoError(t, err)
	}
	call(1)
	receiveOne(t, began, "first call")
	call(2)
	receiveOne(t, ended, "end of the first, which nobody can be told of any more")
	receiveOne(t, began, "second call")
	require.NoError(t, c.Close())
	receiveOne(t, ended, "end of the second")
}
