package verbs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Sequences go through the 40 bits of a wr_id, and the ledger through them, for
// as long as a QP lives.
func TestRingAcrossTheWrap(t *testing.T) {
	m := &MR{index: 3}
	var u uses
	r := newRing(4, 1, 1<<seqBits-10, true)
	var early uint64
	for i := range 40 {
		require.False(t, r.full())
		seq := r.push(entry{wrid: uint64(i), signaled: true})
		r.hold(&u, m)
		kind, own, low := splitWRID(wrID(kindSend, 1<<ownerBits-1, seq))
		require.Equal(t, kindSend, kind)
		require.EqualValues(t, 1<<ownerBits-1, own)
		require.Equal(t, seq&seqMask, low)
		got, v := r.find(low)
		require.Equal(t, vOK, v)
		require.Equal(t, seq, got)
		require.EqualValues(t, i, r.buf[got&r.mask].wrid)
		r.complete(u, got, true)
		_, v = r.find(low)
		require.Equal(t, vStale, v, "a second time")
		if i == 0 {
			early = low
		}
	}
	_, v := r.find(early)
	require.Equal(t, vStale, v)
	_, v = r.find(early - 1)
	require.Equal(t, vLate, v, "of the owner before")
	_, v = r.find(r.tail & seqMask)
	require.Equal(t, vStale, v, "not posted yet")
	require.Zero(t, u.count(m))
}

func TestRingTakesBack(t *testing.T) {
	m := &MR{index: 0}
	var u uses
	r := newRing(4, 2, 7, true)
	for range 4 {
		r.push(entry{})
		r.hold(&u, m)
		r.hold(&u, m)
	}
	require.True(t, r.full())
	r.unpush(u, 3)
	require.Equal(t, 2, u.count(m))
	require.Equal(t, 1, r.live)
	require.EqualValues(t, 8, r.push(entry{signaled: true}))
	seq, v := r.find(8)
	require.Equal(t, vOK, v)
	r.complete(u, seq, false)
	require.Zero(t, r.live)
	require.Zero(t, u.count(m))
	require.Len(t, r.orphans(u, nil, false), 2, "nobody was told")
	require.Empty(t, r.orphans(u, nil, false))
}

// A ring grows while requests overtake one that is slow, through the wrap, and not
// for ever: a device that never completes a request does not take all memory.
func TestRingGrows(t *testing.T) {
	for inOrder, want := range map[bool]int{true: 8, false: overtaken} {
		m := &MR{index: 1}
		var u uses
		r := newRing(4, 1, 1<<seqBits-10, inOrder)
		slow := r.push(entry{wrid: 77, signaled: true})
		r.hold(&u, m)
		n := 1
		for ; !r.full(); n++ {
			seq := r.push(entry{wrid: uint64(n), signaled: true})
			r.hold(&u, m)
			got, v := r.find(seq & seqMask)
			require.Equal(t, vOK, v)
			require.EqualValues(t, n, r.buf[got&r.mask].wrid)
			r.complete(u, got, true)
			require.Equal(t, 1, u.count(m))
		}
		require.Equal(t, want, n)
		require.Len(t, r.buf, want)
		seq, v := r.find(slow & seqMask)
		require.Equal(t, vOK, v)
		require.EqualValues(t, 77, r.buf[seq&r.mask].wrid)
		r.complete(u, seq, true)
		require.Zero(t, u.count(m))
		require.Equal(t, r.tail, r.head)
		require.False(t, r.full())
	}
}

// What a ring had forgotten before it grew is not found again.
func TestRingGrowsAndForgets(t *testing.T) {
	var u uses
	r := newRing(2, 1, 0, false)
	for i := range 10 { // nobody is told
		r.complete(u, r.push(entry{wrid: uint64(i), signaled: true}), false)
	}
	r.push(entry{wrid: 100, signaled: true})
	for i := range 4 {
		r.complete(u, r.push(entry{wrid: 101 + uint64(i), signaled: true}), false)
	}
	require.Len(t, r.buf, 8)
	var ids []uint64
	for _, o := range r.orphans(u, nil, false) {
		ids = append(ids, o.WRID)
	}
	require.Equal(t, []uint64{100, 101, 102, 103, 104}, ids)
}

// A request that the device did not accept is nobody's orphan, although it has
// taken the entry of one that was remembered.
func TestRingForgetsTakenBack(t *testing.T) {
	var u uses
	r := newRing(2, 1, 0, true)
	for i := range 4 {
		r.complete(u, r.push(entry{wrid: uint64(i), signaled: true}), false)
	}
	r.push(entry{wrid: 4})
	r.unpush(u, 1)
	require.Equal(t, []Orphan{{1, false}, {2, false}, {3, false}}, r.orphans(u, nil, false))
}

func TestLedgerPanicsOnOurOwnBug(t *testing.T) {
	u := uses{{mr: &MR{}, n: 0}}
	require.Panics(t, func() { u.drop(0, 0) })
}

// The last request that names a region wakes the one that waits for it, also
// while a further Deregister is deciding.
func TestLastUseWakes(t *testing.T) {
	for state, want := range map[uint32]int{mrLive: 0, mrChecking: 1, mrDraining: 1} {
		m := &MR{wake: make(chan struct{}, 1)}
		m.state.Store(state)
		var u uses
		u.add(m, 0)
		u.add(m, 0)
		u.drop(0, 0)
		require.Empty(t, m.wake)
		u.drop(0, 0)
		require.Len(t, m.wake, want)
	}
}

// A slot that is used again has another generation, also over owners.
func TestSlotGenerations(t *testing.T) {
	s := newSlots(2, 1, genMask)
	_, a := s.take(1)
	i, v := s.find(a)
	require.Equal(t, vOK, v)
	s.retire(nil, i)
	_, v = s.find(a)
	require.Equal(t, vStale, v)
	_, b := s.take(2)
	require.NotEqual(t, a, b)
	require.EqualValues(t, 0, b>>slotBits, "generations wrap")
	i, v = s.find(b)
	require.Equal(t, vOK, v)
	s.retire(nil, i)
	next := newSlots(2, 1, s.nextGen(genMask))
	for range 2 {
		_, c := next.take(3)
		for _, old := range []uint64{a, b} {
			require.NotEqual(t, old>>slotBits, c>>slotBits)
		}
	}
	_, v = s.find(slotMask)
	require.Equal(t, vStale, v)
}

func TestOwnersGoRound(t *testing.T) {
	var o owners
	first, slot, ok := o.take()
	require.True(t, ok)
	require.Zero(t, slot.next)
	o.give(first, 99)
	seen := map[uint32]bool{}
	for {
		i, s, ok := o.take()
		require.True(t, ok)
		if i == first {
			require.EqualValues(t, 99, s.next)
			break
		}
		require.False(t, seen[i])
		seen[i] = true
	}
	require.NotEmpty(t, seen, "an index rests before it is used again")
	require.Nil(t, o.at(1<<20))
}
