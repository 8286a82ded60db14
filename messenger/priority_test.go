package messenger_test

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/argonaut-rdma/argonaut/messenger"
)

// What waits for the peer arrives by priority: the high ones first, the highest before
// others, then the rest, each priority in order, and a low one does not wait for all
// others.
func TestPrioritiesArriveInTheirOrder(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		d.Net.Split([]string{d.Nodes[0].Host}, []string{d.Nodes[1].Host})
		c := d.connect(t, 0)
		post := func(n uint32, priority uint16) {
			m := NewMessage(1)
			m.Priority = priority
			m.Front = binary.LittleEndian.AppendUint32(m.Front, n)
			require.NoError(t, c.Send(t.Context(), m))
		}
		for n := range uint32(8) {
			post(1+n, PriorityDefault)
		}
		post(20, PriorityLow)
		post(30, PriorityHigh)
		post(40, PriorityHighest)
		post(31, PriorityHigh)
		settle(time.Second)
		require.Empty(t, d.rec[1].received())
		d.Net.Heal()
		settle(time.Minute)
		got := d.rec[1].received()
		require.Len(t, got, 12)
		require.Equal(t, []uint32{40, 30, 31}, got[:3])
		low := slices.Index(got, 20)
		require.Less(t, low, 11, "a low one before all others have gone: %v", got)
		require.Equal(t, []uint32{1, 2, 3, 4, 5, 6, 7, 8}, slices.Delete(slices.Clone(got[3:]), low-3, low-2))
	})
}
