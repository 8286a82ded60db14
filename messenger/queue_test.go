package messenger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestQueueByPriority(t *testing.T) {
	var q sendQueue
	m := func(p uint16, tid uint64) *Message { return &Message{Priority: p, TID: tid} }
	q.push(entry{m: m(127, 1), size: 10})
	q.push(entry{m: m(255, 2), size: 10})
	q.push(entry{m: m(64, 3), size: 10})
	q.push(entry{m: m(127, 4), size: 10})
	q.push(entry{kind: entryKeepalive})
	require.Equal(t, 4, q.messages)
	require.EqualValues(t, 40, q.bytes)
	e, ok := q.pop()
	require.True(t, ok)
	require.Equal(t, entryKeepalive, e.kind)
	for _, tid := range []uint64{2, 1, 3, 4} {
		e, ok := q.pop()
		require.True(t, ok)
		require.Equal(t, tid, e.m.TID)
	}
	_, ok = q.pop()
	require.False(t, ok)
	require.True(t, q.empty())
	require.Zero(t, q.bytes)
}

func TestRingIsAQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r ring[int]
		var model []int
		n := 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(*rapid.T) { r.push(n); model = append(model, n); n++ },
			"pop": func(t *rapid.T) {
				v, ok := r.pop()
				require.Equal(t, len(model) > 0, ok)
				if ok {
					require.Equal(t, model[0], v)
					model = model[1:]
				}
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(model), r.n)
				if len(model) > 0 {
					require.Equal(t, model[0], *r.peek())
				}
			},
		})
	})
}

func TestMessageReferences(t *testing.T) {
	m := NewMessage(1)
	m.Retain()
	m.Release()
	freed := false
	m.done = func() { freed = true }
	m.Release()
	require.True(t, freed)
	require.Panics(t, func() { (&Message{}).Release() })
	require.Panics(t, func() { (&Message{}).Retain() })
}

func TestExtension(t *testing.T) {
	var m Message
	_, err := m.decodeExtension([]byte{99, 1, 0})
	require.NoError(t, err, "unknown kinds are skipped")
	gap, err := m.decodeExtension(appendGap([]byte{extDeadline, 8, 255, 255, 255, 255, 255, 255, 255, 255}, 7))
	require.NoError(t, err)
	require.EqualValues(t, 7, gap)
	require.False(t, m.deadline.IsZero())
	for _, bad := range [][]byte{{1}, {1, 8, 0}, {extDeadline, 4, 0, 0, 0, 0}, {extTrace, 1, 0}, {extGap, 2, 0, 0}} {
		_, err := m.decodeExtension(bad)
		require.ErrorIs(t, err, ErrProtocol)
	}
	all := (&purpose{deadline: time.Now()}).appendExtension(nil, &TraceContext{TraceID: [16]byte{1}}, time.Now())
	require.Len(t, appendGap(all, 1), extensionMax)
}

func FuzzExtension(f *testing.F) {
	f.Add([]byte{extDeadline, 8, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add((&purpose{deadline: time.Now()}).appendExtension(nil, &TraceContext{TraceID: [16]byte{1}}, time.Now()))
	f.Add(appendGap(nil, 1<<63))
	f.Fuzz(func(t *testing.T, p []byte) { _, _ = new(Message).decodeExtension(p) })
}

func TestGrantsCode(t *testing.T) {
	gs := []Grant{{Addr: 1, Len: 2, RKey: 3, Epoch: 4, Write: true}, {Addr: 5, Len: 6, RKey: 7, Epoch: 8}}
	p := AppendGrants(nil, gs)
	require.Len(t, p, 4+2*GrantLen)
	got, rest, err := DecodeGrants(nil, append(p, "rest"...))
	require.NoError(t, err)
	require.Equal(t, gs, got)
	require.Equal(t, "rest", string(rest))
	for n := range p {
		_, _, err := DecodeGrants(nil, p[:n])
		require.ErrorIs(t, err, ErrInvalid)
	}
	_, _, err = DecodeGrants(nil, []byte{255, 255, 255, 255})
	require.ErrorIs(t, err, ErrInvalid)
}

func FuzzGrants(f *testing.F) {
	f.Add(AppendGrants(nil, []Grant{{Addr: 1, Len: 2}}))
	f.Fuzz(func(t *testing.T, p []byte) {
		gs, rest, err := DecodeGrants(nil, p)
		if err != nil {
			return
		}
		again, _, err := DecodeGrants(nil, AppendGrants(nil, gs))
		require.NoError(t, err)
		require.Equal(t, gs, again)
		require.Len(t, rest, len(p)-4-len(gs)*GrantLen)
	})
}

func TestAddrs(t *testing.T) {
	v, err := ParseAddrs("iwarp://127.0.0.1:1, tcp://[::1]:2")
	require.NoError(t, err)
	require.Equal(t, AddrVec{{URL: "iwarp://127.0.0.1:1"}, {URL: "tcp://[::1]:2"}}, v)
	require.Equal(t, "iwarp", v[0].Scheme())
	require.Equal(t, "[::1]:2", v[1].HostPort())
	for _, a := range []string{"tcp://192.0.2.1:6800", "iwarp://192.0.2.1:6800", "rdma://[2001:db8::1]:7000"} {
		x := EntityAddr{URL: a, Nonce: 9}
		require.Equal(t, x, fromWire(x.toWire()))
	}
	for _, bad := range []string{"", "host:1", "tcp://host", "tcp://host:http", "://h:1", "tcp://h:65536"} {
		_, err := ParseAddr(bad)
		require.ErrorIs(t, err, ErrInvalid, bad)
	}
}

func TestEntityNames(t *testing.T) {
	for _, s := range []string{"osd.0", "client.?", "mon.7"} {
		n, err := ParseEntityName(s)
		require.NoError(t, err)
		require.Equal(t, s, n.String())
	}
	for _, s := range []string{"", "osd", "osd.", "osd.-1", "disk.1"} {
		_, err := ParseEntityName(s)
		require.ErrorIs(t, err, ErrInvalid)
	}
}

// Below PriorityHigh every priority has a share: twice the priority, twice the
// bytes; and none saves up what it has not used.
func TestSendQueueIsFair(t *testing.T) {
	var q sendQueue
	push := func(priority uint16, n int, size int64) {
		for range n {
			m := NewMessage(1)
			m.Priority = priority
			q.push(entry{kind: entryMessage, m: m, size: size})
		}
	}
	pop := func(n int) map[uint16]int64 {
		bytes := map[uint16]int64{}
		for range n {
			e, ok := q.pop()
			require.True(t, ok)
			bytes[e.m.Priority] += e.size
			e.m.Release()
		}
		return bytes
	}
	push(PriorityLow, 400, 8<<10)
	push(2*PriorityLow, 400, 32<<10)
	push(PriorityHigh, 3, 1)
	require.Equal(t, map[uint16]int64{PriorityHigh: 3}, pop(3), "the high ones first")
	got := pop(300)
	require.InDelta(t, 2, float64(got[2*PriorityLow])/float64(got[PriorityLow]), 0.05)

	for !q.empty() {
		pop(1)
	}
	push(PriorityLow, 100, 8<<10)
	pop(100) // alone
	push(PriorityLow, 100, 8<<10)
	push(2*PriorityLow, 100, 8<<10)
	got = pop(90)
	require.InDelta(t, 2, float64(got[2*PriorityLow])/float64(got[PriorityLow]), 0.15)
	for !q.empty() {
		pop(1)
	}
}
