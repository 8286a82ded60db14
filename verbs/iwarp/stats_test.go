package iwarp

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// What one end sends the other receives, framing included, and both know who
// connected to whom.
func TestStatsOfTransfers(t *testing.T) {
	forVariants(t, func(t *testing.T, c endConfig) {
		a, b := pair(t, c)
		const n, messages = 50_000, 5
		_, sm := a.mem(n, 0)
		_, dm := b.mem(n, driver.AccessLocalWrite)
		for range messages {
			b.recv(1, sgeOf(dm, 0, n))
			a.post(driver.SendWR{WRID: 2, Opcode: driver.OpSend, Flags: driver.SendSignaled, SGEs: []driver.SGE{sgeOf(sm, 0, n)}})
			a.waitOK(a.scq, 1)
			b.waitOK(b.rcq, 1)
		}
		var x, y Stats
		require.Eventually(t, func() bool { // the last bytes are counted behind the completion
			x, y = a.dev.Stats(), b.dev.Stats()
			return x.BytesOut == y.BytesIn && x.BytesIn == y.BytesOut
		}, testTimeout, time.Millisecond)
		require.Greater(t, x.BytesOut, int64(messages*n))
		require.Less(t, x.BytesOut, int64(messages*n*11/10))
		require.Positive(t, x.Writes)
		require.Positive(t, y.Reads)
		require.Equal(t, [2]int64{1, 0}, [2]int64{x.Connects, x.Accepts})
		require.Equal(t, [2]int64{0, 1}, [2]int64{y.Connects, y.Accepts})
		for _, s := range []Stats{x, y} {
			require.EqualValues(t, 1, s.Registrations)
			require.Positive(t, s.RegistrationTime)
			require.Zero(t, s.CQOverruns+s.HandshakeFailures+s.TerminatesSent+s.TerminatesReceived+s.Resets+s.PinnedBytes)
		}
	})
}

// A violation is told by one Terminate.
func TestStatsOfTerminates(t *testing.T) {
	a, b := pair(t, endConfig{})
	_, m := a.mem(8, 0)
	a.post(driver.SendWR{WRID: 1, Opcode: driver.OpWrite, Flags: driver.SendSignaled, SGEs: []driver.SGE{sgeOf(m, 0, 8)}, RemoteAddr: 1, RKey: 2})
	require.Equal(t, driver.EventQPFatal, a.event().Type)
	x, y := a.dev.Stats(), b.dev.Stats()
	require.Equal(t, [2]int64{0, 1}, [2]int64{x.TerminatesSent, x.TerminatesReceived})
	require.Eventually(t, func() bool { y = b.dev.Stats(); return y.TerminatesSent == 1 }, testTimeout, time.Millisecond)
	require.Zero(t, y.TerminatesReceived)
}

// Completions that a full queue loses are counted, each.
func TestStatsOfOverruns(t *testing.T) {
	a, b := pair(t, endConfig{cqDepth: 4})
	const n = 7
	for i := range uint64(n) {
		b.recv(i)
	}
	for i := range uint64(n) {
		a.post(driver.SendWR{WRID: i, Opcode: driver.OpSend})
	}
	require.Equal(t, driver.EventCQErr, b.event().Type)
	require.Eventually(t, func() bool { return b.dev.Stats().CQOverruns == n-4 }, testTimeout, time.Millisecond)
	require.Len(t, b.waitOK(b.rcq, 4), 4)
	require.Zero(t, a.dev.Stats().CQOverruns)
}

// Pinned memory is counted by the page, head and tail included, as long as it is
// registered.
func TestStatsOfPins(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("memory is pinned on Linux only")
	}
	e := newEnd(t, endConfig{cfg: Config{Pin: true}})
	m, err := e.pd.RegMR(make([]byte, 3*pageSize), driver.AccessLocalWrite)
	require.NoError(t, err)
	pinned := e.dev.Stats().PinnedBytes
	require.Contains(t, []int64{3 * pageSize, 4 * pageSize}, pinned)
	require.Equal(t, e.dev.Stats().Pages*pageSize, pinned)
	require.NoError(t, m.Deregister())
	require.Zero(t, e.dev.Stats().PinnedBytes)
}
