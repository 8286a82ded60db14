package conn

import (
	"bytes"
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// A receive buffer of which a part was handed up, in a packet that was not yet
// done with when its connection ended, is the user's: it is not posted again,
// even if the other connections of its queue are short of one.
func TestHandedUpBufferIsNotPostedAgain(t *testing.T) {
	kept := make(chan *buffer.List, 10)
	theirs := nodeConfig{Config: Config{Pollers: 1, Rendezvous: -1}}
	theirs.Admit = func(_ *Conn, head []byte, _ int64) bool { return string(head) != "stop" }
	theirs.OnMessage = func(_ *Conn, m Message) {
		if string(m.Head) == "keep" {
			kept <- m.Payload
		} else {
			m.Payload.Release()
		}
	}
	p := newPair(t, nodeConfig{Config: Config{Rendezvous: -1}}, theirs)
	other, err := p.a.Dial(t.Context(), p.b.Addr().String())
	require.NoError(t, err)
	otherIn := get(t, p.b.accepted)
	require.Same(t, p.ba.l, otherIn.l, "they share a queue")

	// Both messages in one packet: none is posted before they are built.
	p.ab.mu.Lock()
	credits := p.ab.credits
	p.ab.credits -= credits
	p.ab.mu.Unlock()
	want := p.a.send(p.ab, "keep", 3000)
	p.a.send(p.ab, "stop", 3000)
	p.ab.mu.Lock()
	require.EqualValues(t, 1, p.ab.tx.built-p.ab.tx.posted)
	p.ab.credits += credits
	p.ab.pump()
	p.ab.mu.Unlock()
	l := get(t, kept)
	require.Eventually(t, func() bool { return p.ba.Stats().Parks == 1 }, wait, time.Millisecond)

	// As if a connection joined that relies on what this one leaves.
	lane := p.ba.l
	lane.mu.Lock()
	lane.want += p.b.cfg.Credits
	lane.mu.Unlock()
	p.ab.Close()
	get(t, p.ba.Done())
	const fills = 100 // each fills a packet: every buffer of the queue is used
	for range fills {
		p.a.send(other, "fill", 14_000)
	}
	require.Eventually(t, func() bool { return otherIn.Stats().MessagesReceived == fills }, wait, time.Millisecond)
	require.True(t, bytes.Equal(want, bytesOf(l)), "the payload was overwritten")
	l.Release()
	lane.mu.Lock()
	lane.want -= p.b.cfg.Credits
	lane.mu.Unlock()
}

// A key that could not be made leads to others that can not be withdrawn at
// once: the connection ends, and they are withdrawn before its queue pair goes.
func TestKeysOfARefusedRendezvousAreWithdrawn(t *testing.T) {
	var failing bool
	s := &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
		if c.Op == verbstest.CallRegScoped && c.N == 1 {
			failing = true
			return verbstest.Fault{Err: fmt.Errorf("no key: %w", errInjected)}
		}
		if c.Op == verbstest.CallDeregister && failing {
			failing = false
			return verbstest.Fault{Err: fmt.Errorf("not deregistered: %w", errInjected)}
		}
		return verbstest.Fault{}
	}}
	b := newNode(t, nodeConfig{})
	needKeys(t, b.dev)
	addr := b.listen()
	a := newNode(t, nodeConfig{device: openFaulty(t, s)})
	c, err := a.Dial(t.Context(), addr)
	require.NoError(t, err)
	l, _ := a.list(200_000, 200_000)
	require.ErrorIs(t, c.Send(t.Context(), Message{Head: []byte("x"), Payload: l}), errInjected)
	l.Release()
	get(t, c.Done())
	require.Equal(t, 2, s.Fired())
	require.Zero(t, a.a.Stats().Grants)
}

// A rendezvous that waits for much memory does not keep the receive buffers of
// other connections waiting.
func TestRendezvousHoldsBackNoReceives(t *testing.T) {
	kept := make(chan *buffer.List, 100)
	theirs := nodeConfig{Config: Config{Pollers: 1}, budget: 8 << 20}
	theirs.OnMessage = func(_ *Conn, m Message) { kept <- m.Payload }
	p := newPair(t, nodeConfig{}, theirs)
	needKeys(t, p.a.dev)
	other, err := p.a.Dial(t.Context(), p.b.Addr().String())
	require.NoError(t, err)
	get(t, p.b.accepted)

	var all []buffer.RDMABuffer
	for {
		b, ok := p.b.a.TryGet(16<<10, buffer.Anonymous)
		if !ok {
			break
		}
		all = append(all, b)
	}
	large := p.a.send(p.ab, "large", 1<<20)
	require.Eventually(t, func() bool { return p.b.a.Stats().Waiting == 1 }, wait, time.Millisecond)
	const n = 40 // the other connection has credits for 13
	sent := make(chan []byte, n)
	go func() {
		for range n {
			sent <- p.a.send(other, "small", 10_000)
		}
	}()
	require.Eventually(t, func() bool { return len(kept) == 13 }, wait, time.Millisecond)
	// No chunk becomes free of this, but buffers in many.
	for i := 0; i < len(all); i += 8 {
		all[i].Release()
		all[i] = buffer.RDMABuffer{}
	}
	for range n {
		l := get(t, kept)
		require.True(t, bytes.Equal(<-sent, bytesOf(l)))
		l.Release()
	}
	require.Empty(t, kept, "the large one still waits")
	for _, b := range all {
		if !b.IsZero() {
			b.Release()
		}
	}
	// Receive buffers may have come to lie in each chunk, and stay there: then
	// the payload comes in pieces.
	l := get(t, kept)
	require.True(t, bytes.Equal(large, bytesOf(l)))
	l.Release()
}

// Where most of the memory is free but no chunk, a payload comes in pieces.
func TestRendezvousInPieces(t *testing.T) {
	kept := make(chan *buffer.List, 1)
	theirs := nodeConfig{budget: 8 << 20}
	theirs.OnMessage = func(_ *Conn, m Message) { kept <- m.Payload }
	p := newPair(t, nodeConfig{}, theirs)
	needKeys(t, p.a.dev)

	const chunk = 1 << 20
	var all []buffer.RDMABuffer
	for {
		b, ok := p.b.a.TryGet(16<<10, buffer.Anonymous)
		if !ok {
			break
		}
		all = append(all, b)
	}
	held := map[uintptr]buffer.RDMABuffer{} // one in each chunk
	for _, b := range all {
		at := uintptr(unsafe.Pointer(unsafe.SliceData(b.Bytes()))) / chunk
		if _, ok := held[at]; ok {
			b.Release()
		} else {
			held[at] = b
		}
	}
	_, ok := p.b.a.TryGet(chunk, buffer.Anonymous)
	require.False(t, ok)

	want := p.a.send(p.ab, "large", chunk)
	l := get(t, kept)
	require.Greater(t, l.Segments(), 1)
	require.True(t, bytes.Equal(want, bytesOf(l)))
	l.Release()
	for _, b := range held {
		b.Release()
	}
}
